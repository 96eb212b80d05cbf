;;;; Timers and threads of a channel within the image: those of a client loop, which the channel has
;;;; from when it first needs one until it is closed.

(in-package #:clgrpc.inproc)

(defun ensure-client-loop (site)
  "The client loop that SITE uses from now on until its channel is closed; nil if that is."
  (or (site-client-loop site)
      (sb-thread:with-mutex ((site-lock site))
        (or (site-client-loop site)
            (and (site-open site)
                 (let ((client-loop (calling:acquire-timer-loop)) (target (site-target site)))
                   ;; channels and calls refer to the site: who has none has dropped it
                   (calling:when-dropped site (lambda ()
                                            (calling:report-dropped target)
                                            (calling:release-timer-loop client-loop)))
                   (setf (site-client-loop site) client-loop)))))))

(defun release-site (site)
  "SITE needs neither timers nor threads of the client any more."
  (sb-ext:cancel-finalization site)
  (let ((client-loop (sb-thread:with-mutex ((site-lock site))
                       (shiftf (site-client-loop site) nil))))
    (when client-loop (calling:release-timer-loop client-loop))))

(defun run-timer (site timer due-ns)
  "Have TIMER ring at DUE-NS."
  (let ((client-loop (ensure-client-loop site)))
    (when client-loop
      (let ((event-loop (calling:client-loop-loop client-loop)))
        (loop:run-or-post event-loop
                          (lambda ()
                            (schedule-timer (loop:event-loop-wheel event-loop) timer due-ns)))))))

(defun stop-timer (site timer)
  "Undo RUN-TIMER; with SITE's channel its timers are gone."
  (let ((client-loop (site-client-loop site)))
    (when client-loop
      (let ((event-loop (calling:client-loop-loop client-loop)))
        (loop:run-or-post event-loop
                          (lambda ()
                            (when (timer-pending-p timer)
                              (cancel-timer (loop:event-loop-wheel event-loop) timer))))))))

(define-hot forget-timers ((call inproc-call)) null
  "CALL has ended: no timer of AFTER is needed any more."
  (let ((reactions (rpc:call-reactions call)))
    (when reactions
      (dolist (timer (rpc:reactions-timers reactions))
        (stop-timer (call-site call) timer))))
  nil)

(defun run-aside (site function)
  "Have FUNCTION called on a thread that may wait."
  (let ((client-loop (ensure-client-loop site)))
    (unless (and client-loop
                 (loop:run-on-reserve (calling:client-loop-reserve client-loop) function
                                      :if-busy :insist))
      (funcall function))))
