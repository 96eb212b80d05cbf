;;;; A service config as a whole (ServiceConfig of service_config.proto; gRFCs A6, A17, A21, A24,
;;;; A105). A service config is valid if all known fields are valid; unknown fields are ignored.

(in-package #:clgrpc.config)

(defstruct (throttling (:copier nil))
  "The limits by which calls are not retried while too many fail (gRFC A6)."
  ;; in thousandths of a token:
  (max-tokens 1000 :type (integer 1000 1000000) :read-only t) ; the initial number of tokens
  ;; the thousandths of a token that a call that ends with :ok adds
  (token-ratio 1 :type (integer 1 1000000) :read-only t))

(defstruct (service-config (:copier nil))
  "A parsed service config. Immutable."
  ;; from "/S/M", "/S/" or "" to a METHOD-CONFIG
  (methods (make-hash-table :test #'equal) :type hash-table :read-only t)
  (balancing nil :type (or null policy-config) :read-only t) ; nil if the config has none
  (throttling nil :type (or null throttling) :read-only t) ; nil if the config has none
  ;; the health service for health checks, or nil
  (health-service nil :type (or null string) :read-only t)
  ;; the most connections of a subchannel, or nil
  (max-connections nil :type (or null (unsigned-byte 32)) :read-only t)
  (source nil :type (or list string) :read-only t)) ; the text or plist

(declaim (sb-ext:freeze-type throttling service-config))

(document-functions
  service-config-methods "The table of CONFIG's METHOD-CONFIGs; see FIND-METHOD-CONFIG."
  service-config-balancing "The POLICY-CONFIG of CONFIG; nil if it has none."
  service-config-throttling "The THROTTLING of CONFIG; nil if it has none."
  service-config-health-service "The service for health checks in CONFIG; nil if it has none."
  service-config-max-connections "How many connections a subchannel may have; nil if CONFIG does not
set this number."
  service-config-source "The text or the plist that CONFIG was made from. Configs of the same source
are alike."
  throttling-max-tokens "The initial and maximum number of tokens, in thousandths."
  throttling-token-ratio "The thousandths of a token that a call which ends with :ok adds.")

(define-printer (config service-config)
  "~D methods~@[, ~A~]" (hash-table-count (service-config-methods config))
  (and (service-config-balancing config)
       (policy-config-name (service-config-balancing config))))

(defun parse-throttling (object path)
  "The THROTTLING in OBJECT, at PATH. The ratio is truncated to thousandths, but is at least one
thousandth."
  (make-throttling
   :max-tokens (* 1000 (integer-field object "maxTokens" path :required t :minimum 1
                                                              :maximum 1000 :text nil))
   :token-ratio (let ((ratio (number-field object "tokenRatio" path :required t :above 0
                                                                    :most 1000 :text nil)))
                  ;; a double only approximates the decimal number of the config
                  (max 1 (floor (round (* ratio 1000000000)) 1000000)))))

(defun parse-deprecated-balancing (object)
  "The POLICY-CONFIG that the field loadBalancingPolicy of OBJECT names; nil if OBJECT lacks the
field."
  (let ((path ""))
    (with-field (value object "loadBalancingPolicy" path nil)
      (unless (member value '(0 "UNSPECIFIED" :unspecified) :test #'equal)
        (let ((policy (typecase value
                        (string (find-policy (string-downcase value)))
                        ((eql 1) (find-policy "round_robin"))
                        (keyword (and *lisp-source* (find-policy value))))))
          (unless policy
            (config-error path "must be the name of a policy that is known, such as ROUND_ROBIN, ~
                                not ~A" (shown value)))
          (parse-policy policy (first (policy-names policy)) '() path))))))

(defun parse-config-balancing (object)
  "The POLICY-CONFIG of the config OBJECT; nil if it has none."
  (multiple-value-bind (list present) (field object "loadBalancingConfig")
    (cond (present
           (field object "loadBalancingPolicy") ; may be given beside loadBalancingConfig, for other
                                                ; clients
           (parse-balancing list "loadBalancingConfig"))
          (t (parse-deprecated-balancing object)))))

(defun parse-config (object source)
  "The SERVICE-CONFIG in OBJECT, which was read from SOURCE."
  (check-object object "")
  (flet ((part (name function)
           (multiple-value-bind (part present) (object-field object name "")
             (and present (funcall function part name)))))
    (make-service-config
     :source source
     :methods (parse-methods object)
     :balancing (parse-config-balancing object)
     :throttling (part "retryThrottling" #'parse-throttling)
     :health-service (part "healthCheckConfig"
                           (lambda (part path) (string-field part "serviceName" path)))
     :max-connections (part "connectionScaling"
                            (lambda (part path)
                              (integer-field part "maxConnectionsPerSubchannel" path
                                             :minimum 1))))))

(defconstant +longest-config+ (expt 2 20)
  "The maximum length, in characters, of a service config that is read. A config from DNS has at
most 64 KB.")

(defun parse-text (text)
  "The value of TEXT, JSON. Signal SERVICE-CONFIG-ERROR if TEXT is invalid."
  (handler-case (parse-json text :max-depth 50 :max-length +longest-config+)
    (clgrpc-error (error)
      (config-error "" "must be JSON: ~A" (string-right-trim "." (princ-to-string error))))))

(defun parse-service-config (source)
  "Return the SERVICE-CONFIG in SOURCE: a JSON text of gRPC's service_config.proto, or the same as a
plist, such as (:method-config ((:name ((:service \"a.B\")) :timeout 1.5))). Signal
SERVICE-CONFIG-ERROR, a MISUSE, with the path of the error. Unknown fields are ignored in JSON,
which may be written for other versions; the log has a warning for each that is probably misspelt.
In a plist unknown fields are errors. From any thread."
  (unless (typep source '(or string list))
    (misuse "A service config is a JSON text or a plist, not ~S~:[~;; UIOP:READ-FILE-STRING reads ~
             a file~]." source (pathnamep source)))
  (let ((*lisp-source* (not (stringp source)))
        (*fields-read* (make-hash-table :test 'eq)))
    (prog1 (parse-config (if (stringp source) (parse-text source) source) source)
      (check-names))))

(defun find-method-config (config path)
  "The METHOD-CONFIG in CONFIG for the method whose path is PATH, \"/S/M\": the config of the method
itself, else of its service, else of all methods, else nil."
  (let ((methods (service-config-methods config)))
    (or (gethash path methods)
        (gethash (subseq path 0 (1+ (or (position #\/ path :from-end t) -1))) methods)
        (gethash "" methods))))
