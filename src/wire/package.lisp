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
                  #:observer #:observe #:parts #:call-parts #:ensure-parts #:inlet #:call-inlet
                  #:ensure-inlet #:inlet-queued-octets #:outlet #:call-outlet #:call-path
                  #:ensure-outlet #:reactions #:call-reactions #:ensure-reactions
                  #:reactions-on-message #:reactions-due #:reactions-scheduled #:reactions-timers
                  #:+arrival-octets+ #:+long-octets+ #:abort-as #:abort-with #:arrival
                  #:arrival-end #:arrival-item #:arrival-size #:call #:call-deadline
                  #:call-outcome #:call-peer #:call-rpc-method #:call-stage
                  #:call-status #:call-unsent-octets #:call-with-room #:callbacks-p
                  #:charged-arrival #:check-compression #:client-p #:define-shared-operations
                  #:due-callback #:incoming-type
                  #:may-send-p #:message-due-p #:notify #:operate #:outcome #:outcome-stage
                  #:overdue-p
                  #:outcome-unsent #:outgoing #:outgoing-type #:pop-incoming #:push-arrival
                  #:push-incoming #:room-p #:sends-one-p #:uncharge #:verdict-error
                  #:wait-for-call #:with-user-code)
  (:export
   #:link-observer #:shorten-deadline #:send-limit
   #:call-observer #:note-sent #:note-first-sent #:count-from-none #:encoded-length #:call-replay
   #:wire-outlet #:wire-parts
   #:+prefix-octets+ #:tell-writable #:stuck-p #:mark-ns #:list-stages #:uncompressed
   #:parcel-plain #:**wire-operations** #:call-wire-outlet
   #:ensure-wire-outlet #:wire-outlet-begun #:wire-outlet-spoken
   #:+answer+ #:+due+ #:+end+ #:+headers+ #:+parcel-octets+ #:+unattended+
   #:abandon-link #:accepted-encodings #:accepted-encodings-field
   #:answers-left #:close-link #:close-sending #:compresses-p
   #:compression-incoming #:compression-of #:compression-outgoing #:deadline-passed
   #:decode-status-message #:deliver-streamed #:encode-encodings
   #:encode-message #:encode-metadata #:encode-status-message #:encode-unless-short #:encoding
   #:endpoint #:ensure-compression #:ensure-headers #:error-code-status #:expel-link
   #:find-encoding #:half-close-streamed
   #:begin-on-link #:hold #:http-status-status #:keep-fields #:keep-octets #:link
   #:link-due #:link-ended
   #:link-http2 #:link-http2-closed #:limit-silence
   #:link-loop #:link-output
   #:link-peer #:link-security
   #:link-socket #:link-number #:link-stream-ns #:link-traffic
   #:list-custom-fields
   #:mark-call #:marked-p #:metadata-octets #:open-link #:parcel
   #:parcel-end #:parcel-octets #:parcel-taken #:parse-encoding #:parse-incoming #:queue-incoming
   #:quoted-octets #:read-enough-p #:receive-data #:release-call
   #:charge-call #:pressed-p #:link-account #:seal-batch #:inflate-message
   #:sound-metadata-p #:start-deadline
   #:status-number #:stop-timers #:to-keep-p #:total-held-limit #:measure-link
   #:unknown-encoding-text #:unmarked #:unparsable-condition #:wake-callbacks #:wire-call
   #:wire-call-born-ns #:wire-call-headers-sent #:wire-call-link
   #:wire-call-loop #:wire-call-options #:wire-call-partial
   #:wire-call-send-closed #:wire-call-stream #:wire-decode #:wire-now
   #:wire-schedule #:in-turn-p #:posted-octets #:post-in-turn #:write-encoded #:write-message
   #:make-dialect #:dialect-drain #:speak-http2 #:end-link
   #:link-silent-p #:lose-link #:give-window #:packed
   ;; for protocols beside gRPC
   #:parcel-p #:unpacked #:inflation-outcome-p #:deliver-alone #:receive-messages
   #:receive-limit #:seal-arrivals
   #:note-written #:encode-text #:sendable-p #:refuse-to-send #:wire-taken
   #:queue-limit #:enough-taken-p #:encoded-octets #:end-undecodable))
