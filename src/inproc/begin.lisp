;;;; Running a handler: on the thread of the client that makes the call or takes its messages; or on
;;;; a reserve thread or a loop. The return of the handler has the same effects on any thread.

(in-package #:clgrpc.inproc)

(define-hot run-handler ((call-pair call-pair)) (values t t)
  "Run the handler of CALL-PAIR. Return two values: the handler's value; and nil, or the RPC-ERROR
that ended the handler."
  (let* ((call (call-pair-server call-pair))
         (route (call-pair-route call-pair))
         (request (if (rpc:takes-one-p call) (call-pair-request call-pair) call))
         (returned nil)
         (condition (with-others-code (call)
                      (loop:with-user-interrupts ()
                        (setf returned (serving:answer-of route request call))))))
    (values returned condition)))

(define-hot conclude ((call-pair call-pair) returned condition) null
  "Answer or end the call of CALL-PAIR, whose handler has RETURNED a value or was ended by
CONDITION, if that is not nil."
  (let ((call (the inproc-call (call-pair-server call-pair))))
    (setf (call-pair-phase call-pair) :over)
    (cond (condition
           (multiple-value-call #'end-as call-pair (serving:sendable-end call condition)))
          ((eq returned call) (keep call-pair))
          ((rpc:answers-once-p call) (answer call-pair returned))
          (t (end-well call-pair))))
  nil)

(defun keep (call-pair)
  "Note that the handler of CALL-PAIR has returned its call and will answer later."
  (open-mailboxes call-pair)
  (let ((route (call-pair-route call-pair)))
    (setf (route-kept route) (method:binding-function (route-binding route))))
  (register call-pair)
  (let ((server (call-pair-server call-pair))
        (source (shiftf (call-pair-source call-pair) nil)))
    (when source (calling:send-requests (call-pair-client call-pair) source :on-loop t))
    (rpc:schedule-callbacks server)))

(defun answer (call-pair message)
  "Give the client of CALL-PAIR its reply."
  (let* ((call (call-pair-server call-pair))
         (client (call-pair-client call-pair))
         (condition (block passing
                      (handler-case (multiple-value-bind (reply size) (pass call message)
                                      (unless (call-fields client)
                                        (setf (call-fields client) (vector)))
                                      (if (call-pair-queued-reply call-pair)
                                          (rpc:push-incoming client reply size)
                                          (setf (call-pair-reply call-pair) reply))
                                      nil)
                        (error (error) (serving:bad-answer-condition call message error))))))
    (if condition
        (multiple-value-call #'end-as call-pair (serving:sendable-end call condition))
        (end-well call-pair))))

(define-hot take-held ((call-pair call-pair)) null
  "Make the requests that were sent before now ready for the handler of CALL-PAIR, which begins."
  (loop for old = (call-pair-held call-pair)
        until (eq old (compare-and-swap (call-pair-held call-pair) old :closed))
        finally (setf (call-pair-ready call-pair) (nreverse old)))
  nil)

(define-hot begin-here ((call-pair call-pair)) boolean
  "Run the handler of CALL-PAIR on this thread and return true; return false if the handler has
begun already."
  (let ((thread sb-thread:*current-thread*)
        (done nil))
    (sb-sys:without-interrupts          ; the thread that takes the phase must begin or end the call
      (when (eq :waiting (compare-and-swap (call-pair-phase call-pair) :waiting thread))
        (take-held call-pair)
        (unwind-protect
             (sb-sys:with-local-interrupts
               (look (call-pair-server call-pair))
               (unless (call-pair-claim call-pair)
                 (multiple-value-bind (returned condition) (run-handler call-pair)
                   (conclude call-pair returned condition)))
               (setf done t))
          (unless done (rpc:abort-as (call-pair-client call-pair) :caller-interrupted)))
        t))))

(define-hot begin-eagerly ((call-pair call-pair)) boolean
  "As BEGIN-HERE, for a client that does not wait: such a handler returns soon, because it keeps its
call and answers later."
  (when (eq :waiting (call-pair-phase call-pair))
    (setf (call-pair-eager call-pair) t)
    (begin-here call-pair)))

(define-hot (loop-p :inline t) (execution) boolean
  (not (symbolp execution)))

(define-hot (begin-elsewhere :inline t) ((call-pair call-pair)) null
  "Unless the handler of CALL-PAIR has begun already, begin it on a new thread or on the loop of the
call's channel."
  ;; read the slot before a write: both threads of the call read CALL-PAIR, and a write takes its
  ;; cache line away from the other thread
  (when (eq :waiting (call-pair-phase call-pair)) (begin-now-elsewhere call-pair))
  nil)

(defun begin-now-elsewhere (call-pair &optional (phase :waiting))
  "As BEGIN-ELSEWHERE, if CALL-PAIR has PHASE."
  (sb-sys:without-interrupts            ; the thread that takes the phase must begin the call
    (when (eq phase (compare-and-swap (call-pair-phase call-pair) phase :elsewhere))
      (take-held call-pair)
      (open-mailboxes call-pair)
      (let* ((call (call-pair-server call-pair))
             (inproc-core (call-inproc-core call))
             (execution (inproc-core-execution inproc-core)))
        (register call-pair)
        (if (loop-p execution)
            (begin-on-loop call-pair execution)
            (begin-on-thread call-pair inproc-core)))))
  nil)

(defun handlers-reserve (call-pair inproc-core)
  "The reserve whose threads run CALL-PAIR's handler, or nil if INPROC-CORE's channel is closed."
  (if-let ((server (callee-server (call-pair-callee call-pair))))
    (serving:server-reserve server)
    (client-reserve inproc-core)))

(defun begin-on-thread (call-pair inproc-core)
  (flet ((run ()
           (unwind-protect (run-elsewhere call-pair)
             (atomic-decf (inproc-core-handlers inproc-core)))))
    (cond ((>= (atomic-incf (inproc-core-handlers inproc-core))
               (options-max-running-handlers (callee-options (call-pair-callee call-pair))))
           (atomic-decf (inproc-core-handlers inproc-core))
           (rpc:abort-as (call-pair-server call-pair) :too-many-handlers))
          ((let ((reserve (handlers-reserve call-pair inproc-core)))
             (not (and reserve (loop:run-on-reserve reserve #'run))))
           (atomic-decf (inproc-core-handlers inproc-core))
           (rpc:abort-as (call-pair-server call-pair) :queue-full)))))

(defun run-on-loop (call-pair)
  "Run the handler of CALL-PAIR, on the loop of its channel. Another thread may run the loop
afterwards."
  (let ((event-loop (inproc-core-execution (call-inproc-core (call-pair-server call-pair)))))
    (if (loop:not-for-driver-p event-loop (call-pair-client call-pair))
        (loop:defer event-loop #'run-on-loop call-pair)
        (loop:call-user event-loop #'run-elsewhere call-pair))))

(define-hot enter-loop ((call-pair call-pair) (event-loop loop:event-loop)) null
  "Count the call of CALL-PAIR among the calls of EVENT-LOOP."
  (unless (call-pair-entered call-pair)
    (sb-sys:without-interrupts
      (setf (call-pair-entered call-pair) event-loop)
      (loop:enter-call event-loop (call-pair-unattended call-pair))))
  nil)

(define-hot begin-driven ((call-pair call-pair) (event-loop loop:event-loop)) null
  "Begin the handler of CALL-PAIR, unless it has begun already, on EVENT-LOOP; this thread, the
client's, runs EVENT-LOOP now."
  (sb-sys:without-interrupts
    (when (eq :waiting (compare-and-swap (call-pair-phase call-pair) :waiting :elsewhere))
      (take-held call-pair)
      (loop:defer event-loop #'run-on-loop call-pair)))
  nil)

(defun begin-on-loop (call-pair event-loop)
  (enter-loop call-pair event-loop)
  (unless (loop:post event-loop
                     (lambda () (loop:defer event-loop #'run-on-loop call-pair)))
    (end-by-server call-pair :unavailable "the loop of the handlers has stopped")))

(define-hot drivable-p ((call-pair call-pair)) boolean
  "True if the client of CALL-PAIR may run the loop of the handler while it waits: the handler has
returned, or does not wait for a later action of the client."
  (or (eq :over (call-pair-phase call-pair))
      (and (call-pair-consumer call-pair) t)
      (and (rpc:answers-once-p (call-pair-client call-pair))
           (inproc-call-half-closed (call-pair-server call-pair)))))

(defun run-elsewhere (call-pair)
  (unless (call-pair-claim call-pair)   ; the call ended before its handler began
    (let ((done nil))
      (when (eq (call-pair-driver call-pair) sb-thread:*current-thread*)
        (setf (call-pair-phase call-pair) sb-thread:*current-thread*))
      (unwind-protect
           (multiple-value-bind (returned condition) (run-handler call-pair)
             (setf done t)
             (conclude call-pair returned condition))
        (unless done
          (rpc:abort-as (call-pair-server call-pair) :handler-error))))))

(define-hot begin-soon ((call-pair call-pair)) null
  "Begin the handler of CALL-PAIR; this thread, the client's, does not wait for the handler here."
  (if (and (keeps-p (call-pair-route call-pair))
           (eq :caller (inproc-core-execution (call-inproc-core (call-pair-client call-pair)))))
      (begin-eagerly call-pair)
      (begin-elsewhere call-pair))
  nil)

(define-hot begin-for-receiver ((call-pair call-pair)) null
  "Let the handler of CALL-PAIR run while the client, on this thread, waits. If the handler does not
wait for the client (DRIVABLE-P), run it here now; or, if it must run on a loop, leave it to the
client, which drives that loop. In all other cases begin the handler on another thread."
  (let ((execution (inproc-core-execution (call-inproc-core (call-pair-client call-pair)))))
    (cond ((and (eq :caller execution) (drivable-p call-pair)) (begin-here call-pair))
          ((and (loop-p execution) (drivable-p call-pair)))
          (t (begin-soon call-pair))))
  nil)
