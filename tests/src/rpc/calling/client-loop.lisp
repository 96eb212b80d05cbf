;;;; Client loops without channels; for the loops of channels see tests/src/client/runtime.lisp.

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

(test channels-of-a-key-share-a-pool-while-there-is-one
  "The first channel's pool is for all with its key; after the last channel another pool is made."
  (let ((pools '()) (loops '()))
    (flet ((begin (key)
             (multiple-value-bind (event-loop pool)
                 (calling:acquire-client-loop (make-channel-options :max-client-loops 1) key
                                              (lambda (key) (first (push (copy-list key) pools))))
               (push (cons event-loop key) loops)
               pool))
           (end ()
             (destructuring-bind (event-loop . key) (pop loops)
               (calling:release-client-loop event-loop key))))
      (is (null (begin nil)) "a channel without a key shares no pool")
      (let ((first (begin '("a"))))
        (is (equal '("a") first))
        (is (eq first (begin (list "a"))))
        (is (not (eq first (begin '("b")))))
        (end)
        (end)
        (is (eq first (begin '("a"))) "one channel is left")
        (is (= 2 (length pools)))
        (end)
        (end)
        (is (not (eq first (begin '("a")))))
        (is (= 3 (length pools)))
        (end)
        (end)))))

(test who-runs-a-handler-does-not-drive
  (let ((method:*call* (new-call)))
    (is (not (calling:drive-for nil (new-call) (constantly t))))))

(test as-many-loops-as-processors-within-bounds
  "Without an option there may be 4 to 16 loops; in a simulation 4 on every machine. The option
MAX-CLIENT-LOOPS has priority."
  (flet ((limit (processors simulated &rest options)
           (with-replaced (('clgrpc.os:processor-count (constantly processors))
                           ('loop:simulated-p (constantly simulated)))
             (calling::client-loop-limit (apply #'make-channel-options options)))))
    (is (equal '(4 4 5 16 16) (mapcar (lambda (count) (limit count nil)) '(1 4 5 16 17))))
    (is (= 4 (limit 16 t)))
    (is (= 2 (limit 16 nil :max-client-loops 2)))))
