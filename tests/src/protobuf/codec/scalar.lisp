;;;; The table of field types against the protocol's: wire types, sizes, defaults; and the values
;;;; that accessors accept.

(in-package #:clgrpc.tests.protobuf)

(test rows-are-those-of-the-protocol
  (loop for (kind wire size default)
          in '((:int32 0 nil 0) (:int64 0 nil 0) (:uint32 0 nil 0) (:uint64 0 nil 0)
               (:sint32 0 nil 0) (:sint64 0 nil 0) (:bool 0 1 nil) (:enum 0 nil 0)
               (:fixed32 5 4 0) (:sfixed32 5 4 0) (:float 5 4 0f0)
               (:fixed64 1 8 0) (:sfixed64 1 8 0) (:double 1 8 0d0)
               (:string 2 nil "") (:bytes 2 nil #()))
        do (let ((row (protobuf::scalar-of kind)))
             (is (= wire (protobuf::scalar-wire row)) "~S" kind)
             (is (eql size (protobuf::fixed-size kind)) "~S" kind)
             (is (equalp default (protobuf::scalar-default row)) "~S" kind)
             (is (typep (protobuf::scalar-default row) (protobuf::scalar-lisp-type row))
                 "~S" kind)))
  (signals error (protobuf::scalar-of :number)))

(test integers-have-their-ranges
  (loop for (kind least most) in `((:int32 ,(- (expt 2 31)) ,(1- (expt 2 31)))
                                   (:uint32 0 ,(1- (expt 2 32)))
                                   (:sint64 ,(- (expt 2 63)) ,(1- (expt 2 63)))
                                   (:fixed64 0 ,(1- (expt 2 64))))
        do (is (= least (protobuf::to-kind kind least nil)))
           (is (= most (protobuf::to-kind kind most nil)))
           (signals type-error (protobuf::to-kind kind (1- least) nil))
           (signals type-error (protobuf::to-kind kind (1+ most) nil))
           (signals type-error (protobuf::to-kind kind 1.0 nil))))

(test values-are-held-in-one-form
  (is (typep (protobuf::to-kind :string (make-array 2 :element-type 'character :adjustable t
                                                      :initial-element #\a)
                                nil)
             'protobuf::text))
  (signals type-error (protobuf::to-kind :string :abc nil))
  (is (equalp #(1 255) (protobuf::to-kind :bytes '(1 255) nil)))
  (is (typep (protobuf::to-kind :bytes #(1 2) nil) 'octets))
  (dolist (bad '("text" (1 256) (1 . 2) #(1 -1) 5))
    (with-signalled (error type-error (protobuf::to-kind :bytes bad nil))
      (is (eq bad (type-error-datum error)))))
  (let ((ring (list 1 2)))
    (setf (cddr ring) ring)
    (signals type-error (protobuf::to-kind :bytes ring nil)))
  (is (eql 2d0 (protobuf::to-kind :double 2 nil)))
  (is (eql 0.5f0 (protobuf::to-kind :float 1/2 nil)))
  (is (eq t (protobuf::to-kind :bool 0 nil)) "Any object but nil is true."))

(test repeated-values-name-their-field
  (let ((vector (coerce '(1 2) '(simple-array (signed-byte 32) (*)))))
    (is (eq vector (protobuf::to-vector :int32 vector nil "a.B.c")) "The vector is held as it is.")
    (is (equalp vector (protobuf::to-vector :int32 '(1 2) nil "a.B.c"))))
  (dolist (bad '((1 "x") (1 . 2) 7))
    (with-signalled (error field-type-error (protobuf::to-vector :int32 bad nil "a.B.c"))
      (is (equal "a.B.c" (field-type-error-field error))))))
