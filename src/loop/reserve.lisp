;;;; Reserve threads, for code that may block. They start when there is work that no idle one can
;;;; take, up to a limit; beyond it work queues up to another; an idle thread ends after a while.
;;;; The one that went idle last works first, so that a pool larger than needed shrinks.
;;;;
;;;; LOCK guards everything but the threads' work. A thread waits on its own queue, so that exactly
;;;; one is woken. COUNT includes threads that are about to start; THREADS those that run, and after
;;;; closing those that have run.

(in-package #:clgrpc.loop)

(defstruct (worker (:copier nil))
  (function nil :type (or null function))
  (woken (sb-thread:make-waitqueue) :read-only t))

(declaim (sb-ext:freeze-type worker))

(defstruct (reserve (:constructor %make-reserve (max-threads max-queue idle-seconds)) (:copier nil))
  "See MAKE-RESERVE."
  (max-threads 0 :type index :read-only t)
  (max-queue 0 :type index :read-only t)
  (idle-seconds 0 :type real :read-only t)
  (lock (sb-thread:make-mutex :name "clgrpc reserve") :read-only t)
  (ended (sb-thread:make-waitqueue) :read-only t)
  (idle '() :type list)                 ; workers, the one that went idle last first
  (head '() :type list)                 ; functions that wait, the oldest first
  (tail '() :type list)
  (queued 0 :type index)
  (count 0 :type index)
  (threads '() :type list)
  (closed nil :type boolean))

(declaim (sb-ext:freeze-type reserve))

(defmethod print-object ((reserve reserve) stream)
  (print-unreadable-object (reserve stream :type t)
    (format stream "~D of ~D threads, ~D waiting~:[~; closed~]" (reserve-count reserve)
            (reserve-max-threads reserve) (reserve-queued reserve) (reserve-closed reserve))))

(defglobal **exiting** nil)

(defun note-exit ()
  "The process is about to end. SBCL ends all threads then, and who starts one meanwhile, because an
unwinding loop looks for somebody to run it, keeps the process waiting for a minute."
  (setf **exiting** t))

(pushnew 'note-exit sb-ext:*exit-hooks*)

(defun make-reserve (&key (threads (options-reserve-threads **default-options**))
                       (queue (options-reserve-queue **default-options**))
                       (idle-seconds (options-reserve-idle-seconds **default-options**)))
  "Return a reserve of up to THREADS threads, with room for QUEUE functions that wait for one. A
thread that had nothing to do for IDLE-SECONDS ends."
  (%make-reserve threads queue idle-seconds))

(defun reserve-thread-count (reserve)
  "How many threads RESERVE has now."
  (reserve-count reserve))

;;; The queue; LOCK is held

(defun enqueue-function (reserve function)
  (let ((cell (list function)))
    (if (reserve-head reserve)
        (setf (cdr (reserve-tail reserve)) cell)
        (setf (reserve-head reserve) cell))
    (setf (reserve-tail reserve) cell)
    (incf (reserve-queued reserve))))

(defun enqueue-first (reserve function)
  (push function (reserve-head reserve))
  (unless (rest (reserve-head reserve))
    (setf (reserve-tail reserve) (reserve-head reserve)))
  (incf (reserve-queued reserve)))

(defun dequeue-function (reserve)
  (when (reserve-head reserve)
    (decf (reserve-queued reserve))
    (pop (reserve-head reserve))))

(defun place-function (reserve function if-busy)
  "Find somebody or some place for FUNCTION. Return NIL if there is none, :START if the caller is to
start a thread for it, :QUEUED, or true."
  (cond ((or (reserve-closed reserve) **exiting**) nil)
        ((reserve-idle reserve)
         (let ((worker (pop (reserve-idle reserve))))
           (setf (worker-function worker) function)
           (sb-thread:condition-notify (worker-woken worker))
           t))
        ((or (< (reserve-count reserve) (reserve-max-threads reserve))
             (eq if-busy :exceed))
         (incf (reserve-count reserve))
         :start)
        (t (ecase if-busy
             (:refuse nil)
             (:queue (when (< (reserve-queued reserve) (reserve-max-queue reserve))
                       (enqueue-function reserve function)
                       :queued))
             (:insist (enqueue-function reserve function) :queued)
             (:first (enqueue-first reserve function) :queued)))))

(defun run-on-reserve (reserve function &key (if-busy :queue))
  "Have FUNCTION called, without arguments, on a thread of RESERVE. An error in it is logged. When
all threads are busy IF-BUSY says what to do: :QUEUE, if there is room; :INSIST, queue even if there
is none; :FIRST, queue before all others, room or not; :EXCEED, start a thread beyond the limit;
:REFUSE. Return false if FUNCTION will not be called, or RESERVE is closed; :QUEUED if it has to
wait for a thread; else true. From any thread."
  (declare (type function function))
  (let ((place (sb-thread:with-mutex ((reserve-lock reserve))
                 (place-function reserve function if-busy))))
    (if (eq place :start)
        (start-worker reserve function if-busy)
        place)))

;;; Threads

(defun start-worker (reserve function if-busy)
  (let ((worker (make-worker :function function)))
    (handler-case (sb-thread:make-thread #'work :name "clgrpc reserve"
                                                :arguments (list reserve worker))
      (error (error)
        (log-event :error :no-reserve-thread :reserve reserve :condition error)
        (sb-thread:with-mutex ((reserve-lock reserve))
          (decf (reserve-count reserve))
          (sb-thread:condition-broadcast (reserve-ended reserve))
          ;; those that there are may get to it
          (and (plusp (reserve-count reserve))
               (not (member if-busy '(:exceed :refuse)))
               (progn (enqueue-function reserve function) :queued))))
      (:no-error (thread) (declare (ignore thread)) t))))

(defun work (reserve worker)
  "What a thread of RESERVE does."
  (sb-thread:with-mutex ((reserve-lock reserve))
    (push sb-thread:*current-thread* (reserve-threads reserve)))
  (unwind-protect
       (loop for function = (shiftf (worker-function worker) nil)
             while function
             do (guarding (:reserve-function-error :reserve reserve)
                  (funcall function))
                (setf function nil)     ; nothing is kept alive while the thread is idle
                (await-function reserve worker))
    (sb-thread:with-mutex ((reserve-lock reserve))
      (decf (reserve-count reserve))
      (setf (reserve-idle reserve) (delete worker (reserve-idle reserve)))
      (unless (reserve-closed reserve)
        (setf (reserve-threads reserve)
              (delete sb-thread:*current-thread* (reserve-threads reserve))))
      (sb-thread:condition-broadcast (reserve-ended reserve)))))

(defun await-function (reserve worker)
  "Give WORKER something to do, unless nothing comes up in time."
  (let ((end (+ (monotonic-ns) (seconds-ns (reserve-idle-seconds reserve)))))
    (sb-thread:with-mutex ((reserve-lock reserve))
      (setf (worker-function worker) (dequeue-function reserve))
      (unless (worker-function worker)
        (push worker (reserve-idle reserve))
        (loop until (or (worker-function worker) (reserve-closed reserve))
              while (await-notice (worker-woken worker) (reserve-lock reserve) end))
        (unless (worker-function worker)
          (setf (reserve-idle reserve) (delete worker (reserve-idle reserve))))))))

(defun enlist (reserve)
  "Make this thread one of RESERVE, beyond its limit if need be, until it has had nothing to do for
long enough or RESERVE is closed."
  (let ((worker (make-worker :function (constantly nil))))
    (when (sb-thread:with-mutex ((reserve-lock reserve))
            (unless (reserve-closed reserve) (incf (reserve-count reserve))))
      (work reserve worker))))

(defun close-reserve (reserve timeout-seconds)
  "Take no more functions, and wait, TIMEOUT-SECONDS at most, until those taken before have ended
and with them all threads. Return true if they have. Threads whose function does not return are
left; they end when it does. Not from a thread of RESERVE."
  (let* ((end (+ (monotonic-ns) (seconds-ns timeout-seconds)))
         (ended (sb-thread:with-mutex ((reserve-lock reserve))
                  (setf (reserve-closed reserve) t)
                  (dolist (worker (reserve-idle reserve))
                    (sb-thread:condition-notify (worker-woken worker)))
                  (loop until (zerop (reserve-count reserve))
                        always (await-notice (reserve-ended reserve) (reserve-lock reserve) end)))))
    (when ended
      (every #'end-thread (shiftf (reserve-threads reserve) '())))))
