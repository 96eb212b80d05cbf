;;;; A server as a program of one's own: what is served, and the main function. build.lisp makes an
;;;; executable of it, greeter.service and Containerfile run that (doc/servers.md and
;;;; doc/cluster/production.md).

(require :asdf)
(asdf:load-system "clgrpc")
(clgrpc:define-proto "../../proto/examples/helloworld.proto")

(defpackage #:greeter
  (:use #:cl)
  (:local-nicknames (#:grpc #:clgrpc))
  (:export #:main))

(in-package #:greeter)

(defclass my-greeter (helloworld:greeter) ())

(defmethod helloworld.greeter:say-hello ((service my-greeter) request &key)
  (helloworld:make-hello-reply
   :message (format nil "Hello, ~A!" (helloworld:hello-request-name request))))

(defun main ()
  (sb-ext:disable-debugger)
  (grpc:run-server (list* (make-instance 'my-greeter)
                          (make-instance 'grpc:health-service)
                          (grpc:reflection-services))
                   :arguments (rest sb-ext:*posix-argv*)))
