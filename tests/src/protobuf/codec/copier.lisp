;;;; See src/protobuf/codec/copier.lisp.

(in-package #:clgrpc.tests.protobuf)

(test copies-share-nothing-mutable
  (let* ((message (all :f17 (clgrpc.test:make-inner :a 1) :r3 '(1 2) :m1 '(("a" . 1))
                       :p17 (clgrpc.test:make-inner :a 2) :r17 (list (clgrpc.test:make-inner :a 3))
                       :m2 (list (cons 1 (clgrpc.test:make-inner :a 4)))))
         (copy (copy-message message)))
    (setf (clgrpc.test:inner-a (clgrpc.test:all-f17 copy)) 9
          (aref (clgrpc.test:all-r3 copy) 0) 9
          (map-value (clgrpc.test:all-m1 copy) "a") 9
          (clgrpc.test:inner-a (clgrpc.test:all-p17 copy)) 9
          (clgrpc.test:inner-a (aref (clgrpc.test:all-r17 copy) 0)) 9
          (clgrpc.test:inner-a (map-value (clgrpc.test:all-m2 copy) 1)) 9)
    (is (message= message (all :f17 (clgrpc.test:make-inner :a 1) :r3 '(1 2) :m1 '(("a" . 1))
                               :p17 (clgrpc.test:make-inner :a 2)
                               :r17 (list (clgrpc.test:make-inner :a 3))
                               :m2 (list (cons 1 (clgrpc.test:make-inner :a 4))))))))
