;;;; The keeper of a client: one job that renews all its leases, on one stream of LeaseKeepAlive.
;;;; Each is renewed three times in its time, and if that fails at once again: an answer that does
;;;; not come is waited for a tenth of the time, so that several members can be asked within it.
;;;;
;;;; 1. The job asks for what is due, and a little before, so that leases which were granted at
;;;;    different times are asked for together; then it rests until the next is due, or an answer is
;;;;    overdue.
;;;; 2. Answers come by a callback of the stream, which says until when the lease lasts, or that it
;;;;    has ended. It waits for nothing.
;;;; 3. If an answer does not come in time, or the stream ends, the stream is given up: all that was
;;;;    asked for on it has failed, and is asked for again on another, which may be another
;;;;    member's. A lease that was not renewed for so long that it may have ended is lost.
;;;; 4. The stream ends with the last lease.

(in-package #:clgrpc.etcd)

(defstruct (keeper (:constructor make-keeper (etcd)) (:copier nil))
  "What keeps the leases of a client alive."
  (etcd nil :type etcd :read-only t)    ; whose
  (job nil :type (or null loop:job))    ; that asks for renewals
  (errand (make-errand) :type errand :read-only t) ; what the job waits for
  (token nil :type (or null string))    ; that the stream was opened with; the job's
  (denied nil :type boolean)            ; a new token was asked for since the last answer; likewise
  (lock (sb-thread:make-mutex :name "clgrpc lease keeper") :read-only t) ; of what follows
  (leases (make-hash-table) :type hash-table :read-only t) ; by number: a list of those kept alive
  (call nil)                            ; the stream, or nil
  (failure nil :type (or null condition))) ; that it has ended with

(declaim (sb-ext:freeze-type keeper))

(defmethod print-object ((keeper keeper) stream)
  (print-unreadable-object (keeper stream :type t)
    (format stream "~D leases" (hash-table-count (keeper-leases keeper)))))

(defun keeper-of (etcd)
  "The keeper of ETCD, made when it is first needed."
  (or (etcd-keeper etcd)
      (let* ((background (background-of etcd))
             (new (make-keeper etcd))
             (present (sb-thread:with-mutex ((etcd-lock etcd))
                        (or (etcd-keeper etcd)
                            (progn
                              (setf (keeper-job new)
                                    (loop:add-job background (lambda () (keep-leases new))))
                              (setf (etcd-keeper etcd) new))))))
        ;; its leases' endings, which come later, are called before it
        (when (eq present new) (add-ending etcd (lambda () (end-keeper new))))
        present)))

(defun end-keeper (keeper)
  "KEEPER, whose leases are kept alive no longer, is to do nothing any more."
  (end-errand (keeper-errand keeper))
  (loop:end-job (keeper-job keeper))
  (drop-stream keeper))

(defun drop-stream (keeper)
  "End the stream of KEEPER, if it has one."
  (let ((call (sb-thread:with-mutex ((keeper-lock keeper))
                (setf (keeper-failure keeper) nil)
                (shiftf (keeper-call keeper) nil))))
    (when call (rpc:cancel call))))

(defun kept-leases (keeper)
  (sb-thread:with-mutex ((keeper-lock keeper))
    (loop for leases being the hash-values of (keeper-leases keeper)
          append leases)))

(defun third-of-time (lease) (/ (lease-seconds lease) 3))

(defun tenth-of-time (lease) (/ (lease-seconds lease) 10))

;;; Which leases

(defun begin-keeping (lease)
  "Have LEASE be kept alive until it is to end."
  (let* ((etcd (lease-etcd lease)) (keeper (keeper-of etcd)))
    (setf (lease-ending lease) (lambda () (stop-keeping lease))
          (lease-job lease) (add-job etcd (lambda () (attend-lease lease)))
          (lease-renewal lease) (make-renewal (loop:notice-end (third-of-time lease))
                                              (tenth-of-time lease)
                                              (loop:make-pauses 1/2 1/2)))
    (sb-thread:with-mutex ((keeper-lock keeper))
      (push lease (gethash (lease-id lease) (keeper-leases keeper))))
    (add-ending etcd (lease-ending lease))
    (loop:wake-job (keeper-job keeper))))

(defun forget-lease (keeper lease)
  "KEEPER is to renew LEASE no more."
  (when (sb-thread:with-mutex ((keeper-lock keeper))
          (let ((leases (keeper-leases keeper)))
            (unless (setf (gethash (lease-id lease) leases)
                          (remove lease (gethash (lease-id lease) leases)))
              (remhash (lease-id lease) leases))
            (zerop (hash-table-count leases))))
    (loop:wake-job (keeper-job keeper))))

;;; What comes

(defun note-answer (keeper call response)
  "RESPONSE has come on CALL, a stream of KEEPER."
  (let* ((number (pb:lease-keep-alive-response-id response))
         (seconds (lease-time (pb:lease-keep-alive-response-ttl response)))
         (asked (sb-thread:with-mutex ((keeper-lock keeper))
                  (when (eq call (keeper-call keeper))
                    (setf (keeper-denied keeper) nil)
                    (loop for lease in (gethash number (keeper-leases keeper))
                          for time = (shiftf (renewal-asked-ns (lease-renewal lease)) nil)
                          when time collect (cons lease time))))))
    (loop for (lease . time) in asked
          do (cond ((plusp seconds) (note-renewed lease time seconds))
                   (t (forget-lease keeper lease)
                      (lose-lease lease
                               (make-condition 'lease-not-found
                                               :text (format nil "the lease ~(~X~) has ended"
                                                             number))))))))

(defun note-renewed (lease asked-ns seconds)
  "LEASE was renewed for SECONDS, as was asked for at ASKED-NS."
  (let ((renewal (lease-renewal lease)))
    (extend-lease lease asked-ns seconds)
    (setf (renewal-next-ns renewal) (loop:notice-end (third-of-time lease))
          (renewal-patience renewal) (tenth-of-time lease))
    (loop:forget-failures (renewal-pauses renewal))
    (when (lease-chores lease) (loop:wake-job (lease-job lease)))))

(defun note-stream-end (keeper call)
  "CALL, a stream of KEEPER, has ended."
  (when (sb-thread:with-mutex ((keeper-lock keeper))
          (when (eq call (keeper-call keeper))
            (setf (keeper-failure keeper)
                  (if (eq :ok (rpc:call-status call))
                      (make-condition 'unavailable :text "the stream of the leases has ended")
                      (etcd-condition (rpc:call-condition call))))))
    (loop:wake-job (keeper-job keeper))))

;;; What the job does

(defun open-keep-alive (keeper)
  "A new stream of KEEPER. Signal an ETCD-ERROR if there is no token for it."
  (let* ((etcd (keeper-etcd keeper))
         (token (with-errand ((keeper-errand keeper))
                  (current-token etcd (loop:notice-end (etcd-timeout etcd)))))
         (call (leases:lease-keep-alive (etcd-channel etcd) :open
                                        :wait-for-ready t
                                        :metadata (append (token-metadata token)
                                                          *require-leader*))))
    (setf (keeper-token keeper) token)
    (sb-thread:with-mutex ((keeper-lock keeper))
      (setf (keeper-failure keeper) nil
            (keeper-call keeper) call))
    (rpc:on-message call (lambda (response) (note-answer keeper call response)))
    (rpc:on-end call (lambda () (note-stream-end keeper call)))
    call))

(defun fail-renewal (keeper lease condition)
  "What was asked for LEASE has failed with CONDITION: it is lost, or asked for again later, longer
each time, since etcd may be slow."
  (let ((renewal (lease-renewal lease)))
    (cond ((lease-alive-p lease)
           (setf (renewal-next-ns renewal)
                 (loop:notice-end (min (loop:next-pause (renewal-pauses renewal))
                                       (/ (third-of-time lease) 4) (seconds-until lease)))
                 (renewal-patience renewal)
                 (min (third-of-time lease) (* 2 (renewal-patience renewal)))))
          (t (forget-lease keeper lease)
             (lose-lease lease condition)))))

(defun new-token-p (keeper condition)
  "True if KEEPER has a new token for its next stream, since the one before may have ended with
CONDITION for want of that."
  (let ((etcd (keeper-etcd keeper)))
    (and (etcd-user etcd) (stale-token-p condition) (not (keeper-denied keeper))
         (handler-case (with-errand ((keeper-errand keeper))
                         (setf (keeper-denied keeper) t)
                         (renew-token etcd (keeper-token keeper)
                                      (loop:notice-end (etcd-timeout etcd))))
           (etcd-error () nil)))))

(defun give-stream-up (keeper condition)
  "The stream of KEEPER has failed with CONDITION, and with it all that was asked for on it."
  (drop-stream keeper)
  (let ((asked (remove-if-not (lambda (lease) (renewal-asked-ns (lease-renewal lease)))
                              (kept-leases keeper)))
        (at-once (new-token-p keeper condition)))
    (dolist (lease asked)
      (setf (renewal-asked-ns (lease-renewal lease)) nil)
      (if at-once
          (setf (renewal-next-ns (lease-renewal lease)) (loop:world-now))
          (fail-renewal keeper lease condition)))))

(defun overdue-p (lease now)
  "True if what was asked for LEASE was not answered in time."
  (let ((renewal (lease-renewal lease)))
    (and (renewal-asked-ns renewal) (<= (renewal-limit-ns renewal) now))))

(defun due-p (lease now)
  "True if LEASE is to be renewed by NOW, or soon after."
  (let ((renewal (lease-renewal lease)))
    (and (null (renewal-asked-ns renewal))
         (<= (renewal-next-ns renewal)
             (if (zerop (loop:back-off-seconds (renewal-pauses renewal)))
                 (time-after (seconds-ns (/ (tenth-of-time lease) 3)) now)
                 now)))))

(defun ask-for (lease call)
  "Ask on CALL that LEASE be renewed. What there is no room for is overdue later."
  (let ((renewal (lease-renewal lease)))
    (setf (renewal-limit-ns renewal)
          (loop:notice-end (max 1/10 (min (renewal-patience renewal) (seconds-until lease))))
          (renewal-asked-ns renewal) (lease-now-ns))
    (rpc:try-send call (pb:make-lease-keep-alive-request :id (lease-id lease)))))

(defun ask-for-due (keeper leases)
  "Ask for LEASES, those of KEEPER that are due."
  (when leases
    (handler-case
        (with-etcd-errors
          (let ((call (or (keeper-call keeper) (open-keep-alive keeper))))
            (dolist (lease leases) (ask-for lease call))))
      (etcd-error (condition)
        (dolist (lease leases)
          (setf (renewal-asked-ns (lease-renewal lease)) nil)
          (fail-renewal keeper lease condition))))))

(defun seconds-to-rest (leases)
  "How long nothing is to be done for LEASES."
  (let ((next (loop for lease in leases
                    for renewal = (lease-renewal lease)
                    minimize (if (renewal-asked-ns renewal)
                                 (renewal-limit-ns renewal)
                                 (renewal-next-ns renewal)))))
    (ns-seconds (max 0 (- next (loop:world-now))))))

(defun keep-leases (keeper)
  "What the job of KEEPER does. Return when it has to again."
  (let ((leases (kept-leases keeper)) (now (loop:world-now)))
    (cond ((keeper-failure keeper) (give-stream-up keeper (keeper-failure keeper)))
          ((some (lambda (lease) (overdue-p lease now)) leases)
           (give-stream-up keeper (make-condition 'unavailable
                                                  :text "no renewal has come in time"))))
    (ask-for-due keeper (remove-if-not (lambda (lease) (due-p lease now)) (kept-leases keeper)))
    (let ((left (kept-leases keeper)))
      (cond (left (seconds-to-rest left))
            (t (drop-stream keeper)
               nil)))))
