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
   (receipt :initform nil :accessor service-receipt) ; of the snapshot under way, or nil
   ;; what OCCUPY-RECEIPT got from the thread that changes RECEIPT or has it kept, or nil
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
            (service-receipt service))))

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

(defun occupy-receipt (service receipt claim)
  "This thread has the receipt of SERVICE for itself, until RELEASE-RECEIPT gets CLAIM, a fresh
list. Signal an RPC-ERROR if RECEIPT, unless it is nil, has lost its place to another, or if another
thread takes too long."
  (let ((end (loop:notice-end +longest-keeping-seconds+)))
    (sb-thread:with-mutex ((service-lock service))
      (loop while (service-busy service)
            do (unless (and (loop:prepare-to-wait)
                            (loop:await-notice (service-bell service) (service-lock service) end))
                 (refuse :unavailable "a part that came before is still being kept")))
      (unless (or (null receipt) (eq receipt (service-receipt service)))
        (refuse :aborted "the snapshot is received from another stream by now"))
      (setf (service-busy service) claim))))

(defun release-receipt (service claim)
  "Others may have the receipt of SERVICE, if this thread has it by CLAIM."
  (sb-sys:without-interrupts
    (sb-thread:with-mutex ((service-lock service))
      (when (eq claim (service-busy service))
        (setf (service-busy service) nil)
        (sb-thread:condition-broadcast (service-bell service))))))

(defmacro with-receipt ((service receipt) &body body)
  "Evaluate BODY while no other thread changes the receipt of SERVICE, which is RECEIPT unless that
is nil. However this is left, also by an interrupt at any instruction, others may change it then."
  (alexandria:with-gensyms (claim)
    (alexandria:once-only (service)
      `(let ((,claim (list nil)))
         (unwind-protect (progn (occupy-receipt ,service ,receipt ,claim)
                                ,@body)
           (release-receipt ,service ,claim))))))

;;; Streams

(defun end-delivery (delivery control &rest arguments)
  "End the stream of DELIVERY, at which a thread may wait."
  (rpc:finish (delivery-call delivery) :status :aborted
                                       :message (apply #'format nil control arguments)))

(defun watch-delivery (delivery seconds)
  "End DELIVERY once it has waited for a part for SECONDS; look again and again."
  (let ((since-ns (delivery-since-ns delivery)))
    (if (and since-ns (<= (+ since-ns (seconds-ns seconds)) (loop:world-now)))
        (end-delivery delivery "no part of the snapshot has come for ~A s" seconds)
        (rpc:after (delivery-call delivery) (/ seconds 4)
                   (lambda () (watch-delivery delivery seconds))))))

(defun receive-part (delivery)
  "The next part of DELIVERY's requests and its kind, :header or :chunk; nil at the end."
  (setf (delivery-since-ns delivery) (loop:world-now))
  (let ((request (rpc:receive (delivery-call delivery))))
    (setf (delivery-since-ns delivery) nil)
    (when request (v1:install-snapshot-request-part request))))

(defun answer-part (delivery response offset installed)
  "Send RESPONSE on the stream of DELIVERY: OFFSET octets are there."
  (setf (v1:install-snapshot-response-offset response) offset
        (v1:install-snapshot-response-installed response) installed)
  (rpc:send (delivery-call delivery) response))

;;; The parts

(defun ask-to-begin (service receipt)
  "What the state machine of SERVICE answers to the header of RECEIPT."
  (let ((known nil))
    (unwind-protect
         (handler-case
             (multiple-value-prog1
                 (handle-install-snapshot (raft-service-state service) (receipt-header receipt)
                                          (receipt-offset receipt))
               (setf known t))
           (status:rpc-error (error)
             (setf known t)
             (error error)))
      ;; after another error, or an interrupt, nobody knows what it has forgotten of the snapshot
      ;; under way
      (unless known (setf (service-receipt service) nil)))))

(defun begin-receipt (service header delivery)
  "Ask the state machine of SERVICE whether it wants the snapshot of HEADER; if so, have it received
by DELIVERY and no other. Return the receipt, the response, and whether it is wanted."
  (when (> (v1:snapshot-header-octets header) (service-max-snapshot-octets service))
    (refuse :resource-exhausted "a snapshot of ~D octets is longer than ~D"
            (v1:snapshot-header-octets header) (service-max-snapshot-octets service)))
  (with-receipt (service nil)
    (let* ((before (service-receipt service))
           (receipt (continue-receipt before header delivery (raft-service-state service)))
           (response (ask-to-begin service receipt))
           (wanted (not (or (v1:install-snapshot-response-installed response)
                            (> (v1:install-snapshot-response-term response)
                               (v1:snapshot-header-term header))))))
      (when wanted
        (setf (service-receipt service) receipt)
        (when before
          (end-delivery (receipt-delivery before)
                        "the snapshot is received from another stream by now")))
      (values receipt response wanted))))

(defun keep-chunk (service receipt chunk)
  "Have the state machine keep CHUNK, a SnapshotChunk, for RECEIPT."
  (with-receipt (service receipt)
    (check-chunk receipt chunk)
    (handle-snapshot-chunk (raft-service-state service) (receipt-header receipt)
                           (receipt-offset receipt) (v1:snapshot-chunk-data chunk))
    (note-chunk receipt chunk)))

(defun end-receipt (service receipt)
  "Have the state machine install the snapshot of RECEIPT, which has all of it; forget that,
whatever comes of it; return the response."
  (with-receipt (service receipt)
    (setf (service-receipt service) nil)
    (check-receipt receipt)
    (handle-snapshot-end (raft-service-state service) (receipt-header receipt))))

(defun receive-snapshot (service receipt delivery)
  "Receive what is left of the snapshot of RECEIPT by DELIVERY."
  (loop until (receipt-complete-p receipt)
        do (multiple-value-bind (chunk kind) (receive-part delivery)
             (unless (eq :chunk kind)
               (refuse :invalid-argument "~:[the snapshot ends too early~;~
                                          a header comes in the middle~]"
                       chunk))
             (keep-chunk service receipt chunk)))
  (let ((response (end-receipt service receipt)))
    (answer-part delivery response (receipt-offset receipt) t)))

(defmethod methods:install-snapshot ((service raft-service) stream &key call)
  (declare (ignore stream))
  (let ((delivery (make-delivery call)))
    (watch-delivery delivery (service-chunk-seconds service))
    (multiple-value-bind (header kind) (receive-part delivery)
      (unless (eq :header kind)
        (refuse :invalid-argument "a snapshot begins with a header"))
      (multiple-value-bind (receipt response wanted) (begin-receipt service header delivery)
        (if (v1:install-snapshot-response-installed response)
            (answer-part delivery response (v1:snapshot-header-octets header) t)
            (answer-part delivery response (receipt-offset receipt) nil))
        (when wanted (receive-snapshot service receipt delivery))))))
