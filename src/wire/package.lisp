;;;; The code of the HTTP transport that both ends of a call share: links, calls on streams,
;;;; framing, compression.

(defpackage #:clgrpc.wire
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:local-nicknames (#:os #:clgrpc.os) (#:loop #:clgrpc.loop) (#:hpack #:clgrpc.hpack)
                    (#:http2 #:clgrpc.http2) (#:protobuf #:clgrpc.protobuf))
  (:import-from #:sb-ext #:defglobal #:define-load-time-global)
  (:import-from #:clgrpc.status
                  #:deadline #:deadline-in #:make-rpc-error)
  (:import-from #:clgrpc.method
                  #:codec-field #:codec-name #:message-codec #:rpc-method-kind)
  (:import-from #:clgrpc.rpc
                  #:abort-as #:add-to-batch #:answers-once-p #:+arrival-octets+ #:call
                  #:call-condition #:call-deadline #:call-path #:call-peer #:call-reactions
                  #:call-rpc-method #:call-status #:call-with-room #:callbacks-p
                  #:check-compression #:client-p #:compressed-octets #:define-own-part
                  #:define-transport-end #:due-callback #:encoding
                  #:encoding-name #:encoding-open-p #:encoding-text #:encodings
                  #:ensure-reactions #:expand-octets #:incoming-type #:+long-octets+ #:may-send-p
                  #:message-due-p #:notify #:observe #:observer #:operate #:outgoing
                  #:outgoing-type #:overdue-p #:own-limits #:pop-incoming #:queue-batch
                  #:push-incoming #:reactions #:reactions-due #:reactions-on-message
                  #:reactions-scheduled #:reactions-timers #:refuse-to-wait #:room-p
                  #:takes-one-p #:uncharge #:verdict-error #:wait-for-call #:watch-room
                  #:with-user-code)
  (:export
   #:accepted-encodings #:begin-on-link #:begin-sending #:budget-used-p #:close-link
   #:codec-content-type #:decode-packed #:deliver-alone
   #:deliver-streamed #:describe-link #:dialect #:encode-encodings #:encode-message
   #:encode-metadata #:encode-status-message #:encode-text #:encode-unless-short #:encoded-length
   #:encoded-octets #:encoding #:end-link #:end-undecodable #:endpoint
   #:ensure-headers #:error-code-status #:find-encoding #:give-window #:half-close-streamed #:hold
   #:http-status-status #:incoming-encoding #:inflate-message #:inflation-failure #:keep-octets
   #:limit-silence #:link #:link-account #:link-event #:link-fields #:link-peer #:link-security
   #:link-sink #:list-stages
   #:make-decompression-budget #:mark-call #:mark-ns #:marked-p #:measure-link #:metadata-octets
   #:note-sent #:open-link #:outgoing-encoding #:packed #:parcel #:+parcel-octets+ #:parcel-taken
   #:parse-encoding #:parse-incoming #:post-in-turn #:posted-octets #:+prefix-octets+ #:pressed-p
   #:queue-full-p #:queue-incoming #:quoted-octets #:read-enough-p #:receive-data
   #:receive-messages #:release-call #:reset-marks #:seal-arrivals #:seal-batch #:send-in-room
   #:sending-begun-p #:shorten-deadline #:sound-metadata-p #:speak-http2 #:start-deadline
   #:stop-timers #:stuck-p #:tell-writable #:to-keep-p #:total-held-limit #:trailers-status
   #:uncompressed #:unparsable-condition #:wake-callbacks #:wire-call #:wire-call-loop
   #:wire-call-options #:wire-call-partial #:**wire-operations** #:wire-outlet #:wire-parts
   #:wire-taken #:write-encoded #:write-message))
