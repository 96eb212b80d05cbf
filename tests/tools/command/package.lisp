;;;; Tests of the command clgrpc.

(defpackage #:clgrpc.tests.tools
  (:use #:cl #:clgrpc.tests.form)
  (:import-from #:clgrpc.tests.etcd #:with-store #:*etcd* #:store-address #:wait-until #:eventually)
  (:local-nicknames (#:grpc #:clgrpc) (#:base #:clgrpc.base) (#:tools #:clgrpc.tools)
                    (#:testee #:clgrpc.testee) (#:method #:clgrpc.method)
                    (#:load #:clgrpc.load) (#:etcd #:clgrpc.etcd)
                    (#:examples #:clgrpc.tests.examples) (#:support #:clgrpc.tests.support)
                    (#:testing #:grpc.testing) (#:protobuf #:clgrpc.protobuf)
                    (#:spans #:opentelemetry.proto.trace.v1)
                    (#:trace-collector #:opentelemetry.proto.collector.trace.v1)
                    (#:trace-service #:opentelemetry.proto.collector.trace.v1.trace-service)
                    (#:orca #:xds.service.orca.v3)
                    (#:orca-methods #:xds.service.orca.v3.open-rca-service)
                    (#:connect #:connectrpc.conformance.v1)
                    (#:bench-methods #:grpc.testing.benchmark-service)
                    (#:worker-methods #:grpc.testing.worker-service)
                    (#:interop-methods #:grpc.testing.test-service)))

(in-package #:clgrpc.tests.tools)

(def-suite :clgrpc.tools :description "The command clgrpc and its services.")

(defun run-broken-line (&rest arguments)
  "As RUN-LINE; the command may break inside."
  (let* ((code nil)
         (error-output (make-string-output-stream))
         (output (with-output-to-string (*standard-output*)
                   (let ((*error-output* error-output))
                     (setf code (tools:run-command arguments))))))
    (values code output (get-output-stream-string error-output))))

(defun run-line (&rest arguments)
  "Run the command line ARGUMENTS; return its exit code and what it printed on the two streams. It
is an error if the command breaks inside, whose exit code is that of other failures."
  (multiple-value-bind (code output errors) (apply #'run-broken-line arguments)
    (when (search "an error of clgrpc itself" errors) (error "~S: ~A" arguments errors))
    (values code output errors)))

(defmacro with-serve ((program address &rest arguments) &body body)
  "Run BODY while `bin/clgrpc-testee serve ARGUMENTS` listens at ADDRESS, on a free port."
  `(support:with-server-program (,program ,address (support:testee-program)
                                          "serve" ,@arguments "--listen" "127.0.0.1:0")
     ,@body))

(defun one-line-p (text)
  (and (plusp (length text))
       (= (position #\Newline text) (1- (length text)))))
