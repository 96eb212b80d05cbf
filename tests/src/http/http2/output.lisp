;;;; See src/http/http2/output.lisp.

(in-package #:clgrpc.tests.http2)

(test answers-are-counted-until-sent
  "The count restarts only when the output was empty, not when it was merely lent again."
  (let* ((*dialogue* (begin-dialogue :server '()))
         (counters (h2:connection-counters (connection))))
    (shake-hands)
    (flet ((count-after (&rest frames)
             (apply #'hears frames)
             (h2::counters-control-frames counters)))
      (is (= 2 (count-after '(:ping 1) '(:settings))))
      (h2:give-output-back (connection)) ; nothing of this output could be sent
      (is (= 3 (count-after '(:ping 2))))
      (flush)
      (is (= 1 (count-after '(:ping 3)))))))

(test answers-that-leave-are-counted-no-longer
  "The output of a busy connection is never empty. An answer that has left it must not count, or a
peer that sends PINGs while it reads a long stream would be cut off."
  (flet ((closed-p (pings left)
           ;; whether PINGS end the connection; after each, LEFT octets of output are left
           (let ((*dialogue* (begin-dialogue :server '(:max-queued-control-frames 10))))
             (shake-hands)
             (loop repeat pings
                   until (h2:connection-closed-p (connection))
                   do (hears '(:ping 1))
                      (let ((buffer (h2::connection-output (connection))))
                        (h2:give-output-back (connection))
                        (setf (buffer-start buffer)
                              (max (buffer-start buffer) (- (buffer-end buffer) left)))))
             (h2:connection-closed-p (connection)))))
    (is-false (closed-p 1000 1))
    (is-false (closed-p 1000 (* 4 17)))
    (is-true (closed-p 21 (* 11 17)))
    (is-true (closed-p 11 1000000))))
