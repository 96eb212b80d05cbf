;;;; Looking names up: threads ask the system's resolver (getaddrinfo), whose answer may take long
;;;; and cannot be interrupted. A loop with a reserve asks on threads of the reserve, up to the
;;;; quota for look-ups, half of the free threads. Other loops use a few threads that start when
;;;; there is a name to look up and end when no name is left. A look-up waits while no thread is
;;;; free, and does not begin if no caller needs its answer any more.
;;;;
;;;; A loop that asks for a name that is already being looked up gets the answer of that look-up,
;;;; unless that look-up has taken very long. So retries for a name whose look-up hangs occupy few
;;;; further threads. An address query that waits for a thread is shared only by the loops of the
;;;; same reserve, since the threads of another reserve may all hang.

(in-package #:clgrpc.loop)

(defconstant +resolver-threads+ 4
  "The maximum number of look-ups of loops without a reserve that are under way at once; further
look-ups wait.")
(defconstant +waiting-look-ups+ 10000
  "The maximum number of look-ups that may wait.")

(sb-ext:define-load-time-global **resolvers**
  (make-reserve :threads +resolver-threads+ :queue +waiting-look-ups+ :idle-seconds 0))

(defconstant +reader-threads+ 4
  "The maximum number of threads that check certificate files at once; further checks wait.")
(defconstant +waiting-readers+ 1000
  "The maximum number of checks of certificate files that may wait.")

(sb-ext:define-load-time-global **readers**
  (make-reserve :threads +reader-threads+ :queue +waiting-readers+ :idle-seconds 0))

(defun run-on-reader (function)
  "Call FUNCTION, which reads files, on a thread for such functions. Return false if too many
functions wait."
  (run-on-reserve **readers** function))

(defun resolvers-of (loop)
  "The reserve whose threads look names up for LOOP."
  (or (event-loop-reserve loop) **resolvers**))

(defun run-on-resolver (loop function)
  "Call FUNCTION, which may block, on a thread for look-ups of LOOP. Return false if too many
functions wait."
  (let ((reserve (event-loop-reserve loop)) (world (event-loop-world loop)))
    (cond (reserve (run-on-reserve reserve function :quota (reserve-lookups reserve)))
          ((simulated-p world) (start-thread function "clgrpc reserve" world) t)
          (t (run-on-reserve **resolvers** function)))))

;;; Address queries to the system's resolver

(defconstant +address-query-ns+ (* 60 +ns-per-second+)
  "The maximum age of a query, in nanoseconds, at which further callers with the same question share
it. When it is older, the question is asked once more.")

(defstruct (address-query (:constructor make-address-query (key reserve since-ns)) (:copier nil))
  "A request for the addresses of a host."
  (key nil :type cons :read-only t)     ; the host's name and the port
  (reserve nil :type reserve :read-only t) ; the reserve whose thread asks
  (since-ns 0 :type nanoseconds :read-only t) ; when the name was asked for first
  (begun nil :type boolean)             ; a thread asks the system's resolver
  (askers '() :type list))              ; (FUNCTION . WANTED-P) of each caller

(declaim (sb-ext:freeze-type address-query))

(define-printer (address-query address-query)
  "~A, ~D asker~:P" (car (address-query-key address-query))
  (length (address-query-askers address-query)))

(declaim (type list **address-queries**))
(defglobal **address-queries** '())     ; the queries without an answer
(defglobal **address-queries-lock** (sb-thread:make-mutex :name "clgrpc look-ups"))

(defun find-address-query (address-query)
  "Return another address query for the same name whose answer ADDRESS-QUERY can share, or nil if
there is none. A query can be shared if a thread has begun it, or if it waits in the same reserve.
Call this with the lock."
  (find-if (lambda (other)
             (and (not (eq address-query other))
                  (equal (address-query-key address-query) (address-query-key other))
                  (or (address-query-begun other)
                      (eq (address-query-reserve address-query) (address-query-reserve other)))
                  (< (address-query-since-ns address-query)
                     (+ (address-query-since-ns other) +address-query-ns+))))
           **address-queries**))

(defun add-asker (host port reserve answer wanted-p)
  "Register ANSWER, a function, for the result of the address query for HOST. Return the address
query if it is new and must be asked by a thread of RESERVE."
  (let ((new (make-address-query (cons host port) reserve (monotonic-ns)))
        (asker (cons answer wanted-p)))
    (sb-thread:with-mutex (**address-queries-lock**)
      (let ((old (find-address-query new)))
        (cond (old
               (setf (address-query-askers old)
                     (cons asker (remove-if-not #'asker-waits-p (address-query-askers old))))
               nil)
              (t (push asker (address-query-askers new))
                 (push new **address-queries**)
                 new))))))

(defun asker-waits-p (asker)
  (funcall (the function (cdr asker))))

(defun end-address-query (address-query addresses failure)
  "Call the functions of the callers of ADDRESS-QUERY with its answer."
  (dolist (asker (sb-thread:with-mutex (**address-queries-lock**)
                   (setf **address-queries** (delete address-query **address-queries**))
                   (shiftf (address-query-askers address-query) '())))
    (funcall (the function (car asker)) addresses failure)))

(defun begin-address-query (address-query)
  "Return true if this thread must ask the resolver for ADDRESS-QUERY. It must not if all callers of
ADDRESS-QUERY have stopped waiting, or if another thread asks the same question."
  (sb-thread:with-mutex (**address-queries-lock**)
    (let ((askers (remove-if-not #'asker-waits-p (address-query-askers address-query)))
          (other (find-address-query address-query)))
      (cond ((and askers (not (and other (address-query-begun other))))
             (setf (address-query-begun address-query) t))
            (t (setf **address-queries** (delete address-query **address-queries**))
               (when other (setf (address-query-askers other)
                                 (append askers (address-query-askers other))))
               nil)))))

(defun ask-address-query (address-query network)
  "Ask the resolver of NETWORK, if a caller of ADDRESS-QUERY waits for the answer."
  (when (begin-address-query address-query)
    (let ((addresses '()) (failure "the look-up has failed"))
      (unwind-protect
           (destructuring-bind (host . port) (address-query-key address-query)
             (setf (values addresses failure) (funcall (network-resolve network) host port)))
        (end-address-query address-query addresses failure)))))

(defun lookup-host (loop host port function &optional (wanted-p (constantly t)))
  "Ask for the addresses of HOST, each with PORT. Then (FUNCTION addresses failure) is called on
LOOP; FAILURE is nil or the reason of the failure, as text. WANTED-P is a function that returns true
while the answer is still needed; any thread may call it."
  (let ((network (event-loop-network loop)))
    (flet ((answer (addresses failure)
             (post loop (lambda () (funcall function addresses failure)))))
      (if (simulated-p (event-loop-world loop))
          (multiple-value-call #'answer (funcall (network-resolve network) host port))
          (let ((address-query (add-asker host port (resolvers-of loop) #'answer wanted-p)))
            (when address-query
              (unless (run-on-resolver loop (lambda () (ask-address-query address-query network)))
                (end-address-query address-query '() "too many look-ups are waiting"))))))))

(defstruct (lookup (:include source) (:constructor %make-lookup) (:copier nil))
  "A look-up of the addresses of TARGET, with a time limit."
  (target nil :type target)             ; whose name is looked up
  (function nil :type function)         ; (addresses condition) gets the answer
  (limit nil :type (or null timer))     ; when the timer rings, the time of the look-up is over
  (done nil :type boolean))             ; FUNCTION has been called

(declaim (sb-ext:freeze-type lookup))

(defmethod print-object ((lookup lookup) stream)
  (print-unreadable-object (lookup stream :type t)
    (write-string (target-text (lookup-target lookup)) stream)))

(defun lookup (loop target timeout-ns function)
  "Find the addresses of TARGET within TIMEOUT-NS nanoseconds. FUNCTION is called on LOOP exactly
once: with the addresses and nil, or with nil and a CONNECT-ERROR. If LOOP runs this function, that
call comes after its return. Signal MISUSE if LOOP has stopped. From any thread."
  (let ((lookup (%make-lookup :loop loop :target target :function function
                              :on-release (lambda (lookup)
                                            (fail-lookup lookup 'connect-error
                                                         "the event loop has stopped")))))
    (setf (lookup-limit lookup)
          (make-timer (lambda (lookup)
                        (fail-lookup lookup 'connect-timeout
                                     "no answer to the look-up in time"))
                      lookup))
    (unless (post loop (lambda () (start-lookup lookup timeout-ns)))
      (misuse "~A has stopped; it cannot look up a name." loop))
    nil))

(defun start-lookup (lookup timeout-ns)
  (let ((loop (lookup-loop lookup))
        (target (lookup-target lookup)))
    (push lookup (event-loop-unconnected loop))
    (start-timer loop (lookup-limit lookup) (time-after timeout-ns (event-loop-now loop)))
    (trace-event :dns-resolver :look-up :name (target-host target))
    (if (target-addresses target)
        (end-lookup lookup (target-addresses target) nil)
        (lookup-host loop (target-host target) (target-port target)
                     (lambda (addresses failure)
                       (if failure
                           (fail-lookup lookup 'dns-error failure)
                           (end-lookup lookup addresses nil)))
                     (lambda () (not (lookup-done lookup)))))))

(defun fail-lookup (lookup class reason)
  (end-lookup lookup '() (make-condition class
                                         :operation "connect to" :reason reason
                                         :address (target-text (lookup-target lookup)))))

(defun end-lookup (lookup addresses condition)
  (unless (lookup-done lookup)
    (let ((loop (lookup-loop lookup)))
      (setf (lookup-done lookup) t
            (event-loop-unconnected loop) (delete lookup (event-loop-unconnected loop)))
      (stop-timer loop (lookup-limit lookup))
      (if condition
          (trace-event :dns-resolver :look-up-failed
                       :name (target-text (lookup-target lookup))
                       :reason (socket-error-reason condition))
          (trace-event :dns-resolver :resolved
                       :name (target-text (lookup-target lookup))
                       :addresses (mapcar #'os:address-text addresses)))
      (guarding (:connect-function-error :lookup lookup)
        (funcall (lookup-function lookup) addresses condition)))))
