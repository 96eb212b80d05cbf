;;;; The dynamic table of RFC 7541 sections 2.3.2 and 4, which decoder and encoder both include.
;;;;
;;;; Entries are numbered 1, 2, 3 … in the order of insertion, for the life of the connection. Entry
;;;; N is in slot N mod capacity of a ring whose capacity is a power of two; the last COUNT numbers
;;;; are those of live entries. On the wire the newest entry, number INSERTED, has index 62, the
;;;; entry before it has 63, and so on. Evicting only moves COUNT (and clears the slot), so no index
;;;; has to be adjusted anywhere. Invariants: OCTETS = sum of FIELD-SIZE of the live entries <=
;;;; LIMIT; COUNT <= capacity. The ring is made at the first insertion and grows with the entries:
;;;; an unused table costs nothing.

(in-package #:clgrpc.hpack)

(defconstant +initial-table-octets+ 4096
  "The maximum size in octets of both tables of a new connection (RFC 9113 section 6.5.2).")

(defstruct (table (:constructor nil) (:copier nil))
  "A dynamic table; decoder and encoder include it."
  (ring #() :type simple-vector)        ; live entries; the place is the number modulo the capacity
  (inserted 0 :type index)              ; the number of the newest entry
  (count 0 :type index)                 ; how many entries are alive
  (octets 0 :type index)                ; the sum of their sizes
  (limit +initial-table-octets+ :type index)) ; the most that OCTETS may be

(define-hot (table-slot :inline t) ((table table) (number hash)) index
  "The slot of the ring for entry NUMBER, or the bucket of a hash; do not call this while the ring
is empty."
  (logand number (1- (length (table-ring table)))))

(define-hot (table-oldest :inline t) ((table table)) index
  "The number of the oldest live entry."
  (1+ (- (table-inserted table) (table-count table))))

(defconstant +field-memory+ 112
  "The memory in octets of a field in addition to its name and value: the structure, and the heads
of its vectors.")

(defconstant +most-places+ 65536
  "The maximum length of the ring of a table.")

(define-hot (table-memory :inline t) ((table table)) index
  "Return the approximate number of octets of memory that TABLE keeps. A field's strings take up to
four octets for each character."
  (+ (* 4 (table-octets table))
     (* +field-memory+ (table-count table))
     (* 8 (min +most-places+ (length (table-ring table))))))

(define-hot evict-entries ((table table) (octets index)) null
  "Drop the oldest entries of TABLE until it holds at most OCTETS."
  (loop while (< octets (table-octets table))
        do (let* ((slot (table-slot table (table-oldest table)))
                  (field (svref (table-ring table) slot)))
             (declare (type field field))
             (setf (svref (table-ring table) slot) nil)
             (decf (table-count table))
             (decf (table-octets table) (field-size field)))))

(define-hot resize-table ((table table) (limit index)) null
  "Set the maximum size of TABLE in octets to LIMIT."
  (evict-entries table limit)
  (setf (table-limit table) limit)
  nil)

(define-hot grow-ring ((table table)) null
  (let* ((old (table-ring table))
         (new (make-array (max 2 (* 2 (length old))) :initial-element nil)))
    (loop for number of-type index from (table-oldest table) to (table-inserted table)
          do (setf (svref new (logand number (1- (length new))))
                   (svref old (table-slot table number))))
    (setf (table-ring table) new)
    nil))

(define-hot insert-entry ((table table) (field field)) boolean
  "Add FIELD to TABLE after making room for it, and return true. A field larger than the limit
empties the table and is not added (RFC 7541 section 4.4); return NIL for it."
  (let ((size (field-size field)) (limit (table-limit table)))
    (cond ((< limit size)
           (evict-entries table 0)
           nil)
          (t
           (evict-entries table (- limit size))
           (when (= (table-count table) (length (table-ring table))) (grow-ring table))
           (let ((number (incf (table-inserted table))))
             (setf (svref (table-ring table) (table-slot table number)) field))
           (incf (table-count table))
           (incf (table-octets table) size)
           t))))

;;; Each index of a live entry has a field in one of the tables, so the result is not checked.

(define-leaf (%static-entry :inline t) ((index index)) field
  (svref **static-fields** index))

(define-leaf (%dynamic-entry :inline t) ((table table) (number index)) field
  (svref (table-ring table) (table-slot table number)))

(define-hot (find-entry :inline t) ((table table) (index index)) (or null field)
  "Return the field of INDEX, an index on the wire, in the static table or in TABLE, or NIL if
neither has it."
  (cond ((<= 1 index +static-count+)
         (%static-entry index))
        ((<= (1+ +static-count+) index (+ +static-count+ (table-count table)))
         (%dynamic-entry table (- (+ (table-inserted table) 1 +static-count+) index)))))
