;;;; SIGTERM while runs are made: it ends them in order, so that the measurements so far are
;;;; reported. One loop gets the signal for all runs that are made one after the other, whatever is
;;;; under way.

(in-package #:clgrpc.load)

(defstruct (termination (:copier nil))
  "A record of SIGTERM, for the runs that a thread makes."
  (loop nil :type loop:event-loop :read-only t) ; the loop on which the signal comes
  (noted nil :type boolean)             ; true once SIGTERM has come
  (function nil :type (or null function))) ; a function that ends the work under way; the loop's

(defvar *termination* nil
  "The TERMINATION of the runs that this thread makes, or nil if it makes none.")

(define-printer (termination termination)
  "~:[~;noted~]" (termination-noted termination))

(defun terminated-p ()
  "True if SIGTERM has come since CALL-TERMINABLE was called."
  (and *termination* (termination-noted *termination*)))

(defun note-termination (termination)
  "Note in TERMINATION that SIGTERM has come. On the loop of TERMINATION."
  (setf (termination-noted termination) t)
  (when (termination-function termination) (funcall (termination-function termination))))

(defun call-terminable (function)
  "Call FUNCTION, without arguments, while SIGTERM does not end the process but is noted: see
TERMINATED-P and CALL-UNTIL-TERMINATION. Afterwards SIGTERM has its former effect. A nested call of
this within FUNCTION only calls its function."
  (if *termination*
      (funcall function)
      (let* ((loop (loop:make-event-loop :name "clgrpc load signals"))
             (termination (make-termination :loop loop)))
        (unwind-protect
             (progn
               (loop:launch-event-loop loop)
               (loop:on-signal loop os:+sigterm+ (lambda () (note-termination termination)))
               (let ((*termination* termination)) (funcall function)))
          (loop:on-signal loop os:+sigterm+ nil)
          (loop:stop-event-loop loop)
          (loop:join-event-loop loop)))))

(defun call-until-termination (end function)
  "Within the function of CALL-TERMINABLE call FUNCTION, without arguments. If SIGTERM has come, or
comes before FUNCTION returns, call END, without arguments, which ends FUNCTION's work. END runs on
a loop, perhaps twice, or when FUNCTION has just returned."
  (let ((termination *termination*))
    (flet ((change (new)
             (loop:post (termination-loop termination)
                        (lambda ()
                          (setf (termination-function termination) new)
                          (when (and new (termination-noted termination)) (funcall new))))))
      (change end)
      (unwind-protect (funcall function)
        (change nil)))))
