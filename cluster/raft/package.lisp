;;;; Raft's transport: its messages between the members of a group. This is not Raft itself: terms,
;;;; votes and the log belong to the user's state machine, which gets each message and returns the
;;;; answer. The files, from the ground up: the check sum of snapshots; the state machine's generic
;;;; functions; the addresses of requests; snapshots that come in; groups and the service; the
;;;; measurements of a peer; batches of requests; peers; calls to them; the pipeline; snapshots that
;;;; go out.

(defpackage #:clgrpc.raft
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:status #:clgrpc.status) (#:rpc #:clgrpc.rpc)
                    (#:authority #:clgrpc.authority)
                    (#:method #:clgrpc.method) (#:calling #:clgrpc.calling)
                    (#:client #:clgrpc.client) (#:server #:clgrpc.server)
                    (#:metrics #:clgrpc.metrics)
                    (#:v1 #:clgrpc.raft.v1) (#:methods #:clgrpc.raft.v1.raft))
  (:import-from #:sb-ext #:define-load-time-global)
  (:export
   ;; crc32c.lisp
   #:crc32c #:file-crc32c
   ;; state.lisp
   #:handle-pre-vote #:handle-request-vote #:handle-append-entries #:handle-timeout-now
   #:kept-snapshot #:handle-install-snapshot #:handle-snapshot-chunk #:handle-snapshot-end
   ;; request-address.lisp
   #:refusal-reason
   ;; raft-service.lisp
   #:raft-service #:make-raft-service #:add-group #:remove-group #:group-state
   ;; raft-peer.lisp
   #:peer #:make-peer #:peer-name #:peer-group #:peer-sender #:peer-channel #:peer-statistics
   ;; unary-call.lisp
   #:pre-vote #:request-vote #:append-entries #:timeout-now
   ;; pipeline.lisp
   #:pipeline-entries #:flush-pipeline #:close-peer
   ;; snapshot.lisp
   #:install-snapshot #:read-snapshot #:snapshot-octets))
