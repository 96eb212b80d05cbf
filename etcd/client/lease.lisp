;;;; Leases: the entries that are put with a lease are removed when it ends. The keepalive of a
;;;; client (keepalive.lisp) renews its leases. If an entry should be removed before the lease ends,
;;;; and that fails, the removal becomes a cleanup, which is done after the next successful renewal.
;;;; Cleanups, and the functions that are called when the lease is lost, run in a job of the lease,
;;;; since they may wait.
;;;;
;;;; By this machine's clock the time of a lease counts from the sending of the last renewal that
;;;; was answered. So a lease ends no later here than in the store: LEASE-ALIVE-P is false before
;;;; another client can have the lease's locks.

(in-package #:clgrpc.etcd)

(defstruct (renewal (:constructor make-renewal (next-ns patience pauses)) (:copier nil))
  "The data of a keepalive about one of its leases."
  (next-ns 0 :type nanoseconds)         ; when a renewal is due, by the clock of the loops
  ;; when the renewal was requested, by LEASE-NOW-NS, until it is answered
  (asked-ns nil :type (or null nanoseconds))
  (limit-ns 0 :type nanoseconds)        ; when the answer to the renewal is overdue
  (patience 0 :type real)               ; for how many seconds the next answer is awaited
  ;; the pauses before a renewal is requested again after a failure
  (pauses nil :type loop:pauses :read-only t))

(declaim (sb-ext:freeze-type renewal))

(defstruct (lease (:constructor %make-lease (etcd id seconds until-ns)) (:copier nil))
  "A lease of the store, see GRANT-LEASE."
  (etcd nil :type etcd :read-only t)    ; the client to which the lease belongs
  (id 0 :type (signed-byte 64) :read-only t) ; the lease's number
  ;; the lease's time in seconds, unless the lease is renewed
  (seconds 0 :type (integer 0) :read-only t)
  (until-ns 0 :type nanoseconds) ; when the lease has ended unless it is renewed, by LEASE-NOW-NS
  (loss-callbacks '() :type list)       ; functions that are called when the lease is lost
  (waiters '() :type list)              ; its user's places whose keys may exist
  (removals '() :type list)             ; its user's places whose keys are being removed
  (cleanups '() :type list)             ; functions by key that are called until they succeed
  (loss nil :type (or null condition))  ; why the lease has ended, unless the lease was revoked
  (ended nil :type boolean)             ; the lease was revoked or lost, or is not renewed any more
  (told nil :type boolean)              ; the loss of the lease was reported
  (ending nil :type (or null function)) ; ends the renewals; nil if the lease is not kept alive
  (job nil :type (or null loop:job))    ; does its cleanups and reports its loss
  ;; the call that this job waits for
  (cancellation-token (make-cancellation-token) :type cancellation-token :read-only t)
  (renewal nil :type (or null renewal)) ; nil if the lease is not kept alive
  ;; guards the slots from UNTIL-NS to ENDED
  (lock (sb-thread:make-mutex :name "clgrpc lease") :read-only t)
  (cleanup-lock (sb-thread:make-mutex :name "clgrpc lease cleanups")
                :read-only t)) ; a cleanup is done

(declaim (sb-ext:freeze-type lease))

(document-functions
  lease-id "The number of LEASE, as etcd shows it in hexadecimal."
  lease-seconds "Return the seconds that LEASE lasts unless it is renewed.")

(define-printer (lease lease)
  "~(~X~), ~D s~:[~;, ended~]" (lease-id lease) (lease-seconds lease) (lease-ended lease))

(defparameter *suspension* #'suspended-ns
  "The function that returns how long the machine has been suspended, in nanoseconds.")

(defun lease-now-ns ()
  "The time by which leases end: the loops' time, which stands still while the machine is suspended,
plus the time it was suspended."
  (+ (loop:world-now) (funcall (the function *suspension*))))

(defun lease-end-ns (lease)
  "The time, by the clock of the loops, at which LEASE ends unless it is renewed."
  (max 0 (- (lease-until-ns lease) (funcall (the function *suspension*)))))

(defmacro with-lease ((lease) &body body)
  "Evaluate BODY, which changes LEASE, while holding LEASE's lock. BODY is not interrupted."
  `(sb-sys:without-interrupts
     (sb-thread:with-mutex ((lease-lock ,lease)) ,@body)))

(defun lease-alive-p (lease)
  "True if LEASE certainly exists: it was neither revoked nor lost, and its time since the last
renewal is not over. From any thread."
  (and (not (lease-ended lease))
       (< (lease-now-ns) (lease-until-ns lease))))

(defun end-lease (lease &optional loss)
  "Stop the renewal of LEASE; LOSS is the condition of its loss, or nil. Return false if LEASE had
ended before."
  (with-lease (lease)
    (unless (shiftf (lease-ended lease) t)
      (setf (lease-loss lease) loss)
      t)))

(defun on-lease-loss (lease function)
  "Call FUNCTION with an ETCD-ERROR when LEASE is lost: when etcd reports that it has ended, or when
it may have ended, since it was not renewed in time. If LEASE is lost already, call it at once. A
revoked lease is not lost; the loss of a lease that is not kept alive is not noticed. FUNCTION runs
on a thread for the lease, and may wait, but must not call CLOSE-ETCD. From any thread."
  (let ((loss (with-lease (lease)
                (unless (lease-ended lease) (push function (lease-loss-callbacks lease)))
                (lease-loss lease))))
    (when loss (funcall function loss))
    nil))

(defun forget-loss-callback (lease function)
  "Forget FUNCTION, an argument of ON-LEASE-LOSS."
  (with-lease (lease)
    (setf (lease-loss-callbacks lease) (remove function (lease-loss-callbacks lease)))))

(defconstant +longest-lease-seconds+ 9000000000
  "The maximum duration of a lease of etcd, in seconds.")

(defun lease-time (seconds)
  "The time of a lease from SECONDS in etcd's answer, at most +LONGEST-LEASE-SECONDS+; -1 if it has
ended."
  (clamp seconds -1 +longest-lease-seconds+))

(defun granted-seconds (response)
  "The seconds that a lease lasts, from RESPONSE, a LeaseTimeToLiveResponse."
  (max 0 (lease-time (pb:lease-time-to-live-response-granted-ttl response))))

(defun extend-lease (lease asked-ns seconds)
  "Note that LEASE was renewed for SECONDS by a request of ASKED-NS. Of two renewals the later end
counts."
  (with-lease (lease)
    (setf (lease-until-ns lease) (max (lease-until-ns lease)
                                      (time-after (seconds-ns seconds) asked-ns)))))

(defun renew-together (etcd leases timeout)
  "Renew LEASES, of ETCD, at once, within TIMEOUT seconds or, if that is nil, the timeout of ETCD.
Return a list with the remaining seconds of each, nil for a lease that has ended. Signal an
ETCD-ERROR."
  (let* ((asked (lease-now-ns))
         (end (loop:notice-end (or timeout (etcd-timeout etcd))))
         (responses (call-again end t
                                (lambda ()
                                  (call-etcd etcd (loop:seconds-until end)
                                             (lambda (seconds metadata)
                                               (setf asked (lease-now-ns))
                                               (ask-for-renewals etcd (mapcar #'lease-id leases)
                                                                 seconds metadata)))))))
    (loop for lease in leases
          for response in responses
          for seconds = (lease-time (pb:lease-keep-alive-response-ttl response))
          do (when (plusp seconds) (extend-lease lease asked seconds))
          collect (and (plusp seconds) seconds))))

(define-keyword-function renew-lease (lease &key timeout)
  "Renew LEASE, and return the seconds that it lasts from now on. Signal LEASE-NOT-FOUND if LEASE
has ended, or another ETCD-ERROR. From any thread."
  (or (first (renew-together (lease-etcd lease) (list lease) timeout))
      (error 'lease-not-found :text (format nil "the lease ~(~X~) has ended" (lease-id lease)))))

(defconstant +most-renewed-together+ 200 "The maximum number of leases that are renewed together.")

(define-keyword-function renew-leases (leases &key timeout)
  "Renew LEASES, a list of leases of one client, together, which costs etcd less than renewing them
one by one. Return a list with the remaining seconds of each, nil for one that has ended. Signal an
ETCD-ERROR, after TIMEOUT seconds or, if that is nil, the timeout of the client; some of LEASES may
be renewed nevertheless. From any thread."
  (let ((end (and timeout (loop:notice-end timeout))))
    (loop while leases
          for some = (loop repeat +most-renewed-together+ while leases collect (pop leases))
          append (renew-together (lease-etcd (first some)) some
                                 (and end (loop:seconds-until end))))))

;;; Cleanups

(defun add-cleanup (lease key function)
  "Call FUNCTION after each renewal of LEASE, if LEASE is kept alive, until one call signals no
ETCD-ERROR. FUNCTION's argument is the seconds that the call may take. KEY, a string, names the
cleanup for FORGET-CLEANUP. Return the cleanup."
  (let ((cleanup (cons key function)))
    (with-lease (lease)
      (push cleanup (lease-cleanups lease)))
    cleanup))

(defun forget-cleanup (lease key)
  (sb-thread:with-mutex ((lease-cleanup-lock lease))
    (with-lease (lease)
      (setf (lease-cleanups lease)
            (remove key (lease-cleanups lease) :key #'car :test #'string=)))))

(defun set-cleanups (lease cleanup &rest again)
  "Remove CLEANUP of LEASE, which was done, or put AGAIN, a list that contains it, after the
others."
  (with-lease (lease)
    (setf (lease-cleanups lease) (append (remove cleanup (lease-cleanups lease)) again))))

(defun do-cleanups (lease seconds)
  "Do the cleanups of LEASE, all within SECONDS, until one fails. Put the failed cleanup after the
others for the next time."
  (loop with end = (loop:notice-end seconds)
        for cleanup in (lease-cleanups lease)
        while (< (loop:world-now) end)
        do (sb-thread:with-mutex ((lease-cleanup-lock lease))
             (when (member cleanup (lease-cleanups lease))
               (handler-case (with-cancellation-token ((lease-cancellation-token lease))
                               (funcall (the function (cdr cleanup)) (loop:seconds-until end))
                               (set-cleanups lease cleanup))
                 (etcd-error ()
                   (set-cleanups lease cleanup cleanup)
                   (return)))))))

(defun tell-loss (lease)
  "Call the loss functions of LEASE, which was lost."
  (setf (lease-told lease) t)
  (let ((condition (lease-loss lease)))
    (remove-ending (lease-etcd lease) (lease-ending lease))
    (note (lease-etcd lease) #'meter-losses)
    (log-event :warning :etcd-lease-lost :lease (format nil "~(~X~)" (lease-id lease))
                                         :condition (bounded-text condition))
    (dolist (function (reverse (with-lease (lease)
                                 (shiftf (lease-loss-callbacks lease) '()))))
      (loop:guarding (:etcd-lease-error :lease (format nil "~(~X~)" (lease-id lease)))
        (funcall (the function function) condition)))))

(defun lose-lease (lease condition)
  "Note that LEASE, which was kept alive, has ended because of CONDITION, without a call of
REVOKE-LEASE. The lease's job reports the end."
  (when (end-lease lease condition) (loop:wake-job (lease-job lease))))

(defun attend-lease (lease)
  "Run the job of LEASE once."
  (cond ((lease-loss lease)
         (unless (lease-told lease) (tell-loss lease)))
        ((not (lease-ended lease))
         (do-cleanups lease (max 1/10 (/ (lease-seconds lease) 10)))))
  nil)

(defun seconds-until (lease)
  (ns-seconds (max 0 (- (lease-until-ns lease) (lease-now-ns)))))
