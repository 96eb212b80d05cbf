;;;; The reusable list into which a header block is decoded.
;;;;
;;;; A block that a peer repeats octet for octet is found as a REPEAT: its fields and a memo, in
;;;; which the layers above keep their results for the whole block (that it is valid, the method
;;;; that it calls). A list that still has a REPEAT's fields need not be filled again. Invariant:
;;;; beyond COUNT, FIELDS holds NIL; REPEAT is set only while the list is its copy.

(in-package #:clgrpc.hpack)

(defstruct (repeat (:constructor make-repeat (fields octets memory)) (:copier nil))
  "A header block that a peer has sent before, octet for octet. As long as the dynamic table does
not change, the block means the same fields, and decoding it changes nothing."
  (fields #() :type simple-vector :read-only t) ; the fields of the block
  (octets 0 :type index :read-only t)   ; the sum of the fields' sizes
  (memory 0 :type index)                ; about how many octets of memory the list takes
  (memo nil))                           ; the result of the layers above for the block
(declaim (freeze-type repeat))

(defstruct (field-list (:constructor make-field-list ()) (:copier nil))
  "The fields of one header block. The object can be used again for the next block."
  (fields #() :type simple-vector)      ; the first COUNT elements are the fields
  (count 0 :type index)                 ; their number
  (octets 0 :type index)                ; the sum of the sizes of all fields of the block
  ;; true if this sum, or the count, exceeded the decoder's limit: further fields are missing
  (overflow-p nil :type boolean)
  (repeat nil :type (or null repeat)))  ; the source of FIELDS if the block came before
(declaim (freeze-type field-list))

(document-functions
  make-field-list "Return an empty FIELD-LIST. Room for fields is allocated when the first field is
  added."
  field-list-fields "The vector whose first FIELD-LIST-COUNT elements are the fields, in the order
of the block."
  field-list-count "The number of fields in the list."
  field-list-octets "The sum of FIELD-SIZE over all fields of the block, including fields for which
the list has no room."
  field-list-overflow-p "True if the block exceeded the decoder's limits for lists, so that its last
fields are missing.")

(define-printer (list field-list)
  "~D field~:P, ~D octets~:[~;, overflow~]" (field-list-count list) (field-list-octets list)
  (field-list-overflow-p list))

(define-hot (restart-field-list :inline t) ((list field-list)) index
  "Empty LIST, but leave its old fields in the vector; return the number of these fields, for
TRIM-FIELD-LIST."
  (prog1 (field-list-count list)
    (setf (field-list-count list) 0
          (field-list-octets list) 0
          (field-list-overflow-p list) nil
          (field-list-repeat list) nil)))

(define-hot (trim-field-list :inline t) ((list field-list) (old-count index)) null
  "Drop old fields of LIST that new fields have not replaced."
  (loop for i of-type index from (field-list-count list) below old-count
        do (setf (svref (field-list-fields list) i) nil)))

(define-hot clear-field-list ((list field-list)) null
  "Empty LIST for reuse."
  (trim-field-list list (restart-field-list list)))

(define-hot grow-field-list ((list field-list) (count index)) simple-vector
  "Make room in LIST for COUNT fields or more; return its new vector."
  (let ((new (make-array (max 16 count (* 2 (field-list-count list))) :initial-element nil)))
    (setf (field-list-fields list) (replace new (field-list-fields list)))))

(define-hot (add-field :inline t) ((list field-list) (field field) (limit index) (most index)) null
  "Append FIELD to LIST unless the sum of sizes would exceed LIMIT, or LIST already has MOST
fields."
  (let ((octets (+ (field-list-octets list) (field-size field)))
        (count (field-list-count list))
        (fields (field-list-fields list)))
    (setf (field-list-octets list) octets)
    (cond ((or (< limit octets) (<= most count))
           (setf (field-list-overflow-p list) t))
          (t
           (when (= count (length fields)) (setf fields (grow-field-list list (1+ count))))
           (setf (svref fields count) field
                 (field-list-count list) (1+ count))))
    nil))

(define-hot fill-field-list ((list field-list) (repeat repeat)) null
  "Fill LIST with the fields of REPEAT."
  (unless (eq repeat (field-list-repeat list))
    (let* ((old-count (restart-field-list list))
           (from (repeat-fields repeat))
           (count (length from))
           (to (if (< (length (field-list-fields list)) count)
                   (grow-field-list list count)
                   (field-list-fields list))))
      (dotimes (i count) (setf (svref to i) (svref from i)))
      (setf (field-list-count list) count
            (field-list-octets list) (repeat-octets repeat)
            (field-list-repeat list) repeat)
      (trim-field-list list old-count)))
  nil)

(define-hot (field-list-repeated-p :inline t) ((list field-list)) boolean
  "True if the block of LIST was repeated, so that it can have a memo."
  (and (field-list-repeat list) t))

(define-hot (field-list-memo :inline t) ((list field-list)) t
  "Return the value that was stored by SETF of FIELD-LIST-MEMO the last time this decoder decoded
the same block, or NIL if none was stored. Only blocks that were repeated octet for octet have a
memo; storing a memo in another list has no effect. The memo is for an upper layer's result about a
block as a whole; two lists with the same memo have the same field objects."
  (let ((repeat (field-list-repeat list)))
    (and repeat (repeat-memo repeat))))

(declaim (inline (setf field-list-memo)))
(defun (setf field-list-memo) (value list)
  (let ((repeat (field-list-repeat list)))
    (when repeat (setf (repeat-memo repeat) value))
    value))

(defmacro do-fields ((field list &optional result) &body body)
  "Run BODY with FIELD bound to each field of the FIELD-LIST LIST in order; return RESULT. The body
may RETURN and must not change LIST."
  (let ((fields (gensym "FIELDS")) (index (gensym "INDEX")) (the-list (gensym "LIST")))
    `(let* ((,the-list ,list)
            (,fields (field-list-fields ,the-list)))
       (dotimes (,index (field-list-count ,the-list) ,result)
         (let ((,field (svref ,fields ,index)))
           (declare (type field ,field))
           ,@body)))))

(define-hot find-named ((list field-list) (name octets)) (or null field)
  (do-fields (field list)
    (when (same-octets-p name (field-name field)) (return field))))

(defun find-field (list name)
  "Return the first field of the FIELD-LIST LIST called NAME, a string in lower case, or NIL if
there is none.
If NAME is constant, it is converted to octets when the call is compiled."
  (find-named list (ascii-octets name)))

(define-compiler-macro find-field (&whole form list name)
  (if (stringp name)
      `(find-named ,list (load-time-value (ascii-octets ,name) t))
      form))

;;; Memory

(defconstant +field-octets+ 150
  "The memory in octets of a field that is kept, in addition to its size by RFC 7541: its structure,
the heads of its vectors, and its strings, which are made at the first access.")

(define-hot fields-octets ((fields simple-vector)) index
  "Return the approximate memory in octets of FIELDS, a vector of fields."
  (let ((octets 0))
    (declare (type (unsigned-byte 40) octets))
    (loop for field of-type field across fields
          do (incf octets (+ +field-octets+ (field-size field))))
    octets))
