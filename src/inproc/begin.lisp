;;;; Where a handler runs: here, on the thread of the client that calls or consumes; or elsewhere,
;;;; on a reserve thread or a loop. When it returns the same is done in both cases.

(in-package #:clgrpc.inproc)

(define-hot run-handler ((line line)) (values t t)
  "Run the handler of LINE. Return what it returns, and nil or the RPC-ERROR that ended it."
  (let* ((call (line-server line))
         (route (line-route line))
         (request (if (rpc:takes-one-p call) (line-request line) call))
         (returned nil)
         (condition (with-user-code (call)
                      (loop:with-user-interrupts ()
                        (setf returned (serving:answer-of route request call))))))
    (values returned condition)))

(define-hot conclude ((line line) returned condition) null
  "The handler of LINE has RETURNED something, or CONDITION has ended it."
  (let ((call (the inproc-call (line-server line))))
    (setf (line-phase line) :over)
    (cond (condition
           (multiple-value-call #'end-as line (serving:sendable-end call condition)))
          ((eq returned call) (keep line))
          ((rpc:answers-once-p call) (answer line returned))
          (t (end-well line))))
  nil)

(defun keep (line)
  "The handler answers later."
  (open-mail line)
  (let ((route (line-route line)))
    (setf (route-kept route) (method:binding-function (serving:route-binding route))))
  (register line)
  (let ((server (line-server line))
        (source (shiftf (line-source line) nil)))
    (when source (calling:pump-requests (line-client line) source))
    (when (rpc:callbacks-p server) (operate schedule server))))

(defun answer (line message)
  "Give the client of LINE its reply."
  (let* ((call (line-server line))
         (client (line-client line))
         (condition (block passing
                      (handler-case (multiple-value-bind (reply size) (pass call message)
                                      (unless (call-fields client)
                                        (setf (call-fields client) (vector)))
                                      (if (line-queued-reply line)
                                          (rpc:push-incoming client reply size)
                                          (setf (line-reply line) reply))
                                      nil)
                        (error (error) (serving:bad-answer-condition call message error))))))
    (if condition
        (multiple-value-call #'end-as line (serving:sendable-end call condition))
        (end-well line))))

(define-hot take-held ((line line)) null
  "The handler of LINE begins: make the requests that were sent before ready for it."
  (loop for old = (line-held line)
        until (eq old (compare-and-swap (line-held line) old :closed))
        finally (setf (line-ready line) (nreverse old)))
  nil)

(define-hot begin-here ((line line)) boolean
  "Run the handler of LINE on this thread and return true; return false if it has begun already."
  (let ((thread sb-thread:*current-thread*)
        (done nil))
    (sb-sys:without-interrupts          ; who takes it begins, or ends it
      (when (eq :waiting (compare-and-swap (line-phase line) :waiting thread))
        (take-held line)
        (unwind-protect
             (sb-sys:with-local-interrupts
               (look (line-server line))
               (unless (line-claim line)
                 (multiple-value-bind (returned condition)
                     (with-clean-context () (run-handler line))
                   (conclude line returned condition)))
               (setf done t))
          (unless done (rpc:abort-as (line-client line) :caller-interrupted)))
        t))))

(define-hot begin-eagerly ((line line)) boolean
  "As BEGIN-HERE, for a handler that keeps its call and so returns soon: its client does not wait
for it."
  (when (eq :waiting (line-phase line))
    (setf (line-eager line) t)
    (begin-here line)))

(define-hot (loop-p :inline t) (execution) boolean
  (not (symbolp execution)))

(define-hot (begin-elsewhere :inline t) ((line line)) null
  "Begin the handler of LINE, unless it has begun already, on a thread of its own or on the loop of
its channel."
  ;; read it before writing it: both threads of the call read LINE, and a write takes its cache line
  ;; away from the other
  (when (eq :waiting (line-phase line)) (begin-now-elsewhere line))
  nil)

(defun begin-now-elsewhere (line)
  (sb-sys:without-interrupts            ; who takes it has it begin
    (when (eq :waiting (compare-and-swap (line-phase line) :waiting :elsewhere))
      (take-held line)
      (open-mail line)
      (let* ((call (line-server line))
             (site (call-site call))
             (execution (site-execution site)))
        (register line)
        (if (loop-p execution)
            (begin-on-loop line execution)
            (begin-on-thread line site)))))
  nil)

(defun handlers-reserve (line site)
  "The reserve whose threads run LINE's handler, or nil if SITE's channel is closed."
  (let ((server (host-server (line-host line))))
    (if server
        (serving:server-reserve server)
        (let ((client-loop (ensure-client-loop site)))
          (and client-loop (calling:client-loop-reserve client-loop))))))

(defun begin-on-thread (line site)
  (flet ((run ()
           (unwind-protect (run-elsewhere line)
             (atomic-decf (site-handlers site)))))
    (cond ((>= (atomic-incf (site-handlers site))
               (options-max-running-handlers (host-options (line-host line))))
           (atomic-decf (site-handlers site))
           (rpc:abort-as (line-server line) :too-many-handlers))
          ((let ((reserve (handlers-reserve line site)))
             (not (and reserve (loop:run-on-reserve reserve #'run))))
           (atomic-decf (site-handlers site))
           (rpc:abort-as (line-server line) :queue-full)))))

(defun run-on-loop (line)
  "Run the handler of LINE, on the loop of its channel. Another thread may run the loop afterwards."
  (let ((event-loop (site-execution (call-site (line-server line)))))
    (if (loop:not-for-driver-p event-loop (line-client line))
        (loop:defer event-loop #'run-on-loop line)
        (loop:call-user event-loop #'run-elsewhere line))))

(define-hot enter-loop ((line line) (event-loop loop:event-loop)) null
  "Count the call of LINE as one of EVENT-LOOP's."
  (unless (line-entered line)
    (sb-sys:without-interrupts
      (setf (line-entered line) event-loop)
      (loop:enter-call event-loop (line-unattended line))))
  nil)

(define-hot begin-driven ((line line) (event-loop loop:event-loop)) null
  "Begin the handler of LINE, unless it has begun already, on EVENT-LOOP, which this thread, the
client's, runs now."
  (sb-sys:without-interrupts
    (when (eq :waiting (compare-and-swap (line-phase line) :waiting :elsewhere))
      (take-held line)
      (loop:defer event-loop #'run-on-loop line)))
  nil)

(defun begin-on-loop (line event-loop)
  (enter-loop line event-loop)
  (unless (loop:post event-loop
                     (lambda () (loop:defer event-loop #'run-on-loop line)))
    (end-by-server line :unavailable "the loop of the handlers has stopped")))

(define-hot drivable-p ((line line)) boolean
  "True if the client of LINE may run the loop of the handler while it waits: either the handler has
returned, or it does not wait for anything that the client would do afterwards."
  (or (eq :over (line-phase line))
      (and (line-consumer line) t)
      (and (rpc:answers-once-p (line-client line)) (call-half-closed (line-server line)))))

(defun run-elsewhere (line)
  (unless (line-claim line)             ; ended before it began
    (let ((done nil))
      (when (eq (line-driver line) sb-thread:*current-thread*)
        (setf (line-phase line) sb-thread:*current-thread*))
      (unwind-protect
           (multiple-value-bind (returned condition) (with-clean-context () (run-handler line))
             (setf done t)
             (conclude line returned condition))
        (unless done
          (rpc:abort-as (line-server line) :handler-error))))))

(define-hot begin-soon ((line line)) null
  "The client of LINE needs its handler to begin, but does not wait for it here."
  (if (and (keeps-p (line-route line))
           (eq :caller (site-execution (call-site (line-client line)))))
      (begin-eagerly line)
      (begin-elsewhere line))
  nil)

(define-hot begin-for-receiver ((line line)) null
  "The client of LINE is about to wait. If its handler has all that it waits for (DRIVABLE-P), it
runs on this thread now or, if it is to run on a loop, when the client drives that. Otherwise begin
it elsewhere."
  (let ((execution (site-execution (call-site (line-client line)))))
    (cond ((and (eq :caller execution) (drivable-p line)) (begin-here line))
          ((and (loop-p execution) (drivable-p line)))
          (t (begin-soon line))))
  nil)
