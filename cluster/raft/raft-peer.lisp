;;;; Peers: a peer represents another member of a group, to which this member sends. A peer has a
;;;; channel that is connected from the start and again whenever its connection is lost, and a
;;;; pipeline.
;;;;
;;;; The pipeline's state, under LOCK, which is held for a few instructions and never while a
;;;; message is sent or the user's code runs:
;;;;
;;;;     WAITING            requests that were taken, oldest first; they wait for a stream and for a
;;;;                        place in its window
;;;;     HELD               the next batch, for which the stream had no room
;;;;     SENT               requests that were sent, oldest first; an answer is that of the oldest
;;;;     ENTRIES, OCTETS    the sums of all of these, which are bounded

(in-package #:clgrpc.raft)

(defstruct (pipe (:copier nil))
  "The requests that flow to a peer without waiting for answers."
  (lock (sb-thread:make-mutex :name "clgrpc raft peer") :read-only t) ; guards the slots below
  ;; notified when there is room
  (waitqueue (sb-thread:make-waitqueue :name "clgrpc raft peer") :read-only t)
  (waiting (make-fifo) :type fifo) ; queued requests that are not sent yet
  (sent (make-fifo) :type fifo) ; batches that are not answered yet
  ;; the batch for which the stream had no room; it comes after SENT
  (held nil :type (or null batch))
  (sent-count 0 :type index)            ; how many requests are in SENT
  (entries 0 :type index)               ; the entries in WAITING, HELD and SENT
  (octets 0 :type (unsigned-byte 62))   ; octets of data in these entries
  ;; threads that call functions of requests that were removed from it
  (telling 0 :type index)
  (since-ns 0 :type nanoseconds)        ; since when no answer has come, while one is awaited
  (call nil)                            ; the stream, or nil
  (pumping '() :type list)              ; the claim of the thread that sends, a fresh list
  (rung nil :type boolean)              ; the stream had room since the last batch was tried
  (full nil :type boolean)              ; HELD is not to be tried again until the stream has room
  (ending nil :type boolean) ; the pipe's requests are being ended, since the stream has broken
  (error nil :type (or null condition)) ; the reason, if this end has given the stream up
  (closed nil :type boolean))           ; the peer accepts no more requests

(declaim (sb-ext:freeze-type pipe))

(define-printer (pipe pipe)
  "~D entries, ~:D octets, ~D batches sent" (pipe-entries pipe) (pipe-octets pipe)
  (pipe-sent-count pipe))

(defclass peer ()
  ((name :initarg :name :reader peer-name) ; the member's
   (group :initarg :group :reader peer-group) ; the group to which the peer and the sender belong
   (sender :initarg :sender :reader peer-sender) ; the name of the member that sends to the peer
   (channel :initarg :channel :reader peer-channel) ; the channel to the member
   ;; true: close the channel with the peer
   (own-channel :initarg :own-channel :reader peer-own-channel-p)
   (timeout :initarg :timeout :reader peer-timeout) ; how long an answer may take, in seconds
   (window :initarg :window :reader peer-window) ; batches of the pipeline sent and not answered
   ;; the most entries in one request
   (batch-entries :initarg :batch-entries :reader peer-batch-entries)
   ;; the most octets of data in a request of several entries
   (batch-octets :initarg :batch-octets :reader peer-batch-octets)
   (max-entries :initarg :max-entries :reader peer-max-entries) ; the most entries in the pipeline
   ;; the most octets of data in the pipeline
   (max-octets :initarg :max-octets :reader peer-max-octets)
   (pipe :initform (make-pipe) :reader peer-pipe) ; the pipeline of entries to the peer
   ;; the kinds of messages that are under way; of each kind one at a time
   (turns :initform '() :accessor peer-turns)
   (meter :initarg :meter :reader peer-meter)) ; measurements
  (:documentation "Another member: see MAKE-PEER."))

(document-functions
  peer-name "The name of the member that PEER represents."
  peer-group "The name of the group of the member that PEER represents."
  peer-sender "The name of the member that sends to PEER."
  peer-channel "The channel of PEER, also for other services of the member.")

(define-printer (peer peer)
  "~A, ~(~A~), ~A" (peer-name peer) (calling:channel-state (peer-channel peer)) (peer-pipe peer))

(defun begin-to-connect (channel)
  "Make CHANNEL connect, without waiting."
  (handler-case (calling:ensure-connected channel :timeout 0)
    (status:rpc-error ())))

(defun make-peer (name target &rest options
                  &key group sender metrics (timeout 1) (window 32) (batch-entries 1000)
                    (batch-octets 1048576) (max-entries 10000) (max-octets 67108864)
                    (keepalive-seconds 10) (backoff-initial-seconds 0.1) (backoff-maximum-seconds 2)
                  &allow-other-keys)
  "Return a peer that represents the member NAME of GROUP, to which the member SENDER sends. NAME,
SENDER and GROUP are strings, which are sent with each message. TARGET is a target as MAKE-CHANNEL
accepts it, such as \"10.0.0.2:7000\", or a channel, such as SERVER-CHANNEL returns, which
CLOSE-PEER leaves open. The peer's channel connects at once, in the background, and again whenever
the connection is lost. TIMEOUT is the longest time for an answer, in seconds; in the pipeline, the
longest time without an answer while answers are awaited. For the pipeline, WINDOW is the maximum
number of requests under way. BATCH-ENTRIES and BATCH-OCTETS are the maximum numbers of entries, and
of octets of their data, in one request. MAX-ENTRIES and MAX-OCTETS are the maximum numbers of these
in the whole pipeline until they are answered. With METRICS, messages are counted there under the
peer's NAME. The other keywords are MAKE-CHANNEL's, such as :credentials. Signal MISUSE for wrong
arguments. From any thread; end it with CLOSE-PEER."
  (setf name (checked-name name)
        group (checked-name group)
        sender (checked-name sender))
  (check-type timeout (real (0)))
  (check-type window (integer 1 10000))
  (check-type batch-entries (integer 1))
  (check-type batch-octets (integer 1))
  (check-type max-entries (integer 1))
  (check-type max-octets (integer 1))
  (let* ((own (stringp target))
         (rest (alexandria:remove-from-plist
                options :group :sender :metrics :timeout :window :batch-entries :batch-octets
                :max-entries :max-octets :keepalive-seconds :backoff-initial-seconds
                :backoff-maximum-seconds)))
    (unless (or own (typep target 'method:channel))
      (misuse "The target of a peer is a string or a channel, not ~S." target))
    (when (and rest (not own))
      (misuse "The channel was given, so its options cannot be set: ~S." rest))
    (let ((channel (if own
                       ;; round_robin reconnects by itself, pick_first only for a call
                       (apply #'client:make-channel target :balance :round-robin :idle-seconds 0
                              :keepalive-seconds keepalive-seconds
                              :backoff-initial-seconds backoff-initial-seconds
                              :backoff-maximum-seconds backoff-maximum-seconds rest)
                       target)))
      (begin-to-connect channel)
      (make-instance 'peer :name name :group group :sender sender :channel channel
                     :own-channel own :timeout timeout :window window
                     :batch-entries batch-entries
                     :batch-octets batch-octets :max-entries max-entries
                     :max-octets max-octets
                     :meter (make-meter
                             name
                             (metrics:ensure-instruments metrics 'instruments
                                                         #'new-instruments))))))

(defun peer-statistics (peer)
  "Return the statistics of PEER, a plist:
 :STATE, of its channel;
 :MESSAGES, the number of answered messages, and :FAILURES, of messages that failed;
 :ENTRIES and :OCTETS, the numbers of entries and of octets of data that were sent;
 :LATENCY, the mean time to an answer in seconds, or nil;
 :STREAMS, the number of streams that the pipeline has begun;
 :QUEUED-ENTRIES, :QUEUED-OCTETS and :UNDER-WAY, the entries, octets and unanswered requests that
   the pipeline has now.
From any thread."
  (let ((meter (peer-meter peer))
        (pipe (peer-pipe peer)))
    (sb-thread:with-mutex ((meter-lock meter))
      (list :state (calling:channel-state (peer-channel peer))
            :messages (meter-messages meter) :failures (meter-failures meter)
            :entries (meter-entries meter) :octets (meter-octets meter)
            :latency (and (plusp (meter-messages meter))
                          (/ (ns-seconds (meter-latency-ns meter)) (meter-messages meter)))
            :streams (meter-streams meter)
            :queued-entries (pipe-entries pipe) :queued-octets (pipe-octets pipe)
            :under-way (pipe-sent-count pipe)))))
