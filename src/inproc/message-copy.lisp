;;;; Messages and metadata on their way from one end to the other: both are copied, and the limits
;;;; of both ends apply to messages.

(in-package #:clgrpc.inproc)

(define-hot (inproc-core-copy :inline t) ((inproc-core inproc-core) message) t
  "MESSAGE, or a copy of MESSAGE, in the form that the other end receives."
  (if (inproc-core-share inproc-core) message (protobuf:copy-message message)))

(defun copy-in-room (inproc-core call message size options)
  "As INPROC-CORE-COPY, for a MESSAGE of CALL with SIZE octets, once there is room for the copy."
  (if (inproc-core-share inproc-core)
      message
      (rpc:call-with-room call size options (lambda () (protobuf:copy-message message)))))

(define-hot (sending-options :inline t) ((call inproc-call)) options
  (if (rpc:client-p call)
      (inproc-core-options (call-inproc-core call))
      (callee-options (call-pair-callee (call-call-pair call)))))

(define-hot (receiving-options :inline t) ((call inproc-call)) options
  "The options of the end that receives the messages of CALL."
  (if (rpc:client-p call)
      (callee-options (call-pair-callee (call-call-pair call)))
      (inproc-core-options (call-inproc-core call))))

(define-hot (sending-limit :inline t) ((call inproc-call)) index
  "The limit in octets that the sending end sets for a message that CALL sends."
  (or (and (rpc:client-p call) (values (rpc:own-limits call)))
      (options-max-send-octets (sending-options call))))

(define-hot (receiving-limit :inline t) ((call inproc-call)) index
  "The limit in octets that the receiving end sets for a message that CALL sends."
  (or (and (not (rpc:client-p call)) (nth-value 1 (rpc:own-limits (other-end call))))
      (options-max-receive-octets (receiving-options call))))

(define-hot pass ((call inproc-call) message) (values t index)
  "Return two values: MESSAGE, which CALL sends, in the form in which the other end gets it; and its
size. If MESSAGE is of the wrong type or too long, signal the same error as on the wire."
  (let ((size (protobuf:measure (rpc:outgoing-type call) message)))
    (when (> size (min (sending-limit call) (receiving-limit call)))
      (refuse-length call size))
    (when (observers-p (call-call-pair call)) (tell-message call message size))
    (values (if (<= size rpc:+long-octets+)
                (inproc-core-copy (call-inproc-core call) message)
                (copy-in-room (call-inproc-core call) call message size (sending-options call)))
            size)))

(defun refuse-length (call size)
  "Signal an error, since a message of CALL with SIZE octets is too long to send or to receive."
  (let ((limit (sending-limit call)))
    (when (> size limit)
      (error (rpc:verdict-error :too-long-to-send (list size limit) :call call)))
    (rpc:abort-as (other-end call) :too-long-received size (receiving-limit call))
    (error (rpc:call-condition call))))

;;; Metadata

(defun metadata-entries (metadata)
  "A simple vector of the entries of METADATA, an alist that CHECK-METADATA has accepted, in the
form in which a peer gets them."
  (flet ((entry (entry)
           (destructuring-bind (name . value) entry
             (cons name (if (stringp value)
                            (string-trim " " value)
                            (copy-seq (coerce value 'octets)))))))
    (map 'simple-vector #'entry metadata)))

(defun entries-metadata (call entries)
  "The operation METADATA. ENTRIES is a value of METADATA-ENTRIES."
  (declare (ignore call))
  (map 'list (lambda (entry) (cons (car entry) (cdr entry))) (the simple-vector entries)))
