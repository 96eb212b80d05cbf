;;;; The log: events as data. The events go to *LOG-FUNCTION*, which the user sets and which by
;;;; default writes errors to the standard error, and to any number of listeners, which libraries
;;;; add. Logging must never make other code fail, so errors in these functions are ignored; only
;;;; the first error of *LOG-FUNCTION* is written to the standard error. Events that these functions
;;;; log themselves are ignored too. Events of tracers (tracer.lisp) have the details; functions
;;;; that write events are in journal.lisp.

(in-package #:clgrpc.base)

(declaim (type (or null symbol function) *log-function*))
(defvar *log-function* 'log-errors
  "The function that is called for each log event, or NIL for silence. The default is LOG-ERRORS.
The function is called as (FUNCTION LEVEL EVENT &rest PLIST), on the thread of the event. It must be
quick, because this may be the thread of an event loop. LOG-WRITER returns a quick function that
writes lines; LOG-IN-BACKGROUND returns a quick function that calls a slow function on a separate
thread. LEVEL is :debug, :info, :warning, :error or, for tracers (see TRACERS), :trace. EVENT is a
keyword, and PLIST has its data; doc/observability.md lists all events. An error in the function is
written to the standard error, once. Set the variable globally; a binding affects one thread only.
The variable belongs to the program: libraries use ADD-LOG-LISTENER instead.")

(declaim (type list **log-listeners**))
(defglobal **log-listeners** '()
  "A list of functions, or names of functions, that are called with each event, as *LOG-FUNCTION*
is. The list is replaced, never changed.")

(defun add-log-listener (listener)
  "Call LISTENER, a function or a symbol that names one, with each event, as *LOG-FUNCTION* is
called, until REMOVE-LOG-LISTENER. A listener that is added twice is called once. Return LISTENER.
Signal MISUSE for another object. From any thread."
  (unless (typep listener '(and (or symbol function) (not null)))
    (misuse "A log listener is a function, or a symbol that names one, not ~S." listener))
  (sb-ext:atomic-update **log-listeners**
                        (lambda (listeners) (adjoin listener listeners)))
  listener)

(defun remove-log-listener (listener)
  "Undo ADD-LOG-LISTENER. Return false if LISTENER is not a log listener. From any thread."
  (let ((there nil))
    (sb-ext:atomic-update **log-listeners**
                          (lambda (listeners)
                            (setf there (and (member listener listeners) t))
                            (remove listener listeners)))
    there))

(declaim (type (or null function) **line-function**))
(defglobal **line-function** nil
  "The function that writes lines to the standard error: the events of LOG-ERRORS, and the events of
tracers while *LOG-FUNCTION* is nil; see journal.lisp.")

(defun log-errors (level event &rest plist)
  "Write EVENT as a line to *ERROR-OUTPUT* if LEVEL is :error, or :trace, the level of tracers. This
function is the default of *LOG-FUNCTION*, so that users see errors without setting up a log. A
separate thread writes, as with LOG-WRITER. From any thread."
  (when (and (member level '(:error :trace)) **line-function**)
    (apply **line-function** level event plist)))

(defun log-nothing (&rest event)
  "Do nothing. This is the log function in a thread that runs the log function or a listener, so
that events that these log reach no listener."
  (declare (ignore event)))

(declaim (type (or null function) **log-context**))
(defglobal **log-context** nil
  "Nil, or a function of the plist of an event that returns a plist about the work of this thread,
such as the ids of its trace; the second plist is added to the event.")

(defun with-log-context (plist)
  "Return PLIST, of an event, with the plist that **LOG-CONTEXT** returns added."
  (let ((more (and **log-context** (funcall **log-context** plist))))
    (if more (append plist more) plist)))

(defglobal **failing-log-function** nil
  "The value of *LOG-FUNCTION* whose error was written last.")

(defun report-log-function (function condition)
  "Write to the standard error that FUNCTION, the value of *LOG-FUNCTION*, has signalled CONDITION.
Write it only once, because FUNCTION may fail for each event."
  (unless (or (eq function **failing-log-function**) (null **line-function**))
    (setf **failing-log-function** function)
    (with-log-guard ()
      (funcall **line-function** :error :log-function-error :function function
                                                            :condition condition))))

(defun log-event (level event &rest plist)
  "Pass EVENT to *LOG-FUNCTION*, if it is not nil, and to the listeners. Return no value. Signal no
condition except the timeout of an SB-EXT:WITH-TIMEOUT around this call. From any thread."
  (let ((function (or *log-function*
                      (and (eq :trace level) **line-function**)))
        (listeners **log-listeners**))
    (unless (or (eq function #'log-nothing)
                (not (or function listeners)))
      (let ((*log-function* #'log-nothing))
        (flet ((tell (function)
                 (nth-value 1 (with-log-guard ()
                                (apply function level event (with-log-context plist))))))
          (when function
            (let ((condition (tell function)))
              (when condition (report-log-function function condition))))
          (mapc #'tell listeners)))))
  (values))

;;; Backtraces: a line for each frame. Texts from peers are bounded and escaped as in all lines

(defvar *backtrace-arguments* nil
  "If false, the default, a backtrace in the log shows an argument only if it is a keyword, T or
NIL. Of any other argument it shows the class, because messages and metadata may be secret. If true,
it shows all arguments. Set it globally.")

(defconstant +backtrace-frames+ 60
  "The maximum number of frames of a backtrace in the log.")
(defconstant +frame-characters+ 600
  "The maximum number of characters of a frame's line. Each argument may have a fifth of these.")

(defun shown-argument (argument)
  "Return ARGUMENT of a frame in the form that the log may show. In place of an argument that is no
longer known, or has dynamic extent, SBCL returns an object of a special class. For dynamic extent
this object prints the argument, so the log shows only the class."
  (let ((class (class-name (class-of argument))))
    (if (or *backtrace-arguments*
            (typep argument '(or boolean keyword))
            (and (string= '#:unprintable-object class)
                 (member (princ-to-string argument)
                         '("#<unused argument>" "#<unavailable argument>")
                         :test #'string=)))
        argument
        class)))

(defun shown-function (name)
  "Return NAME of a frame in the form that the log may show. The name of a form in a file is
shortened."
  (if (and (consp name) (symbolp (first name)) (string= '#:top-level-form (first name))
           (not *backtrace-arguments*))
      (first name)
      name))

(defun write-frame (frame stream)
  "Write FRAME, a list of a function's name and its arguments."
  (flet ((text (object limit)
           (printable-text (bounded-text object :limit limit :escape t) :limit (1+ limit))))
    (write-string (with-bounded-text (stream +frame-characters+)
                    (write-char #\( stream)
                    (write-string (text (shown-function (first frame)) 200) stream)
                    (dolist (argument (rest frame))
                      (write-char #\Space stream)
                      (write-string (text (shown-argument argument) (floor +frame-characters+ 5))
                                    stream))
                    (write-char #\) stream))
                  stream)))

(defun backtrace-text ()
  "Return the frames of this thread as text, the innermost first, with a line for each frame."
  (values
   (with-log-guard ()
     (let ((*print-length* 10) (*print-level* 4)
           ;; The C library, which knows the names of C functions, has a lock. A timeout that
           ;; unwound this thread in that library would leave the lock locked; then each later
           ;; backtrace would wait for ever.
           (frames (sb-sys:without-interrupts
                     (sb-debug:list-backtrace :count +backtrace-frames+))))
       (with-output-to-string (stream)
         (loop for frame in frames
               for number from 0
               do (format stream "~D: " number)
                  (write-frame frame stream)
                  (terpri stream)))))))

(defconstant +backtraces+ 20
  "The maximum number of events of a kind that have a backtrace in a second. It is limited because a
backtrace costs a millisecond and has up to 36,000 characters, and a peer may cause an error with
each call.")

(defglobal **backtraces** (make-hash-table :test 'eq :synchronized t)
  "A table from an event to a list, which is replaced and never changed: the time at which the
event's present second began, and the number of its backtraces in that second. If several threads
count an event at once, a count may be lost.")

(defun backtrace-due-p (event)
  "Count a backtrace of EVENT; return false if EVENT has already had the maximum number of
backtraces in this second."
  (destructuring-bind (since count) (gethash event **backtraces** '(0 0))
    (let ((now (monotonic-ns)))
      (when (>= now (+ since 1000000000)) (setf since now
                                                count 0))
      (when (< count +backtraces+)
        (setf (gethash event **backtraces**) (list since (1+ count)))))))

(defun log-condition (level event condition &rest plist)
  "Do what LOG-EVENT does, with :condition and, as text, the :backtrace of the point at which this
function is called. Within a HANDLER-BIND this is the point at which CONDITION was signalled. After
+BACKTRACES+ backtraces of EVENT in a second, :backtrace is nil for the rest of that second."
  (when (or *log-function* **log-listeners**)
    (apply #'log-event level event :condition condition
           :backtrace (and (backtrace-due-p event) (backtrace-text)) plist)))
