;;;; An example of Raft on clgrpc-cluster/raft, not a product: consensus in production should be an
;;;; engine that has years of use and of faults found, such as etcd, since a mistake in it loses
;;;; data silently and shows only after a rare order of crashes.
;;;;
;;;; It has leader election with PreVote, replication by the pipeline, snapshots with compaction of
;;;; the log, leadership transfer, reads by read-index (Ongaro's dissertation, 6.4) and sessions of
;;;; clients (6.3). Members are fixed. The files, from the ground up: disks; the log; the journal
;;;; that keeps it on a disk; the store of keys and values; the node; its elections; replication;
;;;; what it answers to others; its service for clients; clients; a demonstration.

(defpackage #:clgrpc.examples.raft
  (:use #:cl)
  (:local-nicknames (#:grpc #:clgrpc) (#:raft #:clgrpc.raft) (#:v1 #:clgrpc.raft.v1)
                    (#:pb #:examples.raft) (#:methods #:examples.raft.key-value)
                    (#:loop #:clgrpc.loop))
  (:import-from #:clgrpc.base
                #:octets #:make-octets #:seconds-ns #:ns-seconds #:log-condition)
  (:export
   ;; disk.lisp
   #:disk-octets #:write-disk #:sync-disk #:replace-disk #:close-disk #:open-file-disk
   ;; store.lisp
   #:store-digest
   ;; node.lisp
   #:node #:make-node #:node-name #:node-role #:node-term #:node-log #:node-store #:node-commit
   #:log-base-index #:last-index #:term-at
   #:start-node #:connect-node #:stop-node #:hand-over #:node-services
   ;; client.lisp
   #:client #:make-client #:close-client #:change #:fetch #:open-session #:gave-up
   ;; demonstration.lisp
   #:show))
