;;;; The event loop: connections, listeners, timers, posted functions, and the threads around it. It
;;;; is useful without the rest of clgrpc: what stands first is for its users (doc/event-loop.md),
;;;; with the names of cl-async; the rest is what gRPC is built on.

(defpackage #:clgrpc.loop
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:os #:clgrpc.os))
  (:import-from #:sb-ext #:defglobal #:define-load-time-global #:compare-and-swap #:atomic-incf
                #:atomic-decf)
  (:import-from #:clgrpc.os
                #:+sighup+ #:+sigint+ #:+sigquit+ #:+sigusr1+ #:+sigusr2+ #:+sigterm+ #:+sigchld+
                #:+sigcont+ #:+sigwinch+ #:+af-inet+ #:+af-inet6+ #:+af-unspec+)
  (:export
   ;; program.lisp
   #:start-event-loop #:with-event-loop #:exit-event-loop #:add-event-loop-exit-callback #:stats
   #:signal-handler #:free-signal-handler #:clear-signal-handlers
   #:+sighup+ #:+sigint+ #:+sigquit+ #:+sigusr1+ #:+sigusr2+ #:+sigterm+ #:+sigchld+ #:+sigcont+
   #:+sigwinch+
   ;; future.lisp
   #:cancel #:future #:make-future #:future-done-p #:resolve-future #:reject-future #:await #:attach
   #:completions #:future-completions #:define-completions
   #:all #:any #:call-in-loop
   #:future-cancelled #:future-cancelled-text #:await-timeout #:await-timeout-future
   #:run-completions #:run-completion #:call-with-outcome #:await-settlement
   ;; handle.lisp
   #:ref #:unref #:abort-callback #:continue-event-loop
   ;; event.lisp
   #:delay #:with-delay #:interval #:with-interval #:remove-interval
   #:event #:make-event #:add-event #:remove-event #:free-event #:event-freed-p
   ;; watch.lisp
   #:idle #:free-idler #:idler-freed-p
   #:notifier #:make-notifier #:trigger-notifier #:free-notifier #:notifier-freed-p
   #:poll #:free-poller #:poller-freed-p
   ;; dns.lisp
   #:dns-lookup #:reverse-dns-lookup #:+af-inet+ #:+af-inet6+ #:+af-unspec+
   ;; server.lisp
   #:tcp-server #:pipe-server #:server-address #:server-port #:close-tcp-server
   #:close-socket-server #:tcp-server-closed #:tcp-connect #:pipe-connect
   ;; socket.lisp
   #:socket #:socket-data #:socket-closed-p #:socket-peer #:socket-unsent-octets
   #:write-socket-data #:close-socket #:set-socket-timeouts #:enable-socket #:disable-socket
   ;; stream.lisp
   #:async-io-stream #:stream-socket #:socket-stream
   ;; condition.lisp
   #:event-info #:event-error #:event-errcode #:event-errmsg
   #:socket-info #:tcp-socket
   #:socket-error #:socket-error-operation #:socket-error-address #:socket-error-reason
   #:socket-eof #:socket-reset #:socket-aborted #:socket-timeout #:socket-closed
   #:socket-address-in-use #:connect-error #:socket-refused #:connect-timeout #:dns-error
   #:tcp-info #:tcp-error #:tcp-eof #:tcp-reset #:tcp-timeout #:tcp-refused
   ;; guard.lisp
   #:guarding #:await-notice
   ;; image.lisp
   #:end-before-save #:forget-ending
   ;; poller.lisp
   #:poller #:make-poller #:make-epoll-poller #:make-poll-poller #:*make-poller* #:poller-tokens
   #:poller-flags #:poller-state
   #:+readable+ #:+writable+ #:+failed+ #:+ended+
   ;; transport.lisp
   #:transport #:make-transport #:transport-kind #:make-transport-kind #:transport-descriptor
   #:transport-peer #:transport-state #:transport-read #:transport-write #:transport-write-vector
   #:shut-transport-down #:+wants-read+ #:+wants-write+ #:+broken+
   #:transport-more #:transport-failure
   #:make-tcp-transport
   ;; structure.lisp
   #:event-loop #:event-loop-name #:event-loop-now #:event-loop-wheel #:event-loop-turns
   #:event-loop-reserve #:note-time
   #:event-loop-connections #:event-loop-running-p #:in-event-loop-p #:close-transport
   #:handler #:make-handler #:connection #:connection-loop #:connection-user #:connection-transport
   #:connection-peer #:connection-local #:connection-state
   ;; credentials.lisp
   #:tls-credentials #:tls-credentials-p #:tls-credentials-server-name #:tls-credentials-verify
   #:check-credentials #:reload-credentials
   ;; tls.lisp
   #:make-tls-transport #:transport-handshaking-p #:transport-security #:security #:security-p
   #:security-protocol #:security-cipher #:security-resumed-p #:security-server-name
   #:security-peer-certificate
   ;; baton.lisp
   #:take #:overtake #:lend #:resume #:hand-over #:retire #:call-user #:note-late #:with-baton
   #:call-with-baton #:holds-baton-p #:prepare-to-wait #:*event-loop*
   ;; drive.lisp
   #:enter-call #:leave-call #:call-served #:drive #:may-drive-p #:left-to-drive-p #:drive-on
   #:not-for-driver-p #:run-now #:run-to-send #:run-or-post
   ;; connection.lisp
   #:make-connection #:connection-output #:connection-output-pending-p #:connection-unsent
   #:+most-lingering+ #:flush-connection #:stop-reading #:start-reading #:close-connection
   ;; loop.lisp
   #:make-event-loop #:run-event-loop #:launch-event-loop #:stop-event-loop #:join-event-loop
   #:post #:run-posted #:defer #:call-last #:read-clock #:on-signal
   ;; listener.lisp
   #:listener #:listen-on #:listener-address #:close-listener
   ;; connector.lisp
   #:connect-to
   ;; target.lisp
   #:target #:*other-schemes* #:parse-target #:target-text #:target-host #:target-authority
   ;; reserve.lisp
   #:reserve #:make-reserve #:run-on-reserve #:leave-reserve #:share-open-p #:charge-thread
   #:close-reserve #:reserve-root
   #:reserve-thread-count
   ;; share.lisp
   #:share #:make-share #:share-running))
