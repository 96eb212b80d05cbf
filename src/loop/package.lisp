;;;; The event loop: connections, listeners, timers, posted functions, futures, and the threads
;;;; around it. gRPC is built on it. Programs that use a loop without gRPC call cl-async's functions
;;;; in clgrpc.async, which is built on this package; for their own handlers and byte channels they
;;;; use this package.

(defpackage #:clgrpc.loop
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:local-nicknames (#:os #:clgrpc.os))
  (:import-from #:sb-ext #:defglobal #:define-load-time-global #:compare-and-swap #:atomic-incf
                #:atomic-decf)
  (:export
   ;; world.lisp
   #:world #:make-world #:world-client-loops #:world-clock #:world-now #:*world*
   #:simulated-p #:unix-seconds #:unix-ns #:new-random-state #:find-addresses #:world-sleep
   #:network
   #:make-network #:notice-end #:seconds-until #:await-notice #:await-until #:await-semaphore
   #:await-futex
   ;; guard.lisp
   #:guarding #:guarded-p #:*unguarded* #:pass-timeout #:**default-options**
   ;; saved-image.lisp
   #:end-before-save #:forget-ending
   ;; loop-condition.lisp
   #:socket-error #:socket-error-code #:socket-error-operation #:socket-error-address
   #:socket-error-reason #:socket-error-owner
   #:socket-reset #:socket-aborted #:socket-timeout #:socket-address-in-use
   #:connect-error #:socket-refused #:connect-timeout #:dns-error #:errno-condition
   ;; thread-quota.lisp
   #:quota #:make-quota #:quota-running
   ;; reserve.lisp
   #:reserve #:make-reserve #:run-on-reserve #:leave-reserve #:quota-open-p #:charge-thread
   #:run-holding
   #:close-reserve #:reserve-root #:reserve-thread-count #:start-thread
   ;; poller.lisp
   #:poller #:make-poller #:make-epoll-poller #:make-poll-poller #:poller-tokens #:poller-flags
   #:poller-state
   #:+readable+ #:+writable+ #:+failed+ #:+ended+
   ;; transport.lisp
   #:byte-channel #:make-byte-channel #:byte-channel-kind #:make-byte-channel-kind
   #:byte-channel-descriptor
   #:byte-channel-peer #:byte-channel-state #:byte-channel-read #:byte-channel-write
   #:shut-byte-channel-down #:+wants-read+ #:+wants-write+ #:+broken+
   #:byte-channel-more #:byte-channel-failure
   #:limit-silence #:make-tcp-byte-channel
   ;; loop-structure.lisp
   #:event-loop #:event-loop-name #:event-loop-world #:event-loop-poller #:event-loop-now
   #:event-loop-wheel #:start-timer #:stop-timer #:event-loop-turns #:event-loop-timed
   #:event-loop-statistics
   #:event-loop-reserve #:event-loop-random #:event-loop-connections #:event-loop-state
   #:event-loop-stopping
   #:event-loop-datum #:event-loop-running-p #:in-event-loop-p #:update-time
   #:source #:add-source #:remove-source #:interest
   #:close-byte-channel
   #:handler #:make-handler #:handler-input #:connection #:connection-loop #:connection-handler
   #:connection-user #:connection-byte-channel #:connection-max-unsent #:connection-account
   #:connection-kept
   #:connection-peer #:connection-local #:connection-security #:connection-state
   ;; tls-credentials.lisp
   #:tls-credentials #:tls-credentials-server-name #:tls-credentials-verify
   #:tls-credentials-client-certificates #:check-credentials #:pem-text
   #:reload-credentials
   ;; tls-channel.lisp
   #:tls-credentials-alpn #:security-alpn #:make-tls-byte-channel #:connection-handshaking-p
   #:byte-channel-security #:byte-channel-own-certificate #:security
   #:security-protocol #:security-cipher #:security-resumed-p #:security-server-name
   #:security-peer-certificate #:certificate-identity
   ;; baton.lisp
   #:*event-loop* #:call-user #:with-user-interrupts #:note-late #:with-baton #:holds-baton-p
   #:prepare-to-wait #:call-releasing #:held-loop
   ;; connection-io.lisp and connection-closing.lisp
   #:make-connection #:connection-output #:connection-unsent #:connection-unread-p
   #:connection-output-pending-p #:connection-blocked-p #:connection-stopped-p
   #:+most-lingering+ #:flush-connection
   #:begin-handshake #:stop-reading #:start-reading #:close-connection
   #:connections-closing-p
   ;; loop.lisp
   #:make-event-loop #:run-event-loop #:launch-event-loop #:stop-event-loop #:join-event-loop
   #:call-at-stop #:on-signal
   ;; task.lisp
   #:post #:run-posted #:defer #:call-last #:call-before-flush #:call-after-closing #:read-clock
   #:turn-long-p
   #:make-lasting-timer
   ;; driving.lisp and coalescing.lisp
   #:enter-call #:leave-call #:call-served #:drive #:may-drive-p #:left-to-drive-p #:drive-on
   #:not-for-driver-p #:run-now #:run-to-send #:run-or-post
   #:make-turn #:next-turn-ns
   ;; scheme.lisp
   #:scheme #:register-scheme #:find-scheme #:scheme-name #:scheme-resolver #:scheme-open
   #:scheme-listen
   ;; target.lisp
   #:target #:parse-target #:address-name #:split-authority
   #:target-text #:target-addresses #:target-host
   #:target-server
   #:target-port #:target-authority
   ;; listener.lisp
   #:listener #:listen-on #:listener-address #:close-listener
   ;; host-lookup.lisp
   #:run-on-resolver #:lookup-host #:lookup
   ;; datagram.lisp
   #:udp-socket #:open-udp-socket #:send-datagram #:close-udp-socket #:route-p
   ;; connector.lisp
   #:connector #:connect-addresses #:candidate-failed #:end-connecting #:connect-to
   ;; back-off.lisp
   #:back-off #:make-back-off #:back-off-seconds #:back-off-timer #:next-back-off #:start-back-off
   #:stop-back-off #:forget-failures #:pauses #:make-pauses #:next-pause
   ;; background.lisp
   #:background #:make-background #:end-background #:run-in-background
   #:job #:add-job #:wake-job #:end-job #:job-ended
   #:tell-failure #:tell-recovery
   ;; future.lisp
   #:cancel #:future #:**carrier**
   #:make-future #:future-done-p #:future-values #:resolve-future #:reject-future #:await
   #:attach #:attach-for #:leave-future
   #:completions #:future-completions #:define-completions
   #:all #:any #:call-in-loop #:call-and-wait
   #:future-cancelled #:future-cancelled-text #:await-timeout #:await-timeout-future
   #:run-completions #:run-completion #:call-with-outcome #:await-settlement))
