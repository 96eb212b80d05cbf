;;;; The command `clgrpc`.

(defpackage #:clgrpc.tools
  (:use #:cl #:clgrpc.base #:clgrpc.option #:clgrpc.command)
  (:import-from #:alexandria #:if-let #:when-let)
  (:local-nicknames (#:grpc #:clgrpc) (#:program #:clgrpc.program)
                    (#:command #:clgrpc.command) (#:method #:clgrpc.method)
                    (#:loop #:clgrpc.loop) (#:exchange #:clgrpc.exchange)
                    (#:config #:clgrpc.config) (#:token #:clgrpc.token)
                    (#:load #:clgrpc.load) (#:report #:clgrpc.report)
                    (#:page #:clgrpc.page)
                    (#:os #:clgrpc.os) (#:profile #:clgrpc.profile) (#:protobuf #:clgrpc.protobuf)
                    (#:console #:clgrpc.console)
                    (#:workflow-console #:clgrpc.workflow-console) (#:examples #:clgrpc.examples)
                    (#:testing #:grpc.testing)
                    (#:cluster #:clgrpc.cluster) (#:etcd #:clgrpc.etcd) (#:rest #:clgrpc.rest)
                    (#:authority #:clgrpc.authority)
                    (#:memory #:clgrpc.memory) (#:workflow #:clgrpc.workflow)
                    (#:workflow-v1 #:clgrpc.workflow.v1)
                    (#:membership #:clgrpc.cluster.v1)
                    (#:membership-methods #:clgrpc.cluster.v1.cluster)
                    (#:channelz #:grpc.channelz.v1)
                    (#:channelz-methods #:grpc.channelz.v1.channelz))
  (:export
   ;; command.lisp
   #:run-command #:define-command #:failure #:failure-text #:fail-command #:find-command
   #:parse-channel-target
   ;; standard-output.lisp, input.lisp
   #:make-standard-output #:octet-input
   ;; tls.lisp, balancing-options.lisp
   #:client-tls #:client-credentials #:balancing-options #:balancing-arguments
   ;; interop-payload.lisp
   #:+max-payload-octets+ #:payload-of-size
   ;; worker/bench-service.lisp
   #:bench-service #:answer-of-size
   ;; serve.lisp
   #:add-offer
   ;; rehearsal.lisp
   #:rehearse
   ;; main.lisp
   #:main))
