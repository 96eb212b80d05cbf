;;;; The two ends of a call, and the call pair between them. A call pair is made when it is first
;;;; needed: a unary call whose handler answers on the caller's thread needs none.

(in-package #:clgrpc.inproc)

(define-hot (make-client-end :inline t) ((method rpc-method) (deadline status:deadline) status
                                         (inproc-core inproc-core) call-pair)
    inproc-call
  (%make-inproc-call method (inproc-core-client-operations inproc-core) deadline nil status nil
                     inproc-core call-pair))

(define-hot (make-server-end :inline t) ((method rpc-method) (deadline status:deadline) fields
                                         (inproc-core inproc-core) call-pair)
    inproc-call
  (%make-inproc-call method (inproc-core-server-operations inproc-core) deadline fields nil
                     (and (member (rpc-method-kind method) '(:unary :server-streaming)) t)
                     inproc-core call-pair))

(defun inproc-observer (call)
  "The operation OBSERVER."
  (if (rpc:client-p call)
      (inproc-core-observer (call-inproc-core call))
      (let ((call-pair (inproc-call-call-pair call)))
        (and call-pair (call-pair-callee call-pair)
             (callee-observer (call-pair-callee call-pair))))))

(defun inproc-particulars (call)
  "The operation PARTICULARS."
  (list (if (rpc:client-p call) :target :peer) (rpc:call-peer call)))

(define-hot (inproc-core-now :inline t) ((inproc-core inproc-core)) nanoseconds
  "The time now, by INPROC-CORE's clock."
  (the (values nanoseconds &optional) (funcall (inproc-core-clock inproc-core))))

(define-hot (call-counts-of :inline t) ((call inproc-call)) (or null call-counts)
  "The CALL-COUNTS of CALL, or nil if no observer sees it."
  (declare (inline rpc:call-value))
  (values (the (or null call-counts) (values (rpc:call-value call 'call-counts)))))

(defun begin-call-counts (call-pair)
  "Count the messages on CALL-PAIR, whose call has begun, from now on."
  (let* ((now (inproc-core-now (call-inproc-core (call-pair-client call-pair))))
         (call-counts (make-call-counts :began-ns now :arrived-ns now)))
    (setf (rpc:call-value (call-pair-client call-pair) 'call-counts) call-counts
          (rpc:call-value (call-pair-server call-pair) 'call-counts) call-counts)))

(defun to-come-p (call-pair)
  "True if the call of CALL-PAIR waits for its credentials, or has ended while it waited, so that
the server does not have the call."
  (let ((callee (call-pair-callee call-pair)))
    (and callee (eq callee (callee-asking callee)))))

(defun tell-arrived (call-pair)
  "Report to the observers of both ends that the server has the call of CALL-PAIR. Within the image
a call has one attempt, which begins at that moment."
  (let* ((client (call-pair-client call-pair))
         (server (call-pair-server call-pair))
         (observer (inproc-core-observer (call-inproc-core client)))
         (call-counts (call-counts-of client)))
    (when (and observer
               (null (call-status client))
               (not (and (call-pair-callee call-pair)
                         (callee-relays (call-pair-callee call-pair)))))
      (setf (call-counts-attempt call-counts) t)
      (rpc:observe attempt-begun observer client (inproc-core-target (call-inproc-core client)) 0))
    (when (call-pair-callee call-pair) (rpc:observe call-begun (inproc-observer server) server))
    (when call-counts
      (mapc #'funcall (reverse (shiftf (call-counts-untold call-counts) '()))))))

(defun note-arrival (call-pair)
  "Note that the server gets the call of CALL-PAIR now, later than the client made it."
  (let ((client (call-pair-client call-pair)))
    (when (call-counts-of client)
      (setf (call-counts-arrived-ns (call-counts-of client))
            (inproc-core-now (call-inproc-core client))))))

(defun tell-begin (call-pair)
  "Report to the observers of both ends that the call of CALL-PAIR has begun."
  (let* ((client (call-pair-client call-pair))
         (server (call-pair-server call-pair))
         (observer (inproc-core-observer (call-inproc-core client))))
    (when (or observer (inproc-observer server)) (begin-call-counts call-pair))
    (rpc:observe call-made observer client)
    (rpc:observe call-begun observer client)
    (unless (to-come-p call-pair) (tell-arrived call-pair))))

(defun tell-later (call-pair function)
  "Call FUNCTION, which reports to the observer of CALL-PAIR's server, once the server has the
call."
  (let ((call-counts (call-counts-of (call-pair-client call-pair))))
    (when call-counts (sb-ext:atomic-push function (call-counts-untold call-counts)))))

(defun tell-half-closed (call-pair)
  "Report to the observers of both ends that CALL-PAIR's client sends no more."
  (let ((client (call-pair-client call-pair)) (server (call-pair-server call-pair)))
    (rpc:observe half-closed (inproc-observer client) client)
    (if (to-come-p call-pair)
        (tell-later call-pair
                    (lambda () (rpc:observe half-closed (inproc-observer server) server)))
        (rpc:observe half-closed (inproc-observer server) server))))

(defun tell-attempt-ended (client)
  "Report to the observer that the attempt of CLIENT, a client's end that has ended, is over."
  (let ((call-counts (call-counts-of client)))
    (when (and call-counts (shiftf (call-counts-attempt call-counts) nil))
      (rpc:observe attempt-ended (inproc-observer client) client
                   (inproc-core-target (call-inproc-core client)) (call-status client) 0
                   (call-counts-requests call-counts) (call-counts-responses call-counts)
                   (ns-since client (call-counts-arrived-ns call-counts))))))

(defun traffic (call)
  "The operation TRAFFIC."
  (let ((call-counts (call-counts-of call)))
    (cond ((null call-counts) (values 0 0 0))
          ((rpc:client-p call)
           (values (call-counts-requests call-counts) (call-counts-responses call-counts)
                   (call-counts-began-ns call-counts)))
          (t (values (call-counts-responses call-counts) (call-counts-requests call-counts)
                     (call-counts-arrived-ns call-counts))))))

(defun ns-since (call began-ns)
  (max 0 (- (inproc-core-now (call-inproc-core call)) began-ns)))

(defun elapsed-ns (call)
  "The operation ELAPSED-NS."
  (let ((call-counts (call-counts-of call)))
    (cond ((null call-counts) 0)
          ((rpc:client-p call) (ns-since call (call-counts-began-ns call-counts)))
          (t (ns-since call (call-counts-arrived-ns call-counts))))))

(define-hot open-call-pair
            ((inproc-core inproc-core) (callee callee) (route inproc-route) (method rpc-method)
             (deadline status:deadline) fields (options list))
    call-pair
  "A call pair with both ends, for a call with OPTIONS, as for RPC:BEGIN-OWN-OPTIONS. The handler
has not begun. Within the image :authority has no effect, but its value is checked."
  (let ((call-pair (make-call-pair callee route nil)))
    (setf (call-pair-client call-pair) (make-client-end method deadline nil inproc-core call-pair)
          (call-pair-server call-pair)
          (make-server-end method deadline fields inproc-core call-pair))
    (when options (apply #'rpc:begin-own-options (call-pair-client call-pair) options))
    (sb-sys:without-interrupts          ; a call that is counted must be left
      (count-begun (callee-tally callee))
      (rpc:note-opened (call-pair-client call-pair)))
    (when (observed-p inproc-core callee) (tell-begin call-pair))
    call-pair))

(defmacro with-call-pair ((call-pair form) &body body)
  "Evaluate BODY with CALL-PAIR bound to the value of FORM, a new call pair. If BODY ends by a
non-local exit, end the call as if its client had left it."
  (let ((done (gensym "DONE")))
    `(let ((,call-pair nil) (,done nil))
       (with-undoing ((setf ,call-pair ,form)
                      (unless ,done (operate leave (call-pair-client ,call-pair))))
         (multiple-value-prog1 (let ((,call-pair (the call-pair ,call-pair))) ,@body)
           (setf ,done t))))))

(defun make-up-call-pair (call)
  "Give CALL, which has no call pair, another end and a call pair. CALL belongs to a handler that
runs on its client's thread, or to a client whose call had ended before it got a call pair."
  (let* ((inproc-core (call-inproc-core call))
         (callee (inproc-core-callee inproc-core))
         (method (call-rpc-method call))
         (client-p (rpc:client-p call))
         (call-pair (make-call-pair callee (and callee (route-to callee method)) nil)))
    (setf (call-pair-client call-pair) (if client-p
                                           call
                                           (make-client-end method (call-deadline call) nil
                                                            inproc-core call-pair))
          (call-pair-server call-pair) (if client-p
                                           (make-server-end method (call-deadline call) nil
                                                            inproc-core call-pair)
                                           call)
          (call-pair-held call-pair) :closed
          (call-pair-phase call-pair) (if client-p :over sb-thread:*current-thread*)
          (call-pair-claim call-pair) (and (call-status call) t))
    (when client-p (setf (call-status (call-pair-server call-pair)) (call-status call)))
    (or (compare-and-swap (inproc-call-call-pair call) nil call-pair) call-pair)))

(define-hot (call-call-pair :inline t) ((call inproc-call)) call-pair
  "The call pair of CALL, made now if CALL has no pair yet."
  (or (inproc-call-call-pair call) (make-up-call-pair call)))

(define-hot (other-end :inline t) ((call inproc-call)) inproc-call
  (let ((call-pair (call-call-pair call)))
    (the inproc-call
         (if (rpc:client-p call) (call-pair-server call-pair) (call-pair-client call-pair)))))

(define-hot (observers-p :inline t) ((call-pair call-pair)) boolean
  "True if the channel or the server of CALL-PAIR's call has an observer, or its messages are
counted."
  (let ((callee (call-pair-callee call-pair)))
    (and (or (inproc-core-observer (call-inproc-core (call-pair-client call-pair)))
             (and callee (callee-observer callee))
             (call-counts-of (call-pair-client call-pair)))
         t)))

(defun tell-message (call message size)
  "Report MESSAGE, of SIZE octets, which CALL sends, to the observers of both ends, and count it."
  (rpc:observe content-sent (inproc-observer call)
               call (protobuf:serialize message) 0 size nil)
  (when-let ((call-counts (call-counts-of call)))
    (if (rpc:client-p call)
        (incf (call-counts-requests call-counts) size)
        (incf (call-counts-responses call-counts) size)))
  (rpc:observe message-sent (inproc-observer call) call size)
  (let ((receiver (other-end call)))
    (flet ((tell-received (message)
             (rpc:observe content-received (inproc-observer receiver)
                          receiver (protobuf:serialize message) 0 size nil)
             (rpc:observe message-received (inproc-observer receiver) receiver size)))
      (if (and (rpc:client-p call) (to-come-p (call-call-pair call)))
          ;; the user may change the message later
          (let ((message (protobuf:copy-message message)))
            (tell-later (call-call-pair call) (lambda () (tell-received message))))
          (tell-received message)))))

(define-hot (mailbox :inline t) ((call inproc-call)) (or null mailbox)
  "The mailbox of CALL, or nil while only one thread uses its call pair."
  (let ((call-pair (inproc-call-call-pair call)))
    (and call-pair (if (rpc:client-p call) (call-pair-client-mailbox call-pair)
                       (call-pair-server-mailbox call-pair)))))

(define-hot (mailbox-message :inline t) ((call inproc-call)) t
  "The message in the mailbox of CALL; nil if no message is there."
  (let ((mailbox (mailbox call)))
    (and mailbox (svref mailbox +mailbox-index+))))

(define-hot open-mailboxes ((call-pair call-pair)) null
  "Make the mailboxes of CALL-PAIR, so that two threads may use its ends from now on. From any
thread."
  (flet ((make () (make-array 24 :initial-element nil)))
    (unless (call-pair-client-mailbox call-pair)
      (compare-and-swap (call-pair-client-mailbox call-pair) nil (make)))
    (unless (call-pair-server-mailbox call-pair)
      (compare-and-swap (call-pair-server-mailbox call-pair) nil (make))))
  nil)

;;; Facts about a call

(define-hot call-now ((call inproc-call)) nanoseconds
  "The operation NOW."
  (inproc-core-now (call-inproc-core call)))

(defun inproc-core-peer (call)
  "The operation PEER."
  (inproc-core-target (call-inproc-core call)))

(defun call-pair-stage (call)
  "The operation STAGE."
  (let ((call-pair (inproc-call-call-pair call)))
    (case (and call-pair (call-pair-phase call-pair))
      (:waiting :queue)
      (:asking :credentials)
      (t :answer))))
