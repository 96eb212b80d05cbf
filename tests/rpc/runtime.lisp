;;;; Client loops without channels; which loops channels have is in tests/client/runtime.lisp.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.rpc)

(test a-client-loop-lives-as-long-as-it-is-used
  (let* ((one (rpc:acquire-client-loop (make-channel-options)))
         (event-loop (rpc:client-loop-loop one))
         (timers (rpc:acquire-timer-loop)))
    (is-true (member one (rpc::client-loops)))
    (is (eq one timers))
    (rpc:release-client-loop one)
    (is-true (member one (rpc::client-loops)))
    (is-true (loop:run-or-post event-loop (constantly t)))
    (rpc:release-timer-loop timers)
    (is (not (member one (rpc::client-loops))))))

(test who-runs-a-handler-does-not-drive
  (let ((rpc:*call* (new-call)))
    (is (not (rpc:drive-for nil (new-call) (constantly t))))))
