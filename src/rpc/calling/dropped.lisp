;;;; Objects that end by themselves when their user has dropped them. The collector finds an object
;;;; to which nothing refers any more, and calls its finalizer, in whatever thread has just
;;;; collected garbage. That thread may hold any lock, so the finalizer hands the rest on to another
;;;; thread.

(in-package #:clgrpc.calling)

(defglobal **endings** (list '()))      ; its car: functions, newest first; atomic

(defun end-elsewhere (function)
  "Call FUNCTION, which ends something, on a thread for that. From anywhere, also from finalizers
and loops."
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
  "Call FUNCTION once the collector has found that nothing refers to OBJECT. FUNCTION must not refer
to OBJECT."
  (sb-ext:finalize object (lambda () (end-elsewhere function)) :dont-save t))

(defun report-dropped (target)
  "A channel to TARGET was dropped."
  (log-event :warning :channel-not-closed :target target))
