;;;; How much memory a structure holds: a walk from it through slots, vectors, lists and tables adds
;;;; up the objects that it leads to, whatever they are.

(in-package #:clgrpc.tests.support)

(defun slot-values (structure)
  "What the slots of STRUCTURE hold, but for numbers and for neighbours in a ring."
  (loop for slot in (sb-kernel:dd-slots
                     (sb-kernel:find-defstruct-description (type-of structure)))
        when (and (eq t (sb-kernel:dsd-raw-type slot))
                  (not (member (symbol-name (sb-kernel:dsd-name slot)) '("BEFORE" "AFTER")
                               :test #'string=)))
          collect (sb-kernel:%instance-ref structure (sb-kernel:dsd-index slot))))

(defun walk-octets (root other-p)
  "How many octets the objects have that ROOT leads to, without those of which the function OTHER-P
is true and what these lead to. The second value says which: an alist from type to octets."
  (let ((seen (make-hash-table :test 'eq)) (found (make-hash-table :test 'equal)) (sum 0)
        (left (list root)))
    (flet ((reach (object)
             (unless (or (gethash object seen) (funcall other-p object))
               (setf (gethash object seen) t)
               (push object left))))
      (loop while left
            do (let* ((object (pop left))
                      (octets (sb-ext:primitive-object-size object)))
                 (incf sum octets)
                 (incf (gethash (if (arrayp object) 'vector (type-of object)) found 0) octets)
                 (typecase object
                   (cons (reach (car object)) (reach (cdr object)))
                   (simple-vector (map nil #'reach object))
                   (hash-table (maphash (lambda (key value) (reach key) (reach value)) object))
                   (structure-object (mapc #'reach (slot-values object)))))))
    (values sum (sort (loop for key being the hash-keys of found using (hash-value octets)
                            collect (cons key octets))
                      #'> :key #'cdr))))
