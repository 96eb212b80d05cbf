;;;; Timers and threads of channels.

(in-package #:clgrpc.tests.inproc)

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
  "Even if a call ends while it is set: the timer would keep the call until the deadline."
  (let ((timers '()) (client nil))
    (with-inproc (channel) (:ask (handling (note)
                                   note))
      (with-replaced (('inproc::register
                       (lambda (function call-pair)
                         (setf client (inproc::call-pair-client call-pair))
                         (funcall function call-pair)))
                      ('inproc::start-core-timer
                       (lambda (function inproc-core timer due-ns)
                         (push timer timers)
                         (grpc:cancel client)
                         (funcall function inproc-core timer due-ns))))
        (is (eq :cancelled (status-of-error
                            (caught (grpc:await (grpc:call-async #'lab.bench:ask channel (note 1)
                                                                 :timeout 1000)))))))
      (is (= 1 (length timers)))
      (eventually (notany #'timer-pending-p timers)))))

(test timeouts-leave-no-loop-behind
  "A channel that acquires a loop keeps it, even if a timeout ends the call that needs it; one that
is closed releases it, even if a timeout ends the closing."
  (let ((done '()) (names '(calling:acquire-client-loop calling:release-client-loop)))
    (with-inproc (channel) (:ask (lambda (note call)
                                   (grpc:after call 3600 (constantly nil))
                                   note))
      (dolist (name names)
        (let ((name name))
          (sb-int:encapsulate name 'slowly (lambda (function &rest arguments)
                                             (sleep 0.05)
                                             (multiple-value-prog1 (apply function arguments)
                                               (push name done)
                                               (sleep 0.05))))))
      (unwind-protect
           (progn (signals sb-ext:timeout
                    (sb-ext:with-timeout 0.07 (ask channel (note 1))))
                  (signals sb-ext:timeout
                    (sb-ext:with-timeout 0.03 (grpc:close-channel channel))))
        (dolist (name names) (sb-int:unencapsulate name 'slowly)))
      (is (equal names (reverse done))))))

(test what-is-closed-as-it-acquires-a-loop-releases-it-once
  "A second release, when the collector finds the channel, would stop the loop of other channels."
  (let ((events '()) (closer nil))
    (with-inproc (channel) (:ask (handling (note)
                                   note))
      (with-replaced (('calling:when-dropped
                       (lambda (function &rest arguments)
                         (setf closer (in-thread (grpc:close-channel channel)))
                         (wait-until (lambda () (eq :shutdown (grpc:channel-state channel))))
                         (sleep 0.1)
                         (push :registered events)
                         (apply function arguments)))
                      ('sb-ext:cancel-finalization
                       (lambda (function object)
                         (when (typep object 'inproc::inproc-core) (push :cancelled events))
                         (funcall function object))))
        (caught (grpc:await (grpc:call-async #'lab.bench:ask channel (note 1)
                                             :timeout 1000)))
        (sb-thread:join-thread closer)))
    (is (equal '(:cancelled :registered) events))))
