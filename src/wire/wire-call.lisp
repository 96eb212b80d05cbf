;;;; The structure of a call on a link, as far as both ends have it in common, and the structure of
;;;; the data that all calls of an end share. The behaviour of a call is in the files after this:
;;;; inbound.lisp, callback.lisp, outbound.lisp and deadline.lisp. link-memory.lisp limits the
;;;; octets of its peer that a call may keep.

(in-package #:clgrpc.wire)

(defstruct (endpoint (:constructor nil) (:copier nil))
  "The data that all calls of a channel, or of one loop of a server, share."
  (loop nil :type loop:event-loop)      ; the loop of all calls of the endpoint
  (options nil :type options)           ; the options of the channel or server
  (observer nil :type (or null observer)) ; the observer of this call, or nil
  ;; the account of all octets that its links hold
  (account (make-account **process-account**) :type account)
  ;; a function of a call that returns the most octets of a message that the call sends, and of one
  ;; that it receives; nil if the options decide these limits
  (limits nil :type (or null function))
  ;; a function of a call and a value of ENCODE-MESSAGE that sends the value with all that this
  ;; requires; nil if the value is only written to the call's stream
  (sender nil :type (or null function)))

(defstruct (wire-call (:include call) (:constructor nil) (:copier nil))
  "A call on a stream of HTTP/2, at either end."
  (endpoint nil :type endpoint)         ; the data that the call shares with others
  (link nil :type (or null link))       ; nil while a client's call waits for a connection
  (stream nil :type (or null http2:stream)) ; nil while the call has no stream
  (born-ns 0 :type nanoseconds)         ; the time when the call began; 0 before that
  (marks 0 :type marks))                ; used only on the loop once the loop begins the call

(define-hot (wire-call-partial :inline t) ((call wire-call)) (or null partial)
  "The incomplete message that CALL is receiving, or nil if there is none. On its loop."
  (let ((inbound (call-wire-inbound call)))
    (and inbound (wire-inbound-partial inbound))))

(define-hot (wire-call-loop :inline t) ((call wire-call)) loop:event-loop
  "The event loop of CALL."
  (endpoint-loop (wire-call-endpoint call)))

(define-hot (wire-call-options :inline t) ((call wire-call)) options
  "The options of CALL's server or channel."
  (endpoint-options (wire-call-endpoint call)))

(define-hot (send-limit :inline t) ((call wire-call)) index
  "The maximum length in octets of a message that CALL may send."
  (let ((limits (endpoint-limits (wire-call-endpoint call))))
    (if limits
        (values (funcall limits call))
        (or (values (own-limits call))
            (options-max-send-octets (wire-call-options call))))))

(define-hot (receive-limit :inline t) ((call wire-call)) index
  "The maximum length in octets of a message that CALL may receive."
  (let ((limits (endpoint-limits (wire-call-endpoint call))))
    (if limits
        (nth-value 1 (funcall limits call))
        (or (nth-value 1 (own-limits call))
            (options-max-receive-octets (wire-call-options call))))))

(define-hot (call-observer :inline t) ((call wire-call)) (or null observer)
  "The operation OBSERVER. Return the observer of CALL's channel or server, or nil if it has none."
  (endpoint-observer (wire-call-endpoint call)))

(define-hot (tell-sent :inline t) ((call wire-call) (stream (or null http2:stream)) (size index)
                                   (plain (or null index)))
    null
  "Count a message of CALL that is written to STREAM, and report it to CALL's observer, if CALL has
one. SIZE is the message's number of octets; PLAIN is the number of octets before compression if the
message is compressed, otherwise nil."
  (let ((observer (call-observer call)))
    (when observer
      (let ((compression (compression-of call)))
        (when compression (setf (compression-told compression) plain)))
      (when stream
        (setf (http2:stream-octets-out stream)
              (ldb (byte 62 0) (+ (http2:stream-octets-out stream) size))))
      (observe message-sent observer call size)))
  nil)

(define-hot (tell-received :inline t) ((call wire-call) (size index)) null
  "Do what TELL-SENT does, for a message of SIZE octets that has arrived for CALL."
  (let ((observer (call-observer call)))
    (when observer
      (let ((stream (wire-call-stream call)))
        (when stream
          (setf (http2:stream-octets-in stream)
                (ldb (byte 62 0) (+ (http2:stream-octets-in stream) size)))))
      (observe message-received observer call size)))
  nil)

(define-hot wire-traffic ((call wire-call))
    (values (unsigned-byte 62) (unsigned-byte 62) nanoseconds)
  "The operation TRAFFIC."
  (let ((stream (wire-call-stream call)))
    (if stream
        (values (http2:stream-octets-out stream) (http2:stream-octets-in stream)
                (wire-call-born-ns call))
        (values 0 0 (wire-call-born-ns call)))))

(define-hot (unsent-room :inline t) ((call wire-call)) fixnum
  "The number of octets that CALL may send without waiting."
  (let* ((outbound (call-wire-outbound call))
         (stream (wire-call-stream call)))
    (- (options-send-budget-octets (wire-call-options call))
       (if outbound
           (+ (the index (wire-outbound-unsent-octets outbound))
              (wire-outbound-outbox-octets outbound))
           0)
       (if stream (http2:stream-queued-octets stream) 0))))

(define-hot (mark-call :inline t) ((call wire-call) (mark mark)) null
  "If MARK is a moment, note that CALL has reached it in this turn; if it is a flag, note that it
has become true of CALL. Call this on CALL's loop; a flag may also be set before the loop begins
CALL."
  (setf (wire-call-marks call)
        (if (typep mark 'flag)
            (logior (wire-call-marks call) (flag-bit mark))
            (add-moment (wire-call-marks call) mark
                        (- (loop:event-loop-now (wire-call-loop call)) (wire-call-born-ns call)))))
  nil)

(define-hot (marked-p :inline t) ((call wire-call) (mark mark)) boolean
  "True if CALL has reached MARK, a moment, or MARK, a flag, is true of CALL."
  (logtest (wire-call-marks call) (mark-bits mark)))

(defun reset-marks (call)
  "Forget the moments of CALL, whose attempts so far have failed."
  (setf (wire-call-marks call) (without-moments (wire-call-marks call))))

(define-hot wire-now ((call wire-call)) nanoseconds
  "The operation NOW."
  (loop:read-clock (wire-call-loop call)))

(defun wire-peer (call)
  "The operation PEER."
  (let ((link (wire-call-link call))) (and link (link-peer link))))

(defun wire-security (call)
  "The operation SECURITY."
  (let ((link (wire-call-link call)))
    (and link (loop:connection-security (link-socket link)))))

(defun wire-post (call function)
  "The operation POST. Return false if CALL's loop has stopped and will not call FUNCTION."
  (loop:run-or-post (wire-call-loop call) function))
