;;;; Handlers that several files use, and what a test cannot be told but must watch.

(in-package #:clgrpc.tests.client)

(defun double (note call)
  (declare (ignore call))
  (note (* 2 (number-of note)) :text (lab:note-text note)))

(defun count-up (note call)
  (loop for i below (number-of note) do (grpc:send call (note i)))
  nil)

(defun add-up (stream call)
  (declare (ignore call))
  (note (reduce #'+ (numbers stream))))

(defun echo (stream call)
  (grpc:do-messages (note stream)
    (grpc:send call note))
  nil)

(defun our-threads ()
  (count-if (lambda (thread) (search "clgrpc" (or (sb-thread:thread-name thread) "")))
            (sb-thread:list-all-threads)))

(defun cycles ()
  "How many connections the tests for leaks make; CLGRPC_TLS_CYCLES=10000 is what the promise says."
  (parse-integer (or (uiop:getenvp "CLGRPC_TLS_CYCLES") "100")))

(defun free-address ()
  "An address where nobody listens, as far as one can know."
  (let ((server (start-probe '())))
    (prog1 (grpc:server-address server)
      (grpc:stop-server server :drain 0))))
