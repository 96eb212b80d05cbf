;;;; What a server writes: response headers, trailers, trailers-only, and the answer to a request
;;;; that is not gRPC (gRPC over HTTP/2, "Responses"). Constant fields go into the peer's dynamic
;;;; table once, so that from the second call on the headers of a good answer are two octets and its
;;;; trailers one.

(in-package #:clgrpc.server)

(defmacro define-field (name field-name value)
  `(defglobal ,name (hpack:string-field ,field-name ,value)))

(define-field **status-200** ":status" "200")
(define-field **content-type** "content-type" "application/grpc")
(declaim (type simple-vector **response-fields**))
(defglobal **response-fields** (vector **status-200** **content-type**))
(define-field **text-plain** "content-type" "text/plain")

(declaim (type simple-vector **grpc-statuses**))
(defglobal **grpc-statuses**
    (coerce (loop for code to 16
                  collect (hpack:string-field "grpc-status" (format nil "~D" code)))
            'simple-vector))

(defglobal **grpc-message** (ascii-octets "grpc-message"))
(defglobal **grpc-status-details** (ascii-octets "grpc-status-details-bin"))

(define-hot write-headers-start ((stream http2:stream) (call server-call))
    (values hpack:encoder buffer)
  (multiple-value-bind (encoder buffer) (http2:begin-headers stream)
    (hpack:encode-fields encoder buffer **response-fields**)
    (when (rpc:compression-of call) (encode-compression-fields call encoder buffer))
    (values encoder buffer)))

(defmethod rpc:write-initial-headers ((call server-call))
  (let ((stream (wire-call-stream call)))
    (multiple-value-bind (encoder buffer) (write-headers-start stream call)
      (let ((extra (call-extra call)))
        (when (and extra (rpc:extra-metadata extra))
          (rpc:encode-metadata (rpc:extra-metadata extra) encoder buffer)))
      (http2:end-headers stream nil))))

(define-hot write-status ((call server-call) (encoder hpack:encoder) (buffer buffer)) null
  (let* ((status (call-status call))
         (extra (call-extra call))
         (outcome (and extra (rpc:extra-outcome extra))))
    (hpack:encode-field encoder buffer
                        (the hpack:field (svref **grpc-statuses**
                                                (if (eq status :ok) 0 (rpc:status-code status))))
                        (if (eq status :ok) :index :plain))
    (when outcome
      (when (plusp (length (rpc:outcome-message outcome)))
        (hpack:encode-literal encoder buffer **grpc-message**
                              (rpc:encode-status-message (rpc:outcome-message outcome)) :plain))
      (when (rpc:outcome-details outcome)
        (hpack:encode-literal encoder buffer **grpc-status-details**
                              (ascii-octets (encode-base64 (rpc:outcome-details outcome)
                                                           :padding nil))
                              :plain)))
    (when (and extra (rpc:extra-trailers extra))
      (rpc:encode-metadata (rpc:extra-trailers extra) encoder buffer))
    nil))

(define-hot write-trailers ((stream http2:stream)) null
  "Write the trailers of STREAM's call, which has ended, and so end the stream."
  (let ((call (http2:stream-user stream)))
    (declare (type server-call call))
    (multiple-value-bind (encoder buffer)
        (if (wire-call-headers-sent call)
            (http2:begin-headers stream)
            (progn (rpc:mark-call call rpc:+headers+)
                   (write-headers-start stream call)))
      (write-status call encoder buffer)
      (http2:end-headers stream t))
    ;; the answer is whole, so the rest of the request is of no interest (RFC 9113 8.1)
    (unless (call-half-closed call) (http2:reset-stream stream http2:+no-error+))
    nil))

(define-hot write-end ((call server-call)) null
  "Send the end of CALL behind what is queued."
  (let ((stream (wire-call-stream call)))
    (when stream
      (if (http2:stream-queue-empty-p stream)
          (write-trailers stream)
          (http2:send-trailers-later stream #'write-trailers))))
  nil)

(defun write-plain-answer (stream http-status text)
  "Answer a request that is not gRPC with HTTP-STATUS and a short TEXT."
  (let ((body (ascii-octets text)))
    (multiple-value-bind (encoder buffer) (http2:begin-headers stream)
      (hpack:encode-literal encoder buffer (ascii-octets ":status")
                            (ascii-octets (format nil "~D" http-status)) :plain)
      (hpack:encode-field encoder buffer **text-plain** :plain)
      (hpack:encode-literal encoder buffer (ascii-octets "content-length")
                            (ascii-octets (format nil "~D" (length body))) :plain)
      (http2:end-headers stream nil))
    (http2:send-data stream body 0 (length body) t)))
