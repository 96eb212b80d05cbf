;;;; Leases: what is put with one ends with it. A lease that is kept alive has a thread, which
;;;; renews it three times in its time, and if that fails at once again: an answer that does not
;;;; come is waited for a tenth of the time, so that several members can be asked within it. What
;;;; is to be removed before the lease ends, and could not be, is a chore of the thread's.
;;;;
;;;; By our own clock a lease has ended when its time is over since the last renewal that was
;;;; answered was asked for, so never later than the store lets it end: whoever asks LEASE-ALIVE-P
;;;; does not take for his what somebody else may have by now.

(in-package #:clgrpc.etcd)

(defstruct (lease (:constructor %make-lease (etcd id seconds until-ns)) (:copier nil))
  "A lease of the store, see GRANT-LEASE."
  (etcd nil :type etcd :read-only t)    ; whose
  (id 0 :type (signed-byte 64) :read-only t) ; its number
  (seconds 0 :type (integer 0) :read-only t) ; how long it lasts unless it is renewed
  (until-ns 0 :type nanoseconds)        ; when it has ended unless it is renewed, by LEASE-NOW-NS
  (mourners '() :type list)             ; functions that are called when it is lost
  (places '() :type list)               ; those in queues that are known to be bound to it
  (chores '() :type list)               ; functions by key that are called until they succeed
  (loss nil :type (or null condition))  ; how it has ended without being revoked
  (ended nil :type boolean)             ; it was revoked, or lost, or nobody renews it
  (ending nil :type (or null function)) ; ends its thread
  (thread nil)                          ; that keeps it alive, or nil
  (errand (make-errand) :type errand :read-only t) ; what that waits for
  (lock (sb-thread:make-mutex :name "clgrpc lease") :read-only t) ; of UNTIL-NS to ENDED
  (chore-lock (sb-thread:make-mutex :name "clgrpc lease chores") :read-only t) ; a chore is done
  (bell (sb-thread:make-waitqueue :name "clgrpc lease") :read-only t)) ; ENDED has become true

(declaim (sb-ext:freeze-type lease))

(document-functions
  lease-id "The number of LEASE, as etcd shows it in hexadecimal."
  lease-seconds "How many seconds LEASE lasts if nobody renews it.")

(defmethod print-object ((lease lease) stream)
  (print-unreadable-object (lease stream :type t)
    (format stream "~(~X~), ~D s~:[~;, ended~]" (lease-id lease) (lease-seconds lease)
            (lease-ended lease))))

(defparameter *suspension* #'suspended-ns
  "The function that says how long the machine has been suspended, in nanoseconds.")

(defun lease-now-ns ()
  "The time by which leases end: that of the loops, whose clock stands still while the machine is
suspended, and how long it was."
  (+ (loop:world-now) (funcall (the function *suspension*))))

(defun lease-end-ns (lease)
  "When LEASE has ended unless it is renewed, by the clock of the loops."
  (max 0 (- (lease-until-ns lease) (funcall (the function *suspension*)))))

(defun lease-alive-p (lease)
  "True if LEASE is there for certain: it was neither revoked nor lost, and its time is not over
since it was renewed last. From any thread."
  (and (not (lease-ended lease))
       (< (lease-now-ns) (lease-until-ns lease))))

(defun end-lease (lease &optional loss)
  "LEASE is to be kept alive no longer; LOSS is the condition that it is lost by, or nil. Return
false if it had ended."
  (sb-thread:with-mutex ((lease-lock lease))
    (unless (shiftf (lease-ended lease) t)
      (setf (lease-loss lease) loss)
      (sb-thread:condition-broadcast (lease-bell lease))
      t)))

(defun on-lease-loss (lease function)
  "Have FUNCTION called with an ETCD-ERROR when LEASE is lost: when etcd says that it has ended, or
has not renewed it for so long that it may have ended; at once if that is so. One that is revoked is
not lost, and of one that is not kept alive nobody learns. FUNCTION runs on the lease's thread, and
may wait, but calls no CLOSE-ETCD. From any thread."
  (let ((loss (sb-thread:with-mutex ((lease-lock lease))
                (unless (lease-ended lease) (push function (lease-mourners lease)))
                (lease-loss lease))))
    (when loss (funcall function loss))
    nil))

(defun forget-mourner (lease function)
  "FUNCTION of ON-LEASE-LOSS is not to be called any more."
  (sb-thread:with-mutex ((lease-lock lease))
    (setf (lease-mourners lease) (remove function (lease-mourners lease)))))

(defconstant +longest-lease-seconds+ 9000000000 "No lease of etcd lasts longer.")

(defun lease-time (seconds)
  "SECONDS that etcd says a lease has, or -1 if it has ended, whatever they are."
  (clamp seconds -1 +longest-lease-seconds+))

(defun granted-seconds (response)
  "The seconds that a lease lasts, of which etcd tells by RESPONSE, a LeaseTimeToLiveResponse."
  (max 0 (lease-time (pb:lease-time-to-live-response-granted-ttl response))))

(defun extend-lease (lease asked-ns seconds)
  "LEASE was renewed for SECONDS by a request that was made at ASKED-NS. Of two the later end
counts."
  (sb-thread:with-mutex ((lease-lock lease))
    (setf (lease-until-ns lease) (max (lease-until-ns lease)
                                      (time-after (seconds-ns seconds) asked-ns)))))

(defun ask-for-renewal (lease seconds metadata)
  "What etcd answers within SECONDS when it is asked to renew LEASE. Signal an RPC-ERROR or
ETCD-ERROR."
  (rpc:with-call (call (leases:lease-keep-alive
                        (etcd-channel (lease-etcd lease))
                        (list (pb:make-lease-keep-alive-request :id (lease-id lease)))
                        :timeout seconds :wait-for-ready t
                        :metadata (append metadata *require-leader*)))
    (set-errand call)
    (unwind-protect (or (rpc:receive call)
                        (error 'unavailable :text "the stream of a lease has ended"))
      (set-errand nil))))

(defun renew-lease (lease &key timeout)
  "Renew LEASE, and return the seconds that it lasts from now on. Signal LEASE-NOT-FOUND if it has
ended, or another ETCD-ERROR. From any thread."
  (let* ((asked (lease-now-ns))
         (response (call-etcd (lease-etcd lease) timeout
                              (lambda (seconds metadata)
                                (setf asked (lease-now-ns))
                                (ask-for-renewal lease seconds metadata))))
         (seconds (lease-time (pb:lease-keep-alive-response-ttl response))))
    (unless (plusp seconds)
      (error 'lease-not-found :text (format nil "the lease ~(~X~) has ended" (lease-id lease))))
    (extend-lease lease asked seconds)
    seconds))

(defun pause-lease (lease seconds)
  "Wait for SECONDS, or until LEASE is to end. Return false if it is."
  (let ((end (loop:notice-end seconds)))
    (sb-thread:with-mutex ((lease-lock lease))
      (loop until (or (lease-ended lease) (<= end (loop:world-now)))
            do (loop:await-notice (lease-bell lease) (lease-lock lease) end))
      (not (lease-ended lease)))))

;;; Chores

(defun add-chore (lease key function)
  "Have FUNCTION called by the thread of LEASE, if it has one, with the seconds that it may take,
until it signals no ETCD-ERROR. KEY, a string, is what FORGET-CHORE knows it by."
  (sb-thread:with-mutex ((lease-lock lease))
    (push (cons key function) (lease-chores lease))))

(defun forget-chore (lease key)
  "Have the chore of LEASE that is known by KEY not be done any more."
  (sb-thread:with-mutex ((lease-chore-lock lease))
    (sb-thread:with-mutex ((lease-lock lease))
      (setf (lease-chores lease)
            (remove key (lease-chores lease) :key #'car :test #'string=)))))

(defun set-chores (lease chore &rest again)
  "CHORE of LEASE was done, or follows as AGAIN, a list of it, behind the others."
  (sb-thread:with-mutex ((lease-lock lease))
    (setf (lease-chores lease) (append (remove chore (lease-chores lease)) again))))

(defun do-chores (lease seconds)
  "Do the chores of LEASE, all within SECONDS, until one fails, lest they keep the lease from being
renewed. The others come first the next time."
  (loop with end = (loop:notice-end seconds)
        for chore in (lease-chores lease)
        while (< (loop:world-now) end)
        do (sb-thread:with-mutex ((lease-chore-lock lease))
             (when (member chore (lease-chores lease))
               (handler-case (with-errand ((lease-errand lease))
                               (funcall (the function (cdr chore)) (loop:seconds-until end))
                               (set-chores lease chore))
                 (etcd-error ()
                   (set-chores lease chore chore)
                   (return)))))))

(defun lose-lease (lease condition)
  "LEASE has ended, as CONDITION says, though nobody has revoked it."
  (when (end-lease lease condition)
    (remove-ending (lease-etcd lease) (lease-ending lease))
    (note (lease-etcd lease) #'meter-losses)
    (log-event :warning :etcd-lease-lost :lease (format nil "~(~X~)" (lease-id lease))
                                         :condition (princ-to-string condition))
    (dolist (function (reverse (sb-thread:with-mutex ((lease-lock lease))
                                 (shiftf (lease-mourners lease) '()))))
      (loop:guarding (:etcd-lease-error :lease (format nil "~(~X~)" (lease-id lease)))
        (funcall (the function function) condition)))))

(defun seconds-until (lease)
  (ns-seconds (max 0 (- (lease-until-ns lease) (lease-now-ns)))))

(defun keep-alive (lease)
  "What the thread of LEASE does."
  (let* ((third (/ (lease-seconds lease) 3))
         (tenth (/ (lease-seconds lease) 10))
         (wait third) (patience tenth)
         (pauses (loop:make-pauses 1/2 1/2)))
    (loop while (pause-lease lease wait)
          do (handler-case
                 (with-errand ((lease-errand lease))
                   (renew-lease lease :timeout (max 1/10 (min patience (seconds-until lease))))
                   (setf wait third patience tenth)
                   (do-chores lease (max 1/10 tenth)))
               (lease-not-found (error) (lose-lease lease error))
               (etcd-error (error)
                 (unless (lease-alive-p lease) (lose-lease lease error))
                 ;; longer each time, since etcd may be slow
                 (setf wait (min (loop:next-pause pauses) (/ third 4) (seconds-until lease))
                       patience (min third (* 2 patience))))))))

(defun begin-keeping (lease)
  "Have a thread keep LEASE alive until it is to end."
  (let ((etcd (lease-etcd lease)))
    (setf (lease-ending lease) (lambda () (stop-keeping lease))
          (lease-thread lease) (sb-thread:make-thread #'keep-alive :name "clgrpc lease"
                                                                   :arguments (list lease)))
    (add-ending etcd (lease-ending lease))))

(defun time-to-live (etcd id keys timeout)
  "What etcd tells of the lease with the number ID, and if KEYS is true of its keys."
  (ask etcd #'leases:lease-time-to-live
       (pb:make-lease-time-to-live-request :id id :keys keys) timeout :twice t))

(defun ask-for-lease (etcd seconds id end)
  "Have ETCD grant a lease of SECONDS with the number ID, until END. Return its number, which a
store that chooses by itself may have chosen, and how many seconds it has. Without ID it has a
random number, and is asked for again if no answer comes: if there is one of that number then, it is
the one that was asked for. One with ID may be somebody else's, so that is not asked for again."
  (let ((perhaps-done nil)
        (random (if (member id '(nil 0))
                    (1+ (random most-positive-fixnum (loop:new-random-state)))
                    nil)))
    (call-again
     end (and random t)
     (lambda ()
       (handler-case
           (let ((response (ask etcd #'leases:lease-grant
                                (pb:make-lease-grant-request :ttl seconds :id (or random id))
                                (loop:seconds-until end))))
             (values (pb:lease-grant-response-id response)
                     (max 0 (lease-time (pb:lease-grant-response-ttl response)))))
         (lease-exists (error)
           (unless (and random perhaps-done) (error error))
           (values random (granted-seconds
                           (time-to-live etcd random nil (loop:seconds-until end)))))
         (etcd-error (error)
           (when (etcd-error-perhaps-done-p error) (setf perhaps-done t))
           (error error)))))))

(defun freshen-lease (lease end-ns)
  "Renew LEASE once, until END-NS, if the answer to the request for it has come so late that less
than two thirds of its time are left for certain. Signal an ETCD-ERROR if it may have ended."
  (when (< (* 3 (seconds-until lease)) (* 2 (lease-seconds lease)))
    (handler-case (renew-lease lease :timeout (loop:seconds-until end-ns))
      (lease-not-found ()
        (error 'unavailable :text "the answer to the request for a lease has come too late"))
      (etcd-error (error)
        (unless (lease-alive-p lease) (error error))))))

(defun grant-lease (etcd seconds &key (keep-alive t) id on-loss timeout)
  "Return a new lease of at least SECONDS, an integer, 2 at least unless etcd says otherwise. ID is
its number, by default a random one. With KEEP-ALIVE, the default, a thread renews it until it is
revoked or ETCD is closed. If that fails for so long that it may have ended, or etcd says that it
has, ON-LOSS is called with an ETCD-ERROR, on that thread; see ON-LEASE-LOSS. Signal an ETCD-ERROR,
LEASE-EXISTS if there is one with this ID; of one with an ID that gets no answer
ETCD-ERROR-PERHAPS-DONE-P says whether it may be there. From any thread."
  (check-type seconds (integer 1 9000000000))
  (let ((asked (lease-now-ns)) (end (loop:notice-end (or timeout (etcd-timeout etcd)))))
    (multiple-value-bind (number granted) (ask-for-lease etcd seconds id end)
      (let ((lease (%make-lease etcd number granted (time-after (seconds-ns granted) asked))))
        (freshen-lease lease end)
        (when on-loss (on-lease-loss lease on-loss))
        (when keep-alive (begin-keeping lease))
        lease))))

(defun adopt-lease (etcd id &key (keep-alive t) on-loss timeout)
  "Return the lease with the number ID that somebody has been granted before, such as this program
before it was restarted. KEEP-ALIVE and ON-LOSS are as for GRANT-LEASE. Signal LEASE-NOT-FOUND if it
has ended, or another ETCD-ERROR. From any thread."
  (let* ((asked (lease-now-ns))
         (response (time-to-live etcd id nil timeout))
         (seconds (lease-time (pb:lease-time-to-live-response-ttl response))))
    (when (minusp seconds)
      (error 'lease-not-found :text (format nil "the lease ~(~X~) has ended" id)))
    (let ((lease (%make-lease etcd id (granted-seconds response)
                              (time-after (seconds-ns seconds) asked))))
      (renew-lease lease :timeout timeout)
      (when on-loss (on-lease-loss lease on-loss))
      (when keep-alive (begin-keeping lease))
      lease)))

(defun lease-by-number (etcd number)
  "Return the lease of NUMBER, as ENTRY-LEASE tells it, which this or another client was granted,
for RENEW-LEASE, REVOKE-LEASE and LEASE-SECONDS-LEFT. It is not kept alive here; LEASE-ALIVE-P is
true of it once it was renewed, and LEASE-SECONDS is 0, since only etcd knows that. Asks nobody.
From any thread."
  (check-type number (signed-byte 64))
  (%make-lease etcd number 0 0))

(defun stop-keeping (lease)
  "Keep LEASE alive no longer, and wait for its thread unless it is this one."
  (end-lease lease)
  (end-errand (lease-errand lease))
  (let ((thread (lease-thread lease)))
    (unless (or (null thread) (eq thread sb-thread:*current-thread*))
      (sb-thread:join-thread thread :default nil))))

(defun revoke-lease (lease &key timeout)
  "End LEASE, and with it all entries that were put with it. It is not renewed any more even if this
signals an ETCD-ERROR; one that has ended is no error. From any thread."
  (stop-keeping lease)
  (when (lease-ending lease) (remove-ending (lease-etcd lease) (lease-ending lease)))
  (handler-case (ask (lease-etcd lease) #'leases:lease-revoke
                     (pb:make-lease-revoke-request :id (lease-id lease)) timeout :twice t)
    (lease-not-found ()))
  nil)

(defun lease-seconds-left (lease &key timeout)
  "Ask etcd how many seconds LEASE has left; nil if it has ended. Signal an ETCD-ERROR. From any
thread."
  (let ((seconds (pb:lease-time-to-live-response-ttl
                  (time-to-live (lease-etcd lease) (lease-id lease) nil timeout))))
    (if (minusp seconds) nil seconds)))

(defun lease-keys (lease &key timeout)
  "Ask etcd for the keys of the entries that end with LEASE: a list of octets, empty if it has
ended. Signal an ETCD-ERROR. From any thread."
  (coerce (pb:lease-time-to-live-response-keys
           (time-to-live (lease-etcd lease) (lease-id lease) t timeout))
          'list))

(defun list-leases (etcd &key timeout)
  "Return the numbers of all leases that there are. Signal an ETCD-ERROR. From any thread."
  (map 'list #'pb:lease-status-id
       (pb:lease-leases-response-leases
        (ask etcd #'leases:lease-leases (pb:make-lease-leases-request) timeout
             :twice t))))
