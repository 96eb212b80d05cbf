;;;; Waiting without sleeping, notes, threads that pass on their errors, and the log as a list.

(in-package #:clgrpc.tests.server)

(defparameter +patience+ (support:patient-seconds 20)
  "After this many seconds an awaited event counts as not coming.")

;;; Waiting

(defun make-signal ()
  "A signal for AWAIT-SIGNAL."
  (sb-thread:make-semaphore))

(defun signal-it (signal)
  (sb-thread:signal-semaphore signal))

(defun await-signal (signal &key (count 1) (seconds +patience+))
  "Wait until SIGNAL has been signalled COUNT times; return false if this takes too long."
  ;; SBCL does not accept a time-out of 0
  (and (sb-thread:wait-on-semaphore signal :n count :timeout (max 1/1000 seconds)) t))

(defun server-links (server)
  "The connections of SERVER, whose loops continue: one may be about to add one to its vector."
  (loop for server-loop in (server:server-loops server)
        append (remove nil (coerce (server:server-loop-links server-loop) 'list))))

(defun held-octets (server)
  "The octets charged to the connections of SERVER."
  (reduce #'+ (server-links server) :key #'wire::link-held))

(defun settled (function)
  "The value of FUNCTION once it has been the same for a tenth of a second: for things whose end is
not announced."
  (let ((quiet (make-signal)))
    (loop for before = (funcall function)
          do (await-signal quiet :seconds 0.1) ; which nobody signals
          until (eql before (funcall function))
          finally (return before))))

(defmacro elapsed-seconds (&body body)
  "The seconds that BODY takes."
  (let ((start (gensym "START")))
    `(let ((,start (monotonic-ns)))
       ,@body
       (ns-seconds (- (monotonic-ns) ,start)))))

(defun call-caught (function)
  (handler-case (progn (funcall function) nil)
    (status:rpc-error (error) error)))

(defmacro caught (&body body)
  "The RPC-ERROR that BODY signals, or nil."
  `(call-caught (lambda () ,@body)))

(defun budgets (server)
  (loop for entry being the hash-values of
        (server::admission-peers (server::server-admission server))
        collect (server::peer-entry-budget entry)))

;;; Messages

(defun note (number &key (text "") (body nil))
  "A message; BODY is octets or their number."
  (lab:make-note :number number :text text
                 :body (if (integerp body) (make-octets body) (or body (make-octets 0)))))

(defun number-of (note)
  (lab:note-number note))

(defun numbers (call)
  "A list of the numbers of all messages of CALL."
  (let ((numbers '()))
    (grpc:do-messages (note call (nreverse numbers))
      (push (number-of note) numbers))))

;;; Threads

(defun call-with-threads (count function)
  "Call FUNCTION with 0 to COUNT-1 on a thread each; return the list of values once all have ended.
An error in one is signalled here."
  (let ((threads (loop for i below count
                       collect (let ((i i))
                                 (in-thread (handler-case (list :value (funcall function i))
                                              (error (error) (list :error error))))))))
    (loop for thread in threads
          for (kind value) = (sb-thread:join-thread thread :timeout (* 3 +patience+)
                                                           :default '(:error "a thread hangs"))
          do (when (eq kind :error) (error "In a thread of a test: ~A" value))
          collect value)))

(defmacro with-threads ((variable count) &body body)
  "Evaluate BODY on COUNT threads at once, with VARIABLE bound to 0, 1 and so on; return the
values."
  `(call-with-threads ,count (lambda (,variable) (declare (ignorable ,variable)) ,@body)))

;;; The log

(defvar *events* nil "A cons whose car lists the events logged inside WITH-LOG, newest first.")

(defun events-of (event)
  "The events EVENT logged inside WITH-LOG, a list of plists, newest first."
  (loop for (nil name . plist) in (car *events*)
        when (eq event name) collect plist))

(defun error-events ()
  (loop for (level name . plist) in (car *events*)
        when (eq level :error) collect (cons name plist)))

(defun call-with-log (expected function)
  (let* ((events (list '()))
         (lock (sb-thread:make-mutex))
         (old (sb-ext:symbol-global-value '*log-function*)))
    (setf (sb-ext:symbol-global-value '*log-function*)
          (lambda (level event &rest plist)
            (sb-thread:with-mutex (lock) (push (list* level event plist) (car events)))))
    (unwind-protect (let ((*events* events))
                      (multiple-value-prog1 (funcall function)
                        (let ((surprises (set-difference (error-events) expected
                                                         :test (lambda (a b) (eq (car a) b)))))
                          (is (null surprises) "Logged as errors:~{~%~S~}" surprises))))
      (setf (sb-ext:symbol-global-value '*log-function*) old))))

(defmacro with-log ((&rest expected) &body body)
  "Evaluate BODY while all logged events are kept for EVENTS-OF; check that only the EXPECTED events
were logged as errors."
  `(call-with-log ',expected (lambda () ,@body)))

(defun route-named (server name)
  "The route of SERVER to the method of the generic function NAME."
  (loop with table = (server::server-loop-routes (first (server:server-loops server)))
        for route being the hash-values of (server::route-table-routes table)
        when (eq name (method:rpc-method-function-name (server:route-method route)))
          return route))
