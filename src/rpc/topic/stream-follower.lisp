;;;; Streams that resume where they broke, for clients of servers whose messages have positions:
;;;; topics, logs, changes of a store. The stream is requested again from the position of the last
;;;; message, with growing pauses, until it ends with :ok, fails permanently, or no server has
;;;; answered for a long time.

(in-package #:clgrpc.topic)

(defconstant +first-pause-seconds+ 1/4 "A follower's wait after one failure, in seconds.")
(defconstant +most-pause-seconds+ 5 "A follower's maximum wait, after many failures, in seconds.")

(defparameter *passing-statuses* '(:unavailable :cancelled :resource-exhausted)
  "Statuses after which a stream may be requested again: the server cannot be reached, or drains, or
has ended a reader that was too slow.")

(defun follow-once (call function position position-of note)
  "Call FUNCTION with each message of CALL, a stream, and NOTE with the message's position, the
value of POSITION-OF. Return the last position; POSITION if no message was received."
  (declare (type function function position-of note))
  (loop for message = (rpc:receive call)
        while message
        do (let ((message message))
             ;; errors of calls that FUNCTION makes are not CALL's errors
             (with-function-failed (status:rpc-error)
               (funcall function message))
             (setf position (funcall position-of message))
             (funcall note position))
        finally (return position)))

(define-keyword-function follow-stream
    (begin function &key position position-of lost (patience-seconds 60)
                      (retry *passing-statuses*))
  "Call FUNCTION, in this thread, with each message of a stream, and request the stream again from
the last position when it breaks. FUNCTION gets each message once and in order, if the server
honours positions. Return the last position once the stream has ended with :ok.
BEGIN             a function of a position that returns a call to receive from: the value of a stub
                  of a method with a stream of answers. The function's argument is POSITION at
                  first, later the position of the last message
FUNCTION          a function of a message. An error that it signals, or another non-local exit, ends
                  FOLLOW-STREAM and the call
POSITION          the position at which to begin, nil by default
POSITION-OF       a function of a message that returns its position, the argument of BEGIN if the
                  stream breaks after this message
LOST              a function without arguments, called if a stream ends with :out-of-range, because
                  the server no longer keeps the next messages. The function handles the missed
                  messages and returns the position from which to continue, usually nil. Without
                  LOST the error :out-of-range is signalled
PATIENCE-SECONDS  a real from 0: the longest time without a message, since the stream first broke,
                  before the last error is signalled; 60 by default. A stream that lasted longer
                  than this before it broke counts as a message, since the server may have had no
                  message to send
RETRY             a list of statuses after which the stream is requested again, after 1/4 to 5 s:
                  (:unavailable :cancelled :resource-exhausted) by default; others are signalled
Only :keepalive-seconds of the channel detects a server that hangs. Signal MISUSE if one of these
functions is missing, or another argument is wrong. From any thread but a loop's."
  (loop for (name function meaning) in `(("BEGIN" ,begin "a position")
                                         ("FUNCTION" ,function "a message")
                                         (":POSITION-OF" ,position-of "a message")
                                         ,@(when lost `((":LOST" ,lost "no argument"))))
        do (unless (typep function '(and (not null) (or function symbol)))
             (misuse "~A of FOLLOW-STREAM is a function of ~A, not ~S." name meaning function)))
  (unless (typep patience-seconds '(real 0))
    (misuse ":PATIENCE-SECONDS of FOLLOW-STREAM is a real from 0, not ~S." patience-seconds))
  (unless (listp retry)
    (misuse ":RETRY of FOLLOW-STREAM is a list of statuses, not ~S." retry))
  (let ((end nil)                       ; the time when patience ends; nil while messages come
        (pauses (loop:make-pauses +first-pause-seconds+ +most-pause-seconds+))
        (function (coerce function 'function))
        (position-of (coerce position-of 'function)))
    (flet ((note (new)
             (setf position new
                   end nil)
             (loop:forget-failures pauses)))
      (loop
        for patient = (loop:notice-end patience-seconds)
        do (handler-case
               (return
                 (rpc:with-call (call (funcall begin position))
                   (follow-once call function position position-of #'note)))
             (function-failed (failure) (error (function-failed-cause failure)))
             (status:rpc-error (error)
               (let ((status (status:rpc-error-status error)))
                 (when (< patient (loop:world-now))
                   (note position))
                 (cond ((and lost (eq :out-of-range status))
                        (setf position (funcall (the (or function symbol) lost))))
                       ((not (member status retry)) (error error)))
                 (unless end (setf end (loop:notice-end patience-seconds)))
                 (when (<= end (loop:world-now)) (error error)))))
           (loop:world-sleep (loop:next-pause pauses))))))
