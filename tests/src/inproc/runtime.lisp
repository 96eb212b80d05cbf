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

(test timers-of-deadlines-end-with-their-calls
  "Also that of a call which is ended while it is set: it would keep the call until the deadline."
  (let ((timers '()) (client nil))
    (with-inproc (channel) (:ask (lambda (note call)
                                   (declare (ignore call))
                                   note))
      (sb-int:encapsulate 'inproc::register 'note-client
                          (lambda (function call-pair)
                            (setf client (inproc::call-pair-client call-pair))
                            (funcall function call-pair)))
      (sb-int:encapsulate 'inproc::start-core-timer 'ended-before
                          (lambda (function inproc-core timer due-ns)
                            (push timer timers)
                            (grpc:cancel client)
                            (funcall function inproc-core timer due-ns)))
      (unwind-protect
           (is (eq :cancelled (status-of-error
                               (caught (grpc:await (grpc:call-async #'lab.bench:ask channel (note 1)
                                                                    :timeout 1000))))))
        (sb-int:unencapsulate 'inproc::register 'note-client)
        (sb-int:unencapsulate 'inproc::start-core-timer 'ended-before))
      (is (= 1 (length timers)))
      (is (wait-until (lambda () (notany #'timer-pending-p timers)))))))
