;;;; A client of etcd, version 3: entries, transactions, leases, watches. The files, from the ground
;;;; up: conditions; keys and ranges of them; entries; the client itself; leases; what it does with
;;;; entries; transactions; watches.

(defpackage #:clgrpc.etcd
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:status #:clgrpc.status) (#:rpc #:clgrpc.rpc)
                    (#:calling #:clgrpc.calling) (#:client #:clgrpc.client)
                    (#:pb #:etcdserverpb) (#:kv #:etcdserverpb.kv)
                    (#:leases #:etcdserverpb.lease) (#:watches #:etcdserverpb.watch)
                    (#:cluster #:etcdserverpb.cluster))
  (:export
   ;; condition.lisp
   #:etcd-error #:etcd-error-text #:etcd-error-cause #:etcd-error-perhaps-done-p #:compacted
   #:compacted-revision #:future-revision #:lease-not-found #:lease-exists #:invalid-request
   #:access-denied #:space-exceeded #:overloaded #:unavailable
   ;; entry.lisp
   #:entry #:entry-p #:entry-key #:entry-key-octets #:entry-value #:entry-text #:entry-created
   #:entry-changed #:entry-version #:entry-lease
   ;; client.lisp
   #:etcd #:make-etcd #:close-etcd #:with-etcd #:etcd-channel #:list-members
   #:add-ending #:remove-ending
   ;; lease.lisp
   #:lease #:grant-lease #:revoke-lease #:renew-lease #:lease-id #:lease-seconds #:lease-alive-p
   #:lease-seconds-left
   ;; store.lisp
   #:fetch #:map-entries #:fetch-entries #:count-entries #:put #:remove-entry #:remove-entries
   #:compact
   ;; transaction.lisp
   #:transact
   ;; watch.lisp
   #:watch #:cancel-watch #:watch-open-p #:watch-next-revision #:change #:change-kind
   #:change-entry #:change-previous))
