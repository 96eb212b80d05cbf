;;;; The service: what comes from other members is given to the state machine, and what that answers
;;;; goes back. Entries that come down a stream are handled by callbacks, on the loop that has read
;;;; them: no thread waits for a leader. While answers are not taken, no more requests are handled.

(in-package #:clgrpc.raft)

(defclass raft-service (v1:raft)
  ((state :initarg :state :reader raft-service-state) ; the user's
   ;; the longest snapshot that is received, in octets
   (max-snapshot-octets :initarg :max-snapshot-octets :reader service-max-snapshot-octets)
   (receipt :initform nil :accessor service-receipt) ; of the last snapshot, or nil
   (lock :initform (sb-thread:make-mutex :name "clgrpc raft") :reader service-lock) ; of RECEIPT
   ;; a receipt is no longer busy
   (bell :initform (sb-thread:make-waitqueue :name "clgrpc raft") :reader service-bell))
  (:documentation "Raft's service, for START-SERVER: see MAKE-RAFT-SERVICE."))

(document-functions
  raft-service-state "The state machine of SERVICE.")

(defun make-raft-service (state &key (max-snapshot-octets (expt 2 40)))
  "Return a service that has STATE, any object of the user's, answer Raft's messages by the methods
of HANDLE-APPEND-ENTRIES and so on. A snapshot that is longer than MAX-SNAPSHOT-OCTETS is refused
with :resource-exhausted. From any thread."
  (check-type max-snapshot-octets (integer 0))
  (make-instance 'raft-service :state state :max-snapshot-octets max-snapshot-octets))

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
  (declare (ignore stream))
  (let ((state (raft-service-state service)))
    (rpc:on-message call (lambda (request)
                           (rpc:send call (handle-append-entries state request))))
    (rpc:on-half-close call (lambda () (rpc:finish call)))
    call))

;;; Snapshots

(defconstant +longest-chunk-seconds+ 10
  "How long a stream waits for the chunk that another one has brought to be kept.")

(defun begin-receipt (service header)
  "Have SERVICE receive the snapshot of HEADER, and no other; return its receipt."
  (when (> (v1:snapshot-header-octets header) (service-max-snapshot-octets service))
    (refuse :resource-exhausted "a snapshot of ~D octets is longer than ~D"
                 (v1:snapshot-header-octets header) (service-max-snapshot-octets service)))
  (let ((end (loop:notice-end +longest-chunk-seconds+)))
    (sb-thread:with-mutex ((service-lock service))
      (flet ((busy-p ()
               (let ((receipt (service-receipt service)))
                 (and receipt (receipt-busy receipt)))))
        (loop while (busy-p)
              do (unless (loop:await-notice (service-bell service) (service-lock service) end)
                   (refuse :unavailable "a chunk that came before is still being kept")))
        (setf (service-receipt service)
              (continue-receipt (service-receipt service) header))))))

(defun occupy-receipt (service receipt)
  "RECEIPT is busy now. Signal an RPC-ERROR if another stream has taken the place of its stream."
  (sb-thread:with-mutex ((service-lock service))
    (unless (eq receipt (service-receipt service))
      (refuse :aborted "the snapshot is received from another stream by now"))
    (setf (receipt-busy receipt) t)))

(defun release-receipt (service receipt)
  (sb-thread:with-mutex ((service-lock service))
    (setf (receipt-busy receipt) nil)
    (sb-thread:condition-broadcast (service-bell service))))

(defun keep-chunk (service receipt chunk)
  "Have the state machine keep CHUNK, a SnapshotChunk, for RECEIPT."
  (occupy-receipt service receipt)
  (unwind-protect
       (let ((data (v1:snapshot-chunk-data chunk)))
         (check-chunk receipt chunk)
         (handle-snapshot-chunk (raft-service-state service) (receipt-header receipt)
                                (receipt-offset receipt) data)
         (note-chunk receipt data))
    (release-receipt service receipt)))

(defun receive-part (stream)
  "The next part of STREAM's requests and its kind, :header or :chunk; nil at the end."
  (let ((request (rpc:receive stream)))
    (when request (v1:install-snapshot-request-part request))))

(defun answer-part (call receipt response &optional installed)
  "Send RESPONSE on CALL, with what RECEIPT has."
  (setf (v1:install-snapshot-response-offset response) (receipt-offset receipt)
        (v1:install-snapshot-response-installed response) installed)
  (rpc:send call response))

(defun receive-snapshot (service receipt call stream)
  "Receive what is left of the snapshot of RECEIPT from STREAM."
  (loop until (receipt-complete-p receipt)
        do (multiple-value-bind (chunk kind) (receive-part stream)
             (unless (eq :chunk kind)
               (refuse :invalid-argument "~:[the snapshot ends too early~;~
                                               a header comes in the middle~]"
                            chunk))
             (keep-chunk service receipt chunk)))
  (check-receipt receipt)
  (answer-part call receipt
               (handle-snapshot-end (raft-service-state service) (receipt-header receipt))
               t))

(defmethod methods:install-snapshot ((service raft-service) stream &key call)
  (multiple-value-bind (header kind) (receive-part stream)
    (unless (eq :header kind)
      (refuse :invalid-argument "a snapshot begins with a header"))
    (let* ((receipt (begin-receipt service header))
           (response (handle-install-snapshot (raft-service-state service) header
                                              (receipt-offset receipt))))
      (answer-part call receipt response)
      (unless (> (v1:install-snapshot-response-term response) (v1:snapshot-header-term header))
        (receive-snapshot service receipt call stream)))))
