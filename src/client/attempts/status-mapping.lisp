;;;; The status of a response: from codes of HTTP and HTTP/2 (gRPC "HTTP to gRPC status code
;;;; mapping"; gRPC over HTTP/2, "Errors"), or from trailers.

(in-package #:clgrpc.client)

(defun http-status-status (http-status)
  "The status of a response without grpc-status that has HTTP-STATUS. For 431 the value is :unknown,
as in other implementations and in ConnectRPC's suite, although the newest version of the document
says :internal."
  (case http-status
    (400 :internal) (401 :unauthenticated) (403 :permission-denied) (404 :unimplemented)
    ((429 502 503 504) :unavailable)
    (t :unknown)))

(defun status-number (value)
  "The number that VALUE, of grpc-status, represents, or nil if it represents none."
  (and (<= 1 (length value) 8)
       (every #'digit-char-p value)
       (parse-integer value)))

(defun error-code-status (error-code)
  "The status for a stream reset with the HTTP/2 ERROR-CODE."
  (cond ((= error-code http2:+refused-stream+) :unavailable)
        ((= error-code http2:+cancel+) :cancelled)
        ((= error-code http2:+enhance-your-calm+) :resource-exhausted)
        ((= error-code http2:+inadequate-security+) :permission-denied)
        (t :internal)))

;;; Trailers

(defun decode-status-message (octets)
  "Return the string encoded in grpc-message's OCTETS. Never fails: broken escapes stay as they are,
octets that are not UTF-8 become U+FFFD."
  (let ((decoded (make-octets (length octets)))
        (at 0)
        (end 0))
    (loop while (< at (length octets))
          do (let ((value (and (= #x25 (aref octets at)) (hex-pair octets (1+ at)))))
               (setf (aref decoded end) (or value (aref octets at)))
               (incf end)
               (incf at (if value 3 1))))
    (handler-case (decode-utf8 decoded 0 end)
      (invalid-utf8 ()
        (map 'string (lambda (octet) (if (< octet 128) (code-char octet) (code-char #xFFFD)))
             (subseq decoded 0 end))))))

(defun hex-pair (octets at)
  (flet ((digit (position)
           (and (< position (length octets)) (digit-char-p (code-char (aref octets position)) 16))))
    (let ((high (digit at)) (low (digit (1+ at))))
      (and high low (+ (* 16 high) low)))))

(defun trailers-status (list)
  "Three values from the trailers LIST: the number of the status, the text and the octets of the
details, each nil if it is missing."
  (let ((status (hpack:find-field list "grpc-status"))
        (message (hpack:find-field list "grpc-message"))
        (details (hpack:find-field list "grpc-status-details-bin")))
    (values (and status (status-number (hpack:field-value-string status)))
            (and message (decode-status-message (hpack:field-value message)))
            (and details
                 (handler-case (decode-base64 (hpack:field-value-string details))
                   (invalid-base64 () nil))))))
