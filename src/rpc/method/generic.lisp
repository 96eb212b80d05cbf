;;;; Methods and services without generated code: a method given by its name and types, and a
;;;; service whose handler is one function. Messages of an unknown type are raw: the received
;;;; octets.

(in-package #:clgrpc.method)

(defun type-or-raw (type)
  "The message type of TYPE, an argument of FIND-MESSAGE-TYPE, or nil for raw messages. Signal
MISUSE if TYPE is unknown."
  (if type
      (or (protobuf:find-message-type type) (misuse "There is no message type ~S." type))
      protobuf:**raw-type**))

(define-keyword-function generic-method (name &key (kind :unary) request-type response-type codec)
  "Return the method NAME, such as \"helloworld.Greeter/SayHello\", to INVOKE on a channel without
generated code. KIND is the kind of the method: :unary, :client-streaming, :server-streaming or
:bidi. REQUEST-TYPE and RESPONSE-TYPE are message types, their full names or symbols; without them
messages are raw, see RAW-MESSAGE. If CODEC, a name given to REGISTER-CODEC, is given, that codec
encodes and decodes the messages. Signal MISUSE if NAME does not consist of a service and a method,
or a type or CODEC is unknown. From any thread."
  (let* ((path (string-left-trim "/" name))
         (slash (position #\/ path :from-end t)))
    (unless (member kind '(:unary :client-streaming :server-streaming :bidi))
      (misuse "~S is not a kind of method: :unary, :client-streaming, :server-streaming or :bidi."
              kind))
    (unless (and slash (< 0 slash (1- (length path))))
      (misuse "~S is not the name of a method, such as \"helloworld.Greeter/SayHello\"." name))
    (flet ((text (start end) (coerce (subseq path start end) 'simple-string)))
      (method-in-codec
       (make-rpc-method :name (text (1+ slash) nil) :service-name (text 0 slash) :kind kind
                        :path (coerce (concatenate 'string "/" path) 'simple-string)
                        :request-type (type-or-raw request-type)
                        :response-type (type-or-raw response-type))
       (codec-of-name codec)))))

(define-keyword-function pool-method (pool name &key raw)
  "Return the method NAME, such as \"helloworld.Greeter/SayHello\", whose service is in POOL, a type
pool, to INVOKE on a channel or to serve by a generic service; nil if POOL has no such method. The
method's messages have the types of POOL. If RAW is true, messages are raw, see RAW-MESSAGE, and can
be converted to JSON. Signal MISUSE if POOL lacks a type. From any thread."
  (let* ((slash (position #\/ name :from-end t))
         (service (and slash (find (subseq name 0 slash)
                                   (loop for file in (protobuf:type-pool-files pool)
                                         append (protobuf:file-descriptor-services file))
                                   :key #'protobuf:descriptor-full-name :test #'string=)))
         (descriptor (and service (find (subseq name (1+ slash))
                                        (protobuf:service-descriptor-methods service)
                                        :key #'protobuf:descriptor-name :test #'string=))))
    (and descriptor (descriptor-method pool descriptor raw))))

(defun descriptor-method (pool descriptor raw)
  "As POOL-METHOD, for the method with DESCRIPTOR."
  (flet ((find-type (name)
           (let ((type (or (protobuf:find-pool-type pool name)
                           (misuse "The type ~A is unknown." name))))
             (if raw
                 (protobuf:make-raw-type name type
                                         (lambda (name) (protobuf:find-pool-type pool name)))
                 type)))
         (text (text) (coerce text 'simple-string)))
    (let* ((full-name (protobuf:descriptor-full-name descriptor))
           (path (text (protobuf:method-descriptor-path descriptor))))
      (make-rpc-method
       :descriptor descriptor :path path :number (number-of-path path)
       :name (text (protobuf:descriptor-name descriptor))
       :service-name (text (subseq full-name 0 (position #\. full-name :from-end t)))
       :kind (method-kind (protobuf:method-descriptor-client-streaming-p descriptor)
                          (protobuf:method-descriptor-server-streaming-p descriptor))
       :request-type (find-type (protobuf:method-descriptor-input descriptor))
       :response-type (find-type (protobuf:method-descriptor-output descriptor))))))

(define-keyword-function pool-methods (pool &key raw)
  "Return all methods of the services in POOL, a type pool, as POOL-METHOD does. From any thread."
  (loop for file in (protobuf:type-pool-files pool)
        append (loop for service in (protobuf:file-descriptor-services file)
                     append (loop for descriptor in (protobuf:service-descriptor-methods service)
                                  collect (descriptor-method pool descriptor raw)))))

;;; Services

(defclass generic-service (service)
  ((handler :initarg :handler :reader generic-service-handler) ; a function of (method request call)
   (methods :initarg :methods :reader generic-service-methods) ; the methods of the service
   ;; true if the service also takes calls of methods that no service has
   (unknown :initarg :unknown :reader generic-service-unknown))
  (:documentation "A service whose handler is one function; see MAKE-GENERIC-SERVICE."))

(document-functions
  generic-service-methods "The methods of SERVICE, a generic service, a list. SETF changes them:
servers renew their routes at once, and calls under way continue. From any thread.")

(define-keyword-function make-generic-service (handler &key methods (unknown (null methods)))
  "Return a service, for START-SERVER, whose handler is the function HANDLER. HANDLER is called with
the RPC-METHOD, the request and the call, and must behave as a handler of a method of that kind.
METHODS is a list of methods, made by GENERIC-METHOD or POOL-METHOD. If UNKNOWN is true, the service
also accepts calls of methods that no service of the server has. Such calls are served as if both
sides streamed, with raw messages (see RAW-MESSAGE). In-process channels do not support UNKNOWN.
From any thread."
  (check-arity handler '(method request call) "The handler of a generic service")
  (make-instance 'generic-service :handler handler :methods methods :unknown unknown))

(defun (setf generic-service-methods) (methods service)
  (setf (slot-value service 'methods) methods)
  (tell-service-watchers)
  methods)

(defmethod service-methods ((service generic-service))
  (generic-service-methods service))

(defmethod method-binding ((service generic-service) method)
  (let ((handler (generic-service-handler service)))
    (make-binding :class (class-of service)
                  :function (lambda (service request call)
                              (declare (ignore service))
                              (funcall handler method request call)))))

(defun check-service (thing)
  "Return THING and, as second value, SERVICE-IDLE-P. Signal MISUSE unless THING is a service object
that has methods or may get methods."
  (cond ((not (typep thing 'service))
         (misuse "~S is not a service: ~A." thing
                 (if (and (consp thing) (typep (first thing) 'service))
                     "put its elements into the list of services, by LIST* or APPEND"
                     "give instances of subclasses of the classes that define-proto makes")))
        ((not (or (typep thing 'generic-service)
                  (service-methods thing)
                  (find-if #'defined-service-p
                           (sb-mop:class-precedence-list (class-of thing)))))
         (misuse "~S has no methods: its class is a subclass of SERVICE, but of no class that ~
                  define-proto makes for a service of a .proto file." thing))
        (t (values thing (service-idle-p thing)))))

(defgeneric unknown-method (service path)
  (:documentation "Return the RPC-METHOD by which SERVICE accepts calls of PATH, which no service
has; nil if SERVICE does not accept such calls.")
  (:method (service path)
    (declare (ignore service path))
    nil)
  (:method ((service generic-service) path)
    (let ((slash (position #\/ path :from-end t)))
      (and (generic-service-unknown service)
           slash
           (< 1 slash (1- (length path)))
           (char= #\/ (char path 0))
           (generic-method path :kind :bidi)))))
