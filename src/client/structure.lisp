;;;; The structures that subchannels and calls, which know each other, are made of.

(in-package #:clgrpc.client)

(defstruct (subchannel (:include wire:endpoint (clock (wire:make-wait-clock))
                                      (replays (wire:make-ledger))) (:copier nil))
  "What a channel is on its loop. It does not know the channel, so that the collector finds one that
its user has dropped (dropped.lisp)."
  (name "" :type string)                ; the channel's target, as it was given
  (client-loop nil :type (or null client-loop) :read-only t) ; whose LOOP it is on
  (open t :type boolean)                ; until CLOSE-CHANNEL
  (dropped nil :type boolean)           ; nobody has the channel any more, nor has closed it
  (lock (sb-thread:make-mutex :name "clgrpc channel") :read-only t)
  (changed (sb-thread:make-waitqueue) :read-only t) ; the state has
  (credentials nil :type (or null loop:tls-credentials))
  (pool (http2:make-pool) :type http2:pool)
  (target nil :type loop:target)
  (authority nil :type hpack:field)
  (encoding nil :type (or null wire:encoding)) ; of requests, if nobody says otherwise
  (accepted :unknown :type (or list (eql :unknown))) ; the encodings that the server can read
  (state :idle :type (member :idle :connecting :ready :transient-failure :shutdown))
  (link nil :type (or null link))
  (proven nil :type boolean)            ; the last connection was a working one
  (useless 0 :type (integer 0 2))       ; so many connections in a row were of no use, or more
  (leaving '() :type list)              ; links that take no more calls and still have some
  (waiting (make-fifo) :type fifo :read-only t) ; calls without a stream
  (keepalive-ns 0 :type nanoseconds)    ; of its links; more after too_many_pings
  (backoff-seconds 0 :type real)        ; the wait before the next attempt was derived from
  (timer nil :type (or null timer))     ; of the back-off
  (failure nil :type (or null string))) ; the text of the last failed attempt

(defmethod print-object ((subchannel subchannel) stream)
  (print-unreadable-object (subchannel stream :type t)
    (format stream "~A ~(~A~)~@[, ~A~]" (loop:target-text (subchannel-target subchannel))
            (subchannel-state subchannel) (subchannel-failure subchannel))))

(defstruct (client-call (:include wire-call) (:constructor make-client-call) (:copier nil))
  "A call as the client has it, and its first attempt, or the one that is under way if there are no
others (attempt.lisp)."
  (request nil)                         ; the only one, a message or encoded, until the response
                                        ; begins (request.lisp)
  (reply nil)                           ; of a method that answers once, as WIRE-DECODE takes it
  (completions '() :type loop:completions)) ; of a call that is its own future (future.lisp)

(declaim (sb-ext:freeze-type client-call))

(define-hot (client-call-subchannel :inline t) ((call client-call)) subchannel
  (the subchannel (wire-call-endpoint call)))

(define-hot (client-call-wait-for-ready :inline t) ((call client-call)) boolean
  (let ((intent (rpc:call-intent call)))
    (and intent (rpc:intent-wait-for-ready intent))))

(declaim (sb-ext:global **client-sink**)) ; call.lisp
