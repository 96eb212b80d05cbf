;;;; Channels that their users drop without closing them. Nothing on a loop refers to a channel,
;;;; only to what it is there, its subchannel; so the collector finds one that nobody has any more,
;;;; and calls its finalizer. That hands the rest on to a thread, since it may run in whatever
;;;; thread has just collected garbage, which may hold any lock.
;;;;
;;;; A call may outlive the channel it was made on: its user still has the one and not the other. So
;;;; a dropped channel takes its links out of use, as before a server's end, and is closed when the
;;;; last call is over.

(in-package #:clgrpc.client)

(defglobal **endings** (list '()))      ; its car: functions, newest first; atomic

(defun end-elsewhere (function)
  "Have FUNCTION, which ends something, called on a thread for that. From anywhere, finalizers and
loops among them."
  (unless (cdr (sb-ext:atomic-push function (car **endings**)))
    (handler-case (sb-thread:make-thread #'run-endings :name "clgrpc closer")
      (error (error)
        (log-event :error :no-reserve-thread :condition error)))))

(defun run-endings ()
  (loop for functions = (car **endings**)
        while functions
        do (when (eq functions (compare-and-swap (car **endings**) functions '()))
             (dolist (function (reverse functions))
               (loop:guarding (:close-error)
                 (funcall (the function function)))))))

(defun when-dropped (object function)
  "Have FUNCTION, which does not refer to OBJECT, called once the collector has found that nobody
does."
  (sb-ext:finalize object (lambda () (end-elsewhere function)) :dont-save t))

(defun report-dropped (target)
  "A channel to TARGET was dropped."
  (log-event :warning :channel-not-closed :target target))

(defun drop-subchannel (subchannel)
  "Nobody has the channel of SUBCHANNEL any more: close it when its calls have ended."
  (report-dropped (subchannel-name subchannel))
  (loop:run-or-post (subchannel-loop subchannel)
                    (lambda ()
                      (unless (eq :shutdown (subchannel-state subchannel))
                        (setf (subchannel-dropped subchannel) t)
                        (let ((link (subchannel-link subchannel)))
                          (when (and link (eq :ready (subchannel-state subchannel)))
                            (setf (wire:link-draining link) t)
                            (leave-link subchannel link "the channel was dropped")))
                        (end-if-unused subchannel)))))

(defun end-if-unused (subchannel)
  "SUBCHANNEL, which is dropped, may have no calls any more. On its loop."
  (unless (or (eq :shutdown (subchannel-state subchannel))
              (subchannel-leaving subchannel)
              (let ((link (subchannel-link subchannel)))
                (and link (plusp (wire:link-calls link))))
              (find nil (waiting-calls subchannel) :key #'call-status))
    (end-elsewhere (lambda () (close-subchannel subchannel)))))
