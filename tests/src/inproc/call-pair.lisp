;;;; The two ends of a call, and the call pair between them.

(in-package #:clgrpc.tests.inproc)

(test call-pairs-are-made-up-when-needed
  "A unary call has none, at either end; a request makes the other end, with the same status."
  (let ((server-end nil))
    (with-inproc (channel) (:ask (lambda (note call)
                                   (setf server-end call)
                                   note))
      (let ((client-end (nth-value 1 (ask channel (note 1)))))
        (is (null (inproc::inproc-call-call-pair client-end)))
        (is (null (inproc::inproc-call-call-pair server-end)))
        (let* ((call-pair (inproc::call-call-pair client-end))
               (other (inproc::other-end client-end)))
          (is (eq call-pair (inproc::call-call-pair client-end)))
          (is (eq client-end (inproc::other-end other)))
          (is (eq call-pair (inproc::call-call-pair other)))
          (is-true (rpc:client-p client-end))
          (is (not (rpc:client-p other)))
          (is (eq :ok (rpc:call-status other)))
          (is (eq :over (inproc::call-pair-phase call-pair))))))))

(test calls-at-work-have-a-stage
  (let ((stages '()))
    (with-inproc (channel) (:watch (fn (_note call)
                                     (push (rpc:operate stage call) stages)
                                     (grpc:send call (note 1))))
      (let ((call (lab.bench:watch channel (note 1))))
        (is (eq :queue (rpc:operate stage call)))
        (is (equal '(:stage :queue) (grpc:call-stages call)))
        (is (= 1 (number-of (grpc:receive call))))
        (is (equal '(:answer) stages))))))

(test each-end-counts-its-own-octets
  "The octets that one end has sent the other has received; observers of both see them."
  (let ((told '()))
    (flet ((observer (role)
             (grpc:make-observer
              :call-ended (lambda (call)
                            (multiple-value-bind (sent received) (rpc:operate traffic call)
                              (push (list role sent received) told))))))
      (with-inproc (channel :options (list :observer (observer :server))
                            :channel-options (list :observer (observer :client)))
          (:watch #'count-up)
        (is (equal '(0 1 2) (numbers (watch channel (note 3)))))
        (eventually (= 2 (length told)))
        (is (equal '(2 4) (rest (assoc :client told))))
        (is (equal '(4 2) (rest (assoc :server told))))))))
