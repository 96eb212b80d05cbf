;;;; Streams that go on where they have broken off, for clients of servers whose messages have
;;;; positions: topics, logs, changes of a store. The stream is asked for again from the position
;;;; behind the last message, with pauses that grow, until it ends well, fails for good, or nobody
;;;; has answered for long.

(in-package #:clgrpc.topic)

(defconstant +first-pause-seconds+ 1/4 "How long a follower waits after one failure.")
(defconstant +most-pause-seconds+ 5 "How long it waits after many.")

(defparameter *passing-statuses* '(:unavailable :cancelled :resource-exhausted)
  "Statuses with which a stream ends that may be asked for again: the server has gone, or drains, or
has ended a reader that was too slow.")

(defun follow-once (call function position position-of note)
  "Call FUNCTION with each message of CALL, a stream, and NOTE with its position, as POSITION-OF has
it. Return the last position, POSITION if there was no message."
  (declare (type function function position-of note))
  (loop for message = (rpc:receive call)
        while message
        do (let ((message message))
             ;; what FUNCTION's own calls signal is not of CALL
             (with-function-failed (status:rpc-error)
               (funcall function message))
             (setf position (funcall position-of message))
             (funcall note position))
        finally (return position)))

(defun follow-stream (begin function &key position position-of lost (patience-seconds 60)
                                       (retry *passing-statuses*))
  "Call FUNCTION with each message of a stream that is asked for again, from where it was, when it
breaks: each once and in order, as far as its server goes by positions. In this thread. Return the
last position once the stream has ended with :ok.
BEGIN             a function of a position that returns a call, of which messages are received: what
                  a stub of a method with a stream of answers returns. It gets POSITION first, then
                  that of the last message
FUNCTION          a function of a message. An error that it signals, or another non-local exit, ends
                  this, and the call
POSITION          where to begin, nil by default
POSITION-OF       a function of a message that returns what BEGIN is to get if the stream breaks
                  behind it
LOST              a function without arguments, called if a stream ends with :out-of-range, since
                  what is to follow is kept no more: it returns the position from which to go on,
                  mostly nil, once it has seen to what was missed. Without it the error is signalled
PATIENCE-SECONDS  a real: how long no message may come, since the stream first broke, before the
last
                  error is signalled; 60 by default
RETRY             a list of statuses after which the stream is asked for again, after 1/4 to 5 s:
                  (:unavailable :cancelled :resource-exhausted) by default; others are signalled
A server that hangs is found by :keepalive-seconds of its channel only. From any thread but a
loop's."
  (unless (typep position-of '(and (not null) (or function symbol)))
    (misuse ":POSITION-OF is a function of a message, not ~S." position-of))
  (let ((end nil)                       ; when patience ends; nil while messages come
        (pauses (loop:make-pauses +first-pause-seconds+ +most-pause-seconds+))
        (position-of (coerce position-of 'function)))
    (flet ((note (new)
             (setf position new
                   end nil)
             (loop:forget-failures pauses)))
      (loop
        (handler-case
            (return
              (rpc:with-call (call (funcall (the function begin) position))
                (follow-once call function position position-of #'note)))
          (function-failed (failure) (error (function-failed-cause failure)))
          (status:rpc-error (error)
            (let ((status (status:rpc-error-status error)))
              (cond ((and lost (eq :out-of-range status))
                     (setf position (funcall (the function lost))))
                    ((not (member status retry)) (error error)))
              (unless end (setf end (loop:notice-end patience-seconds)))
              (when (<= end (loop:world-now)) (error error)))))
        (loop:world-sleep (loop:next-pause pauses))))))
