;;;; A program on a loop: START-EVENT-LOOP runs one in this thread until nothing is left to do. The
;;;; loop's signals, exit callbacks and statistics are in this file as well.

(in-package #:clgrpc.async)

(defun start-event-loop (function &key catch-app-errors (send-errors-to-eventcb t)
                                    (name "event loop") poller)
  "Make an event loop, call FUNCTION, without arguments, on it, and run it in this thread until it
has nothing left to wait for (timers, sockets, servers, signal handlers and the like), until
EXIT-EVENT-LOOP is called, or until a non-local exit. Then all objects of the loop are closed. NAME
appears in logs and in STATS. POLLER is an object that MAKE-EPOLL-POLLER, the default, or
MAKE-POLL-POLLER has returned. If CATCH-APP-ERRORS is nil, handlers around this call see an error in
a callback, and then the debugger, with the restarts ABORT-CALLBACK, CONTINUE-EVENT-LOOP,
CLOSE-SOCKET and EXIT-EVENT-LOOP. If CATCH-APP-ERRORS is true, an error in a callback ends that
callback. The error is passed to the event callback of its object, if the object has one and
SEND-ERRORS-TO-EVENTCB is true; else to CATCH-APP-ERRORS if that is a function; else it is logged.
Signal MISUSE if this thread runs a loop already."
  (when (and *event-loop* (in-event-loop-p *event-loop*))
    (misuse "This thread runs ~A already." *event-loop*))
  (let* ((loop (apply #'make-event-loop :name name (and poller (list :poller poller))))
         (program (loop-program loop)))
    (setf (program-until-unused program) t
          (program-catch-errors program) catch-app-errors
          (program-errors-to-event-cb program) (and send-errors-to-eventcb t))
    ;; a connection that lingers keeps the loop from ending, too
    (loop:call-after-closing loop #'stop-unless-used)
    (let ((start (make-event function :loop loop)))
      (begin-use start)
      (loop:defer loop #'event-due start))
    (run-event-loop loop)
    nil))

(defmacro with-event-loop ((&rest arguments) &body body)
  "Evaluate BODY on a new event loop, which runs in this thread. ARGUMENTS are the keyword arguments
of START-EVENT-LOOP."
  `(start-event-loop (lambda () ,@body) ,@arguments))

(defun add-event-loop-exit-callback (function &key (loop *event-loop*))
  "When LOOP ends, call FUNCTION, without arguments, on LOOP, before LOOP's sockets and other
objects are closed. Several such functions are called in the reverse order of their addition. From
any thread."
  (let ((loop (the-loop loop)))
    (on-loop (loop)
      (loop:call-at-stop loop #'end-program)
      (push function (program-exit-callbacks (loop-program loop))))
    nil))

(defun end-program (loop)
  "Prepare for the end of LOOP."
  (let ((program (loop-program loop)))
    (loop while (program-exit-callbacks program)
          do (let ((function (pop (program-exit-callbacks program))))
               (loop:guarding (:exit-callback-error :loop loop)
                 (sb-sys:with-interrupts (funcall function)))))
    (end-signal-handlers loop)))

;;; Signals

(defstruct (signal-watch (:include handle) (:copier nil))
  "A handler of a signal."
  (number 1 :type (integer 1 64))       ; the number of the signal
  (callback nil :type callback)         ; (number), called when the process has got the signal
  (event-cb nil :type callback))        ; gets errors in CALLBACK

(defun signal-handler (number function &key event-cb (loop *event-loop*))
  "Call FUNCTION with NUMBER, the number of a signal such as +SIGINT+, on LOOP whenever the process
gets that signal, until FREE-SIGNAL-HANDLER or the end of the loop. A loop has one handler for a
signal: a new handler replaces the previous one. Other loops that request the signal get it too.
Meanwhile the signal's default action, and a handler that other code has set for it, are suspended.
EVENT-CB gets errors in FUNCTION. Return the handler, for CANCEL. Signal MISUSE if NUMBER is not a
signal, or is a signal that cannot be handled. +SIGUSR2+, SIGURG and SIGALRM cannot be handled: SBCL
needs them to stop threads, to interrupt them and to run its timers. From any thread."
  (unless (os:may-handle-signal-p number)
    (misuse "Give a signal that can be handled, such as +SIGINT+, not ~S. SBCL needs SIGUSR2, ~
             SIGURG and SIGALRM to stop and to interrupt threads and to run its timers."
            number))
  (let* ((loop (the-loop loop))
         (watch (make-signal-watch :loop loop :number number :callback function
                                   :event-cb event-cb)))
    (on-loop (loop)
      (begin-use watch)
      ;; ON-SIGNAL replaces its function, so that the signal never has its default action meanwhile
      (let ((before (take-signal-watch loop number)))
        (when before (end-use before)))
      (loop:call-at-stop loop #'end-program)
      (push watch (program-signal-handlers (loop-program loop)))
      (loop:on-signal loop number
                 (lambda ()
                   (unless (eq :idle (signal-watch-use watch))
                     (with-callback (watch event-cb) (funcall function number))))))
    watch))

(defun end-signal-handler (watch)
  (loop:on-signal (handle-loop watch) (signal-watch-number watch) nil)
  (end-use watch))

(defun take-signal-watch (loop number)
  "Remove the handler of the signal NUMBER from LOOP's list; return it, or nil if LOOP has none."
  (let* ((program (loop-program loop))
         (watch (find number (program-signal-handlers program) :key #'signal-watch-number)))
    (setf (program-signal-handlers program) (delete watch (program-signal-handlers program)))
    watch))

(defun free-signal-now (loop number)
  (let ((watch (take-signal-watch loop number)))
    (when watch (end-signal-handler watch))))

(defun end-signal-handlers (loop)
  (let ((program (loop-program loop)))
    (loop while (program-signal-handlers program)
          do (end-signal-handler (pop (program-signal-handlers program))))))

(defun free-signal-handler (number &key (loop *event-loop*))
  "Free LOOP's handler of the signal NUMBER. The signal's default action is restored unless another
loop handles the signal. From any thread."
  (let ((loop (the-loop loop)))
    (on-loop (loop) (free-signal-now loop number))
    nil))

(defun clear-signal-handlers (&key (loop *event-loop*))
  "Free all signal handlers of LOOP. From any thread."
  (let ((loop (the-loop loop)))
    (on-loop (loop) (end-signal-handlers loop))
    nil))

(defmethod cancel ((watch signal-watch) &optional text)
  (declare (ignore text))
  (end-handle watch (lambda (watch)
                      (let ((loop (handle-loop watch)))
                        (when (find watch (program-signal-handlers (loop-program loop)))
                          (free-signal-now loop (signal-watch-number watch)))))))

;;; Statistics

(defun stats (&key (loop *event-loop*))
  "Return a property list about LOOP:
 :INCOMING-TCP-CONNECTIONS and :OUTGOING-TCP-CONNECTIONS, the numbers of open sockets;
 :CONNECTIONS, the number of LOOP's connections, including those that are being closed;
 :OPEN-DNS-QUERIES, the number of look-ups under way;
 :TIMERS, the number of timers that will run;
 :USES, the number of objects that keep the loop from ending;
 :TURNS, the number of turns that LOOP has made;
 :NAME and :STATE, of the loop.
From any thread."
  (let* ((loop (or loop (the-loop loop)))
         (program (loop-program loop)))
    (list :incoming-tcp-connections (program-incoming program)
          :outgoing-tcp-connections (program-outgoing program)
          :connections (loop:event-loop-connections loop)
          :open-dns-queries (program-lookups program)
          :timers (wheel-count (loop:event-loop-wheel loop))
          :uses (program-uses program)
          :turns (loop:event-loop-turns loop)
          :name (event-loop-name loop)
          :state (loop:event-loop-state loop))))
