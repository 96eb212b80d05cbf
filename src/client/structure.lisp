;;;; The structures that subchannels and calls, which know each other, are made of.

(in-package #:clgrpc.client)

(defstruct (subchannel (:copier nil))
  "LEAVING are the links that take no more calls and still have some. WAITING is a list of calls,
oldest first, with TAIL its last cons. FAILURE is the text of the last failed attempt."
  (channel nil)
  (loop nil :type loop:event-loop)
  (options nil :type options)
  (credentials nil :type (or null loop:tls-credentials))
  (pool (http2:make-pool) :type http2:pool)
  (host "" :type string)
  (port 0 :type (unsigned-byte 16))
  (authority nil :type hpack:field)
  (encoding nil :type (or null rpc:encoding)) ; of requests, if nobody says otherwise
  (accepted :unknown :type (or list (eql :unknown))) ; the encodings that the server can read
  (state :idle :type (member :idle :connecting :ready :transient-failure :shutdown))
  (link nil :type (or null link))
  (leaving '() :type list)
  (waiting '() :type list)
  (tail '() :type list)
  (backoff-seconds 0 :type real)
  (timer nil :type (or null timer))
  (failure nil :type (or null string))
  (random (make-random-state t) :type random-state))

(defmethod print-object ((subchannel subchannel) stream)
  (print-unreadable-object (subchannel stream :type t)
    (format stream "~A:~D ~(~A~)~@[, ~A~]" (subchannel-host subchannel) (subchannel-port subchannel)
            (subchannel-state subchannel) (subchannel-failure subchannel))))

(defstruct (client-call (:include wire-call (client-p t)) (:constructor make-client-call)
                        (:copier nil))
  (subchannel nil :type subchannel)
  (metadata '() :type list)
  (wait-for-ready nil :type boolean)
  (unattended nil :type boolean)        ; nobody waits for it in a stub
  (headers-received nil :type boolean)
  (reply nil))                          ; of a method that answers once, as RPC:WIRE-DECODE takes it

(declaim (sb-ext:freeze-type client-call))

(declaim (sb-ext:global **client-sink**)) ; call.lisp
