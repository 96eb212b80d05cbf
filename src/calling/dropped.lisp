;;;; What ends by itself when its user has dropped it. The collector finds an object that nobody has
;;;; any more, and calls its finalizer. That hands the rest on to a thread, since it may run in
;;;; whatever thread has just collected garbage, which may hold any lock.

(in-package #:clgrpc.calling)

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
        do (when (eq functions (sb-ext:compare-and-swap (car **endings**) functions '()))
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
