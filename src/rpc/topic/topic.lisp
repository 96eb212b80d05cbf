;;;; Topics. A message that is broadcast to a topic is sent to every call that subscribes to the
;;;; topic; all these calls get the messages in the same order. The calls are handlers' streams, on
;;;; any loop and over any protocol. Their handlers have returned, so no call holds a thread.
;;;;
;;;; Every subscription has a queue of its own, so a slow subscriber delays neither the others nor
;;;; the sender. A message is sent at once while its call has room (TRY-SEND), else when there is
;;;; room again (ON-WRITABLE). The topic's SLOW is the rule for a full queue:
;;;;
;;;;   :end          the call ends with :resource-exhausted; it may subscribe again
;;;;   :drop-oldest  the oldest message in the queue is dropped; with :queue 1 only the newest stays
;;;;   :drop-newest  the new message is not put into the queue
;;;;
;;;; A message that cannot be sent, since a filter of the call fails or the message is too long for
;;;; the call, is logged. A call whose topic has :end, or whose filter has failed, ends; any other
;;;; call misses the message, which is counted.
;;;;
;;;; Only one thread at a time may use a call, so one thread at a time sends the messages of its
;;;; queues: it pumps the call's SUBSCRIBER, which has the call's subscriptions to all topics:
;;;;
;;;;   1. The first thread that arrives sets PUMPING; another thread sets AGAIN, and leaves.
;;;;   2. The pump removes messages from the queues and sends them, until the queues are empty, or
;;;;      the call refuses a message, which the pump puts back.
;;;;   3. The pump leaves unless AGAIN is set; if AGAIN is set, it continues at 2.
;;;;
;;;; Interrupts are off except in filters and where a thread waits. If an interrupt makes a thread
;;;; leave, the loops of the calls do the rest of the thread's work (ON-LOOP).
;;;;
;;;; Locks are taken in this order: the topic's, a subscription's or a subscriber's. While a lock is
;;;; held, no operation of a call and no function of users runs.

(in-package #:clgrpc.topic)

(defstruct (topic (:constructor %make-topic (slow queue-limit past-limit)) (:copier nil))
  "A stream of messages with one sender and many receivers; see MAKE-TOPIC."
  ;; the rule for a call whose queue is full
  (slow :end :type (member :end :drop-oldest :drop-newest) :read-only t)
  (queue-limit 0 :type index :read-only t) ; the most waiting messages of a subscription
  (past-limit 0 :type index :read-only t) ; how many of the last messages are kept
  (lock (sb-thread:make-mutex :name "clgrpc topic") :read-only t) ; guards all slots below
  ;; subscriptions by their calls
  (subscriptions (make-hash-table :test 'eq) :type hash-table :read-only t)
  (position 0 :type index)              ; the number of the last message
  (past (make-fifo) :type fifo :read-only t) ; the last messages
  (past-count 0 :type index)            ; the number of messages in PAST
  (dropped 0 :type index)               ; messages dropped, or that could not be sent
  (ended 0 :type index)                 ; calls that were ended because they were slow
  (closing nil :type list))             ; the arguments of FINISH, once the topic is closed

(defstruct (subscriber (:constructor make-subscriber (call)) (:copier nil))
  "A call that receives the messages of topics, and its state."
  (call nil :read-only t)               ; a handler's call
  (topics '() :type list)               ; the topics that the subscriber leaves when it ends
  ;; subscriptions to these topics, and to topics after which the call must end
  (subscriptions '() :type list)
  (lock (sb-thread:make-mutex :name "clgrpc subscriber") :read-only t) ; guards all slots below
  (pumping nil :type boolean)           ; a thread sends the messages in the queues
  (again nil :type boolean))            ; the pump must look again before it leaves

(defstruct (subscription (:constructor make-subscription (topic subscriber limit)) (:copier nil))
  "The messages of a topic that a call will receive."
  (topic nil :type topic :read-only t)  ; the topic whose messages the subscription receives
  (subscriber nil :type subscriber :read-only t) ; the subscriber of the call
  (lock (sb-thread:make-mutex :name "clgrpc subscription") :read-only t) ; guards all slots below
  (queue (make-fifo) :type fifo :read-only t) ; messages that must be sent
  (count 0 :type index)                 ; the number of messages in QUEUE
  ;; the most messages in QUEUE: the topic's limit plus the messages of the past with which the
  ;; subscription began, less one for each of these that is sent
  (limit 0 :type index)
  (cut nil :type boolean)               ; the call ends instead of sending the waiting messages
  (closing nil :type list))             ; the arguments of FINISH, to be called once QUEUE is empty

(declaim (sb-ext:freeze-type topic subscriber subscription))

(defun subscription-call (subscription)
  (subscriber-call (subscription-subscriber subscription)))

(defun check-topic (thing)
  "Return THING. Signal MISUSE unless THING is a topic."
  (if (typep thing 'topic)
      thing
      (misuse "~S is not a topic, such as the value of MAKE-TOPIC." thing)))

(document-functions
  topic-position "The number of the last message that was broadcast to TOPIC, from 1; 0 before the
first. From any thread.")

(define-printer (topic topic)
  "~D subscribers, ~D messages~:[~;, closed~]" (hash-table-count (topic-subscriptions topic))
  (topic-position topic) (topic-closing topic))

(define-printer (subscriber subscriber)
  "~A, ~D topics" (subscriber-call subscriber) (length (subscriber-topics subscriber)))

(define-printer (subscription subscription)
  "~A, ~D wait" (subscription-call subscription) (subscription-count subscription))

(define-keyword-function make-topic (&key (slow :end) (queue 100) (past 0))
  "Return a topic: BROADCAST sends messages to it, and all calls that SUBSCRIBE receive them.
SLOW   the rule for a call that is too slow, once QUEUE messages wait for it: :end, the default,
       ends it with :resource-exhausted; :drop-oldest and :drop-newest drop messages. If a call
       cannot send a message, for example because the message is too long, the call ends with the
       status of that error under the rule :end, and misses the message under the other rules; a
       call whose filter fails ends
QUEUE  an integer, 1 or more: how many messages may wait for each call; 100 by default. Messages
       that are being sent do not count, since :send-budget-octets limits them; the messages of PAST
       with which a call begins do not count either
PAST   an integer, 0 or more: how many of the last messages are kept for calls that subscribe with
       :from; 0 by default
Signal MISUSE for a wrong argument. From any thread."
  (unless (member slow '(:end :drop-oldest :drop-newest))
    (misuse ":SLOW of a topic is :end, :drop-oldest or :drop-newest, not ~S." slow))
  (unless (typep queue '(integer 1 10000000))
    (misuse ":QUEUE of a topic is 1 to 10000000 messages, not ~S." queue))
  (unless (typep past '(integer 0 10000000))
    (misuse ":PAST of a topic is 0 to 10000000 messages, not ~S." past))
  (%make-topic slow queue past))

;;; Sending

(defun next-waiting (subscription)
  "Remove the oldest message from the queue of SUBSCRIPTION, and return it; nil if the queue is
empty."
  (sb-thread:with-mutex ((subscription-lock subscription))
    (let ((message (dequeue (subscription-queue subscription))))
      (when message (decf (subscription-count subscription)))
      message)))

(defun put-back (subscription message)
  "Put MESSAGE, which SUBSCRIPTION's call has refused, back to the head of the queue."
  (sb-thread:with-mutex ((subscription-lock subscription))
    (unless (subscription-cut subscription)
      (enqueue-first message (subscription-queue subscription))
      (incf (subscription-count subscription)))))

(defun end-instead (subscription status text)
  "End SUBSCRIPTION's call with STATUS and TEXT instead of sending the messages in the queue. The
caller must hold the subscription's lock."
  (clear-fifo (subscription-queue subscription))
  (setf (subscription-count subscription) 0
        (subscription-cut subscription) t
        (subscription-closing subscription) (list :status status :message text)))

(defun note-unsent (subscription condition)
  "Handle a message of SUBSCRIPTION that could not be sent because of CONDITION: count it as dropped
if messages may be missing, else end the call."
  (let ((topic (subscription-topic subscription))
        (refused (typep condition 'status:rpc-error)))
    (cond ((and refused (not (eq :end (topic-slow topic))))
           (sb-thread:with-mutex ((topic-lock topic))
             (incf (topic-dropped topic))))
          (t (leave-topic topic (subscription-call subscription))
             (sb-thread:with-mutex ((subscription-lock subscription))
               (if refused
                   (end-instead subscription (status:rpc-error-status condition)
                                (status:rpc-error-message condition))
                   (end-instead subscription :internal "a message could not be sent")))))))

(defun send-message (call message)
  "Do what TRY-SEND does, but also return nil if CALL has ended. Interrupts are off, except in
filters and while the function waits for room; if an interrupt ends it at such a point, MESSAGE is
not sent."
  (sb-sys:without-interrupts
    (handler-case
        (let ((message (sb-sys:with-local-interrupts (rpc:outgoing call message))))
          (sb-sys:allow-with-interrupts (rpc:operate send call message nil :auto)))
      (status:rpc-error (error)
        (unless (rpc:call-status call) (error error))))))

(defun narrow (subscription)
  "Note that a message of SUBSCRIPTION was sent; if it was a message of the past, reduce the limit
of waiting messages by one."
  (when (< (topic-queue-limit (subscription-topic subscription)) (subscription-limit subscription))
    (sb-thread:with-mutex ((subscription-lock subscription))
      (decf (subscription-limit subscription)))))

(defun send-next (subscription)
  "Send the next message of SUBSCRIPTION, or end its call if it must end; return true if there may
be more to do at once. Interrupts are off, but may be enabled inside."
  (sb-sys:without-interrupts            ; no interrupts while this thread has a message
    (let ((message (next-waiting subscription))
          (call (subscription-call subscription))
          (done nil))
      (cond (message
             (unwind-protect
                  (multiple-value-bind (sent condition)
                      (loop:guarding (:topic-error :call call)
                        ;; a timeout of the broadcaster may end while the call sends
                        (handler-bind ((sb-ext:timeout #'loop:pass-timeout))
                          (sb-sys:allow-with-interrupts (send-message call message))))
                    (when condition (note-unsent subscription condition))
                    (when (setf done (or sent condition)) (narrow subscription)))
               (unless done (put-back subscription message)))
             (and done t))
            (t (let ((closing (sb-thread:with-mutex ((subscription-lock subscription))
                                (shiftf (subscription-closing subscription) '()))))
                 (when closing
                   (loop:guarding (:topic-error :call call)
                     (handler-case (apply #'rpc:finish call closing)
                       (status:rpc-error () nil))))
                 nil))))))

(defun leave-p (subscriber)
  "True if the thread that pumps SUBSCRIBER may leave; false if another thread has arrived
meanwhile."
  (sb-thread:with-mutex ((subscriber-lock subscriber))
    (if (shiftf (subscriber-again subscriber) nil)
        nil
        (progn (setf (subscriber-pumping subscriber) nil)
               t))))

(defun on-loop (subscriber)
  "Let the loop of SUBSCRIBER's call send the messages in the queues."
  (rpc:after (subscriber-call subscriber) 0 (lambda () (pump subscriber))))

(defun pump (subscriber)
  "Send the messages in the queues of SUBSCRIBER, as far as its call has room."
  (sb-sys:without-interrupts
    (when (sb-thread:with-mutex ((subscriber-lock subscriber))
            (if (subscriber-pumping subscriber)
                (progn (setf (subscriber-again subscriber) t)
                       nil)
                (setf (subscriber-pumping subscriber) t)))
      (let ((left nil))
        (unwind-protect
             (loop
               (dolist (subscription (subscriber-subscriptions subscriber))
                 (loop while (sb-sys:allow-with-interrupts (send-next subscription))))
               (when (setf left (leave-p subscriber)) (return)))
          (unless left
            (sb-thread:with-mutex ((subscriber-lock subscriber))
              (setf (subscriber-pumping subscriber) nil
                    (subscriber-again subscriber) nil))
            (on-loop subscriber)))))))

(defun pump-all (subscriptions)
  "Send the messages in the queues of SUBSCRIPTIONS' calls."
  (sb-sys:without-interrupts
    (unwind-protect (loop while subscriptions
                          do (sb-sys:allow-with-interrupts
                               (pump (subscription-subscriber (pop subscriptions)))))
      (dolist (subscription subscriptions) (on-loop (subscription-subscriber subscription))))))

(defun put-in-queue (topic subscription message)
  "Add MESSAGE to the queue of SUBSCRIPTION to TOPIC. Return the number of messages dropped for
MESSAGE; or :slow if the queue has no room and the call must end. The caller must hold TOPIC's
lock."
  (sb-thread:with-mutex ((subscription-lock subscription))
    (let ((queue (subscription-queue subscription))
          (full (<= (subscription-limit subscription) (subscription-count subscription))))
      (flet ((add ()
               (enqueue message queue)
               (incf (subscription-count subscription))))
        (cond ((not full) (add) 0)
              (t (ecase (topic-slow topic)
                   (:end
                    (end-instead subscription :resource-exhausted
                                 "the messages of the stream are not read")
                    :slow)
                   (:drop-newest 1)
                   (:drop-oldest
                    (dequeue queue)
                    (decf (subscription-count subscription))
                    (add)
                    1))))))))

(defun keep-past (topic message)
  "Keep MESSAGE as the last message of TOPIC, whose lock the caller must hold."
  (enqueue message (topic-past topic))
  (if (< (topic-past-count topic) (topic-past-limit topic))
      (incf (topic-past-count topic))
      (dequeue (topic-past topic))))

(defun check-fit (topic message)
  "Signal MISUSE if MESSAGE is not of the type that all calls of TOPIC send. The caller must hold
TOPIC's lock. A thread that sends the message later, from a queue, could not report the error to its
sender."
  (loop for call being the hash-keys of (topic-subscriptions topic)
        do (rpc:outgoing call message nil)))

(defun broadcast (topic message)
  "Send MESSAGE to all calls that subscribe to TOPIC; each gets messages in the order of the
broadcasts. Return the number of MESSAGE, see TOPIC-POSITION. Do not change MESSAGE afterwards.
BROADCAST never waits for a slow call. Signal MISUSE if TOPIC is closed, or MESSAGE is not of the
response type of all these calls; then no call gets it. A call that cannot send MESSAGE, because
MESSAGE is too long or the call's filter fails, misses MESSAGE or ends; MAKE-TOPIC describes the
rule. From any thread."
  (check-topic topic)
  (let ((heard '()) (number 0))
    (sb-sys:without-interrupts          ; otherwise a queued message might not be sent
      (sb-thread:with-mutex ((topic-lock topic))
        (when (topic-closing topic) (misuse "~A is closed." topic))
        (check-fit topic message)
        (setf number (incf (topic-position topic)))
        (loop for subscription being the hash-values of (topic-subscriptions topic)
              for lost = (put-in-queue topic subscription message)
              do (push subscription heard)
                 (cond ((eq :slow lost)
                        (incf (topic-ended topic))
                        (forget-subscriber topic (subscription-call subscription)))
                       (t (incf (topic-dropped topic) lost))))
        (when (plusp (topic-past-limit topic)) (keep-past topic message)))
      (sb-sys:allow-with-interrupts (pump-all heard)))
    number))

;;; Subscribing

(defun subscriber-of (call)
  "The SUBSCRIBER of CALL, a handler's call, which leaves its topics when it ends."
  (or (rpc:call-value call 'topics)
      (let ((subscriber (make-subscriber call)))
        (setf (rpc:call-value call 'topics) subscriber)
        (rpc:on-end call (lambda ()
                           (loop for topic = (sb-ext:atomic-pop (subscriber-topics subscriber))
                                 while topic do (unsubscribe topic call))))
        subscriber)))

(defun past-from (topic from)
  "The messages of TOPIC after the message with the number FROM; if FROM is :past, all messages that
are kept. Signal :out-of-range if one of these messages is no longer kept, or if no message has the
number FROM yet. The caller must hold the topic's lock."
  (let* ((kept (fifo-items (topic-past topic)))
         (before (- (topic-position topic) (topic-past-count topic))))
    (cond ((eq :past from) (copy-list kept))
          ((<= before from (topic-position topic)) (copy-list (nthcdr (- from before) kept)))
          (t (status:fail :out-of-range
                          (format nil "subscriptions can begin after message ~D to ~D, not after ~D"
                                  before (topic-position topic) from))))))

(defun subscribe (topic call &key from)
  "Send each message that is broadcast to TOPIC on CALL, a handler's stream of answers, until CALL
ends, or UNSUBSCRIBE. Return CALL, as the value for the handler to return; CALL needs no thread.
FROM  the first message for CALL: nil, the default, means the next message that is broadcast; :past
      means the oldest message that is kept; an integer, for a client that resumes, means the
      message after the one with this number (TOPIC-POSITION)
Signal :out-of-range, which ends CALL, if some of these messages are no longer kept, or if FROM is
greater than the number of the last message; MISUSE for a wrong argument. If TOPIC is closed, CALL
ends with the status of TOPIC's other calls. A call may subscribe to several topics. Until CALL
ends or unsubscribes, only topics may send on CALL and set its ON-WRITABLE. From any thread, but
only one thread at a time may do this for a call."
  (check-topic topic)
  (unless (typep from '(or null (eql :past) index))
    (misuse ":FROM is nil, :past or the number of a message, not ~S." from))
  (when (or (rpc:client-p call) (and (rpc:call-rpc-method call) (rpc:answers-once-p call)))
    (misuse "~A is not a handler's stream of answers." call))
  (let* ((subscriber (subscriber-of call))
         (subscription (make-subscription topic subscriber (topic-queue-limit topic))))
    (sb-sys:without-interrupts          ; a call that the topic knows must get its messages
      (sb-thread:with-mutex ((topic-lock topic))
        (when (gethash call (topic-subscriptions topic))
          (misuse "~A subscribes to ~A already." call topic))
        (when from
          (dolist (message (past-from topic from))
            (enqueue message (subscription-queue subscription))
            (incf (subscription-count subscription))
            (incf (subscription-limit subscription))))
        (sb-ext:atomic-push subscription (subscriber-subscriptions subscriber))
        (cond ((topic-closing topic)
               (setf (subscription-closing subscription) (topic-closing topic)))
              (t (setf (gethash call (topic-subscriptions topic)) subscription)
                 (sb-ext:atomic-push topic (subscriber-topics subscriber)))))
      ;; CALL may have ended, and left its topics, before this point
      (when (rpc:call-status call) (unsubscribe topic call))
      (rpc:on-writable call (lambda () (pump subscriber)))
      (sb-sys:allow-with-interrupts (pump subscriber))))
  call)

(defun forget-subscriber (topic call)
  "Remove CALL from TOPIC, whose lock the caller must hold, and TOPIC from CALL's topics. Return the
subscription of CALL, or nil if it has none."
  (when-let ((subscription (gethash call (topic-subscriptions topic))))
    (remhash call (topic-subscriptions topic))
    (sb-ext:atomic-update (subscriber-topics (subscription-subscriber subscription))
                          (lambda (topics) (remove topic topics)))
    subscription))

(defun leave-topic (topic call)
  "Remove CALL from TOPIC, and drop the messages that wait for CALL. Return the subscription of
CALL, or nil if it has none."
  (when-let ((subscription (sb-thread:with-mutex ((topic-lock topic))
                             (forget-subscriber topic call))))
    (sb-thread:with-mutex ((subscription-lock subscription))
      (clear-fifo (subscription-queue subscription))
      (setf (subscription-count subscription) 0))
    subscription))

(defun unsubscribe (topic call)
  "Send CALL no more messages of TOPIC, except a message whose sending has begun. UNSUBSCRIBE does
not end CALL. Return true if CALL had subscribed. Signal MISUSE for another object than a topic.
From any thread."
  (when-let ((subscription (leave-topic (check-topic topic) call)))
    (sb-ext:atomic-update (subscriber-subscriptions (subscription-subscriber subscription))
                          (lambda (subscriptions) (remove subscription subscriptions)))
    t))

(define-keyword-function close-topic (topic &key (status :ok) (message ""))
  "End all calls that subscribe to TOPIC with STATUS, a keyword, and its text MESSAGE, each after it
has sent the messages that were broadcast before. Calls that subscribe later end in the same way at
once. Return true unless TOPIC was closed already. Signal MISUSE if STATUS is not a status or
MESSAGE not a string. From any thread."
  (check-topic topic)
  (status:status-code status)
  (unless (stringp message) (misuse "The message of a status is a string, not ~S." message))
  (sb-sys:without-interrupts
    (let ((subscriptions
            (sb-thread:with-mutex ((topic-lock topic))
              (when (topic-closing topic) (return-from close-topic nil))
              (setf (topic-closing topic) (list :status status :message message))
              (loop for subscription being the hash-values of (topic-subscriptions topic)
                    do (sb-thread:with-mutex ((subscription-lock subscription))
                         (setf (subscription-closing subscription) (topic-closing topic)))
                    collect subscription))))
      (sb-sys:allow-with-interrupts (pump-all subscriptions))))
  t)

(defun topic-statistics (topic)
  "Return a plist of counts of TOPIC: :SUBSCRIBERS, the calls that subscribe; :MESSAGES, the
messages broadcast; :WAITING, the messages that wait in queues; :DROPPED, the messages dropped
because queues were full or the messages could not be sent; :ENDED, the calls ended because their
queues were full. Signal MISUSE for another object than a topic. From any thread."
  (sb-thread:with-mutex ((topic-lock (check-topic topic)))
    (list :subscribers (hash-table-count (topic-subscriptions topic))
          :messages (topic-position topic)
          :waiting (loop for subscription being the hash-values of (topic-subscriptions topic)
                         sum (subscription-count subscription))
          :dropped (topic-dropped topic)
          :ended (topic-ended topic))))
