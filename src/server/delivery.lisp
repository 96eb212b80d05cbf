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
  "The maximum number of octets of a decoded request that are not charged separately, because the
charge of its call's stream includes them.")

(define-hot (take-request :inline t) ((call server-call) item (long boolean) (inside fixnum)
                                     (size index))
    null
  "Take the request of CALL, of SIZE octets; ITEM, LONG and INSIDE are the values of
WIRE:TAKE-SINGLE. CALL's link is charged with a decoded message if that is long. The message is
charged with four times its octets, and in addition with the memory of the messages inside it."
  (let ((memory (+ inside (* 4 size))))
    (declare (type index memory))
    (cond ((null item))                 ; CALL has ended
          ((typep item 'wire:byte-buffer) (note-undecoded call item long))
          ((status:failure-p item) (rpc:abort-as call item))
          ((or (<= memory +free-octets+)
               (wire:hold call memory (and (server-call-stream call) t)))
           (setf (server-call-request call) item))))
  nil)

(define-hot deliver-request ((call server-call) (octets octets) (start index) (end index)
                             &optional (keep boolean nil) (decode (or null function) nil))
    null
  "The operation DELIVER of methods that take one message. If KEEP is true, the handler's thread
decodes the request. DECODE, if not nil, is the function that decodes the request, as for
WIRE:TAKE-SINGLE."
  (cond ((call-status call))            ; an observer of the message has ended the call
        ((or (server-call-request call) (server-call-undecoded call))
         (rpc:abort-as call (rpc:violation call 2 nil)))
        ;; decoded by the handler's thread; or when the peer ends its side, so that the octets that
        ;; wait are as long as the octets received
        (t (multiple-value-bind (item long inside)
               (wire:take-single call octets start end (or keep (unended-p call)) decode)
             (take-request call item long inside (- end start)))))
  nil)

(define-hot half-close-request ((call server-call)) null
  "The operation HALF-CLOSE of methods that take one message."
  (unless (call-status call)
    (let* ((count (if (or (server-call-request call) (server-call-undecoded call)) 1 0))
           (violation (rpc:violation call count nil)))
      (if violation
          (rpc:abort-as call violation)
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
  "Note that the plain request of CALL is whole. The half-close, which follows, starts the handler
of CALL, if it has one."
  (let ((request (call-http-request call)))
    (setf (server-call-half-closed call) t)
    (exchange:end-body request)
    (cond ((call-status call))
          ((server-call-route call) (setf (server-call-request call) request))
          (t (exchange:refuse-unrouted request)))))

(defun end-other-request (call)
  "Note that the request of CALL, of a protocol other than gRPC, is whole."
  (cond ((call-claim call)
         (setf (exchange:http-request-whole (call-http-request call)) t)
         (unless (call-status call) (end-claimed-request call)))
        (t (end-plain-request call))))

(define-hot end-of-request ((call server-call)) null
  "Handle the end of the peer's side of CALL's stream."
  (rpc:observe half-closed (server-loop-observer (server-call-endpoint call)) call)
  (when (call-http-request call) (end-other-request call))
  (cond ((wire:wire-call-partial call)
         (setf (server-call-half-closed call) t)
         (rpc:abort-as call (rpc:violation call 0 t)))
        (t (operate half-close call)
           (setf (server-call-half-closed call) t)))
  nil)
