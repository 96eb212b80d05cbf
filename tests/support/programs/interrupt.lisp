;;;; Interrupts of threads, as WITH-TIMEOUT, TERMINATE-THREAD and SLIME make them; and functions
;;;; that take a lock.

(in-package #:clgrpc.tests.support)

(defun lockless (lock &rest calls)
  "The names of those of CALLS, each a list of a function's name and arguments, that do not take
LOCK: SBCL signals an error if the thread that has a lock takes it again."
  (loop for (name . arguments) in calls
        unless (handler-case (sb-thread:with-mutex (lock) (apply name arguments) nil)
                 (error (error) (search "Recursive lock attempt" (princ-to-string error))))
          collect name))

(defun interrupt-again-and-again (function count)
  "Have a thread call FUNCTION over and over, and unwind it out of that by COUNT interrupts."
  (let ((ended nil) (inside nil) (hits 0) (misses 0) (tag (list nil)))
    (declare (type fixnum hits misses))
    (let ((thread (sb-thread:make-thread
                   (lambda ()
                     (loop until ended
                           do (catch tag
                                (setf inside t)
                                (loop until ended do (funcall function)))
                              (sb-sys:without-interrupts (incf hits)))))))
      (flet ((unwind ()
               (cond ((shiftf inside nil) (throw tag nil))
                     (t (incf misses)))))
        (loop while (< hits count)
              do (let ((before (+ hits misses)))
                   (sb-thread:interrupt-thread thread #'unwind)
                   (loop while (= before (+ hits misses)) do (sb-thread:thread-yield)))))
      (setf ended t)
      (sb-thread:join-thread thread))))

(defun package-functions (package)
  "The names of the ordinary functions of PACKAGE, without those of structures, which are inline."
  (let ((names '()) (package (find-package package)))
    (do-symbols (symbol package names)
      (when (and (eq package (symbol-package symbol))
                 (fboundp symbol)
                 (not (macro-function symbol))
                 (not (special-operator-p symbol))
                 (not (sb-int:info :function :source-transform symbol))
                 (not (typep (fdefinition symbol) 'generic-function)))
        (push symbol names)))))

(defun hooked-functions (places)
  "The names of the functions that PLACES mean: packages, by symbols of none, and names."
  (loop for place in places
        append (if (symbol-package place) (list place) (package-functions place))))

;; the first hook of a function in a saved image takes ten milliseconds: its callers are relinked
(defun call-with-call-hook (function places hook)
  "Call FUNCTION while whoever calls a function of PLACES calls HOOK before, with its name."
  (declare (type function function hook))
  (let ((names (hooked-functions places)))
    (unwind-protect
         (progn
           (dolist (name names)
             (let ((name name))
               (sb-int:encapsulate name 'call-hook
                                   (lambda (function &rest arguments)
                                     (funcall hook name)
                                     (apply (the function function) arguments)))))
           (funcall function))
      (dolist (name names) (sb-int:unencapsulate name 'call-hook)))))

(defun interrupt-at-each-call (places function after)
  "Call FUNCTION in a thread that is interrupted, and unwound, as it calls its first function of
PLACES, see HOOKED-FUNCTIONS; then in one that is so at the second call, and so on, until one has
returned. An interrupt that comes while interrupts are off is taken as soon as they are on. Call
AFTER each time, with the name of the function called, or nil when none was left. Return how many
calls there are."
  (let ((victim nil) (left 0) (called nil) (tag (list nil)))
    (declare (type fixnum left))
    (flet ((note-call (name)
             (when (and (eq victim sb-thread:*current-thread*) (zerop (decf left)))
               (setf called name)
               (sb-thread:interrupt-thread victim (lambda () (throw tag :unwound)))))
           (run ()
             (catch tag
               (setf victim sb-thread:*current-thread*)
               (handler-case (progn (funcall (the function function))
                                    (setf victim nil)
                                    :returned)
                 (error (condition) condition)))))
      (call-with-call-hook
       (lambda ()
         (loop for point from 1
               do (setf left point called nil)
                  (let ((outcome (sb-thread:join-thread (sb-thread:make-thread #'run))))
                    (setf victim nil)
                    (when (typep outcome 'error) (error outcome))
                    (funcall (the function after) called)
                    (when (eq :returned outcome) (return (1- point))))))
       places #'note-call))))
