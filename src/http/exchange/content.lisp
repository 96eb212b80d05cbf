;;;; Answers: the values of HTTP handlers, checked. An answer's headers must not include headers
;;;; that only the server sets, and each header must be exactly one line of the head.

(in-package #:clgrpc.exchange)

(defstruct (plain-answer (:constructor make-plain-answer (http-status headers body &optional head))
                         (:copier nil))
  "The answer to a request."
  (http-status 200 :type (integer 200 599) :read-only t) ; the status code, as in RFC 9110
  (headers '() :type list :read-only t) ; an alist, checked, without content-length
  (body (make-octets 0) :type octets :read-only t) ; the body; empty if there is none
  ;; of a FIXED-ANSWER: its head over HTTP/1.1, up to the last field, the date
  (head nil :type (or null octets) :read-only t))

(defstruct (answer-head (:constructor %make-answer-head (http-status fields lines)) (:copier nil))
  "The common head of answers with different bodies, to which further headers may be added."
  (http-status 200 :type (integer 200 599) :read-only t) ; the status code, as in RFC 9110
  (fields #() :type simple-vector :read-only t) ; the header fields over HTTP/2, HPACK's
  (lines (make-octets 0) :type octets :read-only t)) ; over HTTP/1.1, without the last lines

(declaim (sb-ext:freeze-type plain-answer answer-head))

(define-printer (head answer-head)
  "~D" (answer-head-http-status head))

(defun make-answer-head (http-status headers)
  "Return the head of answers with HTTP-STATUS and HEADERS, an alist of strings, written once."
  (%make-answer-head http-status
                     (map 'simple-vector
                          (lambda (entry) (hpack:string-field (car entry) (cdr entry)))
                          (acons ":status" (format nil "~D" http-status) headers))
                     (http1:response-head-octets http-status headers nil)))

(defun text-answer (http-status text)
  "Return the answer HTTP-STATUS with a short TEXT."
  (make-plain-answer http-status '(("content-type" . "text/plain")) (ascii-octets text)))

(deftype text ()
  '(simple-array character (*)))

(define-hot sound-value-p ((value text)) boolean
  "True if VALUE is valid for a header without a change: printable ASCII without blanks around it."
  (let ((end (length value)))
    (and (loop for char across value always (char<= #\Space char #\~))
         (or (zerop end)
             (and (char/= #\Space (char value 0))
                  (char/= #\Space (char value (1- end))))))))

(define-hot same-name-p ((a text) (b text)) boolean
  "True if A and B, names of headers in lower case, are the same."
  (and (= (length a) (length b))
       (loop for x across a for y across b always (char= x y))))

(defparameter *our-headers*
  (mapcar (lambda (name) (coerce name 'text))
          '("connection" "content-length" "keep-alive" "proxy-connection" "te" "transfer-encoding"
            "upgrade"))
  "The names of headers that only the server may set.")

(defun sound-header (entry)
  "Return ENTRY, a handler's header, with its name in lower case and without blanks around its
value. Signal an error if ENTRY cannot be a header; the error does not show ENTRY, which may be
secret."
  (unless (and (consp entry) (stringp (car entry)) (stringp (cdr entry)))
    (error "Headers are an alist from strings to strings; one entry is not."))
  (let ((name (coerce (string-downcase (car entry)) 'text))
        (value (coerce (string-trim '(#\Space #\Tab) (cdr entry)) 'text)))
    (unless (http1:header-name-p name)
      (error "The name of one entry is not a header's, which has to be a token (RFC 9110, 5.6.2)."))
    (unless (sound-value-p value)
      (error "The value of the header ~A must be printable ASCII." name))
    (cons name value)))

(defun check-header (entry)
  "Return ENTRY, one of a handler's headers, in the form in which it is sent, or nil if only the
server may set this header."
  (let ((entry (if (and (consp entry)
                        (typep (car entry) 'text) (http1:header-name-p (car entry))
                        (typep (cdr entry) 'text) (sound-value-p (cdr entry)))
                   entry
                   (sound-header entry))))
    (if (member (car entry) *our-headers* :test #'same-name-p) nil entry)))

(defun find-header (name headers)
  "Return the entry with NAME in HEADERS, which have been checked, or nil if there is none."
  (find-if (lambda (entry) (same-name-p name (car entry))) headers))

(defun check-answer (http-status headers body)
  "Return the PLAIN-ANSWER for the three values that a handler has returned. Signal an error if the
values are not valid."
  (unless (typep http-status '(integer 200 599))
    (error "A handler has returned ~S, which is not an HTTP status from 200 to 599; headers and a ~
            body are its second and third value." http-status))
  (unless (listp headers)
    (error "Headers, the second value of a handler, are an alist from strings to strings, not ~S."
           headers))
  (let ((headers (loop for entry in headers
                       for checked = (check-header entry)
                       when checked collect checked)))
    (when (and (stringp body) (null (find-header "content-type" headers)))
      (push '("content-type" . "text/plain; charset=utf-8") headers))
    (make-plain-answer http-status headers
                       (typecase body
                         (null (make-octets 0))
                         (string (string-octets body))
                         ((vector octet) (coerce body 'octets))
                         (t (error "The body of an answer is a string or octets, not ~S."
                                   body))))))

(defun fixed-answer (http-status headers body)
  "Return an answer that handlers may return again and again. HTTP-STATUS, HEADERS and BODY have the
form of handlers' values; they are checked and written only once. From any thread."
  (let* ((answer (check-answer http-status headers body))
         (headers (plain-answer-headers answer)))
    (if (or (member http-status '(204 304)) (find-header "date" headers))
        answer
        (make-plain-answer http-status headers (plain-answer-body answer)
                           (http1:response-head-octets http-status headers
                                                       (length (plain-answer-body answer)))))))
