;;;; Messages on their way from one end to the other: they are copied, and the limits of both ends
;;;; apply.

(in-package #:clgrpc.inproc)

(define-hot (site-copy :inline t) ((site site) message) t
  "MESSAGE as the other end gets it."
  (if (site-share site) message (protobuf:copy-message message)))

(defun copy-in-room (site call message size options)
  "As SITE-COPY, of a MESSAGE of CALL that is SIZE octets long, when there is room for the copy."
  (if (site-share site)
      message
      (rpc:call-with-room call size options (lambda () (protobuf:copy-message message)))))

(define-hot (sending-options :inline t) ((call inproc-call)) options
  (if (rpc:client-p call)
      (site-options (call-site call))
      (host-options (line-host (call-line call)))))

(define-hot (receiving-options :inline t) ((call inproc-call)) options
  "The options of the end that receives what CALL sends."
  (if (rpc:client-p call)
      (host-options (line-host (call-line call)))
      (site-options (call-site call))))

(define-hot (observers-p :inline t) ((line line)) boolean
  "True if the channel or the server of LINE's call has an observer, or its messages are counted."
  (let ((host (line-host line)))
    (and (or (site-observer (call-site (line-client line)))
             (and host (host-observer host))
             (passage-of (line-client line)))
         t)))

(defun tell-of-message (call message size)
  "Tell the observers of both ends of MESSAGE, of SIZE octets, that CALL sends, and count it."
  (rpc:observe content-sent (inproc-observer call)
               call (protobuf:serialize message) 0 size nil)
  (rpc:observe content-received (inproc-observer (other-end call))
               (other-end call) (protobuf:serialize message) 0 size nil)
  (let ((passage (passage-of call)))
    (when passage
      (if (rpc:client-p call)
          (incf (passage-requests passage) size)
          (incf (passage-responses passage) size))))
  (rpc:observe message-sent (inproc-observer call) call size)
  (rpc:observe message-received (inproc-observer (other-end call)) (other-end call) size))

(define-hot pass ((call inproc-call) message) (values t index)
  "Return MESSAGE, which CALL sends, as the other end gets it, and its size. Signal the same as on
the wire if it is of the wrong type or too long."
  (let ((size (protobuf:measure (rpc:outgoing-type call) message)))
    (when (or (> size (options-max-send-octets (sending-options call)))
              (> size (options-max-receive-octets (receiving-options call))))
      (refuse-length call size))
    (when (observers-p (call-line call)) (tell-of-message call message size))
    (values (if (<= size rpc:+long-octets+)
                (site-copy (call-site call) message)
                (copy-in-room (call-site call) call message size (sending-options call)))
            size)))

(defun refuse-length (call size)
  "Signal that a message of CALL, SIZE octets long, is too long to send or too long to be received."
  (let ((limit (options-max-send-octets (sending-options call))))
    (when (> size limit)
      (error (rpc:verdict-error :too-long-to-send (list size limit) :call call)))
    (rpc:abort-as (other-end call) :too-long-received size
                  (options-max-receive-octets (receiving-options call)))
    (error (rpc:call-condition call))))
