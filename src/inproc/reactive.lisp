;;;; Relays in the reactive style, which wait for nothing: for calls whose requests come one by one,
;;;; and for hedging (gRFC A6). Attempts begin as they would over the wire, each handler on a thread
;;;; of its own or on its channel's loop; callbacks run on the thread of their sender.
;;;;
;;;; Both the handler's end of the call and the clients' ends of the attempts have transport
;;;; operations of their own: where other calls look for callbacks that are due, these WAKE the
;;;; relay. So whatever happens, whichever thread it happens on, that thread runs ADVANCE, which
;;;; looks at everything and does what can be done; or, if another thread runs that now, it has that
;;;; thread look again. Nothing here takes a lock.
;;;;
;;;; Requests are in a list to which new ones are added at the end; each attempt knows how far in it
;;;; it has come. While the call may be tried again, the list is kept from its beginning, and
;;;; charged to the budgets of base/replay.lisp. The call is committed to an attempt as soon as that
;;;; has got headers, an answer or :ok, or once the list is too long; the others are then cancelled.

(in-package #:clgrpc.inproc)

(defstruct (relayed-attempt (:constructor make-relayed-attempt (call number sent)) (:copier nil))
  "One try of a call, under way or over but not looked at."
  (call nil :type call :read-only t)    ; the client's end
  (number 0 :type index :read-only t)   ; how many attempts came before it
  (sent nil :type cons)                 ; a cons of the relay's list: the next request is behind it
  (closed nil :type boolean))           ; it was told that there are no more requests

(defstruct (reactive-relay (:include relay) (:conc-name relay-)
                           (:constructor %make-reactive-relay) (:copier nil))
  "What makes the attempts of a call, and passes messages on as they come."
  (state nil)                           ; t while a thread runs ADVANCE; :again: it is to look again
  (kept nil :type list)                 ; a cons before the first request, nil once committed
  (last nil :type list)                 ; the last cons of that list
  (over nil :type boolean)              ; no more requests will come
  (replay nil :type (or null replay))   ; what is charged; nil once not all is kept
  (begun nil :type boolean)             ; the first attempt has
  (committed nil :type (or null relayed-attempt)) ; the one whose answer is the call's
  (timer nil :type list))               ; of the next attempt: its car is true when that is due

(defun relay-attempts (relay)
  "The ATTEMPTs of RELAY, the oldest first."
  (calling:retries-running (relay-retries relay)))

(defun make-reactive-relay (requests over &rest arguments &key channel &allow-other-keys)
  "A relay for a call on CHANNEL. REQUESTS, a list, are at hand; with OVER there are no more. The
other ARGUMENTS are those of MAKE-RELAY."
  (let ((kept (cons nil requests)))
    (apply #'%make-reactive-relay
           :kept kept :last (last kept) :over over
           :replay (make-replay (channel-octet-budget channel)
                                    (options-replay-octets (channel-retry-options channel)))
           arguments)))

;;; Waking

(defun wake (relay)
  "Have RELAY look at everything: on this thread now, or by the one that does so already."
  (loop
    (case (relay-state relay)
      ((nil) (sb-sys:without-interrupts ; who sets it runs
               (when (null (compare-and-swap (relay-state relay) nil t))
                 (return (sb-sys:allow-with-interrupts (run-reactive relay))))))
      ((t) (when (eq t (compare-and-swap (relay-state relay) t :again)) (return)))
      (t (return)))))

(defun run-reactive (relay)
  (let ((done nil))
    (with-undoing (nil
                   (unless done
                     (setf (relay-state relay) nil)
                     (rpc:abort-as (relay-call relay) :handler-error)))
      (loop
        (advance relay)
        (sb-sys:without-interrupts
          (setf done (eq t (compare-and-swap (relay-state relay) t nil))))
        (when done (return))
        (setf (relay-state relay) t)
        ;; who has seen :again before that leaves what has come to this look
        (sb-thread:barrier (:memory))))))

(defun wake-owner (call)
  "The operation SCHEDULE of both ends that a reactive relay has: the callback for room stands for
everything."
  (let ((reactions (rpc:call-reactions call)))
    (when (and reactions (rpc:reactions-on-writable reactions))
      (funcall (rpc:reactions-on-writable reactions)))))

(defun have-wake (relay call)
  "Have what happens to CALL, an end that RELAY has, wake it."
  (setf (rpc:reactions-on-writable (rpc:ensure-reactions call)) (lambda () (wake relay))))

(rpc:define-transport-end **attempt-operations** (:client :like **client-operations**)
  :schedule #'wake-owner)

(rpc:define-transport-end **relay-operations** (:server :like **server-operations**)
  :schedule #'wake-owner)

;;; What attempts there are

(defun sendable-p (relay)
  "True if all that RELAY has had is kept for further attempts."
  (and (relay-kept relay) (relay-replay relay) t))

(defun begin-after (relay delay-ns)
  "Have the next attempt of RELAY begin after DELAY-NS, and no other before."
  (let ((timer (list nil)))
    (setf (relay-timer relay) timer)
    (flet ((ring ()
             (setf (car timer) t)
             (wake relay)))
      (if (zerop delay-ns)
          (ring)
          (operate after (relay-call relay) (/ delay-ns +ns-per-second+) #'ring)))))

(defun begin-beside (relay)
  "Begin the next attempt of RELAY."
  (let* ((number (calling:take-number (relay-retries relay)))
         (call-pair (begin-attempt relay number (plan-attempts (relay-plan relay))))
         (call (call-pair-client call-pair)))
    (setf (call-pair-unattended call-pair) t) ; no thread drives the loop of its handler
    (calling:add-attempt (relay-retries relay)
                         (make-relayed-attempt call number (relay-kept relay)))
    (have-wake relay call)
    (when (rpc:takes-one-p call)
      (handler-case (send-only-request call-pair (cadr (relay-kept relay)))
        (status:rpc-error (error) (fail-relay relay error))))
    (unless (call-status call) (begin-elsewhere call-pair))
    (wake relay)))

(defun carry-out (relay decision argument)
  "Do for RELAY what DECISION of calling/retry.lisp with ARGUMENT says."
  (unless (calling:retries-awaited (relay-retries relay)) (setf (relay-timer relay) nil))
  (ecase decision
    ((nil))
    (:await (begin-after relay argument))
    (:begin (when argument (begin-after relay argument))
     (begin-beside relay))
    (:fail (end-relay relay nil))))

(defun begin-first (relay)
  "Begin the first attempt of RELAY."
  (let ((retries (relay-retries relay)))
    (setf (relay-begun relay) t)
    (begin-beside relay)
    (cond ((null (relay-attempts relay)))
          ((= 1 (calling:retries-limit retries)) (commit relay (first (relay-attempts relay))))
          (t (multiple-value-call #'carry-out relay
               (calling:first-begun retries (sendable-p relay)))))))

(defun begin-due (relay)
  "Begin the next attempt of RELAY if its time has come."
  (when (car (relay-timer relay))
    (setf (relay-timer relay) nil)
    (if (relay-begun relay)
        (multiple-value-call #'carry-out relay
          (calling:attempt-due (relay-retries relay) (call-now (relay-call relay))
                               :throttle (relay-throttle relay) :sendable (sendable-p relay)))
        (begin-first relay))))

(defun drop-kept (relay)
  "What RELAY has kept of the requests is not needed for further attempts."
  (setf (relay-kept relay) nil)
  (when (relay-replay relay) (release-replay (shiftf (relay-replay relay) nil))))

(defun commit (relay attempt)
  "RELAY's call goes on with ATTEMPT alone."
  (drop-kept relay)
  (setf (relay-committed relay) attempt
        (relay-attempt relay) (relayed-attempt-call attempt)
        (relay-timer relay) nil)
  (dolist (other (calling:commit (relay-retries relay) attempt))
    (end-attempt relay (relayed-attempt-call other))))

(defun abandon (relay)
  "RELAY's call has ended."
  (drop-kept relay)
  (setf (relay-timer relay) nil
        (relay-committed relay) nil)
  (dolist (attempt (calling:end-retries (relay-retries relay)))
    (end-attempt relay (relayed-attempt-call attempt))))

(defun answered-p (attempt)
  "True if the answer to ATTEMPT has begun."
  (let ((call (relayed-attempt-call attempt)))
    (and (or (call-fields call) (eq :ok (call-status call))) t)))

(defun leave-failed (relay attempt)
  "ATTEMPT, of RELAY, which is not committed, has failed: do what is decided to follow."
  (setf (relay-attempt relay) (relayed-attempt-call attempt))
  (end-attempt relay (relayed-attempt-call attempt))
  (multiple-value-call #'carry-out relay
    (decide relay attempt (relayed-attempt-number attempt) :sendable (sendable-p relay))))

(defun look-at-attempts (relay)
  "Commit RELAY to the first attempt whose answer has begun, or else leave those that have failed."
  (let ((answered (find-if #'answered-p (relay-attempts relay))))
    (if answered
        (commit relay answered)
        (dolist (attempt (relay-attempts relay))
          (when (and (call-status (relayed-attempt-call attempt))
                     (not (answered-p attempt))
                     (null (call-status (relay-call relay))))
            (leave-failed relay attempt))))))

;;; Messages

(defun ensure-room (call)
  "True if there is room for what CALL sends; else the thread that makes room wakes CALL's relay."
  (or (room-left-p call)
      (progn (want-room call) (room-left-p call))))

(defun next-arrived (call)
  "The next message of CALL, an end of a relay, and nil; or nil and true if there will be no more."
  (let ((over (or (call-status call) (call-half-closed call)))) ; before looking for messages
    (sb-thread:barrier (:read))
    (let ((message (and (rpc:deliverable-p call) (next-message call))))
      (values message (and (null message) over t)))))

(defun level-p (attempt)
  "True if ATTEMPT has had all requests that have come."
  (null (cdr (relayed-attempt-sent attempt))))

(defun feed (relay attempt)
  "Send to ATTEMPT, of RELAY, what has come for it, as far as there is room."
  (let ((call (relayed-attempt-call attempt)))
    (handler-case
        (progn
          (loop until (or (level-p attempt) (call-status call) (not (ensure-room call)))
                while (rpc:try-send call (cadr (relayed-attempt-sent attempt)))
                do (pop (relayed-attempt-sent attempt)))
          (when (and (relay-over relay) (level-p attempt)
                     (not (relayed-attempt-closed attempt)) (null (call-status call)))
            (setf (relayed-attempt-closed attempt) t)
            (rpc:close-send call)))
      (status:rpc-error (error)
        (unless (call-status call) (fail-relay relay error))))))

(defun kept-p (relay request)
  "Charge REQUEST, which is kept for further attempts of RELAY, and return true, if there is room."
  (keep-message (relay-replay relay) request
                    (+ rpc:+arrival-octets+
                       (protobuf:measure (rpc:incoming-type (relay-call relay)) request))
                    (options-total-replay-octets (channel-retry-options (relay-channel relay)))))

(defun add-request (relay request)
  "REQUEST has come for RELAY's attempts. If it is too much to be kept, the call is committed."
  (setf (relay-last relay) (setf (cdr (relay-last relay)) (list request)))
  (unless (or (not (sendable-p relay)) (kept-p relay request))
    (commit relay (first (relay-attempts relay)))))

(defun pass-requests (relay)
  "Send what comes from RELAY's client to the attempts. As long as none is under way, or none has
had all, it waits where it is."
  (loop
    (dolist (attempt (relay-attempts relay)) (feed relay attempt))
    (when (or (relay-over relay) (notany #'level-p (relay-attempts relay))) (return))
    (multiple-value-bind (request over) (next-arrived (relay-call relay))
      (cond (request (add-request relay request))
            (over (setf (relay-over relay) t))
            (t (return))))))

(defun finish (relay attempt)
  "ATTEMPT, which RELAY's call is committed to, is over, and all of its messages passed on."
  (let ((call (relayed-attempt-call attempt)))
    (calling:end-retries (relay-retries relay))
    (end-attempt relay call)
    (unless (eq :ok (call-status call)) (fail-late relay (relayed-attempt-number attempt)))
    (end-relay relay (call-pair-reply (call-call-pair call)))))

(defun pass-answers (relay attempt)
  "Pass on what ATTEMPT, which RELAY's call is committed to, has brought, as far as there is room."
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
  "Do for RELAY what can be done now."
  (flet ((runs-p () (null (call-status (relay-call relay)))))
    (when (and (runs-p) (null (relay-committed relay))) (look-at-attempts relay))
    (when (runs-p) (begin-due relay))
    (when (and (runs-p) (not (rpc:takes-one-p (relay-call relay)))) (pass-requests relay))
    (when (and (runs-p) (relay-committed relay)) (pass-answers relay (relay-committed relay)))
    (unless (runs-p) (abandon relay))))

(defun begin-reactive (relay call)
  "What the handler of RELAY's call does."
  (setf (relay-call relay) call)
  (have-wake relay call)
  ;; of what cannot be kept there is one attempt
  (unless (every (lambda (request) (kept-p relay request)) (cdr (relay-kept relay)))
    (release-replay (shiftf (relay-replay relay) nil)))
  (begin-after relay 0))
