;;;; Calls within the image under a service config or with interceptors of attempts: the attempts of
;;;; a call, and the messages passed between the call and its attempts. attempt/retry.lisp (gRFC A6)
;;;; decides what follows an attempt, and calls **RETRY-OPERATIONS** to do it.
;;;;
;;;; A channel with a service config or such interceptors has a separate class, so other channels do
;;;; not use this file. For each method config, and for methods without one, the channel has a PLAN
;;;; with an inner channel, which has the limits of the method. A call whose plan has a policy, or
;;;; whose attempts are intercepted, leads to a RELAY in place of the handler: the relay makes the
;;;; attempts, which are calls on the inner channel, and passes on the answer of one attempt. So the
;;;; call itself is like any other call within the image: in its deadline, which the attempts share,
;;;; and in cancellation, callbacks and futures.
;;;;
;;;; A relay never waits. The handler's end of the call and the clients' ends of the attempts have
;;;; special transport operations: where other calls check for due callbacks, these operations WAKE
;;;; the relay. So the thread that causes an event runs ADVANCE, which checks the whole state and
;;;; performs all steps that are due. If another thread is running ADVANCE, it makes that thread
;;;; check again. No code here takes a lock.
;;;;
;;;; Attempts begin as they would over the wire, each handler on a new thread or on its channel's
;;;; loop. If the call's client waits on its thread for one answer to requests that are available,
;;;; and attempts are made one after the other, they run within ADVANCE on that thread, the relay's
;;;; CALLER, and no other thread begins an attempt.
;;;;
;;;; Requests are in a list to which new requests are added at the end; each attempt records its
;;;; position in the list. While the call may be tried again, the whole list is kept, and the
;;;; budgets of base/replay.lisp are charged for its requests. Requests that were available from the
;;;; start are charged only if the call is hedged. The call is committed to an attempt as soon as
;;;; that attempt has received headers, an answer or :ok, or when the list is too long; then the
;;;; other attempts are cancelled.

(in-package #:clgrpc.inproc)

(defstruct (plan (:copier nil))
  "The way in which calls under a method config are made."
  ;; the config that the plan follows, or nil
  (config nil :type (or null config:method-config) :read-only t)
  ;; nil if calls have a single attempt
  (policy nil :type (or null config:attempt-policy) :read-only t)
  (limit 1 :type index :read-only t)    ; the number of attempts that POLICY allows
  ;; the channel of attempts, or of calls without a relay
  (channel nil :type inproc-channel :read-only t)
  ;; the channel whose calls lead to relays without a caller; nil if there are no such calls
  (outer-channel nil :type (or null inproc-channel) :read-only t))

(defclass configured-inproc-channel (inproc-channel)
  ((config :initarg :config :reader channel-config) ; the service config, or nil
   ;; see MAKE-CHANNEL
   (attempt-interceptors :initarg :attempt-interceptors :reader channel-attempt-interceptors)
   ;; the options that determine how often a call is tried
   (options :initarg :options :reader channel-retry-options)
   (throttle :initarg :throttle :reader channel-throttle) ; the throttle, or nil
   ;; the budget for requests kept for attempts
   (octet-budget :initform (make-octet-budget) :reader channel-octet-budget)
   ;; maps the METHOD-CONFIGs of CONFIG, and nil, to plans
   (plans :initarg :plans :reader channel-plans)
   ;; the channel whose calls lead to relays that have a caller
   (outer-channel :initarg :outer-channel :reader channel-outer-channel))
  (:documentation "An in-process channel with a service config, or interceptors of attempts."))

(defclass intercepted-configured-inproc-channel (calling:interception configured-inproc-channel) ()
  (:documentation "A CONFIGURED-INPROC-CHANNEL with interceptors of calls."))

(defstruct (relayed-attempt (:constructor make-relayed-attempt (call number view sent))
                            (:copier nil))
  "An attempt that is under way, or whose end is not handled yet."
  (call nil :type call :read-only t)    ; the client's end
  (number 0 :type index :read-only t)   ; the number of earlier attempts
  ;; the view for interceptors, if the method has any, while the attempt runs
  (view nil :type (or null attempt:attempt))
  (sent nil :type cons)                 ; a cons of the relay's list; the next request is after it
  (closed nil :type boolean))           ; the end of the requests was sent

(defstruct (relay (:include attempt:retries) (:constructor %make-relay) (:copier nil))
  "An object that makes the attempts of a call, and passes messages between the call and the
attempts. The attempts under way, RUNNING, are RELAYED-ATTEMPTs."
  ;; the channel on which the call was made
  (channel nil :type configured-inproc-channel :read-only t)
  (plan nil :type plan :read-only t)    ; the plan of its method
  (fields nil :type simple-vector)      ; the metadata of the call
  (began-ns 0 :type nanoseconds :read-only t) ; when the call began
  ;; the waiting thread on which attempts run, if there is one
  (caller nil :type (or null sb-thread:thread) :read-only t)
  (call nil :type (or null call))       ; the handler's end of the call, once it has begun
  ;; the client's end of the last attempt that was begun or has failed
  (attempt nil :type (or null call))
  ;; t while a thread runs ADVANCE; :again if that thread must check again
  (state nil)
  (kept nil :type list)                 ; a cons before the requests kept for further attempts; nil
                                        ; once committed
  (newest nil :type list)               ; the last cons of KEPT
  (closed nil :type boolean)            ; no more requests will come
  (uncharged nil :type boolean :read-only t) ; the kept requests are not charged
  (replay nil :type (or null replay))   ; the charged requests; nil unless all are kept
  (begun nil :type boolean)             ; the first attempt has begun
  (committed nil :type (or null relayed-attempt)) ; the attempt whose answer the call gets
  (here nil :type (or null call))       ; the client's end of the attempt that runs within ADVANCE
  ;; the timer of the next attempt; the car is true when the attempt is due
  (timer nil :type list))

(defun make-relay (requests over &rest arguments &key channel plan &allow-other-keys)
  "A relay for a call on CHANNEL whose plan is PLAN. REQUESTS, a list, are available already; if
OVER is true, no more follow. The other ARGUMENTS are values of the relay's slots."
  (let ((kept (cons nil requests))
        (uncharged (and over (one-by-one-p plan))))
    (apply #'%make-relay
           :kept kept :newest (last kept) :closed over :uncharged uncharged
           :policy (plan-policy plan) :limit (plan-limit plan)
           :replay (unless uncharged
                     (make-replay (channel-octet-budget channel)
                                  (options-replay-octets (channel-retry-options channel))))
           arguments)))

(defun one-by-one-p (plan)
  "True if the attempts of a call with PLAN never run in parallel."
  (not (config:hedging-policy-p (plan-policy plan))))

(defun relay-call-pair (relay) (call-call-pair (relay-call relay)))

(defun relay-client (relay) (call-pair-client (relay-call-pair relay)))

(defun relay-throttle (relay) (channel-throttle (relay-channel relay)))

;;; Waking

(defun wake (relay)
  "Run ADVANCE for RELAY on this thread now; if another thread runs it, make that thread run it
again."
  (loop
    (case (relay-state relay)
      ((nil) (sb-sys:without-interrupts ; a thread that sets STATE must run ADVANCE
               (when (null (compare-and-swap (relay-state relay) nil t))
                 (return-from wake (sb-sys:allow-with-interrupts (run-relay relay))))))
      ((t) (when (eq t (compare-and-swap (relay-state relay) t :again)) (return)))
      (t (return))))
  (stop-here relay))

(defun stop-here (relay)
  "If RELAY's call has ended, end the attempt that runs within ADVANCE."
  (sb-thread:barrier (:memory))
  (let ((here (relay-here relay)))
    (when (and here (call-status (relay-call relay)) (null (call-status here)))
      (rpc:cancel here))))

(defun run-relay (relay)
  (let ((done nil))
    (with-undoing (nil
                   (unless done
                     (setf (relay-state relay) nil)
                     (if (shiftf (relay-here relay) nil)
                         (rpc:abort-as (relay-client relay) :caller-interrupted)
                         (rpc:abort-as (relay-call relay) :handler-error))))
      (loop
        (advance relay)
        (sb-sys:without-interrupts
          (setf done (eq t (compare-and-swap (relay-state relay) t nil))))
        (when done (return))
        (setf (relay-state relay) t)
        ;; a thread that has seen :again before this store leaves its event to the next look
        (sb-thread:barrier (:memory))))))

(defun wake-owner (call)
  "The operation SCHEDULE of the two ends that belong to a relay. After any event, the end's
callback for room wakes the relay."
  (let ((callbacks (call-inproc-callbacks call)))
    (when (and callbacks (inproc-callbacks-on-writable callbacks))
      (funcall (inproc-callbacks-on-writable callbacks)))))

(defun have-wake (relay call)
  "Arrange that every event of CALL, one of RELAY's ends, wakes RELAY."
  (setf (inproc-callbacks-on-writable (ensure-inproc-callbacks call)) (lambda () (wake relay))))

(rpc:define-transport-end **attempt-operations** (:client :like **client-operations**)
  :schedule #'wake-owner)

(rpc:define-transport-end **relay-operations** (:server :like **server-operations**)
  :schedule #'wake-owner)

;;; The beginning and the end of an attempt

(defun interceptors-of (channel method)
  (rpc:interceptors-for (channel-attempt-interceptors channel) method))

(defun view-attempt (relay number)
  "As ATTEMPT:VIEW-ATTEMPT, for the attempt of RELAY after NUMBER other attempts."
  (let ((client (relay-client relay))
        (interceptors (channel-attempt-interceptors (relay-channel relay))))
    (if interceptors
        (attempt:view-attempt client number relay (rpc:call-peer client)
                              (rpc:operate metadata client (relay-fields relay))
                              interceptors)
        (values nil nil))))

(defun attempt-fields (relay number view)
  "The metadata of the attempt of RELAY after NUMBER other attempts. VIEW is the attempt's
view for interceptors, or nil."
  (let ((fields (if view
                    (metadata-entries (attempt:attempt-request-metadata view))
                    (relay-fields relay))))
    (if (zerop number)
        fields
        (concatenate 'simple-vector fields
                     (list (cons "grpc-previous-rpc-attempts" (princ-to-string number)))))))

(defun attempt-options (client observer)
  "The options of an attempt of the call whose client's end is CLIENT: the call's limits for
messages; and, unless OBSERVER is nil, the call itself, for the reports about the attempt."
  (multiple-value-bind (send receive) (rpc:own-limits client)
    (append (and observer (list :values (list 'attempt:attempt-of client)))
            (and send (list :max-send-octets send))
            (and receive (list :max-receive-octets receive)))))

(defun begin-attempt (relay number channel)
  "Two values: the call pair of the attempt of RELAY after NUMBER other attempts, a call on CHANNEL;
and the view of the attempt for interceptors, or nil. The handler of the attempt has not begun; if
an interceptor has made the attempt fail, the call has ended."
  (let* ((call (relay-call relay))
         (method (call-rpc-method call))
         (deadline (call-deadline call))
         (inproc-core (channel-inproc-core channel))
         (client (relay-client relay))
         (observer (inproc-observer client))
         (callee (callee-of inproc-core)))
    (multiple-value-bind (view error) (if callee (view-attempt relay number) (values nil nil))
      ;; before the handler begins, since it may call ATTEMPT-OF
      (rpc:observe attempt-begun observer client (inproc-core-target inproc-core) 0)
      (let ((call-pair (if error
                           (failed-call-pair inproc-core method deadline error)
                           (call-pair-to inproc-core callee (and callee (route-to callee method))
                                         method deadline
                                         (attempt-fields relay number view)
                                         (attempt-options client observer)))))
        (setf (relay-attempt relay) (call-pair-client call-pair))
        (when observer (begin-call-counts call-pair))
        (values call-pair view)))))

(defun end-attempt (relay attempt)
  "Note that ATTEMPT of RELAY is finished. End the attempt's call if it still runs."
  (let ((call (relayed-attempt-call attempt))
        (view (shiftf (relayed-attempt-view attempt) nil)))
    (unless (call-status call) (rpc:cancel call))
    (multiple-value-bind (sent received) (traffic call)
      (rpc:observe attempt-ended (inproc-observer (relay-client relay))
                   (relay-client relay) (rpc:call-peer call) (call-status call) 0
                   sent received (elapsed-ns call)))
    (when view (attempt:close-attempt view (call-status call) :call call))))

;;; After an attempt

(defun failure-of (attempt)
  "The ATTEMPT-FAILURE of ATTEMPT, which has ended."
  (multiple-value-bind (status text) (rpc:final-status attempt)
    (attempt:make-attempt-failure
     status text
     :pushback (attempt:parse-pushback (cdr (assoc "grpc-retry-pushback-ms"
                                                   (rpc:call-trailers attempt)
                                                   :test #'string=))))))

(defun record-failure (relay number)
  "Record the failure of RELAY's last attempt, which came after NUMBER other attempts, for
FAILED-ATTEMPTS; do nothing if only one attempt is possible."
  (when (plan-policy (relay-plan relay))
    (let ((attempt (relay-attempt relay)))
      (multiple-value-bind (status text) (rpc:final-status attempt)
        (rpc:note-failed-attempt (relay-client relay) number (rpc:call-peer attempt) status text
                                 (/ (- (call-now attempt) (relay-began-ns relay)) 1d9))))))

(defun relay-loop (relay)
  "The loop for the timers of RELAY; nil if its channel is closed, so that the call has ended."
  (ensure-loop (call-inproc-core (relay-call relay))))

;;; The end of the call

(defun fail-relay (relay error)
  "End RELAY's call with ERROR, the reason for which a request cannot be sent."
  (let ((how (list (status:rpc-error-status error) :message (status:rpc-error-message error)
                   :ended-by :local)))
    (end-call-pair (relay-call-pair relay) how how nil)))

(defun end-relay (relay answer)
  "End RELAY's call as its last attempt ended; ANSWER is the attempt's answer, if it has one."
  (let* ((call-pair (relay-call-pair relay))
         (server (relay-call relay))
         (attempt (relay-attempt relay))
         (throttle (relay-throttle relay)))
    (pass-metadata relay)
    (rpc:add-trailers server (rpc:call-trailers attempt))
    (cond ((not (eq :ok (call-status attempt)))
           (let* ((error (rpc:call-condition attempt))
                  (how (list :message (status:rpc-error-message error)
                             :details (status:rpc-error-details-octets error))))
             (end-call-pair call-pair
                            (list* (call-status attempt)
                                   :ended-by (status:rpc-error-ended-by error)
                                   :sent (status:rpc-error-sent-p error) how)
                            (list* (call-status attempt) :ended-by :local how)
                            t)))
          (t (when throttle (attempt:count-success throttle))
             (if (rpc:answers-once-p server)
                 (answer call-pair answer)
                 (end-well call-pair))))))

;;; Performing decisions

(defun sendable-p (relay)
  "True if all requests received for RELAY are kept for further attempts."
  (and (relay-kept relay)
       (or (relay-replay relay) (relay-uncharged relay))
       t))

(defun begin-after (relay delay-ns)
  "Plan the next attempt of RELAY for DELAY-NS from now. No other attempt begins before the wait is
over."
  (let ((timer (list nil)))
    (setf (relay-timer relay) timer)
    (flet ((ring ()
             (setf (car timer) t)
             (if (may-begin-p relay)
                 (wake relay)
                 (rpc:notify (relay-client relay)))))
      (if (zerop delay-ns)
          (ring)
          (operate after (relay-call relay) (/ delay-ns +ns-per-second+) #'ring)))))

(defun may-begin-p (relay)
  "True if this thread may begin an attempt of RELAY."
  (or (null (relay-caller relay))
      (eq sb-thread:*current-thread* (relay-caller relay))))

(defun give-kept (relay call-pair attempt)
  "Pass the requests, all of which RELAY has kept, to the handler of CALL-PAIR, which is ATTEMPT of
RELAY, one by one as the handler asks for them."
  (setf (call-pair-source call-pair)
        (calling:request-generator (rest (relay-kept relay)))
        (call-pair-consumer call-pair) (this-context nil)
        (relayed-attempt-sent attempt) (relay-newest relay)
        (relayed-attempt-closed attempt) t))

(defun run-attempt-here (relay call-pair)
  "Run the handler of CALL-PAIR, an attempt of RELAY, on this thread."
  (setf (relay-here relay) (call-pair-client call-pair))
  ;; a thread that has ended the call before did not see this attempt
  (stop-here relay)
  (begin-here call-pair)
  (setf (relay-here relay) nil))

(defun begin-next (relay)
  (let ((number (attempt:take-number relay)))
    (multiple-value-bind (call-pair view)
        (begin-attempt relay number (plan-channel (relay-plan relay)))
      (let* ((call (call-pair-client call-pair))
             (attempt (make-relayed-attempt call number view (relay-kept relay))))
        (attempt:add-attempt relay attempt)
        (have-wake relay call)
        (handler-case
            (cond ((rpc:takes-one-p call) (send-only-request call-pair (cadr (relay-kept relay))))
                  ((relay-caller relay) (give-kept relay call-pair attempt)))
          (status:rpc-error (error) (fail-relay relay error)))
        (cond ((call-status call))
              ((relay-caller relay) (run-attempt-here relay call-pair))
              ;; no thread drives the loop of the attempt's handler
              (t (setf (call-pair-unattended call-pair) t)
                 (begin-elsewhere call-pair)))
        (wake relay)))))

(define-load-time-global **retry-operations**
    (attempt:make-retry-operations
     :retries #'identity :throttle #'relay-throttle
     :now (lambda (relay) (call-now (relay-call relay)))
     ;; at worst two threads that use it at the same time get the same number
     :chance (lambda (relay) (loop:event-loop-random (relay-loop relay)))
     :sendable #'sendable-p
     :keep (lambda (relay) (and (sendable-p relay) (relay-loop relay) t))
     :await #'begin-after
     :cancel (lambda (relay) (setf (relay-timer relay) nil))
     :begin #'begin-next :resend #'begin-next
     :fail (lambda (relay failure) (declare (ignore failure)) (end-relay relay nil))))

(defun fail-late (relay number)
  "Count in the throttle the failure of RELAY's last attempt, whose answer had begun and which came
after NUMBER other attempts."
  (let ((failure (failure-of (relay-attempt relay))))
    (record-failure relay number)
    (attempt:tell-failed-late **retry-operations** relay failure)))

(defun begin-first (relay)
  (setf (relay-begun relay) t)
  (begin-next relay)
  (cond ((null (relay-running relay)))
        ((= 1 (plan-limit (relay-plan relay))) (commit relay (first (relay-running relay))))
        (t (attempt:tell-begun **retry-operations** relay))))

(defun begin-due (relay)
  "Begin the next attempt of RELAY if it is due."
  (when (and (car (relay-timer relay)) (may-begin-p relay))
    (setf (relay-timer relay) nil)
    (if (relay-begun relay)
        (attempt:tell-due **retry-operations** relay)
        (begin-first relay))))

(defun drop-kept (relay)
  "Drop the requests that RELAY has kept, since no more attempts need them."
  (setf (relay-kept relay) nil)
  (when (relay-replay relay) (release-replay (shiftf (relay-replay relay) nil))))

(defun commit (relay attempt)
  "Continue RELAY's call with ATTEMPT alone."
  (drop-kept relay)
  (setf (relay-committed relay) attempt
        (relay-attempt relay) (relayed-attempt-call attempt)
        (relay-timer relay) nil)
  (dolist (other (attempt:commit relay attempt))
    (end-attempt relay other)))

(defun abandon (relay)
  "End the attempts of RELAY, whose call has ended."
  (drop-kept relay)
  (setf (relay-timer relay) nil
        (relay-committed relay) nil)
  (dolist (attempt (attempt:commit relay nil))
    (end-attempt relay attempt)))

(defun answered-p (attempt)
  "True if the answer to ATTEMPT has begun."
  (let ((call (relayed-attempt-call attempt)))
    (and (or (call-fields call) (eq :ok (call-status call))) t)))

(defun leave-failed (relay attempt)
  "Handle the failure of ATTEMPT of RELAY, which is not committed, as attempt/retry.lisp decides."
  (let ((call (relayed-attempt-call attempt))
        (number (relayed-attempt-number attempt)))
    (setf (relay-attempt relay) call)
    (end-attempt relay attempt)
    (record-failure relay number)
    (attempt:tell-failed **retry-operations** relay attempt number (failure-of call))))

(defun look-at-attempts (relay)
  "Commit RELAY to the first attempt whose answer has begun; if there is no such attempt, remove the
attempts that have failed."
  (if-let ((answered (find-if #'answered-p (relay-running relay))))
    (commit relay answered)
    (dolist (attempt (relay-running relay))
      (when (and (call-status (relayed-attempt-call attempt))
                 (not (answered-p attempt))
                 (null (call-status (relay-call relay))))
        (leave-failed relay attempt)))))

;;; Messages pass

(defun pass-metadata (relay)
  "Pass the headers that RELAY's attempt has received, if any, on to the client of RELAY's call."
  (let ((fields (call-fields (relay-attempt relay)))
        (client (relay-client relay)))
    (when (and fields (null (call-fields client)))
      (setf (call-fields client) fields)
      (rpc:notify client))))

(defun ensure-room (call)
  "Return true if there is room for a message of CALL; otherwise let the thread that makes room wake
CALL's relay."
  (or (room-left-p call)
      (progn (want-room call) (room-left-p call))))

(defun next-arrived (call)
  "The next message of CALL, one of a relay's ends, and nil; nil and true after the last message."
  (let ((over (or (call-status call) (inproc-call-half-closed call)))) ; before looking for messages
    (sb-thread:barrier (:read))
    (let ((message (and (rpc:deliverable-p call) (next-message call))))
      (values message (and (null message) over t)))))

(defun level-p (attempt)
  "True if all requests that have arrived were sent to ATTEMPT."
  (null (cdr (relayed-attempt-sent attempt))))

(defun feed (relay attempt)
  "Send ATTEMPT of RELAY those requests that have arrived and were not sent to ATTEMPT before, as
far as there is room."
  (let ((call (relayed-attempt-call attempt)))
    (handler-case
        (progn
          (loop until (or (level-p attempt) (call-status call) (not (ensure-room call)))
                while (rpc:try-send call (cadr (relayed-attempt-sent attempt)))
                do (pop (relayed-attempt-sent attempt)))
          (when (and (relay-closed relay) (level-p attempt)
                     (not (relayed-attempt-closed attempt)) (null (call-status call)))
            (setf (relayed-attempt-closed attempt) t)
            (rpc:close-send call)))
      (status:rpc-error (error)
        (unless (call-status call) (fail-relay relay error))))))

(defun kept-p (relay request)
  "If the budgets have room, charge them with REQUEST, which is kept for further attempts of RELAY,
and return true."
  (keep-message (relay-replay relay) request
                (+ rpc:+batch-octets+
                   (protobuf:measure (rpc:incoming-type (relay-call relay)) request))
                (options-total-replay-octets (channel-retry-options (relay-channel relay)))))

(defun add-request (relay request)
  "Add REQUEST to the requests of RELAY's attempts. If there is no room to keep the request, commit
the call to its first attempt."
  (setf (relay-newest relay) (setf (cdr (relay-newest relay)) (list request)))
  (unless (or (not (sendable-p relay)) (kept-p relay request))
    (commit relay (first (relay-running relay)))))

(defun pass-requests (relay)
  "Send the requests of RELAY's client to the attempts. The next request stays in the client's queue
until all earlier requests were sent to at least one attempt."
  (loop
    (dolist (attempt (relay-running relay)) (feed relay attempt))
    (when (or (relay-closed relay) (notany #'level-p (relay-running relay))) (return))
    (multiple-value-bind (request over) (next-arrived (relay-call relay))
      (cond (request (add-request relay request))
            (over (setf (relay-closed relay) t))
            (t (return))))))

(defun finish (relay attempt)
  "End RELAY's call in the same way as ATTEMPT: the call is committed to ATTEMPT, and all messages
of ATTEMPT were passed on."
  (let ((call (relayed-attempt-call attempt)))
    (attempt:commit relay nil)
    (end-attempt relay attempt)
    (unless (eq :ok (call-status call)) (fail-late relay (relayed-attempt-number attempt)))
    (end-relay relay (call-pair-reply (call-call-pair call)))))

(defun pass-answers (relay attempt)
  "Pass on the answers of ATTEMPT, to which RELAY's call is committed, while the call has room for
them."
  (let ((server (relay-call relay))
        (call (relayed-attempt-call attempt)))
    (pass-metadata relay)
    (if (rpc:answers-once-p server)
        (when (call-status call) (finish relay attempt))
        (loop while (and (null (call-status server)) (ensure-room server))
              do (multiple-value-bind (message over) (next-arrived call)
                   (cond (message
                          (handler-case (rpc:try-send server message)
                            ;; the channel's limit has ended the call
                            (status:rpc-error (error)
                              (unless (call-status server) (fail-relay relay error)))))
                         (over (return (finish relay attempt)))
                         (t (return))))))))

(defun advance (relay)
  "Perform every step of RELAY's call that is possible now."
  (flet ((runs-p () (null (call-status (relay-call relay)))))
    (when (and (runs-p) (null (relay-committed relay))) (look-at-attempts relay))
    (when (runs-p) (begin-due relay))
    (when (and (runs-p) (not (rpc:takes-one-p (relay-call relay)))) (pass-requests relay))
    (when (and (runs-p) (relay-committed relay)) (pass-answers relay (relay-committed relay)))
    (unless (runs-p) (abandon relay))))

(defun begin-relay (relay call)
  "Begin RELAY, which replaces the handler of a call; CALL is the handler's end of that call."
  (setf (relay-call relay) call)
  (have-wake relay call)
  ;; if the requests cannot be kept, there is only one attempt
  (unless (or (relay-uncharged relay)
              (every (lambda (request) (kept-p relay request)) (cdr (relay-kept relay))))
    (release-replay (shiftf (relay-replay relay) nil)))
  (begin-after relay 0))

(defun await-relay (relay client)
  "On the thread of RELAY's caller, make the attempts of the call whose client's end is CLIENT, and
wait until the call has ended. An attempt that is not due before the call's deadline is not made."
  (flet ((due-p (client)
           (or (call-status client) (and (car (relay-timer relay)) t))))
    (loop until (call-status client)
          do (rpc:wait-for-call client #'due-p)
             (unless (call-status client) (wake relay)))))
