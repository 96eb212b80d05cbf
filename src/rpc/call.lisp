;;;; The parts of a call that are the same at both ends and on every transport: its structure,
;;;; waiting threads, the messages that arrived, its end. The functions that differ by transport
;;;; (wire, in-process) and by end are its OPERATIONS (transport.lisp). The functions for users are
;;;; in messaging.lisp.
;;;;
;;;; Invariants. One loop owns a call. Only this owner sets STATUS, once, as the last store at the
;;;; end of the call, and HALF-CLOSED, as the last store after the peer's final message was queued.
;;;; So a reader that sees either store and then finds the queue empty has missed no message.
;;;; Messages wait in the inbound part's INCOMING: a stack onto which the owner pushes, and which
;;;; the only receiving thread takes as a whole. Short messages that arrive with one read are pushed
;;;; together. Data that few calls need are in PARTS (part.lisp), made when first needed. A call
;;;; object that users have seen is never used again for another call.

(in-package #:clgrpc.rpc)

(defstruct (call (:include loop:future) (:constructor nil) (:copier nil))
  "An RPC at one of its ends. A call made by CALL-ASYNC is also its own future."
  (rpc-method nil :type (or null rpc-method)) ; nil if the method is unknown
  ;; the operations of the call's transport
  (operations (misuse "A call has a transport.") :type operations)
  (deadline 0 :type deadline)           ; in ns of the loop's clock; 0 without a deadline
  (fields nil :type (or null simple-vector)) ; the peer's initial metadata, once it has arrived
  (status nil :type symbol)             ; a keyword once the call has ended
  (half-closed nil :type boolean)       ; the peer's last message has been queued
  (parts nil :type (or null parts)))    ; data that few calls need, by subject

(document-functions
  call-rpc-method "The RPC-METHOD of CALL: see RPC-METHOD-PATH. From any thread."
  call-status "The status with which CALL ended, a keyword such as :ok, or nil while it runs. From
any thread."
  call-deadline "The deadline of CALL in nanoseconds of the monotonic clock, 0 if it has none, as
for :deadline of a stub. From any thread.")

(defmethod print-object ((call call) stream)
  (print-unreadable-object (call stream :type t :identity t)
    (format stream "~A ~:[open~;~:*~(~A~)~]"
            (if (call-rpc-method call) (rpc-method-path (call-rpc-method call)) "unrouted")
            (call-status call))))

(defmacro operate (name call &rest arguments)
  "Call the operation NAME of CALL's transport."
  (let ((row (find-contract-row name)))
    (unless (= (1+ (length arguments)) (length (contract-row-lambda-list row)))
      (error "The operation ~S takes ~S." name (contract-row-lambda-list row)))
    (if (symbolp call)
        `(funcall (,(operation-reader name) (call-operations ,call)) ,call ,@arguments)
        (let ((variable (gensym "CALL")))
          `(let ((,variable ,call)) (operate ,name ,variable ,@arguments))))))

(defun call-role (call)
  "The role of CALL, an object for one end of a call: :client or :server."
  (if (operations-client-p (call-operations call)) :client :server))

(defun call-path (call)
  "The path of CALL's method, or nil if it has none."
  (and (call-rpc-method call) (rpc-method-path (call-rpc-method call))))

(defmacro define-part (name lambda-list documentation)
  "Define two functions for the part NAME of a call. CALL-NAME returns the part or nil. ENSURE-NAME
makes the part first if necessary: by the operation NEW-NAME if LAMBDA-LIST is (call), since
transports may add slots, else by MAKE-NAME."
  (flet ((name (control) (intern (format nil control name) '#:clgrpc.rpc)))
    `(progn
       (define-hot (,(name "CALL-~A") :inline t) ((call call)) (or null ,name)
         ,(format nil "~A, or nil." documentation)
         (let ((parts (call-parts call)))
           (and parts (,(name "PARTS-~A") parts))))
       (define-hot ,(name "ENSURE-~A") ((call call)) ,name
         ,(format nil "~A, made now if CALL has not made it before. From any thread." documentation)
         (let ((parts (ensure-parts call)))
           (or (,(name "PARTS-~A") parts)
               (let ((new ,(if lambda-list
                               `(operate ,(name "NEW-~A") call)
                               `(,(name "MAKE-~A")))))
                 (or (sb-ext:compare-and-swap (,(name "PARTS-~A") parts) nil new) new))))))))

(defmacro define-own-part (part (prefix type &optional include) documentation &body slots)
  "Define the structure PREFIX-PART, the PART of a transport whose calls are of TYPE, and its
functions. The structure adds SLOTS to PART or to INCLUDE, another structure that this macro has
defined. CALL-PREFIX-PART and ENSURE-PREFIX-PART do what CALL-PART and ENSURE-PART do;
NEW-PREFIX-PART is the operation NEW-PART."
  (flet ((own (control) (intern (format nil control prefix part)))
         (shared (control) (intern (format nil control part) '#:clgrpc.rpc)))
    (let ((structure (own "~A-~A")))
      `(progn
         (defstruct (,structure (:include ,(or include (shared "~A"))) (:copier nil))
           ,documentation
           ,@slots)
         (defun ,(own "NEW-~A-~A") (call)
           ,(format nil "The operation NEW-~A." part)
           (declare (ignore call))
           (,(own "MAKE-~A-~A")))
         (define-hot (,(own "CALL-~A-~A") :inline t) ((call ,type)) (or null ,structure)
           ,(format nil "The ~A of CALL, or nil." structure)
           (the (or null ,structure) (,(shared "CALL-~A") call)))
         (define-hot (,(own "ENSURE-~A-~A") :inline t) ((call ,type)) ,structure
           ,(format nil "The ~A of CALL, made now if need be. From any thread." structure)
           (the ,structure (,(shared "ENSURE-~A") call)))))))

(define-hot ensure-parts ((call call)) parts
  "The PARTS of CALL, made now if needed. From any thread."
  (or (call-parts call)
      (let ((new (operate new-parts call)))
        (or (sb-ext:compare-and-swap (call-parts call) nil new) new))))

(define-part inbound (call) "The inbound part of CALL, with its incoming messages")
(define-part outbound (call) "The outbound part of CALL, for its outgoing messages")
(define-part callbacks (call) "The callbacks of CALL's user")
(define-part ending () "The ending of CALL")
(define-part own-options (call) "The options of CALL that its user has set")

(define-hot (queued-octets :inline t) ((call call)) index
  "The octets with which CALL is charged for the messages in its queue."
  (let ((inbound (call-inbound call)))
    (if inbound (the index (inbound-queued-octets inbound)) 0)))

(define-hot (messages-wait-p :inline t) ((call call)) boolean
  "True if messages are in CALL's queue, whether the receiving thread has taken them out or not."
  (let ((inbound (call-inbound call)))
    (and inbound
         (or (inbound-incoming inbound) (inbound-received inbound))
         t)))

;;; Both ends of a call, on every transport

(define-hot (client-p :inline t) ((call call)) boolean
  "True if CALL is a client's."
  (operations-client-p (call-operations call)))

(define-hot (outgoing-type :inline t) ((call call)) protobuf:message-type
  "The type of the messages that CALL sends."
  (let ((method (the rpc-method (call-rpc-method call))))
    (if (client-p call)
        (rpc-method-request-type method)
        (rpc-method-response-type method))))

(define-condition wrong-message (misuse type-error) ()
  (:documentation "A message for a call is of another type than its method has."))

(defun refuse-message (method type message)
  "Signal MISUSE, since MESSAGE is not of TYPE, the request or response type of METHOD."
  (error 'wrong-message
         :datum message :expected-type (or (protobuf:message-type-symbol type) 'protobuf:message)
         :text (format nil "~A ~:[answers with~;takes~] a ~A, not ~A." (rpc-method-path method)
                       (eq type (rpc-method-request-type method)) (protobuf:message-type-name type)
                       (printable-text (bounded-text message :limit 200 :escape t)))))

(defun convert-message (method type message)
  "MESSAGE, which is not of TYPE (the request or response type of METHOD), encoded by the codec of
METHOD as a raw message. Signal MISUSE if METHOD has no codec."
  (if (protobuf:coded-type-p type)
      (protobuf:code-message type message)
      (refuse-message method type message)))

(define-hot (check-message :inline t) ((method rpc-method) (type protobuf:message-type) message) t
  "MESSAGE itself if it is of TYPE, the request or response type of METHOD; else its encoding by the
codec of METHOD. Signal MISUSE if METHOD has no codec."
  (if (protobuf:message-of-type-p message type)
      message
      (convert-message method type message)))

(define-hot (only-request :inline t) ((method rpc-method) request) t
  "REQUEST, checked by CHECK-MESSAGE for METHOD."
  (check-message method (rpc-method-request-type method) request))

(define-hot (incoming-type :inline t) ((call call)) protobuf:message-type
  "The type of the messages that CALL receives."
  (let ((method (the rpc-method (call-rpc-method call))))
    (if (client-p call)
        (rpc-method-response-type method)
        (rpc-method-request-type method))))

(define-hot (sends-one-p :inline t) ((call call)) boolean
  "True if this end of CALL sends a single message, for which SEND is not the function."
  (let ((kind (rpc-method-kind (the rpc-method (call-rpc-method call)))))
    (or (eq kind :unary)
        (eq kind (if (client-p call) :server-streaming :client-streaming)))))

(define-hot may-send-p ((call call) (over boolean)) boolean
  "True if a message may be sent on CALL, false if CALL has ended with :ok. If a message must not be
sent for another reason, signal the reason. OVER is true if CALL's user has already called
CLOSE-SEND."
  (when (sends-one-p call)
    (misuse "~A has one ~:[answer, which is returned or given to REPLY~;request, given to the ~
             stub~]." call (client-p call)))
  (when over
    (misuse "CLOSE-SEND or FINISH has ended the messages of ~A." call))
  (case (call-status call)
    ((nil) t)
    (:ok nil)
    (t (error (call-condition call)))))

;;; Parking: a thread that must wait for its call sleeps in the call's wait queue.
;;;
;;;   the thread that waits                      the thread that rings
;;;   1. counts itself among the sleepers        1. stores the state that the other waits for
;;;   2. reads the futex                         2. changes the futex
;;;   3. checks whether it must still wait       3. if there are sleepers, wakes them
;;;   4. sleeps, unless the futex has changed
;;;      since step 2
;;;
;;; So a ring between steps 2 and 4 is never lost, and a ring without sleepers costs no system call.

(defun ensure-wait-queue (call)
  (let ((parts (ensure-parts call)))
    (or (parts-wait-queue parts)
        (let ((new (make-wait-queue)))
          (or (sb-ext:compare-and-swap (parts-wait-queue parts) nil new) new)))))

(define-hot ring-in-turn ((wait-queue wait-queue)) null
  "Wake the threads that sleep in WAIT-QUEUE, a call's, at the time that NOTIFY describes."
  (let ((loop (loop:held-loop)))
    (cond ((null loop) (ring wait-queue))
          ((not (wait-queue-ringing wait-queue))
           (setf (wait-queue-ringing wait-queue) t)
           (loop:call-last loop #'ring wait-queue))))
  nil)

(define-hot (notify :inline t) ((call call)) null
  "Wake the threads that wait for CALL. Call this after the store for which the sleepers wait. A
thread that runs a loop wakes the sleepers at the end of the turn, together with the sleepers of
other calls."
  (sb-thread:barrier (:memory))
  (let* ((parts (call-parts call))
         (wait-queue (and parts (parts-wait-queue parts))))
    (when wait-queue (ring-in-turn wait-queue)))
  nil)

(define-hot (notify-sleeper :inline t) ((call call)) null
  "Do what NOTIFY does, on a thread that runs no loop, after an atomic operation. It costs hardly
anything if no thread sleeps."
  (let* ((parts (call-parts call))
         (wait-queue (and parts (parts-wait-queue parts))))
    (when (and wait-queue (plusp (wait-queue-sleepers wait-queue))) (ring wait-queue)))
  nil)

(define-hot ring ((wait-queue wait-queue)) null
  "Wake the threads that sleep in WAIT-QUEUE."
  (setf (wait-queue-ringing wait-queue) nil)
  (let ((futex (wait-queue-futex wait-queue)))
    (sb-ext:atomic-incf (aref futex 0))
    (when (plusp (wait-queue-sleepers wait-queue)) (os:wake-futex futex)))
  nil)

(defun refuse-to-wait (call)
  "Signal an error, because this thread runs a loop and cannot wait for CALL: no other thread can
run the loop."
  (error (make-rpc-error
          ;; the reserve belongs to the server whose handler waits, so the error names that
          ;; handler's call
          :resource-exhausted :call (or *call* call) :ended-by :local
          :message "no reserve thread is left to run the loop while this one waits")))

(defun wait-for-call (call ready-p)
  "Wait until (funcall READY-P CALL) is true or CALL has ended; return the last value of READY-P. To
wait only for the end of CALL, let READY-P be CALL-STATUS. While this thread waits, it drives CALL's
loop; or it hands over the loop that it runs itself, and sleeps. The wait ends at the latest when
CALL ends, for example at its deadline or with its connection. Signal :resource-exhausted if this
thread runs a loop and no other thread is left to run it."
  (declare (type function ready-p))
  (cond ((funcall ready-p call))
        ((call-status call) nil)
        ((operate drive call ready-p) (funcall ready-p call))
        ((loop:prepare-to-wait) (operate park call ready-p))
        (t (refuse-to-wait call))))

(defun park (call ready-p &optional (leave-p (constantly nil)))
  "Sleep in CALL's wait queue until (funcall READY-P CALL) is true or CALL has ended; return the
last value of READY-P. LEAVE-P is also called at each wake-up, and PARK returns when LEAVE-P returns
true."
  (declare (type function ready-p leave-p))
  (let* ((wait-queue (ensure-wait-queue call))
         (futex (wait-queue-futex wait-queue)))
    (with-undoing ((sb-ext:atomic-incf (wait-queue-sleepers wait-queue))
                   (sb-ext:atomic-decf (wait-queue-sleepers wait-queue)))
      (loop
        (let ((value (aref futex 0)))
          (sb-thread:barrier (:memory))
          (let ((answer (funcall ready-p call)))
            (when (or answer (call-status call) (funcall leave-p)) (return answer))
            (loop:await-futex futex value)))))))

;;; The queue of messages that arrived

(defconstant +batch-prefix-octets+ 5
  "The length of gRPC's prefix, which precedes each message in a batch: the octet 0, and the
message's length in 4 octets.")

(define-hot charged-batch ((call call) item (size index)) batch
  "Return a batch of ITEM, of SIZE octets, and charge CALL with it. On CALL's loop."
  (let ((total (+ size +batch-octets+)))
    (sb-ext:atomic-incf (inbound-queued-octets (ensure-inbound call)) total)
    (make-batch :item item :size total)))

(define-hot (append-to-batch :inline t)
    ((batch batch) (octets octets) (start index) (end index) (bare boolean))
    boolean
  "Append the short messages in OCTETS to those in BATCH, whose item is octets, and return true;
return false if OCTETS do not fit. BARE is as for ADD-TO-BATCH."
  (let* ((item (batch-item batch))
         (at (batch-end batch))
         (to (if bare (+ at +batch-prefix-octets+) at))
         (size (- end start)))
    (declare (type octets item) (type index to))
    (when (<= (+ to size) (length item))
      (when bare
        (setf (aref item at) 0
              (u32be item (1+ at)) size))
      (setf (batch-end batch) (copy-octets octets start end item to))
      t)))

(define-hot push-batch ((call call) (batch batch)) null
  "Queue BATCH, a value of CHARGED-BATCH. On CALL's loop."
  (loop with inbound = (ensure-inbound call)
        for old = (inbound-incoming inbound)
        do (setf (batch-next batch) old)
        until (eq old (sb-ext:compare-and-swap (inbound-incoming inbound) old batch)))
  (notify call)
  nil)

(defconstant +shortest-batch+ 512
  "The minimum length, in octets, of the second batch of a read.")

(define-hot open-batch ((call call) (full (or null batch)) (need index) (longest index)) batch
  "Open a batch of CALL with room for NEED octets and return it. The first batch of a read is as
long as its message. Each further batch is about twice as long as FULL, the batch before, which is
queued. A further batch has at most LONGEST octets, or the length of its message if that is longer."
  (let* ((length (if full
                     (max need +shortest-batch+
                          (min longest (* 2 (- (batch-size full) +batch-octets+))))
                     need))
         ;; FULL is queued after this, since the heap may be full: then it must not be queued twice
         (new (charged-batch call (make-octets length) length)))
    (when full (push-batch call full))
    new))

(define-hot begin-batch ((call call) (inbound inbound) (octets octets) (start index) (end index)
                         (bare boolean) (longest index))
    (values index boolean)
  "As ADD-TO-BATCH, for messages for which the batch of INBOUND, CALL's part, has no room."
  (let* ((batch (inbound-batch inbound))
         (need (+ (- end start) (if bare +batch-prefix-octets+ 0)))
         (new (open-batch call batch need longest)))
    (append-to-batch new octets start end bare)
    (setf (inbound-batch inbound) new)
    (values (batch-size new) (null batch))))

(define-hot (add-to-batch :inline t)
    ((call call) (octets octets) (start index) (end index) (bare boolean) (longest index))
    (values index boolean)
  "Add the short messages in OCTETS, each with its prefix, or the single message without a prefix if
BARE is true, to CALL's batch of a read, which QUEUE-BATCH queues after the read. Return the octets
with which CALL is charged for the messages: 0 unless they need a new batch, which has at most
LONGEST octets, or more if a message needs them. The second value is true if the batch is the first
one of the read. On CALL's loop."
  (let* ((inbound (ensure-inbound call))
         (batch (inbound-batch inbound)))
    (if (and batch (append-to-batch batch octets start end bare))
        (values 0 nil)
        (begin-batch call inbound octets start end bare longest))))

(define-hot queue-batch ((call call) (inbound inbound)) boolean
  "Queue the batch of CALL, whose inbound part is INBOUND, and return true; return false if CALL has
no batch. On CALL's loop."
  (when-let ((batch (shiftf (inbound-batch inbound) nil)))
    (push-batch call batch)
    t))

(define-hot push-incoming ((call call) item (size index)) index
  "Queue ITEM, one message of SIZE octets. Return the octets with which CALL is charged for ITEM. On
CALL's loop."
  (let ((batch (charged-batch call item size)))
    (push-batch call batch)
    (batch-size batch)))

(define-hot uncharge ((inbound inbound) (size index)) index
  "Subtract SIZE, or as much as there is, from INBOUND's queued octets. Return the number of octets
subtracted. From any thread."
  (loop
    (let ((old (inbound-queued-octets inbound)))
      (when (= old (sb-ext:compare-and-swap (inbound-queued-octets inbound) old
                                            (- old (min old size))))
        (return (min old size))))))

(define-hot oldest-batch ((inbound inbound)) (or null batch)
  "The batch from which INBOUND's call receives next; it stays queued. Only the receiving thread may
call this."
  (or (inbound-received inbound)
      (when (inbound-incoming inbound)
        (let ((newest (loop for old = (inbound-incoming inbound)
                            until (eq old (sb-ext:compare-and-swap (inbound-incoming inbound)
                                                                   old nil))
                            finally (return old)))
              (oldest nil))
          (loop while newest
                do (shiftf newest (batch-next newest) oldest newest))
          (setf (inbound-received inbound) oldest)))))

(define-hot leave-batch ((call call) (inbound inbound) (batch batch)) null
  "Remove BATCH, the oldest, whose last message was taken."
  (sb-sys:without-interrupts            ; so that all accounts are discharged
    (setf (inbound-received inbound) (batch-next batch))
    (operate taken call (uncharge inbound (batch-size batch))))
  nil)

(define-hot (through :inline t) ((filter (or null function)) message) t
  "The value of FILTER, a function given to FILTER-MESSAGES, for MESSAGE; MESSAGE itself if FILTER
is nil."
  (if filter (funcall filter message) message))

(define-hot (filtered :inline t) ((call call) message) t
  "The value of the filter of CALL's incoming messages for MESSAGE; MESSAGE itself without a
filter."
  (let ((inbound (call-inbound call)))
    (through (and inbound (inbound-filter inbound)) message)))

(define-hot put-received ((call call) message (first boolean)) null
  "Add MESSAGE, which is not charged, to the messages that the receiving thread has taken out of
CALL's queue: before them if FIRST is true, else after them. Only the receiving thread may call
this."
  (let* ((inbound (ensure-inbound call))
         (received (inbound-received inbound))
         (batch (make-batch :item message)))
    (cond ((or first (null received))
           (setf (batch-next batch) received
                 (inbound-received inbound) batch))
          (t (loop while (batch-next received)
                   do (setf received (batch-next received)))
             (setf (batch-next received) batch))))
  nil)

(define-hot pop-incoming ((call call)) t
  "Take the oldest message of CALL's queue and return it; nil if the queue is empty. If the item's
octets are not a message, signal an RPC-ERROR, which ends CALL as well. Only the receiving thread
may call this."
  (let* ((inbound (call-inbound call))
         (batch (and inbound (oldest-batch inbound))))
    (when batch
      (let ((item (batch-item batch)))
        (cond ((typep item 'octets)
               (let* ((start (+ (batch-at batch) +batch-prefix-octets+))
                      (end (+ start (u32be item (1+ (batch-at batch))))))
                 (declare (type index start end))
                 (setf (batch-at batch) end)
                 (when (= end (batch-end batch)) (leave-batch call inbound batch))
                 (through (inbound-filter inbound) (operate decode call item start end))))
              (t (leave-batch call inbound batch)
                 (through (inbound-filter inbound) (operate decode call item 0 0))))))))

(define-hot (pop-taken :inline t) ((call call)) t
  "Do what POP-INCOMING does, but only with messages that this thread has taken out of the queue."
  (let ((inbound (call-inbound call)))
    (and inbound (inbound-received inbound) (pop-incoming call))))

(defun receivable-p (call)
  "True if a message of CALL waits, or CALL's peer has ended its side."
  (or (messages-wait-p call)
      (call-half-closed call)))

;;; The end of a call

(defun end-call (call status &key (message "") details (ended-by :peer) cause (sent t)
                               (observer (operate observer call)))
  "Store the end of CALL, notify OBSERVER and wake the threads that wait for CALL. Return false if
CALL had ended already. On CALL's loop."
  (unless (call-status call)
    (unless (and (eq status :ok) (null details) (zerop (length (the string message))))
      (setf (ending-outcome (ensure-ending call))
            (make-outcome :message message :details details :ended-by ended-by :cause cause
                          :sent sent :stage (call-stage call) :last-error (call-last-error call)
                          :unsent (call-unsent-octets call))))
    (sb-thread:barrier (:write))
    (setf (call-status call) status)
    (observe call-ended observer call)
    (notify call)
    (let ((callbacks (call-callbacks call)))
      (when (and callbacks (callbacks-on-ended callbacks)) (operate schedule call)))
    t))

(defun call-outcome (call)
  "The OUTCOME of CALL, or nil if CALL runs or has ended with :ok and without text and details."
  (let ((ending (call-ending call)))
    (and ending (ending-outcome ending))))

(defun whole-status (call ending)
  "Return the values of FINAL-STATUS for CALL, which has ENDING."
  (let ((outcome (ending-outcome ending)))
    (values (call-status call)
            (if outcome (outcome-message outcome) "")
            (and outcome (outcome-details outcome))
            (ending-trailers ending))))

(define-hot (final-status :inline t) ((call call))
    (values symbol string (or null octets) list)
  "The end of CALL, as four values: its status, the status's text, its details (octets of
grpc-status-details-bin or nil), and the trailers that a handler's call sends, an alist."
  (if-let ((ending (call-ending call)))
    (whole-status call ending)
    (values (call-status call) "" nil '())))

(defun trailer-fields (call)
  "The trailing metadata received for CALL, a client's, in the form of the transport. Before CALL
ends, SETF may change it."
  (let ((ending (call-ending call)))
    (if ending (ending-trailer-fields ending) #())))

(defun (setf trailer-fields) (fields call)
  (setf (ending-trailer-fields (ensure-ending call)) fields))

(defun note-failed-attempt (call number peer status message seconds)
  "Note that an attempt of CALL, a client's, has failed with STATUS and MESSAGE; NUMBER other
attempts came before it. On CALL's loop."
  (let* ((ending (ensure-ending call))
         (failed (ending-failed ending)))
    (when (< (length failed) +most-failed-attempts+)
      (setf (ending-failed ending)
            (cons (list :number number :peer peer :status status :message message
                        :seconds seconds)
                  failed)))
    (setf (ending-attempts ending) (max (1+ number) (ending-attempts ending)))))

(defun failed-attempts (call)
  "Return the failed attempts of CALL, a client's, the oldest first, 32 at most; nil for a call that
was tried only once. Each is a plist: :NUMBER, the number of attempts begun before it; :PEER, the
server's address, or nil if no server was found; :STATUS and :MESSAGE of its end; :SECONDS from the
beginning of CALL to that end. The last failure may be the one that has ended CALL. From any
thread."
  (let ((ending (call-ending call)))
    (and ending (reverse (ending-failed ending)))))

(defun call-trailers (call)
  "On a client: the trailing metadata of CALL, an alist; nil before CALL has ended. In a handler:
the trailers that CALL will send, which SETF changes. SETF signals MISUSE for metadata that cannot
be sent, or if CALL has been answered and other code than CALL's sets them. From any thread."
  (let ((ending (call-ending call)))
    (cond ((null ending) '())
          ((plusp (length (ending-trailer-fields ending)))
           (operate metadata call (ending-trailer-fields ending)))
          (t (ending-trailers ending)))))

(defun refuse-if-answered (call part)
  "Signal MISUSE if CALL has been answered, since PART of CALL can then no longer be changed."
  (when (eq :ok (call-status call))
    (misuse "~A has ended, and its ~A were sent." call part)))

(defun (setf call-trailers) (metadata call)
  ;; checked under the lock, since another thread may answer while an interceptor runs
  (unless (eq call *call*) (refuse-if-answered call "trailers"))
  (setf (ending-trailers (ensure-ending call)) (check-metadata metadata)))

(defun call-condition (call)
  "Return the RPC-ERROR for the end of CALL, which must have ended."
  (let ((outcome (or (call-outcome call) (make-outcome))))
    (make-rpc-error (call-status call)
                    :message (outcome-message outcome) :details (outcome-details outcome)
                    :trailers (call-trailers call) :call call :peer (call-peer call)
                    :ended-by (outcome-ended-by outcome) :cause (outcome-cause outcome)
                    :sent (outcome-sent outcome))))

;;; Data of the transport

(defun call-stage (call)
  "The stage that CALL has reached, or had reached when it ended: one of the keywords of
CALL-STAGES, or nil if it is not known. On its loop."
  (let ((outcome (call-outcome call)))
    (if outcome (outcome-stage outcome) (operate stage call))))

(defun call-last-error (call)
  "The text of the last failure of the step for which CALL waits, such as connecting; nil if that
step has not failed. On its loop."
  (operate last-error call))

(defun call-unsent-octets (call)
  "The number of octets of CALL's user that the peer has not received, or had not received when CALL
ended. On its loop."
  (let ((outcome (call-outcome call)))
    (if outcome (outcome-unsent outcome) (operate unsent-octets call))))

(defun call-peer (call)
  "The address of CALL's peer as a string, \"127.0.0.1:50051\", or nil before CALL has a peer. From
any thread."
  (operate peer call))

(defun call-security (call)
  "The TLS data of CALL's connection: an object for SECURITY-PEER-CERTIFICATE, SECURITY-PROTOCOL,
SECURITY-CIPHER, SECURITY-SERVER-NAME and SECURITY-RESUMED-P. Nil for a connection without TLS, or
while CALL has no connection. From any thread."
  (operate security call))
