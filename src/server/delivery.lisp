;;;; The messages of a request, and its end, on their way to the handler: the operations DELIVER and
;;;; HALF-CLOSE. A unary or server-streaming handler starts when the request is complete and
;;;; half-closed; a client-streaming one at the first message or the half-close; a bidi one at the
;;;; headers (dispatch.lisp), since it may send first.

(in-package #:clgrpc.server)

(define-hot (unended-p :inline t) ((call server-call)) boolean
  "True if the peer of CALL has not ended its side of the stream."
  (let ((stream (server-call-stream call)))
    (and stream (http2:stream-receivable-p stream))))

(defconstant +free-octets+ 1024
  "The most octets of a decoded request that are not charged separately: the charge of its call's
stream includes them.")

(define-hot decode-request ((call server-call) (octets octets) (start index) (end index)) null
  "Decode the octets, CALL's request, and charge its link with the decoded message if that is long.
The message may occupy four times the memory of its octets, and the messages inside it more."
  (multiple-value-bind (message kept inside)
      (handler-case (wire:parse-incoming call octets start end nil)
        (protobuf:protobuf-error (error)
          (values (wire:unparsable-condition call error start) nil 0)))
    (declare (ignore kept) (type fixnum inside))
    (let ((memory (+ inside (* 4 (- end start)))))
      (declare (type index memory))
      (cond ((status:failure-p message) (rpc:abort-as call message))
            ((or (<= memory +free-octets+)
                 (null (server-call-stream call))
                 (wire:hold call memory t))
             (setf (server-call-request call) message)))))
  nil)

(define-hot keep-request ((call server-call) (octets octets) (start index) (end index)) null
  "Keep the octets, CALL's request, for the thread that will run its handler."
  (when (wire:hold call (- end start))
    (multiple-value-bind (item long) (wire:keep-octets call octets start end)
      (note-undecoded call item long)))
  nil)

(define-hot deliver-request ((call server-call) (octets octets) (start index) (end index)) null
  "The operation DELIVER of methods that take one message."
  (cond ((or (server-call-request call) (server-call-undecoded call))
         (rpc:abort-as call (rpc:flaw call 2 nil)))
        ;; decoded by the handler's thread; or when the peer ends its side, so that what waits for
        ;; that is as long as what has come
        ((or (wire:to-keep-p call (- end start)) (unended-p call))
         (keep-request call octets start end))
        (t (decode-request call octets start end)))
  nil)

(define-hot half-close-request ((call server-call)) null
  "The operation HALF-CLOSE of methods that take one message."
  (unless (call-status call)
    (let* ((count (if (or (server-call-request call) (server-call-undecoded call)) 1 0))
           (flaw (rpc:flaw call count nil)))
      (if flaw
          (rpc:abort-as call flaw)
          (start-call call))))
  nil)

(define-hot deliver-to-stream ((call server-call) (octets octets) (start index) (end index)) null
  "The operation DELIVER of methods that take a stream."
  (wire:deliver-streamed call octets start end)
  (start-call call))

(define-hot half-close-stream ((call server-call)) null
  "The operation HALF-CLOSE of methods that take a stream."
  (wire:half-close-streamed call)
  (unless (call-status call) (start-call call))
  nil)

(defun end-plain-request (call)
  "Note that the plain request of CALL is whole. The half-close, which follows, starts its handler,
if it has one."
  (let ((request (call-http-request call)))
    (setf (server-call-half-closed call) t)
    (exchange:end-body request)
    (cond ((call-status call))
          ((server-call-route call) (setf (server-call-request call) request))
          (t (exchange:refuse-unrouted request)))))

(defun end-other-request (call)
  "Note that the request of CALL, which is not gRPC's, is whole."
  (cond ((call-claim call)
         (setf (exchange:http-request-whole (call-http-request call)) t)
         (unless (call-status call) (end-claimed-request call)))
        (t (end-plain-request call))))

(define-hot end-of-request ((call server-call)) null
  "The peer of CALL has ended its side of the stream."
  (rpc:observe half-closed (server-loop-observer (server-call-endpoint call)) call)
  (when (call-http-request call) (end-other-request call))
  (cond ((wire:wire-call-partial call)
         (setf (server-call-half-closed call) t)
         (rpc:abort-as call (rpc:flaw call 0 t)))
        (t (operate half-close call)
           (setf (server-call-half-closed call) t)))
  nil)
