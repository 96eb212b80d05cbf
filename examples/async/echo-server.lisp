;;;; The smallest server: what comes is sent back. Input is read in place, where the loop has it, so
;;;; that an octet is copied once; a peer that does not read is not read either.

(defpackage #:clgrpc.examples.echo-server
  (:use #:cl)
  (:local-nicknames (#:as #:clgrpc.async))
  (:export #:run))

(in-package #:clgrpc.examples.echo-server)

(defun echo (socket octets start end)
  (as:write-socket-data socket octets :start start :end end))

(defun run (&key (address "127.0.0.1") (port 7) (on-start (constantly nil)))
  "Echo on PORT until the process gets SIGINT or SIGTERM. ON-START is called with the server."
  (as:with-event-loop (:name "echo")
    (let ((server (as:tcp-server address port #'echo :in-place t)))
      (dolist (signal (list as:+sigint+ as:+sigterm+))
        (as:signal-handler signal (lambda (signal)
                                    (declare (ignore signal))
                                    (as:exit-event-loop))))
      (funcall on-start server))))
