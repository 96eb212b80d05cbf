;;;; A cluster: nodes that know of each other through a store with leases. The files, from the
;;;; ground up: conditions; members and their keys; decisions about them; a node's view of them;
;;;; operations in the store; the informer that follows the store; the service; its followers;
;;;; metrics; nodes.

(defpackage #:clgrpc.cluster
  (:use #:cl #:clgrpc.base)
  (:import-from #:alexandria #:if-let #:when-let)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:protobuf #:clgrpc.protobuf)
                    (#:status #:clgrpc.status) (#:rpc #:clgrpc.rpc)
                    (#:server #:clgrpc.server) (#:services #:clgrpc.services)
                    (#:metrics #:clgrpc.metrics) (#:etcd #:clgrpc.etcd)
                    (#:authority #:clgrpc.authority) (#:memory #:clgrpc.memory)
                    (#:discovery #:clgrpc.discovery)
                    (#:pb #:clgrpc.cluster.v1) (#:methods #:clgrpc.cluster.v1.cluster))
  (:export
   ;; cluster-condition.lisp
   #:cluster-error #:cluster-error-text #:name-taken #:superseded #:not-a-member #:cluster-full
   #:access-denied #:membership-lost
   ;; cluster-member.lisp
   #:cluster-member #:cluster-member-p #:make-cluster-member #:member-name #:member-generation
   #:member-address #:member-state #:member-labels #:member-lease-seconds #:member-instance
   #:member-joined
   ;; view.lisp
   #:change #:change-p #:change-kind #:change-member
   ;; named-store.lisp
   #:open-store
   ;; membership.lisp
   #:join-cluster #:renew-membership #:leave-cluster #:fetch-members
   ;; cluster-service.lisp
   #:cluster-service #:make-cluster-service #:close-cluster-service
   ;; follow.lisp
   #:follow-cluster #:response-members #:told-response
   ;; membership-node.lisp
   #:node #:start-node #:stop-node #:with-node #:node-name #:node-cluster #:node-store
   #:node-server #:node-address #:node-generation #:node-state #:node-health #:node-lease
   #:node-instance #:node-members #:find-member #:await-members))
