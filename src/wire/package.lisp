;;;; The part of the HTTP transport that both ends of a call share: links, calls on streams,
;;;; framing, compression.

(defpackage #:clgrpc.wire
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:local-nicknames (#:os #:clgrpc.os) (#:loop #:clgrpc.loop) (#:hpack #:clgrpc.hpack)
                    (#:http2 #:clgrpc.http2) (#:protobuf #:clgrpc.protobuf))
  (:import-from #:sb-ext #:defglobal #:define-load-time-global)
  (:import-from #:clgrpc.status
                  #:deadline #:deadline-in #:failure-p #:make-rpc-error)
  (:import-from #:clgrpc.method #:rpc-method-kind)
  (:import-from #:clgrpc.encoding
                #:codec-field #:codec-name #:message-codec #:compressed-octets #:encoding
                #:encoding-name #:encoding-open-p #:encoding-text #:encodings #:expand-octets)
  (:import-from #:clgrpc.rpc
                #:abort-as #:add-to-batch #:answers-once-p #:+batch-octets+ #:call
                #:call-deadline #:call-peer #:call-rpc-method #:call-status #:call-with-room
                #:client-p #:define-own-part #:define-transport-end #:due-callback
                #:incoming-type #:+long-octets+ #:may-send-p #:message-due-p #:notify #:observe
                #:observer #:operate #:outgoing #:outgoing-type #:own-limits #:pop-incoming
                #:push-incoming #:queue-batch #:room-p #:schedule-callbacks #:takes-one-p
                #:uncharge #:verdict-error #:wait-for-call #:watch-room #:with-user-code)
  (:export
   #:accepted-encodings #:byte-buffer #:+byte-buffer-octets+ #:byte-buffer-taken #:call-by-turns
   #:check-link #:close-link #:codec-content-type #:connection-protocol #:decode-item
   #:deliver-alone #:deliver-streamed #:describe-link #:encode-encodings #:encode-message
   #:encode-metadata #:encode-octets #:encoded-length #:encoded-octets
   #:end-link #:endpoint #:ensure-headers #:half-close-streamed #:hold #:incoming-encoding
   #:inflate-message #:inflation-failure #:late-callback-p #:link #:link-event #:link-sink
   #:list-fields #:list-stages #:mark-call #:marked-p #:measure-link #:metadata-octets
   #:note-callback-charge #:note-end #:note-sent #:open-link #:outgoing-encoding
   #:parse-encoding #:post-in-turn #:posted-octets
   #:+prefix-octets+ #:pressed-p #:receive-data #:receive-messages #:release-call
   #:reset-marks #:send-in-room #:send-limit #:sending-begun-p #:sound-metadata-p #:speak-http2
   #:start-deadline #:take-single #:tell-writable #:wake-callbacks #:wire-call
   #:wire-call-loop #:wire-call-options #:wire-call-partial #:**wire-operations** #:wire-outbound
   #:wire-parts #:write-encoded #:write-message))
