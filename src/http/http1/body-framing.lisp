;;;; The end of a body (RFC 9112 section 6), and whether the connection remains open. It is an error
;;;; if a message does not state its framing exactly once, since a proxy between the ends might
;;;; understand it differently.

(in-package #:clgrpc.http1)

(defun named-p (field name)
  (string= name (hpack:field-name-string field)))

(defun fields-named (name fields)
  (remove-if-not (lambda (field) (named-p field name)) fields))

(defun only-field (name fields)
  "Return the field NAME, or nil if there is none. Two fields with this name are an error."
  (let ((found (fields-named name fields)))
    (when (rest found) (bad-message 400 "~A is there twice" name))
    (first found)))

(defun only-value (name fields)
  "Return the value of the field NAME, or nil if there is none. Two fields with this name are an
error."
  (let ((field (only-field name fields)))
    (and field (hpack:field-value-string field))))

(defun list-words (name fields)
  "Return the words, in lower case, in all fields NAME, whose values are lists separated by commas."
  (loop for field in (fields-named name fields)
        append (split-list (string-downcase (hpack:field-value-string field)))))

(defun content-length (fields)
  "Return the number in content-length, or nil if this field is missing."
  (when-let ((field (only-field "content-length" fields)))
    (let ((value (hpack:field-value field)))
      (or (decimal value 0 (length value))
          (bad-message 400 "content-length is not a number")))))

(defun chunked-p (fields minor)
  (when-let ((value (only-value "transfer-encoding" fields)))
    (unless (string-equal "chunked" value)
      ;; the end of the body is known only if the last coding is chunked (section 6.3)
      (if (equal "chunked" (first (last (list-words "transfer-encoding" fields))))
          (bad-message 501 "there is a transfer coding other than chunked")
          (bad-message 400 "the last transfer coding is not chunked")))
    (when (zerop minor) (bad-message 400 "HTTP/1.0 has no transfer codings"))
    (when (fields-named "content-length" fields)
      (bad-message 400 "both transfer-encoding and content-length are given"))
    t))

(defun persistent-p (fields minor)
  "True if the connection remains open after a message."
  (let ((words (list-words "connection" fields)))
    (cond ((member "close" words :test #'string=) nil)
          ((plusp minor) t)
          (t (and (member "keep-alive" words :test #'string=) t)))))

(defun request-body (fields minor)
  (cond ((chunked-p fields minor) :chunked)
        ((content-length fields))
        (t 0)))

(defun bodiless-p (http-method status)
  "True if a final response with STATUS to a request with HTTP-METHOD has no body (RFC 9110 section
6.4.1)."
  (or (= 204 status) (= 304 status) (string= "HEAD" http-method)))

(defun response-body (status http-method fields minor)
  (let ((chunked (chunked-p fields minor))
        (length (content-length fields)))
    (cond ((or (= 101 status) (and (string= "CONNECT" http-method) (<= 200 status 299))) :tunnel)
          ((or (< status 200) (bodiless-p http-method status)) 0)
          (chunked :chunked)
          (length)
          (t :until-close))))

(defun host (fields minor authority)
  "Return AUTHORITY, which comes from the target and has priority (RFC 9112 section 3.2.2), or the
value of the field host if AUTHORITY is nil."
  (let ((host (only-value "host" fields)))
    (unless (or host (zerop minor)) (bad-message 400 "there is no host field"))
    (unless (and (every #'host-char-p (or host "")) (every #'host-char-p (or authority "")))
      (bad-message 400 "the host has characters that no host may have"))
    (or authority host)))

(defun expects-p (fields)
  "True if the client waits for the status 100."
  (when-let ((value (only-value "expect" fields)))
    (or (string-equal "100-continue" value)
        (bad-message 417 "the request has an unknown expectation in the field expect"))))

(defun connection-field-p (field)
  "True if FIELD describes the connection, not the message."
  (member (hpack:field-name-string field)
          '("connection" "keep-alive" "proxy-connection" "transfer-encoding" "upgrade" "host"
            "expect" "te" "trailer")
          :test #'string=))

(defun message-fields-of (fields authority)
  "Return FIELDS in the form in which a MESSAGE has them, after a field for AUTHORITY unless
AUTHORITY is nil."
  (coerce (append (and authority (list (hpack:string-field ":authority" authority)))
                  (remove-if #'connection-field-p fields))
          'simple-vector))

(defun request-from (octets start end limit)
  "Return the request whose head is the octets from START to END, without the empty line after it.
The head may have at most LIMIT fields."
  (let ((line-end (line-end octets start end)))
    (multiple-value-bind (http-method target minor) (request-line octets start line-end)
      (multiple-value-bind (authority path) (split-target http-method target)
        (let* ((fields (read-fields octets (+ 2 line-end) end limit))
               (kept (message-fields-of fields (host fields minor authority))))
          (make-message
           :http-method http-method :target path :minor minor :fields kept
           :octets (+ (* 8 (length path)) (hpack:fields-octets kept))
           :body (request-body fields minor)
           :persistent-p (persistent-p fields minor)
           :expects-p (and (plusp minor) (expects-p fields))))))))

(defun response-from (octets start end limit http-method)
  "Return what REQUEST-FROM returns, but for the response to a request with HTTP-METHOD."
  (let ((line-end (line-end octets start end)))
    (multiple-value-bind (status reason minor) (status-line octets start line-end)
      (let* ((fields (read-fields octets (+ 2 line-end) end limit))
             (body (response-body status http-method fields minor)))
        (make-message
         :status status :reason reason :minor minor
         :fields (message-fields-of fields nil)
         :body body
         :persistent-p (and (not (member body '(:until-close :tunnel)))
                            (persistent-p fields minor)))))))
