;;;; Client loops without channels; which loops channels have is in tests/src/client/runtime.lisp.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.calling)

(test a-client-loop-lives-as-long-as-it-is-used
  (let* ((one (calling:acquire-client-loop (make-channel-options)))
         (timers (calling:acquire-client-loop :timers)))
    (is (eq one timers))
    (calling:release-client-loop one)
    (is-true (loop:run-or-post one (constantly t)))
    (calling:release-client-loop timers :timers)
    (is (not (loop:run-or-post one (constantly t))))))

(test who-runs-a-handler-does-not-drive
  (let ((method:*call* (new-call)))
    (is (not (calling:drive-for nil (new-call) (constantly t))))))
