;;;; The console's page of workflows: a search of the workflows of a node's namespace, one workflow
;;;; with its steps and history, and schedules. The page only shows: no viewer can change anything.

(defpackage #:clgrpc.workflow-console
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:console #:clgrpc.console) (#:exchange #:clgrpc.exchange)
                    (#:protobuf #:clgrpc.protobuf) (#:status #:clgrpc.status)
                    (#:pb #:clgrpc.workflow.v1) (#:methods #:clgrpc.workflow.v1.workflow))
  (:import-from #:sb-ext #:define-load-time-global)
  (:export #:show-workflows))
