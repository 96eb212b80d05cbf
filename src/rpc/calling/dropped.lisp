;;;; Objects that end automatically when their user has dropped them. The collector finds an object
;;;; without references, and calls the object's finalizer in the thread that has just collected
;;;; garbage. This thread may hold any lock, so the finalizer passes the work on to another thread.

(in-package #:clgrpc.calling)

;; a cons whose car is a list of functions, newest first; atomic
(defglobal **endings** (list '()))
;; a cons whose car is true while a thread calls these functions, or is being made; atomic
(defglobal **closer-runs** (list nil))

(defun end-elsewhere (function)
  "Call FUNCTION, which closes a dropped object, on a thread that runs such functions. From any
code, also from finalizers and loops. If no thread can be made, FUNCTION waits for the next call of
END-ELSEWHERE."
  (sb-ext:atomic-push function (car **endings**))
  (when (become-closer)
    (handler-case (make-closer)
      (error (error)
        (setf (car **closer-runs**) nil)
        (log-event :error :no-reserve-thread :condition error)))))

(defun make-closer ()
  (sb-thread:make-thread #'run-endings :name "clgrpc closer"))

(defun become-closer ()
  "If no thread runs the functions for dropped objects, return true, but only to the first caller,
which must then run them or make a thread for them."
  (null (sb-ext:compare-and-swap (car **closer-runs**) nil t)))

(defun take-endings ()
  "Remove the functions for dropped objects and return them, the oldest first."
  (loop for functions = (car **endings**)
        when (eq functions (sb-ext:compare-and-swap (car **endings**) functions '()))
          return (reverse functions)))

(defun run-endings ()
  (loop
    (unwind-protect
         (loop for functions = (take-endings)
               while functions
               do (dolist (function functions)
                    (loop:guarding (:close-error)
                      (funcall (the function function)))))
      (setf (car **closer-runs**) nil))
    (sb-thread:barrier (:memory))
    ;; a function that was added just before this has made no thread
    (unless (and (car **endings**) (become-closer)) (return))))

(defun when-dropped (channel target function)
  "Call FUNCTION when the collector has found that CHANNEL, a channel to TARGET, has no references.
FUNCTION must not refer to CHANNEL. If FUNCTION returns true, the log gets a warning that CHANNEL
was not closed. Return true. In a simulated world return false and never call FUNCTION, because the
collector runs at any time, in parallel with the thread that has its turn, and results would depend
on chance."
  (declare (type function function))
  (flet ((end ()
           (when (funcall function)
             (log-event :warning :channel-not-closed :target target))))
    (unless (loop:simulated-p)
      (sb-ext:finalize channel (lambda () (end-elsewhere #'end)) :dont-save t)
      t)))
