;;;; The command `clgrpc`.

(defpackage #:clgrpc.tools
  (:use #:cl #:clgrpc.base #:clgrpc.command)
  (:local-nicknames (#:grpc #:clgrpc) (#:program #:clgrpc.program)
                    (#:command #:clgrpc.command) (#:rpc #:clgrpc.rpc) (#:service #:clgrpc.service)
                    (#:loop #:clgrpc.loop) (#:http1 #:clgrpc.http1) (#:config #:clgrpc.config)
                    (#:load #:clgrpc.load) (#:report #:clgrpc.report)
                    (#:os #:clgrpc.os) (#:profile #:clgrpc.profile) (#:protobuf #:clgrpc.protobuf)
                    (#:etcd #:clgrpc.etcd) (#:discovery #:clgrpc.discovery)
                    (#:console #:clgrpc.console) (#:examples #:clgrpc.examples)
                    (#:testing #:grpc.testing)
                    (#:cluster #:clgrpc.cluster) (#:etcd #:clgrpc.etcd)
                    (#:memory #:clgrpc.memory) (#:workflow #:clgrpc.workflow.v1)
                    (#:membership #:clgrpc.cluster.v1)
                    (#:membership-methods #:clgrpc.cluster.v1.cluster)
                    (#:orca #:xds.service.orca.v3)
                    (#:channelz #:grpc.channelz.v1)
                    (#:channelz-methods #:grpc.channelz.v1.channelz)
                    (#:orca-methods #:xds.service.orca.v3.open-rca-service)
                    (#:connect #:connectrpc.conformance.v1)
                    (#:connect-methods #:connectrpc.conformance.v1.conformance-service))
  (:export
   ;; command.lisp
   #:run-command
   ;; bench.lisp
   #:bench-route-guide #:bench-service
   ;; interop.lisp
   #:interop-service
   ;; rehearsal.lisp
   #:rehearse
   ;; main.lisp
   #:main))
