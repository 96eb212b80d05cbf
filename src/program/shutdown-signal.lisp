;;;; The end of a process: SIGTERM, SIGINT or the process's own code requests it.
;;;;
;;;;   first signal    AWAIT-END returns, and the caller ends what it does
;;;;   second signal   the process ends at once, with the code of one that the signal has killed
;;;;   late            the process ends at once, with 1, if its end takes too long
;;;;
;;;; Signals arrive on a separate loop, so an idle process makes no system calls.

(in-package #:clgrpc.program)

(defconstant +ending-seconds+ 10
  "How long the end of a program may take in addition to the draining of its server.")

(defstruct (ending (:copier nil))
  "The state of a process that may have been asked to end."
  (loop nil :type loop:event-loop)      ; the loop on which signals come
  ;; a semaphore that is signalled when the end is requested
  (told (sb-thread:make-semaphore :name "clgrpc ending") :type sb-thread:semaphore)
  (seconds +ending-seconds+ :type (real 0)) ; the time that the end may take
  (begun nil :type boolean)             ; true once the end was requested; only the loop changes it
  (signals '() :type list))             ; the signals that do not end the process

(declaim (sb-ext:freeze-type ending))

(defconstant +signal-code+ 128 "The exit code of a process that a signal has ended is this number
plus the signal's number.")
(defconstant +last-words-seconds+ 1 "The time that the log may take when the process ends at once.")

(defun end-at-once (code reason)
  "End the process with CODE, and wait only for the log. On the loop of an ENDING."
  (sb-thread:make-thread (lambda ()
                           (log-event :warning :ended-at-once :reason reason)
                           (flush-log :timeout +last-words-seconds+)
                           (sb-ext:exit :code code :abort t))
                         :name "clgrpc ending at once"))

(defun begin-end (ending)
  "Make AWAIT-END of ENDING return. On its loop."
  (unless (shiftf (ending-begun ending) t)
    (let ((loop (ending-loop ending)))
      (loop:start-timer loop
                        (make-timer (lambda (ending)
                                      (declare (ignore ending))
                                      (end-at-once 1 "the end took too long"))
                                    ending)
                        (+ (loop:event-loop-now loop) (seconds-ns (ending-seconds ending)))))
    (sb-thread:signal-semaphore (ending-told ending))))

(defun take-signal (ending number)
  "Handle the signal NUMBER, which the process has got. On the loop of ENDING."
  (if (ending-begun ending)
      (end-at-once (+ +signal-code+ number) "a second signal")
      (begin-end ending)))

(defun end (ending)
  "Make AWAIT-END of ENDING return. From any thread."
  (loop:post (ending-loop ending) (lambda () (begin-end ending)))
  nil)

(defun await-end (ending)
  "Wait until the process is asked to end. Then the function that was given to CALL-WITH-ENDING must
return within ENDING-SECONDS."
  (sb-thread:wait-on-semaphore (ending-told ending))
  nil)

(defun call-at-signal (ending signal function)
  "Call FUNCTION, on the loop of ENDING, whenever the process gets SIGNAL. Before AWAIT-END."
  (push signal (ending-signals ending))
  (loop:on-signal (ending-loop ending) signal function))

(defun call-at-report (ending function)
  "Call FUNCTION, on the loop of ENDING, whenever the process gets SIGUSR1."
  (call-at-signal ending os:+sigusr1+ function))

(defun call-at-hang-up (ending function)
  "Call FUNCTION, on the loop of ENDING, whenever the process gets SIGHUP."
  (call-at-signal ending os:+sighup+ function))

(defun call-at-map (ending function)
  "Call FUNCTION, on the loop of ENDING, whenever the process gets SIGIO."
  (call-at-signal ending os:+sigio+ function))

(defun call-with-ending (function)
  "Call FUNCTION with an ENDING, for AWAIT-END and similar functions; while FUNCTION runs, SIGTERM
and SIGINT request the end of this process."
  (let* ((loop (loop:make-event-loop :name "clgrpc signals"))
         (ending (make-ending :loop loop))
         (signals (list os:+sigterm+ os:+sigint+)))
    (unwind-protect
         (progn
           (loop:launch-event-loop loop)
           (dolist (signal signals)
             (let ((signal signal))
               (loop:on-signal loop signal (lambda () (take-signal ending signal)))))
           (funcall function ending))
      (dolist (signal (append (ending-signals ending) signals))
        (loop:on-signal loop signal nil))
      (loop:stop-event-loop loop)
      (loop:join-event-loop loop))))
