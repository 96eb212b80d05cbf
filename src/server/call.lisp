;;;; A call as the server has it: from its headers to its handler, and from what the handler does to
;;;; the end of the stream.
;;;;
;;;; A unary or server-streaming handler starts when the request is whole and half-closed; a
;;;; client-streaming one at the first message or the half-close, a bidi one at the headers, since
;;;; it may speak first. Handlers run on the loop after all connections of the turn were read; those
;;;; of methods that block (see ROUTE) on a reserve thread. A handler on the loop that waits goes on
;;;; running that until another's code is due. A handler that loses the loop to another thread goes
;;;; on as if it had been started there: its answer is encoded by its thread and posted. A handler
;;;; that returns its call keeps it: it answers later with REPLY or FINISH (the reactive style).

(in-package #:clgrpc.server)

(defstruct (server-call (:include wire-call) (:constructor make-server-call) (:copier nil))
  (route nil :type (or null route))
  (request nil)                         ; a message, or octets not yet decoded
  (accepted '() :type list)             ; the encodings that the client can read
  ;; once the handler is to run: true, the ticket for a thread, or the place among those that wait
  ;; for room; the time from when it does
  (started nil :type (or boolean cons ring nanoseconds))
  ;; whether the handler, which began on the loop and lost it, is charged to its link
  (late nil :type (member nil :charged :returned)))

(declaim (sb-ext:freeze-type server-call))

(defmethod wire:call-began-ns ((call server-call))
  (let ((started (server-call-started call)))
    (and (integerp started) started)))

(define-hot (note-time :inline t) ((call server-call)) null
  "Have what is noted of CALL from now on, in this turn, be true to the moment, not to the turn; but
a reading of the clock is too much for a unary call of which nobody is told. On the loop."
  (when (or (rpc:call-parts call)
            (tracing-p :call)
            (let ((route (server-call-route call)))
              (and route (route-interceptors route)))
            (let ((method (call-rpc-method call)))
              (and method (not (eq :unary (rpc-method-kind (the rpc-method method)))))))
    (loop:note-time (wire-call-loop call)))
  nil)

;;; Starting the handler

(define-hot start-call ((call server-call)) null
  "Have CALL's handler run, once."
  (unless (server-call-started call)
    (setf (server-call-started call) t)
    (wire:mark-call call wire:+due+)
    (run-call call))
  nil)

(define-hot run-call ((call server-call)) null
  "Have CALL's handler run where its method's do."
  (cond ((runs-inline-p (the route (server-call-route call))
                        (= 1 (hub-open (the hub (wire:wire-call-endpoint call)))))
         (loop:defer (wire-call-loop call) #'run-inline call))
        ((output-waits-p (the link (wire-call-link call)))
         (hold-up call))
        (t (start-on-reserve call)))
  nil)

(defun start-on-reserve (call)
  "Have CALL's handler run on a reserve thread. If it has to wait for one, it does so for a while
only, since all of them might wait for it. Whoever comes first, the thread, the end of that while,
or that of CALL, takes the call out of the ticket: so nothing keeps a call that has ended."
  (let* ((ticket (list call))
         (link (wire-call-link call))
         (loop (wire-call-loop call))
         (reserve (server-reserve (hub-server (link-owner link)))))
    (setf (server-call-started call) ticket)
    (multiple-value-bind (place reason)
        (loop:run-on-reserve reserve
                             (lambda ()
                               (let ((call (use-ticket ticket)))
                                 (when call (run-on-reserve-thread call))))
                             :share (ensure-share link))
      (case place
        ((nil)
         (complain (link-owner link) (if (eq reason :share) :max-running-handlers :reserve-queue)
                   (link-peer-name link))
         (operate abort call :resource-exhausted
                  (if (eq reason :share)
                      "the connection has too many handlers (max-running-handlers)"
                      "the server's queue of calls is full")
                  :local))
        (:queued
         (schedule-timer (loop:event-loop-wheel loop) (make-timer #'refuse-waiting ticket)
                         (+ (loop:event-loop-now loop)
                            (seconds-ns (options-reserve-wait-seconds
                                         (wire:wire-call-options call))))))))))

(defun use-ticket (ticket)
  "The call of TICKET, for whoever uses it first; for others nil."
  (let ((call (car ticket)))
    (and call
         (eq call (sb-ext:compare-and-swap (car ticket) call nil))
         call)))

(defun refuse-waiting (ticket)
  "A call has waited for a reserve thread long enough."
  (let ((call (use-ticket ticket)))
    (when call
      (let ((link (wire-call-link call)))
        (complain (link-owner link) :reserve-wait-seconds (link-peer-name link)))
      (operate abort call :resource-exhausted "no thread was free in time (reserve-wait-seconds)"
               :local))))

(defun forget-unstarted (call)
  "CALL has ended, maybe before its handler ran: then that is not to keep CALL and its request any
longer. On the loop."
  (let ((started (server-call-started call)))
    (cond ((consp started)
           (when (use-ticket started) (setf (server-call-request call) nil)))
          ((ring-p started)
           (quit-ring started))
          ((eq t started)
           (leave-held-up (wire-call-link call) call)))))

(define-hot (answers-once-p :inline t) ((call server-call)) boolean
  (and (member (rpc-method-kind (the rpc-method (call-rpc-method call)))
               '(:unary :client-streaming))
       t))

(define-hot handler-request ((call server-call)) t
  "What the handler gets as its REQUEST."
  (case (rpc-method-kind (the rpc-method (call-rpc-method call)))
    ((:unary :server-streaming)
     (shiftf (server-call-request call) nil))
    (t call)))

(define-hot (call-handler :inline t) ((route route) request (call call)) t
  "What the handler of ROUTE returns."
  (funcall (rpc:binding-function (route-binding route)) (route-service route) request call))

(defun call-handler-intercepted (route request call)
  "What the handler of ROUTE, and the interceptors around it, return."
  (rpc:call-intercepted (route-interceptors route) call request
                        (lambda (request) (call-handler route request call))))

(define-hot (answer-of :inline t) ((route route) request (call call)) t
  "What the handler of ROUTE, and the interceptors around it if there are any, return."
  (if (route-interceptors route)
      (call-handler-intercepted route request call)
      (call-handler route request call)))

(defun tell-handler (call event &rest plist)
  (apply #'log-event :trace event :tracer :server
         :method (rpc:call-path call) :peer (rpc:call-peer call)
         :thread (sb-thread:thread-name sb-thread:*current-thread*) plist))

(define-hot run-handler ((call server-call)) t
  "Run CALL's handler. Return its value, or the RPC-ERROR that ended it."
  (when (tracing-p :server) (tell-handler call :handler-begun))
  (let* ((route (server-call-route call))
         (request (handler-request call))
         (value nil)
         (condition
           (with-user-code (call)
             (setf request (wire:wire-decode call request 0 0)
                   value (answer-of route request call)))))
    (when (tracing-p :server)
      (tell-handler call :handler-ended :outcome (cond (condition (rpc-error-status condition))
                                                       ((eq value call) :later)
                                                       (t :returned))))
    (or condition value)))

(define-hot (promise-for :inline t) ((call server-call)) (or null index)
  "The octets that were promised for CALL's answer: none unless its method gives long ones; nil if
there is no room."
  (let ((route (the route (server-call-route call))))
    (if (or (zerop (route-long-octets route))
            (eq call (hub-probe (the hub (wire:wire-call-endpoint call)))))
        0
        (promise-answer route))))

(define-hot (run-at-once :inline t) ((call server-call) (promised index)) null
  "Run CALL's handler, for whose answer PROMISED octets are promised, on the loop."
  (note-time call)
  (setf (server-call-started call) (loop:event-loop-now (wire-call-loop call)))
  (let ((abandoned t))
    (unwind-protect
         (multiple-value-bind (value baton)
             (loop:call-user (wire-call-loop call) #'run-handler call)
           (setf abandoned nil)
           (settle-answer promised)
           (when (eq baton :lost) (late-handler-ended (server-call-route call)))
           (if (eq baton :kept)
               (conclude call value)
               (conclude-elsewhere call value)))
      (when abandoned
        (settle-answer promised)
        (conclude-elsewhere call (abandoned-condition call)))
      (unless (loop:in-event-loop-p (wire-call-loop call))
        (when abandoned (late-handler-ended (server-call-route call)))
        (uncharge-handler call))))
  nil)

(define-hot run-inline ((call server-call)) null
  "Run CALL's handler on the loop."
  (let ((promised 0))
    (cond ((call-status call))          ; cancelled before it began
          ((wire:overdue-p call) (wire:deadline-passed call))
          ((or (output-waits-p (the link (wire-call-link call)))
               (answers-wait-p (the link (wire-call-link call))))
           (hold-up call))
          ((and (plusp (route-late (the route (server-call-route call))))
                (leaves-loop-p call))
           (start-on-reserve call))
          ((null (setf promised (promise-for call)))
           (await-room call))
          (t (run-at-once call promised))))
  nil)

;;; Handlers and callbacks that began on the loop and have lost it: each holds a thread, which
;;; counts for its connection. The thread that takes the loop over and the one that returns from
;;; user code come in either order, so what is charged is said under the lock of the reserve.

(defun leaves-loop-p (call)
  "True if the handler of CALL is not to begin on the loop although it was to, since others of its
method have lost the loop by now and run still."
  (let ((route (server-call-route call)) (link (wire-call-link call)))
    (if (eq :inline (route-execution route))
        (and (plusp (wire:link-late link))
             (not (loop:share-open-p (server-reserve (hub-server (link-owner link)))
                                     (ensure-share link))))
        (not (runs-inline-p route (= 1 (hub-open (link-owner link))))))))

(defun charge (call change function)
  "Charge the link of CALL with a thread, or with one less, if FUNCTION, called under the lock of
the reserve, is true."
  (let ((link (wire-call-link call)))
    (loop:charge-thread (server-reserve (hub-server (link-owner link))) change
                        (lambda ()
                          (when (funcall function)
                            (incf (wire:link-late link) change)
                            (wire:link-share link))))))

(defmethod loop:note-late ((call server-call))
  (ensure-share (wire-call-link call))
  (let ((reactions (rpc:call-reactions call)))
    (case (and reactions (rpc:reactions-scheduled reactions))
      ((:running :returned)             ; a callback: nothing is to be noted of the method
       (charge call 1 (lambda ()
                        (when (eq :running (rpc:reactions-scheduled reactions))
                          (setf (rpc:reactions-scheduled reactions) :charged)))))
      (t (note-overstay (server-call-route call))
         (charge call 1 (lambda ()
                          (unless (server-call-late call)
                            (setf (server-call-late call) :charged))))))))

(defun uncharge-handler (call)
  "The handler of CALL, which has lost the loop, has returned."
  (charge call -1 (lambda () (eq :charged (shiftf (server-call-late call) :returned))))
  (wire:wake-callbacks (wire-call-link call)))

(defun server-callback-returned (call)
  "The operation CALLBACK-RETURNED."
  (let ((reactions (rpc:call-reactions call)))
    (charge call -1 (lambda ()
                      (eq :charged (shiftf (rpc:reactions-scheduled reactions) :returned))))
    (wire:wake-callbacks (wire-call-link call))))

(defun run-on-reserve-thread (call)
  (let ((promised 0))
    (cond ((call-status call))          ; cancelled before it began
          ((wire:overdue-p call)
           (loop:post (wire-call-loop call) (lambda () (wire:deadline-passed call))))
          ((answers-wait-p (wire-call-link call))
           (put-off call #'hold-up))
          ((null (setf promised (promise-for call)))
           (put-off call #'await-room))
          (t (run-and-conclude call promised)))))

(defun put-off (call function)
  "Have CALL, whose ticket is used, wait as FUNCTION of the loop says."
  (loop:post (wire-call-loop call) (lambda ()
                                     (setf (server-call-started call) t)
                                     (funcall function call))))

(defun run-and-conclude (call promised)
  "Run CALL's handler on this thread, which does not run the loop; PROMISED octets are promised for
its answer."
  (let ((value '+abandoned+)
        (start (setf (server-call-started call) (wire:wire-now call))))
    (unwind-protect (setf value (run-handler call))
      (settle-answer promised)
      (conclude-elsewhere call (if (eq value '+abandoned+) (abandoned-condition call) value))
      (note-duration (server-call-route call) (- (wire:wire-now call) start)))))

(defun abandoned-condition (call)
  "The RPC-ERROR of CALL whose handler is left by force, as when its thread is ended in the
debugger."
  (log-event :error :handler-error :method (rpc:rpc-method-path (call-rpc-method call))
                                   :condition "The handler was left by a non-local exit.")
  (rpc:make-rpc-error :internal :message "error in handler" :ended-by :local))

(define-hot conclude ((call server-call) value) null
  "CALL's handler has returned VALUE, or VALUE is the RPC-ERROR that ended it. On the loop."
  (cond ((eq value call))               ; answers later
        ((rpc:failure-p value) (finish-with-condition call value))
        ((answers-once-p call)
         (unless (reply-now call value)
           (loop:call-user (wire-call-loop call)
                           (lambda (argument)
                             (declare (ignore argument))
                             (post-reply call value))
                           nil)))
        (t (server-finish call :ok "" nil '())))
  nil)

(defun conclude-elsewhere (call value)
  "As CONCLUDE, on a thread that does not run the loop."
  (if (or (eq value call) (rpc:failure-p value) (not (answers-once-p call)))
      (loop:post (wire-call-loop call) (lambda () (conclude call value)))
      (post-reply call value)))

;;; Answering

(define-hot reply-now ((call server-call) message) boolean
  "Send MESSAGE and an :ok end. Return false, with nothing done, if MESSAGE is so long that
POST-REPLY should do that while the baton is lent. On the loop."
  (if (call-status call)
      t
      (let ((outcome (progn
                       (note-time call)
                       (wire:ensure-headers call)
                       (handler-case (and (not (wire:compresses-p call :auto))
                                          (wire:write-message call message nil))
                         ((or error storage-condition) (error)
                           (bad-answer-condition call message error))))))
        (case outcome
          ((t) (unless (zerop (route-long-octets (the route (server-call-route call))))
                 (note-short-answer (server-call-route call)))
               (server-finish call :ok "" nil '()) t)
          ((nil) nil)
          (t (finish-with-condition call outcome) t)))))

(defun bad-answer-condition (call message error)
  "The condition that ends CALL because its handler's answer MESSAGE cannot be sent, for ERROR."
  (if (or (typep error 'rpc:rpc-error) (typep error 'storage-condition))
      (rpc:error-condition call error)
      (rpc:error-condition
       call (make-condition 'simple-error
                            :format-control "The handler of ~A has returned ~S, which cannot be ~
                                             sent: ~:[~A~;it should return a ~*~S.~]"
                            :format-arguments
                            (list (rpc:call-path call) message (null message) error
                                  (protobuf:message-type-symbol (rpc:outgoing-type call)))))))

(defun server-reply (call message)
  "The operation REPLY: send MESSAGE and an :ok end. From user code in any thread."
  (unless (loop:with-baton ((wire-call-loop call))
              (reply-now call message)
            nil)
    (post-reply call message)))

(defun post-reply (call message)
  "Encode MESSAGE in this thread and have the loop send it, and an :ok end."
  (let* ((octets (handler-case (wire:encode-message call message :auto)
                   ((or error storage-condition) (error)
                     (bad-answer-condition call message error))))
         (bad (rpc:failure-p octets))
         (link (wire-call-link call))
         (size (if bad 0 (wire:encoded-length octets))))
    (note-answering link size)
    (loop:post (wire-call-loop call)
               (lambda ()
                 (note-answering link (- size))
                 (cond ((call-status call))
                       (bad (finish-with-condition call octets))
                       (t (wire:ensure-headers call)
                          (wire:write-encoded call octets nil)
                          (server-finish call :ok "" nil '())))))))

(defun finish-with-condition (call condition)
  "End CALL as CONDITION says."
  (multiple-value-call #'server-finish call (sendable-end call condition)))

(defun sendable-end (call condition)
  "The status, message, details and trailers with which CONDITION ends CALL, as far as they can be
sent: a handler may signal anything in its slots."
  (let ((status (rpc-error-status condition))
        (message (rpc-error-message condition)))
    (values (if (eq :ok status) :internal status)
            (if (stringp message) message (format nil "~@[~A~]" message))
            (sendable-details call condition)
            (sendable-trailers call (rpc:rpc-error-trailers condition)))))

(defun sendable-details (call condition)
  "The octets of CONDITION's details, or nil if they cannot be sent."
  (handler-case (rpc:rpc-error-details-octets condition)
    (error (error) (log-bad-answer call error) nil)))

(defun sendable-trailers (call trailers)
  "TRAILERS, or nil if they cannot be sent."
  (handler-case (rpc:check-metadata trailers)
    (error (error) (log-bad-answer call error) '())))

(defun log-bad-answer (call error)
  (log-event :error :handler-error :condition error
                                   :method (rpc:rpc-method-path (call-rpc-method call))))

(define-hot server-finish ((call server-call) (status symbol) (message string) details
                           (trailers list))
    null
  "End CALL. On the loop."
  (unless (call-status call)
    (when trailers
      (let ((ending (rpc:ensure-ending call)))
        (setf (rpc:ending-trailers ending) (append (rpc:ending-trailers ending) trailers))))
    (note-time call)
    (wire:mark-call call wire:+end+)
    (end-call call status :message message :details details :ended-by :local)
    (wire:stop-timers call)
    (write-end call))
  nil)

(defun finish-from-anywhere (call status message details trailers)
  "The operation FINISH."
  (wire:wire-post call (lambda () (server-finish call status message details trailers))))

(defun server-abort (call status text ended-by)
  "The operation ABORT: end CALL with STATUS, telling peer and handler."
  (declare (ignore ended-by))
  (unless (call-status call)
    (server-finish call status text nil '())
    (when (rpc:callbacks-p call) (wire:wire-schedule call))))

(defun server-send-metadata (call metadata)
  "The operation SEND-METADATA. From any thread."
  (check-metadata-size call metadata)
  (when (shiftf (wire:wire-outlet-begun (wire:ensure-wire-outlet call)) t)
    (misuse "The headers of ~A were sent before." call))
  (wire:wire-post call
                 (lambda ()
                   (unless (or (call-status call) (wire-call-headers-sent call))
                     (setf (rpc:intent-metadata (rpc:ensure-intent call)) metadata)
                     (wire:ensure-headers call)))))

(defun server-close-send (call)
  "The operation CLOSE-SEND."
  (misuse "~A ends when its handler returns, or with FINISH; CLOSE-SEND is for clients." call))

;;; Messages and the half-close of a request

(define-hot deliver-request ((call server-call) (octets octets) (start index) (end index)) null
  "The operation DELIVER of methods that take one message."
  (cond ((server-call-request call)
         (operate abort call :unimplemented "more than one request message" :local))
        ((wire:to-keep-p call (- end start)) ; decoded by the handler's thread
         (when (wire:hold call (- end start))
           (setf (server-call-request call) (wire:keep-octets call octets start end))))
        (t (let ((message (handler-case (values (wire:parse-incoming call octets start end nil))
                            (protobuf:protobuf-error (error)
                              (wire:unparsable-condition call error start)))))
             (if (rpc:failure-p message)
                 (operate abort call :internal (rpc-error-message message) :local)
                 (setf (server-call-request call) message)))))
  nil)

(define-hot half-close-request ((call server-call)) null
  "The operation HALF-CLOSE of methods that take one message."
  (cond ((call-status call))
        ((null (server-call-request call))
         (operate abort call :unimplemented "no request message" :local))
        (t (start-call call)))
  nil)

(define-hot deliver-to-stream ((call server-call) (octets octets) (start index) (end index)) null
  "The operation DELIVER of methods that take a stream."
  (wire:deliver-streamed call octets start end)
  (start-call call))

(define-hot half-close-stream ((call server-call)) null
  "The operation HALF-CLOSE of methods that take a stream."
  (wire:half-close-streamed call)
  (unless (call-status call) (start-call call))
  nil)

(define-hot server-drive ((call server-call) (ready-p function)) boolean
  "The operation DRIVE: a handler that waits where its octets arrived goes on running the loop."
  (flet ((done-p (call) (or (call-status call) (funcall ready-p call))))
    (declare (dynamic-extent #'done-p))
    (when (loop:drive-on (wire-call-loop call) #'done-p call)
      (cond ((done-p call) t)
            (t (note-waiting (server-call-route call))
               nil)))))
