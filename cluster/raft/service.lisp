;;;; The service: what comes from other members is given to the state machine, and what that answers
;;;; goes back. A thread waits at each stream, so that the state machine may block, for a disk or a
;;;; lock. While answers are not taken, no more requests are handled.

(in-package #:clgrpc.raft)

(defclass raft-service (v1:raft)
  ((state :initarg :state :reader raft-service-state) ; the user's
   ;; the longest snapshot that is received, in octets
   (max-snapshot-octets :initarg :max-snapshot-octets :reader service-max-snapshot-octets)
   ;; how long a stream waits for the next part of a snapshot, in seconds
   (chunk-seconds :initarg :chunk-seconds :reader service-chunk-seconds)
   ;; of the snapshot under way, or nil
   (snapshot-receiver :initform nil :accessor service-snapshot-receiver)
   ;; what OCCUPY-SNAPSHOT-RECEIVER got from the thread that changes SNAPSHOT-RECEIVER or has it
   ;; kept, or nil
   (busy :initform nil :accessor service-busy)
   (lock :initform (sb-thread:make-mutex :name "clgrpc raft") :reader service-lock) ; of BUSY
   ;; the service is no longer busy
   (bell :initform (sb-thread:make-waitqueue :name "clgrpc raft") :reader service-bell))
  (:documentation "Raft's service, for START-SERVER: see MAKE-RAFT-SERVICE."))

(document-functions
  raft-service-state "The state machine of SERVICE.")

(defun make-raft-service (state &key (max-snapshot-octets (expt 2 40)) (chunk-seconds 60))
  "Return a service that has STATE, any object of the user's, answer Raft's messages by the methods
of HANDLE-APPEND-ENTRIES and so on. A snapshot that is longer than MAX-SNAPSHOT-OCTETS is refused
with :resource-exhausted. A stream that brings no part of its snapshot for CHUNK-SECONDS ends with
:aborted. From any thread."
  (check-type max-snapshot-octets (integer 0))
  (check-type chunk-seconds (real (0)))
  (make-instance 'raft-service :state state :max-snapshot-octets max-snapshot-octets
                               :chunk-seconds chunk-seconds))

(defmethod print-object ((service raft-service) stream)
  (print-unreadable-object (service stream :type t)
    (format stream "of ~A~@[, ~A~]" (type-of (raft-service-state service))
            (service-snapshot-receiver service))))

(defmethod methods:pre-vote ((service raft-service) request &key)
  (handle-pre-vote (raft-service-state service) request))

(defmethod methods:request-vote ((service raft-service) request &key)
  (handle-request-vote (raft-service-state service) request))

(defmethod methods:append-entries ((service raft-service) request &key)
  (handle-append-entries (raft-service-state service) request))

(defmethod methods:timeout-now ((service raft-service) request &key)
  (handle-timeout-now (raft-service-state service) request))

(defmethod methods:pipeline-entries ((service raft-service) stream &key call)
  (loop with state = (raft-service-state service)
        for request = (rpc:receive stream)
        while (and request (rpc:send call (handle-append-entries state request)))))

;;; Snapshots: one thread at a time

(defconstant +longest-keeping-seconds+ 10
  "How long a stream waits for another one's part to be kept, or installed.")

(defun occupy-snapshot-receiver (service snapshot-receiver claim)
  "This thread has the snapshot receiver of SERVICE for itself, until RELEASE-SNAPSHOT-RECEIVER gets
CLAIM, a fresh list. Signal an RPC-ERROR if SNAPSHOT-RECEIVER, unless it is nil, has lost its place
to another, or if another thread takes too long."
  (let ((end (loop:notice-end +longest-keeping-seconds+)))
    (sb-thread:with-mutex ((service-lock service))
      (loop while (service-busy service)
            do (unless (and (loop:prepare-to-wait)
                            (loop:await-notice (service-bell service) (service-lock service) end))
                 (refuse :unavailable "a part that came before is still being kept")))
      (unless (or (null snapshot-receiver)
                  (eq snapshot-receiver (service-snapshot-receiver service)))
        (refuse :aborted "the snapshot is received from another stream by now"))
      (setf (service-busy service) claim))))

(defun release-snapshot-receiver (service claim)
  "Others may have the snapshot receiver of SERVICE, if this thread has it by CLAIM."
  (sb-sys:without-interrupts
    (sb-thread:with-mutex ((service-lock service))
      (when (eq claim (service-busy service))
        (setf (service-busy service) nil)
        (sb-thread:condition-broadcast (service-bell service))))))

(defmacro with-snapshot-receiver ((service snapshot-receiver) &body body)
  "Evaluate BODY while no other thread changes the snapshot receiver of SERVICE, which is
SNAPSHOT-RECEIVER unless that is nil. However this is left, also by an interrupt at any instruction,
others may change it then."
  (alexandria:with-gensyms (claim)
    (alexandria:once-only (service)
      `(let ((,claim (list nil)))
         (unwind-protect (progn (occupy-snapshot-receiver ,service ,snapshot-receiver ,claim)
                                ,@body)
           (release-snapshot-receiver ,service ,claim))))))

;;; Streams

(defun end-snapshot-delivery (snapshot-delivery control &rest arguments)
  "End the stream of SNAPSHOT-DELIVERY, at which a thread may wait."
  (rpc:finish (snapshot-delivery-call snapshot-delivery) :status :aborted
                                                         :message (apply #'format nil control
                                                                         arguments)))

(defun watch-snapshot-delivery (snapshot-delivery seconds)
  "End SNAPSHOT-DELIVERY once it has waited for a part for SECONDS; look again and again."
  (let ((since-ns (snapshot-delivery-since-ns snapshot-delivery)))
    (if (and since-ns (<= (+ since-ns (seconds-ns seconds)) (loop:world-now)))
        (end-snapshot-delivery snapshot-delivery "no part of the snapshot has come for ~A s"
                               seconds)
        (rpc:after (snapshot-delivery-call snapshot-delivery) (/ seconds 4)
                   (lambda () (watch-snapshot-delivery snapshot-delivery seconds))))))

(defun receive-part (snapshot-delivery)
  "The next part of SNAPSHOT-DELIVERY's requests and its kind, :header or :chunk; nil at the end."
  (setf (snapshot-delivery-since-ns snapshot-delivery) (loop:world-now))
  (let ((request (rpc:receive (snapshot-delivery-call snapshot-delivery))))
    (setf (snapshot-delivery-since-ns snapshot-delivery) nil)
    (when request (v1:install-snapshot-request-part request))))

(defun answer-part (snapshot-delivery response offset installed)
  "Send RESPONSE on the stream of SNAPSHOT-DELIVERY: OFFSET octets are there."
  (setf (v1:install-snapshot-response-offset response) offset
        (v1:install-snapshot-response-installed response) installed)
  (rpc:send (snapshot-delivery-call snapshot-delivery) response))

;;; The parts

(defun ask-to-begin (service snapshot-receiver)
  "What the state machine of SERVICE answers to the header of SNAPSHOT-RECEIVER."
  (let ((known nil))
    (unwind-protect
         (handler-case
             (multiple-value-prog1
                 (handle-install-snapshot (raft-service-state service)
                                          (snapshot-receiver-header snapshot-receiver)
                                          (snapshot-receiver-offset snapshot-receiver))
               (setf known t))
           (status:rpc-error (error)
             (setf known t)
             (error error)))
      ;; after another error, or an interrupt, nobody knows what it has forgotten of the snapshot
      ;; under way
      (unless known (setf (service-snapshot-receiver service) nil)))))

(defun begin-snapshot-receiver (service header snapshot-delivery)
  "Ask the state machine of SERVICE whether it wants the snapshot of HEADER; if so, have it received
by SNAPSHOT-DELIVERY and no other. Return the snapshot receiver, the response, and whether it is
wanted."
  (when (> (v1:snapshot-header-octets header) (service-max-snapshot-octets service))
    (refuse :resource-exhausted "a snapshot of ~D octets is longer than ~D"
            (v1:snapshot-header-octets header) (service-max-snapshot-octets service)))
  (with-snapshot-receiver (service nil)
    (let* ((before (service-snapshot-receiver service))
           (snapshot-receiver (continue-snapshot-receiver before header snapshot-delivery
                                                          (raft-service-state service)))
           (response (ask-to-begin service snapshot-receiver))
           (wanted (not (or (v1:install-snapshot-response-installed response)
                            (> (v1:install-snapshot-response-term response)
                               (v1:snapshot-header-term header))))))
      (when wanted
        (setf (service-snapshot-receiver service) snapshot-receiver)
        (when before
          (end-snapshot-delivery (snapshot-receiver-snapshot-delivery before)
                                 "the snapshot is received from another stream by now")))
      (values snapshot-receiver response wanted))))

(defun keep-chunk (service snapshot-receiver chunk)
  "Have the state machine keep CHUNK, a SnapshotChunk, for SNAPSHOT-RECEIVER."
  (with-snapshot-receiver (service snapshot-receiver)
    (check-chunk snapshot-receiver chunk)
    (handle-snapshot-chunk (raft-service-state service) (snapshot-receiver-header snapshot-receiver)
                           (snapshot-receiver-offset snapshot-receiver)
                           (v1:snapshot-chunk-data chunk))
    (note-chunk snapshot-receiver chunk)))

(defun end-snapshot-receiver (service snapshot-receiver)
  "Have the state machine install the snapshot of SNAPSHOT-RECEIVER, which has all of it; forget
that, whatever comes of it; return the response."
  (with-snapshot-receiver (service snapshot-receiver)
    (setf (service-snapshot-receiver service) nil)
    (check-snapshot-receiver snapshot-receiver)
    (handle-snapshot-end (raft-service-state service)
                         (snapshot-receiver-header snapshot-receiver))))

(defun receive-snapshot (service snapshot-receiver snapshot-delivery)
  "Receive what is left of the snapshot of SNAPSHOT-RECEIVER by SNAPSHOT-DELIVERY."
  (loop until (snapshot-receiver-complete-p snapshot-receiver)
        do (multiple-value-bind (chunk kind) (receive-part snapshot-delivery)
             (unless (eq :chunk kind)
               (refuse :invalid-argument "~:[the snapshot ends too early~;~
                                          a header comes in the middle~]"
                       chunk))
             (keep-chunk service snapshot-receiver chunk)))
  (let ((response (end-snapshot-receiver service snapshot-receiver)))
    (answer-part snapshot-delivery response (snapshot-receiver-offset snapshot-receiver) t)))

(defmethod methods:install-snapshot ((service raft-service) stream &key call)
  (declare (ignore stream))
  (let ((snapshot-delivery (make-snapshot-delivery call)))
    (watch-snapshot-delivery snapshot-delivery (service-chunk-seconds service))
    (multiple-value-bind (header kind) (receive-part snapshot-delivery)
      (unless (eq :header kind)
        (refuse :invalid-argument "a snapshot begins with a header"))
      (multiple-value-bind (snapshot-receiver response wanted)
                           (begin-snapshot-receiver service header snapshot-delivery)
        (if (v1:install-snapshot-response-installed response)
            (answer-part snapshot-delivery response (v1:snapshot-header-octets header) t)
            (answer-part snapshot-delivery response (snapshot-receiver-offset snapshot-receiver)
                         nil))
        (when wanted (receive-snapshot service snapshot-receiver snapshot-delivery))))))
