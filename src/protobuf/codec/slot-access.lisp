;;;; Finds the place of a slot in a hidden structure, and gives access to it by the name of its
;;;; accessor, for code that is not compiled for that structure.

(in-package #:clgrpc.protobuf)

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defparameter *storages*
    '((t sb-kernel:%instance-ref t)
      (sb-vm:word sb-kernel:%raw-instance-ref/word (unsigned-byte 64))
      (sb-vm:signed-word sb-kernel:%raw-instance-ref/signed-word (signed-byte 64))
      (single-float sb-kernel:%raw-instance-ref/single single-float)
      (double-float sb-kernel:%raw-instance-ref/double double-float))
    "The ways in which SBCL stores a place of a structure: name, accessor, type."))

(defun place-storage (structure place)
  "Return two values: the index, in instances of STRUCTURE, of the place whose accessor is PLACE,
and the storage of that place."
  (let ((row (find place (sb-kernel:dd-slots (sb-kernel:find-defstruct-description structure))
                   :key #'sb-kernel:dsd-name)))
    (values (sb-kernel:dsd-index row) (sb-kernel:dsd-raw-type row))))

(defun note-places (structure)
  "Record the locations of the places of STRUCTURE for PLACE-VALUE."
  (dolist (row (sb-kernel:dd-slots (sb-kernel:find-defstruct-description structure)))
    (setf (get (sb-kernel:dsd-name row) 'place)
          (cons (sb-kernel:dsd-index row) (sb-kernel:dsd-raw-type row)))))

(macrolet ((with-storage (form)
             `(destructuring-bind (index . storage) (get place 'place)
                (declare (type index index))
                (ecase storage
                  ,@(loop for (storage reader type) in *storages*
                          collect `(,storage
                                    (symbol-macrolet ((content (,reader message index)))
                                      (macrolet ((typed (form) `(the ,',type ,form)))
                                        ,form))))))))
  (defun place-value (message place)
    "The content of the place of MESSAGE whose accessor is PLACE."
    (declare (type message message))
    (with-storage (typed content)))
  (defun (setf place-value) (new message place)
    (declare (type message message))
    (with-storage (setf content (typed new)))
    new))
