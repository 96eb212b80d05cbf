;;;; Rules of methods, checked against the types of their messages (http.proto, AIP-127): a rule and
;;;; its additional bindings become ROUTEs. A rule that no request could match, or that http.proto
;;;; forbids, is an error that names the rule.

(in-package #:clgrpc.rest)

(defstruct (binding (:constructor make-binding (fields start end wide)) (:copier nil))
  "A variable of a route."
  (fields '() :type list :read-only t)  ; the descriptors that lead to its field
  (start 0 :type index :read-only t)    ; the first of its segments in the path
  ;; the index after the last segment; if the last is **, it takes all segments that follow
  (end 0 :type index :read-only t)
  (wide nil :type boolean :read-only t)) ; true if %2F in the variable is not decoded

(defstruct (route (:copier nil))
  "Requests of HTTP that call a method."
  (verb "" :type string :read-only t)   ; the method of HTTP, or "*" for any
  (template nil :type template :read-only t) ; the template of the path
  (method nil :type protobuf:method-descriptor :read-only t) ; the method that is called
  (request-type nil :type protobuf:message-type :read-only t) ; the request type of its messages
  (response-type nil :type protobuf:message-type :read-only t) ; the response type of its answers
  (bindings '() :type list :read-only t) ; the variables of the path
  ;; the part of the request that the body contains: a field descriptor, :all or nil
  (body nil :type (or protobuf:field-descriptor (member nil :all)) :read-only t)
  (raw-body nil :type boolean :read-only t) ; true if that is a google.api.HttpBody
  ;; the field of the answer that the body of the response contains, or nil for the whole answer
  (answer-field nil :type (or null protobuf:field-descriptor) :read-only t)
  (raw-answer nil :type boolean :read-only t) ; true if that field is a google.api.HttpBody
  (payload nil))                        ; data of the router's owner

(document-functions
  route-verb "The method of HTTP of ROUTE's requests, such as \"GET\", or \"*\" for any."
  route-template "The template of the paths of ROUTE's requests."
  route-method "The descriptor of the method that ROUTE's requests call."
  route-request-type "The message type of the requests of ROUTE's method."
  route-response-type "The message type of the answers of ROUTE's method."
  route-payload "The data that the user of the router associates with ROUTE.")

(defun route-text (route)
  (format nil "~A ~A of ~A" (route-verb route) (template-text (route-template route))
          (protobuf:descriptor-full-name (route-method route))))

(defmethod print-object ((route route) stream)
  (print-unreadable-object (route stream :type t) (write-string (route-text route) stream)))

(defun method-rule (method)
  "Return the google.api.HttpRule with which METHOD, a method descriptor, is annotated; nil if it is
not annotated."
  (let* ((octets (protobuf:descriptor-option-octets method))
         (options (and octets
                       (protobuf:parse-message "google.protobuf.MethodOptions" octets))))
    (and options
         (protobuf:field-present-p options "[google.api.http]")
         (protobuf:field-value options "[google.api.http]"))))

;;; Fields

(defun same-fields-p (a b)
  "True if A and B, lists of descriptors, lead from one type to the same field. Descriptors change
when a file is loaded again, but numbers do not."
  (loop for field in a
        for other = (pop b)
        always (and other
                    (= (the fixnum (protobuf:field-descriptor-number field))
                       (the fixnum (protobuf:field-descriptor-number other))))
        finally (return (null b))))

(defun bound-p (fields bindings)
  "True if one of BINDINGS is for the field to which FIELDS lead."
  (member fields bindings :key #'binding-fields :test #'same-fields-p))

(defun message-field-p (field)
  (member (protobuf:field-descriptor-type field) '(:message :group)))

(defun repeated-p (field)
  (eq :repeated (protobuf:field-descriptor-label field)))

(defun strict-path (type path what)
  "The descriptors to which PATH, of names as in the .proto file, leads from TYPE; WHAT names PATH
in errors."
  (multiple-value-bind (fields stuck) (protobuf:find-field-path type path :max-steps 100)
    (let ((other (and fields
                      (string/= path (format nil "~{~A~^.~}"
                                             (mapcar #'protobuf:descriptor-name fields))))))
      (cond (stuck
             (wrong-rule "~A names the field ~A, but ~A has no such field, or a field on the way ~
                          is not a single message" what path (protobuf:message-type-name type)))
            (other
             (wrong-rule "~A names the field ~A by its name in JSON; its name is ~{~A~^.~}"
                         what path
                         (mapcar #'protobuf:descriptor-name fields)))
            (t fields)))))

(defun top-field (type name what)
  "The field NAME of TYPE; WHAT is the part of the rule that names it, for errors."
  (when (find #\. name)
    (wrong-rule "~A is ~A, but must be a field of ~A itself" what name
                (protobuf:message-type-name type)))
  (first (strict-path type name what)))

(defun check-variable (fields)
  "Signal an error if FIELDS, of a variable of a path, lead to a field whose value cannot be a
text."
  (let* ((field (first (last fields)))
         (path (format nil "~{~A~^.~}" (mapcar #'protobuf:descriptor-name fields))))
    (when (repeated-p field)
      (wrong-rule "the variable ~A of its path is a repeated field or a map" path))
    (when (message-field-p field)
      (wrong-rule "the variable ~A of its path is a message" path))))

(defun variable-binding (template type variable)
  (let ((fields (strict-path type (variable-path variable) "a variable of its path")))
    (check-variable fields)
    (make-binding fields (variable-start variable) (variable-end variable)
                  (variable-wide-p template variable))))

(defun oneof-of (binding)
  "If BINDING's field is in a oneof, the fields that lead to the oneof, and its name."
  (let* ((fields (binding-fields binding))
         (oneof (protobuf:field-descriptor-oneof (first (last fields)))))
    (and oneof (append (butlast fields) (list oneof)))))

(defun check-twice (bindings)
  "Signal an error if two of BINDINGS bind one field, or fields of one oneof."
  (loop for (binding . others) on bindings
        do (when (bound-p (binding-fields binding) others)
             (wrong-rule "its path binds the field ~{~A~^.~} twice"
                         (mapcar #'protobuf:descriptor-name (binding-fields binding))))
           (when (and (oneof-of binding)
                      (member (oneof-of binding) others :key #'oneof-of :test #'equal))
             (wrong-rule "its path binds two fields of the oneof ~A"
                         (first (last (oneof-of binding)))))))

(defun http-body-p (type-name)
  (equal "google.api.HttpBody" type-name))

(defun raw-p (field type)
  "True if FIELD, a field of TYPE, is a google.api.HttpBody; or, if FIELD is not a field, if TYPE
itself is."
  (if (symbolp field)
      (http-body-p (protobuf:message-type-name type))
      (and (not (repeated-p field)) (http-body-p (protobuf:field-descriptor-type-name field)))))

;;; Rules

(defun check-verb (verb)
  (cond ((string= "" verb) (wrong-rule "the kind of its custom pattern is empty"))
        ((not (http1:token-p verb)) (wrong-rule "~S is not a method of HTTP" verb))
        ((string= "CONNECT" verb) (wrong-rule "CONNECT opens a tunnel and calls nothing"))))

(defun body-field-p (field route)
  (let ((body (route-body route)))
    (and (not (symbolp body)) (same-fields-p (list field) (list body)))))

(defun body-of (rule verb type bindings)
  "The part of a request of TYPE that RULE makes the body."
  (let ((name (google.api:http-rule-body rule)))
    (when (and (string/= "" name) (member verb '("GET" "HEAD" "DELETE") :test #'string=))
      (wrong-rule "it has a body, which ~A requests do not have" verb))
    (cond ((string= "" name) nil)
          ((string= "*" name) :all)
          (t (let ((field (top-field type name "its body")))
               (when (bound-p (list field) bindings)
                 (wrong-rule "the field ~A is in its path and is its body" name))
               field)))))

(defun answer-field-of (rule type)
  "The field of TYPE that RULE makes the whole answer; nil if RULE names none."
  (let ((name (google.api:http-rule-response-body rule)))
    (if (string= "" name) nil (top-field type name "its response_body"))))

(defun rule-route (rule method request-type response-type payload)
  (multiple-value-bind (verb path) (rule-pattern rule)
    (unless verb (wrong-rule "it has no pattern, such as get"))
    (check-verb verb)
    (let* ((template (parse-template path))
           (bindings (mapcar (lambda (variable)
                               (variable-binding template request-type variable))
                             (template-variables template)))
           (body (body-of rule verb request-type bindings))
           (answer-field (answer-field-of rule response-type)))
      (check-twice bindings)
      (make-route :verb verb :template template :method method :request-type request-type
                  :response-type response-type :bindings bindings :body body
                  :raw-body (and body (raw-p body request-type))
                  :answer-field answer-field :raw-answer (raw-p answer-field response-type)
                  :payload payload))))

(defun make-method-routes (rule method request-type response-type payload)
  "Return the routes that RULE, a google.api.HttpRule, gives METHOD, a method descriptor, whose
messages have REQUEST-TYPE and RESPONSE-TYPE. PAYLOAD is the ROUTE-PAYLOAD of these routes. Signal
RULE-ERROR if RULE or one of its additional bindings is wrong."
  (let ((name (protobuf:descriptor-full-name method)))
    (flet ((route (rule additional)
             (multiple-value-bind (verb path) (rule-pattern rule)
               (let ((*rule* (format nil "~A of ~A" (pattern-text verb path) name))
                     (selector (google.api:http-rule-selector rule)))
                 (unless (or (string= "" selector) (and (not additional) (string= name selector)))
                   (wrong-rule "its selector is ~A" selector))
                 (when (and additional
                            (plusp (length (google.api:http-rule-additional-bindings rule))))
                   (wrong-rule "an additional binding has additional bindings itself"))
                 (rule-route rule method request-type response-type payload)))))
      (cons (route rule nil)
            (map 'list (lambda (rule) (route rule t))
                 (google.api:http-rule-additional-bindings rule))))))

(defun make-routes (methods &key rules)
  "Return the routes of METHODS, a list of lists of a method descriptor, its message types, and the
ROUTE-PAYLOAD of its routes. A method's rule is the last rule with its name in RULES, a value of
READ-RULES; if RULES has no such rule, it is the rule of the method's annotation. Signal RULE-ERROR
if a rule is wrong or names none of METHODS."
  (dolist (rule rules)
    (unless (find (google.api:http-rule-selector rule) methods :test #'string=
                  :key (lambda (entry) (protobuf:descriptor-full-name (first entry))))
      (let ((*rule* (rule-text rule)))
        (wrong-rule "no service here has a method of that name"))))
  (loop for (method request-type response-type payload) in methods
        for rule = (or (find (protobuf:descriptor-full-name method) rules :from-end t
                             :key #'google.api:http-rule-selector :test #'string=)
                       (method-rule method))
        when rule
          append (make-method-routes rule method request-type response-type payload)))
