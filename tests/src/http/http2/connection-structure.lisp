;;;; See src/http/http2/connection-structure.lisp.

(in-package #:clgrpc.tests.http2)

(test printing
  "Each object prints as one useful line."
  (let ((*dialogue* (begin-dialogue :client '())))
    (shake-hands)
    (request :get)
    (let ((stream (find-stream 1)))
      (is (search "1 open" (princ-to-string stream)))
      (is (eq :open (h2::stream-state-name stream)))
      (is (search "client, 1 stream" (princ-to-string (connection))))
      (h2:receive-eof (connection))
      (is (search "closed" (princ-to-string (connection))))
      (is (search "closed" (princ-to-string stream)))))
  (is (search "0 streams" (princ-to-string (h2:make-pool)))))

(test predicates-of-a-stream
  "Which side may still send."
  (let ((*dialogue* (begin-dialogue :server '())))
    (shake-hands)
    (hears '(:headers 1 :get :end-stream))
    (let ((stream (find-stream 1)))
      (is (h2:stream-sendable-p stream))
      (is (not (h2:stream-receivable-p stream)))
      (is (h2:stream-open-p stream))
      (respond 1 :ok :end t)
      (is (not (h2:stream-sendable-p stream)))
      (is (not (h2:stream-open-p stream))))))

(test a-sink-without-output
  "ON-OUTPUT has no default."
  (signals misuse
    (h2:start-connection (h2:make-connection :server (h2:make-sink) (make-options)) 0)))
