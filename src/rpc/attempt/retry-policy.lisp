;;;; Retries and hedging in a service config (gRFC A6): the policy of a method, the statuses after
;;;; which it makes another attempt, back-off, a server's pushback, and throttling. Pure, except for
;;;; the tokens of a throttle, which threads may share. The course of a call under a policy is in
;;;; retry.lisp.

(in-package #:clgrpc.attempt)

(deftype policy ()
  "The policy for further attempts in a method config."
  '(or config:retry-policy config:hedging-policy))

(defun policy-limit (policy options)
  "The number of attempts that POLICY allows on a channel with OPTIONS."
  (min (etypecase policy
         (config:retry-policy (config:retry-policy-max-attempts policy))
         (config:hedging-policy (config:hedging-policy-max-attempts policy)))
       (options-max-attempts options)))

(defun find-retry-policy (config options)
  "Two values: the retry or hedging policy of CONFIG, a METHOD-CONFIG or nil, and how many attempts
it allows; nil if CONFIG has no policy, or if OPTIONS, a channel's, turn retries off."
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
  "The time from one attempt to the next under the hedging POLICY, in nanoseconds."
  (config:hedging-policy-delay-ns policy))

;;; Back-off

(defconstant +longest-wait-ns+ (* 1000000000 +ns-per-second+)
  "The longest wait for an attempt, in nanoseconds, regardless of the policy and of the server.")

(defun retry-delay-ns (policy count random-state)
  "The nanoseconds to wait before the next attempt under POLICY, after COUNT such waits since the
first attempt or since a server's last pushback. With an initial 0.1 s, a factor of 2 and a maximum
of 0.3 s, the waits are 0.1, 0.2, 0.3, 0.3 s, each with up to 20 % more or less."
  (let ((maximum (config:retry-policy-maximum-ns policy))
        (wait (float (config:retry-policy-initial-ns policy) 1d0))
        (factor (config:retry-policy-multiplier policy)))
    (loop repeat count
          ;; beyond these bounds the wait stays the same
          while (and (< 1d0 wait) (or (< wait maximum) (< factor 1)))
          do (setf wait (* wait factor)))
    (min +longest-wait-ns+
         (round (* (min wait maximum) (+ 0.8d0 (random 0.4d0 random-state)))))))

;;; Pushback

(defun parse-pushback (text)
  "The value TEXT of grpc-retry-pushback-ms: the nanoseconds to wait, or :NEVER if it is negative or
not a 32-bit integer without leading zeros. If TEXT is nil, because the attempt has ended without
this trailer, the value is nil."
  (let ((number (and (plusp (length text))
                     (<= (length text) 11)
                     (every #'digit-char-p (string-left-trim "-" text))
                     (ignore-errors (parse-integer text)))))
    (cond ((null text) nil)
          ((and number
                (<= 0 number #x7FFFFFFF)
                (string= text (princ-to-string number)))
           (min +longest-wait-ns+ (* 1000000 number)))
          (t :never))))

;;; Throttling

(defstruct (throttle (:constructor %make-throttle (throttling tokens)) (:copier nil))
  "The remaining tokens for further attempts to a server, in thousandths of a token."
  (throttling nil :type config:throttling :read-only t) ; of the service config
  (tokens 0 :type sb-ext:word))         ; in thousandths; atomic

(define-printer (throttle throttle)
  "~,3F of ~,3F tokens" (/ (throttle-tokens throttle) 1000)
  (/ (config:throttling-max-tokens (throttle-throttling throttle)) 1000))

(defun current-throttle (throttle config)
  "The throttle for CONFIG, a SERVICE-CONFIG or nil. It is THROTTLE, a throttle or nil, if THROTTLE
has the limits of CONFIG; else a new throttle with all its tokens; nil if CONFIG has no throttling."
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
  "Count in THROTTLE a call that has ended with :ok."
  (change-tokens throttle (config:throttling-token-ratio (throttle-throttling throttle))))

(defun count-failure (throttle policy status pushback)
  "Count in THROTTLE, or nil, an attempt under POLICY, or nil, that has ended with STATUS and
PUSHBACK, a value of PARSE-PUSHBACK or nil. The failure counts if STATUS allows another attempt, or
if PUSHBACK is :NEVER."
  (when (and throttle
             (or (goes-on-after-p policy status)
                 (eq :never pushback)))
    (change-tokens throttle -1000)))

(defun throttled-p (throttle)
  "True if THROTTLE, or nil, has too few tokens left for another attempt: half or less. The second
value is the number of tokens that THROTTLE has."
  (when throttle
    (let ((tokens (throttle-tokens throttle)))
      (values (<= (* 2 tokens) (config:throttling-max-tokens (throttle-throttling throttle)))
              (/ tokens 1000)))))
