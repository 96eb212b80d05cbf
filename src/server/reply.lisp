;;;; What a server writes: response headers, trailers, trailers-only (gRPC over HTTP/2,
;;;; "Responses"). Constant fields go into the peer's dynamic table once. So from the second call
;;;; on, the headers of a good answer are two octets and its trailers one.
;;;;
;;;; No header list is larger than the client's limit (SETTINGS_MAX_HEADER_LIST_SIZE), nor larger
;;;; than our own limit. A status is always sent; its text, details and trailers are sent as far as
;;;; there is room. Flow control does not count header blocks, so without this limit a handler could
;;;; queue any number of headers.

(in-package #:clgrpc.server)

(hpack:define-field **status-200** ":status" "200")
(declaim (type simple-vector **response-fields**))
(defglobal **response-fields** (vector **status-200** (wire:codec-content-type nil)))

(declaim (type simple-vector **grpc-statuses**))
(defglobal **grpc-statuses**
    (coerce (loop for code to 16
                  collect (hpack:string-field "grpc-status" (format nil "~D" code)))
            'simple-vector))

(defglobal **grpc-message** (ascii-octets "grpc-message"))
(defglobal **grpc-status-details** (ascii-octets "grpc-status-details-bin"))

(define-hot (call-codec :inline t) ((call server-call)) (or null encoding:message-codec)
  "The codec of CALL's messages; nil if they are in Protocol Buffers."
  (let ((method (call-rpc-method call)))
    (and method (method:rpc-method-codec (the rpc-method method)))))

(define-hot write-headers-start ((stream http2:stream) (call server-call))
    (values hpack:encoder buffer)
  "Begin the first header block of CALL's answer with the fields that all calls have. Return the
encoder and the buffer for further fields."
  (multiple-value-bind (encoder buffer) (http2:begin-headers stream)
    (let ((codec (call-codec call)))
      (if codec
          (hpack:encode-fields encoder buffer
                               (vector **status-200** (wire:codec-content-type codec)))
          (hpack:encode-fields encoder buffer **response-fields**)))
    (wire:encode-encodings call encoder buffer t)
    (values encoder buffer)))

(defun write-answer-head (call)
  "The operation WRITE-HEAD."
  (let ((stream (server-call-stream call)))
    (multiple-value-bind (encoder buffer) (write-headers-start stream call)
      (when (rpc:outgoing-metadata call)
        (wire:encode-metadata (rpc:outgoing-metadata call) encoder buffer)))
    (http2:end-headers stream nil)))

(defun header-list-limit (call)
  "The maximum number of octets of a header list that CALL sends. From any thread."
  (let* ((link (server-call-link call))
         (http2 (server-link-http2 link))
         (own (options-max-header-list-octets (server-link-options link))))
    (if http2
        (min own (http2:connection-peer-max-header-list http2))
        own)))

(defconstant +constant-octets+ 300
  "How many octets of a header list are reserved for :status, content-type, the two fields of
compression and grpc-status. Without registered compressions and a codec, these fields take fewer
octets.")
(defconstant +registered-octets+ 400
  "How many octets are reserved in addition to +CONSTANT-OCTETS+ if compressions are registered or
the call has a codec.")

(defun constant-octets (call)
  "How many octets of a header list of CALL are reserved for the fields that all calls have."
  ;; gzip and deflate are always there
  (if (or (call-codec call) (cddr (encoding:encodings)))
      (+ +constant-octets+ +registered-octets+)
      +constant-octets+))

(defconstant +text-octets+ 4096
  "The maximum length, in octets of grpc-message, of a status's text that is sent: more than a
person reads.")
(defconstant +kept-text-octets+ 1024
  "The octets at the beginning of a status's text that take precedence over details and trailers.")

(defun check-metadata-size (call metadata others)
  "Signal an RPC-ERROR if METADATA, with OTHERS octets of other fields, is longer than CALL's client
accepts."
  (let ((size (wire:metadata-octets metadata))
        (limit (header-list-limit call)))
    (when (> (+ size others) limit)
      (error (status:make-rpc-error
              :resource-exhausted :call call :ended-by :local
              :message (format nil "metadata of ~D octets to send; a header list to this client ~
                                    may have ~D" size limit))))))

(define-hot write-status-code ((status symbol) (encoder hpack:encoder) (buffer buffer)) null
  "Write the grpc-status that is the number of STATUS."
  (hpack:encode-field encoder buffer
                      (the hpack:field (svref **grpc-statuses**
                                              (if (eq status :ok) 0 (status:status-code status))))
                      (if (eq status :ok) :index :plain)))

(defun write-outcome-code (status details encoder buffer)
  "Write the number of STATUS. DETAILS, octets or nil, may have a status number without a keyword."
  (let ((code (status:sent-code status details)))
    (if (< 16 code)                     ; without a keyword
        (hpack:encode-field encoder buffer
                            (hpack:string-field "grpc-status" (format nil "~D" code)) :plain)
        (write-status-code status encoder buffer))))

(define-hot write-status ((call server-call) (encoder hpack:encoder) (buffer buffer)) list
  "Write the status of CALL. Return a list of the omitted parts, see WRITE-WHOLE-STATUS."
  (multiple-value-bind (status text details trailers) (rpc:final-status call)
    (cond ((or trailers details (plusp (length text)))
           (write-whole-status call text details trailers encoder buffer))
          (t (write-status-code status encoder buffer)
             '()))))

(defun write-whole-status (call text details trailers encoder buffer)
  "Write the status of CALL, and its TEXT, DETAILS and TRAILERS as far as there is room. A long text
is truncated; details or trailers that do not fit are omitted. Return a list of the omitted parts,
:details or :trailers or both."
  (let* ((status (call-status call))
         (left (max 0 (- (header-list-limit call) (constant-octets call))))
         (kept (min left +kept-text-octets+ (length text)))
         (left-out '()))
    (flet ((fits-p (octets)
             (and (<= octets (- left kept))
                  (decf left octets))))
      (unless (fits-p (wire:metadata-octets trailers))
        (push :trailers left-out)
        (setf trailers '())
        (when (eq :ok status)
          (setf status :resource-exhausted
                text "the call's trailers are larger than its client accepts")))
      (when details
        (unless (fits-p (+ 32 (length **grpc-status-details**) (ceiling (* 4 (length details)) 3)))
          (push :details left-out)
          (setf details nil))))
    (write-outcome-code status details encoder buffer)
    (let ((room (min +text-octets+ (- left 32 (length **grpc-message**)))))
      (when (and (plusp (length text)) (plusp room))
        (hpack:encode-literal encoder buffer **grpc-message**
                              (encode-status-message text room) :plain)))
    (when details
      (hpack:encode-literal encoder buffer **grpc-status-details**
                            (ascii-octets (encode-base64 details)) :plain))
    (wire:encode-metadata trailers encoder buffer)
    left-out))

(defun report-status-cut (call left-out)
  "Log that LEFT-OUT of the status of CALL was not sent. Called only after the header block was
ended, since a user's function for the log may send something on the same connection."
  (rpc:log-call-event call :warning :status-cut :method (rpc:call-path call)
                      :peer (rpc:call-peer call) :status (call-status call) :left-out left-out))

(define-hot (note-served :inline t) ((call server-call)) null
  "Note that the end of CALL's answer is written. Over HTTP/2, an answer with :ok allows the peer
one more reset on its connection."
  (let ((stream (server-call-stream call)))
    (when (and stream (eq :ok (call-status call)))
      (http2:note-call-served (http2:stream-connection stream))))
  nil)

(define-hot write-trailers ((stream http2:stream)) null
  "Write the trailers of STREAM's call, which has ended, and so end the stream."
  (let ((call (http2:stream-user stream)))
    (declare (type server-call call))
    (multiple-value-bind (encoder buffer)
        (if (wire:marked-p call :headers)
            (http2:begin-headers stream)
            (progn (wire:mark-call call :headers)
                   (write-headers-start stream call)))
      (let ((left-out (write-status call encoder buffer)))
        (http2:end-headers stream t)
        (when left-out (report-status-cut call left-out))))
    (note-served call)
    ;; the answer is whole, so the rest of the request is not needed (RFC 9113 8.1)
    (unless (server-call-half-closed call) (http2:reset-stream stream http2:+no-error+))
    nil))

(defun write-trailers-later (call)
  "Write the trailers of CALL, which has ended, after all data queued on its stream; do nothing if
the stream is closed."
  (let ((stream (server-call-stream call)))
    (when stream (http2:send-trailers-later stream #'write-trailers))))

;;; The end of a plain request (plain.lisp)

(defun status-http-status (status)
  "The HTTP status for a call that has ended with STATUS, in a response without its gRPC status."
  (ecase status
    (:ok 200)
    ((:invalid-argument :failed-precondition :out-of-range) 400)
    (:unauthenticated 401) (:permission-denied 403) (:not-found 404)
    ((:already-exists :aborted) 409)
    (:resource-exhausted 429)
    (:cancelled 499)
    ((:unknown :internal :data-loss) 500)
    (:unimplemented 501) (:unavailable 503) (:deadline-exceeded 504)))

(defun write-plain-end (call)
  "Write the end of the plain request of CALL, which has ended."
  (let ((request (call-http-request call))
        (status (call-status call)))
    (unless (exchange:begun-p request) (wire:mark-call call :headers))
    ;; a refusal allows no reset
    (when (server-call-route call) (note-served call))
    ;; a server that stops ends responses that would not end by themselves
    (exchange:write-end request (and (member status '(:ok :unavailable)) t)
                        (lambda ()
                          (exchange:check-answer (status-http-status status) '()
                                                 (nth-value 1 (rpc:final-status call)))))))

;;; The end of a call

(define-hot write-end ((call server-call)) null
  "Send the end of CALL after all queued data."
  (let ((stream (server-call-stream call)))
    (cond ((call-claim call) (funcall (protocol-handler-finish (call-protocol-handler call)) call))
          ((call-http-request call) (write-plain-end call))
          ((null stream))
          ((http2:stream-queue-empty-p stream)
           (write-trailers stream))
          (t (http2:send-trailers-later stream #'write-trailers))))
  nil)
