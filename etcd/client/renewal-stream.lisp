;;;; Renewals that callers ask for and wait for. All renewals of a client are sent on one stream of
;;;; LeaseKeepAlive, so a renewal costs etcd a message, not a stream; several renewals at once are
;;;; consecutive messages, which cost etcd little more than one. etcd answers the requests for one
;;;; lease in order. If an answer does not come in time, or a stream ends, all renewals that wait on
;;;; that stream fail. The next renewal opens another stream, perhaps to another member.

(in-package #:clgrpc.etcd)

(defstruct (pending-renewal (:copier nil))
  "A renewal that a thread waits for."
  (awaited nil :type boolean)           ; the thread waits for this renewal, and must be woken
  (response nil)                        ; etcd's answer, once it has come
  (failure nil :type (or null condition))) ; why there will be no answer

(defstruct (renewal-stream (:copier nil))
  "The stream of a client's renewals. LOCK guards the slots that change."
  (lock (sb-thread:make-mutex :name "clgrpc lease renewals") :read-only t) ; guards all slots below
  ;; something has come
  (waitqueue (sb-thread:make-waitqueue :name "clgrpc lease renewals") :read-only t)
  (call nil)                            ; the stream, or nil
  (metadata '() :type list)             ; the metadata with which the stream was opened
  ;; from a lease's number to its PENDING-RENEWALs, oldest first
  (pending (make-hash-table) :type hash-table :read-only t))

(declaim (sb-ext:freeze-type pending-renewal renewal-stream))

(defun renewal-stream-of (etcd)
  "The renewal stream of ETCD, made when it is first needed."
  (or (etcd-renewal-stream etcd)
      (sb-sys:without-interrupts
        (let* ((new (make-renewal-stream))
               (present (sb-thread:with-mutex ((etcd-lock etcd))
                          (or (etcd-renewal-stream etcd)
                              (setf (etcd-renewal-stream etcd) new)))))
          (when (eq present new)
            (add-ending etcd (lambda () (end-renewals new (renewal-stream-call new)))))
          present))))

(defun fail-pending (stream condition)
  "Fail the renewals that wait on STREAM with CONDITION. The caller must hold STREAM's lock."
  (loop for all being the hash-values of (renewal-stream-pending stream)
        do (dolist (pending all) (setf (pending-renewal-failure pending) condition)))
  (clrhash (renewal-stream-pending stream))
  (sb-thread:condition-broadcast (renewal-stream-waitqueue stream)))

(defun end-renewals (stream call &optional condition)
  "If CALL is STREAM's call, remove it, and fail the renewals that wait on it with CONDITION."
  (sb-sys:without-interrupts
    (when (sb-thread:with-mutex ((renewal-stream-lock stream))
            (when (and call (eq call (renewal-stream-call stream)))
              (setf (renewal-stream-call stream) nil)
              (fail-pending stream (or condition
                                       (make-condition 'unavailable
                                                       :text "the stream of renewals has ended")))
              t))
      (rpc:cancel call))))

(defun note-renewal (stream call response)
  "Handle RESPONSE, received on CALL, STREAM's call."
  (let ((number (pb:lease-keep-alive-response-id response))
        (table (renewal-stream-pending stream)))
    (sb-thread:with-mutex ((renewal-stream-lock stream))
      (when (eq call (renewal-stream-call stream))
        (destructuring-bind (&optional pending &rest others) (gethash number table)
          (if others
              (setf (gethash number table) others)
              (remhash number table))
          (when pending
            (setf (pending-renewal-response pending) response)
            (when (pending-renewal-awaited pending)
              (sb-thread:condition-broadcast (renewal-stream-waitqueue stream)))))))))

(defun note-renewals-end (stream call)
  "Handle the end of CALL, STREAM's call."
  (end-renewals stream call
                (and (not (eq :ok (rpc:call-status call)))
                     (etcd-condition (rpc:call-condition call)))))

(defun adopt-renewals (stream call metadata)
  "Make CALL, with METADATA, the call of STREAM, unless another thread has opened such a call.
Return two values: the call of STREAM, and the previous call if it is no longer needed."
  (sb-thread:with-mutex ((renewal-stream-lock stream))
    (let ((present (renewal-stream-call stream)))
      (cond ((and present (equal metadata (renewal-stream-metadata stream)))
             (values present call))
            (t (when present        ; the token of PRESENT is old
                 (fail-pending stream (make-condition 'unavailable
                                                      :text "the stream of renewals has ended")))
               (setf (renewal-stream-metadata stream) metadata
                     (renewal-stream-call stream) call)
               (values call present))))))

(defun open-renewals (etcd stream metadata)
  "The call of STREAM, of ETCD, with METADATA; open it if STREAM has no call."
  (sb-sys:without-interrupts            ; nothing would cancel a call that is not adopted
    (let ((new (leases:lease-keep-alive (etcd-channel etcd) :open
                                        :wait-for-ready t
                                        :metadata (append metadata *require-leader*))))
      (rpc:on-message new (lambda (response) (note-renewal stream new response)))
      (rpc:on-end new (lambda () (note-renewals-end stream new)))
      (multiple-value-bind (call other) (adopt-renewals stream new metadata)
        (when other (rpc:cancel other))
        call))))

(defun renewal-call (etcd stream metadata)
  "The call of STREAM, of ETCD, with METADATA."
  (or (sb-thread:with-mutex ((renewal-stream-lock stream))
        (and (equal metadata (renewal-stream-metadata stream)) (renewal-stream-call stream)))
      (open-renewals etcd stream metadata)))

(defun await-renewal (stream call pending seconds)
  "The answer to PENDING, requested on CALL. Signal an ETCD-ERROR."
  (let ((lock (renewal-stream-lock stream)))
    (sb-thread:with-mutex (lock) (setf (pending-renewal-awaited pending) t))
    (loop:await-until (renewal-stream-waitqueue stream) lock (loop:notice-end seconds)
                      (lambda () (or (pending-renewal-response pending)
                                     (pending-renewal-failure pending))))
    (cond ((pending-renewal-response pending))
          ((pending-renewal-failure pending) (error (pending-renewal-failure pending)))
          (t (let ((condition (make-condition 'unavailable :text "no renewal has arrived in time")))
               (end-renewals stream call condition)
               (error condition))))))

(defun ask-on-stream (stream call number)
  "Request a renewal of the lease NUMBER on CALL, if that is the call of STREAM. Return the
PENDING-RENEWAL."
  (let ((pending (make-pending-renewal)))
    ;; a pending renewal that was not sent would take the answer to the next one
    (sb-sys:without-interrupts
      (if (sb-thread:with-mutex ((renewal-stream-lock stream))
            (when (eq call (renewal-stream-call stream))
              (setf (gethash number (renewal-stream-pending stream))
                    (append (gethash number (renewal-stream-pending stream)) (list pending)))))
          (rpc:try-send call (pb:make-lease-keep-alive-request :id number))
          (setf (pending-renewal-failure pending)
                (make-condition 'unavailable :text "the stream of renewals has ended"))))
    pending))

(defun ask-for-renewals (etcd numbers seconds metadata)
  "Request renewals of the leases NUMBERS, some hundreds at most, from ETCD, and return its answers
in the same order, within SECONDS. Signal an RPC-ERROR or ETCD-ERROR."
  (let* ((stream (renewal-stream-of etcd))
         (call (renewal-call etcd stream metadata))
         (end (loop:notice-end seconds))
         (all (loop for number in numbers collect (ask-on-stream stream call number))))
    ;; the last answer comes last
    (nreverse (loop for pending in (reverse all)
                    collect (await-renewal stream call pending (loop:seconds-until end 0))))))
