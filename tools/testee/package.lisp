;;;; The parts of test peers beside the command `clgrpc`: the services and clients of
;;;; interoperability tests and of benchmarks, and the programs that public conformance suites
;;;; judge. bin/clgrpc-testee is the command with these.

(defpackage #:clgrpc.testee
  (:use #:cl #:clgrpc.base #:clgrpc.option #:clgrpc.command)
  (:import-from #:alexandria #:if-let #:when-let)
  (:local-nicknames (#:grpc #:clgrpc) (#:program #:clgrpc.program) (#:rpc #:clgrpc.rpc)
                    (#:load #:clgrpc.load) (#:os #:clgrpc.os)
                    (#:protobuf #:clgrpc.protobuf) (#:method #:clgrpc.method)
                    (#:examples #:clgrpc.examples) (#:testing #:grpc.testing)
                    (#:orca #:xds.service.orca.v3)
                    (#:orca-methods #:xds.service.orca.v3.open-rca-service)
                    (#:lab #:lab.web.v1) (#:echo #:lab.web.v1.echo-service)
                    (#:lab-errors-methods #:lab.web.v1.error-service)
                    (#:lab-streams-methods #:lab.web.v1.stream-service)
                    (#:lab-bodies-methods #:lab.web.v1.body-service)
                    (#:lab-meta-methods #:lab.web.v1.meta-service)
                    (#:lab-perf-methods #:lab.web.v1.perf-service)
                    (#:connect #:connectrpc.conformance.v1)
                    (#:connect-methods #:connectrpc.conformance.v1.conformance-service))
  (:import-from #:clgrpc.tools
                #:define-command #:failure #:failure-text #:fail-command
                #:parse-channel-target #:make-standard-output #:octet-input #:client-tls
                #:client-credentials #:balancing-options #:balancing-arguments
                #:+max-payload-octets+
                #:payload-of-size #:answer-of-size #:bench-service #:add-offer)
  (:export
   ;; bench.lisp
   #:bench-route-guide
   ;; connect.lisp
   #:connect-service
   ;; interop.lisp, interop-case.lisp
   #:interop-service #:run-interop-case
   ;; transcode.lisp
   #:lab-services))
