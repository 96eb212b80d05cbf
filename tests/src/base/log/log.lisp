;;;; The log never signals and never calls itself.

(in-package #:clgrpc.tests.base)

(defun errors-written (function)
  "The text on the standard error while FUNCTION runs with the default log function."
  (let ((output (make-string-output-stream)))
    (with-changed (((sb-ext:symbol-global-value '*log-function*) 'log-errors)
                   ((sb-ext:symbol-global-value '*error-output*) output))
      (funcall function)
      (flush-log)
      (get-output-stream-string output))))

(defparameter *default-log-function* (sb-ext:symbol-global-value '*log-function*)
  "The value when this file was loaded; the runner of all tests sets it to nil.")

(test errors-are-written-by-default
  (is (eq 'log-errors *default-log-function*))
  (let ((text (errors-written (lambda ()
                                (log-event :debug :first)
                                (log-event :info :second)
                                (log-event :warning :third)
                                (log-event :error :fourth :what "it")))))
    (is (search "ERROR fourth what=it" text))
    (is (= 1 (count #\Newline text)))))

(test log-is-silent-when-told
  (is (string= "" (with-output-to-string (*standard-output*)
                    (let ((*error-output* *standard-output*) (*log-function* nil))
                      (log-event :error :nothing)
                      (flush-log))))))

(test log-passes-events-on
  (let* ((events '())
         (*log-function* (lambda (&rest event) (push event events))))
    (log-event :info :started :port 80)
    (is (equal '((:info :started :port 80)) events))))

(test log-functions-that-fail-are-reported-once
  "On the standard error, so that a wrong one is noticed; another one is reported again."
  (flet ((text-of (function)
           (errors-written (lambda ()
                             (let ((*log-function* function))
                               (log-event :info :started)
                               (log-event :info :stopped))))))
    (dolist (function (list (lambda (level) level) (lambda (&rest event) (error "~S" event))))
      (let ((text (text-of function)))
        (is (search "ERROR log-function-error" text))
        (is (= 1 (count #\Newline text)) "~A" text)
        (is (string= "" (text-of function)))))))

(test log-swallows-errors
  (let* ((calls 0)
         (*log-function* (fn (&rest _event)
                           (incf calls)
                           (log-event :error :again)
                           (error "broken"))))
    (finishes (log-event :info :started))
    (is (= 1 calls))))

(test backtraces-have-so-many-frames
  (labels ((text-at (depth)
             (if (zerop depth) (clgrpc.base::backtrace-text) (values (text-at (1- depth)) depth))))
    (is (eql 0 (search "0: " (text-at 0))))
    (is (= clgrpc.base::+backtrace-frames+ (count #\Newline (text-at 100))))))

(test backtraces-have-a-rate
  "The last backtrace of a second is due, the next is not, and in another second one is again."
  (loop with most = clgrpc.base::+backtraces+
        ;; a second that began an hour ahead lasts as long as the test
        for (age-seconds count due) in `((-3600 0 t) (-3600 ,(1- most) t) (-3600 ,most nil)
                                         (2 ,most t))
        do (setf (gethash :test-of-rates clgrpc.base::**backtraces**)
                 (list (- (monotonic-ns) (* age-seconds 1000000000)) count))
           (is (eq due (and (clgrpc.base::backtrace-due-p :test-of-rates) t))
               "~D s, ~D" age-seconds count)
        finally (remhash :test-of-rates clgrpc.base::**backtraces**)))

(defmacro with-log-listener ((listener) &body body)
  "Evaluate BODY while LISTENER is a log listener."
  (let ((function (gensym "LISTENER")))
    `(let ((,function ,listener))
       (add-log-listener ,function)
       (unwind-protect (progn ,@body)
         (remove-log-listener ,function)))))

(defun time-over ()
  "Signal the condition of an SB-EXT:WITH-TIMEOUT whose time is over."
  (cerror "Go on." 'sb-ext:timeout :seconds 1))

(defclass slow-to-print () ())

(defmethod print-object ((object slow-to-print) stream)
  (declare (ignore stream))
  (time-over))

(test timeouts-pass-the-log
  "The time of a WITH-TIMEOUT around code that logs may end while a log function or a listener runs,
or while the event is printed; its user gets the timeout nevertheless. A timeout without a handler
is the function's error."
  (flet ((outcome (function)
           (handler-case (progn (funcall function) :returned)
             (sb-ext:timeout () :time-over)))
         (late (&rest event) (declare (ignore event)) (time-over)))
    (let ((*log-function* #'late))
      (is (eq :time-over (outcome (lambda () (log-event :info :started)))))
      (is (search "ERROR log-function-error"
                  (errors-written (lambda ()
                                    (let ((*log-function* #'late)) (log-event :info :started)))))))
    (with-log-listener (#'late)
      (is (eq :time-over (outcome (lambda () (log-event :info :started))))))
    (let ((object (make-instance 'slow-to-print)))
      (is (eq :time-over (outcome (lambda () (bounded-text object)))))
      (is (string= "(cannot be printed)" (bounded-text object))))))

(test log-listeners-hear-of-events
  "Any number of listeners get events, beside the log function, and without one."
  (let ((first '()) (second '()) (own '()))
    (with-log-listener ((lambda (&rest event) (push event first)))
      (with-log-listener ((lambda (&rest event) (push event second)))
        (let ((*log-function* (lambda (&rest event) (push event own))))
          (log-event :info :started :port 80)))
      (let ((*log-function* nil))
        (log-event :error :failed)))
    (let ((*log-function* nil)) (log-event :error :unheard))
    (is (equal '((:error :failed) (:info :started :port 80)) first))
    (is (equal '((:info :started :port 80)) second))
    (is (equal '((:info :started :port 80)) own))))

(test log-listeners-are-added-once
  (let ((count 0))
    (flet ((listener (&rest event) (declare (ignore event)) (incf count)))
      (is (eq #'listener (add-log-listener #'listener)))
      (add-log-listener #'listener)
      (let ((*log-function* nil)) (log-event :info :started))
      (is-true (remove-log-listener #'listener))
      (is-false (remove-log-listener #'listener))
      (let ((*log-function* nil)) (log-event :info :started))
      (is (= 1 count))))
  (signals misuse (add-log-listener nil))
  (signals misuse (add-log-listener "no function")))

(test log-listeners-do-not-disturb
  "An error in one does not affect the others, and events that they log are not passed to them."
  (let ((calls 0) (heard 0) (*log-function* (fn (&rest _event) (error "broken"))))
    (with-log-listener ((lambda (&rest event) (declare (ignore event)) (incf heard)))
      (with-log-listener ((fn (&rest _event)
                            (incf calls)
                            (log-event :error :again)
                            (error "broken")))
        (finishes (log-event :info :started))
        (is (= 1 calls))
        (is (= 1 heard))))))

(test log-listeners-get-backtraces
  (let ((heard nil) (*log-function* nil))
    (with-log-listener ((lambda (&rest event) (setf heard event)))
      (log-condition :error :failed (make-condition 'simple-error :format-control "broken")))
    (destructuring-bind (level name &key condition backtrace) heard
      (is (equal '(:error :failed) (list level name)))
      (is (string= "broken" (princ-to-string condition)))
      (is (stringp backtrace)))))

(test log-conditions-with-backtrace
  (let* ((event nil)
         (*log-function* (lambda (&rest rest) (setf event rest))))
    (block nil
      (handler-bind ((error (lambda (condition)
                              (log-condition :error :failed condition :where 1)
                              (return))))
        (error "broken")))
    (destructuring-bind (level name &key condition backtrace where) event
      (is (equal '(:error :failed 1) (list level name where)))
      (is (string= "broken" (princ-to-string condition)))
      (is (search "LOG-CONDITIONS-WITH-BACKTRACE" backtrace)))))

(test timeouts-wait-until-frames-are-known
  "The C library finds the name of a foreign function under a lock. A thread unwound meanwhile would
keep the lock: each later backtrace, and the end of each reserve thread, would wait for ever."
  (let ((interrupted '()) (*log-function* (constantly nil)))
    (with-replaced (('sb-debug:list-backtrace
                     (lambda (function &rest arguments)
                       (push sb-sys:*interrupts-enabled* interrupted)
                       (apply function arguments))))
      (log-condition :error :asked (make-condition 'simple-error :format-control "broken")))
    (is (equal '(nil) interrupted))))

(test backtraces-are-few-in-a-second
  "Each call with an error costs an event, but not a backtrace."
  (let* ((logged 0) (with 0) (seconds (- (monotonic-ns)))
         (*log-function* (fn (_level _event &key backtrace &allow-other-keys)
                           (incf logged)
                           (when backtrace (incf with)))))
    (dotimes (i 200)
      (log-condition :error :few-backtraces
                     (make-condition 'simple-error :format-control "broken")))
    (incf seconds (monotonic-ns))
    (is (= 200 logged))
    (is (<= 20 with (* 20 (1+ (ceiling seconds 1000000000)))))))

(declaim (notinline fail-with))
(defun fail-with (argument)
  (declare (optimize (debug 2)))
  (error "broken")
  argument)

(declaim (notinline fail-with-these))
(defun fail-with-these (&rest arguments)
  "Fail with arguments that SBCL prints in an object of its own, with their values."
  (declare (dynamic-extent arguments))
  (values (fail-with arguments) 1))

(defun backtrace-of (argument &key arguments)
  "The logged :backtrace of an error in a function with ARGUMENT; it shows arguments if ARGUMENTS is
true."
  (let* ((logged nil)
         (*backtrace-arguments* arguments)
         (*log-function* (fn (_level _event &key backtrace &allow-other-keys)
                           (setf logged backtrace))))
    (block nil
      (handler-bind ((error (lambda (condition)
                              (log-condition :error :failed condition)
                              (return))))
        (if (consp argument) (apply #'fail-with-these argument) (fail-with argument))))
    logged))

(test backtraces-show-no-values
  "An argument may be or contain a secret, so only its class is shown. Keywords are the program's."
  (loop for (argument shown) in '(("Bearer secret" "SB-KERNEL:SIMPLE-CHARACTER-STRING")
                                  ((("authorization" . "Bearer secret")) "CONS") (4711 "FIXNUM")
                                  (:key ":KEY") (nil "NIL"))
        for backtrace = (backtrace-of argument)
        do (is (search (format nil "(BACKTRACE-OF ~A :ARGUMENTS NIL)" shown) backtrace))
           (is (not (search "secret" backtrace)))
           (is (not (search "4711" backtrace))))
  (is (string= "SB-C::TOP-LEVEL-FORM"
               (prin1-to-string (clgrpc.base::shown-function
                                 '(sb-c::top-level-form (call "secret"))))))
  (is (equal '(flet work :in test) (clgrpc.base::shown-function '(flet work :in test)))))

(test backtraces-are-bounded-and-visible
  "A frame is one line whatever its arguments are; some of them come from peers."
  (let* ((forged (format nil "x~%ERROR forged~C~C[31m~C" #\Return (code-char 27)
                         (code-char #x202E)))
         (backtrace (backtrace-of forged :arguments t)))
    (is (search "\"x\\nERROR forged\\r\\x1b[31m\\u{202e}\"" backtrace))
    (is (every (lambda (char) (or (char= char #\Newline) (not (unsafe-char-p char)))) backtrace))
    (is (<= (count #\Newline backtrace) 60)))
  (let ((backtrace (backtrace-of (make-string 4000000 :initial-element #\y)
                                 :arguments t)))
    (is (search "FAIL-WITH" backtrace))
    (is (search "yyyyy" backtrace))
    (is (< (length backtrace) 40000))))
