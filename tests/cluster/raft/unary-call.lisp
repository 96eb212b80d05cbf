;;;; Messages that are sent alone.

(in-package #:clgrpc.tests.raft)

(test unary-calls-are-answered
  (over-transports (peer member (make-instance 'member))
    (is-true (v1:request-vote-response-granted (raft:pre-vote peer (vote 2))))
    (is (= 1 (member-term member)))
    (is-true (v1:request-vote-response-granted (raft:request-vote peer (vote 2))))
    (is-false (v1:request-vote-response-granted (raft:request-vote peer (vote 2))))
    (is (= 3 (v1:timeout-now-response-term
              (raft:timeout-now peer (v1:make-timeout-now-request :term 2)))))
    (let ((response (raft:append-entries peer (request 0 2))))
      (is-true (v1:append-entries-response-success response))
      (is (= 2 (v1:append-entries-response-match-index response))))
    (is-false (v1:append-entries-response-success (raft:append-entries peer (request 7 1))))
    (is (equal '(2 1) (member-indices member)))))

(test unary-calls-without-waiting
  (over-transports (peer member (make-instance 'member))
    (let ((answer nil))
      (is-false (raft:request-vote peer (vote 2) :then (lambda (response error)
                                                         (setf answer (list response error)))))
      (eventually answer)
      (is-true (v1:request-vote-response-granted (first answer)))
      (is-false (second answer))
      (is (= 2 (member-term member)))
      (eventually (= 1 (getf (raft:peer-statistics peer) :messages))))))

(test a-loop-that-no-other-thread-can-run-waits-for-no-turn
  (let ((pipe (raft::make-pipe)) (end-ns (clgrpc.loop:notice-end 10)))
    (with-replaced (('clgrpc.loop:prepare-to-wait (constantly nil)))
      (sb-thread:with-mutex ((raft::pipe-lock pipe))
        (is-false (raft::await-pipe pipe (constantly nil) end-ns))))
    (is (< (clgrpc.loop:world-now) end-ns))))

(test entries-sent-alone-are-in-order
  "Those of several threads go one after the other: the member never has two at once."
  (let* ((running 0) (most 0)
         (member (make-instance 'member
                                :delay (fn (_request)
                                         (setf most (max most (incf running)))
                                         (sb-thread:thread-yield)
                                         (decf running)))))
    (with-member (peer member)
      (let ((threads (loop repeat 4
                           collect (in-thread
                                     (dotimes (i 20) (raft:append-entries peer (request 0 0)))))))
        (mapc #'sb-thread:join-thread threads))
      (is (= 1 most))
      (is (= 80 (member-requests member))))))

(test nobody-answers
  "Who waits for a member that is down does so until the deadline, and is answered if it comes up."
  (with-simulated-member (simulation peer host (make-instance 'member) (:seed 4) :timeout 2)
    (raft:request-vote peer (vote 2))
    (sim:restart-host host :down 10)
    (sim:wait-for 1/10)
    (let ((start (sim:now)))
      (signals grpc:deadline-exceeded (raft:request-vote peer (vote 3)))
      (is (<= 2 (- (sim:now) start) 2.1)))
    (is-true (v1:request-vote-response-granted (raft:request-vote peer (vote 3) :timeout 20)))))
