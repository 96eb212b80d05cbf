;;;; The event loop: connections, listeners, timers, posted functions, and the threads around it. It
;;;; is useful without the rest of clgrpc.

(defpackage #:clgrpc.loop
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:os #:clgrpc.os))
  (:import-from #:sb-ext #:defglobal #:compare-and-swap #:atomic-incf #:atomic-decf)
  (:export
   ;; condition.lisp
   #:socket-error #:socket-error-operation #:socket-error-address #:socket-error-reason
   #:connect-error
   ;; guard.lisp
   #:await-notice
   ;; image.lisp
   #:end-before-save #:forget-ending
   ;; poller.lisp
   #:poller #:make-poller #:make-epoll-poller #:poller-tokens #:poller-flags #:poller-state
   #:+readable+ #:+writable+ #:+failed+ #:+ended+
   ;; transport.lisp
   #:transport #:make-transport #:transport-kind #:make-transport-kind #:transport-descriptor
   #:transport-peer #:transport-state #:transport-read #:transport-write #:transport-write-vector
   #:shut-transport-down #:+wants-read+ #:+wants-write+ #:+broken+
   #:transport-more #:transport-failure
   #:make-tcp-transport
   ;; structure.lisp
   #:event-loop #:event-loop-name #:event-loop-now #:event-loop-wheel #:event-loop-turns
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
   #:take #:overtake #:lend #:resume #:hand-over #:retire #:call-user #:with-baton
   #:call-with-baton #:holds-baton-p #:prepare-to-wait #:*loop*
   ;; drive.lisp
   #:enter-call #:leave-call #:call-served #:drive #:not-for-driver-p #:run-now #:run-or-post
   ;; connection.lisp
   #:make-connection #:connection-output #:connection-output-pending-p #:connection-unsent
   #:flush-connection #:stop-reading #:start-reading #:close-connection
   ;; loop.lisp
   #:make-event-loop #:run-event-loop #:start-event-loop #:stop-event-loop #:join-event-loop
   #:post #:run-posted #:defer #:call-last #:on-signal
   ;; listener.lisp
   #:listener #:listen-on #:listener-address #:close-listener
   ;; connector.lisp
   #:connect-to
   ;; target.lisp
   #:target #:parse-target #:target-text #:target-host #:target-authority
   ;; reserve.lisp
   #:reserve #:make-reserve #:run-on-reserve #:close-reserve #:reserve-thread-count))
