;;;; Looking names up: a few threads ask the system's resolver (getaddrinfo), which may take long.
;;;; They start when there is something to look up and end when there is nothing. A loop with a
;;;; reserve asks on a thread of that.

(in-package #:clgrpc.loop)

(defconstant +resolver-threads+ 4
  "How many look-ups are under way at once; others wait.")
(defconstant +waiting-look-ups+ 10000
  "How many may wait.")

(sb-ext:define-load-time-global **resolvers**
  (make-reserve :threads +resolver-threads+ :queue +waiting-look-ups+ :idle-seconds 0))

(defun run-on-resolver (loop function)
  "Call FUNCTION, which may block, on a thread for look-ups of LOOP. Return false if too many wait."
  (let ((reserve (event-loop-reserve loop)) (world (event-loop-world loop)))
    (cond ((and reserve (run-on-reserve reserve function :if-busy :exceed)))
          ((simulated-p world) (start-thread world function) t)
          (t (run-on-reserve **resolvers** function)))))

(defun look-up-host (loop host port function)
  "Ask for the addresses of HOST, each with PORT. Then (FUNCTION addresses failure) is called on
LOOP; FAILURE is nil or why there are none, as text."
  (flet ((answer (addresses failure)
           (post loop (lambda () (funcall function addresses failure)))))
    (flet ((ask ()
             (multiple-value-bind (addresses failure)
                 (funcall (network-resolve (event-loop-network loop)) host port)
               (answer addresses failure))))
      (cond ((simulated-p (event-loop-world loop)) (ask))
            ((run-on-resolver loop #'ask))
            (t (answer '() "too many look-ups are waiting"))))))

(defstruct (look-up (:include source) (:constructor %make-look-up) (:copier nil))
  "A look-up of the addresses of TARGET, with a time limit."
  (target nil :type target)             ; whose name is looked up
  (function nil :type function)         ; (addresses condition) gets the answer
  (limit nil :type (or null timer))     ; when it rings, the time is up
  (done nil :type boolean))             ; FUNCTION has been called

(declaim (sb-ext:freeze-type look-up))

(defmethod print-object ((look-up look-up) stream)
  (print-unreadable-object (look-up stream :type t)
    (write-string (target-text (look-up-target look-up)) stream)))

(defun look-up (loop target timeout-ns function)
  "Find the addresses of TARGET within TIMEOUT-NS nanoseconds. Then (FUNCTION addresses nil) or
(FUNCTION nil condition), a CONNECT-ERROR, is called on LOOP, exactly once and never before this
returns. Signal MISUSE if LOOP has stopped. From any thread."
  (let ((look-up (%make-look-up :loop loop :target target :function function
                                :on-release (lambda (look-up)
                                              (fail-look-up look-up 'connect-error
                                                            "the event loop has stopped")))))
    (setf (look-up-limit look-up)
          (make-timer (lambda (look-up)
                        (fail-look-up look-up 'connect-timeout
                                      "no answer to the look-up in time"))
                      look-up))
    (unless (post loop (lambda () (start-look-up look-up timeout-ns)))
      (misuse "~A has stopped; it cannot look up a name." loop))
    nil))

(defun start-look-up (look-up timeout-ns)
  (let ((loop (look-up-loop look-up))
        (target (look-up-target look-up)))
    (push look-up (event-loop-unconnected loop))
    (schedule-timer (event-loop-wheel loop) (look-up-limit look-up)
                    (+ (event-loop-now loop) timeout-ns))
    (trace-event :dns-resolver :look-up :name (target-host target))
    (if (target-addresses target)
        (end-look-up look-up (target-addresses target) nil)
        (look-up-host loop (target-host target) (target-port target)
                      (lambda (addresses failure)
                        (if failure
                            (fail-look-up look-up 'dns-error failure)
                            (end-look-up look-up addresses nil)))))))

(defun fail-look-up (look-up class reason)
  (end-look-up look-up '() (make-condition class
                                           :operation "connect to" :reason reason
                                           :address (target-text (look-up-target look-up)))))

(defun end-look-up (look-up addresses condition)
  (unless (look-up-done look-up)
    (let ((loop (look-up-loop look-up)))
      (setf (look-up-done look-up) t
            (event-loop-unconnected loop) (delete look-up (event-loop-unconnected loop)))
      (cancel-timer (event-loop-wheel loop) (look-up-limit look-up))
      (if condition
          (trace-event :dns-resolver :look-up-failed
                       :name (target-text (look-up-target look-up))
                       :reason (socket-error-reason condition))
          (trace-event :dns-resolver :resolved
                       :name (target-text (look-up-target look-up))
                       :addresses (mapcar #'os:address-text addresses)))
      (guarding (:connect-function-error :look-up look-up)
        (funcall (look-up-function look-up) addresses condition)))))
