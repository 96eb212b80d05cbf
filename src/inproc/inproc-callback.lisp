;;;; Callbacks run on the thread that causes the event, such as the one that sends a message; if the
;;;; channel's handlers run on a loop, callbacks run on that loop. The callbacks of one end run one
;;;; at a time: SCHEDULED is true while they run, and :again if there was an event since the last
;;;; search for due callbacks.

(in-package #:clgrpc.inproc)

(define-hot call-back ((call inproc-call) (function function) message) null
  "Run FUNCTION, user code of CALL, with MESSAGE unless that is nil; an error in it ends CALL."
  (when-let ((condition (with-others-code (call)
                          (loop:with-user-interrupts ()
                            (if message (funcall function message) (funcall function))))))
    (rpc:abort-as call condition))
  nil)

(define-hot callback-message ((call inproc-call) (callbacks inproc-callbacks)) t
  "The message with which to call the callback of CALL, or nil. If only room for answers is missing,
the thread that makes room schedules the callbacks again."
  (and (inproc-callbacks-on-message callbacks)
       (or (rpc:messages-wait-p call) (mailbox-message call))
       (rpc:deliverable-p call)
       (or (rpc:client-p call)
           (room-left-p call)
           (progn (want-room call) (room-left-p call)))
       (next-message call)))

(define-hot queue-ready ((call-pair call-pair) (call inproc-call)) null
  "Put the requests that are ready for CALL, the handler's end of CALL-PAIR, before all queued
messages, because callbacks take messages from the queue."
  (loop for message in (reverse (shiftf (call-pair-ready call-pair) '()))
        do (rpc:put-received call message t))
  nil)

(define-hot run-next-callback ((call inproc-call) (callbacks inproc-callbacks)) boolean
  "Run the callback of CALL that is due and return true; return false if no callback is due."
  (let ((call-pair (call-call-pair call)))
    ;; the handler may still receive, on its own thread
    (when (and (call-pair-ready call-pair)
               (not (rpc:client-p call))
               (or (inproc-callbacks-on-message callbacks)
                   (inproc-callbacks-on-half-close callbacks)))
      (queue-ready call-pair call)))
  (let* (;; read before the search for messages
         (over (and (or (call-status call) (inproc-call-half-closed call)) t))
         (message (progn (sb-thread:barrier (:read))
                         (callback-message call callbacks))))
    (cond (message
           (call-back call (the function (inproc-callbacks-on-message callbacks)) message)
           t)
          (t
           ;; RPC:DUE-CALLBACK looks only at the queue; without a callback for messages, the message
           ;; in the mailbox is for the thread that receives
           (when (and (inproc-callbacks-on-message callbacks) (mailbox-message call))
             (rpc:put-received call (shiftf (svref (mailbox call) +mailbox-index+) nil) nil))
           (when-let ((function (rpc:due-callback call callbacks over)))
             (call-back call function nil)
             t)))))

(define-hot (run-rung :inline t) ((call inproc-call) (callbacks inproc-callbacks)) boolean
  "Run the oldest function of AFTER of CALL that is due, unless CALL has ended, and return true;
return false if no function is due."
  (and (inproc-callbacks-rung callbacks)
       (let ((function (sb-ext:atomic-pop (inproc-callbacks-rung callbacks))))
         (unless (call-status call) (call-back call (the function function) nil))
         t)))

(define-hot run-due ((call inproc-call) &optional (message t nil)) null
  "Run the callbacks of CALL that are due; first the callback for MESSAGE, unless MESSAGE is nil.
The calling thread has set SCHEDULED. Call this with interrupts off; during callbacks interrupts are
on if the caller allows them."
  (let ((callbacks (the inproc-callbacks (call-inproc-callbacks call)))
        (done nil))
    (unwind-protect
         (loop
           ;; usually the thread is the same as before
           (unless (eq (inproc-callbacks-runner callbacks) sb-thread:*current-thread*)
             (setf (inproc-callbacks-runner callbacks) sb-thread:*current-thread*))
           (when message
             (call-back call (the function (inproc-callbacks-on-message callbacks))
                        (rpc:filtered call (shiftf message nil))))
           (loop while (or (run-rung call callbacks) (run-next-callback call callbacks)))
           (when (eq t (compare-and-swap (inproc-callbacks-scheduled callbacks) t nil))
             (setf done t)
             (return))
           (setf (inproc-callbacks-scheduled callbacks) t)
           ;; a thread that saw :again before this store leaves its event to the next search
           (sb-thread:barrier (:memory)))
      (unless done
        (setf (inproc-callbacks-scheduled callbacks) nil)
        (rpc:abort-as call :callback-left))))
  nil)

(defun run-due-on-loop (call)
  (flet ((run (call)
           (sb-sys:without-interrupts (sb-sys:allow-with-interrupts (run-due call)))))
    (loop:call-user (inproc-core-execution (call-inproc-core call)) #'run call)))

(defun post-run-due (loop call)
  "Post the callbacks of CALL that are due to LOOP; return false if LOOP has stopped."
  (loop:post loop (lambda () (loop:defer loop #'run-due-on-loop call))))

(define-hot schedule ((call inproc-call)) null
  "The operation SCHEDULE."
  (let ((callbacks (ensure-inproc-callbacks call))
        (execution (inproc-core-execution (call-inproc-core call))))
    (when (rpc:client-p call) (begin-for-callbacks call callbacks))
    (loop
      (ecase (inproc-callbacks-scheduled callbacks)
        ((nil)
         (when (sb-sys:without-interrupts ; a thread that sets SCHEDULED must run all callbacks
                 (when (null (compare-and-swap (inproc-callbacks-scheduled callbacks) nil t))
                   (unless (and (loop-p execution) (post-run-due execution call))
                     (sb-sys:allow-with-interrupts (run-due call)))
                   t))
           (return)))
        ((t)
         (when (eq t (compare-and-swap (inproc-callbacks-scheduled callbacks) t :again)) (return)))
        (:again (return)))))
  nil)

(define-hot begin-for-callbacks ((call inproc-call) (callbacks inproc-callbacks)) null
  "Begin the handler of CALL, since its client has set a callback for the handler's messages."
  (let ((call-pair (call-call-pair call)))
    (when (and (eq :waiting (call-pair-phase call-pair))
               (or (inproc-callbacks-on-message callbacks)
                   (inproc-callbacks-on-half-close callbacks)
                   (inproc-call-half-closed (call-pair-server call-pair))))
      (begin-soon call-pair)))
  nil)

(defun schedule-rung (call callbacks function)
  "Run FUNCTION, given to AFTER for CALL, when the callbacks of CALL that were due before have run."
  (sb-ext:atomic-update (inproc-callbacks-rung callbacks)
                        (lambda (functions) (append functions (list function))))
  (run-on-client-reserve (call-inproc-core call) (lambda () (schedule call))))

(defun run-after (call seconds function)
  "The operation AFTER."
  (let ((inproc-core (call-inproc-core call))
        (callbacks (ensure-inproc-callbacks call))
        (timer nil))
    (flet ((ring (call)
             (sb-ext:atomic-update (inproc-callbacks-timers callbacks)
                                   (lambda (timers) (remove timer timers)))
             (unless (call-status call) (schedule-rung call callbacks function))))
      (setf timer (make-timer #'ring call))
      (sb-ext:atomic-push timer (inproc-callbacks-timers callbacks))
      (start-core-timer inproc-core timer
                        (status:deadline-in (seconds-ns seconds) (inproc-core-now inproc-core)))
      ;; the call may have ended before its new timer was visible to other threads
      (when (call-status call) (stop-core-timer inproc-core timer))))
  nil)
