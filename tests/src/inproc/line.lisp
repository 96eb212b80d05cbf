;;;; The two ends of a call, and the line between them.

(in-package #:clgrpc.tests.inproc)
(in-suite :clgrpc.inproc)

(test lines-are-made-up-when-needed
  "A unary call has none, at either end; asking for one gives the other end, with the same status."
  (let ((server-end nil))
    (with-inproc (channel) (:ask (lambda (note call)
                                   (setf server-end call)
                                   note))
      (let ((client-end (nth-value 1 (ask channel (note 1)))))
        (is (null (inproc::inproc-call-line client-end)))
        (is (null (inproc::inproc-call-line server-end)))
        (let* ((line (inproc::call-line client-end))
               (other (inproc::other-end client-end)))
          (is (eq line (inproc::call-line client-end)))
          (is (eq client-end (inproc::other-end other)))
          (is (eq line (inproc::call-line other)))
          (is-true (rpc:client-p client-end))
          (is (not (rpc:client-p other)))
          (is (eq :ok (rpc:call-status other)))
          (is (eq :over (inproc::line-phase line))))))))

(test calls-at-work-have-a-stage
  (let ((stages '()))
    (with-inproc (channel) (:watch (lambda (note call)
                                     (declare (ignore note))
                                     (push (rpc:call-stage call) stages)
                                     (grpc:send call (note 1))))
      (let ((call (lab.bench:watch channel (note 1))))
        (is (eq :queue (rpc:call-stage call)))
        (is (equal '(:stage :queue) (grpc:call-stages call)))
        (is (= 1 (number-of (grpc:receive call))))
        (is (equal '(:answer) stages))))))
