;;;; Methods and services. An RPC method is one generic function, (method target request &key …), at
;;;; both ends: a stub specialises TARGET on CHANNEL, a handler on its service class.
;;;; DEFINE-SERVICE, which define-proto's expansion uses, makes the class and the functions.
;;;;
;;;; The wire does not dispatch through the generic function, since redefining a method removes the
;;;; old one before it adds the new one. Instead METHOD-FUNCTION, the class of these functions,
;;;; publishes: for each service class a BINDING has the *effective* function (inherited, :around
;;;; and :before methods and call-next-method included), replaced by one store whenever methods are
;;;; added or removed. The replacement of a method is published once, without the state in between.

(in-package #:clgrpc.method)

(defstruct (rpc-method (:copier nil))
  "A method, for both ends: its names, its KIND (:unary, :client-streaming, :server-streaming or
:bidi), the message types, and the symbol of its generic function."
  (name "" :type simple-string)         ; the method's name within its service
  (service-name "" :type simple-string) ; the full name
  (path "" :type simple-string :read-only t) ; the path, such as "/package.Service/Method"
  ;; used on the wire: the header field of PATH, once it is made
  (path-field nil)
  (route nil)                           ; the last route of PATH within the image
  (kind :unary :type (member :unary :client-streaming :server-streaming :bidi)) ; which side streams
  ;; nil for a request that is not gRPC's
  (descriptor nil)                      ; the method's descriptor, if the image has no such method
  (request-type nil :type (or null protobuf:message-type)) ; the type of the messages to the handler
  (response-type nil :type (or null protobuf:message-type)) ; the type of the messages to the client
  (function-name nil :type symbol)      ; the name of the generic function
  ;; the codec of the method's messages; nil for Protocol Buffers
  (codec nil)
  (coded '() :type list)                ; an alist from codecs to METHOD-IN-CODEC of this method
  (quiet nil :type boolean)             ; logs and traces leave out calls that end with :ok
  ;; the number of PATH, see NUMBER-OF-PATH; 0 without generated code
  (number 0 :type (unsigned-byte 16)))

(declaim (sb-ext:freeze-type rpc-method))

(document-functions
  rpc-method-path "The :path of METHOD, \"/package.Service/Method\"."
  rpc-method-name "The name of METHOD within its service, such as \"SayHello\"."
  rpc-method-service-name "The full name of METHOD's service, such as \"helloworld.Greeter\"."
  rpc-method-quiet "True if logs and traces omit METHOD's calls that end with :ok."
  rpc-method-kind "The kind of METHOD: :unary, :client-streaming, :server-streaming or :bidi.")

(define-printer (method rpc-method)
  "~A ~(~A~)" (rpc-method-path method) (rpc-method-kind method))

(defclass service ()
  ((direct-channel :initform nil :accessor direct-channel)) ; the service's channel for calls
                                                            ; without a server
  (:documentation "The root of all service classes. define-proto makes one for each service of a
file. START-SERVER takes instances of subclasses, whose methods are the handlers."))

(document-functions
  direct-channel "The channel by which stubs called on the service object SERVICE call it directly;
nil before the first such call.")

(defclass channel () ()
  (:documentation "The class of objects on which stubs are called. The client's and the in-process
channels are its subclasses. From any thread."))

(defgeneric channel-target (channel)
  (:documentation "The target for which CHANNEL was made, a string. From any thread."))

(defgeneric invoke (channel method request &key timeout deadline metadata &allow-other-keys)
  (:documentation "Make a call of METHOD, an RPC-METHOD, on CHANNEL, as its stub does. REQUEST and
the values depend on the kind of METHOD. TIMEOUT is in seconds, and METADATA is an alist; the other
options and the errors are the same as for stubs (doc/calls.md). From any thread."))

(defmethod no-applicable-method ((function (eql #'invoke)) &rest arguments)
  (misuse "INVOKE takes a channel, such as the value of MAKE-CHANNEL, not ~S."
          (first arguments)))

(defun defined-service-p (class)
  "True if CLASS was made by DEFINE-SERVICE."
  (not (eq 'none (get (class-name class) 'rpc-methods 'none))))

(defgeneric service-methods (service)
  (:documentation "The list of the RPC-METHODs of SERVICE, a service object.")
  (:method (service)
    (loop for class in (sb-mop:class-precedence-list (class-of service))
          append (get (class-name class) 'rpc-methods))))

;;; Method functions

(defvar *call* nil
  "The call whose handler this thread runs; nil if it runs none. Calls that the handler makes
inherit its deadline.")

(defun current-call ()
  "The call whose handler, interceptor or callback runs on this thread; nil if none of these runs.
Calls that this thread makes meanwhile inherit the deadline of that call. From any thread."
  *call*)

(defgeneric service-target (service)
  (:documentation "The object on which a stub makes its call when it is called with SERVICE, a
service object, outside of any handler: a channel that leads to SERVICE, or SERVICE itself if there
is no such channel. The in-process channel has a method. From any thread.")
  (:method (service) service))

(defstruct (binding (:copier nil))
  "The effective function of a method for instances of CLASS: (service request call) → values."
  (class nil :type class)               ; the class of the service object
  (function #'identity :type function)) ; a function that is called with service, request and call

(declaim (sb-ext:freeze-type binding))

(defclass method-function (standard-generic-function)
  (;; the RPC method of the generic function
   (rpc-method :initarg :rpc-method :initform nil :accessor method-function-rpc-method)
   ;; the bindings of the service classes in use
   (bindings :initform '() :accessor method-function-bindings)
   (stubs :initform '() :accessor method-function-stubs)) ; the methods made by define-proto
  (:metaclass sb-mop:funcallable-standard-class)
  (:documentation "The class of the generic functions of RPC methods."))

(defun stub-method (function)
  "The RPC-METHOD of FUNCTION, a stub or its name; nil for any other object."
  (let ((function (if (and (symbolp function) (fboundp function))
                      (fdefinition function)
                      function)))
    (and (typep function 'method-function) (method-function-rpc-method function))))

(defmacro with-bindings-lock (() &body body)
  "Evaluate BODY under the lock that the compiler, the loader and CLOS hold during definitions, so
that no other thread changes the BINDINGs of handlers. No lock of our own is used, because it could
cause a deadlock: the compiler, the loader and CLOS call this code while they hold their lock, and
other code could take the two locks in the opposite order."
  `(sb-c::with-world-lock () ,@body))

(defun refuse-argument-count (function count)
  "Signal MISUSE, since FUNCTION, a stub, was called with COUNT arguments, 0 or 1."
  (let ((method (method-function-rpc-method function)))
    (misuse "~S is called with a channel and ~:[its requests, a sequence, a function or :open~;its ~
             request, a ~:*~A~], and then keywords and values; this call has ~
             ~[no argument~;only one argument~]."
            (rpc-method-function-name method)
            (and (member (rpc-method-kind method) '(:unary :server-streaming))
                 (protobuf:message-type-name (rpc-method-request-type method)))
            count)))

(defun check-options (function options)
  "Signal MISUSE unless OPTIONS, with which FUNCTION, a stub, was called after its request, are
alternating keywords and values."
  (loop for rest = options then (cddr rest)
        while rest
        do (unless (and (keywordp (first rest)) (rest rest))
             (let ((method (method-function-rpc-method function)))
               (misuse "~S is called with a channel, its request~@[, a ~A,~] and then keywords and ~
                        values; ~S ~:[is not a keyword~;has no value~]."
                       (rpc-method-function-name method)
                       (and (member (rpc-method-kind method) '(:unary :server-streaming))
                            (protobuf:message-type-name (rpc-method-request-type method)))
                       (first rest) (keywordp (first rest)))))))

(defmethod sb-mop:compute-discriminating-function ((function method-function))
  (let ((dispatch (call-next-method)))
    (declare (type function dispatch))
    (lambda (&optional (target nil target-p) (request nil request-p) &rest options)
      (declare (dynamic-extent options))
      (unless request-p (refuse-argument-count function (if target-p 1 0)))
      (when options (check-options function options))
      (apply dispatch
             (if (and (null *call*) (typep target 'service)
                      (null (getf options :call))) ; from EFFECTIVE-FUNCTION
                 (or (direct-channel target) (service-target target))
                 target)
             request options))))

(defmethod no-applicable-method ((function method-function) &rest arguments)
  (misuse "~S is called with a channel (MAKE-CHANNEL, SERVER-CHANNEL) or a service object, not ~S."
          (rpc-method-function-name (method-function-rpc-method function)) (first arguments)))

(defvar *publishing* nil
  "True inside ADD-METHOD, so that the removal of the old method is not published.")

(defun applicable-methods (function class)
  (let* ((method (method-function-rpc-method function))
         (type (rpc-method-request-type method))
         (request (if (member (rpc-method-kind method) '(:client-streaming :bidi))
                      'call
                      (protobuf:message-type-symbol type))))
    (sb-mop:compute-applicable-methods-using-classes
     function (list class (or (find-class request nil) (find-class 't))))))

(defun effective-function (function class)
  "Return the effective function of FUNCTION for instances of CLASS, a function (service request
call). Later changes of FUNCTION's methods do not affect it."
  (multiple-value-bind (methods definitive) (applicable-methods function class)
    (let ((effective (and definitive methods
                          (sb-pcl::get-effective-method-function function methods))))
      (if (typep effective 'sb-pcl::fast-method-call)
          (let ((code (sb-pcl::fast-method-call-function effective))
                (pv (sb-pcl::fast-method-call-pv effective))
                (next (sb-pcl::fast-method-call-next-method-call effective)))
            (declare (type function code))
            (lambda (service request call) (funcall code pv next service request :call call)))
          ;; with eql specialisers and unusual method combinations, call the generic function itself
          (lambda (service request call) (funcall function service request :call call))))))

(defun publish (function)
  "Bring every binding of FUNCTION up to date."
  (with-bindings-lock ()
    (dolist (binding (method-function-bindings function))
      (setf (binding-function binding) (effective-function function (binding-class binding))))))

(defun service-idle-p (service)
  "True if SERVICE has methods, all of them with generated code, but no handler for any of them."
  (let ((methods (service-methods service)))
    (flet ((handled-p (method)
             (let* ((name (rpc-method-function-name method))
                    (function (and name (fdefinition name))))
               (or (not (typep function 'method-function))
                   (set-difference (applicable-methods function (class-of service))
                                   (method-function-stubs function))))))
      (and methods (notany #'handled-p methods)))))

(defun follow-class (function class)
  "Make CLOS call UPDATE-DEPENDENT for FUNCTION when CLASS, or a class that it inherits from, is
redefined."
  (dolist (class (sb-mop:class-precedence-list class))
    (when (typep class 'standard-class) (sb-mop:add-dependent class function))))

(defmethod sb-mop:update-dependent ((class class) (function method-function) &rest initargs)
  (declare (ignore initargs))
  (with-bindings-lock ()
    (dolist (binding (method-function-bindings function))
      (follow-class function (binding-class binding)))
    (publish function)))

(defun ensure-binding (function class)
  "Return the only BINDING of FUNCTION for CLASS."
  (with-bindings-lock ()
    (or (find class (method-function-bindings function) :key #'binding-class)
        (let ((binding (make-binding :class class :function (effective-function function class))))
          (follow-class function class)
          (push binding (method-function-bindings function))
          binding))))

(defgeneric method-binding (service method)
  (:documentation "Return the BINDING of the handler that SERVICE, a service object, has for METHOD,
one of its methods.")
  (:method (service method)
    (ensure-binding (fdefinition (rpc-method-function-name method)) (class-of service))))

(defun check-handler-keywords (function method)
  "Signal MISUSE if METHOD, a new method of FUNCTION for services, has a keyword that handlers do
not get, because its variable would always be nil."
  (let ((class (first (sb-mop:method-specializers method)))
        (wrong (remove :call (accepted-keywords (sb-mop:method-lambda-list method)))))
    (when (and wrong (typep class 'class) (subtypep class 'service))
      (misuse "A handler of ~S gets no keyword argument but :CALL, its call, so~{ ~S~^,~} would ~
               always be nil. CALL-METADATA, CALL-DEADLINE, CALL-VALUE and others return what a ~
               call has." (rpc-method-function-name (method-function-rpc-method function)) wrong))))

(defun refuse-lambda-list (function lambda-list)
  "Signal MISUSE, since a method of FUNCTION has LAMBDA-LIST, which no handler can have."
  (misuse "A handler of ~S has two required parameters and &key, (service request &key) or ~
           (service request &key call), not ~(~S~)."
          (rpc-method-function-name (method-function-rpc-method function)) lambda-list))

(defmethod find-method :around ((function method-function) qualifiers specializers &optional errorp)
  (declare (ignore qualifiers errorp))
  ;; DEFMETHOD looks for the old method first, and CLOS's error would name no remedy
  (unless (= 2 (length specializers))
    (refuse-lambda-list function (loop for specializer in specializers
                                       collect (if (typep specializer 'class)
                                                   (class-name specializer)
                                                   specializer))))
  (call-next-method))

(defun check-specializers (function method)
  "Signal MISUSE if METHOD, a new method of FUNCTION, can never be a handler: no request is an
instance of the class of its second argument."
  (let* ((rpc-method (method-function-rpc-method function))
         (class (second (sb-mop:method-specializers method)))
         (streams (and rpc-method (member (rpc-method-kind rpc-method) '(:client-streaming :bidi))))
         (request (and rpc-method
                       (if streams
                           'call
                           (protobuf:message-type-symbol (rpc-method-request-type rpc-method))))))
    (when (and request (typep class 'class) (find-class request nil)
               (not (subtypep class request)) (not (subtypep request class)))
      (misuse "The second argument of a handler of ~S is ~:[the request, a ~S~;the stream of ~
               requests, a ~S~], and never a ~S; the first is the service."
              (rpc-method-function-name rpc-method) streams request (class-name class)))))

(defmethod add-method :around ((function method-function) method)
  (let ((lambda-list (sb-mop:method-lambda-list method)))
    (unless (and (intersection '(&key &rest) lambda-list) (not (member '&optional lambda-list)))
      (refuse-lambda-list function lambda-list)))
  (check-handler-keywords function method)
  (check-specializers function method)
  ;; replacing a method removes it first: no binding may be made in between
  (with-bindings-lock ()
    (multiple-value-prog1 (let ((*publishing* t)) (call-next-method))
      (publish function))))

(defmethod remove-method :around ((function method-function) method)
  (declare (ignore method))
  (multiple-value-prog1 (call-next-method)
    (unless *publishing* (publish function))))

;;; Definition

(defconstant +most-numbers+ 10000
  "The maximum number of paths that get a number.")

(defglobal **numbers** (make-hash-table :test 'equal :synchronized t)) ; of paths

(defun number-of-path (path)
  "A small number above 0 that identifies PATH, of a method with generated code, in this process; 0
if +MOST-NUMBERS+ paths are already numbered. The number stays the same when the method is
redefined."
  (sb-ext:with-locked-hash-table (**numbers**)
    (or (gethash path **numbers**)
        (if (< (hash-table-count **numbers**) +most-numbers+)
            (setf (gethash path **numbers**) (1+ (hash-table-count **numbers**)))
            0))))

(defun ensure-method (function &rest initargs)
  (setf (method-function-rpc-method function)
        (apply #'make-rpc-method :number (number-of-path (getf initargs :path)) initargs)))

(defun note-stub (function method)
  "Note that METHOD of FUNCTION was defined by define-proto, not by a user."
  (with-bindings-lock ()
    (setf (method-function-stubs function)
          (cons method (intersection (method-function-stubs function)
                                     (sb-mop:generic-function-methods function))))))

(defmethod protobuf:defined-as ((method standard-method))
  (let ((function (sb-mop:method-generic-function method)))
    (when (and (typep function 'method-function) (member method (method-function-stubs function)))
      (protobuf:defined-as function))))

(defun shown-lambda-list (look function)
  "The lambda list of FUNCTION, from LOOK, the function FUNCTION-LAMBDA-LIST; for a stub, a lambda
list with the keywords that channels accept. The generic function cannot declare these keywords
itself, since then all handlers would have to accept them."
  (if (typep function 'method-function)
      '(target request &key timeout deadline metadata wait-for-ready call-credentials compression
        authority max-send-octets max-receive-octets values)
      (funcall look function)))

(sb-int:encapsulate 'sb-introspect:function-lambda-list 'define-service #'shown-lambda-list)

(defun method-for-p (function class-name)
  "True if FUNCTION has a method for the class named CLASS-NAME itself."
  (find-method function '() (list (find-class class-name) (find-class 't)) nil))

(defun method-kind (client-streaming server-streaming)
  (cond ((and client-streaming server-streaming) :bidi)
        (client-streaming :client-streaming)
        (server-streaming :server-streaming)
        (t :unary)))

(defmacro define-service (class full-name (&key documentation) &body methods)
  "Define the service CLASS, a symbol, of FULL-NAME, e.g. \"helloworld.Greeter\", with METHODS of
the form (function-symbol \"Name\" kind \"request.Type\" \"response.Type\" [documentation])."
  `(progn
     (defclass ,class (service) ()
       (:documentation ,(or documentation (format nil "The service ~A." full-name))))
     ,@(loop for (function name kind request response documentation) in methods
             append (expand-method class full-name function name kind request response
                                   documentation))
     (setf (get ',class 'rpc-methods)
           (list ,@(loop for (function) in methods collect `(stub-method ',function))))
     (tell-service-watchers)
     ',class))

(defglobal **service-watchers** '())    ; functions without arguments

(defun watch-services (function)
  "Call FUNCTION, without arguments, whenever a service is defined. Return a function that ends the
watch. From any thread."
  (sb-ext:atomic-push function **service-watchers**)
  (lambda ()
    (loop for old = **service-watchers**
          until (eq old (sb-ext:compare-and-swap **service-watchers** old
                                                 (remove function old))))))

(defun tell-service-watchers ()
  (mapc #'funcall **service-watchers**))

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defun usage (kind)
    "A text that describes how to call and implement a method of KIND."
    (format nil "With a channel: ~A.~%The keywords are :timeout (seconds), :deadline, :metadata, ~
                 :wait-for-ready, :call-credentials,~%:compression, :authority, :max-send-octets, ~
                 :max-receive-octets and :values.~2%A handler ~A."
            (ecase kind
              (:unary "returns the reply and, as second value, the call")
              (:server-streaming "returns a call, to iterate with DO-MESSAGES or RECEIVE from")
              (:client-streaming
               "REQUEST is a sequence of messages or a function that generates them: returns
the reply and the call; or REQUEST is :open: returns the call, to SEND on, to CLOSE-SEND, and to
RECEIVE the reply from")
              (:bidi "REQUEST is a sequence of messages, a function that generates them, or :open;
returns a call, to RECEIVE from and, if REQUEST is :open, to SEND on"))
            (ecase kind
              (:unary "gets the request and returns the reply")
              (:server-streaming "gets the request and SENDs on its CALL")
              (:client-streaming "gets the stream to RECEIVE from as REQUEST and returns the reply")
              (:bidi "gets the stream to RECEIVE from as REQUEST and SENDs on its CALL"))))

  (defun expand-method (class full-name function name kind request response documentation)
    `((declaim (ftype function ,function))
      ;; DEFGENERIC would warn when the file is defined again
      (ensure-generic-function
       ',function :lambda-list '(target request &key &allow-other-keys)
                  'sb-pcl::source (sb-c:source-location)
                  :generic-function-class 'method-function
                  :documentation ,(format nil "~@[~A~2%~]The ~(~A~) method /~A/~A, from ~A to ~A.~
                                               ~2%~A"
                                          documentation kind full-name name request response
                                          (usage kind)))
      (ensure-method #',function
                     :name ,name :service-name ,full-name :kind ,kind
                     :path ,(coerce (format nil "/~A/~A" full-name name) 'simple-string)
                     :request-type (protobuf:intern-message-type ,request)
                     :response-type (protobuf:intern-message-type ,response)
                     :function-name ',function)
      ;; not when the file is loaded again, since redefinition removes a method for a moment
      (unless (method-for-p #',function 'channel)
        (note-stub
         #',function
         (defmethod ,function ((target channel) request &rest options &key &allow-other-keys)
           (apply #'invoke target (method-function-rpc-method #',function) request options))))
      (unless (method-for-p #',function ',class)
        (note-stub
         #',function
         (defmethod ,function ((target ,class) request &key)
           (declare (ignore request))
           (fail :unimplemented (format nil "~A does not implement ~A"
                                        (class-name (class-of target)) ,name))))))))

(defun expand-service (service)
  "The form in define-proto's expansion for SERVICE, a protobuf service descriptor."
  `(define-service ,(protobuf:service-descriptor-symbol service)
       ,(protobuf:descriptor-full-name service)
       (:documentation ,(protobuf:descriptor-comment service))
     ,@(loop for method in (protobuf:service-descriptor-methods service)
             collect (list (protobuf:method-descriptor-symbol method)
                           (protobuf:descriptor-name method)
                           (method-kind (protobuf:method-descriptor-client-streaming-p method)
                                        (protobuf:method-descriptor-server-streaming-p method))
                           (protobuf:method-descriptor-input method)
                           (protobuf:method-descriptor-output method)
                           (protobuf:descriptor-comment method)))))

(protobuf:add-service-expander 'service 'expand-service)
