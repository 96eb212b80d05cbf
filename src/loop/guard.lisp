;;;; Errors in what a loop calls never end the loop: they are logged with their backtrace, and the
;;;; phase of the turn in which they happened goes on with the next connection or function. Waiting
;;;; for a notice of another thread stands here as well.

(in-package #:clgrpc.loop)

(defvar *unguarded* nil
  "True while an error of a user's callback looks for handlers outside the loop.")

(defmacro guarding ((event &rest plist) &body body)
  "Do BODY and return its value and NIL. If an error is signalled and not handled in it, log EVENT
with PLIST, leave BODY, and return NIL and the condition."
  (let ((block-name (gensym "GUARDED")))
    `(block ,block-name
       (handler-bind
           ((serious-condition
              (lambda (condition)
                ;; C-c is not an error: it is for the debugger
                (unless (or *unguarded* (typep condition 'sb-sys:interactive-interrupt))
                  (log-condition :error ,event condition ,@plist)
                  (return-from ,block-name (values nil condition))))))
         (values (progn ,@body) nil)))))

(defun notice-end (seconds)
  "The END-NS of AWAIT-NOTICE that is SECONDS, a real, from now."
  (+ (monotonic-ns) (seconds-ns seconds)))

(defun await-notice (queue mutex end-ns)
  "Wait on QUEUE, with MUTEX held by this thread now and afterwards, for a notice or until END-NS,
see NOTICE-END. Return false if it is past that. There may be no reason for the waking."
  (let ((left (- end-ns (monotonic-ns))))
    (and (plusp left)
         (or (sb-thread:condition-wait queue mutex :timeout (ns-seconds left))
             ;; after a time-out the mutex is not held
             (progn (sb-thread:grab-mutex mutex) (< (monotonic-ns) end-ns)))
         t)))

(defun end-thread (thread)
  "Wait for the end of THREAD, which has said that it is about to end; NIL is none. Return true."
  (when thread (sb-thread:join-thread thread :default nil))
  t)

(declaim (type options **default-options**))
(defglobal **default-options** (make-options)
  "The options of those who give none.")
