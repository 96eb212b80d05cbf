;;;; An engine in memory: it serves etcd's own services, so that programs that use clgrpc.etcd run
;;;; without etcd, in demonstrations and tests. The store in memory is not durable: its contents end
;;;; with its process. The files, from the ground up: an ordered tree of items that is never
;;;; changed; the store, which has such a tree for each of its revisions; leases; ranges;
;;;; transactions; the engine around it, with lock and clock; watches; the methods of the services.
;;;;
;;;; Everything up to transactions is a data structure with functions of that structure, of requests
;;;; and of the time.

(defpackage #:clgrpc.memory
  (:use #:cl #:clgrpc.base)
  (:import-from #:alexandria #:when-let)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:status #:clgrpc.status) (#:rpc #:clgrpc.rpc)
                    (#:protobuf #:clgrpc.protobuf) (#:inproc #:clgrpc.inproc)
                    (#:etcd #:clgrpc.etcd) (#:pb #:etcdserverpb) (#:kv #:etcdserverpb.kv)
                    (#:leases #:etcdserverpb.lease) (#:watches #:etcdserverpb.watch)
                    (#:cluster #:etcdserverpb.cluster)
                    (#:maintenance #:etcdserverpb.maintenance))
  (:import-from #:sb-ext #:compare-and-swap)
  (:export
   ;; engine.lisp
   #:engine #:make-engine #:close-engine #:engine-revision
   ;; memory-service.lisp
   #:connect))
