;;;; A program that is a server, as a user writes it; run by the tests, from a script.

(asdf:load-system "clgrpc")
(clgrpc:define-proto "../../../proto/examples/helloworld.proto")

(defpackage #:greeter-program
  (:use #:cl)
  (:local-nicknames (#:grpc #:clgrpc)))

(in-package #:greeter-program)

(defclass my-greeter (helloworld:greeter) ())

(defmethod helloworld.greeter:say-hello ((service my-greeter) request &key)
  (let ((name (helloworld:hello-request-name request)))
    (when (string= "forever" name)
      ;; it notices neither a cancellation nor a drain
      (format t "for ever~%")
      (finish-output)
      (loop (sleep 1)))
    (when (string= "in time" name)
      (handler-case (sb-ext:with-timeout 0.1 (sleep 60))
        (:no-error (&rest values) (declare (ignore values)) (setf name "too late"))
        (sb-ext:timeout ())))
    (format t "greeting ~A, " name)     ; this stays in the stream's buffer
    (helloworld:make-hello-reply :message (format nil "Hello, ~A!" name))))

(defun read-again ()
  (format t "own reload~%")
  (finish-output)
  (error "on purpose"))

(defun main ()
  (push (lambda () (format t "exit hook~%")) sb-ext:*exit-hooks*)
  (unwind-protect (grpc:run-server (list (make-instance 'my-greeter)
                                         (make-instance 'grpc:health-service))
                                   :arguments (rest sb-ext:*posix-argv*)
                                   :reload (and (member "--tls-cert" sb-ext:*posix-argv*
                                                        :test #'string=)
                                                #'read-again)
                                   :max-receive-octets 1000)
    (format t "unwound~%")))

(main)
