;;;; The body of a request on its way to the handler. A bare body is one message; it is collected
;;;; unless it arrives complete. Messages in envelopes, a flag and a length of five octets as in
;;;; gRPC, are read by the same code as gRPC's, with its limits.
;;;;
;;;; Over HTTP/2 the window holds back a client whose messages are not read; over HTTP/1.1 the
;;;; connection is not read.

(in-package #:clgrpc.web)

(defstruct (notes (:copier nil))
  "The data of a call, in addition to those of every server's call. The loop's."
  (body (make-octets 0) :type octets)   ; the part of a bare body that has come, up to FILL
  (fill 0 :type index)                  ; how much of it that is
  (taken nil :type boolean)             ; the bare body was whole and has been delivered
  (too-long nil :type boolean)          ; the bare body is longer than messages may be
  (carry '() :type list)                ; digits of base64 that do not fill a group
  (paused nil :type boolean)            ; no more of the body is read over HTTP/1.1
  (late '() :type list)                 ; metadata that was sent after the head: trailers
  (answer nil :type (or null octets wire:parcel)) ; the only answer, encoded, until it is written
  (sent 0 :type (unsigned-byte 62))     ; octets of messages, as observers are told
  (received 0 :type (unsigned-byte 62))) ; the same of the peer's

(declaim (sb-ext:freeze-type notes))

(defmethod print-object ((notes notes) stream)
  (print-unreadable-object (notes stream :type t)
    (format stream "~D octets of a body" (notes-fill notes))))

(define-hot (call-web-notes :inline t) ((call server:server-call)) notes
  "The notes of CALL, made now if there are none."
  (or (server:call-notes call)
      (setf (server:call-notes call) (make-notes))))

;;; Bare bodies

(defun refuse-body (call size)
  "End CALL, whose bare body has SIZE octets or more."
  (setf (notes-too-long (call-web-notes call)) t)
  (rpc:abort-as call :too-long-received size (rpc:operate receive-limit call)))

(defun collect-body (call octets start end)
  "Keep OCTETS from START to END, a part of the bare body of CALL."
  (let* ((notes (call-web-notes call))
         (body (notes-body notes))
         (fill (notes-fill notes))
         (need (+ fill (- end start)))
         (limit (rpc:operate receive-limit call)))
    (cond ((< limit need) (refuse-body call need))
          ((<= need (length body))
           (setf (notes-fill notes) (copy-octets octets start end body fill)))
          (t (let ((longer (min limit (max need (* 2 (length body)) 1024))))
               (when (wire:hold call (- longer (length body)))
                 (let ((new (make-octets longer)))
                   (copy-octets body 0 fill new 0)
                   (setf (notes-body notes) new
                         (notes-fill notes) (copy-octets octets start end new fill)))))))))

(defun collected-body (call)
  "The octets that COLLECT-BODY has kept for CALL, and how many of them count."
  (let ((notes (call-web-notes call)))
    (values (notes-body notes) (notes-fill notes))))

(define-hot deliver-body ((call server:server-call) (octets octets) (start index) (end index)) null
  "OCTETS from START to END are the bare body of CALL."
  (setf (notes-taken (call-web-notes call)) t)
  (wire:deliver-alone call
                      (and (< start end) ; an empty body is not compressed
                           (server:claim-incoming (call-web-claim call))
                           t)
                      octets start end)
  nil)

(define-hot receive-bare ((call server:server-call) (octets octets) (start index) (end index)
                          (last boolean))
    null
  "The RECEIVE of styles whose requests have one message that is the body."
  (if (and last (zerop (notes-fill (call-web-notes call))))
      (if (<= (- end start) (the index (rpc:operate receive-limit call)))
          (deliver-body call octets start end)
          (refuse-body call (- end start)))
      (collect-body call octets start end))
  nil)

(defun body-whole (call)
  "The WHOLE of these styles."
  (let ((notes (call-web-notes call)))
    (unless (notes-taken notes)
      (deliver-body call (notes-body notes) 0 (notes-fill notes)))))

;;; Envelopes

(define-hot receive-enveloped ((call server:server-call) (octets octets) (start index) (end index)
                               (last boolean))
    null
  "The RECEIVE of styles whose messages are in envelopes."
  (declare (ignore last))
  (wire:receive-messages call octets start end)
  (when (server:over-http1-p call) (hold-back call))
  nil)

(defun hold-back (call)
  "Some of CALL's body was received over HTTP/1.1: queue the messages in it, and stop reading if too
many wait."
  (wire:seal-arrivals call)
  (when (and (null (call-status call)) (wire:queue-full-p call))
    (setf (notes-paused (call-web-notes call)) t)
    (exchange:pause-body (server:call-http-request call))
    (sb-thread:barrier (:memory))
    ;; the reader may have emptied the queue just before it could see that
    (read-on call)))

(defun read-on (call)
  "Read more of CALL's body if few enough of its messages wait. On the loop."
  (let ((notes (call-web-notes call)))
    (when (and (notes-paused notes) (null (call-status call)) (not (wire:queue-full-p call t)))
      (setf (notes-paused notes) nil)
      (exchange:resume-body (server:call-http-request call)))))

(define-hot web-taken ((call server:server-call) (octets index)) null
  "The operation TAKEN."
  (wire:wire-taken call octets)
  (when (and (server:over-http1-p call)
             (notes-paused (call-web-notes call))
             (not (wire:queue-full-p call t)))
    (operate post call (lambda () (read-on call))))
  nil)

;;; Messages

(define-hot note-received ((call server:server-call) (size index)) null
  "Count a message of SIZE octets that CALL has received."
  (let ((notes (call-web-notes call)))
    (setf (notes-received notes) (ldb (byte 62 0) (+ size (notes-received notes)))))
  nil)

(defun error-path (error)
  "The path of the field that ERROR, a PROTOBUF-ERROR, is about, or nil."
  (and (typep error 'protobuf:message-text-error)
       (let ((path (protobuf:message-text-error-path error)))
         (and (string/= "" path) (printable-text path :limit 200)))))

(defun undecodable (call error)
  "The RPC-ERROR that ends CALL, since ERROR is wrong with the octets of a message."
  (status:make-rpc-error :invalid-argument
                         :message (concatenate
                                   'string
                                   (codec-preface (web-claim-codec (call-web-claim call)))
                                   (let ((path (error-path error)))
                                     (if path (concatenate 'string path ": ") ""))
                                   (protobuf:protobuf-error-text error))
                         :call call :peer (rpc:call-peer call) :ended-by :local :cause error))

(define-hot decoded ((call server:server-call) (octets octets) (start index) (end index))
    (values t fixnum)
  "The message of CALL that OCTETS are from START to END, and how much memory the messages inside it
take. Signal a PROTOBUF-ERROR if they are none."
  (multiple-value-bind (message inside)
      (funcall (codec-decode (web-claim-codec (call-web-claim call))) call octets start end)
    (values message (the fixnum inside))))

(defconstant +short-text-octets+ 2048
  "The loop decodes no longer texts.")
(defconstant +free-octets+ 1024
  "A decoded request that takes no more counts with its call.")

(define-hot deliver-web-request ((call server:server-call) (octets octets) (start index)
                                 (end index))
    null
  "The operation DELIVER of methods that take one message."
  (let ((size (- end start)))
    (note-received call size)
    (cond ((or (server:server-call-request call) (server:server-call-undecoded call))
           (rpc:abort-as call (rpc:flaw call 2 nil)))
          ((or (wire:to-keep-p call size) (server:unended-p call)
               (and (codec-text (web-claim-codec (call-web-claim call)))
                    (or (< +short-text-octets+ size) (not (decodes-at-once-p call size)))))
           (server:keep-request call octets start end))
          (t
           (multiple-value-bind (message inside)
               (handler-case (decoded call octets start end)
                 (protobuf:protobuf-error (error) (values (undecodable call error) 0)))
             (declare (type fixnum inside))
             (let ((memory (+ inside (* 4 size))))
               (declare (type index memory))
               (cond ((status:failure-p message) (rpc:abort-as call message))
                     ((or (<= memory +free-octets+) (wire:hold call memory))
                      (setf (server:server-call-request call) message))))))))
  nil)

(define-hot deliver-to-web-stream ((call server:server-call) (octets octets) (start index)
                                   (end index))
    null
  "The operation DELIVER of methods that take a stream."
  (note-received call (- end start))
  (when (server:over-http1-p call)
    (exchange:renew-body-time (server:call-http-request call)))
  (server:deliver-to-stream call octets start end)
  nil)

(define-hot decode-message ((call server:server-call) (octets octets) (start index) (end index)) t
  "As DECODED, but signal an RPC-ERROR, which ends CALL as well."
  (handler-case (values (decoded call octets start end))
    (protobuf:protobuf-error (error) (wire:end-undecodable call (undecodable call error)))))

(define-hot decode-parcel ((call server:server-call) (parcel wire:parcel)) t
  "Decode PARCEL as DECODE-MESSAGE does; return the message."
  (let ((octets (wire:parcel-taken parcel)))
    (multiple-value-prog1 (decode-message call octets 0 (wire:encoded-length parcel))
      (give-octets-back octets))))

(define-hot web-decode ((call server:server-call) item (start index) (end index)) t
  "The operation DECODE."
  (typecase item
    (octets (decode-message call item start end))
    (wire:parcel (decode-parcel call item))
    (wire:packed (if (codec-text (web-claim-codec (call-web-claim call)))
                     ;; an octet of JSON takes up to ten times as long as one of Protocol Buffers
                     (wire:decode-packed call item #'decode-parcel 1)
                     (wire:decode-packed call item #'decode-parcel)))
    (t item)))
