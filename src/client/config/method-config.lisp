;;;; Method configs: MethodConfig of service_config.proto, with the retry and hedging policies of
;;;; gRFC A6, whose numbers must not be written as strings.

(in-package #:clgrpc.config)

(deftype status-mask ()
  "A set of statuses: for each, the bit at the position of its number is 1."
  '(unsigned-byte 17))

(defstruct (retry-policy (:copier nil))
  "The rules for retries of a method's calls after a failed attempt (gRFC A6)."
  ;; all attempts of a call, the first included, as the config says
  (max-attempts 2 :type (unsigned-byte 32) :read-only t)
  (initial-ns 0 :type nanoseconds :read-only t) ; the longest wait before the second attempt
  (maximum-ns 0 :type nanoseconds :read-only t) ; the longest wait of all
  ;; by which the wait grows
  (multiplier 1 :type (rational (0) #.(expt 10 6)) :read-only t)
  (codes 0 :type status-mask :read-only t)) ; the statuses after which another attempt is made

(defstruct (hedging-policy (:copier nil))
  "The rules for hedging, several attempts of a method's call at once (gRFC A6)."
  ;; all attempts of a call, the first included, as the config says
  (max-attempts 2 :type (unsigned-byte 32) :read-only t)
  (delay-ns 0 :type nanoseconds :read-only t) ; from one attempt to the next
  (codes 0 :type status-mask :read-only t)) ; the statuses after which the other attempts continue

(defstruct (method-config (:copier nil))
  "The rules for calls of a method."
  (timeout-ns nil :type (or null nanoseconds) :read-only t) ; the longest duration of a call
  (wait-for-ready :unset :type (member :unset t nil) :read-only t) ; unless the call says
  (max-request-octets nil :type (or null (unsigned-byte 32)) :read-only t) ; of a message sent
  (max-response-octets nil :type (or null (unsigned-byte 32)) :read-only t) ; of one received
  (retry nil :type (or null retry-policy) :read-only t) ; HEDGING is nil then
  (hedging nil :type (or null hedging-policy) :read-only t)) ; RETRY is nil then

(declaim (sb-ext:freeze-type retry-policy hedging-policy method-config))

(document-functions
  method-config-timeout-ns "The longest that a call may take, in nanoseconds, or nil."
  method-config-wait-for-ready "The default of :wait-for-ready for calls: T, NIL or :unset."
  method-config-max-request-octets "The largest message that may be sent, or nil."
  method-config-max-response-octets "The largest message that may be received, or nil."
  method-config-retry "The RETRY-POLICY of the method, or nil."
  method-config-hedging "The HEDGING-POLICY of the method, or nil.")

(define-printer (config method-config)
  "~@[timeout ~A~]~:[~; wait for ready~]~@[ ~A~]~@[ ~A~]"
  (and (method-config-timeout-ns config)
       (duration-text (method-config-timeout-ns config)))
  (eq t (method-config-wait-for-ready config)) (method-config-retry config)
  (method-config-hedging config))

;;; Statuses

(defparameter *status-names*
  (coerce (loop for code to 16
                collect (substitute #\_ #\- (string-upcase (status:code-status code))))
          'vector)
  "The names of google.rpc.Code, by number.")

(defun status-of (item path)
  "The number of the status ITEM, at PATH: its name in any case, its number or its keyword."
  (let ((code (typecase item
                (integer item)
                (string (position item *status-names* :test #'string-equal))
                (keyword (and *lisp-source*
                              (position (substitute #\_ #\- (string item)) *status-names*
                                        :test #'string=))))))
    (unless (typep code '(integer 1 16))
      (config-error path "must be the name of an error's status, such as UNAVAILABLE, not ~A"
                    (shown item)))
    code))

(defun map-numbered (function list path)
  "Call FUNCTION with each item of LIST, which is at PATH, and the item's own path."
  (loop for item in list
        for number from 0
        do (funcall function item (element-path path number))))

(defun statuses-field (object name path &key required)
  "The set of the statuses in the field NAME of OBJECT, a list; empty if it is absent. A REQUIRED
field must be present and not be empty."
  (let ((mask 0))
    (declare (type status-mask mask))
    (multiple-value-bind (list present) (list-field object name path)
      (unless present (absent-value object name path required nil))
      (map-numbered (lambda (item path) (setf mask (logior mask (ash 1 (status-of item path)))))
                    list (member-path path name)))
    (when (and required (zerop mask))
      (config-error (member-path path name) "must name at least one status"))
    mask))

;;; Policies

(defconstant +most-multiplier+ 1000000
  "The largest backoffMultiplier that matters: with it the wait after the first is already the
longest. The smallest that matters is the inverse of this number, with which the second wait is
almost 0.")

(defun parse-retry-policy (object path)
  "The RETRY-POLICY in OBJECT, at PATH."
  (make-retry-policy
   :max-attempts (integer-field object "maxAttempts" path :required t :minimum 2 :text nil)
   :initial-ns (duration-field object "initialBackoff" path :required t :minimum 1)
   :maximum-ns (duration-field object "maxBackoff" path :required t :minimum 1)
   :multiplier (number-field object "backoffMultiplier" path
                             :required t :above 0 :text nil
                             :least (/ +most-multiplier+) :most +most-multiplier+)
   :codes (statuses-field object "retryableStatusCodes" path :required t)))

(defun parse-hedging-policy (object path)
  "The HEDGING-POLICY in OBJECT, at PATH."
  (make-hedging-policy
   :max-attempts (integer-field object "maxAttempts" path :required t :minimum 2 :text nil)
   :delay-ns (duration-field object "hedgingDelay" path :default 0)
   :codes (statuses-field object "nonFatalStatusCodes" path)))

;;; Methods

(defun parse-method-config (object path)
  "The METHOD-CONFIG in OBJECT, at PATH."
  (check-object object path)
  (flet ((policy (name parser)
           (multiple-value-bind (policy present) (object-field object name path)
             (and present (funcall parser policy (member-path path name))))))
    (let ((retry (policy "retryPolicy" #'parse-retry-policy))
          (hedging (policy "hedgingPolicy" #'parse-hedging-policy)))
      (when (and retry hedging)
        (config-error (member-path path "hedgingPolicy")
                      "must not be used together with retryPolicy: a method has only one of them"))
      (make-method-config
       :timeout-ns (duration-field object "timeout" path)
       :wait-for-ready (boolean-field object "waitForReady" path :default :unset)
       :max-request-octets (integer-field object "maxRequestMessageBytes" path)
       :max-response-octets (integer-field object "maxResponseMessageBytes" path)
       :retry retry :hedging hedging))))

(defun parse-name (object path)
  "The methods that OBJECT, at PATH, names: the path of a method, \"/S/\" for all of a service, \"\"
for all methods."
  (check-object object path)
  (let ((service (string-field object "service" path :default ""))
        (method (string-field object "method" path :default "")))
    (cond ((string/= "" service) (format nil "/~A/~A" service method))
          ((string= "" method) "")
          (t (config-error (member-path path "service") "must be given, since method is")))))

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
