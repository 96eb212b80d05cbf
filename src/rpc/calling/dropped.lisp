;;;; Objects that end by themselves when their user has dropped them. The collector finds an object
;;;; to which nothing refers any more, and calls its finalizer, in whatever thread has just
;;;; collected garbage. That thread may hold any lock, so the finalizer hands the rest on to another
;;;; thread.

(in-package #:clgrpc.calling)

(defglobal **endings** (list '()))      ; its car: functions, newest first; atomic

(defun end-elsewhere (function)
  "Call FUNCTION, which closes a dropped object, on a thread for such functions. From anywhere, also
from finalizers and loops."
  (unless (cdr (sb-ext:atomic-push function (car **endings**)))
    (handler-case (sb-thread:make-thread #'run-endings :name "clgrpc closer")
      (error (error)
        (log-event :error :no-reserve-thread :condition error)))))

(defun run-endings ()
  (loop for functions = (car **endings**)
        while functions
        do (when (eq functions (sb-ext:compare-and-swap (car **endings**) functions '()))
             (dolist (function (reverse functions))
               (loop:guarding (:close-error)
                 (funcall (the function function)))))))

(defun when-dropped (channel target function)
  "Call FUNCTION once the collector has found that nothing refers to CHANNEL, an object to TARGET.
FUNCTION must not refer to CHANNEL. If it returns true, the log gets a warning that CHANNEL was not
closed."
  (declare (type function function))
  (flet ((end ()
           (when (funcall function)
             (log-event :warning :channel-not-closed :target target))))
    (sb-ext:finalize channel (lambda () (end-elsewhere #'end)) :dont-save t)))
