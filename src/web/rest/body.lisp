;;;; The part of a request in its body: JSON of the whole message or of one field, or the octets of
;;;; a google.api.HttpBody. For methods with a stream of requests a body is any number of
;;;; consecutive JSON values, an array of such values, or, for HttpBody, one body in pieces.

(in-package #:clgrpc.rest)

(defconstant +piece-octets+ 1048576
  "The octets of each message into which a long body to a stream of HttpBody is divided.")

(defconstant +most-messages+ 10000
  "The maximum number of messages in a body in JSON.")

(defconstant +most-bound-texts+ 20000
  "The maximum of a product: the number of variables in the path and parameters in the query, times
the number of messages in the body, because each message gets all these values.")

(defconstant +most-bound-octets+ 4194304
  "The maximum of a product: the number of characters in path and query, times the number of
messages in the body, because each message gets the values in path and query.")

(defun charset-of (content-type)
  "The charset that CONTENT-TYPE names, in lower case; nil if it names none."
  (let* ((length (min (length content-type) web:+media-type-characters+))
         (start (and (char-position #\; content-type :end length)
                     (search "charset=" content-type :test #'char-equal :end2 length))))
    (and start
         (let* ((from (+ start (length "charset=")))
                (end (or (char-position #\; content-type :start from :end length) length)))
           (string-downcase (string-trim " \"" (subseq content-type from end)))))))

(defun check-json-type (content-type)
  "Signal REQUEST-ERROR, 415, if CONTENT-TYPE, the header or nil, is not the type of JSON in UTF-8."
  (when content-type
    (unless (string= "application/json" (web:media-type content-type))
      (refuse-request 415 :invalid-argument "the body must be application/json, not ~A"
                      (web:media-type content-type)))
    (unless (member (charset-of content-type) '(nil "utf-8" "utf8" "us-ascii") :test #'equal)
      (refuse-request 415 :invalid-argument "the body must be in UTF-8"))))

(defmacro reading-json (() &body body)
  "Run BODY; signal a REQUEST-ERROR in place of BODY's errors about JSON."
  `(handler-case (progn ,@body)
     (protobuf:message-text-error (condition)
       (let ((path (protobuf:message-text-error-path condition)))
         (refuse-field (if (string= "" path) "the body" path) "~A (line ~D, column ~D of the body)"
                       (protobuf:protobuf-error-text condition)
                       (protobuf:message-text-error-line condition)
                       (protobuf:message-text-error-column condition))))))

(defun http-body (content-type octets)
  (google.api:make-http-body :content-type (or content-type "") :data octets))

(defun body-message (route octets content-type limits)
  "Two values: a message of ROUTE's request with the contents of its body, OCTETS of CONTENT-TYPE;
and the memory of the messages inside it, or nil. LIMITS are keywords of PARSE-JSON-MESSAGE."
  (let ((type (route-request-type route)) (body (route-body route))
        (empty (zerop (length octets))))
    (cond ((null body) (protobuf:make-message type))
          ((not (route-raw-body route))
           ;; CHECK-JSON-TYPE was called for the head
           (reading-json ()
             (cond ((eq :all body)
                    (if empty
                        (protobuf:make-message type)
                        (apply #'protobuf:parse-json-message type octets :partial t limits)))
                   (empty (protobuf:make-message type))
                   (t (apply #'protobuf:parse-json-field (protobuf:make-message type) body octets
                             limits)))))
          ((eq :all body) (http-body content-type octets))
          (t (let ((message (protobuf:make-message type)))
               (setf (protobuf:field-value message body) (http-body content-type octets))
               message)))))

(defun check-complete (route message)
  "Refuse a request of ROUTE whose MESSAGE lacks a required field."
  (handler-case (protobuf:check-required (route-request-type route) message)
    (protobuf:required-field-missing (condition)
      (refuse-field (protobuf:required-field-missing-path condition) "is required"))))

(defun bind-message (route match parameters octets content-type &rest limits)
  "Return two values: the message of a request of ROUTE, or one of its messages if the client
streams; and about how much memory the messages inside its body occupy. MATCH is a match from
FIND-ROUTE, and PARAMETERS are from QUERY-PARAMETERS. OCTETS are the body or a part of it from
BODY-PARTS. CONTENT-TYPE is the header or nil. LIMITS are keywords of PARSE-JSON-MESSAGE. Signal
REQUEST-ERROR if the values do not make a valid message."
  (multiple-value-bind (message inside) (body-message route octets content-type limits)
    (bind-query message parameters)
    (bind-path route match message)
    (check-complete route message)
    (values message (or inside 0))))

;;; Streams of clients

(define-hot space-end ((octets octets) (start index) (end index)) index
  "The end of the blanks of JSON that begin at START in OCTETS."
  (loop for at of-type index from start below end
        for octet of-type octet = (aref octets at)
        unless (or (= octet 32) (<= 9 octet 10) (= octet 13))
          do (return at)
        finally (return end)))

(define-hot string-end ((octets octets) (start index) (end index)) index
  "The end of the JSON string whose opening quote is at START in OCTETS; END if the string is
incomplete."
  (let ((at (1+ start)))
    (declare (type index at))
    (loop while (< at end)
          do (case (aref octets at)
               (34 (return (1+ at)))
               (92 (incf at 2))
               (t (incf at)))
          finally (return end))))

(define-hot value-end ((octets octets) (start index) (end index)) index
  "The end of the value of JSON that begins at START in OCTETS; START if no value begins there. Only
brackets and strings count. Other errors in a value are found when it is decoded, on another thread
if it is long."
  (let ((depth 0) (at start))
    (declare (type index depth at))
    (loop while (< at end)
          do (case (aref octets at)
               ((123 91)
                (when (and (zerop depth) (< start at)) (return at))
                (incf depth)
                (incf at))
               ((125 93)
                (when (zerop depth) (return at))
                (incf at)
                (when (zerop (decf depth)) (return at)))
               (34
                (cond ((plusp depth) (setf at (string-end octets at end)))
                      ((< start at) (return at))
                      (t (return (string-end octets at end)))))
               ((32 9 10 13 44)
                (when (zerop depth) (return at))
                (incf at))
               (t (incf at)))
          finally (return end))))

(defun take-range (octets start end before)
  "The range of the value of JSON that begins at START in OCTETS, after BEFORE other values."
  (when (<= +most-messages+ before)
    (refuse-field "the body" "has more than ~D messages" +most-messages+))
  (let ((stop (value-end octets start end)))
    (when (= start stop) (refuse-field "the body" "a value is expected at octet ~D" start))
    (cons start stop)))

(defun array-ranges (octets start end)
  "The ranges of the elements of the array that begins at START in OCTETS; nothing may follow the
array."
  (let ((ranges '()) (at (space-end octets (1+ start) end)))
    (flet ((next-p (octet) (and (< at end) (= octet (aref octets at)))))
      (unless (next-p 93)
        (loop for count from 0
              do (push (take-range octets at end count) ranges)
              (setf at (space-end octets (cdr (first ranges)) end))
              (unless (next-p 44) (return))
              (setf at (space-end octets (1+ at) end))))
      (unless (next-p 93) (refuse-field "the body" "the array is not closed at octet ~D" at))
      (unless (= end (space-end octets (1+ at) end))
        (refuse-field "the body" "the body continues after its array"))
      (nreverse ranges))))

(defun value-ranges (octets end)
  "The ranges of the JSON values in OCTETS up to END: those of an array, or consecutive ones."
  (let ((at (space-end octets 0 end)))
    (if (and (< at end) (= 91 (aref octets at)))
        (array-ranges octets at end)
        (loop for count from 0
              while (< at end)
              collect (let ((range (take-range octets at end count)))
                        (setf at (space-end octets (cdr range) end))
                        range)))))

(defun pieces (end)
  "The ranges of END octets in pieces for the messages of a stream; a single one if there are no
octets."
  (if (zerop end)
      (list (cons 0 0))
      (loop for start from 0 below end by +piece-octets+
            collect (cons start (min end (+ start +piece-octets+))))))

(defun streamed-p (route)
  "Return true if clients stream to ROUTE's method, and the body has the messages."
  (and (route-body route)
       (protobuf:method-descriptor-client-streaming-p (route-method route))))

(defun body-parts (route match query parameters octets end)
  "Return the parts of OCTETS up to END, the body of a request of ROUTE, one for each message of the
request: for a stream up to +MOST-MESSAGES+, else one. BIND-MESSAGE gives each message the values in
MATCH and PARAMETERS, of QUERY. A part is a cons of its start and its end. Signal REQUEST-ERROR
if there are too many parts, if OCTETS are obviously not JSON, or if too much would be bound."
  (let* ((parts (cond ((not (streamed-p route)) (list (cons 0 end)))
                      ((route-raw-body route) (pieces end))
                      (t (value-ranges octets end))))
         (count (length parts)))
    (when (or (< +most-bound-octets+
                 (* (1- (max 1 count)) (+ (length (match-text match)) (length query))))
              (< +most-bound-texts+
                 (* (1- (max 1 count))
                    (+ (length (route-bindings route))
                       (reduce #'+ parameters :key (lambda (entry) (length (rest entry))))))))
      (refuse-request 400 :invalid-argument
                      "the path and the query are too long for a body of ~D messages" count))
    parts))
