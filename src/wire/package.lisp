;;;; What both ends of a call share over HTTP: links, calls on streams, framing, compression.

(defpackage #:clgrpc.wire
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:local-nicknames (#:os #:clgrpc.os) (#:loop #:clgrpc.loop) (#:hpack #:clgrpc.hpack)
                    (#:http2 #:clgrpc.http2) (#:protobuf #:clgrpc.protobuf))
  (:import-from #:sb-ext #:defglobal #:define-load-time-global)
  (:import-from #:clgrpc.status
                  #:binary-name-p #:deadline #:deadline-in #:earlier-deadline #:make-rpc-error)
  (:import-from #:clgrpc.method
                  #:rpc-method-kind)
  (:import-from #:clgrpc.rpc
                  #:observer #:observe #:parts #:call-intent #:call-parts #:ensure-parts #:inlet
                  #:call-inlet #:intent-receive-limit #:intent-send-limit
                  #:ensure-inlet #:inlet-queued-octets #:outlet #:call-outlet #:call-path
                  #:ensure-outlet #:reactions #:call-reactions #:ensure-reactions
                  #:reactions-on-message #:reactions-due #:reactions-scheduled #:reactions-timers
                  #:+arrival-octets+ #:+long-octets+ #:abort-as #:abort-with #:arrival
                  #:arrival-end #:arrival-item #:arrival-size #:call #:call-condition
                  #:call-deadline
                  #:call-outcome #:call-peer #:call-rpc-method #:call-stage
                  #:call-status #:call-unsent-octets #:call-with-room #:callbacks-p
                  #:charged-arrival #:check-compression #:client-p #:define-shared-operations
                  #:compressed-octets #:due-callback #:encoding #:encoding-field #:encoding-name
                  #:encoding-names #:encoding-of-name #:encoding-text #:encoding-open-p
                  #:encodings #:expand-octets #:incoming-type
                  #:may-send-p #:message-due-p #:notify #:operate #:outcome #:outcome-stage
                  #:overdue-p
                  #:outcome-unsent #:outgoing #:outgoing-type #:pop-incoming #:push-arrival
                  #:push-incoming #:refuse-to-wait #:room-p #:sends-one-p #:uncharge #:verdict-error
                  #:wait-for-call #:with-user-code)
  (:export
   #:**wire-operations** #:+parcel-octets+ #:+prefix-octets+ #:accepted-encodings #:begin-on-link
   #:begin-sending #:charge-call #:close-link #:count-from-none #:decode-status-message
   #:decode-packed #:deliver-alone #:deliver-streamed #:dialect-drain
   #:encode-encodings #:encode-message #:encode-metadata #:encode-status-message #:encode-text
   #:encode-unless-short #:encoded-length #:encoded-octets #:encoding #:encodings-octets #:end-link
   #:end-undecodable #:endpoint #:ensure-headers #:error-code-status #:find-encoding #:give-window
   #:half-close-streamed #:hold #:http-status-status #:incoming-encoding #:inflate-message
   #:inflation-outcome-p #:keep-fields #:keep-octets #:limit-silence #:link #:link-account
   #:link-event #:describe-link #:link-peer #:link-security #:link-silent-p #:link-sink
   #:list-custom-fields #:list-stages #:make-dialect #:mark-call #:mark-ns #:marked-p
   #:measure-link #:metadata-octets #:make-decompression-budget #:budget-used-p
   #:note-sent #:open-link
   #:outgoing-encoding #:packed #:parcel #:parcel-taken #:parse-encoding #:parse-incoming
   #:post-in-turn #:posted-octets #:pressed-p #:queue-full-p #:queue-incoming #:quoted-octets
   #:read-enough-p #:receive-data #:receive-limit #:receive-messages #:release-call #:seal-arrivals
   #:seal-batch #:send-in-room #:send-limit #:sending-begun-p #:shorten-deadline #:sound-metadata-p
   #:speak-http2 #:start-deadline #:status-number #:stop-timers #:stuck-p #:tell-writable
   #:to-keep-p #:total-held-limit #:uncompressed #:reset-marks #:unparsable-condition
   #:wake-callbacks #:wire-call #:wire-call-loop #:wire-call-options #:wire-call-partial
   #:wire-outlet #:wire-parts #:wire-taken #:write-encoded #:write-message))
