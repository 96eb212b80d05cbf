;;;; Timers and threads of a channel within the image. Such a channel uses the timers and threads of
;;;; a client loop. The channel acquires the loop when it first needs one, and keeps it until the
;;;; channel is closed.

(in-package #:clgrpc.inproc)

(defun ensure-loop (inproc-core)
  "The client loop of INPROC-CORE, which is acquired if it has no loop yet; nil if INPROC-CORE's
channel is closed."
  (or (inproc-core-loop inproc-core)
      (sb-sys:without-interrupts        ; a loop that is acquired must be stored
        (sb-thread:with-mutex ((inproc-core-lock inproc-core))
          (or (inproc-core-loop inproc-core)
              (and (inproc-core-open inproc-core)
                   (let ((event-loop (calling:acquire-client-loop :timers))
                         (target (inproc-core-target inproc-core))
                         (closable (not (inproc-core-direct inproc-core))))
                     ;; channels and calls refer to the inproc core, so it is dropped after all of
                     ;; them
                     (calling:when-dropped
                      inproc-core target
                      (lambda ()
                        (calling:release-client-loop event-loop :timers)
                        closable))
                     (setf (inproc-core-loop inproc-core) event-loop))))))))

(defun release-inproc-core (inproc-core)
  "Release the client loop of INPROC-CORE, which no longer needs timers and threads."
  (sb-sys:without-interrupts            ; a loop removed from the slot must be released
    (let ((event-loop (sb-thread:with-mutex ((inproc-core-lock inproc-core))
                        ;; also the finalizer that ENSURE-LOOP has made
                        (sb-ext:cancel-finalization inproc-core)
                        (shiftf (inproc-core-loop inproc-core) nil))))
      (when event-loop (calling:release-client-loop event-loop :timers)))))

(defun start-core-timer (inproc-core timer due-ns)
  "Let TIMER of INPROC-CORE run at DUE-NS. From any thread."
  (when-let ((event-loop (ensure-loop inproc-core)))
    (loop:run-or-post event-loop (lambda () (loop:start-timer event-loop timer due-ns)))))

(defun stop-core-timer (inproc-core timer)
  "Undo START-CORE-TIMER. If INPROC-CORE's channel is closed, its timers were removed already."
  (when-let ((event-loop (inproc-core-loop inproc-core)))
    (loop:run-or-post event-loop (lambda () (loop:stop-timer event-loop timer)))))

(define-hot forget-timers ((call inproc-call)) null
  "Stop the timers of AFTER of CALL, which has ended."
  (when-let ((callbacks (call-inproc-callbacks call)))
    (loop for timer = (sb-ext:atomic-pop (inproc-callbacks-timers callbacks))
          while timer do (stop-core-timer (call-inproc-core call) timer)))
  nil)

(defun client-reserve (inproc-core)
  "The reserve of the client loops, or nil if INPROC-CORE's channel is closed."
  (let ((event-loop (ensure-loop inproc-core)))
    (and event-loop (calling:client-reserve event-loop))))

(defun run-on-client-reserve (inproc-core function)
  "Call FUNCTION on a thread that may wait."
  (let ((reserve (client-reserve inproc-core)))
    (unless (and reserve (loop:run-on-reserve reserve function :if-busy :insist))
      (funcall function))))
