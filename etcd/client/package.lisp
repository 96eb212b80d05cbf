;;;; A client of etcd, version 3. The files, from the ground up: conditions; keys and ranges of
;;;; them; entries; endpoints; metrics; the client itself; its calls, and its user; leases;
;;;; operations on entries; transactions; watches; mirrors of a range; places in queues, and the
;;;; locks and elections that consist of them; members, and endpoints from their list; users and
;;;; roles; upkeep.

(defpackage #:clgrpc.etcd
  (:use #:cl #:clgrpc.base)
  (:import-from #:alexandria #:if-let #:when-let)
  (:local-nicknames (#:method #:clgrpc.method)
                    (#:loop #:clgrpc.loop) (#:status #:clgrpc.status) (#:rpc #:clgrpc.rpc)
                    (#:calling #:clgrpc.calling) (#:client #:clgrpc.client)
                    (#:pb #:etcdserverpb) (#:kv #:etcdserverpb.kv)
                    (#:leases #:etcdserverpb.lease) (#:watches #:etcdserverpb.watch)
                    (#:cluster #:etcdserverpb.cluster) (#:auth #:etcdserverpb.auth)
                    (#:maintenance #:etcdserverpb.maintenance)
                    (#:metrics #:clgrpc.metrics))
  (:export
   ;; etcd-condition.lisp
   #:etcd-error #:etcd-error-text #:etcd-error-cause #:etcd-error-perhaps-done-p #:compacted
   #:compacted-revision #:future-revision #:lease-not-found #:lease-exists #:invalid-request
   #:access-denied #:space-exceeded #:not-found #:already-exists #:not-ready #:not-obtained
   #:ownership-lost #:overloaded #:unavailable
   ;; entry.lisp
   #:entry #:entry-p #:entry-key #:entry-key-octets #:entry-value #:entry-text #:entry-created
   #:entry-changed #:entry-version #:entry-lease
   ;; etcd-client.lisp
   #:etcd #:make-etcd #:close-etcd #:close-after #:with-etcd #:as-user #:etcd-channel
   #:etcd-user #:etcd-metrics #:add-job #:run-in-background #:add-ending #:remove-ending
   ;; etcd-call.lisp
   #:reach
   ;; lease.lisp
   #:lease #:grant-lease #:adopt-lease #:lease-by-number #:revoke-lease #:renew-lease
   #:renew-leases #:on-lease-loss #:lease-id #:lease-seconds #:lease-alive-p
   #:lease-seconds-left #:lease-keys #:list-leases
   ;; entry-store.lisp
   #:fetch #:map-entries #:fetch-entries #:count-entries #:put #:remove-entry #:remove-entries
   #:compact
   ;; transaction.lisp
   #:transact
   ;; watch.lisp
   #:watch #:cancel-watch #:watch-open-p #:watch-next-revision #:await-progress #:change
   #:change-kind #:change-entry #:change-previous
   ;; mirror.lisp
   #:mirror #:cancel-mirror #:refresh-mirror #:mirror-watch
   ;; lock.lisp
   #:lock #:acquire-lock #:request-lock #:await-lock #:release-lock #:with-lock #:lock-held-p
   #:lock-guard #:lock-name #:lock-key #:lock-revision #:lock-lease
   ;; election.lisp
   #:leadership #:campaign #:proclaim-value #:resign #:leader #:observe #:leadership-held-p
   #:leadership-guard #:leadership-name #:leadership-key #:leadership-revision #:leadership-lease
   ;; member.lisp
   #:list-members #:add-member #:remove-member #:update-member #:promote-member
   ;; synchronize.lisp
   #:synchronize-endpoints
   ;; user.lisp
   #:enable-authentication #:disable-authentication #:authentication-enabled-p #:add-user
   #:remove-user #:change-password #:list-users #:user-roles #:grant-role #:revoke-role #:add-role
   #:remove-role #:list-roles #:role-permissions #:grant-permission #:revoke-permission
   ;; maintenance.lisp
   #:member-status #:defragment #:hash-entries #:list-alarms #:disarm #:move-leader
   #:save-snapshot))
