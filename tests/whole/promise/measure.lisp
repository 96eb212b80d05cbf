;;;; Figures: of threads from /proc, of calls that begin by the clock, and of several rounds, all of
;;;; which count.

(in-package #:clgrpc.tests.promise)

(defun report (control &rest arguments)
  "Print a figure."
  (format t "~&; ~?~%" control arguments)
  (finish-output))

(defun figures-of (rounds function)
  "The values of FUNCTION, called ROUNDS times, numbers, in ascending order."
  (sort (loop repeat rounds collect (funcall function)) #'<))

(defun pass-time (seconds)
  "Return after SECONDS: for measuring what happens when nothing does."
  (await-signal (make-signal) :seconds seconds))

;;; Threads of a process

(defun task-file (process task name)
  (ignore-errors                        ; it may just have ended
   (uiop:read-file-string (format nil "/proc/~A/task/~A/~A" process task name))))

(defun tasks (process)
  "The identifiers, strings, of the threads of PROCESS, \"self\" or a number."
  (mapcar (lambda (path) (car (last (pathname-directory path))))
          (directory (format nil "/proc/~A/task/*/" process) :resolve-symlinks nil)))

(defun voluntary-switches (process task)
  "How often TASK has slept."
  (let* ((status (or (task-file process task "status") ""))
         (name "voluntary_ctxt_switches:")
         (at (search name status)))
    (if at (parse-integer status :start (+ at (length name)) :junk-allowed t) 0)))

(defun run-time-ns (process task)
  "How long TASK has run; it makes no system call without running."
  (let ((line (task-file process task "schedstat")))
    (if line (parse-integer line :junk-allowed t) 0)))

(defun task-figures (process reader)
  "An alist from the threads of PROCESS to what READER says of each."
  (loop for task in (tasks process)
        collect (cons task (funcall reader process task))))

(defun growth (before after)
  "By how much the figures of AFTER are larger than those of BEFORE, in all."
  (loop for (task . figure) in after
        sum (- figure (or (cdr (assoc task before :test #'string=)) 0))))

;;; Open loops

(defun quantile (numbers share)
  (let ((sorted (sort (coerce numbers 'vector) #'<)))
    (if (zerop (length sorted))
        0
        (aref sorted (min (1- (length sorted)) (floor (* share (length sorted))))))))

(defun pace (per-second seconds function)
  "Call FUNCTION with 0, 1 and so on and the time it is due, PER-SECOND times a second for SECONDS,
whatever it takes."
  (let ((begin (monotonic-ns)))
    (dotimes (i (floor (* per-second seconds)))
      (let* ((due (+ begin (floor (* i 1000000000) per-second)))
             (early (- due (monotonic-ns))))
        (when (> early 200000) (sleep (ns-seconds early)))
        (funcall function i due)))))

;;; What the machine itself does to a thread

(defun call-with-lateness (function)
  "Call FUNCTION while a thread wakes once a millisecond. Return FUNCTION's value and by how many ms
the slowest hundredth of those wake-ups came late: what no program on this machine can help."
  (let* ((stop nil) (late '())
         (waker (in-thread (loop with due = (monotonic-ns)
                                 until stop
                                 do (setf due (max (+ due 1000000) (monotonic-ns)))
                                    (sleep (ns-seconds (max 0 (- due (monotonic-ns)))))
                                    (push (/ (- (monotonic-ns) due) 1d6) late)))))
    (let ((value (unwind-protect (funcall function)
                   (setf stop t)
                   (sb-thread:join-thread waker))))
      (values value (quantile late 0.99)))))
