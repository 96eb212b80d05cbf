;;;; The vocabulary that every folder above uses. `clgrpc.base` is the one package besides `cl` that
;;;; the others `:use`; it knows nothing of networks, protocols or threads' lives.

(defpackage #:clgrpc.base
  (:use #:cl)
  (:import-from #:clgrpc.kernel #:define-kernel #:inst #:memory #:repeat-constant #:inst512
                #:instx #:masked #:+kernels-p+ #:avx2-p)
  (:import-from #:sb-ext #:defglobal #:compare-and-swap #:atomic-incf #:atomic-decf)
  (:export
   ;; policy.lisp
   #:define-hot #:define-leaf #:define-flags #:leaves #:document-functions
   ;; interrupt.lisp
   #:uninterrupted #:with-undoing
   ;; version.lisp
   #:**version**
   ;; octets.lisp
   #:octet #:octets #:index #:make-octets #:octets-of #:copy-octets #:subseq-octets
   #:shorten-octets #:octets-equal #:with-sap #:%copy-memory #:prefetch-behind
   #:u16be #:u24be #:u32be #:u64be #:u32le #:u64le
   #:buffer #:make-buffer #:buffer-octets #:buffer-start #:buffer-end #:buffer-fill
   #:buffer-room #:ensure-buffer-room #:append-octets #:append-octet #:clear-buffer
   ;; store.lisp
   #:borrow-octets #:give-octets-back #:stored-octets #:clear-store
   ;; collector.lisp
   #:tune-collector #:memory-to-give-p #:give-memory-back #:full-collection-due-p
   #:collect-everything #:make-quiet-period #:give-back-if-quiet
   ;; condition.lisp
   #:clgrpc-error #:misuse #:misuse-text #:function-failed #:function-failed-cause
   #:limit-exceeded #:limit-exceeded-option #:limit-exceeded-limit #:limit-exceeded-actual
   ;; option.lisp
   #:options #:server-options #:channel-options #:make-options #:make-server-options
   #:make-channel-options #:make-inproc-options #:make-tracing-options #:tracing-options
   #:copy-options #:option-values #:options-max-span-attributes #:options-max-span-events
   #:options-max-span-links #:options-max-attribute-characters #:options-max-queued-spans
   #:options-batch-spans
   #:option-table #:option-default #:find-option-row #:takes-option-p
   #:option-row-name #:option-row-scope #:option-row-only
   #:option-row-default #:option-row-minimum #:option-row-maximum #:option-row-unit
   #:option-row-reason #:check-option
   #:options-max-concurrent-streams #:options-max-header-list-octets #:options-header-table-octets
   #:options-max-frame-octets #:options-max-receive-octets #:options-max-send-octets
   #:options-max-message-depth #:options-max-decoded-octets
   #:options-stream-window-octets #:options-connection-window-octets
   #:options-compress-minimum-octets #:options-compression-level #:options-send-budget-octets
   #:options-max-held-octets #:options-max-unsent-octets #:options-max-queued-control-frames
   #:options-max-reset-burst
   #:options-max-resets-per-second #:options-max-idle-frame-burst
   #:options-max-idle-frames-per-second #:options-keepalive-seconds
   #:options-keepalive-timeout-seconds #:options-keepalive-without-calls
   #:options-min-keepalive-seconds
   #:options-max-connection-idle-seconds #:options-max-connection-age-seconds
   #:options-max-connection-age-grace-seconds #:options-min-ping-interval-seconds
   #:options-ping-without-calls #:options-max-ping-strikes
   #:options-max-header-block-octets
   #:options-settings-timeout-seconds #:options-preface-timeout-seconds
   #:options-max-total-held-octets #:options-send-timeout-seconds #:options-frame-timeout-seconds
   #:options-max-header-fields #:options-max-connections-per-peer
   #:options-max-handshakes #:options-max-calls #:options-max-running-handlers
   #:options-max-connections #:options-max-fallback-body-octets
   #:options-http1 #:options-max-http1-head-octets #:options-max-http1-target-octets
   #:options-max-http1-fields #:options-max-http1-requests #:options-http1-head-timeout-seconds
   #:options-http1-body-timeout-seconds #:options-http1-idle-seconds
   #:options-http1-send-timeout-seconds #:options-stream-head-seconds
   #:options-backlog #:options-reuse-port #:options-unix-socket-mode #:options-reserve-threads
   #:options-reserve-queue #:options-spare-descriptors #:options-raise-descriptor-limit
   #:options-max-queued-octets #:options-reserve-idle-seconds
   #:options-reserve-wait-seconds #:options-drain-seconds #:options-room-wait-seconds
   #:options-health-checking #:options-ring-size-limit
   #:options-connect-timeout-seconds #:options-retry #:options-max-attempts
   #:options-replay-octets #:options-total-replay-octets
   #:options-resend-octets #:options-resend-messages
   #:options-backoff-initial-seconds #:options-backoff-factor #:options-backoff-jitter
   #:options-backoff-maximum-seconds #:options-max-client-loops
   #:options-connection-attempt-delay-seconds
   #:options-idle-seconds #:options-max-connections-per-subchannel
   #:options-connections-per-subchannel #:options-share-connections
   #:options-max-concurrent-requests
   #:options-breaker-max-calls #:options-breaker-max-waiting #:options-breaker-failure-percent
   #:options-breaker-min-calls #:options-breaker-window-seconds #:options-breaker-open-seconds
   #:options-dns-timeout-seconds #:options-resolve-interval-seconds #:options-dns-service-config
   #:options-max-addresses #:options-max-subchannels
   ;; text/split.lisp
   #:split-list
   ;; seed.lisp
   #:hash-seed #:+golden-step+ #:+signed-golden-step+ #:mixed-word
   ;; heap.lisp
   #:heap-full #:heap-condition-p #:heap-used
   #:heap-size #:heap-spare #:collection-epoch #:search-due-p
   #:search-for-garbage
   #:promise-octets #:settle-octets #:collect-for-room #:known-heap-p
   ;; raw.lisp
   #:make-raw-vector
   ;; copy-kernel.lisp
   #:%copy-512
   ;; utf8.lisp
   #:invalid-utf8 #:invalid-utf8-position #:utf8-length #:encode-utf8 #:decode-utf8
   #:string-octets #:octets-string #:ascii-octets #:octets-ascii #:ascii-string
   #:%ascii-string #:decode-wide-utf8 #:encode-wide-utf8
   #:%copy-base-string #:%narrow-string #:%wide-utf8-length #:%copy-plain #:wide-string
   ;; base64.lisp
   #:encode-base64 #:decode-base64 #:base64-p #:invalid-base64 #:invalid-base64-position
   ;; clock.lisp
   #:clock #:nanoseconds #:monotonic-ns #:suspended-ns #:thread-time-ns
   #:process-time-ns #:real-time-ns
   #:+ns-per-second+ #:seconds-ns #:ns-seconds #:time-after
   ;; number.lisp
   #:finite-p #:clamp
   ;; timer.lisp
   #:timer #:make-timer #:timer-wheel #:make-timer-wheel #:timer-pending-p #:timer-due-ns
   #:schedule-timer #:cancel-timer #:advance-wheel #:next-due-ns #:wheel-count
   #:timers-due-p #:timer-wheel-earliest-ns
   ;; ranking.lisp
   #:ring #:make-ring #:isolate-ring #:ring-first #:ring-last #:ring-list #:enter-ring
   #:quit-ring
   #:owner-usage #:make-owner-usage #:owner-usage-count #:owner-usage-owner
   #:ranking #:make-ranking #:ranking-total #:change-owner-usage #:largest-user
   ;; account.lisp
   #:account #:make-account #:**process-account** #:account-whole #:account-sum
   #:account-most #:account-on-excess #:charge-own #:charge-account #:discharge-account
   #:close-account #:account-closed-p #:note-collected
   ;; replay.lisp
   #:octet-budget #:make-octet-budget #:octet-budget-held
   #:replay #:make-replay #:replay-messages #:keep-message #:release-replay
   ;; queue.lisp
   #:inbox #:make-inbox #:push-inbox #:drain-inbox #:inbox-empty-p #:doze-inbox #:rouse-inbox
   #:inbox-asleep-p
   #:confirm-wake #:close-inbox #:no-waker-left-p
   ;; fifo.lisp
   #:fifo #:make-fifo #:fifo-items #:enqueue #:enqueue-first #:enqueue-in-order #:dequeue
   #:remove-from-fifo #:clear-fifo
   ;; suggestion.lisp
   #:suggested-name
   ;; visible.lisp
   #:printable-text #:write-printable #:unsafe-char-p #:bounded-text #:with-bounded-text
   ;; chronicle.lisp
   #:new-number #:channel-trace #:make-channel-trace #:channel-trace-number #:channel-trace-born-ns
   #:channel-trace-count #:note-channel-event #:channel-events
   #:channel-event-text #:channel-event-severity #:channel-event-ns #:channel-event-child
   #:channel-event-child-name
   #:make-registry #:enter-registry #:quit-registry #:registered
   ;; log.lisp, trace.lisp, journal.lisp
   #:*log-function* #:add-log-listener #:remove-log-listener #:log-event
   #:**log-context** #:log-condition
   #:tracers #:tracer-table #:tracer #:tracer-name #:tracer-text #:tracer-aliases #:tracer-meaning
   #:tracing-p #:trace-event
   #:log-writer #:log-value-text #:log-errors #:log-in-background #:flush-log #:read-environment
   #:open-journal #:add-to-journal #:call-when-written
   ;; decimal.lisp
   #:digits-double #:digits-single #:rational-double #:rational-single
   #:decimal-digits #:float-decimal
   ;; json.lisp
   #:parse-json #:write-json
   #:json-error #:json-error-line #:json-error-column #:json-error-text
   #:json-reader #:make-json-reader #:json-reader-octets #:json-reader-position
   #:json-reader-depth
   #:next-json #:skip-json-space #:skip-json-value #:read-json-string
   #:read-json-word #:scan-json-number #:do-json-members #:do-json-elements
   #:expect-json-end #:line-and-column
   #:append-ascii #:append-json-string #:append-json-integer
   #:buffer-string))
