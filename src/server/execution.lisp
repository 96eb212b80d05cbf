;;;; Where and when a call's handler runs. Handlers run on the loop after all connections of the
;;;; turn were read. Handlers of methods that block (server-route.lisp) run on a reserve thread. A
;;;; handler on the loop that waits runs the loop meanwhile, until user code of another call is due.
;;;; A handler that loses the loop to another thread continues as if it had begun on a reserve
;;;; thread: its thread encodes the answer and posts it. A handler that returns its call answers
;;;; later, with REPLY or FINISH (the reactive style).

(in-package #:clgrpc.server)

;;; Starting the handler

(define-hot start-call ((call server-call)) null
  "Start CALL's handler, unless it was started before."
  (unless (due-p call)
    (wire:mark-call call :due)
    (run-call call))
  nil)

(define-hot run-call ((call server-call)) null
  "Run CALL's handler on the thread that is right for its method: the loop's or a reserve thread."
  (cond ((and (runs-inline-p (the server-route (server-call-route call))
                             (= 1 (server-loop-open (the server-loop (server-call-endpoint call)))))
              ;; decoding a hundred such requests would delay the loop for a second
              (not (long-request-p call)))
         (loop:defer (wire-call-loop call) #'run-inline call))
        ((output-waits-p (the server-link (server-call-link call)))
         (hold-up call))
        (t (start-on-reserve call)))
  nil)

(defun start-on-reserve (call)
  "Run CALL's handler on a reserve thread. If all threads are busy, CALL waits until a thread is
free. It waits no longer than the option reserve-wait-seconds allows, because the handlers on all
threads might wait for this call. Three events race for the ticket: a thread is free, that time
ends, or CALL ends. The first event takes the call out of the ticket, and later events find the
ticket empty. So a call that has ended is not kept, and has no place in the queue."
  (let* ((ticket (list call nil))
         (link (server-call-link call))
         (loop (wire-call-loop call))
         (reserve (server-reserve (server-loop-server (server-link-owner link)))))
    (setf (second ticket) (lambda ()
                            (let ((call (use-ticket ticket)))
                              (when call (run-on-reserve-thread call))))
          (deferred-start-ticket (ensure-deferred-start call)) ticket)
    (multiple-value-bind (place reason)
        (loop:run-on-reserve reserve (second ticket) :quota (ensure-quota link))
      (case place
        ((nil)
         (complain (server-link-owner link)
                   (if (eq reason :quota) :max-running-handlers :reserve-queue)
                   (link-peer-name link))
         (rpc:abort-as call (if (eq reason :quota) :too-many-handlers :queue-full)))
        (:queued
         (let ((timer (make-timer #'refuse-waiting ticket)))
           (stop-wait-timer call)
           (setf (deferred-start-timer (server-call-deferred-start call)) timer)
           (loop:start-timer loop timer
                             (+ (loop:event-loop-now loop)
                                (seconds-ns (options-reserve-wait-seconds
                                             (wire:wire-call-options call)))))))))))

(defun stop-wait-timer (call)
  "Cancel the timer of CALL's wait for a reserve thread, if there is one. On the loop."
  (let ((deferred-start (server-call-deferred-start call)))
    (when deferred-start
      (loop:stop-timer (wire-call-loop call)
                       (shiftf (deferred-start-timer deferred-start) nil)))))

(defun use-ticket (ticket)
  "Take the call out of TICKET and return it; nil if the ticket is empty. From any thread."
  (let ((call (car ticket)))
    (and call
         (eq call (sb-ext:compare-and-swap (car ticket) call nil))
         call)))

(defun leave-queue (call ticket)
  "Give up the place of CALL, which was taken out of TICKET, in the queue for threads."
  (let ((link (server-call-link call)))
    (loop:leave-reserve (server-reserve (server-loop-server (server-link-owner link)))
                        (ensure-quota link)
                        :function (second ticket))))

(defun refuse-waiting (ticket)
  "End the call of TICKET, which has waited too long for a reserve thread."
  (let ((call (use-ticket ticket)))
    (when call
      (let ((link (server-call-link call)))
        (complain (server-link-owner link) :reserve-wait-seconds (link-peer-name link)))
      (leave-queue call ticket)
      (rpc:abort-as call :no-thread-in-time))))

(defun forget-unstarted (call)
  "If CALL, which has ended, still waits in a queue for the start of its handler, remove it, so that
its request can be collected. On the loop."
  (when (server-call-deferred-start call) (stop-wait-timer call))
  (when (and (due-p call) (zerop (server-call-began-ns call)))
    (let ((deferred-start (server-call-deferred-start call)))
      (cond ((and deferred-start (deferred-start-ticket deferred-start))
             (when (use-ticket (deferred-start-ticket deferred-start))
               (leave-queue call (deferred-start-ticket deferred-start))
               (setf (server-call-request call) nil
                     (deferred-start-undecoded deferred-start) nil)))
            ((and deferred-start (deferred-start-place deferred-start))
             (quit-ring (deferred-start-place deferred-start)))
            (t (leave-held-up (server-call-link call) call))))))

;;; Calls that wait until their link's peer has received more of the answers before them

(defun earlier-p (call other)
  "True if CALL came before OTHER, a call of the same link."
  (flet ((id (call) (http2:stream-id (the http2:stream (server-call-stream call)))))
    (< (id call) (id other))))

(defun ensure-held-up (link)
  "The queue of LINK's calls that wait, made now if LINK has no queue yet. On the loop."
  (or (server-link-held-up link) (setf (server-link-held-up link) (make-fifo))))

(defun hold-up (call)
  "Make CALL wait until its link's peer has received enough of the answers before it. Calls wait in
the order of their arrival, also if they have waited before. On the loop."
  (let ((link (server-call-link call)))
    (unless (call-status call)
      (enqueue-in-order call (ensure-held-up link) #'earlier-p)
      ;; the peer may have received enough meanwhile
      (output-left link))))

(defun leave-held-up (link call)
  "Remove CALL, of LINK, from the delayed calls, if it is one of them."
  (let ((queue (server-link-held-up link)))
    (when queue (remove-from-fifo call queue))))

(defun output-left (link)
  "If LINK has delayed calls, let these check whether the link's output was sent."
  ;; not now: output that is unsent now may be sent in this turn
  (loop:defer (server-link-loop link) #'start-held-up link))

(defun start-held-up (link)
  "Start the first of LINK's calls that are held up, unless too much of LINK's output still waits.
The next call follows after the functions that are due on the loop now."
  (let ((queue (server-link-held-up link)))
    (when (and (fifo-items queue) (not (answers-wait-p link)) (not (output-waits-p link)))
      (let ((call (dequeue queue)))
        (unless (call-status call) (run-call call))
        (loop:defer (server-link-loop link) #'start-held-up link)))))

;;; Running it

(define-hot handler-request ((call server-call)) t
  "The REQUEST argument of the handler. Signal an RPC-ERROR, which ends CALL as well, if the request
cannot be decoded. In user code."
  (case (rpc-method-kind (the rpc-method (call-rpc-method call)))
    ((:unary :server-streaming)
     (let ((undecoded (server-call-undecoded call)))
       (if undecoded
           (operate decode call
                    (shiftf (deferred-start-undecoded (server-call-deferred-start call)) nil) 0 0)
           (shiftf (server-call-request call) nil))))
    (t call)))

(defun tell-handler (call event &rest plist)
  "Trace EVENT, of the handler of CALL on this thread; PLIST has further data."
  (apply #'log-event :trace event :tracer :server
         :method (rpc:call-path call) :peer (rpc:call-peer call)
         :thread (sb-thread:thread-name sb-thread:*current-thread*) plist))

(define-hot run-handler ((call server-call)) t
  "Run CALL's handler. Return the handler's value, or the RPC-ERROR that ended the handler."
  (when (tracing-p :server) (tell-handler call :handler-begun))
  (let* ((route (server-call-route call))
         (request nil)
         (value nil)
         (condition
           (with-user-code (call)
             (loop:with-user-interrupts ()
               ;; decoded only once, though a restart may run the handler again
               (setf request (or request (handler-request call))
                     value (answer-of route request call))))))
    (when (tracing-p :server)
      (tell-handler call :handler-ended :outcome (cond (condition (rpc-error-status condition))
                                                       ((eq value call) :later)
                                                       (t :returned))))
    (or condition value)))

(define-hot run-promised ((call server-call) (promised index)) t
  "Do what RUN-HANDLER does. Until the end of this function PROMISED octets of the heap are promised
for CALL's answer."
  (if (zerop promised)
      (run-handler call)
      (rpc:call-with-room call promised (wire:wire-call-options call)
                          (lambda () (run-handler call))
                          :answer t :promised t :long nil)))

(define-hot (promise-for :inline t) ((call server-call)) (or null index)
  "Promise room in the heap for CALL's answer if its method gives long answers. Return the number of
octets promised; nil if the heap has no room."
  (let ((route (the server-route (server-call-route call))))
    (if (or (zerop (route-long-octets route))
            (eq call (server-loop-probe (the server-loop (server-call-endpoint call)))))
        0
        (promise-answer route))))

(define-hot (run-at-once :inline t) ((call server-call) (promised index)) null
  "Run CALL's handler on the loop. PROMISED octets of the heap are promised for CALL's answer."
  (update-time-if-observed call)
  (setf (server-call-began-ns call) (loop:event-loop-now (wire-call-loop call)))
  (let ((abandoned t))
    (unwind-protect
         (multiple-value-bind (value baton)
             (flet ((run (call) (run-promised call promised)))
               (declare (dynamic-extent #'run))
               (loop:call-user (wire-call-loop call) #'run call))
           (setf abandoned nil)
           (when (eq baton :lost) (late-handler-ended (server-call-route call)))
           (if (eq baton :kept)
               (conclude call value)
               (conclude-elsewhere call value)))
      (when abandoned
        (conclude-elsewhere call (abandoned-condition call)))
      (unless (loop:in-event-loop-p (wire-call-loop call))
        (when abandoned (late-handler-ended (server-call-route call)))
        (uncharge-handler call))))
  nil)

(define-hot run-inline ((call server-call)) null
  "Run CALL's handler on the loop."
  (let ((promised 0))
    (cond ((call-status call))          ; the call was cancelled before it began
          ((rpc:overdue-p call) (rpc:abort-as call :deadline-passed))
          ((or (output-waits-p (the server-link (server-call-link call)))
               (answers-wait-p (the server-link (server-call-link call))))
           (hold-up call))
          ((and (plusp (route-late (the server-route (server-call-route call))))
                (leaves-loop-p call))
           (start-on-reserve call))
          ((null (setf promised (promise-for call)))
           (await-room call #'run-call))
          (t (run-at-once call promised))))
  nil)

;;; Handlers and callbacks that began on the loop and have lost it. Each handler that waits holds a
;;; thread, which is charged to its connection. The thread that takes the loop over adds the charge;
;;; the thread that returns from user code removes it. The two events happen in either order, so
;;; both threads do this under the lock of the reserve, and note it in the call.

(defun leaves-loop-p (call)
  "True if the handler of CALL, which was to begin on the loop, must begin on a reserve thread
instead. The caller knows that handlers of its method that have lost the loop still run."
  (let ((route (server-call-route call)) (link (server-call-link call)))
    (if (eq :inline (route-execution route))
        (and (plusp (server-link-late link))
             (not (loop:quota-open-p (server-reserve (server-loop-server (server-link-owner link)))
                                     (ensure-quota link))))
        (not (runs-inline-p route (= 1 (server-loop-open (server-link-owner link))))))))

(defun charge (call change function)
  "If FUNCTION returns true, change the number of threads charged to the link of CALL by CHANGE, 1
or -1. FUNCTION is called under the lock of the reserve."
  (let ((link (server-call-link call)))
    (loop:charge-thread (server-reserve (server-loop-server (server-link-owner link))) change
                        (lambda ()
                          (when (funcall function)
                            (incf (server-link-late link) change)
                            (server-link-quota link))))))

(defmethod loop:note-late ((call server-call))
  (ensure-quota (server-call-link call))
  (cond ((wire:late-callback-p call)    ; the callback says nothing about the method
         (charge call 1 (lambda () (wire:note-callback-charge call t))))
        (t (note-overstay (server-call-route call))
           (charge call 1 (lambda ()
                            (let ((deferred-start (ensure-deferred-start call)))
                              (unless (deferred-start-late deferred-start)
                                (setf (deferred-start-late deferred-start) :charged))))))))

(defun uncharge-handler (call)
  "Undo the charge for the handler of CALL: the handler had lost the loop, and has returned."
  (charge call -1 (lambda ()
                    (eq :charged (shiftf (deferred-start-late (ensure-deferred-start call))
                                         :returned))))
  (wire:wake-callbacks (server-call-link call)))

(defun server-callback-returned (call)
  "The operation CALLBACK-RETURNED."
  (charge call -1 (lambda () (wire:note-callback-charge call nil)))
  (wire:wake-callbacks (server-call-link call)))

;;; Handlers on a reserve thread

(defun run-on-reserve-thread (call)
  "Run the handler of CALL on this reserve thread, and answer; or end CALL, or let it wait on its
loop."
  (let ((promised 0))
    (cond ((call-status call))          ; cancelled before it began
          ((rpc:overdue-p call)
           (loop:post (wire-call-loop call) (lambda () (rpc:abort-as call :deadline-passed))))
          ((answers-wait-p (server-call-link call))
           (put-off call #'hold-up))
          ((null (setf promised (promise-for call)))
           (put-off call (lambda (call) (await-room call #'run-call))))
          (t (run-and-conclude call promised)))))

(defun put-off (call function)
  "Call FUNCTION with CALL, whose ticket is used, on the loop. FUNCTION makes CALL wait there, on
the loop."
  (loop:post (wire-call-loop call) (lambda ()
                                     (setf (deferred-start-ticket (ensure-deferred-start call)) '())
                                     (funcall function call))))

(defun run-and-conclude (call promised)
  "Run CALL's handler on this thread, which does not run the loop. PROMISED octets of the heap are
promised for its answer."
  (let ((value '+abandoned+)
        (start (setf (server-call-began-ns call) (operate now call))))
    (unwind-protect (setf value (run-promised call promised))
      (conclude-elsewhere call (if (eq value '+abandoned+) (abandoned-condition call) value))
      (note-duration (server-call-route call) (- (operate now call) start)))))

;;; Its value

(defun abandoned-condition (call)
  "Log that CALL's handler was left by a non-local exit, for example because its thread was ended in
the debugger. Return the RPC-ERROR that ends CALL."
  (rpc:log-call-event call :error :handler-error
                      :method (rpc:call-path call)
                      :condition "The handler was left by a non-local exit.")
  (rpc:verdict-error :handler-error '()))

(define-hot conclude ((call server-call) value) null
  "Send the answer or end of CALL. VALUE is the value of CALL's handler, or the RPC-ERROR that ended
the handler. On the loop."
  (cond ((eq value call) (when (answers-once-p call) (note-later call)))
        ((or (status:failure-p value) (not (answers-once-p call)))
         (if (zerop (wire:posted-octets call))
             (end-with call value)
             (post-end call value)))
        ((and (zerop (wire:posted-octets call)) (reply-now call value)))
        (t (loop:call-user (wire-call-loop call)
                           (lambda (argument)
                             (declare (ignore argument))
                             (post-reply call value))
                           nil)))
  nil)

(defglobal **methods-not-sent** (make-hash-table :test 'eq :weakness :key :synchronized t)
  "A set of the methods that NOTE-NOT-SENT has logged.")

(defun note-not-sent (call value)
  "If VALUE, the value of CALL's handler, is a message or a list of messages, log, once for the
method, that such values are not sent. The handler has sent nothing else."
  (let ((message (if (consp value) (first value) value))
        (method (call-rpc-method call)))
    (when (and (protobuf:message-p message)
               (eq (protobuf:message-type-of message) (rpc:outgoing-type call))
               (not (gethash method **methods-not-sent**)))
      (setf (gethash method **methods-not-sent**) t)
      (rpc:log-call-event
       call :error :messages-not-sent :method (rpc:call-path call)
       :reason "the handler has returned messages; the answers of a stream are sent by SEND"))))

(define-hot end-with ((call server-call) value) null
  "End CALL without an answer. If VALUE, the outcome of the handler, is an RPC-ERROR, CALL ends with
the error's status, else with :ok. On the loop."
  (cond ((status:failure-p value) (finish-with-condition call value))
        (t (when (and value (not (wire:marked-p call :headers))) (note-not-sent call value))
           (server-finish call :ok "" nil '())))
  nil)

(defun post-end (call value)
  "Post END-WITH of VALUE to the loop. FUNCTION is called after all messages that this thread, and
the threads for which it has waited, have sent on CALL."
  (loop:post (wire-call-loop call) (lambda () (end-with call value))))

(defun conclude-elsewhere (call value)
  "As CONCLUDE, on a thread that does not run the loop."
  (cond ((eq value call) (when (answers-once-p call) (note-later call)))
        ((or (status:failure-p value) (not (answers-once-p call))) (post-end call value))
        (t (post-reply call value))))

;;; Waiting within a handler

(define-hot server-drive ((call server-call) (ready-p function)) boolean
  "The operation DRIVE: a handler that waits on the thread where its octets arrived continues to run
the loop."
  (flet ((done-p (call) (or (call-status call) (funcall ready-p call))))
    (declare (dynamic-extent #'done-p))
    (when (loop:drive-on (wire-call-loop call) #'done-p call)
      (cond ((done-p call) t)
            (t (note-waiting (server-call-route call))
               nil)))))
