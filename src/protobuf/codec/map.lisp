;;;; Map fields. A PROTO-MAP keeps keys and values in two vectors in the order of their insertion.
;;;; A map of up to eight entries is searched entry by entry, a larger map through a hash table from
;;;; key to position. Keys are compared by value; the last entry moves to the place of a removed
;;;; one.
;;;;
;;;; A map knows the kinds of its keys and values, so it accepts no other kinds.

(in-package #:clgrpc.protobuf)

(defconstant +linear-map-limit+ 8
  "The maximum number of entries of a map without a hash table.")

(defstruct (proto-map (:constructor make-proto-map (key-kind value-kind value-type)) (:copier nil))
  "The value of a map field: see MAP-VALUE, MAP-COUNT, MAP-REMOVE, DO-MAP, MAP-ALIST."
  (key-kind :string :type keyword)      ; the kind of the keys
  (value-kind :string :type keyword)    ; the kind of the values
  (value-type nil)                      ; the message or enum type of the values, or nil
  (keys #() :type simple-vector)        ; keys in the order of insertion
  (vals #() :type simple-vector)        ; the value of each
  (count 0 :type index)                 ; how many entries there are
  (index nil :type (or null key-index))) ; maps keys to places, if there are many

(define-printer (map proto-map)
  "~(~A~) → ~(~A~), ~D entr~:@P" (proto-map-key-kind map) (proto-map-value-kind map)
  (proto-map-count map))

(defun map-position (map key)
  "Return the position of KEY in MAP, or nil if MAP has no such key."
  (let ((index (proto-map-index map)) (keys (proto-map-keys map)))
    (if index
        (index-position index keys key)
        (loop for i of-type index from 0 below (proto-map-count map)
              when (key= key (svref keys i)) return i))))

(defun map-put (map key value)
  "Set the value of KEY in MAP; both are in the form that the map stores."
  (if-let ((position (map-position map key)))
    (setf (svref (proto-map-vals map) position) value)
    (append-entry map key value)))

(defun append-entry (map key value)
  (let ((count (proto-map-count map)))
    (when (= count (length (proto-map-keys map)))
      (let ((room (max 4 (* 2 count))))
        (setf (proto-map-keys map) (resize-vector (proto-map-keys map) count room)
              (proto-map-vals map) (resize-vector (proto-map-vals map) count room))))
    (setf (svref (proto-map-keys map) count) key
          (svref (proto-map-vals map) count) value
          (proto-map-count map) (1+ count))
    (let ((index (proto-map-index map)))
      (cond ((if index (index-full-p index) (= count +linear-map-limit+))
             (setf (proto-map-index map) (build-index (proto-map-keys map) (1+ count))))
            (index (enter-key index key count))))
    value))

(defun comparable-key (key)
  "KEY in a form that MAP-POSITION accepts."
  (if (typep key '(and string (not text))) (to-text key) key))

(defun map-value (map key &optional default)
  "Return the value of KEY in MAP and true, or DEFAULT and nil if MAP has no such key. SETF sets the
value, and signals an error if key or value is not of the field's types. Reading is possible from
any thread while no other thread changes MAP; writing from one thread at a time."
  (if-let ((position (map-position map (comparable-key key))))
    (values (svref (proto-map-vals map) position) t)
    (values default nil)))

(defun (setf map-value) (value map key &optional default)
  (declare (ignore default))
  (map-put map
           (to-kind (proto-map-key-kind map) key nil)
           (to-kind (proto-map-value-kind map) value (proto-map-value-type map)))
  value)

(defun map-count (map)
  "Return how many entries MAP has. From any thread, while no other thread changes MAP."
  (proto-map-count map))

(defun map-remove (map key)
  "Remove the entry of KEY from MAP; return true if it existed. Only one thread at a time may change
MAP."
  (let* ((key (comparable-key key))
         (position (map-position map key)))
    (when position
      (let ((last (1- (proto-map-count map)))
            (keys (proto-map-keys map))
            (vals (proto-map-vals map)))
        (when (proto-map-index map)
          (move-key (proto-map-index map) keys key nil)
          (unless (= position last)
            (move-key (proto-map-index map) keys (svref keys last) position)))
        (setf (svref keys position) (svref keys last)
              (svref vals position) (svref vals last)
              (svref keys last) 0
              (svref vals last) 0
              (proto-map-count map) last))
      t)))

(defmacro do-map (((key value) map &optional result) &body body)
  "Run BODY with KEY and VALUE bound to each entry of MAP in turn; return RESULT. MAP must not
change meanwhile. From any thread."
  (let ((object (gensym "MAP")) (i (gensym "I")))
    `(let ((,object ,map))
       (dotimes (,i (proto-map-count ,object) ,result)
         (let ((,key (svref (proto-map-keys ,object) ,i))
               (,value (svref (proto-map-vals ,object) ,i)))
           (declare (ignorable ,key ,value))
           ,@body)))))

(defun map-alist (map)
  "Return a fresh alist of the entries of MAP. From any thread, while no other thread changes MAP."
  (let ((entries '()))
    (do-map ((key value) map (nreverse entries))
      (push (cons key value) entries))))

(defun to-map (key-kind value-kind value-type entries field)
  "A fresh map of the given field types with ENTRIES, an alist, a hash table or another map, for
FIELD, a full name."
  (let ((map (make-proto-map key-kind value-kind value-type)))
    (naming-field (field)
      (etypecase entries
        (list (loop for entry in entries
                    do (if (consp entry)
                           (setf (map-value map (car entry)) (cdr entry))
                           (refuse-value entries (accepted-type :map nil) field))))
        (hash-table (maphash (lambda (key value) (setf (map-value map key) value)) entries))
        (proto-map (do-map ((key value) entries) (setf (map-value map key) value)))))
    map))

;;; Entries on the wire

(define-hot read-entry ((octets octets) (at index) (end index)
                        (key-tag (unsigned-byte 32)) (key-reader function) (key t)
                        (value-tag (unsigned-byte 32)) (value-reader (or null function)) (value t))
    (values t t)
  "Read one entry from AT to END. Return two values: its key, or KEY if the key is absent; and its
value, or VALUE if that is absent. Without VALUE-READER the value is a sub-message: return the
ranges of its pieces, the latest first."
  (loop while (< at end)
        do (let ((tag (take-tag)))
             (cond ((= tag key-tag)
                    (setf (values key at) (funcall key-reader octets at end)))
                   ((/= tag value-tag)
                    (setf at (skip-field octets at end tag)))
                   (value-reader
                    (setf (values value at) (funcall value-reader octets at end)))
                   (t (with-delimited (start stop) (push (cons start stop) value))))))
  (values key value))

(define-hot entry-value-size ((value t) (sizer (or null function)) (type t) (measured t)) index
  "The size of VALUE in an entry. TYPE is the value's message or enum type, if any; MEASURED is true
if a sub-message was measured already."
  (typecase type
    (message-type
     (let ((length (if measured
                       (message-size value)
                       (truly-the index (funcall (message-type-sizer type) value)))))
       (+ length (varint-size length))))
    (enum-type (size-enum (enum-number-of type value)))
    (t (truly-the index (funcall (the function sizer) value)))))

(define-hot size-map ((map proto-map) (tag-size index) (key-sizer function)
                      (value-sizer (or null function)) (type t))
    index
  "The size of the map field MAP, each of whose tags takes TAG-SIZE octets."
  (let ((size 0))
    (declare (type index size))
    (do-map ((key value) map size)
      (let ((length (+ 2 (truly-the index (funcall key-sizer key))
                       (entry-value-size value value-sizer type nil))))
        (declare (type index length))
        (setf size (truly-the index (+ size tag-size length (varint-size length))))))))

(defvar *deterministic* nil
  "True while a message is written with its maps sorted by key.")

(defun key< (a b)
  (typecase a
    (string (and (string< a b) t))
    (integer (< a b))
    (t (and (not a) b))))               ; false comes before true

(defun sorted-map (map)
  "Return a map with the entries of MAP sorted by key. It may only be read, in this order."
  (let ((entries (sort (map-alist map) #'key< :key #'car))
        (sorted (make-proto-map (proto-map-key-kind map) (proto-map-value-kind map)
                                (proto-map-value-type map))))
    (setf (proto-map-keys sorted) (map 'simple-vector #'car entries)
          (proto-map-vals sorted) (map 'simple-vector #'cdr entries)
          (proto-map-count sorted) (length entries))
    sorted))

(define-hot put-map ((map proto-map) (octets octets) (at index) (tag (unsigned-byte 32))
                     (key-tag octet) (key-sizer function) (key-putter function)
                     (value-tag octet) (value-sizer (or null function))
                     (value-putter (or null function)) (type t))
    index
  "Write the map field MAP."
  (when *deterministic* (setf map (sorted-map map)))
  (do-map ((key value) map at)
    (put-varint tag)
    (put-varint (truly-the index (+ 2 (truly-the index (funcall key-sizer key))
                                    (entry-value-size value value-sizer type t))))
    (put-octet key-tag)
    (setf at (truly-the index (funcall key-putter key octets at)))
    (put-octet value-tag)
    (typecase type
      (message-type
       (put-varint (message-size value))
       (setf at (truly-the index (funcall (message-type-writer type) value octets at))))
      (enum-type (put-varint (enum-number-of type value)))
      (t (setf at (truly-the index (funcall (the function value-putter) value octets at)))))))

(defun write-key (key stream)
  "Write KEY, of a map, in brackets."
  (format stream "[~A]" (if (stringp key) (printable-text key :limit 60 :quoted t) key)))
