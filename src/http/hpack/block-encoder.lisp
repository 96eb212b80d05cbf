;;;; The encoder converts fields to a header block (RFC 7541 sections 5 and 6) at the end of a
;;;; buffer.
;;;;
;;;; Entries of the encoder's dynamic table are found by hash: HEADS has the number of the newest
;;;; entry of each bucket, and LINKS has, for each slot of the ring, the number of the next older
;;;; entry in the same bucket. HEADS and LINKS each have two halves, both as long as the ring: one
;;;; for the hash of name and value, one for the hash of the name. Numbers only decrease along a
;;;; chain, so a chain ends at the first number of an evicted entry, and an eviction changes nothing
;;;; here. Hashes are stored in the field, so a constant field that is already in the table costs
;;;; one probe of its bucket. A string is Huffman coded only if that is shorter. SET-ENCODER-LIMIT
;;;; notes a change of the limit, which takes effect at both ends with the size updates that
;;;; BEGIN-BLOCK writes (section 4.2). The encoding of a vector of constant fields remains valid
;;;; while no entry is added or evicted and the limit is the same, so ENCODE-FIELDS copies it
;;;; instead of searching again.

(in-package #:clgrpc.hpack)

(deftype mode () '(member :index :plain :never))
(deftype numbers () '(simple-array fixnum (*)))

(declaim (type numbers **no-numbers**))
(define-load-time-global **no-numbers** (make-array 0 :element-type 'fixnum))

(defstruct (encoder (:include table) (:constructor %make-encoder (limit ceiling pending least))
                    (:copier nil))
  "An encoder of the header blocks of one direction of one connection. See MAKE-ENCODER."
  (ceiling 0 :type index)                       ; our limit, even if the peer offers more
  (pending nil :type (or null index))           ; the limit that the next block must announce
  (least 0 :type index)                         ; the least limit of the table since the last block
  (heads **no-numbers** :type numbers)  ; an index of the entries: the newest number of each bucket
  (links **no-numbers** :type numbers)  ; by slot of the ring, the next older number in the bucket
  (encoded nil :type (or null simple-vector))   ; the encodings that ENCODE-FIELDS caches
  (settled 0 :type index))                      ; TABLE-INSERTED at the last call of ENCODE-FIELDS
(declaim (freeze-type encoder))

(defun make-encoder (&key (table-octets +initial-table-octets+))
  "Return an encoder that uses a dynamic table of at most TABLE-OCTETS, but of at most 4096 octets
until SET-ENCODER-LIMIT sets a higher limit of the peer. An encoder belongs to one connection, and
one thread at a time may use it. Its memory grows with its table."
  (check-type table-octets index)
  (let ((limit (min table-octets +initial-table-octets+)))
    (%make-encoder limit table-octets (when (< limit +initial-table-octets+) limit) limit)))

(defmethod print-object ((encoder encoder) stream)
  (print-unreadable-object (encoder stream :type t :identity t)
    (format stream "~D entr~:@P, ~D of ~D octets" (table-count encoder) (table-octets encoder)
            (table-limit encoder))))

(defun forget-encoded (encoder)
  "Drop the cache of ENCODER, which saves work in ENCODE-FIELDS; ENCODE-FIELDS fills it again."
  (setf (encoder-encoded encoder) nil))

(define-hot (encoder-memory :inline t) ((encoder encoder)) index
  "Return the approximate number of octets of memory that ENCODER keeps."
  (+ (table-memory encoder) (* 16 (min +most-places+ (length (encoder-heads encoder))))))

(defun set-encoder-limit (encoder octets)
  "Allow ENCODER a table of up to OCTETS, the peer's SETTINGS_HEADER_TABLE_SIZE, or up to ENCODER's
own limit if that is lower. The next block announces the change."
  (check-type octets index)
  (let ((limit (min octets (encoder-ceiling encoder)))
        (last (or (encoder-pending encoder) (table-limit encoder))))
    (unless (= limit last)
      (setf (encoder-least encoder) (if (encoder-pending encoder)
                                        (min limit (encoder-least encoder))
                                        limit)
            (encoder-pending encoder) limit)))
  octets)

;;; Integers and strings

(define-hot append-long-integer ((buffer buffer) (value index) (mask octet) (pattern octet)) null
  (append-octet buffer (logior pattern mask))
  (let ((rest (- value mask)))
    (declare (type index rest))
    (loop while (<= 128 rest)
          do (append-octet buffer (logior 128 (logand rest 127)))
             (setf rest (ash rest -7)))
    (append-octet buffer rest)))

(define-hot (append-integer :inline t) ((buffer buffer) (value index) (mask octet)
                                       (pattern octet))
    null
  "Append the integer VALUE. Its prefix is the bits MASK of an octet whose other bits are PATTERN."
  (cond ((< value mask)
         (let ((to (ensure-buffer-room buffer 1)) (end (buffer-end buffer)))
           (setf (aref to end) (logior pattern value)
                 (buffer-end buffer) (1+ end))
           nil))
        (t
         (append-long-integer buffer value mask pattern))))

(define-hot append-string ((buffer buffer) (octets octets)) null
  "Append OCTETS as a string literal, Huffman coded if that is shorter."
  (let ((coded (huffman-octets octets)))
    (cond ((< coded (length octets))
           (append-integer buffer coded #x7F #x80)
           (let ((to (ensure-buffer-room buffer coded)))
             (setf (buffer-end buffer) (encode-huffman octets to (buffer-end buffer)))))
          (t
           (append-integer buffer (length octets) #x7F #x00)
           (append-octets buffer octets))))
  nil)

;;; Searching the dynamic table

(define-hot hash-field ((field field)) null
  (let* ((name (field-name field))
         (value (field-value field))
         (hash (%hash-octets name 0 (length name) 0)))
    ;; 0 means "not computed", so MAX excludes it
    (setf (field-name-hash field) (max 1 hash)
          (field-hash field) (max 1 (%hash-octets value 0 (length value) hash)))
    nil))

(define-hot same-name-p ((a field) (b field)) boolean
  (or (eq a b)
      (and (= (field-name-hash a) (field-name-hash b))
           (same-octets-p (field-name a) (field-name b)))))

(define-hot same-field-p ((a field) (b field)) boolean
  (or (eq a b)
      (and (= (field-hash a) (field-hash b))
           (same-octets-p (field-name a) (field-name b))
           (same-octets-p (field-value a) (field-value b)))))

(defmacro find-in-chain ((entry encoder hash half) test)
  "Search ENCODER's chain for HASH in HALF, 0 or 1, newest first, for an ENTRY that satisfies TEST.
Return the index of that entry on the wire, or 0 if there is none."
  `(let* ((ring (table-ring ,encoder))
          (offset (* ,half (length ring)))
          (oldest (table-oldest ,encoder)))
     (declare (type index offset oldest))
     (if (zerop (table-count ,encoder))
         0
         (loop for number of-type index
                 = (aref (encoder-heads ,encoder) (+ offset (table-slot ,encoder ,hash)))
                   then (aref (encoder-links ,encoder) (+ offset (table-slot ,encoder number)))
               while (<= oldest number)
               do (let ((,entry (svref ring (table-slot ,encoder number))))
                    (declare (type field ,entry))
                    (when ,test
                      (return (- (+ (table-inserted ,encoder) 1 +static-count+) number))))
               finally (return 0)))))

(define-hot (find-dynamic :inline t) ((encoder encoder) (field field)) index
  "Return the index on the wire of an entry of ENCODER's dynamic table that equals FIELD, or 0 if
there is none."
  (when (zerop (field-hash field)) (hash-field field))
  (find-in-chain (entry encoder (field-hash field) 0) (same-field-p entry field)))

(define-hot find-dynamic-name ((encoder encoder) (field field)) index
  "Return the index of an entry of ENCODER's dynamic table with the name of FIELD, or 0 if there is
none."
  (when (zerop (field-hash field)) (hash-field field))
  (find-in-chain (entry encoder (field-name-hash field) 1) (same-name-p entry field)))

(define-hot link-entry ((encoder encoder) (number index)) null
  "Put the entry NUMBER, which becomes the newest of the linked entries, at the head of its two
chains."
  (let* ((slot (table-slot encoder number))
         (field (svref (table-ring encoder) slot)))
    (declare (type field field))
    (flet ((link (hash offset)
             (let ((head (+ offset (table-slot encoder hash))))
               (shiftf (aref (encoder-links encoder) (+ offset slot))
                       (aref (encoder-heads encoder) head)
                       number))))
      (link (field-hash field) 0)
      (link (field-name-hash field) (length (table-ring encoder))))
    nil))

(define-hot insert-linked ((encoder encoder) (field field)) null
  "Insert FIELD, whose hashes are computed, so that FIND-DYNAMIC finds it."
  (when (insert-entry encoder field)
    (let ((numbers (* 2 (length (table-ring encoder)))))
      (cond ((= numbers (length (encoder-heads encoder)))
             (link-entry encoder (table-inserted encoder)))
            (t                          ; the ring has grown
             (setf (encoder-heads encoder)
                   (make-array numbers :element-type 'fixnum :initial-element 0)
                   (encoder-links encoder)
                   (make-array numbers :element-type 'fixnum :initial-element 0))
             (loop for number of-type index from (table-oldest encoder)
                     to (table-inserted encoder)
                   do (link-entry encoder number))))))
  nil)

;;; Blocks

(define-hot append-updates ((encoder encoder) (buffer buffer) (pending index)) null
  "Append to BUFFER the table size updates that change ENCODER's limit to PENDING."
  (flet ((update (limit)
           (resize-table encoder limit)
           (append-integer buffer limit #x1F #x20)))
    (when (< (encoder-least encoder) pending) (update (encoder-least encoder)))
    (update pending)
    (setf (encoder-pending encoder) nil
          ;; with another limit other fields may enter the table
          (encoder-encoded encoder) nil))
  nil)

(define-hot (begin-block :inline t) ((encoder encoder) (buffer buffer)) null
  "Begin a header block, by appending to BUFFER the table size updates that are due. Call this once
before the fields of each block."
  (let ((pending (encoder-pending encoder)))
    (when pending (append-updates encoder buffer pending)))
  nil)

(define-hot append-literal ((encoder encoder) (buffer buffer) (field field) (mask octet)
                            (pattern octet))
    null
  "Append FIELD as a literal of the kind PATTERN. If a table has the field's name, its index is
used."
  (let* ((static (logand (static-match field) (1- +static-name-only+)))
         (name-index (if (plusp static) static (find-dynamic-name encoder field))))
    (append-integer buffer name-index mask pattern)
    (when (zerop name-index) (append-string buffer (field-name field)))
    (append-string buffer (field-value field))))

(define-hot encode-field ((encoder encoder) (buffer buffer) (field field) (mode mode)) null
  "Append FIELD to the header block at the end of BUFFER. With the MODE :INDEX the index of FIELD is
sent if a table has FIELD, else a literal, which enters the dynamic table unless it would fill most
of the table. :PLAIN does the same but does not change the table. :NEVER sends a literal that no
intermediary may index, as any mode does for a sensitive field. Encoding the same field object again
with :INDEX costs only a few nanoseconds; therefore make a constant field once and keep the object."
  (if (or (eq mode :never) (field-sensitive-p field))
      (append-literal encoder buffer field #x0F #x10)
      (let* ((static (static-match field))
             (index (if (< static +static-name-only+) static (find-dynamic encoder field))))
        (cond ((plusp index)
               (append-integer buffer index #x7F #x80))
              ((and (eq mode :index)
                    (<= (* 4 (field-size field)) (* 3 (table-limit encoder))))
               (append-literal encoder buffer field #x3F #x40)
               (insert-linked encoder field))
              (t
               (append-literal encoder buffer field #x0F #x00)))))
  nil)

(define-hot encode-literal ((encoder encoder) (buffer buffer) (name octets) (value octets)
                            (mode mode))
    null
  "Append the field of the octets NAME and VALUE to the header block at the end of BUFFER, as
ENCODE-FIELD does for a field object. With :INDEX the dynamic table keeps the two vectors, which
must not change."
  (if (eq mode :index)
      (encode-field encoder buffer (%make-field name value nil) mode)
      (let ((field (%make-field name value nil)))
        (declare (dynamic-extent field))
        (encode-field encoder buffer field mode))))

;;; Vectors of fields that are encoded again and again

(defconstant +encoded-count+ 8 "The maximum number of encodings of vectors of fields that an encoder
caches.")

(defstruct (encoded (:constructor make-encoded (fields octets inserted count)) (:copier nil))
  "The encoding of FIELDS, valid while the dynamic table is in the state noted here."
  (fields #() :type simple-vector :read-only t) ; a vector that callers pass repeatedly
  (octets (make-octets 0) :type octets :read-only t) ; the encoded form of FIELDS
  (inserted 0 :type index :read-only t) ; the dynamic table's TABLE-INSERTED at that time
  (count 0 :type index :read-only t))   ; the dynamic table's TABLE-COUNT at that time
(declaim (freeze-type encoded))

(define-hot (current-p :inline t) ((encoded encoded) (encoder encoder)) boolean
  (and (= (encoded-inserted encoded) (table-inserted encoder))
       (= (encoded-count encoded) (table-count encoder))))

(define-hot (find-encoded :inline t) ((encoder encoder) (fields simple-vector)) (or null encoded)
  (let ((known (encoder-encoded encoder)))
    (when known
      (loop for encoded across known
            while encoded
            do (locally (declare (type encoded encoded))
                 (when (and (eq fields (encoded-fields encoded)) (current-p encoded encoder))
                   (return encoded)))))))

(define-hot learn-fields ((encoder encoder) (fields simple-vector) (octets octets)) null
  "Cache OCTETS as the encoding of FIELDS, unless valid encodings occupy all places."
  (let* ((known (or (encoder-encoded encoder) (make-array 2 :initial-element nil)))
         (place (position-if-not (lambda (encoded)
                                   (and encoded (current-p (the encoded encoded) encoder)))
                                 known)))
    (when (and (null place) (< (length known) +encoded-count+))
      (setf place (length known)
            known (replace (make-array (* 2 place) :initial-element nil) known)))
    (setf (encoder-encoded encoder) known)
    (when place
      (setf (svref known place) (make-encoded fields octets (table-inserted encoder)
                                              (table-count encoder))))
    nil))

(define-hot encode-fields-anew ((encoder encoder) (buffer buffer) (fields simple-vector)) null
  (let ((inserted (table-inserted encoder))
        (fill (buffer-fill buffer)))
    (loop for field across fields
          do (encode-field encoder buffer field :index))
    ;; Cache nothing while the table changes all the time, since no encoding would be used again.
    (when (= inserted (table-inserted encoder) (encoder-settled encoder))
      (let ((end (buffer-end buffer)))
        (learn-fields encoder fields
                      (subseq-octets (buffer-octets buffer) (- end (- (buffer-fill buffer) fill))
                                     end))))
    (setf (encoder-settled encoder) (table-inserted encoder))
    nil))

(define-hot encode-fields ((encoder encoder) (buffer buffer) (fields simple-vector)) null
  "Append each of the vector FIELDS to the header block at the end of BUFFER as ENCODE-FIELD does
with :INDEX. Use this for a vector that is encoded again and again, as the same object with the same
constant fields. While the dynamic table does not change, its encoding is kept and copied."
  (let ((known (find-encoded encoder fields)))
    (if known
        (let* ((octets (encoded-octets known))
               (count (length octets))
               (to (ensure-buffer-room buffer count))
               (end (buffer-end buffer)))
          (dotimes (i count) (setf (aref to (+ end i)) (aref octets i)))
          (setf (buffer-end buffer) (+ end count))
          nil)
        (encode-fields-anew encoder buffer fields))))
