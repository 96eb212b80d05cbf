;;;; The options table: the keyword arguments of servers, channels and tracing, and the structures
;;;; of their values. Code that reads an option uses this package as well as clgrpc.base.

(defpackage #:clgrpc.option
  (:use #:cl #:clgrpc.base)
  (:import-from #:sb-ext #:defglobal)
  (:export
   #:options #:server-options #:channel-options #:make-options #:make-server-options
   #:make-channel-options #:make-inproc-options #:make-tracing-options #:tracing-options
   #:copy-options #:option-values #:options-max-span-attributes #:options-max-span-events
   #:options-max-span-links #:options-max-attribute-characters #:options-max-queued-spans
   #:options-batch-spans
   #:option-table #:option-default #:find-option-row #:takes-option-p
   #:option-row-name #:option-row-scope #:option-row-only
   #:option-row-default #:option-row-minimum #:option-row-maximum #:option-row-unit
   #:option-row-reason #:check-option #:check-authority #:total-held-limit
   ;; the values of options
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
   #:options-decompression-percent
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
   #:options-max-addresses #:options-max-subchannels))
