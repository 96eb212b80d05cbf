;;;; What an image does that is saved while it serves and calls, and what the core does then. Loaded
;;;; into an image of its own, by the test in image.lisp, with the greeter's .proto file defined.

(in-package #:cl-user)

(defclass saved-greeter (helloworld:greeter) ())

(defmethod helloworld.greeter:say-hello ((service saved-greeter) request &key)
  (helloworld:make-hello-reply
   :message (format nil "Hello, ~A!" (helloworld:hello-request-name request))))

(defun greet (channel)
  (helloworld:hello-reply-message
   (helloworld.greeter:say-hello channel (helloworld:make-hello-request :name "Ada")
                                 :timeout 20)))

(defvar *server* (clgrpc:start-server (make-instance 'saved-greeter) :loops 2))
(defvar *channel* (clgrpc:make-channel (clgrpc:server-address *server*)))

(defun greet-anew ()
  "Print what of before is there, and that all works."
  (let ((server (clgrpc:start-server (make-instance 'saved-greeter))))
    (clgrpc:with-channel (channel (clgrpc:server-address server))
      (with-standard-io-syntax
        (print (list :seed (clgrpc.base:hash-seed)
                     :greeting (greet channel)
                     :tuned (= clgrpc.base::+nursery-octets+ (sb-ext:bytes-consed-between-gcs))
                     :old-server (clgrpc:server-running-p *server*)
                     :old-channel (clgrpc:channel-state *channel*)
                     :old-call (handler-case (greet *channel*)
                                 (clgrpc:misuse () :misuse))))))
    (clgrpc:stop-server server)))

(greet *channel*)
(clgrpc:tune-collector)
(sb-ext:save-lisp-and-die (sb-ext:posix-getenv "CLGRPC_OUTPUT")
                          :executable t :save-runtime-options t
                          :toplevel (lambda () (greet-anew) (sb-ext:exit)))
