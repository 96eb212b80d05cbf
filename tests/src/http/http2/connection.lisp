;;;; See src/http/http2/connection.lisp; its conversations are in
;;;; tests/support/dialogue/connection.lisp.

(in-package #:clgrpc.tests.http2)

(test identifiers-run-out
  "The last identifier is 2^31-1; then no stream can be opened (5.1.1)."
  (let ((*dialogue* (begin-dialogue :client '())))
    (shake-hands)
    (setf (h2::connection-highest-id (connection)) (- #x7FFFFFFF 4))
    (is (= 2 (h2:available-streams (connection))))
    (is (= (- #x7FFFFFFF 2) (request :get :end t)))
    (is (= #x7FFFFFFF (request :get :end t)))
    (is (null (h2:open-stream (connection))))))

(test wrong-ends
  "A server opens no streams; roles are checked."
  (signals misuse (h2:open-stream (end-connection (connect-end :server))))
  (signals error (connect-end :proxy)))
