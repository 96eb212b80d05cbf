;;;; What is not handled.

(in-package #:clgrpc.tests.raft)

(test messages-without-a-method
  (with-member (peer "no state machine")
    (signals grpc:unimplemented (raft:request-vote peer (vote 1)))
    (signals grpc:unimplemented (raft:append-entries peer (request 0 1)))
    (signals grpc:unimplemented (raft:install-snapshot peer (header 1) (some-octets 1)))
    (let ((error nil))
      (is-true (raft:pipeline-entries peer (request 0 1)
                                      (fn (_response problem) (setf error problem))))
      (is-true (raft:flush-pipeline peer))
      (is (typep error 'grpc:unimplemented)))))
