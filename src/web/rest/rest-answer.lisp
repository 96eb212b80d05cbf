;;;; Answers: a message or its response_body as JSON, a google.api.HttpBody as it is, a status as a
;;;; google.rpc.Status in JSON; and the forms in which the answers of a stream are put into one
;;;; body.

(in-package #:clgrpc.rest)

(defun sound-type (content-type)
  "CONTENT-TYPE if it is valid as a header; else the type for arbitrary octets."
  (if (and (plusp (length content-type))
           (every (lambda (char) (char<= #\Space char #\~)) content-type)
           (find #\/ content-type))
      content-type
      "application/octet-stream"))

(defun raw-body (route message)
  "The google.api.HttpBody that MESSAGE, an answer of ROUTE, is or has."
  (let ((field (route-answer-field route)))
    (if field (protobuf:field-value message field) message)))

(defun answer-json (route message finder)
  (if-let ((field (route-answer-field route)))
    (protobuf:field-json message field :as :octets :finder finder)
    (protobuf:message-json message :as :octets :finder finder)))

(defun message-answer (route message &optional (finder #'protobuf:find-message-type))
  "Return two values: the Content-Type and the octets of the body with which MESSAGE answers a
request of ROUTE; for a stream of google.api.HttpBody a piece of the body. FINDER finds the types of
the messages in Anys. Signal PROTOBUF-ERROR if MESSAGE has no form in JSON."
  (if (route-raw-answer route)
      (if-let ((body (raw-body route message)))
        (values (sound-type (google.api:http-body-content-type body))
                (google.api:http-body-data body))
        (values "application/octet-stream" (make-octets 0)))
      (values "application/json" (answer-json route message finder))))

;;; Statuses

(defun any-json (any)
  "ANY, a detail of a status, in JSON; if its type is not known, with its octets in base64."
  (handler-case (protobuf:message-json any)
    (protobuf:protobuf-error ()
      (write-json (list (cons "@type" (google.protobuf:any-type-url any))
                        (cons "value" (encode-base64 (google.protobuf:any-value any)
                                                     :padding t)))))))

(defun details-json (octets)
  "The details in OCTETS, a serialized google.rpc.Status or nil, in JSON, a list of strings."
  (handler-case
      (map 'list #'any-json
           (and octets (google.rpc:status-details (protobuf:parse-message 'google.rpc:status
                                                                          octets))))
    (protobuf:protobuf-error () '())))

(defun status-answer (code message details)
  "Return the octets of a google.rpc.Status in JSON with CODE, a number, MESSAGE, a string, and the
details of DETAILS, a serialized google.rpc.Status or nil."
  (let ((details (details-json details)))
    (string-octets (if details
                       (format nil "{\"code\":~D,\"message\":~A,\"details\":[~{~A~^,~}]}"
                               code (write-json message) details)
                       (write-json (list (cons "code" code) (cons "message" message)))))))

;;; Streams

(defparameter *stream-types*
  '(("application/json" . :array) ("text/event-stream" . :events)
    ("application/x-ndjson" . :lines) ("application/ndjson" . :lines)
    ("application/jsonl" . :lines) ("application/json-lines" . :lines)
    ("application/jsonlines" . :lines) ("application/*" . :array) ("*/*" . :array))
  "The forms of streams by media types that clients accept.")

(defun lines-type-p (content-type)
  "True if CONTENT-TYPE means JSON values, one a line."
  (eq :lines (cdr (assoc (web:media-type content-type) *stream-types* :test #'string=))))

(defun stream-form (accept)
  "Return the form in which a stream of answers is sent to a client that accepts ACCEPT, the header
or nil: :ARRAY, :LINES or :EVENTS. An array is the default."
  (let ((best :array) (weight 0))
    (http1:do-preferences (type parameters preference accept)
      (let ((form (cdr (assoc type *stream-types* :test #'string-equal))))
        (when (and form (> preference weight))
          (setf best form
                weight preference))))
    best))

(defun stream-type (form)
  "Return the Content-Type of a stream of answers in FORM."
  (ecase form
    (:array "application/json")
    (:lines "application/x-ndjson")
    (:events "text/event-stream")))

(defun framed (before octets after)
  (let ((all (make-octets (+ (length before) (length octets) (length after)))))
    (replace all before)
    (replace all octets :start1 (length before))
    (replace all after :start1 (+ (length before) (length octets)))
    all))

(defun framed-text (before octets after)
  (framed (ascii-octets before) octets (ascii-octets after)))

(defun stream-item (form octets first)
  "Return the octets for OCTETS, an answer in JSON, in a stream in FORM; FIRST is true for the first
answer."
  (ecase form
    (:array (framed-text (if first "[" ",") octets ""))
    (:lines (framed-text "" octets (string #\Newline)))
    (:events (framed-text "data: " octets (format nil "~2%")))))

(defun stream-status (form octets first)
  "Return the octets with which a stream in FORM ends early, with the status OCTETS, as
STATUS-ANSWER returns it."
  (let ((item (stream-item form (framed-text "{\"error\":" octets "}") first)))
    (ecase form
      (:array (framed-text "" item "]"))
      (:lines item)
      (:events (framed-text (format nil "event: error~%") item "")))))

(defun stream-close (form first)
  "Return the octets that end a stream in FORM without an error; FIRST is true if it has no item."
  (ascii-octets (ecase form
                  (:array (if first "[]" "]"))
                  ((:lines :events) ""))))
