;;;; The errors: in a rule, reported to its author when the service is loaded, and in a request,
;;;; reported to its peer.

(in-package #:clgrpc.rest)

(define-condition rule-error (clgrpc-error)
  ((rule :initarg :rule :reader rule-error-rule) ; the rule, as text
   (text :initarg :text :reader rule-error-text)) ; the fault of the rule
  (:report (lambda (condition stream)
             (format stream "The HTTP rule ~A is wrong: ~A." (rule-error-rule condition)
                     (rule-error-text condition))))
  (:documentation "A rule by which a method is called with HTTP is wrong. RULE is the rule's text,
TEXT is the reason."))

(document-functions
  rule-error-rule "The text of the wrong rule: its method of HTTP, its template and its RPC."
  rule-error-text "The fault of the rule, as text.")

(defvar *rule* "(unnamed)"
  "The present rule, as text.")

(defun wrong-rule (control &rest arguments)
  "Signal RULE-ERROR for the present rule."
  (error 'rule-error :rule *rule* :text (format nil "~?" control arguments)))

(define-condition request-error (clgrpc-error)
  ((http-status :initarg :http-status :initform 400
                :reader request-error-http-status) ; the status of HTTP
   ;; the equivalent gRPC status
   (status :initarg :status :initform :invalid-argument :reader request-error-status)
   (text :initarg :text :reader request-error-text) ; the fault
   (field :initarg :field :initform nil :reader request-error-field) ; the path of the field, or nil
   ;; the headers that go with the answer, an alist
   (headers :initarg :headers :initform '() :reader request-error-headers))
  (:report (lambda (condition stream)
             (format stream "~@[~A: ~]~A" (request-error-field condition)
                     (request-error-text condition))))
  (:documentation "A request of HTTP is not a call of a method. HTTP-STATUS and STATUS, of gRPC,
give the kind of the error; TEXT describes it; FIELD names the field; HEADERS are further headers of
the answer."))

(document-functions
  request-error-http-status "The status of HTTP for the answer to the request."
  request-error-status "The corresponding status of gRPC, a keyword."
  request-error-text "The fault of the request, as text."
  request-error-field "The path of the field whose value is wrong, as text; nil if the error
concerns no field."
  request-error-headers "The headers that belong to the answer, an alist.")

(defun visible (text)
  "TEXT, a peer's, in a form that is safe in an answer."
  (printable-text text :limit 200))

(defun refuse-field (field control &rest arguments)
  "Signal REQUEST-ERROR, 400, for the field of the path FIELD."
  (error 'request-error :field (visible field)
                        :text (visible (format nil "~?" control arguments))))

(defun refuse-request (http-status status control &rest arguments)
  "Signal REQUEST-ERROR with HTTP-STATUS, of HTTP, and STATUS, of gRPC."
  (error 'request-error :http-status http-status :status status
                        :text (visible (format nil "~?" control arguments))))
