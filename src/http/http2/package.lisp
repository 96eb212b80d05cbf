;;;; HTTP/2 (RFC 9113) as a function of octets and time, for clients and servers. In: the peer's
;;;; octets, calls of the functions below, the present time. Out: octets in a buffer, and calls of a
;;;; SINK, a structure of functions. No code here does I/O, reads a clock or takes a lock.
;;;;
;;;; One thread at a time may be inside a connection; sink functions run inside it and may call back
;;;; into the same connection (but not RECEIVE-OCTETS).

(defpackage #:clgrpc.http2
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:local-nicknames (#:hpack #:clgrpc.hpack))
  (:shadow #:stream)
  (:export
   ;; error-code.lisp
   #:error-code #:error-code-name
   #:+no-error+ #:+protocol-error+ #:+internal-error+
   #:+refused-stream+ #:+cancel+
   #:+enhance-your-calm+ #:+inadequate-security+
   ;; connection-structure.lisp
   #:sink #:make-sink
   #:pool #:make-pool
   #:counters #:counters-queued-octets
   #:counters-streams-opened #:counters-streams-failed
   #:stream #:stream-id #:stream-connection #:stream-user #:stream-octets-in
   #:stream-octets-out #:stream-charge #:stream-queued-octets
   #:send-continue #:stream-sendable-p #:stream-receivable-p #:stream-open-p
   #:connection #:connection-role #:connection-user
   #:connection-counters #:connection-stream-count
   #:connection-closed-p #:connection-ready-p #:connection-error-text
   #:connection-last-receive-ns #:connection-peer-max-streams #:connection-peer-max-header-list
   #:connection-goaway-received #:connection-send-window #:connection-receive-window
   ;; header.lisp
   #:field-kind-of
   #:+kind-method+ #:+kind-path+
   #:+kind-other+ #:+kind-content-type+
   #:+kind-user-agent+
   #:+kind-grpc-timeout+ #:+kind-grpc-encoding+ #:+kind-grpc-accept-encoding+
   #:+kind-grpc-previous-rpc-attempts+
   ;; rate-credit.lisp
   #:note-call-served
   ;; output.lisp
   #:send-ping #:give-output-back
   ;; stream-table.lisp
   #:map-streams #:release-stream
   ;; stream-end.lisp
   #:close-connection
   ;; reset.lisp
   #:reset-stream
   ;; flow.lisp
   #:consume-data #:credit-connection
   ;; writer.lisp
   #:connection-writable-p #:begin-headers #:end-headers #:reserve-data #:begin-data #:end-data
   ;; data-queue.lisp
   #:send-data #:send-trailers-later #:stream-queue-empty-p #:write-queued
   ;; reader.lisp
   #:receive-octets
   ;; inspect.lisp
   #:describe-frame #:skip-preface
   ;; connection.lisp
   #:make-connection #:start-connection #:open-stream #:available-streams #:send-goaway
   #:receive-eof #:advance-time #:shrink-connection #:kept-octets
   #:connection-block-since-ns #:connection-stop-reading-p))
