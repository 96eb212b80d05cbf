;;;; The parts of a call on the wire: those of rpc/part.lisp, extended by the octets of an
;;;; incomplete message from the peer, and by the messages that wait for a stream.

(in-package #:clgrpc.wire)

(define-own-part inbound (wire call)
  "The incoming messages of a stream of HTTP/2."
  (arrived 0 :type index)               ; the number of messages of the stream that have come
  (partial nil :type (or null partial)) ; used by the loop: the incomplete message
  (held 0 :type index)                  ; charged to the link for a part of a message or a request
  ;; octets of window that are withheld because too many octets are queued; the loop writes this
  ;; slot, the receiver reads it
  (withheld 0 :type index))

(define-own-part outbound (wire call)
  "The outgoing messages of a stream of HTTP/2."
  (begun nil :type boolean)             ; the user has sent something, if only headers
  (over nil :type boolean)              ; the user has said that no more messages will be sent
  (spoken 0 :type index)                ; how many messages the user has sent
  (outbox-octets 0 :type index))        ; octets of messages that wait for a stream

(define-own-part parts (wire call)
  "The parts of a call on a stream of HTTP/2."
  (timer nil :type (or null timer))     ; the deadline's
  (compression nil :type (or null compression)) ; the compression in both directions
  (replay nil :type (or null replay)))  ; the sent messages that are kept

(define-own-part callbacks (wire call)
  "The callbacks of a call on a stream of HTTP/2."
  ;; true if the callbacks that are due will run. T: soon; :GRANTED: soon, on a thread that was held
  ;; for them; :RUNNING, :CHARGED, :RETURNED: a callback runs or has just run, see
  ;; NOTE-CALLBACK-CHARGE; a ring: the call's place among the calls that wait for a thread
  (scheduled nil :type (or symbol ring))
  (timers '() :type list)               ; the timers of AFTER
  (due '() :type list))                 ; functions of AFTER that are due; used by the loop

(declaim (sb-ext:freeze-type wire-inbound wire-callbacks))

(define-hot (keeps-sent-p :inline t) ((call call)) boolean
  "True if CALL keeps the messages that it sends, for further attempts; such messages are encoded
before they are sent."
  (let ((parts (call-wire-parts call)))
    (and parts (wire-parts-replay parts) t)))
