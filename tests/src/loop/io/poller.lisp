;;;; The pollers: the loop's own tests run over poll(2) as well.

(in-package #:clgrpc.tests.loop)

(def-suite :clgrpc.loop.poll :description "The tests of the loop over poll(2).")
(in-suite :clgrpc.loop.poll)

(defun check-over-poll (suite)
  "Check that each test of SUITE, a name, passes with loops over poll(2), or is skipped, which the
suite reports."
  (with-changed ((clgrpc.loop::*make-poller* 'make-poll-poller))
    (dolist (name (mapcar #'support:test-name (support:suite-tests (fiveam:get-test suite))))
      (let ((failures (nth-value 1 (fiveam:results-status
                                    (let ((*test-dribble* (make-broadcast-stream)))
                                      (run name))))))
        (is (null failures) "~A: ~{~A~^; ~}" name (mapcar #'support:check-reason failures))))))

(test poller-of-the-environment
  "GRPC_POLL_STRATEGY names the pollers; a loop gets the first that is available."
  (loop for (value over-poll) in '(("poll" t) ("none, Poll,epoll" t) ("epoll,poll" nil)
                                   ("epoll1" nil) ("legacy" nil) ("" nil))
        do (call-with-variable
            "GRPC_POLL_STRATEGY" value
            (lambda ()
              (let ((poller (clgrpc.loop::make-poller-by-default)))
                (unwind-protect
                     (is (eq over-poll (clgrpc.loop::polled-p (clgrpc.loop::poller-state poller)))
                         "~S" value)
                  (funcall (clgrpc.loop::poller-close poller) poller)))))))

(test poll-forgets-what-it-does-not-know
  "A poller that has replaced another must remove the other's descriptors, which it does not have."
  (let ((poller (make-poll-poller)))
    (unwind-protect
         (dolist (descriptor '(3 1000))
           (is (= 0 (funcall (clgrpc.loop::poller-remove poller) poller descriptor))))
      (funcall (clgrpc.loop::poller-close poller) poller))))

(test the-loop-over-poll
  (check-over-poll :clgrpc.loop))
