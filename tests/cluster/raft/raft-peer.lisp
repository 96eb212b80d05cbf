;;;; Peers: connected from the start, and again.

(in-package #:clgrpc.tests.raft)

(test a-peer-connects-by-itself-and-again
  (with-simulated-member (simulation peer host (make-instance 'member) (:seed 3))
    (let ((channel (raft:peer-channel peer)))
      (sim:wait-for 1)
      (is (eq :ready (grpc:channel-state channel)) "nobody has called")
      (sim:restart-host host :down 3)
      (sim:wait-for 1)
      (is-false (eq :ready (grpc:channel-state channel)))
      (sim:wait-for 6)
      (is (eq :ready (grpc:channel-state channel)) "nobody has called"))))

(test arguments-of-peers
  (signals misuse (raft:make-peer "B" 7000 :group "G" :sender "A"))
  (dolist (names '((:b "G" "A") ("B" nil "A") ("B" "G" "")))
    (destructuring-bind (name group sender) names
      (signals misuse (raft:make-peer name "127.0.0.1:1" :group group :sender sender))))
  (signals type-error (raft:make-peer "B" "127.0.0.1:1" :group "G" :sender "A" :window 0))
  (let ((channel (grpc:service-channel (member-service (make-instance 'member)))))
    (signals misuse (raft:make-peer "B" channel :group "G" :sender "A" :credentials nil))
    (let ((peer (raft:make-peer "B" channel :group "G" :sender "A")))
      (is (string= "B" (raft:peer-name peer)))
      (is (search "B, ready" (princ-to-string peer)))
      (raft:close-peer peer)
      (is (eq :ready (grpc:channel-state channel)) "it is not the peer's")
      (signals misuse (raft:pipeline-entries peer (request 0 1) #'list)))
    (grpc:close-channel channel)))
