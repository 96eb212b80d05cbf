;;;; Recognizes REST's requests at a server: those whose path has a route. If the head of a request
;;;; is wrong, the answer is a google.rpc.Status in JSON. The routes are made of the annotations of
;;;; the server's methods, and of the rules that USE-HTTP-RULES was given.

(in-package #:clgrpc.rest)

;;; Rules beside

(sb-ext:defglobal **rules** '())        ; google.api.HttpRules, the latest last

(defun use-http-rules (source)
  "Make the methods that the rules of SOURCE select reachable by REST according to these rules,
instead of their annotations, on servers that start from now on. SOURCE is a string, a service
config in YAML, or a list of plists, as for READ-RULES; nil removes all rules that were given
before. Signal RULE-ERROR if a rule is wrong in itself or selects no method that is loaded. From any
thread."
  (let ((rules (read-rules source)))
    (dolist (rule rules)
      (let* ((name (google.api:http-rule-selector rule))
             (*rule* (rule-text rule))
             (file (protobuf:file-of-symbol name)))
        (unless file (wrong-rule "no method of that name is loaded"))))
    (sb-ext:atomic-update **rules** (lambda (old) (if source (append old rules) '())))
    rules))

(defun method-entry (method descriptor &optional route)
  "METHOD with its DESCRIPTOR, in the form that MAKE-ROUTES takes."
  (list descriptor
        (web:decoded-type (method:rpc-method-request-type method))
        (web:decoded-type (method:rpc-method-response-type method))
        route))

(defun served-methods (table)
  "The methods of TABLE, a server's routes, by name, in the form for MAKE-ROUTES."
  (sort (loop for route being the hash-values of (serving:route-table-routes table)
              for method = (server:route-method route)
              for descriptor = (web:find-method-descriptor method)
              when descriptor
                collect (method-entry method descriptor route))
        #'string< :key (lambda (entry) (protobuf:descriptor-full-name (first entry)))))

(defun rules-for (methods)
  "The rules that USE-HTTP-RULES was given for METHODS, a value of SERVED-METHODS."
  (remove-if-not (lambda (rule)
                   (find (google.api:http-rule-selector rule) methods :test #'string=
                         :key (lambda (entry) (protobuf:descriptor-full-name (first entry)))))
                 **rules**))

(defun table-router (table)
  "The router of the methods of TABLE. Signal MISUSE if a rule is wrong."
  (let ((methods (served-methods table)))
    (handler-case (make-router (make-routes methods :rules (rules-for methods)))
      (rule-error (condition) (misuse "~A" condition)))))

;;; Answers without a call

(defun error-answer (http-status status text headers)
  "The answer to a request that calls nothing."
  (exchange:make-plain-answer http-status (acons "content-type" "application/json" headers)
                              (status-answer (status:status-code status) text nil)))

(defun refusal (condition headers)
  "The answer for CONDITION, a REQUEST-ERROR, with HEADERS."
  (error-answer (request-error-http-status condition) (request-error-status condition)
                (error-line condition) (append (request-error-headers condition) headers)))

(defun allow (verbs)
  (list (cons "allow" (format nil "~{~A~^, ~}" verbs))))

(defun wrong-verb (http-method verbs headers)
  "The answer to a request with HTTP-METHOD for a path that takes VERBS."
  (if (string= "OPTIONS" http-method)
      (exchange:make-plain-answer 204 (append (allow verbs) headers) (make-octets 0))
      (error-answer 405 :unimplemented (format nil "the path takes ~{~A~^, ~}" verbs)
                    (append (allow verbs) headers))))

;;; Heads

(defconstant +origin-characters+ 512
  "The maximum length of an origin: a scheme, a name of at most 253 characters and a port.")

(defun same-origin-p (fields)
  "True if the origin that FIELDS name is this server itself."
  (let ((origin (web:header-value fields "origin"))
        (host (or (web:header-value fields ":authority") (web:header-value fields "host"))))
    (and host
         (<= (length origin) +origin-characters+)
         (let ((start (search "://" origin)))
           (and start (string-equal host (subseq origin (+ start 3))))))))

(defun check-origin (http-method fields content-type cors)
  "Refuse a request with effects that a page of a foreign origin can send without a preflight (the
Fetch standard, \"CORS-safelisted request-header\")."
  (when (and (string= "POST" http-method)
             (web:header fields "origin")
             (null cors)
             (or (null content-type)
                 (member (web:media-type content-type)
                         '("text/plain" "multipart/form-data" "application/x-www-form-urlencoded")
                         :test #'string=))
             (not (same-origin-p fields)))
    (refuse-request 403 :permission-denied "pages of this origin may not call")))

(defun check-length (fields limit)
  "Refuse a body whose content-length is more than LIMIT octets."
  (let* ((text (web:header-value fields "content-length"))
         (length (and text (<= (length text) 18) (ignore-errors (parse-integer text)))))
    (when (or (and length (> length limit)) (and text (> (length text) 18)))
      (refuse-request 413 :resource-exhausted "the body has more than ~D octets" limit))))

(defun check-body-type (route fields content-type)
  "Refuse a body of CONTENT-TYPE that ROUTE cannot read."
  (when (and (route-body route)
             (not (route-raw-body route))
             (not (and content-type (streamed-p route) (lines-type-p content-type)))
             (not (equal "0" (web:header-value fields "content-length"))))
    (check-json-type content-type)))

(defun body-encoding (route fields)
  "How the body of a request of ROUTE with FIELDS is compressed: an encoding; nil if it is not
compressed."
  (multiple-value-bind (encoding rejection) (web:head-encoding fields "content-encoding")
    (when (or rejection (and encoding (streamed-p route)))
      (error 'request-error :http-status 415 :status :invalid-argument
                            :headers '(("accept-encoding" . "gzip, deflate"))
                            :text (if rejection
                                      (second rejection)
                                      "the body of a stream cannot be compressed")))
    encoding))

(defun seconds-timeout (text)
  "The nanoseconds, at most 146 years, in TEXT, decimal seconds; nil if TEXT is invalid."
  (and (<= 1 (length text) 12)
       (every (lambda (char) (or (char<= #\0 char #\9) (char= char #\.))) text)
       (<= (count #\. text) 1)
       (digit-char-p (char text 0))
       (let* ((dot (or (position #\. text) (length text)))
              (fraction (subseq text (min (length text) (1+ dot)))))
         (min most-positive-fixnum
              (+ (* (parse-integer text :end dot) 1000000000)
                 (if (string= "" fraction)
                     0
                     (floor (* (parse-integer fraction) 1000000000)
                            (expt 10 (length fraction)))))))))

(defun timeout-of (fields)
  "The nanoseconds that a request with FIELDS may take; nil if they set no timeout."
  (let* ((grpc (web:header-value fields "grpc-timeout"))
         (seconds (web:header-value fields "x-server-timeout"))
         (timeout (cond (grpc (and (<= (length grpc) 9)
                                   (status:parse-timeout (string-octets grpc))))
                        (seconds (seconds-timeout seconds)))))
    (cond (timeout timeout)
          (grpc (refuse-request 400 :invalid-argument "malformed grpc-timeout"))
          (seconds (refuse-request 400 :invalid-argument "malformed x-server-timeout")))))

;;; Claims

(defun form-of (route fields)
  "The form of the stream of answers to a request of ROUTE with FIELDS; nil if the answers are not a
stream, or are raw."
  (and (protobuf:method-descriptor-server-streaming-p (route-method route))
       (not (route-raw-answer route))
       (let ((accept (web:header fields "accept")))
         (if accept (web:parse-header accept #'stream-form) (stream-form nil)))))

(defun make-all-heads (origins)
  "An alist from form to the heads of good answers, for a server with ORIGINS."
  (let ((headers (web:vary-headers origins)))
    (acons nil (web:make-heads "application/json" "content-encoding" headers)
           (loop for form in '(:array :lines :events)
                 collect (cons form
                               (web:make-heads (stream-type form) "content-encoding"
                                               (if (eq :events form)
                                                   (acons "cache-control" "no-cache" headers)
                                                   headers)))))))

(defun claim-route (route match query heads http-method fields cors limit)
  "The claim of a request of ROUTE. Signal REQUEST-ERROR if something is wrong with its head."
  (let ((content-type (web:header-value fields "content-type"))
        (streams (protobuf:method-descriptor-server-streaming-p (route-method route)))
        (form (form-of route fields)))
    (check-origin http-method fields content-type cors)
    (check-length fields limit)
    (check-body-type route fields content-type)
    (let* ((metadata (web:metadata-fields fields))
           (incoming (body-encoding route fields))
           (timeout (timeout-of fields)))
      (make-rest-claim
       :handler (if (streamed-p route) **several** **single**) :codec **codec**
       :heads (cdr (assoc form heads)) :operations (operations-of route)
       :route (route-payload route) :fields metadata :http-method http-method :timeout timeout
       :incoming incoming
       :accepted (if (or streams (route-raw-answer route))
                     '()
                     (web:head-accepted fields "accept-encoding" nil))
       :cors cors
       :rejection (or (and (eql 0 timeout) (multiple-value-list (rpc:verdict :came-too-late)))
                      (web:metadata-rejection metadata))
       :rule route :match match :query query :content-type content-type :form form))))

(defun claim-of (router heads origins limit http-method target fields)
  "Return the claim of a request, or an answer to it, or nil."
  (let* ((mark (char-position #\? target))
         (path (subseq target 0 mark))
         (asked (and (string= "OPTIONS" http-method)
                     (web:header-value fields "access-control-request-method")))
         (cors (web:origin-headers origins fields))
         (headers (append cors (web:vary-headers origins)))) ; of answers without a call
    (handler-case
        (multiple-value-bind (route match) (find-route router http-method path)
          (or (and asked
                   (find-route router asked path)
                   (web:preflight origins fields (list asked)))
              (cond (route (claim-route route match (and mark (subseq target (1+ mark))) heads
                                        http-method fields cors limit))
                    (match (wrong-verb http-method match headers)))))
      (request-error (condition) (refusal condition headers)))))

(defun prepare (server table)
  "The function PREPARE of the protocol."
  (let* ((origins (server:server-origins server))
         (router (table-router table))
         (heads (make-all-heads origins))
         (limit (options-max-receive-octets (serving:server-options server))))
    (lambda (http-method target fields)
      (claim-of router heads origins limit http-method target fields))))

(defun unrouted-answer (server http-method target fields)
  "The function UNROUTED of the protocol: a request that no other handler or protocol handles is
treated as a REST request."
  (declare (ignore target))
  (let ((origins (server:server-origins server))
        (asked (web:header-value fields "access-control-request-method")))
    (or (and asked (string= "OPTIONS" http-method)
             (web:preflight origins fields '("GET" "HEAD" "POST" "PUT" "PATCH" "DELETE")))
        (error-answer 404 :not-found "there is nothing here"
                      (append (web:origin-headers origins fields) (web:vary-headers origins))))))

(server:register-protocol (server:make-protocol :name :rest :prepare #'prepare
                                                :unrouted #'unrouted-answer))
