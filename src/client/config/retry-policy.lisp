;;;; The policies for further attempts of a method's calls in a service config: retries and hedging
;;;; (gRFC A6; their numbers must not be in strings). What a call does under a policy is in
;;;; attempt/retry.lisp.

(in-package #:clgrpc.config)

(deftype status-mask ()
  "A set of statuses, an integer: bit N is 1 if the status of number N is in the set."
  '(unsigned-byte 17))

(defstruct (attempt-policy (:constructor nil) (:copier nil))
  "The rules for further attempts of a method's calls."
  ;; the most attempts of a call, as the config has it
  (max-attempts 2 :type (unsigned-byte 32) :read-only t)
  (codes 0 :type status-mask :read-only t)) ; the statuses of failures that do not end the call

(defstruct (retry-policy (:include attempt-policy) (:copier nil))
  "The rules for retries after a failed attempt."
  (initial-ns 0 :type nanoseconds :read-only t) ; the longest wait before the second attempt
  (maximum-ns 0 :type nanoseconds :read-only t) ; the longest wait of all
  ;; the factor by which the wait grows
  (multiplier 1 :type (rational (0) #.(expt 10 6)) :read-only t))

(defstruct (hedging-policy (:include attempt-policy) (:copier nil))
  "The rules for hedging, several attempts of a call at once."
  (delay-ns 0 :type nanoseconds :read-only t)) ; the time from one attempt to the next

(declaim (sb-ext:freeze-type attempt-policy))

(document-functions
  attempt-policy-max-attempts "How many attempts POLICY allows, the first one included."
  attempt-policy-codes "The statuses after which POLICY allows another attempt, a STATUS-MASK."
  retry-policy-initial-ns "The longest wait before the second attempt, in nanoseconds."
  retry-policy-maximum-ns "The longest wait before any attempt, in nanoseconds."
  retry-policy-multiplier "The factor by which the wait before the next attempt grows."
  hedging-policy-p "True if OBJECT is a HEDGING-POLICY."
  hedging-policy-delay-ns "The time from one attempt to the next under the hedging POLICY, in
nanoseconds.")

(defun continues-after-p (policy status)
  "True if POLICY allows another attempt after one that has ended with STATUS; false if POLICY is
nil."
  (logbitp (status:status-code status) (if policy (attempt-policy-codes policy) 0)))

;;; Back-off

(defconstant +longest-wait-ns+ (* 1000000000 +ns-per-second+)
  "The longest wait for an attempt, in nanoseconds, regardless of the policy.")

(defun retry-delay-ns (policy count random-state)
  "The nanoseconds to wait before the next attempt under POLICY, after COUNT such waits since the
first attempt or since a server's last pushback. With an initial 0.1 s, a factor of 2 and a maximum
of 0.3 s, the waits are 0.1, 0.2, 0.3, 0.3 s, each with up to 20 % more or less."
  (let ((maximum (retry-policy-maximum-ns policy))
        (wait (float (retry-policy-initial-ns policy) 1d0))
        (factor (retry-policy-multiplier policy)))
    (loop repeat count
          ;; beyond these bounds the wait stays the same
          while (and (< 1d0 wait) (or (< wait maximum) (< factor 1)))
          do (setf wait (* wait factor)))
    (min +longest-wait-ns+
         (round (* (min wait maximum) (+ 0.8d0 (random 0.4d0 random-state)))))))

;;; Statuses

(defparameter *status-names*
  (coerce (loop for code to 16
                collect (substitute #\_ #\- (string-upcase (status:code-status code))))
          'vector)
  "The names of google.rpc.Code, by number.")

(defun status-of (item path)
  "The number of the status ITEM, at PATH, which is the status's name in any case, its number or its
keyword."
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

(defun statuses-field (object name path &key required)
  "The set of the statuses in the field NAME of OBJECT, a list; empty if it is absent. If the field
is REQUIRED, it must exist and not be empty."
  (let ((mask 0))
    (declare (type status-mask mask))
    (multiple-value-bind (list present) (list-field object name path)
      (unless present (absent-value object name path required nil))
      (map-numbered (lambda (item path) (setf mask (logior mask (ash 1 (status-of item path)))))
                    list (member-path path name)))
    (when (and required (zerop mask))
      (config-error (member-path path name) "must name at least one status"))
    mask))

;;; Parsing

(defconstant +most-multiplier+ 1000000
  "The maximum backoffMultiplier, with which the second wait is the longest possible; a larger
multiplier counts as this. The minimum is the inverse of this, with which the second wait is almost
0.")

(defun parse-retry-policy (object path)
  (make-retry-policy
   :max-attempts (integer-field object "maxAttempts" path :required t :minimum 2 :text nil)
   :initial-ns (duration-field object "initialBackoff" path :required t :minimum 1)
   :maximum-ns (duration-field object "maxBackoff" path :required t :minimum 1)
   :multiplier (number-field object "backoffMultiplier" path
                             :required t :above 0 :text nil
                             :least (/ +most-multiplier+) :most +most-multiplier+)
   :codes (statuses-field object "retryableStatusCodes" path :required t)))

(defun parse-hedging-policy (object path)
  (make-hedging-policy
   :max-attempts (integer-field object "maxAttempts" path :required t :minimum 2 :text nil)
   :delay-ns (duration-field object "hedgingDelay" path :default 0)
   :codes (statuses-field object "nonFatalStatusCodes" path)))

(defun parse-attempt-policy (object path)
  "The ATTEMPT-POLICY in OBJECT, a method config at PATH; nil if OBJECT has none."
  (flet ((policy (name parser)
           (multiple-value-bind (policy present) (object-field object name path)
             (and present (funcall parser policy (member-path path name))))))
    (let ((retry (policy "retryPolicy" #'parse-retry-policy))
          (hedging (policy "hedgingPolicy" #'parse-hedging-policy)))
      (when (and retry hedging)
        (config-error (member-path path "hedgingPolicy")
                      "must not be used together with retryPolicy: a method has only one of them"))
      (or retry hedging))))
