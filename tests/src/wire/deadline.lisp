;;;; The timers of a call.

(in-package #:clgrpc.tests.wire)

(test deadlines-end-calls
  "Calls end when their deadlines pass and not before; an ended call has no timer."
  (with-link (link)
    (flet ((with-deadline (id seconds)
             (let ((call (calls id)))
               (setf (rpc:call-deadline call)
                     (+ (rpc:operate now call) (seconds-ns seconds)))
               (on-loop (lambda () (wire:start-deadline call)))
               call)))
      (let ((short (with-deadline 1 1)) (long (with-deadline 3 100)))
        (memory:passes 0.9)
        (is (null (rpc:call-status short)))
        (is (null (rpc:overdue-p short)))
        (memory:passes 0.2)
        (is-true (rpc:overdue-p short))
        (is (eq :deadline-exceeded (rpc:call-status short)))
        (is (null (rpc:call-status long)))
        (on-loop (lambda () (rpc:operate abort long :cancelled "" :local)))
        (memory:passes 200)
        (is (eq :cancelled (rpc:call-status long)))))))

(test after-runs-once-in-its-time
  "It does not run if the call has ended."
  (with-link (link)
    (let ((call (calls 1)) (other (calls 3)) (rung '()))
      (rpc:after call 1 (lambda () (push :first rung)))
      (rpc:after call 2 (lambda () (push :second rung)))
      (rpc:after other 1 (lambda () (push :never rung)))
      (memory:run-turns memory:*world*)
      (memory:hears '(:rst-stream 3 :cancel))
      (memory:passes 1.1)
      (memory:passes 5)
      (is (equal '(:second :first) rung)))))
