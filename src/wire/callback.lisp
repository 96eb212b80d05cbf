;;;; Callbacks of calls on the wire. The callbacks run after all connections of the turn were read,
;;;; never within the protocol core, and with the baton lent.

(in-package #:clgrpc.wire)

(defstruct (waiting (:include ring) (:constructor make-waiting (call)) (:copier nil))
  "The place in the link's queue of a CALL whose callbacks wait for a thread."
  (call nil :type wire-call :read-only t)) ; the call

(declaim (sb-ext:freeze-type waiting))

(define-hot wire-schedule ((call wire-call)) null
  "The operation SCHEDULE."
  (let ((callbacks (ensure-wire-callbacks call)))
    (when (or (null (wire-callbacks-scheduled callbacks))
              (and (waiting-p (wire-callbacks-scheduled callbacks))
                   (call-status call)   ; after its end its callbacks do not wait
                   (progn (quit-ring (wire-callbacks-scheduled callbacks)) t)))
      (setf (wire-callbacks-scheduled callbacks) t)
      (loop:defer (wire-call-loop call) #'run-callbacks call))
    nil))

(define-hot run-callback ((call wire-call) (function function)) boolean
  "Run FUNCTION, user code of CALL, with the baton lent; an error in it ends CALL. Return false if
the baton was lost, in which case the caller must not use the loop."
  (let ((abandoned t))
    (unwind-protect
         (multiple-value-bind (condition baton)
             (flet ((run (argument)
                      (declare (ignore argument))
                      (with-user-code (call)
                        (loop:with-user-interrupts () (funcall function)))))
               (declare (dynamic-extent #'run))
               (setf (wire-callbacks-scheduled
                      (the wire-callbacks (call-wire-callbacks call)))
                     :running)
               (loop:call-user (wire-call-loop call) #'run call))
           (setf abandoned nil)
           (cond ((eq baton :lost) (resume-callbacks call condition) nil)
                 (t (when condition (abort-as call condition))
                    t)))
      (when abandoned                   ; the callback's thread is terminated
        (resume-callbacks call (verdict-error :callback-left '()))))))

(defun resume-callbacks (call condition)
  "Let the loop continue with CALL. Its callback has returned, or ended with CONDITION, on this
thread, which has lost the loop."
  (operate callback-returned call)
  (loop:post (wire-call-loop call)
             (lambda ()
               (when condition (abort-as call condition))
               (setf (wire-callbacks-scheduled (call-wire-callbacks call)) nil)
               (wire-schedule call))))

(defconstant +messages-at-once+ 16
  "The maximum number of messages that a callback gets while the baton is lent once. The number is
small, so that the watchdog does not mistake many quick calls of the callback for a slow call.")

(define-hot (next-message-due-p :inline t) ((call wire-call) (callbacks wire-callbacks)) boolean
  "Return what MESSAGE-DUE-P returns, for a CALL with a callback for messages, but without function
calls while CALL runs. Over HTTP/1.1, where CALL has no stream, the operation ROOM counts the unsent
octets."
  (let ((inbound (call-wire-inbound call)))
    (and inbound
         (or (wire-inbound-received inbound) (wire-inbound-incoming inbound))
         (if (call-status call)
             (message-due-p call callbacks)
             (or (client-p call)
                 (if (wire-call-stream call) (plusp (unsent-room call)) (room-p call)))))))

(define-hot run-with-messages ((call wire-call) (callbacks wire-callbacks)) boolean
  "Pass messages of CALL to its callback while this thread runs the loop. Return the value of
RUN-CALLBACK."
  ;; the message is kept until its callback returns, since the callback may be run once more
  (let ((message nil))
    (flet ((run ()
             (loop repeat +messages-at-once+
                   while (or message (next-message-due-p call callbacks))
                   do (setf message (or message (pop-incoming call)))
                      (funcall (the function (wire-callbacks-on-message callbacks)) message)
                      (setf message nil)
                   while (loop:in-event-loop-p (wire-call-loop call)))))
      (declare (dynamic-extent #'run))
      (run-callback call #'run))))

;;; A server charges a connection with each thread in which a callback has lost the loop. The thread
;;; that takes the loop over adds the charge, and the thread that returns from the callback removes
;;; it. The two events come in either order, so both threads hold the lock of the reserve.

(defun late-callback-p (call)
  "True if a callback of CALL that runs, or has returned a moment ago, has lost the loop of CALL."
  (let ((callbacks (call-wire-callbacks call)))
    (and callbacks
         (member (wire-callbacks-scheduled callbacks) '(:running :returned))
         t)))

(defun note-callback-charge (call charged)
  "Note that the callback of CALL that has lost the loop is charged, if CHARGED is true, or has
returned, if CHARGED is false. Return true if the charge changes."
  (let ((callbacks (call-wire-callbacks call)))
    (if charged
        (when (eq :running (wire-callbacks-scheduled callbacks))
          (setf (wire-callbacks-scheduled callbacks) :charged))
        (eq :charged (shiftf (wire-callbacks-scheduled callbacks) :returned)))))

(defun callbacks-wait-p (call link)
  "True if the callbacks of CALL must wait, because other callbacks of LINK have lost the loop and
LINK may not use one more thread. In that case CALL is queued until LINK may have a thread.
Callbacks of a call that has ended never wait."
  (when (and (null (call-status call))
             (link-quota link)
             (not (eq :granted (wire-callbacks-scheduled (call-wire-callbacks call))))
             (not (thread-free-p link)))
    (let ((place (isolate-ring (make-waiting call))))
      (enter-ring place (or (link-waiting-calls link)
                            (setf (link-waiting-calls link) (make-ring))))
      (setf (wire-callbacks-scheduled (call-wire-callbacks call)) place)
      (ask-for-thread link)
      t)))

(defun thread-free-p (link)
  "True if LINK may use one more thread for a callback that loses the loop."
  (or (zerop (link-late link))
      (loop:quota-open-p (loop:event-loop-reserve (link-loop link)) (link-quota link))))

(defun first-waiting (link)
  "Return the WAITING of the call of LINK whose callbacks have waited longest, or nil if none wait."
  (and (link-waiting-calls link) (ring-first (link-waiting-calls link))))

(defun take-waiting-call (link scheduled)
  "Return the call of LINK whose callbacks have waited longest, or nil if none wait. The call stops
waiting, and the state of its callbacks becomes SCHEDULED, t or :granted."
  (let ((place (first-waiting link)))
    (when place
      (quit-ring place)
      (setf (wire-callbacks-scheduled (call-wire-callbacks (waiting-call place))) scheduled)
      (waiting-call place))))

(defun ask-for-thread (link)
  "Queue a function for a thread of LINK's quota, unless such a function already waits. When LINK
may have a thread, the function lets the loop run the callbacks of the call that has waited longest,
and keeps the thread until they run. Otherwise a handler that waits for a thread of LINK would
always get it first. On the loop."
  (flet ((use (give-up)
           (setf (link-asked link) nil)
           (let ((call (take-waiting-call link :granted)))
             (loop:defer (link-loop link)
                         (lambda (give-up)
                           (funcall (the function give-up)
                                    (lambda () (when call (run-callbacks call)))))
                         give-up)
             (when call (loop:defer (link-loop link) #'run-waiting-callbacks link)))))
    (unless (link-asked link)
      (setf (link-asked link)
            (and (loop:run-holding (loop:event-loop-reserve (link-loop link)) (link-quota link)
                                   (lambda (give-up)
                                     (unless (loop:post (link-loop link) (lambda () (use give-up)))
                                       (funcall (the function give-up) (constantly nil)))))
                 t)))))

(defun wake-callbacks (link)
  "Let the loop run callbacks of LINK that wait, because a thread with which LINK was charged has
become free. From any thread."
  (loop:post (link-loop link) (lambda () (run-waiting-callbacks link))))

(defun run-waiting-callbacks (link)
  "If LINK may have a thread, schedule the callbacks of the call of LINK that has waited longest,
after all functions that are due now, and afterwards call this function again. Otherwise ask for a
thread."
  (cond ((null (first-waiting link)))
        ((thread-free-p link)
         (loop:defer (link-loop link) #'run-callbacks (take-waiting-call link t))
         (loop:defer (link-loop link) #'run-waiting-callbacks link))
        (t (ask-for-thread link))))

(define-hot (due-by-time :inline t) ((call wire-call) (callbacks wire-callbacks))
    (or null function)
  "Return the next function of AFTER that is due, or nil if none is due."
  (and (wire-callbacks-due callbacks)
       (not (call-status call))
       (pop (wire-callbacks-due callbacks))))

(define-hot run-callbacks ((call wire-call)) null
  "Run the callbacks of CALL that are due, one after the other. SCHEDULED is true until the last
callback has returned, on any thread; therefore two callbacks of a call never run at once."
  (let ((callbacks (ensure-wire-callbacks call)) (link (wire-call-link call)))
    (loop
      (when (and link (plusp (link-late link)) (callbacks-wait-p call link))
        (return nil))
      (when (loop:not-for-driver-p (wire-call-loop call) call)
        (loop:defer (wire-call-loop call) #'run-callbacks call)
        (return nil))
      (unless (if (message-due-p call callbacks)
                  (run-with-messages call callbacks)
                  (let ((function (or (due-by-time call callbacks)
                                      (due-callback call callbacks t))))
                    (unless function
                      (setf (wire-callbacks-scheduled callbacks) nil)
                      (return nil))
                    (run-callback call function)))
        (return nil)))))
