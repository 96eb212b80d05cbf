;;;; Statuses as HTTP/2 carries them: codes of HTTP and HTTP/2 to status (gRPC "HTTP to gRPC status
;;;; code mapping"; gRPC over HTTP/2, "Errors"), and the status message, which is percent-encoded in
;;;; grpc-message (gRPC over HTTP/2, "Status-Message").

(in-package #:clgrpc.wire)

;;; HTTP and HTTP/2 codes to status

(defun http-status-status (http-status)
  "The status of a response without grpc-status that has HTTP-STATUS. For 431 it is :unknown, as in
other implementations and in ConnectRPC's suite, although the newest version of the document has
:internal."
  (case http-status
    (400 :internal) (401 :unauthenticated) (403 :permission-denied) (404 :unimplemented)
    ((429 502 503 504) :unavailable)
    (t :unknown)))

(defun status-number (value)
  "The number that VALUE of grpc-status is, or nil if it is not one."
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

;;; Percent-encoding of grpc-message

(define-hot (hex-digit :inline t) ((value (unsigned-byte 4))) octet
  (char-code (schar "0123456789ABCDEF" value)))

(define-hot status-char-octets ((message simple-string) (i index)) (integer 1 12)
  "How many octets of grpc-message the character at I of MESSAGE becomes: one if it is not encoded,
else three for each octet of its UTF-8."
  (let ((code (char-code (schar message i))))
    (cond ((>= code #x10000) 12)
          ((>= code #x800) 9)
          ((>= code #x80) 6)
          ((= code #x20) (if (or (= i 0) (= i (1- (length message)))) 3 1))
          ((and (< #x20 code #x7F) (/= code #x25)) 1)
          (t 3))))

(define-hot status-message-end ((message simple-string) (limit index)) (values index index boolean)
  "Find the part of MESSAGE that fits into LIMIT octets. The values are the position of its end, the
number of its octets, and true if it is not all of MESSAGE. In that case LIMIT has room for an
ellipsis after it."
  (let ((size 0) (end 0) (end-size 0))
    (declare (type index size end end-size))
    (dotimes (i (length message) (values (length message) size nil))
      (when (<= (+ size 3) limit)
        (setf end i
              end-size size))
      (incf size (status-char-octets message i))
      (when (> size limit)
        (return (values end end-size t))))))

(define-hot write-status-char ((octets octets) (at index) (code (unsigned-byte 21))) index
  "Write the character CODE, percent-encoded, into OCTETS at AT; return the position after it."
  (flet ((write-octet (octet)
           (setf (aref octets at) #x25
                 (aref octets (+ at 1)) (hex-digit (ash octet -4))
                 (aref octets (+ at 2)) (hex-digit (logand octet 15)))
           (incf at 3))
         (later (shift) (logior #x80 (ldb (byte 6 shift) code))))
    ;; UTF-8 has no surrogates
    (when (<= #xD800 code #xDFFF) (setf code #xFFFD))
    (cond ((< code #x80) (write-octet code))
          ((< code #x800) (write-octet (logior #xC0 (ash code -6))))
          ((< code #x10000)
           (write-octet (logior #xE0 (ash code -12)))
           (write-octet (later 6)))
          (t (write-octet (logior #xF0 (ash code -18)))
             (write-octet (later 12))
             (write-octet (later 6))))
    (when (>= code #x80) (write-octet (later 0)))
    at))

(defun encode-status-message (message &optional (limit (ash 1 40)))
  "Return the octets of grpc-message for the string MESSAGE. If they would be more than LIMIT,
encode only its beginning and an ellipsis. Blanks at its ends are escaped as well, since HTTP/2
allows none there (RFC 9113 section 8.2.1)."
  (let ((message (coerce message 'simple-string)))
    (multiple-value-bind (end size cut) (status-message-end message limit)
      (let ((octets (make-octets (if (and cut (plusp end)) (+ size 3) size)))
            (at 0))
        (dotimes (i end)
          (let ((code (char-code (schar message i))))
            (cond ((= 1 (status-char-octets message i))
                   (setf (aref octets at) code)
                   (incf at))
                  (t (setf at (write-status-char octets at code))))))
        (fill octets (char-code #\.) :start at)
        octets))))

(defun decode-status-message (octets)
  "Return the string encoded in grpc-message's OCTETS. Never fails: broken escapes stay as they are,
octets that are not UTF-8 become U+FFFD."
  (let ((buffer (make-buffer :size (length octets)))
        (at 0))
    (loop while (< at (length octets))
          do (let ((value (and (= #x25 (aref octets at)) (hex-pair octets (1+ at)))))
               (append-octet buffer (or value (aref octets at)))
               (incf at (if value 3 1))))
    (handler-case (decode-utf8 (buffer-octets buffer) 0 (buffer-end buffer))
      (invalid-utf8 ()
        (map 'string (lambda (octet) (if (< octet 128) (code-char octet) (code-char #xFFFD)))
             (subseq (buffer-octets buffer) 0 (buffer-end buffer)))))))

(defun hex-pair (octets at)
  (flet ((digit (position)
           (and (< position (length octets)) (digit-char-p (code-char (aref octets position)) 16))))
    (let ((high (digit at)) (low (digit (1+ at))))
      (and high low (+ (* 16 high) low)))))

;;; Trailers

(defun trailers-status (list)
  "Four values from the trailers LIST: the number of the status, the text, the octets of the
details, each nil if it is missing, and the metadata."
  (let ((status (hpack:find-field list "grpc-status"))
        (message (hpack:find-field list "grpc-message"))
        (details (hpack:find-field list "grpc-status-details-bin")))
    (values (and status (status-number (hpack:field-value-string status)))
            (and message (decode-status-message (hpack:field-value message)))
            (and details
                 (handler-case (decode-base64 (hpack:field-value-string details))
                   (invalid-base64 () nil)))
            (list-custom-fields list #()))))
