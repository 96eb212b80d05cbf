;;;; Recognizes Connect's requests: POSTs for the path of a method with one of its content types,
;;;; and GETs of unary methods declared NO_SIDE_EFFECTS. Any other request for such a path, unless
;;;; it is gRPC-Web's, is answered with an error, since no other protocol accepts it.

(in-package #:clgrpc.connect)

(defun content-types ()
  "Rows for WEB:PREPARER; messages of the kind :stream are in envelopes."
  `(("application/proto" ,web:**proto** :plain "content-encoding")
    ("application/json" ,web:**json** :plain "content-encoding")
    ("application/connect+proto" ,web:**proto** :stream "connect-content-encoding")
    ("application/connect+json" ,web:**json** :stream "connect-content-encoding")))

(defun streamed-p (form)
  "True if messages of FORM, a content type, are in envelopes."
  (eq :stream (web:form-kind form)))

(defparameter *own-types*
  '("application/proto" "application/connect+proto" "application/connect+json")
  "The content types that only requests of Connect have.")

(defun unary-p (method)
  (eq :unary (method:rpc-method-kind method)))

(defun safe-p (method)
  "True if METHOD is unary and declared to have no side effects."
  (and (unary-p method)
       (let ((descriptor (web:find-method-descriptor method)))
         (and descriptor
              (equal '(:identifier "NO_SIDE_EFFECTS")
                     (protobuf:find-option descriptor "idempotency_level"))))))

;;; Errors in requests

(defun wrong-type (streamed)
  "The answer 415 to a request whose method has other content types. The answer names them: those of
messages in envelopes if STREAMED is true, else those of bare messages."
  (exchange:make-plain-answer
   415 `(("accept-post" . ,(if streamed
                               "application/connect+proto, application/connect+json"
                               "application/proto, application/json")))
   (make-octets 0)))

(defun wrong-http-method (method)
  "The answer to a request by a method of HTTP by which METHOD cannot be called."
  (exchange:make-plain-answer 405 `(("allow" . ,(format nil "~{~A~^, ~}" (http-methods method))))
                              (make-octets 0)))

(defun http-methods (method)
  "The methods of HTTP by which METHOD is called, strings."
  (if (safe-p method) '("GET" "POST") '("POST")))

(defun parse-timeout-ms (text)
  "The nanoseconds in TEXT, a connect-timeout-ms; nil if it is malformed."
  (and (<= 1 (length text) 10)
       (every (lambda (char) (char<= #\0 char #\9)) text)
       (* 1000000 (parse-integer text))))

(defun version-rejection (version)
  "The reason why a request of VERSION, text or nil, is rejected; nil if it is accepted."
  (unless (or (null version) (string= "1" version))
    (list :invalid-argument
          (format nil "the version of Connect is 1, not ~A"
                  (printable-text version :limit 20 :quoted t)))))

(defun timeout-rejection (text timeout)
  "The reason why a request with TEXT, its connect-timeout-ms or nil, is rejected; nil if it is
accepted."
  (cond ((null text) nil)
        ((null timeout) '(:invalid-argument "malformed connect-timeout-ms"))
        ((zerop timeout) (multiple-value-list (rpc:verdict :came-too-late)))))

;;; Claims

(defun make-connect-claim (make handler form route fields origins incoming accepted rejection
                           &rest more)
  "Return the claim, made by the constructor MAKE, of a request with FIELDS for the method of
ROUTE."
  (let* ((text (web:header-value fields "connect-timeout-ms"))
         (timeout (and text (parse-timeout-ms text)))
         (metadata (web:metadata-fields fields)))
    (apply make
           :handler handler :codec (web:form-codec form)
           :heads (web:form-heads form)
           :operations (web:operations-for (server:route-method route))
           :route route :fields metadata :timeout timeout
           :incoming incoming :accepted accepted
           :cors (web:origin-headers origins fields)
           :rejection (or rejection (timeout-rejection text timeout)
                          (web:metadata-rejection metadata))
           more)))

(defun claim-post (form route fields origins)
  "The claim of a POST with FIELDS for ROUTE, whose content type is FORM."
  (let ((streamed (streamed-p form)))
    (multiple-value-bind (incoming rejection)
        (web:head-encoding fields (if streamed "connect-content-encoding" "content-encoding"))
      (make-connect-claim #'web:make-web-claim (if (streamed-p form) **stream** **unary**)
                          form route fields origins incoming
                          (web:head-accepted fields
                                             (if streamed
                                                 "connect-accept-encoding"
                                                 "accept-encoding")
                                             incoming)
                          (or (version-rejection
                               (web:header-value fields "connect-protocol-version"))
                              rejection)))))

(defstruct (get-query (:constructor make-get-query (encoding version message base64 compression))
                      (:copier nil))
  "The parameters of a GET, each a string, or nil if the parameter is missing."
  ;; the encoding of the message: "proto" or "json"
  (encoding nil :type (or null string) :read-only t)
  (version nil :type (or null string) :read-only t) ; the version of Connect: "v1"
  (message nil :type (or null string) :read-only t) ; the request
  (base64 nil :type (or null string) :read-only t) ; "1" if MESSAGE is in base64
  (compression nil :type (or null string) :read-only t)) ; the compression of MESSAGE

(defparameter *query-names*
  (mapcar (lambda (name) (coerce name 'simple-base-string))
          '("encoding" "connect" "message" "base64" "compression"))
  "The names of the parameters, in the order of MAKE-GET-QUERY.")

(defun read-get-query (query)
  "The parameters of QUERY, a string or nil, read in one pass."
  (apply #'make-get-query (exchange:query-values query *query-names*)))

(defun query-encoding (query)
  "The encoding of the message in QUERY, in the form in which WEB:HEAD-ENCODING returns it."
  (let ((name (get-query-compression query)))
    (if name
        (web:head-encoding (vector (hpack:make-field (ascii-octets "compression")
                                                     (string-octets name)))
                           "compression")
        nil)))

(defun query-version-rejection (query)
  "As VERSION-REJECTION, for QUERY, in which \"v1\" means version 1."
  (let ((version (get-query-version query)))
    (version-rejection (if (equal "v1" version) "1" version))))

(defun claim-get (form route query fields origins)
  (multiple-value-bind (incoming rejection) (query-encoding query)
    (make-connect-claim #'make-get-claim **get** form route fields origins incoming
                        (web:head-accepted fields "accept-encoding" incoming)
                        (or (query-version-rejection query) rejection)
                        :http-method "GET"
                        :message (or (get-query-message query) "")
                        :base64 (equal "1" (get-query-base64 query)))))

(defun query-form (forms query)
  "The form of FORMS for the messages of QUERY; nil if QUERY names none."
  (let ((encoding (get-query-encoding query)))
    (cond ((equal "proto" encoding) (gethash "application/proto" forms))
          ((equal "json" encoding) (gethash "application/json" forms)))))

(defun claim-of-post (forms route fields origins)
  "The result for a POST with FIELDS for ROUTE: a claim, an answer, or nil."
  (let* ((method (server:route-method route))
         (type (web:header-value fields "content-type"))
         (form (web:find-form forms type)))
    (cond ((and (null form) type (uiop:string-prefix-p "application/grpc" type)) nil)
          ((or (null form) (not (eq (streamed-p form) (not (unary-p method)))))
           (wrong-type (not (unary-p method))))
          ((web:http2-refusal route fields))
          (t (claim-post form route fields origins)))))

(defun claim-of-get (forms route query fields origins)
  "The result for a GET with QUERY, a string or nil, and FIELDS for ROUTE: a claim or an answer."
  (let ((method (server:route-method route)))
    (if (not (safe-p method))
        (wrong-http-method method)
        (let* ((query (read-get-query query))
               (form (query-form forms query)))
          (if form
              (claim-get form route query fields origins)
              (exchange:text-answer 415 "the parameter encoding is proto or json"))))))

(defun claim-of (forms table origins http-method target fields)
  "The claim of a request to a server with the routes of TABLE, an answer to it, or nil."
  (let* ((mark (char-position #\? target))
         (route (web:find-web-route table target (or mark (length target)))))
    (cond ((null route) nil)
          ((string= "POST" http-method) (claim-of-post forms route fields origins))
          ((string= "GET" http-method)
           (claim-of-get forms route (and mark (subseq target (1+ mark))) fields origins))
          ((string= "OPTIONS" http-method)
           (web:preflight origins fields (http-methods (server:route-method route))))
          (t (wrong-http-method (server:route-method route))))))

(defun own-request-p (http-method target fields)
  "True if the request is certainly Connect's, whatever its method."
  (let ((type (web:header-value fields "content-type"))
        (query (char-position #\? target)))
    (cond ((string= "POST" http-method)
           (or (web:header fields "connect-protocol-version")
               (and type (member (web:media-type type) *own-types* :test #'string=))))
          ((string= "GET" http-method)
           (and query
                (equal "v1" (get-query-version (read-get-query (subseq target (1+ query))))))))))

(defun unrouted-answer (server http-method target fields)
  "The function UNROUTED of the protocol: answer that the method does not exist here."
  (let ((origins (server:server-origins server))
        (asked (web:header-value fields "access-control-request-method")))
    (cond ((and (string= "OPTIONS" http-method) (member asked '("GET" "POST") :test #'equal))
           (web:preflight origins fields '("GET" "POST")))
          ((own-request-p http-method target fields)
           (destructuring-bind (status text)
               (multiple-value-list
                (rpc:verdict :unknown-method (subseq target 0 (char-position #\? target))))
             (exchange:make-plain-answer
              404 (acons "content-type" "application/json"
                         (append (web:origin-headers origins fields) (web:vary-headers origins)))
              (web:json-octets (web:error-json status text nil))))))))

(server:register-protocol
 (server:make-protocol :name :connect :prepare (web:preparer (content-types) #'claim-of)
                       :unrouted #'unrouted-answer))
