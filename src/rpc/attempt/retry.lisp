;;;; Retries and hedging (gRFC A6) as a pure state machine: it decides the next step of a call whose
;;;; attempts fail. The state machine knows no transport, no thread and no clock; only the tokens of
;;;; a THROTTLE are shared by threads. Attempts are objects of the transport; the machine only keeps
;;;; a list of the attempts under way. A transport gives it RETRY-OPERATIONS and reports each event;
;;;; CARRY-OUT performs the machine's decision by these operations. The policies are in
;;;; config/retry-policy.lisp. The transports that make attempts are client/attempts/attempt.lisp
;;;; and inproc/relay.lisp.
;;;;
;;;;   event            function                     decision
;;;;   the first begins TELL-BEGUN, FIRST-BEGUN      :await or nil: only a hedging policy
;;;;                                                 has a next attempt to await
;;;;   one begins       TAKE-NUMBER, ADD-ATTEMPT
;;;;   one fails        TELL-FAILED, ATTEMPT-FAILED  by the table below
;;;;   a time has come  TELL-DUE, ATTEMPT-DUE        :begin, :fail or nil
;;;;   an answer begins COMMIT                       the other attempts, which are to be reset
;;;;   the call sends too much to be kept, or ends: likewise
;;;;
;;;;   decision         CARRY-OUT
;;;;   nil              leaves the call to the attempts under way
;;;;   :await NS        arranges a call of TELL-DUE in NS nanoseconds
;;;;   :begin NS        begins another attempt; and unless NS is nil arranges a call of TELL-DUE
;;;;                    in NS nanoseconds
;;;;   :resend NIL      begins another attempt as soon as the stream of the failed one is closed
;;;;   :fail FAILURE    ends the call with FAILURE, an ATTEMPT-FAILURE
;;;;
;;;; At most one time is awaited; RETRIES-AWAITED is its purpose, or nil. After the failure of an
;;;; attempt the decision is in the first row that fits:
;;;;
;;;;   policy   failure                               state of the call          decision
;;;;   any      its server has not seen it (1)        its messages can be resent :resend
;;;;   any      a balancer has dropped it                                        :fail
;;;;   hedging  a status that is fatal                                           :fail
;;;;   hedging  the server says: never again          others are under way       nil, no more hedges
;;;;                                                  none under way             :fail
;;;;   hedging  any other                             no more allowed, others    nil
;;;;                                                  no more allowed, none      :fail
;;;;   hedging  the server says: after NS             more allowed               :await NS
;;;;   hedging  any other                             more allowed, throttled    as never again
;;;;                                                  more allowed               :begin, the next
;;;;                                                                             after hedgingDelay
;;;;   retry    retryable, the server says: after NS  allowed (2)                :await NS
;;;;   retry    retryable                             allowed (2)                :await back-off
;;;;   retry    any other, or never again                                        :fail
;;;;   none     any                                                              :fail
;;;;
;;;; (1) REFUSED_STREAM, or a stream above the last one of a GOAWAY. Such an attempt is repeated at
;;;;     once, but only once, since a server that refuses again has a reason. The exception is an
;;;;     attempt on a connection that is older than the first refusal and has received a GOAWAY
;;;;     since: that attempt may have been under way at the time of the refusal, for example when
;;;;     several servers end old connections at once (A9). Each connection gets a server's last
;;;;     GOAWAY once. Such repetitions do not count as attempts, and cost no tokens of the throttle.
;;;; (2) Attempts are left, the throttle has more than half of its tokens, and all messages sent are
;;;;     kept.
;;;;
;;;; A throttle loses a token with each failure after which the policy makes another attempt, and
;;;; with each "never again".

(in-package #:clgrpc.attempt)

(defun policy-limit (policy options)
  "The number of attempts that POLICY allows on a channel with OPTIONS."
  (min (config:attempt-policy-max-attempts policy) (options-max-attempts options)))

(defun find-retry-policy (config options)
  "Two values: the policy for further attempts in CONFIG, a METHOD-CONFIG or nil, and the number of
attempts that it allows; nil if CONFIG has no such policy, or if OPTIONS, a channel's, turn retries
off."
  (let ((policy (and config
                     (options-retry options)
                     (config:method-config-policy config))))
    (and policy (values policy (policy-limit policy options)))))

;;; Pushback

(defun parse-pushback (text)
  "Return the nanoseconds to wait that TEXT, the value of grpc-retry-pushback-ms, requests; :NEVER
if TEXT is negative or not a 32-bit integer without leading zeros; nil if TEXT is nil, because the
attempt has ended without a pushback."
  (let ((number (and text (<= (length text) 10) (parse-integer text :junk-allowed t))))
    (cond ((null text) nil)
          ((and number
                (<= 0 number #x7FFFFFFF)
                (string= text (princ-to-string number)))
           (* 1000000 number))
          (t :never))))

;;; Throttling

(defstruct (throttle (:constructor %make-throttle (throttling tokens)) (:copier nil))
  "The remaining tokens for further attempts to a server, in thousandths of a token."
  (throttling nil :type config:throttling :read-only t) ; the throttling of the service config
  (tokens 0 :type sb-ext:word))         ; tokens in thousandths; atomic

(define-printer (throttle throttle)
  "~,3F of ~,3F tokens" (/ (throttle-tokens throttle) 1000)
  (/ (config:throttling-max-tokens (throttle-throttling throttle)) 1000))

(defun current-throttle (throttle config)
  "Return the throttle for CONFIG, a SERVICE-CONFIG or nil; nil if CONFIG has no throttling. This is
THROTTLE, a throttle or nil, if it has the limits of CONFIG, else a new throttle with all its
tokens."
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
  "Count in THROTTLE an attempt under POLICY that has ended with STATUS and PUSHBACK, a value of
PARSE-PUSHBACK. THROTTLE, POLICY and PUSHBACK may be nil. The attempt counts as a failure if STATUS
allows another attempt, or if PUSHBACK is :NEVER."
  (when (and throttle
             (or (config:continues-after-p policy status)
                 (eq :never pushback)))
    (change-tokens throttle -1000)))

(defun throttled-p (throttle)
  "True if THROTTLE has half of its tokens or less, too few for another attempt; false if THROTTLE
is nil. The second value is the number of THROTTLE's tokens."
  (when throttle
    (let ((tokens (throttle-tokens throttle)))
      (values (<= (* 2 tokens) (config:throttling-max-tokens (throttle-throttling throttle)))
              (/ tokens 1000)))))

(defstruct (attempt-failure (:constructor make-attempt-failure
                                (status message &key (reach :handler) pushback))
                            (:copier nil))
  "The failure of an attempt of a call before the answer began. A transport may include this
structure."
  (status :unknown :type symbol :read-only t) ; the status of the call, if this failure ends it
  (message "" :type string :read-only t) ; the text of the status
  ;; the place that the attempt has reached: :NOWHERE, no stream was begun; :DROPPED, no stream was
  ;; begun, since the balancer makes the call fail; :SERVER, the server reports that its application
  ;; has not seen the attempt; or :HANDLER, the application has perhaps seen it
  (reach :handler :type (member :nowhere :dropped :server :handler) :read-only t)
  ;; the server's pushback: the nanoseconds to wait, :NEVER, or nil
  (pushback nil :type (or null (eql :never) (integer 0)) :read-only t))

(define-printer (failure attempt-failure)
  "~(~A ~A~) ~A" (attempt-failure-status failure) (attempt-failure-reach failure)
  (attempt-failure-message failure))

(defstruct (retries (:constructor make-retries (policy limit &optional running)) (:copier nil))
  "The state of a call that is tried more than once, or may be. A transport may include this
structure."
  (policy nil :type (or null config:attempt-policy) :read-only t) ; the policy of the call's method
  (limit 1 :type index :read-only t)    ; how many attempts the policy allows
  (running '() :type list)              ; the attempts under way, oldest first
  (pending '() :type list)              ; the numbers of the attempts that begin as soon as they can
  (issued 1 :type index)                ; how many attempts count so far, including those of PENDING
  (awaited nil :type (member nil :retry :hedge)) ; the kind that ATTEMPT-DUE will begin
  (over nil :type boolean)              ; no further attempt may begin
  (waits 0 :type index)                 ; back-offs since a server said how long to wait
  (resent 0 :type index)                ; how often a server had not seen the call
  (resent-ns nil :type (or null nanoseconds)) ; when a server had first not seen the call
  (last nil :type (or null attempt-failure)) ; the failure of the attempt that failed last
  (since-ns 0 :type nanoseconds)        ; the time since which no attempt runs or, while one runs,
                                        ; the last such time
  (idle-ns 0 :type nanoseconds))        ; how long no attempt ran while a time was awaited

(define-printer (retries retries)
  "~D of ~D attempts, ~D under way" (retries-issued retries) (retries-limit retries)
  (length (retries-running retries)))

(defun retries-hedged-p (retries)
  "True if the attempts of RETRIES after the first are hedges."
  (config:hedging-policy-p (retries-policy retries)))

(deftype attempt-kind ()
  "The reason why an attempt is made."
  '(member :first :retry :hedge :transparent))

(defun kind-of-attempt (retries number repeated)
  "The ATTEMPT-KIND of the attempt of RETRIES that has NUMBER attempts before it. RETRIES may be
nil. REPEATED is true if another attempt with that number has failed; in that case the kind is
:TRANSPARENT."
  (cond (repeated :transparent)
        ((zerop number) :first)
        ((retries-hedged-p retries) :hedge)
        (t :retry)))

(defun count-repeats (retries now)
  "The values of the operation REPEATS for the call of RETRIES, which ends at NOW: the numbers of
retries, of hedges, and of attempts repeated because their server had not seen them; and the
nanoseconds in which no attempt was under way."
  (let ((more (1- (retries-issued retries)))
        (hedged (retries-hedged-p retries)))
    (values (if hedged 0 more)
            (if hedged more 0)
            (retries-resent retries)
            (idle-until retries now))))

(defun idle-until (retries now)
  "The nanoseconds that the call of RETRIES has spent, until NOW, waiting for the time of its next
attempt while no attempt was under way."
  (+ (retries-idle-ns retries)
     (if (and (retries-awaited retries) (null (retries-running retries)))
         (max 0 (- now (retries-since-ns retries)))
         0)))

;;; Attempts begin

(defun more-p (retries)
  "True if RETRIES allow another attempt; the throttle may still forbid it."
  (and (not (retries-over retries))
       (< (retries-issued retries) (retries-limit retries))))

(defun under-way-p (retries)
  "True if RETRIES have an attempt that runs, or is about to begin."
  (and (or (retries-running retries)
           (and (not (retries-over retries)) (retries-pending retries)))
       t))

(defun issue (retries)
  "Note that another attempt of RETRIES must begin as soon as it can; it counts as an attempt."
  (setf (retries-pending retries)
        (append (retries-pending retries) (list (retries-issued retries))))
  (incf (retries-issued retries)))

(defun take-number (retries)
  "Return the number of earlier attempts of RETRIES, for an attempt that begins now or that could
not begin."
  (or (pop (retries-pending retries)) 0))

(defun add-attempt (retries attempt)
  "Note that ATTEMPT of RETRIES is under way."
  (setf (retries-running retries) (append (retries-running retries) (list attempt))))

(defun forget-attempt (retries attempt)
  (setf (retries-running retries) (remove attempt (retries-running retries))))

(defun await-attempt (retries kind delay-ns)
  "Decide to call ATTEMPT-DUE after DELAY-NS, for an attempt of KIND."
  (setf (retries-awaited retries) kind)
  (values :await delay-ns))

(defun first-begun (retries kept)
  "Return the decision when the first attempt of RETRIES begins, before anything is sent. KEPT is
true if the messages of the call are kept, so that they can be sent again."
  (if (and (retries-hedged-p retries) kept (more-p retries))
      (await-attempt retries :hedge (config:hedging-policy-delay-ns (retries-policy retries)))
      (values nil nil)))

(defun go-on-idly (retries now)
  "Note that the time awaited by RETRIES has come, at NOW, and return the kind of attempt to begin.
If no attempt is under way, count the wait as idle time."
  (unless (retries-running retries)
    (setf (retries-idle-ns retries) (idle-until retries now)
          (retries-since-ns retries) now))
  (shiftf (retries-awaited retries) nil))

(defun stop-hedging (retries)
  "Decide that RETRIES begin no more attempts. If no attempt runs, the call ends with the last
failure."
  (setf (retries-over retries) t
        (retries-awaited retries) nil)
  (if (retries-running retries)
      (values nil nil)
      (values :fail (retries-last retries))))

(defun hedge (retries throttle)
  "Decide that another attempt of RETRIES begins, unless THROTTLE, which may be nil, forbids it. The
second value is the delay until the next attempt after this one, or nil."
  (cond ((throttled-p throttle) (stop-hedging retries))
        (t (issue retries)
           (cond ((more-p retries)
                  (setf (retries-awaited retries) :hedge)
                  (values :begin (config:hedging-policy-delay-ns (retries-policy retries))))
                 (t (setf (retries-awaited retries) nil)
                    (values :begin nil))))))

(defun attempt-due (retries now &key throttle (sendable t))
  "Return the decision when the time that RETRIES have awaited comes, at NOW. THROTTLE is the
channel's throttle, or nil. SENDABLE is true if all messages that the call has sent can be sent
again."
  (ecase (go-on-idly retries now)
    ((nil) (values nil nil))            ; the machine no longer waits for this time
    (:retry (issue retries) (values :begin nil))
    (:hedge (if (and (more-p retries) sendable)
                (hedge retries throttle)
                (values nil nil)))))

;;; Attempts fail

(defun unseen-p (retries failure going-ns)
  "True if an attempt of RETRIES must be repeated unchanged, because FAILURE shows that its server
has not seen it. GOING-NS is the time when the attempt's connection began, if a GOAWAY was received
on that connection, else nil."
  (let ((first-ns (retries-resent-ns retries)))
    (and (eq :server (attempt-failure-reach failure))
         (or (null first-ns)
             (and going-ns (< going-ns first-ns))))))

(defun resend (retries number now)
  "Decide to repeat the attempt of RETRIES with NUMBER, which its server has not seen."
  (incf (retries-resent retries))
  (unless (retries-resent-ns retries) (setf (retries-resent-ns retries) now))
  (setf (retries-pending retries) (append (retries-pending retries) (list number)))
  (values :resend nil))

(defun hedge-failed (retries failure throttle sendable)
  "Return the decision after FAILURE of an attempt of RETRIES, which are hedged."
  (let ((pushback (attempt-failure-pushback failure)))
    (cond ((not (config:continues-after-p (retries-policy retries)
                                          (attempt-failure-status failure)))
           (values :fail failure))
          ((eq :never pushback) (stop-hedging retries))
          ((not (and sendable (more-p retries)))
           (if (under-way-p retries)
               (values nil nil)
               (values :fail failure)))
          ((and pushback (plusp pushback)) (await-attempt retries :hedge pushback))
          (t (hedge retries throttle)))))

(defun retry-p (retries failure throttle)
  "True if the retry policy of RETRIES allows another attempt after FAILURE."
  (and (config:continues-after-p (retries-policy retries) (attempt-failure-status failure))
       (not (eq :never (attempt-failure-pushback failure)))
       (more-p retries)
       (not (throttled-p throttle))))

(defun next-wait-ns (retries failure chance)
  "The nanoseconds for which RETRIES wait before the attempt after FAILURE."
  (cond ((attempt-failure-pushback failure)
         (setf (retries-waits retries) 0)
         (attempt-failure-pushback failure))
        (t (prog1 (config:retry-delay-ns (retries-policy retries) (retries-waits retries)
                                  (funcall (the function chance)))
             (incf (retries-waits retries))))))

(defun attempt-failed (retries attempt number failure now chance
                       &key throttle going-ns (sendable t) (keep (constantly t)))
  "Return the decision after ATTEMPT of RETRIES has failed with FAILURE at NOW. ATTEMPT is nil if
the attempt could not begin. NUMBER attempts came before it. CHANCE is a function that returns a
random state; THROTTLE and SENDABLE are as for ATTEMPT-DUE, GOING-NS as for UNSEEN-P. KEEP is a
function that returns true if the sent messages are kept for a retry; it is called last."
  (declare (type function keep))
  (when attempt (forget-attempt retries attempt))
  (unless (retries-running retries) (setf (retries-since-ns retries) now))
  (setf (retries-last retries) failure)
  (cond ((and attempt sendable (unseen-p retries failure going-ns))
         (resend retries number now))
        (t (count-failure throttle (retries-policy retries) (attempt-failure-status failure)
                          (attempt-failure-pushback failure))
           (cond ((eq :dropped (attempt-failure-reach failure)) (values :fail failure))
                 ((retries-hedged-p retries) (hedge-failed retries failure throttle sendable))
                 ((under-way-p retries) (values nil nil))
                 ((and (retry-p retries failure throttle) (funcall keep))
                  (await-attempt retries :retry (next-wait-ns retries failure chance)))
                 (t (values :fail failure))))))

;;; Committing the call to one attempt

(defun commit (retries attempt)
  "Let the call of RETRIES continue with ATTEMPT alone, which is nil if the call has ended. No
further attempt begins. Return the other attempts under way."
  (setf (retries-over retries) t
        (retries-awaited retries) nil
        (retries-last retries) nil)
  (remove attempt (shiftf (retries-running retries) (and attempt (list attempt)))))

;;; Performing decisions

(defstruct (retry-operations (:conc-name operation-) (:copier nil))
  "The operations of a transport for the state machine: functions of CALL, the transport's object
for a call that may have several attempts."
  ;; the machine's questions
  (retries nil :type function :read-only t) ; (call): its RETRIES
  (throttle nil :type function :read-only t) ; (call): the throttle of its channel, or nil
  (now nil :type function :read-only t) ; (call): the time
  (chance nil :type function :read-only t) ; (call): a random state
  ;; (call): true if all messages of the call can be resent
  (sendable nil :type function :read-only t)
  ;; (call): begin to keep the call's messages for a retry; return true if all can be resent
  (keep nil :type function :read-only t)
  ;; the machine's actions
  (go-on #'identity :type function :read-only t) ; (call): continue, perhaps without an attempt
  (await nil :type function :read-only t) ; (call ns): call TELL-DUE in NS, not before
  (cancel nil :type function :read-only t) ; (call): stop waiting for any time
  (begin nil :type function :read-only t) ; (call): begin another attempt
  ;; (call): begin another attempt when the last stream is closed
  (resend nil :type function :read-only t)
  (fail nil :type function :read-only t)) ; (call failure): end CALL

(defun carry-out (operations call decision argument)
  "Perform DECISION, with its ARGUMENT (see the head of this file), for CALL, which runs."
  (flet ((set-time ()
           (funcall (operation-await operations) call argument)))
    (unless (retries-awaited (funcall (operation-retries operations) call))
      (funcall (operation-cancel operations) call))
    (unless (eq :fail decision) (funcall (operation-go-on operations) call))
    (ecase decision
      ((nil))
      (:await (set-time))
      (:begin (when argument (set-time))
       (funcall (operation-begin operations) call))
      (:resend (funcall (operation-resend operations) call))
      (:fail (funcall (operation-fail operations) call argument))))
  nil)

(defun tell-begun (operations call)
  "Report to the state machine that the first attempt of CALL begins, before anything is sent."
  (let ((retries (funcall (operation-retries operations) call)))
    (multiple-value-call #'carry-out operations call
      (first-begun retries (and (retries-hedged-p retries)
                                (funcall (operation-keep operations) call))))))

(defun tell-failed (operations call attempt number failure &optional going-ns)
  "Report to the state machine that ATTEMPT of CALL, which runs, has failed with FAILURE. ATTEMPT is
nil if the attempt could not begin. NUMBER other attempts came before it. GOING-NS is the time when
the attempt's connection began, if a GOAWAY was received on that connection, else nil."
  (multiple-value-call #'carry-out operations call
    (attempt-failed (funcall (operation-retries operations) call) attempt number failure
                    (funcall (operation-now operations) call)
                    (lambda () (funcall (operation-chance operations) call))
                    :throttle (funcall (operation-throttle operations) call)
                    :going-ns going-ns
                    :sendable (funcall (operation-sendable operations) call)
                    :keep (lambda () (funcall (operation-keep operations) call)))))

(defun tell-due (operations call)
  "Report to the state machine that the time for which CALL, which runs, waits has come."
  (multiple-value-call #'carry-out operations call
    (attempt-due (funcall (operation-retries operations) call)
                 (funcall (operation-now operations) call)
                 :throttle (funcall (operation-throttle operations) call)
                 :sendable (funcall (operation-sendable operations) call))))

(defun tell-failed-late (operations call failure)
  "Count in the throttle that an attempt of CALL failed with FAILURE after its answer had begun. No
further attempt follows."
  (count-failure (funcall (operation-throttle operations) call)
                 (retries-policy (funcall (operation-retries operations) call))
                 (attempt-failure-status failure) (attempt-failure-pushback failure)))
