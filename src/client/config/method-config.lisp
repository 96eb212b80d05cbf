;;;; Method configs: MethodConfig of service_config.proto. The policies of a method config for
;;;; further attempts are in retry-policy.lisp.

(in-package #:clgrpc.config)

(defstruct (method-config (:copier nil))
  "The rules for calls of a method."
  (timeout-ns nil :type (or null nanoseconds) :read-only t) ; the longest duration of a call
  ;; whether calls wait for ready, unless the call says so itself
  (wait-for-ready :unset :type (member :unset t nil) :read-only t)
  ;; the most octets of a sent message
  (max-request-octets nil :type (or null (unsigned-byte 32)) :read-only t)
  ;; the most octets of a received message
  (max-response-octets nil :type (or null (unsigned-byte 32)) :read-only t)
  (policy nil :type (or null attempt-policy) :read-only t)) ; the policy for further attempts

(declaim (sb-ext:freeze-type method-config))

(document-functions
  method-config-timeout-ns "The maximum duration of a call, in nanoseconds; nil if the config sets
none."
  method-config-wait-for-ready "The default of :wait-for-ready for calls: T, NIL or :unset."
  method-config-max-request-octets "The maximum length, in octets, of a message to send; nil if the
config sets none."
  method-config-max-response-octets "The maximum length, in octets, of a received message; nil if
the config sets none."
  method-config-policy "The ATTEMPT-POLICY of the method; nil if it has none.")

(define-printer (config method-config)
  "~@[timeout ~A~]~:[~; wait for ready~]~@[ ~A~]"
  (and (method-config-timeout-ns config)
       (duration-text (method-config-timeout-ns config)))
  (eq t (method-config-wait-for-ready config)) (method-config-policy config))

;;; Methods

(defun parse-method-config (object path)
  (check-object object path)
  (let ((policy (parse-attempt-policy object path)))
    (make-method-config
     :timeout-ns (duration-field object "timeout" path)
     :wait-for-ready (boolean-field object "waitForReady" path :default :unset)
     :max-request-octets (integer-field object "maxRequestMessageBytes" path)
     :max-response-octets (integer-field object "maxResponseMessageBytes" path)
     :policy policy)))

(defun parse-name (object path)
  "The methods that OBJECT, at PATH, names: the path of a method, \"/S/\" for all of a service, \"\"
for all methods."
  (check-object object path)
  (let ((service (string-field object "service" path :default ""))
        (method (string-field object "method" path :default "")))
    (cond ((string/= "" service) (format nil "/~A/~A" service method))
          ((string= "" method) "")
          (t (config-error (member-path path "service")
                           "must be given, since the field method is given")))))

(defun parse-methods (object)
  "A table from the values of PARSE-NAME for the names in the field methodConfig of OBJECT to their
METHOD-CONFIGs."
  (let ((methods (make-hash-table :test #'equal)))
    (flet ((enter (item path)
             (let ((config (parse-method-config item path)))
               (unless (list-field item "name" path)
                 (log-event :warning :method-config-without-name
                            :path path :reason "it applies to no method"))
               (map-numbered (lambda (name path)
                               (let ((key (parse-name name path)))
                                 (when (gethash key methods)
                                   (config-error path "must not occur twice: ~
                                                       ~:[~A~;all methods~]"
                                                 (string= "" key) (string-trim "/" key)))
                                 (setf (gethash key methods) config)))
                             (list-field item "name" path) (member-path path "name")))))
      (map-numbered #'enter (list-field object "methodConfig" "") "methodConfig"))
    methods))
