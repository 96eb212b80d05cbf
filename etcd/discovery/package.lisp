;;;; Servers that register themselves in etcd, and channels that find them there. The files, from
;;;; the ground up: endpoints, the descriptions of servers; keys; the default etcd; the endpoints of
;;;; a name; metrics; registrations; listings; names of hosts; watchers of names; the resolver of
;;;; the scheme etcd; options of servers' command lines.

(defpackage #:clgrpc.discovery
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:os #:clgrpc.os) (#:etcd #:clgrpc.etcd)
                    (#:config #:clgrpc.config) (#:client #:clgrpc.client)
                    (#:server #:clgrpc.server) (#:metrics #:clgrpc.metrics)
                    (#:command #:clgrpc.command))
  (:export
   ;; endpoint.lisp
   #:endpoint #:endpoint-p #:endpoint-address #:endpoint-weight #:endpoint-zone
   #:endpoint-hash-key #:endpoint-state #:endpoint-metadata #:endpoint-text
   ;; service-key.lisp
   #:endpoint-key #:service-config-key
   ;; endpoint-table.lisp
   #:read-endpoint
   ;; etcd-target.lisp
   #:default-etcd #:parse-etcd-target
   ;; registration.lisp
   #:check-address #:registration #:register #:withdraw #:drain-registration #:change-registration
   #:registration-name #:registration-key #:registration-endpoint #:registration-state
   #:await-registration
   ;; listing.lisp
   #:list-endpoints #:put-service-config
   ;; etcd-resolver.lisp
   #:etcd-resolver))
