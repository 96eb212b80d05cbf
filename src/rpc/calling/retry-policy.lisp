;;;; What a service config says of retries and hedging (gRFC A6): the policy of a method, the
;;;; statuses that it takes, back-off, a server's pushback, and throttling. Pure, but for the tokens
;;;; of a throttle, which threads may share. What a call does by it is in retry.lisp.

(in-package #:clgrpc.calling)

(deftype policy ()
  "What a method config says of further attempts."
  '(or config:retry-policy config:hedging-policy))

(defun policy-limit (policy options)
  "How many attempts POLICY allows, of a channel with OPTIONS."
  (min (etypecase policy
         (config:retry-policy (config:retry-policy-max-attempts policy))
         (config:hedging-policy (config:hedging-policy-max-attempts policy)))
       (options-max-attempts options)))

(defun find-retry-policy (config options)
  "The retry or hedging policy of CONFIG, a METHOD-CONFIG or nil, and how many attempts it allows;
nil if it has none or OPTIONS, a channel's, say that calls are not to be retried."
  (let ((policy (and config
                     (options-retry options)
                     (or (config:method-config-hedging config)
                         (config:method-config-retry config)))))
    (and policy (values policy (policy-limit policy options)))))

(defun goes-on-after-p (policy status)
  "True if POLICY, or nil, allows another attempt after one that has ended with STATUS."
  (logbitp (status:status-code status)
           (etypecase policy
             (null 0)
             (config:retry-policy (config:retry-policy-codes policy))
             (config:hedging-policy (config:hedging-policy-codes policy)))))

(defun hedging-policy-p (policy)
  "True if POLICY, or nil, is a hedging policy."
  (typep policy 'config:hedging-policy))

(defun hedging-delay-ns (policy)
  "How long after one attempt the hedging POLICY has the next begin."
  (config:hedging-policy-delay-ns policy))

;;; Back-off

(defconstant +longest-wait-ns+ (* 1000000000 +ns-per-second+)
  "No wait for an attempt is longer, whatever a policy or a server says.")

(defun retry-delay-ns (policy count random-state)
  "How long to wait before the next attempt, if there were COUNT such waits since the first attempt,
or since a server said how long to wait. With 0.1 s, a factor of 2 and 0.3 s at most these are 0.1,
0.2, 0.3, 0.3 s, each 20 % more or less."
  (let ((maximum (config:retry-policy-maximum-ns policy))
        (wait (float (config:retry-policy-initial-ns policy) 1d0))
        (factor (config:retry-policy-multiplier policy)))
    (loop repeat count
          ;; beyond either it goes no further
          while (and (< 1d0 wait) (or (< wait maximum) (< factor 1)))
          do (setf wait (* wait factor)))
    (min +longest-wait-ns+
         (round (* (min wait maximum) (+ 0.8d0 (random 0.4d0 random-state)))))))

;;; Pushback

(defun parse-pushback (text)
  "What the value TEXT of grpc-retry-pushback-ms asks for: the nanoseconds to wait, or :NEVER if it
is negative or no 32-bit integer without leading zeros."
  (let ((number (and (plusp (length text))
                     (<= (length text) 11)
                     (every #'digit-char-p (string-left-trim "-" text))
                     (ignore-errors (parse-integer text)))))
    (if (and number
             (<= 0 number #x7FFFFFFF)
             (string= text (princ-to-string number)))
        (min +longest-wait-ns+ (* 1000000 number))
        :never)))

(defun metadata-pushback (trailers)
  "What TRAILERS, the alist that an attempt has ended with, ask for, as PARSE-PUSHBACK has it, or
nil."
  (let ((field (assoc "grpc-retry-pushback-ms" trailers :test #'string=)))
    (and field (parse-pushback (cdr field)))))

;;; Throttling

(defstruct (throttle (:constructor %make-throttle (throttling tokens)) (:copier nil))
  "What is left of the tokens that further attempts to a server take, in thousandths of one."
  (throttling nil :type config:throttling :read-only t) ; of the service config
  (tokens 0 :type sb-ext:word))         ; in thousandths; atomic

(defmethod print-object ((throttle throttle) stream)
  (print-unreadable-object (throttle stream :type t)
    (format stream "~,3F of ~,3F tokens" (/ (throttle-tokens throttle) 1000)
            (/ (config:throttling-max-tokens (throttle-throttling throttle)) 1000))))

(defun current-throttle (throttle config)
  "The throttle for CONFIG, a SERVICE-CONFIG or nil: THROTTLE, or nil, if that is still as CONFIG
says; else a full one, or nil."
  (let ((throttling (and config (config:service-config-throttling config))))
    (cond ((null throttling) nil)
          ((and throttle (equalp throttling (throttle-throttling throttle))) throttle)
          (t (%make-throttle throttling (config:throttling-max-tokens throttling))))))

(defun change-tokens (throttle change)
  "Add CHANGE, in thousandths, to the tokens of THROTTLE, within its limits."
  (let ((limit (config:throttling-max-tokens (throttle-throttling throttle))))
    (sb-ext:atomic-update (throttle-tokens throttle)
                          (lambda (tokens) (max 0 (min limit (+ tokens change)))))))

(defun count-success (throttle)
  "A call that THROTTLE counts has ended with :ok."
  (change-tokens throttle (config:throttling-token-ratio (throttle-throttling throttle))))

(defun count-failure (throttle policy status pushback)
  "An attempt under POLICY, or nil, has ended with STATUS and PUSHBACK, as PARSE-PUSHBACK has it, or
nil. THROTTLE, or nil, counts it if it may be tried again, or its server has said that it should
not be."
  (when (and throttle
             (or (goes-on-after-p policy status)
                 (eq :never pushback)))
    (change-tokens throttle -1000)))

(defun throttled-p (throttle)
  "True if THROTTLE, or nil, has too few tokens left for another attempt: half or less; and how many
it has."
  (when throttle
    (let ((tokens (throttle-tokens throttle)))
      (values (<= (* 2 tokens) (config:throttling-max-tokens (throttle-throttling throttle)))
              (/ tokens 1000)))))
