;;;; cl-async's verbs on the event loop, for its users (doc/event-loop.md): timers, sockets,
;;;; servers, streams, signals, look-ups and all else that a program on a loop needs. The loop
;;;; itself, its futures and its conditions come from clgrpc.loop and are exported here, too, so
;;;; such a program needs no other package. No other part of clgrpc uses this package.

(defpackage #:clgrpc.async
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:os #:clgrpc.os))
  (:import-from #:sb-ext #:define-load-time-global #:compare-and-swap)
  (:import-from #:clgrpc.os
                #:+sighup+ #:+sigint+ #:+sigquit+ #:+sigusr1+ #:+sigusr2+ #:+sigterm+ #:+sigchld+
                #:+sigcont+ #:+sigwinch+ #:+af-inet+ #:+af-inet6+ #:+af-unspec+)
  (:import-from #:clgrpc.loop
                #:event-loop #:*event-loop* #:event-loop-name #:event-loop-running-p
                #:in-event-loop-p #:make-event-loop #:run-event-loop #:launch-event-loop
                #:stop-event-loop #:join-event-loop #:post
                #:poller #:make-epoll-poller #:make-poll-poller
                #:cancel #:future #:make-future #:future-done-p #:resolve-future #:reject-future
                #:await #:attach #:all #:any #:call-in-loop
                #:future-cancelled #:future-cancelled-text #:await-timeout #:await-timeout-future
                #:socket-error #:socket-error-operation #:socket-error-address
                #:socket-error-reason
                #:socket-reset #:socket-aborted #:socket-timeout #:socket-address-in-use
                #:connect-error #:socket-refused #:connect-timeout #:dns-error
                #:tls-credentials #:reload-credentials)
  (:export
   ;; program.lisp
   #:start-event-loop #:with-event-loop #:exit-event-loop #:add-event-loop-exit-callback #:stats
   #:signal-handler #:free-signal-handler #:clear-signal-handlers
   #:+sighup+ #:+sigint+ #:+sigquit+ #:+sigusr1+ #:+sigusr2+ #:+sigterm+ #:+sigchld+ #:+sigcont+
   #:+sigwinch+
   ;; handle.lisp
   #:ref #:unref #:abort-callback #:continue-event-loop
   ;; event.lisp
   #:delay #:with-delay #:interval #:with-interval #:remove-interval
   #:event #:make-event #:add-event #:remove-event #:free-event #:event-freed-p
   ;; user-watch.lisp
   #:idle #:free-idler #:idler-freed-p
   #:notifier #:make-notifier #:trigger-notifier #:free-notifier #:notifier-freed-p
   #:poll #:free-poller #:poller-freed-p
   ;; dns.lisp
   #:dns-lookup #:reverse-dns-lookup #:+af-inet+ #:+af-inet6+ #:+af-unspec+
   ;; tcp-server.lisp
   #:tcp-server #:pipe-server #:server-address #:server-port #:close-tcp-server
   #:close-socket-server #:tcp-server-closed #:tcp-connect #:pipe-connect
   ;; user-socket.lisp
   #:socket #:socket-data #:socket-closed-p #:socket-peer #:socket-unsent-octets
   #:write-socket-data #:close-socket #:set-socket-timeouts #:enable-socket #:disable-socket
   ;; socket-stream.lisp
   #:async-io-stream #:stream-socket #:socket-stream
   ;; socket-condition.lisp
   #:event-info #:event-error #:event-errcode #:event-errmsg #:socket-info #:tcp-socket
   #:socket-eof #:socket-closed
   #:tcp-info #:tcp-error #:tcp-eof #:tcp-reset #:tcp-timeout #:tcp-refused
   ;; of clgrpc.loop: conditions
   #:socket-error #:socket-error-operation #:socket-error-address #:socket-error-reason
   #:socket-reset #:socket-aborted #:socket-timeout #:socket-address-in-use
   #:connect-error #:socket-refused #:connect-timeout #:dns-error
   ;; futures
   #:cancel #:future #:make-future #:future-done-p #:resolve-future #:reject-future #:await #:attach
   #:all #:any #:call-in-loop
   #:future-cancelled #:future-cancelled-text #:await-timeout #:await-timeout-future
   ;; loops
   #:event-loop #:*event-loop* #:event-loop-name #:event-loop-running-p #:in-event-loop-p
   #:make-event-loop #:run-event-loop #:launch-event-loop #:stop-event-loop #:join-event-loop #:post
   #:poller #:make-epoll-poller #:make-poll-poller
   ;; TLS
   #:tls-credentials #:reload-credentials))
