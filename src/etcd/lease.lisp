;;;; Leases: what is put with one ends with it. A lease that is kept alive has a thread, which
;;;; renews it three times in its time. By our own clock a lease has ended when its time is over
;;;; since the last renewal that was answered was asked for, so never later than the store lets it
;;;; end: whoever asks LEASE-ALIVE-P does not take for his what somebody else may have by now.

(in-package #:clgrpc.etcd)

(defstruct (lease (:constructor %make-lease (etcd id seconds until-ns on-loss)) (:copier nil))
  "A lease of the store, see GRANT-LEASE."
  (etcd nil :type etcd :read-only t)    ; whose
  (id 0 :type (signed-byte 64) :read-only t) ; its number
  (seconds 0 :type (integer 0) :read-only t) ; how long it lasts unless it is renewed
  (until-ns 0 :type nanoseconds)        ; when it has ended unless it is renewed, by our clock
  ;; called when it has ended without being revoked
  (on-loss nil :type (or null function) :read-only t)
  (ended nil :type boolean)             ; it was revoked, or lost, or nobody renews it
  (ending nil :type (or null function)) ; ends its thread
  (thread nil)                          ; that keeps it alive, or nil
  (lock (sb-thread:make-mutex :name "clgrpc lease") :read-only t) ; of ENDED
  (bell (sb-thread:make-waitqueue :name "clgrpc lease") :read-only t)) ; ENDED has become true

(declaim (sb-ext:freeze-type lease))

(document-functions
  lease-id "The number of LEASE, as etcd shows it in hexadecimal."
  lease-seconds "How many seconds LEASE lasts if nobody renews it.")

(defmethod print-object ((lease lease) stream)
  (print-unreadable-object (lease stream :type t)
    (format stream "~(~X~), ~D s~:[~;, ended~]" (lease-id lease) (lease-seconds lease)
            (lease-ended lease))))

(defun lease-alive-p (lease)
  "True if LEASE is there for certain: it was neither revoked nor lost, and its time is not over
since it was renewed last. From any thread."
  (and (not (lease-ended lease))
       (< (now-ns) (lease-until-ns lease))))

(defun end-lease (lease)
  "LEASE is to be kept alive no longer. Return false if that was so."
  (sb-thread:with-mutex ((lease-lock lease))
    (unless (shiftf (lease-ended lease) t)
      (sb-thread:condition-broadcast (lease-bell lease))
      t)))

(defun renew-lease (lease &key timeout)
  "Renew LEASE, and return the seconds that it lasts from now on. Signal LEASE-NOT-FOUND if it has
ended, or another ETCD-ERROR. From any thread."
  (let* ((etcd (lease-etcd lease))
         (asked (now-ns))
         (response
           (with-etcd-errors
             (rpc:with-call (call (leases:lease-keep-alive
                                   (etcd-channel etcd)
                                   (list (pb:make-lease-keep-alive-request :id (lease-id lease)))
                                   :timeout (or timeout (etcd-timeout etcd)) :wait-for-ready t
                                   :metadata *require-leader*))
               (rpc:receive call))))
         (seconds (if response (pb:lease-keep-alive-response-ttl response) 0)))
    (unless (plusp seconds)
      (error 'lease-not-found :text (format nil "the lease ~(~X~) has ended" (lease-id lease))))
    (setf (lease-until-ns lease) (+ asked (seconds-ns seconds)))
    seconds))

(defun pause-lease (lease seconds)
  "Wait for SECONDS, or until LEASE is to end. Return false if it is."
  (let ((end (loop:notice-end seconds)))
    (sb-thread:with-mutex ((lease-lock lease))
      (loop until (or (lease-ended lease) (<= end (now-ns)))
            do (loop:await-notice (lease-bell lease) (lease-lock lease) end))
      (not (lease-ended lease)))))

(defun lose-lease (lease condition)
  "LEASE has ended, as CONDITION says, though nobody has revoked it."
  (when (end-lease lease)
    (remove-ending (lease-etcd lease) (lease-ending lease))
    (log-event :warning :etcd-lease-lost :lease (format nil "~(~X~)" (lease-id lease))
                                         :condition (princ-to-string condition))
    (when (lease-on-loss lease) (funcall (lease-on-loss lease) condition))))

(defun seconds-until (lease)
  (ns-seconds (max 0 (- (lease-until-ns lease) (now-ns)))))

(defun keep-alive (lease)
  "What the thread of LEASE does."
  (let ((third (/ (lease-seconds lease) 3)) (wait nil))
    (loop
      (unless (pause-lease lease (or wait third)) (return))
      (setf wait
            (handler-case (progn (renew-lease lease :timeout (max 1/10 (min third
                                                                            (seconds-until lease))))
                                 nil)
              (lease-not-found (error) (return (lose-lease lease error)))
              (etcd-error (error)
                (if (lease-alive-p lease)
                    (min 1/2 (/ third 4))
                    (return (lose-lease lease error)))))))))

(defun grant-lease (etcd seconds &key (keep-alive t) on-loss timeout)
  "Return a new lease of at least SECONDS, an integer, 2 at least unless etcd says otherwise. With
KEEP-ALIVE, the default, a thread renews it until it is revoked or ETCD is closed. If that fails for
so long that it may have ended, or etcd says that it has, ON-LOSS is called with an ETCD-ERROR, on
that thread. Signal an ETCD-ERROR. From any thread."
  (check-type seconds (integer 1 9000000000))
  (let* ((asked (now-ns))
         (response (ask etcd #'leases:lease-grant (pb:make-lease-grant-request :ttl seconds)
                        timeout))
         (granted (pb:lease-grant-response-ttl response))
         (lease (%make-lease etcd (pb:lease-grant-response-id response) granted
                             (+ asked (seconds-ns granted)) on-loss)))
    (when keep-alive
      (setf (lease-ending lease) (lambda () (stop-keeping lease))
            (lease-thread lease) (sb-thread:make-thread #'keep-alive :name "clgrpc lease"
                                                                     :arguments (list lease)))
      (add-ending etcd (lease-ending lease)))
    lease))

(defun stop-keeping (lease)
  "Keep LEASE alive no longer, and wait for its thread unless it is this one."
  (end-lease lease)
  (let ((thread (lease-thread lease)))
    (unless (or (null thread) (eq thread sb-thread:*current-thread*))
      (sb-thread:join-thread thread :default nil))))

(defun revoke-lease (lease &key timeout)
  "End LEASE, and with it all entries that were put with it. It is not renewed any more even if this
signals an ETCD-ERROR; one that has ended is no error. From any thread."
  (stop-keeping lease)
  (when (lease-ending lease) (remove-ending (lease-etcd lease) (lease-ending lease)))
  (handler-case (ask (lease-etcd lease) #'leases:lease-revoke
                     (pb:make-lease-revoke-request :id (lease-id lease)) timeout)
    (lease-not-found ()))
  nil)

(defun lease-seconds-left (lease &key timeout)
  "Ask etcd how many seconds LEASE has left; nil if it has ended. Signal an ETCD-ERROR. From any
thread."
  (let ((seconds (pb:lease-time-to-live-response-ttl
                  (ask (lease-etcd lease) #'leases:lease-time-to-live
                       (pb:make-lease-time-to-live-request :id (lease-id lease)) timeout))))
    (if (minusp seconds) nil seconds)))
