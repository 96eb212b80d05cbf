;;;; What the body says of a request: JSON of the whole message or of one field, or the octets of a
;;;; google.api.HttpBody. For methods to which clients stream a body is any number of JSON values
;;;; after each other, an array of them, or, of HttpBody, one body in pieces.

(in-package #:clgrpc.rest)

(defconstant +piece-octets+ 1048576
  "The octets of the messages that a long body to a stream of HttpBody becomes.")

(defconstant +most-messages+ 10000
  "The messages that a body in JSON may have.")

(defconstant +most-bound-octets+ 4194304
  "The most characters of path and query, times the messages that a body has: what they say is bound
to each.")

(defun charset-of (content-type)
  "The charset that CONTENT-TYPE names, in lower case, or nil."
  (let ((start (search "charset=" content-type :test #'char-equal)))
    (and start
         (let* ((from (+ start (length "charset=")))
                (end (position #\; content-type :start from)))
           (string-downcase (string-trim " \"" (subseq content-type from end)))))))

(defun check-json-type (content-type)
  "Signal REQUEST-ERROR, 415, if CONTENT-TYPE, the header or nil, is not that of JSON in UTF-8."
  (when content-type
    (unless (string= "application/json" (web:media-type content-type))
      (refuse-request 415 :invalid-argument "the body must be application/json, not ~A"
                      (web:media-type content-type)))
    (unless (member (charset-of content-type) '(nil "utf-8" "utf8" "us-ascii") :test #'equal)
      (refuse-request 415 :invalid-argument "the body must be in UTF-8"))))

(defmacro reading-json (() &body body)
  "Run BODY; what it finds wrong in JSON becomes a REQUEST-ERROR."
  `(handler-case (progn ,@body)
     (protobuf:message-text-error (condition)
       (let ((path (protobuf:message-text-error-path condition)))
         (refuse-field (if (string= "" path) "the body" path) "~A (line ~D, column ~D of the body)"
                       (protobuf:protobuf-error-text condition)
                       (protobuf:message-text-error-line condition)
                       (protobuf:message-text-error-column condition))))))

(defun http-body (content-type octets)
  (google.api:make-http-body :content-type (or content-type "") :data octets))

(defun body-message (route octets content-type)
  "A message of ROUTE's request with what its body, OCTETS of CONTENT-TYPE, says."
  (let ((type (route-request-type route)) (body (route-body route))
        (empty (zerop (length octets))))
    (cond ((null body) (protobuf:make-message type))
          ((not (route-raw-body route))
           ;; that of a stream may have types of its own, and is checked once, with the head
           (unless (or empty (streamed-p route)) (check-json-type content-type))
           (reading-json ()
             (cond ((eq :all body)
                    (if empty
                        (protobuf:make-message type)
                        (protobuf:parse-json-message type octets :partial t)))
                   (empty (protobuf:make-message type))
                   (t (protobuf:parse-json-field (protobuf:make-message type) body octets)))))
          ((eq :all body) (http-body content-type octets))
          (t (let ((message (protobuf:make-message type)))
               (setf (protobuf:field-value message body) (http-body content-type octets))
               message)))))

(defun check-complete (route message)
  (handler-case (protobuf:check-required (route-request-type route) message)
    (protobuf:required-field-missing (condition)
      (refuse-field (protobuf:required-field-missing-path condition) "is required"))))

(defun bind-message (route match query octets content-type)
  "Return the message that a request of ROUTE is, or for a method to which clients stream one of
them. MATCH is FIND-ROUTE's, QUERY the query as it came or nil, OCTETS the body or a part of
BODY-PARTS, CONTENT-TYPE that header or nil. Signal REQUEST-ERROR if they do not make one."
  (let ((message (body-message route octets content-type)))
    (bind-query route message query)
    (bind-path route match message)
    (check-complete route message)
    message))

;;; Streams of clients

(defun json-values (octets)
  "The octets of each of the JSON values that OCTETS are: those of an array, or what stands after
each other."
  (let ((reader (make-json-reader octets :max-depth 400 :max-length (expt 2 26))) (values '())
        (count 0))
    (flet ((take ()
             (skip-json-space reader)
             (when (> (incf count) +most-messages+)
               (refuse-field "the body" "has more than ~D messages" +most-messages+))
             (let ((start (json-reader-position reader)))
               (skip-json-value reader)
               (push (subseq-octets octets start (json-reader-position reader)) values))))
      (handler-case
          (cond ((eql #\[ (skip-json-space reader))
                 (do-json-elements (reader) (take))
                 (expect-json-end reader))
                (t (loop while (skip-json-space reader) do (take))))
        (json-error (condition)
          (refuse-field "the body" "~A (line ~D, column ~D)" (json-error-text condition)
                        (json-error-line condition) (json-error-column condition)))
        (limit-exceeded () (refuse-field "the body" "nests too deep")))
      (nreverse values))))

(defun pieces (octets)
  "OCTETS in pieces for the messages of a stream; one if there are none."
  (if (<= (length octets) +piece-octets+)
      (list octets)
      (loop for start from 0 below (length octets) by +piece-octets+
            collect (subseq-octets octets start (min (length octets) (+ start +piece-octets+))))))

(defun streamed-p (route)
  "Return true if clients stream to ROUTE's method, and the body has the messages."
  (and (route-body route)
       (protobuf:method-descriptor-client-streaming-p (route-method route))))

(defun body-parts (route match query octets)
  "Return the parts of OCTETS, the body of a request of ROUTE, for the messages of the request, to
each of which BIND-MESSAGE binds what MATCH and QUERY say: of a stream up to +MOST-MESSAGES+, else
one. Signal REQUEST-ERROR if they are not the JSON that they should be, or if too much would be
bound."
  (let ((parts (cond ((not (streamed-p route)) (list octets))
                     ((route-raw-body route) (pieces octets))
                     (t (json-values octets)))))
    (when (< +most-bound-octets+
             (* (1- (max 1 (length parts))) (+ (length (match-text match)) (length query))))
      (refuse-request 400 :invalid-argument
                      "the path and the query are too long for a body of ~D messages"
                      (length parts)))
    parts))
