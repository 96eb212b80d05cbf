;;;; Timers and threads of a channel within the image. They are those of a client loop, which the
;;;; channel acquires when it first needs one and keeps until it is closed.

(in-package #:clgrpc.inproc)

(defun ensure-client-loop (site)
  "The client loop of SITE, acquired now if there is none; nil if SITE's channel is closed."
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
  "Undo RUN-TIMER. If SITE's channel is closed its timers are gone already."
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
  "Call FUNCTION on a thread that may wait."
  (let ((client-loop (ensure-client-loop site)))
    (unless (and client-loop
                 (loop:run-on-reserve (calling:client-loop-reserve client-loop) function
                                      :if-busy :insist))
      (funcall function))))
