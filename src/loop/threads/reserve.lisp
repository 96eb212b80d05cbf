;;;; Reserve threads, for code that may block. A thread starts when there is work that no idle
;;;; thread can take, up to a limit; beyond the limit work queues, up to another limit; an idle
;;;; thread ends after a while. The thread that became idle last gets the next work, so that a pool
;;;; that is larger than needed shrinks. Each user of the threads has a quota (thread-quota.lisp); a
;;;; sixteenth of the threads is for functions without a quota, which take over loops. A reserve of
;;;; fewer than 16 threads uses all of them for quotas, and a take-over may start one more thread.
;;;;
;;;; A loop that a reserve thread has taken over is not given back to its own thread. The loop's own
;;;; thread joins the reserve instead, and the reserve may have one thread more until the loop stops
;;;; (COUNT-RUNNER). So a take-over costs the other users a thread only while the user code that has
;;;; lost the loop runs. An example with a limit of 4: at first 4 handlers may run; 3 while a
;;;; handler that has lost the loop still runs; then 4 again, beside the thread that runs the loop.
;;;;
;;;; LOCK guards everything but the threads' work. Each thread waits on a queue of its own, so that
;;;; exactly one thread is woken. A function that may run does not wait: a thread whose function
;;;; ends looks for waiting functions that may run now, and starts threads for them.

(in-package #:clgrpc.loop)

(defstruct (worker (:copier nil))
  "A thread of a reserve."
  (function nil :type (or null function)) ; the function to call next
  (quota nil :type (or null quota))     ; the quota of FUNCTION, or of the worker's present work
  ;; notified when an idle worker has got FUNCTION
  (woken (sb-thread:make-waitqueue :name "clgrpc reserve woken") :read-only t))

(declaim (sb-ext:freeze-type worker))

(defstruct (reserve (:constructor %make-reserve
                        (limit max-queue idle-seconds
                         &aux (root (make-quota)) (lookups (make-quota :parent root))))
                    (:copier nil))
  "See MAKE-RESERVE."
  (world *world* :type world :read-only t) ; the world to which its threads belong
  ;; how many threads the reserve may have; more are started only with :EXCEED, and for RUNNERS
  (limit 0 :type index :read-only t)
  (max-queue 0 :type index :read-only t) ; how many functions may wait
  (idle-seconds 0 :type real :read-only t) ; the seconds after which an idle thread ends
  (lock (sb-thread:make-mutex :name "clgrpc reserve") :read-only t) ; guards all slots below
  ;; notified when a thread ends
  (ended (sb-thread:make-waitqueue :name "clgrpc reserve ended") :read-only t)
  (idle '() :type list)                 ; idle workers; the worker that became idle last is first
  (root nil :type quota :read-only t)   ; the quota of all threads of the reserve
  (lookups nil :type quota :read-only t) ; the quota for names that are looked up
  (runners 0 :type index)               ; threads beyond LIMIT, for the loops that some of them run
  (count 0 :type index)                 ; the number of threads, including those about to start
  (busy 0 :type index)                  ; how many threads are not IDLE
  (held 0 :type index)                  ; how many threads RUN-HOLDING holds
  ;; running threads or, once the reserve is closed, all that have run
  (threads '() :type list)
  (closed nil :type boolean))           ; the reserve takes no more functions

(declaim (sb-ext:freeze-type reserve))

(document-functions
  reserve-root "The root quota of RESERVE, from which all other quotas descend.")

(defun max-threads (reserve)
  (+ (reserve-limit reserve) (reserve-runners reserve)))

(define-printer (reserve reserve)
  "~D of ~D threads, ~D waiting~:[~; closed~]" (reserve-count reserve) (max-threads reserve)
  (quota-waiting (reserve-root reserve)) (reserve-closed reserve))

(defglobal **exiting** nil)

(defun note-exit ()
  "Stop starting threads, because the process is about to exit and SBCL is about to end all threads.
Otherwise the unwinding of a loop would start a new thread to run it, and the process would wait a
minute for that thread. The end of a reserve thread would also start another thread for a function
that waits."
  (setf **exiting** t))

(pushnew 'note-exit sb-ext:*exit-hooks*)

(defun make-reserve (&key (threads (option-default :reserve-threads))
                       (queue (option-default :reserve-queue))
                       (idle-seconds (option-default :reserve-idle-seconds)))
  "Return a reserve of up to THREADS threads, with room for QUEUE functions that wait for a thread.
A thread that has had nothing to do for IDLE-SECONDS ends; in a simulated world it ends at once."
  (%make-reserve threads queue (if (simulated-p) 0 idle-seconds)))

(defun reserve-thread-count (reserve)
  "The number of threads that RESERVE has now."
  (reserve-count reserve))

(defun reserve-thread-p (reserve)
  (sb-thread:with-mutex ((reserve-lock reserve))
    (and (member sb-thread:*current-thread* (reserve-threads reserve)) t)))

;;; Assigning work to threads; LOCK is held

(defun free-threads (reserve)
  "The number of threads that quotas may still get. Zero or less means that they get no thread."
  (- (max-threads reserve) (ash (reserve-limit reserve) -4) (reserve-busy reserve)
     (reserve-held reserve)))

(defun free-places (reserve)
  "The number of further functions that the queue can take."
  (- (reserve-max-queue reserve) (quota-waiting (reserve-root reserve))))

(defun assign (reserve function quota)
  "Assign FUNCTION of QUOTA to an idle thread and return true. If no thread is idle, count one more
thread and return :START; the caller must start this thread."
  (note-running quota 1)
  (incf (reserve-busy reserve))
  (let ((worker (pop (reserve-idle reserve))))
    (cond (worker
           (setf (worker-function worker) function
                 (worker-quota worker) quota)
           (sb-thread:condition-notify (worker-woken worker))
           t)
          (t (incf (reserve-count reserve))
             :start))))

(defun unassign (reserve quota)
  "Note that a thread has finished its work for QUOTA."
  (note-running quota -1)
  (decf (reserve-busy reserve)))

(defun thread-to-be-had-p (reserve &optional takeover)
  (or (reserve-idle reserve)
      (< (reserve-count reserve)
         (+ (max-threads reserve)
            (if (and takeover (< (reserve-limit reserve) 16)) 1 0)))))

(defun place-function (reserve function if-busy quota takeover)
  "Find a thread, or a place in the queue, for FUNCTION. Return true if a thread has FUNCTION,
:START if the caller must start a thread for it, :QUEUED if it is in the queue, or NIL if neither a
thread nor a place in the queue is free."
  (let ((root (reserve-root reserve)))
    (cond ((or (reserve-closed reserve) **exiting**) nil)
          ((and (quota-full-p quota) (not (eq if-busy :insist))) (values nil :quota))
          ((if (eq quota root)
               (or (thread-to-be-had-p reserve takeover) (eq if-busy :exceed))
               (and (may-have-p quota #'quota-running (free-threads reserve))
                    (thread-to-be-had-p reserve)))
           (assign reserve function quota))
          (t (ecase if-busy
               (:refuse nil)
               (:queue (when (may-have-p quota #'quota-waiting (free-places reserve))
                         (enqueue-function quota function)
                         :queued))
               (:insist (enqueue-function quota function) :queued)
               (:first (enqueue-before-all root function) :queued))))))

(defun run-on-reserve (reserve function &key (if-busy :queue) (quota (reserve-root reserve))
                                          takeover)
  "Call FUNCTION, without arguments, on a thread of RESERVE. An error in FUNCTION is logged. IF-BUSY
is the action to take if QUOTA may have no thread now: :QUEUE puts FUNCTION into the queue if it has
room. :INSIST queues it even without room, and even if QUOTA has its maximum number of functions.
:FIRST queues it before all others, even without room. :EXCEED starts a thread beyond the limit.
:REFUSE does nothing. Return :QUEUED if FUNCTION waits for a thread, and another true value if it
gets a thread. Return false as the first value if FUNCTION will not be called, for instance because
RESERVE is closed; the second value is :QUOTA if QUOTA has its maximum number of functions. TAKEOVER
is true if FUNCTION takes a loop over. From any thread."
  (declare (type function function))
  (sb-sys:without-interrupts            ; a thread that was counted must be started
    (multiple-value-bind (place reason)
        (sb-thread:with-mutex ((reserve-lock reserve))
          (place-function reserve function if-busy quota takeover))
      (if (eq place :start)
          (start-worker reserve function quota if-busy)
          (values place reason)))))

(defun run-holding (reserve quota function)
  "Call FUNCTION on a thread of RESERVE when QUOTA may have a thread, and hold the thread, so that
no waiting function gets it. The argument of FUNCTION is a function RELEASE of a function USE.
RELEASE gives the thread up and calls USE. Then, even if USE unwinds, it gives the thread to a
waiting function if the thread is still free. If FUNCTION unwinds, the thread is given up. Return
false if FUNCTION will not be called. From any thread."
  (let ((held nil))                     ; guarded by the lock
    (flet ((hold ()
             (sb-thread:with-mutex ((reserve-lock reserve))
               ;; one more than now, since FUNCTION will return soon
               (note-running quota 1)
               (incf (reserve-held reserve))
               (setf held t)))
           (end-holding ()
             (sb-thread:with-mutex ((reserve-lock reserve))
               (when (shiftf held nil)
                 (note-running quota -1)
                 (decf (reserve-held reserve))))))
      (flet ((use-thread (use)
               (end-holding)
               (unwind-protect (funcall (the function use))
                 (start-waiting reserve))))
        (run-on-reserve reserve
                        (lambda ()
                          (let ((done nil))
                            (unwind-protect (progn (hold)
                                                   (funcall (the function function) #'use-thread)
                                                   (setf done t))
                              (unless done (end-holding)))))
                        :if-busy :insist :quota quota)))))

(defun quota-open-p (reserve quota)
  "True if QUOTA, a descendant of RESERVE's root, may have one more thread now. From any thread."
  (sb-thread:with-mutex ((reserve-lock reserve))
    (may-have-p quota #'quota-running (free-threads reserve))))

(defun charge-thread (reserve change function)
  "Call FUNCTION with the lock held. If FUNCTION returns a quota, charge that quota with a thread,
for user code that began on a loop and has lost the loop. CHANGE is 1, or -1 to undo the charge when
that user code has returned. From any thread."
  (declare (type function function))
  (sb-thread:with-mutex ((reserve-lock reserve))
    (let ((quota (funcall function)))
      (when quota (note-late-running quota change)))))

(defun count-runner (reserve change function)
  "Call FUNCTION with the lock held. If it returns true, raise the number of threads that RESERVE
may have by CHANGE: 1 if a reserve thread runs a loop that the loop's own thread has left, -1 if
that loop has stopped. From any thread."
  (declare (type function function))
  (sb-sys:without-interrupts            ; the changes by FUNCTION and of the count are one step
    (when (sb-thread:with-mutex ((reserve-lock reserve))
            (when (funcall function)
              (incf (reserve-runners reserve) change)))
      (start-waiting reserve))))

(defun leave-reserve (reserve quota &key function)
  "Drop the functions that wait in QUOTA, which has no children. If FUNCTION is given, drop only
FUNCTION, if it still waits. The functions' places in the queue become free. From any thread."
  (sb-thread:with-mutex ((reserve-lock reserve))
    (if function
        (withdraw-function quota function)
        (clear-quota quota))))

;;; Threads

(defun start-thread (function &optional (name "clgrpc reserve") (world *world*))
  "Start a new thread of WORLD, called NAME, that calls FUNCTION."
  (let ((start (world-start-thread world)))
    (if start
        (funcall start function name)
        (sb-thread:make-thread function :name name))))

(defun start-worker (reserve function quota if-busy)
  (let ((worker (make-worker :function function :quota quota)))
    (handler-case (start-thread (lambda () (work reserve worker)) "clgrpc reserve"
                                (reserve-world reserve))
      (error (error)
        (log-event :error :no-reserve-thread :reserve reserve :condition error)
        (sb-thread:with-mutex ((reserve-lock reserve))
          (decf (reserve-count reserve))
          (unassign reserve quota)
          (sb-thread:condition-broadcast (reserve-ended reserve))
          ;; an existing thread may still run the function, or a new thread if the function has
          ;; already waited
          (and (or (eq :waits if-busy) (plusp (reserve-count reserve)))
               (not (member if-busy '(:exceed :refuse)))
               (progn (enqueue-function quota function) :queued))))
      (:no-error (thread) (declare (ignore thread)) t))))

(defun work (reserve worker)
  "Do the work of a thread of RESERVE, which is to call the functions of WORKER."
  (sb-thread:with-mutex ((reserve-lock reserve))
    (push sb-thread:*current-thread* (reserve-threads reserve)))
  (unwind-protect
       (loop for function = (shiftf (worker-function worker) nil)
             while function
             do (when (nth-value 1 (guarding (:reserve-function-error :reserve reserve)
                                      (funcall function)))
                  (os:protect-stack-end))
                (setf function nil)     ; nothing is kept alive while the thread is idle
                (when (next-function reserve worker) (start-waiting reserve))
                (unless (worker-function worker) (await-function reserve worker)))
    (sb-thread:with-mutex ((reserve-lock reserve))
      (when (worker-quota worker)       ; left by force
        (unassign reserve (worker-quota worker)))
      (decf (reserve-count reserve))
      (setf (reserve-idle reserve) (delete worker (reserve-idle reserve)))
      (unless (reserve-closed reserve)
        (setf (reserve-threads reserve)
              (delete sb-thread:*current-thread* (reserve-threads reserve))))
      (sb-thread:condition-broadcast (reserve-ended reserve)))
    (start-waiting reserve)
    (os:protect-stack-end)))            ; user code may have exhausted the stack

(defun next-function (reserve worker)
  "Assign a waiting function that may run to WORKER, which has returned from its function, or make
WORKER idle. Return true if functions still wait."
  (sb-thread:with-mutex ((reserve-lock reserve))
    (let ((root (reserve-root reserve)))
      (unassign reserve (shiftf (worker-quota worker) nil))
      (multiple-value-bind (function quota) (dequeue-function root (free-threads reserve))
        (cond (function
               (note-running quota 1)
               (incf (reserve-busy reserve))
               (setf (worker-function worker) function
                     (worker-quota worker) quota))
              (t (push worker (reserve-idle reserve)))))
      (plusp (quota-waiting root)))))

(defun start-waiting (reserve)
  "Start threads for waiting functions that may run now, after the end of another function."
  (flet ((start-next ()
           (multiple-value-bind (place function quota)
               (sb-thread:with-mutex ((reserve-lock reserve))
                 (and (not **exiting**)
                      (thread-to-be-had-p reserve)
                      (multiple-value-bind (function quota)
                          (dequeue-function (reserve-root reserve) (free-threads reserve))
                        (and function
                             (values (assign reserve function quota) function quota)))))
             (if (eq place :start)
                 (eq t (start-worker reserve function quota :waits))
                 place))))
    ;; a function that has left the queue gets its thread
    (loop while (sb-sys:without-interrupts (start-next)))))

(defun await-function (reserve worker)
  "Wait until WORKER, which is idle, gets a function; if no function arrives in time, remove WORKER
from the idle workers."
  (let ((end (notice-end (reserve-idle-seconds reserve))))
    (sb-thread:with-mutex ((reserve-lock reserve))
      (loop until (or (worker-function worker) (reserve-closed reserve))
            while (await-notice (worker-woken worker) (reserve-lock reserve) end
                                (lambda ()
                                  (or (worker-function worker) (reserve-closed reserve)))))
      (unless (worker-function worker)
        (setf (reserve-idle reserve) (delete worker (reserve-idle reserve)))))))

(defun enlist (reserve)
  "Make this thread a thread of RESERVE, even beyond its limit, until it has been idle for long
enough or RESERVE is closed."
  (let* ((root (reserve-root reserve))
         (worker (make-worker :function (constantly nil) :quota root)))
    (when (sb-thread:with-mutex ((reserve-lock reserve))
            (unless (reserve-closed reserve)
              (note-running root 1)
              (incf (reserve-busy reserve))
              (incf (reserve-count reserve))))
      (work reserve worker))))

(defun close-reserve (reserve timeout-seconds)
  "Accept no more functions. Wait, at most TIMEOUT-SECONDS, until the functions that were accepted
before, and all threads, have ended. Return true if all have ended. A thread whose function has not
returned by then remains until the function returns. Do not call this in a thread of RESERVE."
  (let* ((end (notice-end timeout-seconds))
         (ended (sb-thread:with-mutex ((reserve-lock reserve))
                  (setf (reserve-closed reserve) t)
                  (dolist (worker (reserve-idle reserve))
                    (sb-thread:condition-notify (worker-woken worker)))
                  (loop until (zerop (reserve-count reserve))
                        always (await-notice (reserve-ended reserve) (reserve-lock reserve) end
                                             (lambda () (zerop (reserve-count reserve))))))))
    (when ended
      (every #'end-thread (shiftf (reserve-threads reserve) '())))))
