;;;; The writer: heads and the lines of chunks are appended to a BUFFER of base. The caller ensures
;;;; that a body is as long as its head says, and that names and values are valid in HTTP. A CR or
;;;; LF in a name or value, which would begin another field, is refused here.

(in-package #:clgrpc.http1)

(defun refuse-text (text)
  (misuse "~S cannot be part of a head: it contains an end of line." text))

(define-hot append-simple-text ((buffer buffer) (text (simple-array character (*)))) null
  (let ((octets (ensure-buffer-room buffer (length text)))
        (at (buffer-end buffer)))
    (declare (type index at))
    (loop for character across text
          for code = (char-code character)
          do (when (or (= +cr+ code) (= +lf+ code) (zerop code)) (refuse-text text))
             (setf (aref octets at) (if (< code 256) code 63)) ; a question mark
             (incf at))
    (setf (buffer-end buffer) at)
    nil))

(defun append-text (buffer text)
  "Append TEXT, a part of a line, as one octet for each character. Signal MISUSE if TEXT would end
the line."
  (append-simple-text buffer (if (typep text '(simple-array character (*)))
                                 text
                                 (coerce (the string text) '(simple-array character (*))))))

(define-hot append-line-end ((buffer buffer)) null
  (append-octet buffer +cr+)
  (append-octet buffer +lf+)
  nil)

(define-hot append-number ((buffer buffer) (number index) (radix (integer 2 16))) null
  "Append the digits of NUMBER, in lower case."
  (let ((power 1))
    (declare (type index power))
    (loop while (<= power (floor number radix)) do (setf power (* power radix)))
    (loop
      (multiple-value-bind (digit rest) (floor number power)
        (append-octet buffer (if (< digit 10) (+ 48 digit) (+ 87 digit)))
        (when (= 1 power) (return nil))
        (setf number rest
              power (floor power radix))))))

(defun append-field (buffer name value)
  (append-text buffer name)
  (append-text buffer ": ")
  (append-text buffer value)
  (append-line-end buffer))

(defun append-fields (buffer fields)
  "Append FIELDS, an alist of strings, one line for each."
  (loop for (name . value) in fields do (append-field buffer name value)))

(defun append-framing (buffer body)
  "Append the framing header for BODY: the length of a body, :chunked, or nil for no header."
  (etypecase body
    (integer (append-text buffer "content-length: ")
     (append-number buffer body 10)
     (append-line-end buffer))
    ((eql :chunked) (append-field buffer "transfer-encoding" "chunked"))
    (null)))

(defun append-framed-fields (buffer fields body &optional connection)
  "Append FIELDS, an alist of strings, the framing header for BODY (see WRITE-RESPONSE-HEAD), and
the header connection with the value CONNECTION, \"close\" or \"keep-alive\", unless that is nil."
  (append-fields buffer fields)
  (append-framing buffer body)
  (when connection (append-field buffer "connection" connection)))

(defun write-request-head (buffer http-method target fields body)
  "Append to BUFFER the head of a request with HTTP-METHOD and TARGET, strings, and FIELDS, an alist
of strings that must have an entry for host. BODY is the length of its body, :chunked, or nil for no
body."
  (append-text buffer http-method)
  (append-text buffer " ")
  (append-text buffer target)
  (append-text buffer " HTTP/1.1")
  (append-line-end buffer)
  (append-framed-fields buffer fields body)
  (append-line-end buffer))

(defun reason-text (status)
  "HTTP's reason phrase of STATUS."
  (case status
    (100 "Continue") (200 "OK") (201 "Created") (202 "Accepted") (204 "No Content")
    (206 "Partial Content") (301 "Moved Permanently") (302 "Found") (303 "See Other")
    (304 "Not Modified") (307 "Temporary Redirect") (308 "Permanent Redirect")
    (400 "Bad Request") (401 "Unauthorized") (403 "Forbidden") (404 "Not Found")
    (405 "Method Not Allowed") (406 "Not Acceptable") (408 "Request Timeout") (409 "Conflict")
    (410 "Gone") (412 "Precondition Failed") (413 "Content Too Large") (414 "URI Too Long")
    (415 "Unsupported Media Type") (417 "Expectation Failed") (422 "Unprocessable Content")
    (429 "Too Many Requests") (431 "Request Header Fields Too Large")
    (500 "Internal Server Error") (501 "Not Implemented") (502 "Bad Gateway")
    (503 "Service Unavailable") (504 "Gateway Timeout") (505 "HTTP Version Not Supported")
    (t "")))

(defun append-response-lines (buffer status fields body &optional connection)
  "Append the head of a response without its final empty line."
  (append-text buffer "HTTP/1.1 ")
  (append-number buffer status 10)
  (append-text buffer " ")
  (append-text buffer (reason-text status))
  (append-line-end buffer)
  (append-framed-fields buffer fields body connection))

(defun written-octets (append &rest arguments)
  "Call APPEND with a buffer and ARGUMENTS, and return the octets that it appends to the buffer."
  (let ((buffer (make-buffer :size 256)))
    (apply append buffer arguments)
    (subseq-octets (buffer-octets buffer) (buffer-start buffer) (buffer-end buffer))))

(defun response-head-octets (status fields body)
  "Return the octets of WRITE-RESPONSE-HEAD without the empty line, for responses that are written
more than once. LAST-HEAD-OCTETS must follow these octets."
  (written-octets #'append-response-lines status fields body))

(defun last-head-octets (fields)
  "Return as octets FIELDS, an alist of strings, and the empty line that ends a head."
  (written-octets (lambda (buffer)
                    (append-fields buffer fields)
                    (append-line-end buffer))))

(defun write-response-head (buffer status fields body &key connection)
  "Append to BUFFER the head of a response with STATUS and FIELDS, an alist of strings. BODY is the
length of its body, or :chunked; or nil if the response can have no body (1xx, 204, 304) or the head
does not describe the body. CONNECTION, \"close\", \"keep-alive\" or nil, is the value of the header
connection."
  (append-response-lines buffer status fields body connection)
  (append-line-end buffer))

(defun write-chunk (buffer octets start end)
  "Append to BUFFER the octets from START to END, at least one, as a chunk."
  (assert (< start end))
  (append-number buffer (- end start) 16)
  (append-line-end buffer)
  (append-octets buffer octets :start start :end end)
  (append-line-end buffer))

(defun write-last-chunk (buffer &optional trailers)
  "Append to BUFFER the end of a chunked body, with TRAILERS, an alist of strings."
  (append-octet buffer 48)
  (append-line-end buffer)
  (append-fields buffer trailers)
  (append-line-end buffer))
