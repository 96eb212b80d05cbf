;;;; The first and the last of the three services of ../otlp.py: Greeters, traced, whose spans go
;;;; where OTEL_EXPORTER_OTLP_ENDPOINT says. CLGRPC_PROPAGATOR is the form in which contexts come
;;;; and go. Loaded behind scripts/load.lisp, in one of two roles:
;;;;
;;;; - With an address in CLGRPC_ADDRESS it calls the Greeter there within a span of its own, prints
;;;;   the trace's id, and ends.
;;;; - Else it serves, prints `listening on HOST:PORT`, and ends when its standard input does.

(in-package #:clgrpc.scripts)

(load-strictly "clgrpc-tools")

(defpackage #:clgrpc.traced
  (:use #:cl)
  (:local-nicknames (#:grpc #:clgrpc)))

(in-package #:clgrpc.traced)

(defclass greeter (helloworld:greeter) ())

(defmethod helloworld.greeter:say-hello ((greeter greeter) request &key)
  (grpc:with-span ("greet" :attributes '("greeted" 1))
    (helloworld:make-hello-reply
     :message (format nil "Hello, ~A!" (helloworld:hello-request-name request)))))

(defun serve (tracing)
  (let ((server (grpc:start-server (make-instance 'greeter) :listen "127.0.0.1:0"
                                                            :observer tracing)))
    (format t "listening on ~A~%" (grpc:server-address server))
    (finish-output)
    (loop while (read-line *standard-input* nil))
    (grpc:stop-server server)))

(defun call (address tracing)
  (grpc:with-channel (channel address :observer tracing)
    (grpc:with-span ("outside" :tracing tracing)
      (format t "~A~%" (grpc:trace-id (grpc:current-trace)))
      (helloworld.greeter:say-hello
       channel
       (helloworld:make-hello-request :name (make-string 3000 :initial-element #\a))
       :timeout 20 :compression :gzip))))

(let* ((form (intern (string-upcase (sb-ext:posix-getenv "CLGRPC_PROPAGATOR")) '#:keyword))
       (tracing (grpc:make-tracing :propagators (list form)))
       (exporter (grpc:make-otlp-exporter nil :tracing tracing))
       (address (sb-ext:posix-getenv "CLGRPC_ADDRESS")))
  (if address
      (call address tracing)
      (serve tracing))
  (unless (grpc:stop-exporter exporter :timeout 20)
    (format t "not all has been exported: ~S~%" (grpc:exporter-statistics exporter))))
