;;;; A call's view of its link.

(in-package #:clgrpc.tests.wire)

(test what-a-call-knows-of-its-link
  (with-link (link)
    (let ((call (calls 1)))
      (is (string= "memory" (rpc:call-peer call)))
      (is (null (rpc:call-security call)))
      (is (eq (station-loop *station*) (wire:wire-call-loop call)))
      (is (= (memory:world-now memory:*world*) (rpc:operate now call)))
      (is (null (wire:marked-p call :headers)))
      (is (null (wire:marked-p call :closed)))
      (wire:mark-call call :closed)
      (is-true (wire:marked-p call :closed)))))

(test functions-are-posted-to-the-loop-of-a-call
  "They run at once on the loop, else in its next turn; not when it has stopped."
  (with-link (link)
    (let ((call (calls 1)) (ran '()))
      (is-true (wire::wire-post call (lambda () (push 1 ran))))
      (is (null ran))
      (memory:run-turns memory:*world*)
      (is (equal '(1) ran))
      (on-loop (lambda () (wire::wire-post call (lambda () (push 2 ran))) (push 3 ran)))
      (is (equal '(3 2 1) ran)))))
