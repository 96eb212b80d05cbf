;;;; The functions of calls for users, over any transport: SEND, RECEIVE, metadata, cancellation,
;;;; and the reactive style: callbacks on the call's loop. All functions here use the call's
;;;; OPERATIONS. Messages pass the filters of interceptors here.

(in-package #:clgrpc.rpc)

(define-hot (outgoing :inline t) ((call call) message &optional (filtered boolean t)) t
  "MESSAGE, changed by the filter of CALL's outgoing messages if FILTERED is true. Signal MISUSE if
MESSAGE is not of the type that CALL's method sends."
  (let* ((outbound (and filtered (call-outbound call)))
         (method (call-rpc-method call))
         (message (through (and outbound (outbound-filter outbound)) message)))
    (if method
        (check-message method (outgoing-type call) message)
        message)))

(declaim (inline check-call))
(defun check-call (thing)
  "Return THING. Signal MISUSE unless THING is a call."
  (if (typep thing 'call)
      thing
      (misuse "~S is not a call. A handler has its call in the keyword argument CALL. The stub of ~
               a method with one answer returns that answer, and its call as second value." thing)))

(defun send (call message &key (compress :auto))
  "Send MESSAGE on CALL and return true. Wait while more octets than the send budget
(options-send-budget-octets) are unsent. A loop's own thread cannot wait, so there the message is
queued: see TRY-SEND and ON-WRITABLE. Return nil without sending if the peer has ended the call with
:ok. Signal the call's RPC-ERROR if it has ended with another status, and MISUSE after CLOSE-SEND.
COMPRESS matters if CALL has a CALL-COMPRESSION. With :auto, MESSAGE is compressed if it is long
enough and compression shortens it; with t, it is always compressed. With nil, MESSAGE is sent
uncompressed: choose nil if MESSAGE has a secret next to text that an attacker may have chosen. Call
this from any thread, but CALL is not locked: threads that send on one call must take turns."
  (check-call call)
  (operate send call (outgoing call message) t compress))

(defun try-send (call message &key (compress :auto))
  "Do what SEND does, but never wait: if CALL's send budget is used up, return nil and do not send
MESSAGE. From any thread, as for SEND."
  (check-call call)
  (operate send call (outgoing call message) nil compress))

(defun close-send (call)
  "End this side of CALL, a client's call, so that the peer expects no more messages. Signal MISUSE
for a handler's call. From any thread."
  (check-call call)
  (operate close-send call)
  nil)

(defun refuse-receiver (call)
  (misuse "The function of ON-MESSAGE gets the messages of ~A; RECEIVE and DO-MESSAGES get none. ~
           To treat the first messages differently, receive them before ON-MESSAGE, or let its ~
           function set another one."
          call))

(declaim (inline check-receiver))
(defun check-receiver (call)
  "Signal MISUSE if the function of ON-MESSAGE gets CALL's messages."
  (let ((callbacks (call-callbacks call)))
    (when (and callbacks (callbacks-on-message callbacks))
      (refuse-receiver call))))

(defun receive (call)
  "Return the next message of CALL, or nil after the last one. Wait until a message arrives. On a
client, signal the call's RPC-ERROR once it has ended with a status other than :ok; in a handler,
signal it once the call was cancelled or its deadline passed. Only one thread at a time may receive
on a call. Signal MISUSE after ON-MESSAGE. Never call RECEIVE on a loop's thread while no message
waits."
  (check-call call)
  (check-receiver call)
  (operate receive call))

(define-hot (deliverable-p :inline t) ((call call)) boolean
  "True if RECEIVE may return messages that have arrived for CALL: CALL runs, or has ended with :ok,
or the peer has ended CALL."
  (and (or (member (call-status call) '(nil :ok))
           (eq :peer (outcome-ended-by (the outcome (call-outcome call)))))
       t))

(define-hot (receive-by :inline t) ((call call) (next function) (more-p function)) t
  "Wait until CALL's queue has a message or (funcall MORE-P CALL) is true, and return (funcall NEXT
CALL). Return nil once CALL has ended with :ok and NEXT returns nil; signal CALL's RPC-ERROR if it
has ended with another status than :ok."
  (flet ((next () (and (deliverable-p call) (values (funcall next call))))
         (ready-p (call) (or (funcall more-p call) (receivable-p call))))
    (cond ((next))
          ((progn (wait-for-call call #'ready-p) (next)))
          ((member (call-status call) '(nil :ok)) nil)
          (t (error (call-condition call))))))

(define-hot receive-queued ((call call)) t
  "The operation RECEIVE of a transport that queues the messages that arrive."
  (flet ((more-p (call) (declare (ignore call)) nil))
    (receive-by call #'pop-incoming #'more-p)))

;;; An interrupt may leave a form that makes a call at any instruction. So the transport notes a
;;; call of streams before the call begins, and the thread that evaluates the form then finds the
;;; call.

(declaim (type list *opened*))
(defvar *opened* '()
  "While a thread evaluates the call form of DO-MESSAGES or WITH-CALL: a list of one element, the
last call of streams that the thread has made meanwhile, or nil. At other times the empty list.")

(define-hot (note-opened :inline t) ((call call)) null
  "Note that CALL, a client's call of streams, is about to begin."
  (when *opened* (setf (first *opened*) call))
  nil)

(defun call-with-opened (open function whole)
  "Call FUNCTION with the call that OPEN returns, and return its values. After that leave the call;
if WHOLE is true, leave it only if FUNCTION exits non-locally."
  (declare (type function open function))
  (let ((opened (list nil)) (over nil))
    (declare (dynamic-extent opened))
    (with-undoing (nil (unless (or over (null (first opened)))
                         (operate leave (first opened))))
      (setf (first opened) (check-call (let ((*opened* opened)) (funcall open))))
      (multiple-value-prog1 (funcall function (first opened))
        (setf over whole)))))

(defun call-with-messages (open function)
  "Call FUNCTION with each message of the call that OPEN returns. A non-local exit cancels a
client's call."
  (flet ((receive-all (call)
           (check-receiver call)
           (operate each call function)))
    (declare (dynamic-extent #'receive-all))
    (call-with-opened open #'receive-all t)))

(define-hot receive-each ((call call) (function function)) null
  "The operation EACH of a transport that queues the messages that arrive."
  (loop for message = (receive call)
        while message do (funcall function message)))

(defmacro do-messages ((variable call &optional result) &body body)
  "Evaluate BODY with VARIABLE bound to each message of CALL in turn; return RESULT. Leaving BODY
early cancels a client's call. Signal the errors of RECEIVE. Only one thread at a time may receive
from CALL."
  (let ((open (gensym "OPEN")) (function (gensym "BODY")))
    `(block nil
       (flet ((,open () ,call)
              (,function (,variable)
                (declare (ignorable ,variable))
                ,@body))
         (declare (dynamic-extent #',open #',function))
         (call-with-messages #',open #',function))
       ,result)))

(defmethod cancel ((call call) &optional (text "cancelled by the caller"))
  (unless (stringp text) (misuse "The text of CANCEL is a string, not ~S." text))
  (operate post call (lambda () (operate abort call :cancelled text :local)))
  nil)

(defun cancelled-p (call)
  "True if CALL has ended with a status other than :ok: it was cancelled, is past its deadline, or
lost its connection. A handler that computes for long should call this now and then. From any
thread."
  (check-call call)
  (not (member (operate look call) '(nil :ok))))

(defun leave-call (call)
  "The operation LEAVE: end CALL, which its user has left, if it is a client's call and still runs."
  (when (and (client-p call) (null (call-status call)))
    (operate post call (lambda () (abort-as call :caller-lost-interest)))))

(defun call-with-call (open function)
  "Call FUNCTION with the call that OPEN returns, and leave the call afterwards."
  (call-with-opened open function nil))

(defmacro with-call ((variable call) &body body)
  "Evaluate BODY with VARIABLE bound to CALL, a client's call; on exit cancel the call if it still
runs. From any thread."
  (let ((open (gensym "OPEN")) (function (gensym "BODY")))
    `(flet ((,open () ,call)
            (,function (,variable) ,@body))
       (declare (dynamic-extent #',open #',function))
       (call-with-call #',open #',function))))

(defun await-fields (call)
  "The operation AWAIT-METADATA of a client: wait for the headers of the answer."
  (when (client-p call) (wait-for-call call #'call-fields)))

(defun call-metadata (call)
  "Return the initial metadata that CALL's peer sent, an alist, decoded at each call. On a client,
wait for the peer's headers; nil if the call ended before they came. From any thread."
  (check-call call)
  (operate await-metadata call)
  (operate metadata call (or (call-fields call) #())))

(defun send-metadata (call metadata)
  "Send METADATA, an alist, at once as the initial metadata of CALL, a handler's call. Signal MISUSE
if headers or a message were sent already, or if METADATA has a key or value that cannot be sent.
From any thread."
  (check-call call)
  (refuse-if-answered call "headers")
  (operate send-metadata call (check-metadata metadata))
  nil)

(defun time-remaining (call)
  "The seconds until CALL's deadline as a double-float, negative after it; nil without a deadline.
From any thread."
  (check-call call)
  (and (plusp (call-deadline call))
       (ns-seconds (- (call-deadline call) (operate now call)))))

;;; The reactive style: callbacks on the call's loop

(defun check-callback (name call function)
  "Signal MISUSE unless CALL is a call and FUNCTION, the callback given to the function NAME, is a
function."
  (check-call call)
  (unless (functionp function)
    (misuse "~A takes a call and a function, not ~S~@[: #'~S is its function~]." (symbol-name name)
            function (and function (symbolp function) (fboundp function) function))))

(defmacro define-callback (name slot documentation &key late at-once)
  "Define the function NAME (call function). The function stores FUNCTION in SLOT of the call's
CALLBACKS, on the loop unless AT-ONCE is true, and schedules the callbacks that are due already.
LATE is a form that is evaluated instead if the loop of CALL has stopped."
  `(defun ,name (call function)
     ,(format nil "~A Runs on the call's loop, so it must not wait. Return CALL. From any thread."
              documentation)
     (check-callback ',name call function)
     ,@(when at-once
         `((sb-thread:barrier (:write))
           (setf (,slot (ensure-callbacks call)) function)))
     (unless (operate post call
                      (lambda ()
                        ,@(unless at-once
                            `((setf (,slot (ensure-callbacks call)) function)))
                        (operate schedule call)))
       ,late)
     call))

(define-callback on-message callbacks-on-message
  "Call FUNCTION with each message of CALL that arrives, first with messages that already wait.
In a handler messages wait while more octets of its answers are queued than the send budget
(options-send-budget-octets) allows. After this function, RECEIVE signals MISUSE."
  :at-once t)

(define-callback on-half-close callbacks-on-half-close
  "Call FUNCTION without arguments after the peer's last message has been received.")

(define-callback on-cancel callbacks-on-cancel
  "Call FUNCTION without arguments if CALL ends with another status than :ok."
  :late
  (when (cancelled-p call) (funcall function)))

(define-callback on-writable callbacks-on-writable
  "Call FUNCTION without arguments now if there is room to send, and again each time there is room
after TRY-SEND has returned nil.")

(defun on-end (call function)
  "Call FUNCTION without arguments once CALL has ended, with any status, see CALL-STATUS. Several
functions are called in the order in which they were given. FUNCTION runs on the call's loop, so it
must not wait. Return CALL. From any thread."
  (check-callback 'on-end call function)
  (unless (operate post call
                   (lambda ()
                     (let ((callbacks (ensure-callbacks call)))
                       (setf (callbacks-on-ended callbacks)
                             (append (callbacks-on-ended callbacks) (list function)))
                       (operate schedule call))))
    ;; CALL's loop has stopped, so CALL has ended, and no other thread calls FUNCTION
    (funcall function))
  call)

(defun filter-messages (call &key incoming outgoing)
  "Filter the messages of CALL, a call of streams: INCOMING and OUTGOING are functions of a message,
or nil, whose value replaces each message that is received or sent. Only interceptors call this, on
their thread, before CALL is used. The functions of an outer interceptor get incoming messages
before those of an inner one, and outgoing messages after them. Return CALL."
  (check-call call)
  (let ((inbound (ensure-inbound call))
        (outbound (ensure-outbound call)))
    (flet ((combined (first second)
             (cond ((null first) second)
                   ((null second) first)
                   (t (lambda (message) (funcall second (funcall first message)))))))
      (setf (inbound-filter inbound) (combined (inbound-filter inbound) incoming)
            (outbound-filter outbound) (combined outgoing (outbound-filter outbound)))))
  call)

(define-hot (callbacks-p :inline t) ((call call)) boolean
  (let ((callbacks (call-callbacks call)))
    (and callbacks
         (or (callbacks-on-message callbacks) (callbacks-on-half-close callbacks)
             (callbacks-on-cancel callbacks) (callbacks-on-ended callbacks)
             (callbacks-on-writable callbacks))
         t)))

(defun after (call seconds function)
  "Call FUNCTION without arguments on CALL's loop after SECONDS, a real, unless CALL ends before. If
SECONDS is negative, call it as soon as possible. AFTER is meant for handlers that have returned
their call and hold no thread. Signal MISUSE for other arguments. From any thread."
  (check-callback 'after call function)
  (unless (realp seconds) (misuse "SECONDS of AFTER is a real number, not ~S." seconds))
  (operate after call (max 0 seconds) function)
  nil)

(defun reply (call message)
  "End CALL, a unary or client-streaming handler's, with MESSAGE as its answer. REPLY is meant for
handlers that have returned their call. Signal MISUSE if MESSAGE is of a wrong type, if CALL has a
stream of answers, or if CALL has been answered already. If CALL has ended in another way, such as
by its client or its deadline, do nothing. From any thread."
  (check-call call)
  (when (and (call-rpc-method call) (not (answers-once-p call)))
    (misuse "~A has a stream of answers: SEND sends each message, and FINISH ends it." call))
  (when (or (eq :ok (call-status call))
            (not (operate reply call (outgoing call message))))
    (misuse "~A has its answer. REPLY is called once, by a handler that returns its call; SEND ~
             sends each message of a stream." call))
  nil)

(defun finish (call &key (status :ok) (message "") details trailers)
  "End CALL, a handler's, with STATUS, a keyword, and its text MESSAGE. DETAILS is a list of
messages or octets for grpc-status-details-bin. TRAILERS is an alist that is added to (call-trailers
CALL). This is for handlers that have returned their call. If CALL has ended already, do nothing.
Signal MISUSE for invalid arguments, and for :ok if CALL has one answer, which only REPLY sends;
both errors are signalled even after REPLY or the end of CALL. From any thread."
  (check-call call)
  (status-code status)
  (check-metadata trailers)
  (unless (stringp message) (misuse "The message of a status is a string, not ~S." message))
  (when (and (eq :ok status) (call-rpc-method call) (answers-once-p call))
    (misuse "~A has one answer, which REPLY sends; FINISH ends it only with an error." call))
  (operate finish call status message (details-octets details status message) trailers)
  nil)

;;; Compression of messages

(defun call-compression (call)
  "The compression of the messages sent on CALL: :gzip, :deflate, a registered name, or :identity
for no compression. A handler may set it by SETF before it has sent metadata or a message; later
SETF signals MISUSE. If the client does not accept the new value, messages are sent uncompressed.
From any thread."
  (check-call call)
  (operate compression call))

(defun (setf call-compression) (name call)
  (check-call call)
  (operate change-encoding call (check-compression name))
  name)

(defun received-compressed-p (call)
  "True if the last decoded message of CALL was received compressed: the request of a handler, or
the last message that RECEIVE returned. Call this on the thread that receives."
  (operate received-compressed call))
