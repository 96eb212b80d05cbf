;;;; Timers and threads of channels.

(in-package #:clgrpc.tests.inproc)
(in-suite :clgrpc.inproc)

(test timers-end-with-their-calls
  (let ((ran nil))
    (with-inproc (channel)
        (:ask (lambda (note call)
                (grpc:after call 3600 (lambda () (setf ran t)))
                (grpc:after call 0.001 (lambda () (grpc:reply call note)))
                call))
      (is (= 1 (number-of (ask channel (note 1)))))
      (is (null ran)))))
