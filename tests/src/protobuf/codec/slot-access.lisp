;;;; Places of structures by the names of their accessors: boxed ones and raw ones.

(in-package #:clgrpc.tests.protobuf)

(test every-kind-of-place-can-be-read-and-written
  (let ((message (all :f1 1.5d0 :f2 0.5f0 :f3 -7 :f6 (1- (expt 2 64)) :f14 "text"))
        (structure (type-of (all))))
    (protobuf::note-places structure)
    (let ((kinds '()))
      (dolist (row (sb-kernel:dd-slots (sb-kernel:find-defstruct-description structure)))
        (let ((place (sb-kernel:dsd-name row)))
          (multiple-value-bind (index storage) (protobuf::place-storage structure place)
            (is (= index (sb-kernel:dsd-index row)))
            (pushnew storage kinds)
            (is (member storage protobuf::*storages* :key #'first) "~S" storage))
          (let ((value (protobuf::place-value message place)))
            (is (eql value (funcall (sb-kernel:dsd-accessor-name row) message)) "~S" place)
            (setf (protobuf::place-value message place) value)
            (is (eql value (protobuf::place-value message place)) "~S" place))))
      (is (subsetp '(t sb-vm:word single-float double-float) kinds)
          "Only ~S were there." kinds))))
