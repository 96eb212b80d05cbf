;;;; Tasks: work that a loop does later. There are several kinds of "later":
;;;;
;;;;   asked for by         from         done
;;;;   POST                 any thread   in the next inbox phase; the loop is woken for it
;;;;   DEFER                the loop     after the reading of this turn, or in the next turn; only
;;;;                                     such functions run user code
;;;;   CALL-BEFORE-FLUSH    the loop     before output is sent next, or at the end of this turn
;;;;   CALL-LAST            the loop     at the end of this turn, after the output has been sent
;;;;   CALL-AFTER-CLOSING   the loop     at the end of a turn, for each connection that has gone
;;;;   START-TIMER          the loop     when the timer is due
;;;;   MARK-READY, -DIRTY   the loop     at the next read, or flush, of connections

(in-package #:clgrpc.loop)

(define-hot (defer :inline t) ((loop event-loop) (function function) (argument t)) null
  "Call FUNCTION with ARGUMENT after the reading phase of this turn or, if that phase is over, in
the next turn. Deferred functions are called in order, with one exception: functions deferred for
newcomers, the connections that are read in the middle of a long turn, run before older functions.
On the loop."
  (let ((ring (event-loop-ring loop))
        (count (event-loop-ring-count loop)))
    (declare (type simple-vector ring))
    (when (= (* 2 count) (length ring))
      (setf ring (grow-ring loop)))
    (let ((at (logand (+ (event-loop-ring-start loop) (* 2 count)) (1- (length ring)))))
      (setf (svref ring at) function
            (svref ring (1+ at)) argument
            (event-loop-ring-count loop) (1+ count))
      nil)))

(define-hot read-clock ((loop event-loop)) nanoseconds
  "The present time by LOOP's clock, in nanoseconds. In the middle of a turn this time is later than
EVENT-LOOP-NOW. From any thread."
  (funcall (event-loop-clock loop)))

(defconstant +reading-ns+ 2000000
  "The age of the turn in nanoseconds up to which a connection's input is processed. A read may
return 7,000 requests, and the peers of other connections should not wait for all of them.")

(define-hot turn-long-p ((loop event-loop)) boolean
  "Return true if the turn of LOOP has taken so long that the rest of a connection's input is left
for the next turn. This reads the clock."
  (< +reading-ns+ (- (read-clock loop) (event-loop-now loop))))

(define-hot queue-function ((function-queue function-queue) (function function) (argument t)) null
  (let ((count (function-queue-count function-queue)))
    (when (= count (length (function-queue-places function-queue)))
      (setf (function-queue-places function-queue)
            (grow-vector (function-queue-places function-queue) (* 2 count))))
    (setf (svref (function-queue-places function-queue) count) function
          (svref (function-queue-places function-queue) (1+ count)) argument
          (function-queue-count function-queue) (+ 2 count))
    nil))

(define-hot run-queued-functions ((loop event-loop) (function-queue function-queue)) boolean
  "Call the functions of FUNCTION-QUEUE of LOOP, including those that are added meanwhile. Return
true if there were any."
  (let ((i 0))
    (declare (type index i))
    (loop while (< i (function-queue-count function-queue))
          do (let* ((places (function-queue-places function-queue))
                    (function (shiftf (svref places i) 0))
                    (argument (shiftf (svref places (1+ i)) 0)))
               (incf i 2)
               (guarding (:last-function-error :loop loop)
                 (funcall (the function function) argument))))
    (setf (function-queue-count function-queue) 0)
    (plusp i)))

(define-hot (run-early-functions :inline t) ((loop event-loop)) null
  "Run the functions of CALL-BEFORE-FLUSH, because output of LOOP is about to be sent, or its turn
ends."
  (let ((function-queue (event-loop-early loop)))
    (when (plusp (function-queue-count function-queue)) (run-queued-functions loop function-queue)))
  nil)

(define-hot call-last ((loop event-loop) (function function) (argument t)) null
  "Call FUNCTION with ARGUMENT at the end of the turn, after the flush. FUNCTION must not be user
code, and must not call functions of the loop. Only the thread that holds the baton may call this."
  (queue-function (event-loop-last loop) function argument))

(define-hot call-before-flush ((loop event-loop) (function function) (argument t)) null
  "Call FUNCTION with ARGUMENT before output of any connection is sent next, or at the end of the
turn if no output is sent. The restrictions on FUNCTION and on the thread are those of CALL-LAST."
  (queue-function (event-loop-early loop) function argument))

(defconstant +again-ns+ +ns-per-second+
  "The time in nanoseconds after which a lasting timer rings again if its function has failed. The
time doubles with each failure in a row.")
(defconstant +longest-again-ns+ (* 64 +ns-per-second+))

(defstruct (lasting-function (:copier nil) (:predicate nil))
  "The function of a timer that runs again if it fails."
  (loop nil :type event-loop :read-only t) ; the loop whose wheel has the timer
  (function nil :type function :read-only t) ; the function
  (argument nil :read-only t)           ; its argument
  (timer nil :type (or null timer))     ; the timer
  (again-ns +again-ns+ :type nanoseconds)) ; the wait after the next failure

(declaim (sb-ext:freeze-type lasting-function))

(define-printer (function lasting-function)
  "~A" (lasting-function-function function))

(defun call-lasting-function (function)
  "Call FUNCTION, a lasting function, whose timer is due."
  (let ((loop (lasting-function-loop function)) (timer (lasting-function-timer function)))
    (cond ((null (nth-value 1 (guarding (:timer-function-error :loop loop)
                                (funcall (lasting-function-function function)
                                         (lasting-function-argument function)))))
           (setf (lasting-function-again-ns function) +again-ns+))
          ((timer-pending-p timer))
          (t (let ((again-ns (lasting-function-again-ns function)))
               (start-timer loop timer (+ (event-loop-now loop) again-ns))
               (setf (lasting-function-again-ns function)
                     (min +longest-again-ns+ (* 2 again-ns))))))))

(defun make-lasting-timer (loop function argument)
  "Return a timer like MAKE-TIMER, for the wheel of LOOP, for a FUNCTION that starts the timer
again. If FUNCTION signals an error and leaves the timer idle, the timer rings again after a while."
  (declare (type function function))
  (let ((lasting (make-lasting-function :loop loop :function function :argument argument)))
    (setf (lasting-function-timer lasting) (make-timer #'call-lasting-function lasting))))

(defun call-after-closing (loop function)
  "Register FUNCTION. For each connection of LOOP that has been closed it is called with LOOP at the
end of a turn, as by CALL-LAST; it is called once, even if it is registered twice. On the loop, or
before it is started."
  (pushnew function (event-loop-after-closing loop))
  nil)

(define-hot grow-ring ((loop event-loop)) simple-vector
  (let* ((old (event-loop-ring loop))
         (start (event-loop-ring-start loop))
         (new (make-array (* 2 (length old)) :initial-element 0)))
    (replace new old :start2 start)
    (replace new old :start1 (- (length old) start) :end2 start)
    (setf (event-loop-ring-start loop) 0
          (event-loop-ring loop) new)))

(define-hot post ((loop event-loop) item) boolean
  "Call ITEM on LOOP: a function without arguments, or an object with a method for RUN-POSTED. Items
that one thread posts are called in order. Return false if LOOP has stopped and ITEM will not be
called. From any thread."
  (sb-sys:without-interrupts            ; see inbox.lisp
    (let* ((inbox (event-loop-inbox loop))
           (answer (push-inbox inbox item)))
      (when (eq t answer)
        (wake-loop loop)
        (confirm-wake inbox))
      (not (eq :closed answer)))))

(define-hot wake-loop ((loop event-loop)) null
  "Wake the thread that runs LOOP, to which an item was posted while it slept. If no thread runs
LOOP, make a reserve thread run it."
  (unless (and (= +free+ (baton-state (event-loop-baton loop)))
               (request-runner loop))
    (let ((poller (event-loop-poller loop)))
      (funcall (poller-wake poller) poller))
    (when **watchdog-asleep** (wake-watchdog))) ; the watchdog checks that the wake-up is answered
  nil)

(defgeneric run-posted (item)
  (:documentation "Do the work of ITEM, which was given to POST. On the loop."))

(define-hot call-posted (item) null
  (if (functionp item)
      (funcall item)
      (run-posted item))
  nil)
