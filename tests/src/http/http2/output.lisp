;;;; See src/http/http2/output.lisp.

(in-package #:clgrpc.tests.http2)
(in-suite :clgrpc.http2)

(test answers-are-counted-until-sent
  "The count begins anew only when the output was empty, not when it was merely lent again."
  (let* ((*dialogue* (begin-dialogue :server '()))
         (counters (h2:connection-counters (connection))))
    (shake-hands)
    (flet ((count-after (&rest frames)
             (apply #'hears frames)
             (h2::counters-control-frames counters)))
      (is (= 2 (count-after '(:ping 1) '(:settings))))
      (setf (h2:connection-output (connection)) nil) ; nothing of it could be sent
      (is (= 3 (count-after '(:ping 2))))
      (flush)
      (is (= 1 (count-after '(:ping 3)))))))
