;;;; The scheduler. At any time one thread runs. The running thread is that of the body of
;;;; WITH-SIMULATION, which is the scheduler while it waits, or the thread of a task. The scheduler
;;;; gives the turn to a task, and gets it back when the task waits or ends. A step is a turn of a
;;;; loop that has something to do, or of a task that can continue; chance picks among them. Each
;;;; step takes some virtual time. When no loop and no task has anything to do, time advances to the
;;;; next due event: a plan, a timer, the end of a wait.
;;;;
;;;; A task waits for a predicate, which the scheduler calls, so a thread is woken only if it can
;;;; continue. A task that waits for a notice of another thread has no predicate: it checks again
;;;; after each change.

(in-package #:clgrpc.sim)

(defconstant +most-step-ns+ 20000
  "The maximum virtual time, in nanoseconds, that a step takes.")

(defun now ()
  "Return the virtual time, in seconds since the simulation of this thread began."
  (elapsed-seconds *simulation*))

(defun seconds-from-now (simulation seconds)
  (+ (simulation-now simulation) (seconds-ns seconds)))

;;; The turn of a task

(defun pass-turn (turn)
  "Give TURN to the thread that waits, or will wait, for it. This uses a futex, which takes half as
long as a semaphore, because few operations of a simulation are as frequent."
  (declare (type os:futex turn))
  (sb-ext:atomic-incf (aref turn 0))
  (os:wake-futex turn))

(defun await-turn (turn)
  "Wait for TURN, and take it. Only one thread may wait for a turn."
  (declare (type os:futex turn))
  (loop until (plusp (aref turn 0)) do (os:wait-for-futex turn 0))
  (sb-ext:atomic-decf (aref turn 0)))

(defun run-worker (worker)
  "Run the thread of WORKER: task after task. If a task ends the thread, as by ABORT-THREAD, mark
the task as ended, because otherwise the scheduler would wait for the turn for ever."
  (loop
    (await-turn (worker-turn worker))
    (let ((task (worker-task worker)) (left t))
      (unless task (return))
      (unwind-protect (progn (run-task-body task)
                             (setf left nil))
        (let ((simulation (host-simulation (task-host task))))
          (when left (record-at (task-host task) :task-error (task-name task) "its thread ended"))
          (setf (task-state task) :done
                (task-worker task) nil
                (worker-task worker) nil)
          (unless left (push worker (simulation-idle-threads simulation)))
          (pass-turn (simulation-turn simulation)))))))

(defun run-task-body (task)
  "Call the function of TASK, which now begins, in the world of the task's host."
  (let* ((host (task-host task))
         (*simulation* (host-simulation host))
         (loop:*world* (host-world host)))
    (catch 'end-task
      (unless (task-killed task)
        (handler-bind ((serious-condition
                         (lambda (condition)
                           (record-at host :task-error (task-name task) condition)
                           (throw 'end-task nil))))
          (funcall (task-function task)))))))

(defun start-worker ()
  "Return a new worker, whose thread waits for its turn."
  (let ((worker (make-worker))
        (log *log-function*))
    (setf (worker-thread worker)
          (sb-thread:make-thread (lambda ()
                                   (let ((*log-function* log)) (run-worker worker)))
                                 :name "clgrpc simulated"))
    worker))

(defun give-turn (task)
  "Let TASK run until it waits or ends."
  (let ((simulation (host-simulation (task-host task))))
    (unless (task-worker task)
      (let ((worker (or (pop (simulation-idle-threads simulation))
                        (start-worker))))
        (setf (task-worker task) worker
              (worker-task worker) task)))
    (setf (task-state task) :running
          (simulation-task simulation) task)
    (pass-turn (worker-turn (task-worker task)))
    (await-turn (simulation-turn simulation))
    (setf (simulation-task simulation) nil)
    (when (eq :done (task-state task))
      (setf (simulation-tasks simulation) (delete task (simulation-tasks simulation))))))

(defun wait-in-task (simulation task predicate end-ns)
  "Give the turn back until TASK, which this thread runs, can continue. Return false if it cannot
before END-NS."
  (when (task-killed task) (throw 'end-task nil))
  (setf (task-predicate task) predicate
        (task-end-ns task) end-ns
        (task-seen task) (simulation-changes simulation)
        (task-state task) :waiting)
  (let ((worker (task-worker task)))
    (pass-turn (simulation-turn simulation))
    (await-turn (worker-turn worker)))
  (when (task-killed task) (throw 'end-task nil))
  (or (not (past-p simulation end-ns))
      (and predicate (funcall predicate))))

(defun past-p (simulation end-ns)
  (and end-ns (<= end-ns (simulation-now simulation))))

(defun task-ready-p (simulation task)
  (or (eq :new (task-state task))
      (task-killed task)
      (past-p simulation (task-end-ns task))
      (if (task-predicate task)
          (funcall (task-predicate task))
          (/= (task-seen task) (simulation-changes simulation)))))

;;; Steps

(defun run-plans (simulation)
  "Run the due plans. Return true if any were due."
  (loop with event-queue = (simulation-event-queue simulation)
        with before = (simulation-changes simulation)
        for due = (next-plan-ns event-queue)
        while (and due (<= due (simulation-now simulation)))
        do (let ((plan (take-plan event-queue)))
             (incf (simulation-changes simulation))
             (funcall (plan-function plan) (plan-argument plan)))
        finally (return (/= before (simulation-changes simulation)))))

(defun loop-ready-p (simulation running)
  (or (pending-sockets (running-loop-pending running))
      (let ((due (loop:next-turn-ns (running-loop-loop running))))
        (and due (<= due (simulation-now simulation))))))

(defun stopped-p (running)
  (eq :stopped (loop:event-loop-state (running-loop-loop running))))

(defun find-candidates (simulation)
  "The loops and tasks that can continue."
  (let ((candidates (simulation-candidates simulation)))
    (setf (fill-pointer candidates) 0)
    (when (some #'stopped-p (simulation-loops simulation))
      (setf (simulation-loops simulation)
            (remove-if #'stopped-p (simulation-loops simulation))))
    (dolist (running (simulation-loops simulation))
      (when (loop-ready-p simulation running) (vector-push-extend running candidates)))
    (dolist (task (simulation-tasks simulation))
      (when (task-ready-p simulation task) (vector-push-extend task candidates)))
    candidates))

(defun next-event-ns (simulation)
  "The time at which the next plan or timer is due or the wait of a task ends, or nil if nothing is
due."
  (let ((next (next-plan-ns (simulation-event-queue simulation))))
    (flet ((consider (ns)
             (when (and ns (or (null next) (< ns next))) (setf next ns))))
      (dolist (running (simulation-loops simulation))
        (consider (loop:next-turn-ns (running-loop-loop running))))
      (dolist (task (simulation-tasks simulation))
        (consider (task-end-ns task))))
    next))

(defun run-loop (running)
  "Let the loop of RUNNING make a turn."
  (let ((loop:*world* (host-world (running-loop-host running))))
    (loop:make-turn (running-loop-loop running))))

(defun polls-p (task)
  "True if TASK only checks whether it can continue."
  (and (eq :waiting (task-state task)) (null (task-predicate task))))

(defun give-step (simulation chosen)
  "Let CHOSEN, a loop or a task, make a step."
  (etypecase chosen
    (running-loop
     (incf (simulation-changes simulation))
     (run-loop chosen))
    (task
     (let ((polled (polls-p chosen)))
       (give-turn chosen)
       (unless (and polled (polls-p chosen)) (incf (simulation-changes simulation)))))))

(defun make-step (simulation)
  "Run the due plans or, if none is due, make one step. Return false if neither a plan nor a step is
possible now."
  (or (run-plans simulation)
      (let ((candidates (find-candidates simulation))
            (chance (simulation-chance simulation)))
        (when (plusp (length candidates))
          (incf (simulation-steps simulation))
          (incf (simulation-now simulation) (1+ (below chance +most-step-ns+)))
          (give-step simulation (pick chance candidates))
          t))))

(defun step-or-pass-time (simulation end-ns)
  "Make a step, or let time pass until something is due, but not past END-NS unless that is nil.
Return false if nothing will ever happen."
  (or (make-step simulation)
      (let ((next (next-event-ns simulation)))
        (cond ((and end-ns (or (null next) (<= end-ns next)))
               (setf (simulation-now simulation) (max end-ns (simulation-now simulation)))
               t)
              (next
               (setf (simulation-now simulation) (max next (simulation-now simulation)))
               t)))))

(defun check-progress (simulation end-ns)
  "Signal SIMULATION-HANG if the simulation has taken too long."
  (cond ((<= (simulation-most-steps simulation) (simulation-steps simulation))
         (incf (simulation-most-steps simulation) 100000) ; for the clean-up
         (hang simulation "it made ~D steps" (simulation-steps simulation)))
        ((and (null end-ns) (<= (simulation-end-ns simulation) (simulation-now simulation)))
         (incf (simulation-end-ns simulation) (seconds-ns 60))
         (hang simulation "nothing happened until ~,3F s" (elapsed-seconds simulation)))))

(defun hang (simulation control &rest arguments)
  (let ((text (format nil "The awaited event does not happen: ~?." control arguments)))
    (record (simulation-history simulation) (simulation-now simulation) nil :hang text)
    (error 'simulation-hang :text text)))

(defun wait-in-body (simulation predicate end-ns)
  "Let the loops and tasks run until PREDICATE is true or, if PREDICATE is nil, until something has
changed. Return false if this does not happen before END-NS."
  (loop
    (cond ((and predicate (funcall predicate)) (return t))
          ((past-p simulation end-ns) (return nil)))
    (check-progress simulation end-ns)
    (let ((changes (simulation-changes simulation)))
      (unless (step-or-pass-time simulation end-ns)
        (hang simulation "nothing more can happen after ~,6F s" (elapsed-seconds simulation)))
      (when (and (null predicate) (/= changes (simulation-changes simulation)))
        (return t)))))

(defun wait-in-simulation (simulation predicate end-ns)
  "Wait as the slot WAIT of a simulated world requires."
  (when (and loop:*event-loop* (loop:in-event-loop-p loop:*event-loop*))
    (error 'simulation-error
           :text "Code on a loop of a simulation, such as a callback or a handler of :execution ~
                  :inline, must not wait."))
  (let ((task (simulation-task simulation)))
    (if task
        (wait-in-task simulation task predicate end-ns)
        (wait-in-body simulation predicate end-ns))))

;;; Interface

(defun wait-until (predicate &key (timeout nil))
  "Let the simulation of this thread run until PREDICATE, a function without arguments, returns
true, and return that value; return NIL after TIMEOUT virtual seconds, or never if TIMEOUT is NIL.
Signal SIMULATION-HANG if neither happens within the time limit of the simulation. Code that a loop
runs must not call this."
  (wait-in-simulation *simulation* predicate
                      (and timeout (seconds-from-now *simulation* timeout))))

(defun wait-for (seconds)
  "Let SECONDS of virtual time pass. Code that a loop runs must not call this."
  (wait-in-simulation *simulation* (constantly nil) (seconds-from-now *simulation* seconds))
  nil)

(defun at (seconds function)
  "Call FUNCTION, without arguments, after SECONDS of virtual time. FUNCTION must not wait. In a
simulation, on any of its threads."
  (add-plan (simulation-event-queue *simulation*) (seconds-from-now *simulation* seconds)
            (lambda (function) (funcall (the function function))) function))

(defun start-task (name function &key (host (current-host)))
  "Run FUNCTION, without arguments, as a thread of HOST's process. FUNCTION may wait. Return the
task. An error in FUNCTION ends the task and is recorded in the trace. See TASK-DONE-P."
  (let ((task (make-task name host function))
        (simulation (host-simulation host)))
    (setf (simulation-tasks simulation) (append (simulation-tasks simulation) (list task)))
    (incf (simulation-changes simulation))
    task))

(defun task-done-p (task)
  "True once TASK has ended. In a simulation, on any of its threads."
  (eq :done (task-state task)))
