;;;; The body of a request on its way to the handler. A bare body is one message; it is collected
;;;; unless it arrives complete. Messages in envelopes, a flag and a length of five octets as in
;;;; gRPC, are read by the same code as gRPC's, with its limits.
;;;;
;;;; The code of wire holds back a client whose messages are not read: over HTTP/2 by the window;
;;;; over HTTP/1.1 the connection is not read.

(in-package #:clgrpc.web)

(defstruct (notes (:copier nil))
  "The data of a call, in addition to the data of every server's call. The loop's."
  (body (make-octets 0) :type octets)   ; the part of a bare body that has come, up to FILL
  (fill 0 :type index)                  ; how many octets of BODY are filled
  (taken nil :type boolean)             ; the bare body was whole and has been delivered
  (too-long nil :type boolean)          ; the bare body is longer than messages may be
  (carry '() :type list)                ; digits of base64 that do not fill a group
  (late '() :type list)                 ; metadata that was sent after the head: trailers
  ;; the only answer, encoded, until it is written
  (answer nil :type (or null octets wire:byte-buffer))
  (sent 0 :type (unsigned-byte 62))     ; octets of sent messages, for observers
  (received 0 :type (unsigned-byte 62))) ; octets of the peer's messages

(declaim (sb-ext:freeze-type notes))

(define-printer (notes notes)
  "~D octets of a body" (notes-fill notes))

(define-hot (call-web-notes :inline t) ((call server:server-call)) notes
  "The notes of CALL, made now if there are none."
  (or (server:call-notes call)
      (setf (server:call-notes call) (make-notes))))

;;; Bare bodies

(defun refuse-body (call size)
  "End CALL with an error, because its bare body, of SIZE octets at least, is longer than the call
may receive."
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
  "Two values: the octets that COLLECT-BODY has kept for CALL, and how many of them are valid."
  (let ((notes (call-web-notes call)))
    (values (notes-body notes) (notes-fill notes))))

(define-hot deliver-body ((call server:server-call) (octets octets) (start index) (end index)) null
  "Deliver the bare body of CALL, OCTETS from START to END."
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
  "The function RECEIVE of protocol handlers whose requests have one message, the body."
  (if (and last (zerop (notes-fill (call-web-notes call))))
      (if (<= (- end start) (the index (rpc:operate receive-limit call)))
          (deliver-body call octets start end)
          (refuse-body call (- end start)))
      (collect-body call octets start end))
  nil)

(defun body-whole (call)
  "The function WHOLE of protocol handlers whose requests have one message, the body."
  (let ((notes (call-web-notes call)))
    (unless (notes-taken notes)
      (deliver-body call (notes-body notes) 0 (notes-fill notes)))))

;;; Envelopes

(define-hot receive-enveloped ((call server:server-call) (octets octets) (start index) (end index)
                               (last boolean))
    null
  "The function RECEIVE of protocol handlers whose messages are in envelopes."
  (declare (ignore last))
  (wire:receive-messages call octets start end))

;;; Messages

(define-hot note-received ((call server:server-call) (size index)) null
  "Count a message of SIZE octets that CALL has received."
  (let ((notes (call-web-notes call)))
    (setf (notes-received notes) (ldb (byte 62 0) (+ size (notes-received notes)))))
  nil)

(defun error-path (error)
  "The path of the field that ERROR, a PROTOBUF-ERROR, is about; nil if ERROR names no field."
  (and (typep error 'protobuf:message-text-error)
       (let ((path (protobuf:message-text-error-path error)))
         (and (string/= "" path) (printable-text path :limit 200)))))

(defun undecodable (call error)
  "The RPC-ERROR that ends CALL, since a message cannot be decoded because of ERROR."
  (status:make-rpc-error :invalid-argument
                         :message (concatenate
                                   'string
                                   (codec-preface (web-claim-codec (call-web-claim call)))
                                   (let ((path (error-path error)))
                                     (if path (concatenate 'string path ": ") ""))
                                   (protobuf:protobuf-error-text error))
                         :call call :peer (rpc:call-peer call) :ended-by :local :cause error))

(define-hot decode-within ((call server:server-call) (octets octets) (start index) (end index)
                           (consume boolean) (most (or null index))
                           (beyond (or null function)))
    (values t boolean fixnum)
  "As DECODE-MESSAGE, for WIRE:DECODE-ITEM."
  (declare (ignore consume))
  (handler-case
      (multiple-value-bind (message inside)
          (let* ((codec (web-claim-codec (call-web-claim call)))
                 (decode (codec-decode codec)))
            (if (codec-text codec)
                (funcall decode call octets start end)
                (funcall decode call octets start end most beyond)))
        (values message nil (the fixnum inside)))
    (protobuf:protobuf-error (error) (values (undecodable call error) nil 0))))

(define-hot decode-message ((call server:server-call) (octets octets) (start index) (end index)
                            (consume boolean))
    (values t boolean fixnum)
  "The function that decodes messages of CALL, for SERVER:DELIVER-REQUEST."
  (decode-within call octets start end consume nil nil))

(defconstant +short-text-octets+ 2048
  "The maximum number of octets of a text that the loop decodes.")

(define-hot deliver-web-request ((call server:server-call) (octets octets) (start index)
                                 (end index))
    null
  "The operation DELIVER of methods that take one message."
  (let ((size (- end start)))
    (note-received call size)
    (server:deliver-request call octets start end
                            (and (codec-text (web-claim-codec (call-web-claim call)))
                                 (or (< +short-text-octets+ size)
                                     (not (decodes-at-once-p call size))))
                            #'decode-message))
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

(define-hot web-decode ((call server:server-call) item (start index) (end index)) t
  "The operation DECODE."
  ;; an octet of JSON takes up to ten times as long as one of Protocol Buffers
  (wire:decode-item call item start end #'decode-within
                    (codec-text (web-claim-codec (call-web-claim call)))))
