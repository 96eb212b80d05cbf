;;;; The object with which a program lets its calls be traced: a sampler, propagators, limits, and a
;;;; queue of finished spans for each loop. As :observer of servers and channels it traces their
;;;; calls (observe.lisp); an exporter takes the spans with DRAIN.

(in-package #:clgrpc.trace)

(defstruct (tracing (:constructor %make-tracing) (:copier nil) (:predicate nil))
  "See MAKE-TRACING."
  (limits nil :type tracing-options :read-only t) ; the limits of spans and queues
  (sampler nil :type sampler :read-only t) ; decides which traces are recorded
  ;; the bound of sampling without a parent: see ROOT-BOUND
  (bound +no-bound+ :type sb-ext:word :read-only t)
  (propagators '() :type list :read-only t) ; a list of :tracecontext, :grpc-trace-bin and :baggage
  (semantic nil :type boolean :read-only t) ; true if spans also have OpenTelemetry's attributes
  ;; the number to add to the loops' clock to get the time since 1970
  (offset-ns 0 :type (signed-byte 64))
  (shared nil :type (or null queue))    ; the queue of the threads that run no loop
  (queues '() :type list)               ; queues of loops; atomic
  (gone 0 :type sb-ext:word)            ; spans that queues of stopped loops had dropped; atomic
  (on-batch nil :type (or null function))) ; an exporter's, called when many spans wait

(declaim (sb-ext:freeze-type tracing))

(define-printer (tracing tracing)
  "~(~{~A~^ ~}~), ~D spans wait, ~D dropped" (tracing-propagators tracing)
  (loop for queue in (all-queues tracing) sum (queue-length queue)) (spans-dropped tracing))

(declaim (type (or null tracing) **tracing**))
(defglobal **tracing** nil
  "The tracing that MAKE-TRACING has made last. It gets the spans that have no parent and begin
outside of calls.")

(defun clock-offset ()
  "The difference between the time since 1970 and the loops' clock; 0 in a simulated world."
  (if (loop:simulated-p)
      0
      (- (real-time-ns) (monotonic-ns))))

(defun renew-offset (&optional (tracing **tracing**))
  "Let the spans of TRACING, or nil, use the machine's present date. A saved image starts in another
process, perhaps on another machine, where the clock of loops began at another time."
  (when (and tracing (not (loop:simulated-p)))
    (setf (tracing-offset-ns tracing) (clock-offset))))

(pushnew 'renew-offset sb-ext:*init-hooks*)

(defun new-queue (tracing loop)
  "A queue of TRACING for LOOP or, if LOOP is nil, for the threads that run no loop."
  (flet ((date (ns world)
           (declare (type nanoseconds ns))
           (if (loop:simulated-p world) ns (max 0 (+ ns (tracing-offset-ns tracing))))))
    (make-queue :loop loop :ids (make-ids (if loop 0 (chance-seed (make-random-state t))))
                :clock (if loop
                           (lambda () (date (loop:read-clock loop) (loop:event-loop-world loop)))
                           ;; TRACING may be older than the world of the thread that asks
                           (lambda () (date (loop:world-now) loop:*world*))))))

(defun check-on-batch (function)
  (unless (typep function '(or null function))
    (misuse "ON-BATCH is a function, not ~S." function))
  function)

(defun on-batch (tracing)
  "The function that TRACING calls, on a loop, when many spans wait; nil if it calls none.
SETF changes it."
  (tracing-on-batch tracing))

(defun (setf on-batch) (function tracing)
  (setf (tracing-on-batch tracing) (check-on-batch function)))

(defun queue-for (tracing loop)
  "The queue of TRACING for LOOP or, if LOOP is nil, for the threads that run no loop."
  (if (null loop)
      (tracing-shared tracing)
      (flet ((find-queue ()
               (find loop (tracing-queues tracing) :key #'queue-loop)))
        (or (find-queue)
            (let ((new (new-queue tracing loop)))
              (sb-ext:atomic-update (tracing-queues tracing)
                                    (lambda (queues)
                                      (if (find loop queues :key #'queue-loop)
                                          queues
                                          (cons new queues))))
              (find-queue))))))

(defun all-queues (tracing)
  (cons (tracing-shared tracing) (tracing-queues tracing)))

(defun forget-stopped-loops (tracing)
  "Drop the queues of loops that have stopped and whose spans were taken."
  (dolist (queue (tracing-queues tracing))
    (when (and (eq :stopped (loop:event-loop-state (queue-loop queue)))
               (null (queue-newest queue)))
      (let ((there nil))
        (sb-ext:atomic-update (tracing-queues tracing)
                              (lambda (queues)
                                (setf there (member queue queues))
                                (remove queue queues)))
        (when there
          (sb-ext:atomic-incf (tracing-gone tracing) (queue-dropped queue)))))))

(defun drain (tracing)
  "Return the SPANs of TRACING that have ended since this was called last, a list, the oldest of
each loop first. The queues do not keep the spans. From any thread."
  (renew-offset tracing)
  (prog1 (loop for queue in (all-queues tracing) nconc (take-spans queue))
    (forget-stopped-loops tracing)))

(defun spans-dropped (tracing)
  "How many spans of TRACING were dropped because max-queued-spans of their loop already waited for
an exporter. From any thread."
  (+ (tracing-gone tracing)
     (loop for queue in (all-queues tracing) sum (queue-dropped queue))))

(defun spans-waiting (tracing)
  "How many spans of TRACING wait for an exporter. From any thread."
  (loop for queue in (all-queues tracing) sum (queue-length queue)))

;;; The beginning and the end of spans

(defun begin-span (tracing queue name kind context parent)
  "A span of TRACING that begins now on QUEUE's loop. PARENT is the parent's context, or nil."
  (make-span :name (short-text name (tracing-limits tracing)) :kind kind :context context
             :parent parent :limits (tracing-limits tracing) :clock (queue-clock queue)
             :start-ns (funcall (queue-clock queue))))

(defun finish-span (tracing queue span)
  "End SPAN of TRACING, unless it has ended, and put it into QUEUE for an exporter."
  (unless (span-over-p span)
    (setf (span-end-ns span) (max 1 (span-start-ns span) (span-now span)))
    (let ((depth (push-span queue span (options-max-queued-spans (tracing-limits tracing))))
          (on-batch (tracing-on-batch tracing)))
      (when (and depth on-batch
                 (zerop (mod depth (options-batch-spans (tracing-limits tracing)))))
        (loop:guarding (:exporter-error) (funcall on-batch)))))
  nil)
