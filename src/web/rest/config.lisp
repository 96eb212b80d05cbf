;;;; Rules that are given apart from the .proto file: as lists, or as the service config of a Google
;;;; API (google.api.Service) in YAML, of which only http.rules is used.

(in-package #:clgrpc.rest)

(defun data-rule (data)
  "The google.api.HttpRule for DATA, an object in the form of PARSE-JSON."
  (handler-case (protobuf:parse-json-message 'google.api:http-rule (write-json data))
    (protobuf:message-text-error (condition)
      (wrong-rule "~@[~A: ~]~A" (let ((path (protobuf:message-text-error-path condition)))
                                  (and (string/= "" path) path))
                  (protobuf:protobuf-error-text condition)))))

(defun object-p (data)
  "True if DATA, in the form of PARSE-JSON, is an object."
  (and (listp data) (every #'consp data)))

(defun member-of (data name)
  "The value of the member NAME of DATA, an object; nil without one."
  (let ((value (cdr (assoc name data :test #'string=))))
    (if (eq :null value) nil value)))

(defun config-rules (text)
  "The rules of the service config TEXT, in YAML."
  (let* ((data (parse-yaml text))
         (*rule* "in a service config")
         (http (if (object-p data)
                   (member-of data "http")
                   (wrong-rule "a service config is a mapping"))))
    (unless (object-p http) (wrong-rule "\"http\" is a mapping"))
    (loop for (name) in http
          unless (member name '("rules" "fully_decode_reserved_expansion") :test #'string=)
            do (wrong-rule "\"http\" has no ~S" name))
    (when (eq :true (member-of http "fully_decode_reserved_expansion"))
      (wrong-rule "fully_decode_reserved_expansion is not supported"))
    (let ((rules (or (member-of http "rules") #())))
      (unless (simple-vector-p rules) (wrong-rule "\"rules\" is a sequence"))
      (map 'list (lambda (rule)
                   (unless (object-p rule) (wrong-rule "an item of \"rules\" is not a mapping"))
                   (data-rule rule))
           rules))))

(defun list-data (rule)
  "The object that RULE, a plist, represents."
  (unless (and (listp rule) (evenp (length rule)))
    (wrong-rule "~S is not a plist such as (:selector \"a.B.C\" :get \"/v1/c\")" rule))
  (loop for (key value) on rule by #'cddr
        collect (cons (substitute #\_ #\- (string-downcase key))
                      (cond ((stringp value) value)
                            ((eq key :custom) (list-data value))
                            ((and (eq key :additional-bindings) (listp value))
                             (map 'vector #'list-data value))
                            (t (wrong-rule "~S is not a value of ~S" value key))))))

(defun read-rules (source)
  "Return the list of google.api.HttpRules in SOURCE. SOURCE is a string, a service config in YAML
of which only http.rules is used; or a list of plists such as (:selector
\"library.v1.Library.GetBook\" :get \"/v1/{name=books/*}\"), with the keys :selector, :get, :put,
:post, :delete, :patch, :custom (a plist of :kind and :path), :body, :response-body and
:additional-bindings (a list of such plists). Signal RULE-ERROR if SOURCE is something else, or a
rule has no selector."
  (let ((rules (etypecase source
                 (string (config-rules source))
                 (list (let ((*rule* "in a list"))
                         (mapcar (lambda (rule) (data-rule (list-data rule))) source))))))
    (dolist (rule rules rules)
      (when (string= "" (google.api:http-rule-selector rule))
        (let ((*rule* (rule-text rule))) (wrong-rule "it has no selector"))))))

(defun pattern-text (verb path)
  "VERB and PATH of a rule, in the form in which errors name them; nil for a rule without them."
  (if verb (format nil "~A ~A" verb path) "without a pattern"))

(defun rule-text (rule)
  "RULE, a google.api.HttpRule, as errors name it."
  (format nil "~A~:[ of ~A~;~]" (multiple-value-call #'pattern-text (rule-pattern rule))
          (string= "" (google.api:http-rule-selector rule)) (google.api:http-rule-selector rule)))

(defun rule-pattern (rule)
  "The HTTP method of RULE and its path; two NILs if RULE has no pattern."
  (multiple-value-bind (value case) (google.api:http-rule-pattern rule)
    (case case
      ((nil) (values nil nil))
      (:custom (values (google.api:custom-http-pattern-kind value)
                       (google.api:custom-http-pattern-path value)))
      (t (values (string-upcase case) value)))))
