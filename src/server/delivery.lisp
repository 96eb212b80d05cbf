;;;; The messages of a request, and its end, on their way to the handler: the operations DELIVER and
;;;; HALF-CLOSE. A unary or server-streaming handler starts when the request is whole and
;;;; half-closed; a client-streaming one at the first message or the half-close; a bidi one at the
;;;; headers (dispatch.lisp), since it may speak first.

(in-package #:clgrpc.server)

(define-hot deliver-request ((call server-call) (octets octets) (start index) (end index)) null
  "The operation DELIVER of methods that take one message."
  (cond ((or (server-call-request call) (server-call-undecoded call))
         (rpc:abort-as call (rpc:flaw call 2 nil)))
        ((wire:to-keep-p call (- end start)) ; decoded by the handler's thread
         (when (wire:hold call (- end start))
           (setf (detour-undecoded (ensure-detour call))
                 (wire:keep-octets call octets start end))))
        (t (let ((message (handler-case (values (wire:parse-incoming call octets start end nil))
                            (protobuf:protobuf-error (error)
                              (wire:unparsable-condition call error start)))))
             (if (status:failure-p message)
                 (rpc:abort-with call message)
                 (setf (server-call-request call) message)))))
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
