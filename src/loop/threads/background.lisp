;;;; The background: work that is repeated in parallel with all other work, such as keeping leases
;;;; alive. A BACKGROUND has any number of JOBS, and one thread that waits until a job is due. A
;;;; job's function runs on a thread of a reserve, so it may wait without delaying other jobs; it
;;;; never runs twice at the same time. So a thousand jobs that are not due need only one thread.
;;;;
;;;; 1. A job is idle, running or ended. WAKE-JOB runs an idle job at once, and a running one once
;;;;    more when it returns.
;;;; 2. A job's function returns the seconds until its next run, or nil: then only WAKE-JOB runs it.
;;;; 3. END-JOB waits until the function has returned, unless that function calls it.
;;;;
;;;; LOCK guards all data that change; no function runs while it is held. The thread starts when the
;;;; first job must run later. All jobs end before an image is saved.

(in-package #:clgrpc.loop)

(defconstant +background-ending-seconds+ 60
  "The maximum time in seconds that END-BACKGROUND waits until threads whose jobs have all returned
have ended.")

(defstruct (background (:constructor %make-background (name reserve)) (:copier nil))
  "A set of jobs with the threads that run them; see MAKE-BACKGROUND."
  (name "" :type string :read-only t)   ; the name of its thread
  (world *world* :type world :read-only t) ; the world to which its threads belong
  (reserve nil :type reserve :read-only t) ; the reserve whose threads run its jobs
  (lock (sb-thread:make-mutex :name "clgrpc background") :read-only t) ; guards all slots below
  ;; notified when TIMED or ENDED has changed
  (waitqueue (sb-thread:make-waitqueue :name "clgrpc background") :read-only t)
  ;; notified when a job has returned
  (quiet (sb-thread:make-waitqueue :name "clgrpc background") :read-only t)
  (jobs '() :type list)                 ; the jobs that have not ended
  (timed '() :type list)                ; the jobs that are due at some time, in no order
  (thread nil)                          ; the thread that waits for the jobs
  (started nil :type boolean)           ; the thread exists
  (ended nil :type boolean))            ; the background takes no more jobs

(defstruct (job (:constructor %make-job (background function)) (:copier nil))
  "Work that is done in the background; see ADD-JOB."
  (background nil :type background :read-only t) ; the job's background
  (function nil :type function :read-only t) ; a function without arguments
  (due-ns 0 :type nanoseconds)          ; the time of its next run, while it is timed
  (woken nil :type boolean)             ; the job must run once more
  (running nil :type boolean)           ; a thread runs the job, or is about to
  (thread nil)                          ; the thread that runs the job
  (failure nil :type (or null condition)) ; the failure that was logged and has not ended
  (ended nil :type boolean))            ; the job must not run again

(declaim (sb-ext:freeze-type background job))

(document-functions
  job-ended "True once END-JOB was called for JOB.")

(define-printer (background background)
  "~A, ~D jobs~:[~;, ended~]" (background-name background) (length (background-jobs background))
  (background-ended background))

(define-printer (job job)
  "of ~A, ~:[idle~;running~]~:[~;, ended~]" (background-name (job-background job))
  (job-running job) (job-ended job))

(defun make-background (name &key (threads (option-default :reserve-threads)))
  "Return a BACKGROUND without jobs. At most THREADS of its jobs run at once; NAME, a string, is the
name of its thread. END-BACKGROUND and saving the image end the background."
  (let ((background (%make-background name (make-reserve :threads threads))))
    (end-before-save background #'end-background)
    background))

(defun add-job (background function)
  "Return a new job of BACKGROUND, which runs FUNCTION, without arguments, whenever the job is woken
or due. WAKE-JOB starts the first run. FUNCTION may wait; it returns the number of seconds until its
next run, or nil if the job has no next run until it is woken. An error in FUNCTION is logged; then
the job is idle. A job of a background that has ended never runs. From any thread."
  (let ((job (%make-job background function)))
    (sb-thread:with-mutex ((background-lock background))
      (if (background-ended background)
          (setf (job-ended job) t)
          (push job (background-jobs background))))
    job))

;;; Running jobs. Functions whose names begin with % are called with the lock held

(defun %take-job (job)
  "Mark JOB to run once more. Return true if JOB was idle, so that the caller must start it."
  (let ((background (job-background job)))
    (cond ((job-ended job) nil)
          ((job-running job) (setf (job-woken job) t) nil)
          (t (setf (background-timed background) (delete job (background-timed background))
                   (job-running job) t)))))

(defun %put-down (job seconds)
  "Note that the function of JOB has returned. JOB runs again in SECONDS, or when it is woken.
Return true if it runs again at once."
  (let ((background (job-background job)))
    (setf (job-thread job) nil)
    (cond ((and (shiftf (job-woken job) nil) (not (job-ended job))))
          (t (setf (job-running job) nil)
             (when (and seconds (not (job-ended job)))
               (setf (job-due-ns job) (notice-end seconds))
               (push job (background-timed background))
               (sb-thread:condition-broadcast (background-waitqueue background)))
             (sb-thread:condition-broadcast (background-quiet background))
             nil))))

(defun run-job (job)
  (let ((background (job-background job)) (seconds nil) (again t) (left t))
    (loop while again
          do (setf seconds nil left t)
             (unwind-protect
                  (progn
                    (when (sb-thread:with-mutex ((background-lock background))
                            (setf (job-thread job) sb-thread:*current-thread*)
                            (not (job-ended job)))
                      (guarding (:background-job-error :job job)
                        (setf seconds (funcall (job-function job)))))
                    (setf left nil))
               (setf again (sb-thread:with-mutex ((background-lock background))
                             (%put-down job seconds)))
               (when (and left again) (dispatch-job job)))) ; the job's thread is being terminated
    (when seconds (ensure-waiting background))))

(defun dispatch-job (job)
  "Make a thread of the reserve run JOB, which %TAKE-JOB has marked."
  (unless (run-on-reserve (background-reserve (job-background job)) (lambda () (run-job job))
                          :if-busy :insist)
    (sb-thread:with-mutex ((background-lock (job-background job)))
      (%put-down job nil))))

(defun wake-job (job)
  "Run JOB now, or once more if it runs. From any thread."
  ;; if this thread were unwound between the two steps, JOB would stay taken for ever
  (sb-sys:without-interrupts
    (when (sb-thread:with-mutex ((background-lock (job-background job)))
            (%take-job job))
      (dispatch-job job)))
  nil)

(defun run-in-background (background function)
  "Call FUNCTION, which may wait, once on a thread of BACKGROUND, unless BACKGROUND has ended. Do
not wait for FUNCTION. From any thread."
  (run-on-reserve (background-reserve background) function :if-busy :insist)
  nil)

(defun end-job (job &key (seconds 3600))
  "End JOB: its function is not called again. Wait until JOB's function has returned, at most
SECONDS, unless that function calls END-JOB. Return true if JOB's function has returned. From any
thread."
  (let ((background (job-background job)) (end (notice-end seconds)))
    ;; a job that has ended and is still timed would be due for ever
    (sb-sys:without-interrupts
      (sb-thread:with-mutex ((background-lock background))
        (setf (job-ended job) t
              (background-jobs background) (delete job (background-jobs background))
              (background-timed background) (delete job (background-timed background)))))
    (sb-thread:with-mutex ((background-lock background))
      (loop while (and (job-running job)
                       (not (eq (job-thread job) sb-thread:*current-thread*)))
            always (await-notice (background-quiet background) (background-lock background) end
                                 (lambda () (not (job-running job))))))))

;;; The thread that waits for due jobs

(defun take-due (background)
  "Wait until some jobs of BACKGROUND are due, and return them; return nil if BACKGROUND has ended."
  (sb-thread:with-mutex ((background-lock background))
    (loop until (background-ended background)
          do (let* ((now (world-now))
                    (timed (background-timed background))
                    (due (remove-if (lambda (job) (< now (job-due-ns job))) timed)))
               (when due (return (remove-if-not #'%take-job due)))
               (await-notice (background-waitqueue background) (background-lock background)
                             (reduce #'min timed
                                     :key #'job-due-ns :initial-value (notice-end 3600))
                             (lambda () (or (background-ended background)
                                            ;; a job may become the first that is due
                                            (not (eq timed (background-timed background))))))))))

(defun run-background (background)
  (loop for jobs = (take-due background)
        until (background-ended background)
        do (mapc #'dispatch-job jobs)))

(defconstant +no-thread-seconds+ 1
  "After this time a thread that the system could not make is requested again.")

(defun ensure-waiting (background)
  "Start the thread of BACKGROUND that waits until jobs are due, unless it runs. If the system has
no further thread, try again after a second. From a thread of the reserve."
  (let ((failure (sb-thread:with-mutex ((background-lock background))
                   (unless (or (background-ended background) (background-started background))
                     (handler-case (start-thread (lambda () (run-background background))
                                                 (background-name background)
                                                 (background-world background))
                       (error (error) error)
                       (:no-error (thread)
                         (setf (background-thread background) thread
                               (background-started background) t)
                         nil))))))
    (when failure
      (log-event :error :no-reserve-thread :reserve (background-reserve background)
                                           :condition failure)
      (world-sleep +no-thread-seconds+)
      (run-in-background background (lambda () (ensure-waiting background))))))

(defun end-background (background &key (seconds +background-ending-seconds+))
  "End all jobs of BACKGROUND and its threads, and wait for them, at most SECONDS: if a function has
not returned by then, its thread ends when the function returns. From any thread; within a function
of one of these jobs END-BACKGROUND does not wait."
  (forget-ending background)
  (let ((jobs (sb-thread:with-mutex ((background-lock background))
                (setf (background-ended background) t)
                (sb-thread:condition-broadcast (background-waitqueue background))
                (copy-list (background-jobs background))))
        (end (notice-end (if (reserve-thread-p (background-reserve background)) 0 seconds))))
    (flet ((seconds-left () (seconds-until end 0)))
      (dolist (job jobs) (end-job job :seconds (seconds-left)))
      (end-thread (background-thread background))
      (close-reserve (background-reserve background) (seconds-left))))
  nil)

;;; Failures

(defun tell-failure (job event condition &rest plist)
  "Log EVENT with PLIST and CONDITION, because JOB fails with CONDITION, unless a continuing failure
of JOB was logged before. From the function of JOB."
  (unless (shiftf (job-failure job) condition)
    (apply #'log-event :warning event :condition (bounded-text condition) plist))
  nil)

(defun tell-recovery (job event &rest plist)
  "If a failure of JOB was logged before, log EVENT with PLIST, because JOB works again. From the
function of JOB."
  (when (shiftf (job-failure job) nil)
    (apply #'log-event :info event plist))
  nil)
