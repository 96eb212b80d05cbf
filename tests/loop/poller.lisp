;;;; The pollers: the loop's own tests run over poll(2) as well.

(in-package #:clgrpc.tests.loop)

(def-suite :clgrpc.loop.poll :description "The tests of the loop over poll(2).")
(in-suite :clgrpc.loop.poll)

(defparameter *only-epoll* '()
  "Tests that are about epoll itself.")

(defun tests-of-the-loop ()
  (remove-if (lambda (name) (member name *only-epoll*))
             (mapcar #'fiveam::name (support:suite-tests (fiveam:get-test :clgrpc.loop)))))

(test the-loop-over-poll
  (let ((saved *make-poller*))
    (setf *make-poller* 'make-poll-poller)
    (unwind-protect
         (dolist (name (tests-of-the-loop))
           (let ((failures (remove-if (lambda (result) (typep result 'fiveam::test-passed))
                                      (let ((*test-dribble* (make-broadcast-stream)))
                                        (run name)))))
             (is (null failures) "~A: ~{~A~^; ~}" name (mapcar #'fiveam::reason failures))))
      (setf *make-poller* saved))))
