;;;; The keepalive of a client: one job renews all its leases, on one stream of LeaseKeepAlive. Each
;;;; lease is renewed three times in its time, and again at once if that fails. An answer is awaited
;;;; for a tenth of the time, so that several members can be asked within it.
;;;;
;;;; 1. The job asks for renewals that are due or almost due, so that leases granted at different
;;;;    times are renewed together. Then the job waits until the next renewal is due, or an answer
;;;;    is overdue.
;;;; 2. A callback of the stream receives the answers; each gives the time of the lease, or says
;;;;    that it has ended. The callback waits for nothing.
;;;; 3. If an answer does not arrive in time, or the stream ends, the stream is abandoned. All
;;;;    requests on the stream have failed, and are repeated on another stream, perhaps to another
;;;;    member. A lease that may have ended, since it was not renewed in time, counts as lost.
;;;; 4. The stream ends with the last lease.

(in-package #:clgrpc.etcd)

(defstruct (keepalive (:constructor make-keepalive (etcd)) (:copier nil))
  "The data for renewing all leases of a client that are kept alive."
  (etcd nil :type etcd :read-only t)    ; the client to which the keepalive belongs
  (job nil :type (or null loop:job))    ; the job that asks for renewals
  ;; the call that the job waits for
  (cancellation-token (make-cancellation-token) :type cancellation-token :read-only t)
  ;; the token with which the stream was opened; only the job uses this slot
  (token nil :type (or null string))
  ;; a new token was requested since the last answer; the job's own slot
  (denied nil :type boolean)
  (lock (sb-thread:make-mutex :name "clgrpc lease keepalive") :read-only t) ; guards the slots below
  ;; from a lease's number to a list of the leases kept alive
  (leases (make-hash-table) :type hash-table :read-only t)
  (call nil)                            ; the stream, or nil
  (failure nil :type (or null condition))) ; the condition with which the stream has ended

(declaim (sb-ext:freeze-type keepalive))

(define-printer (keepalive keepalive)
  "~D leases" (hash-table-count (keepalive-leases keepalive)))

(defun keepalive-of (etcd)
  "The keepalive of ETCD, made when it is first needed."
  (or (etcd-keepalive etcd)
      (sb-sys:without-interrupts
        (let* ((background (background-of etcd))
               (new (make-keepalive etcd))
               (present (sb-thread:with-mutex ((etcd-lock etcd))
                          (or (etcd-keepalive etcd)
                              (progn
                                (setf (keepalive-job new)
                                      (loop:add-job background (lambda () (keep-leases new))))
                                (setf (etcd-keepalive etcd) new))))))
          ;; the endings of the keepalive's leases are added later, so they are called before this
          ;; ending
          (when (eq present new) (add-ending etcd (lambda () (end-keepalive new))))
          present))))

(defun end-keepalive (keepalive)
  "End KEEPALIVE, whose leases need no further renewal."
  (end-cancellation-token (keepalive-cancellation-token keepalive))
  (loop:end-job (keepalive-job keepalive))
  (drop-stream keepalive))

(defun drop-stream (keepalive)
  (let ((call (sb-thread:with-mutex ((keepalive-lock keepalive))
                (setf (keepalive-failure keepalive) nil)
                (shiftf (keepalive-call keepalive) nil))))
    (when call (rpc:cancel call))))

(defun kept-leases (keepalive)
  (sb-thread:with-mutex ((keepalive-lock keepalive))
    (loop for leases being the hash-values of (keepalive-leases keepalive)
          append leases)))

(defun third-of-time (lease) (/ (lease-seconds lease) 3))

(defun tenth-of-time (lease) (/ (lease-seconds lease) 10))

;;; Which leases

(defun begin-keeping (lease)
  "Keep LEASE alive until it ends. Interrupts are off meanwhile: a lease that only some of the
structures know would be kept alive without an owner."
  (sb-sys:without-interrupts
    (let* ((etcd (lease-etcd lease)) (keepalive (keepalive-of etcd)))
      (setf (lease-ending lease) (lambda () (stop-keeping lease))
            (lease-job lease) (add-job etcd (lambda () (attend-lease lease)))
            (lease-renewal lease) (make-renewal (loop:notice-end (third-of-time lease))
                                                (tenth-of-time lease)
                                                (loop:make-pauses 1/2 1/2)))
      (sb-thread:with-mutex ((keepalive-lock keepalive))
        (push lease (gethash (lease-id lease) (keepalive-leases keepalive))))
      (add-ending etcd (lease-ending lease))
      (loop:wake-job (keepalive-job keepalive)))))

(defun forget-lease (keepalive lease)
  "Take LEASE out of the leases that KEEPALIVE renews."
  (sb-sys:without-interrupts
    (when (sb-thread:with-mutex ((keepalive-lock keepalive))
            (let ((leases (keepalive-leases keepalive)))
              (unless (setf (gethash (lease-id lease) leases)
                            (remove lease (gethash (lease-id lease) leases)))
                (remhash (lease-id lease) leases))
              (zerop (hash-table-count leases))))
      (loop:wake-job (keepalive-job keepalive)))))

(defun abandon-lease (lease)
  "Stop keeping LEASE alive. This function does not wait and is not interrupted; when it returns,
the lease's job may still be running."
  (sb-sys:without-interrupts
    (end-lease lease)
    (end-cancellation-token (lease-cancellation-token lease))
    (when (lease-job lease)
      (forget-lease (keepalive-of (lease-etcd lease)) lease)
      (loop:end-job (lease-job lease) :seconds 0))
    (when (lease-ending lease) (remove-ending (lease-etcd lease) (lease-ending lease)))))

(defun stop-keeping (lease)
  "Stop keeping LEASE alive, and wait for its job unless this is called in it."
  (abandon-lease lease)
  (when (lease-job lease) (loop:end-job (lease-job lease))))

;;; Answers

(defun note-answer (keepalive call response)
  "Handle RESPONSE, received on CALL, a stream of KEEPALIVE."
  (let* ((number (pb:lease-keep-alive-response-id response))
         (seconds (lease-time (pb:lease-keep-alive-response-ttl response)))
         (asked (sb-thread:with-mutex ((keepalive-lock keepalive))
                  (when (eq call (keepalive-call keepalive))
                    (setf (keepalive-denied keepalive) nil)
                    (loop for lease in (gethash number (keepalive-leases keepalive))
                          for time = (shiftf (renewal-asked-ns (lease-renewal lease)) nil)
                          when time collect (cons lease time))))))
    (loop for (lease . time) in asked
          do (cond ((plusp seconds) (note-renewed lease time seconds))
                   (t (forget-lease keepalive lease)
                      (lose-lease lease
                                  (make-condition 'lease-not-found
                                                  :text (format nil "the lease ~(~X~) has ended"
                                                                number))))))))

(defun note-renewed (lease asked-ns seconds)
  "Note that LEASE was renewed for SECONDS, by a request that was sent at ASKED-NS."
  (let ((renewal (lease-renewal lease)))
    (extend-lease lease asked-ns seconds)
    (setf (renewal-next-ns renewal) (loop:notice-end (third-of-time lease))
          (renewal-patience renewal) (tenth-of-time lease))
    (loop:forget-failures (renewal-pauses renewal))
    (when (lease-cleanups lease) (loop:wake-job (lease-job lease)))))

(defun note-stream-end (keepalive call)
  "Handle the end of CALL, a stream of KEEPALIVE."
  (when (sb-thread:with-mutex ((keepalive-lock keepalive))
          (when (eq call (keepalive-call keepalive))
            (setf (keepalive-failure keepalive)
                  (if (eq :ok (rpc:call-status call))
                      (make-condition 'unavailable :text "the stream of the leases has ended")
                      (etcd-condition (rpc:call-condition call))))))
    (loop:wake-job (keepalive-job keepalive))))

;;; The job

(defun open-keep-alive (keepalive)
  "A new stream of KEEPALIVE. Signal an ETCD-ERROR if no token can be fetched for it."
  (let* ((etcd (keepalive-etcd keepalive))
         (token (with-cancellation-token ((keepalive-cancellation-token keepalive))
                  (current-token etcd (loop:notice-end (etcd-timeout etcd)))))
         (call (leases:lease-keep-alive (etcd-channel etcd) :open
                                        :wait-for-ready t
                                        :metadata (append (token-metadata token)
                                                          *require-leader*))))
    (setf (keepalive-token keepalive) token)
    (sb-thread:with-mutex ((keepalive-lock keepalive))
      (setf (keepalive-failure keepalive) nil
            (keepalive-call keepalive) call))
    (rpc:on-message call (lambda (response) (note-answer keepalive call response)))
    (rpc:on-end call (lambda () (note-stream-end keepalive call)))
    call))

(defun fail-renewal (keepalive lease condition)
  "Handle a renewal of LEASE that has failed with CONDITION: LEASE is lost, or its renewal is
requested again later, after a longer pause each time, since etcd may be slow."
  (let ((renewal (lease-renewal lease)))
    (cond ((lease-alive-p lease)
           (setf (renewal-next-ns renewal)
                 (loop:notice-end (min (loop:next-pause (renewal-pauses renewal))
                                       (/ (third-of-time lease) 4) (seconds-until lease)))
                 (renewal-patience renewal)
                 (min (third-of-time lease) (* 2 (renewal-patience renewal)))))
          (t (forget-lease keepalive lease)
             (lose-lease lease condition)))))

(defun new-token-p (keepalive condition)
  "True if KEEPALIVE has a new token for its next stream: the previous stream may have ended with
CONDITION because its token was not valid."
  (let ((etcd (keepalive-etcd keepalive)))
    (and (etcd-user etcd) (stale-token-p condition) (not (keepalive-denied keepalive))
         ;; if no token can be fetched now, the renewal is requested again later
         (handler-case (with-cancellation-token ((keepalive-cancellation-token keepalive))
                         (prog1 (renew-token etcd (keepalive-token keepalive)
                                             (loop:notice-end (etcd-timeout etcd)))
                           (setf (keepalive-denied keepalive) t)))
           (etcd-error () nil)))))

(defun give-stream-up (keepalive condition)
  "Handle the failure of KEEPALIVE's stream with CONDITION, with which all requests on it have
failed."
  (drop-stream keepalive)
  (let ((asked (remove-if-not (lambda (lease) (renewal-asked-ns (lease-renewal lease)))
                              (kept-leases keepalive)))
        (at-once (new-token-p keepalive condition)))
    (dolist (lease asked)
      (setf (renewal-asked-ns (lease-renewal lease)) nil)
      (if at-once
          (setf (renewal-next-ns (lease-renewal lease)) (loop:world-now))
          (fail-renewal keepalive lease condition)))))

(defun overdue-p (lease now)
  "True if the renewal of LEASE was not answered in time."
  (let ((renewal (lease-renewal lease)))
    (and (renewal-asked-ns renewal) (<= (renewal-limit-ns renewal) now))))

(defun due-p (lease now)
  "True if LEASE is due for renewal at NOW, or soon after."
  (let ((renewal (lease-renewal lease)))
    (and (null (renewal-asked-ns renewal))
         (<= (renewal-next-ns renewal)
             (if (zerop (loop:back-off-seconds (renewal-pauses renewal)))
                 (time-after (seconds-ns (/ (tenth-of-time lease) 3)) now)
                 now)))))

(defun ask-for (lease call)
  "Request the renewal of LEASE on CALL. If the stream has no room for the request of a lease, that
lease becomes overdue later."
  (let ((renewal (lease-renewal lease)))
    (setf (renewal-limit-ns renewal)
          (loop:notice-end (max 1/10 (min (renewal-patience renewal) (seconds-until lease))))
          (renewal-asked-ns renewal) (lease-now-ns))
    (rpc:try-send call (pb:make-lease-keep-alive-request :id (lease-id lease)))))

(defun ask-for-due (keepalive leases)
  "Request renewals of LEASES, the due leases of KEEPALIVE."
  (when leases
    (handler-case
        (with-etcd-errors
          (let ((call (or (keepalive-call keepalive) (open-keep-alive keepalive))))
            (dolist (lease leases) (ask-for lease call))))
      (error (error)
        (let ((condition (stream-error-of error)))
          (dolist (lease leases)
            (setf (renewal-asked-ns (lease-renewal lease)) nil)
            (fail-renewal keepalive lease condition)))))))

(defun seconds-to-rest (leases)
  "The seconds until the next renewal of LEASES."
  (let ((next (loop for lease in leases
                    for renewal = (lease-renewal lease)
                    minimize (if (renewal-asked-ns renewal)
                                 (renewal-limit-ns renewal)
                                 (renewal-next-ns renewal)))))
    (ns-seconds (max 0 (- next (loop:world-now))))))

(defun keep-leases (keepalive)
  "Run the job of KEEPALIVE once. Return the seconds until the job runs again."
  (let ((leases (kept-leases keepalive)) (now (loop:world-now)))
    (cond ((keepalive-failure keepalive) (give-stream-up keepalive (keepalive-failure keepalive)))
          ((some (lambda (lease) (overdue-p lease now)) leases)
           (give-stream-up keepalive (make-condition 'unavailable
                                                     :text "no renewal has arrived in time"))))
    (ask-for-due keepalive
                 (remove-if-not (lambda (lease) (due-p lease now)) (kept-leases keepalive)))
    (let ((left (kept-leases keepalive)))
      (cond (left (seconds-to-rest left))
            (t (drop-stream keepalive)
               nil)))))
