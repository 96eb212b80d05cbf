;;;; Places in a queue, of which locks and elections consist, as etcd's own package for these
;;;; (client/v3/concurrency), its services V3Lock and V3Election, and `etcdctl lock` and `etcdctl
;;;; elect` have them, so that all of them wait for each other.
;;;;
;;;; 1. Whoever waits puts the key NAME/LEASE, his lease's number in hexadecimal, with that lease.
;;;; 2. The key that was made first is at the head: its owner has the lock, or leads.
;;;; 3. Who is behind watches the key just before his own, and looks again when that is gone, so
;;;;    that of a thousand who wait one wakes up.
;;;; 4. A place ends when its key is removed, or with its lease. Its owner may learn of that late:
;;;;    so what he writes has the comparison PLACE-GUARD as a condition, which etcd checks.

(in-package #:clgrpc.etcd)

(defconstant +place-pause-seconds+ 1/10 "How long a place waits before it asks a member again.")
(defconstant +place-seconds+ 10 "How long the lease of a place lasts unless its user says.")

(defstruct (place (:constructor nil) (:copier nil))
  "A place in a queue."
  (etcd nil :type etcd :read-only t)    ; whose
  (name "" :type string :read-only t)   ; of the queue
  (lease nil :type lease :read-only t)  ; with which it ends
  (own-lease nil :type boolean :read-only t) ; that lease is for this place alone
  (began-ns (loop:world-now) :type nanoseconds :read-only t) ; when it was asked for
  (revision 0 :type (signed-byte 64))   ; at which its key was made; 0 if that is not known
  (asked nil :type boolean)             ; its key was perhaps made
  (on-loss nil :type (or null function) :read-only t) ; called when it is lost
  (mourner nil :type (or null function)) ; hears of its lease's loss
  (lock (sb-thread:make-mutex :name "clgrpc place") :read-only t) ; of what follows
  (bell (sb-thread:make-waitqueue :name "clgrpc place") :read-only t) ; any of that has changed
  ;; :held at the head of the queue; :lost since its lease has ended; :left by its user
  (state :waiting :type (member :waiting :held :lost :left))
  (stirred nil :type boolean))          ; the key before its own may be gone

(defun place-prefix (place)
  (format nil "~A/" (place-name place)))

(defun place-key (place)
  "The key of PLACE, a string."
  (format nil "~A/~(~X~)" (place-name place) (lease-id (place-lease place))))

(defun place-guard (place)
  "The comparison that is so while PLACE is there."
  `(:created ,(place-key place) = ,(place-revision place)))

(defun place-held-p (place)
  "True if PLACE is at the head of its queue for certain."
  (and (eq :held (place-state place)) (lease-alive-p (place-lease place))))

(defmethod print-object ((place place) stream)
  (print-unreadable-object (place stream :type t)
    (write-printable (place-name place) stream :quoted t :limit 80)
    (format stream " ~(~A~), revision ~D" (place-state place) (place-revision place))))

(defun set-place (place state)
  "PLACE comes to STATE, unless it is lost or left: then return false."
  (sb-thread:with-mutex ((place-lock place))
    (when (member (place-state place) '(:waiting :held))
      (setf (place-state place) state)
      (sb-thread:condition-broadcast (place-bell place))
      t)))

(defun lose-place (place condition)
  "PLACE is lost, as CONDITION says."
  (when (and (set-place place :lost) (place-on-loss place))
    (funcall (place-on-loss place) condition)))

(defun lost-error (place)
  (make-condition 'ownership-lost
                  :text (format nil "the lease of ~A has ended, or somebody has removed its entry"
                                (place-key place))))

(defun gone-error (place)
  "Why PLACE is not in its queue: another thread has left it, or it is lost."
  (if (eq :left (place-state place))
      (make-condition 'not-obtained :text (format nil "~A was given up" (place-key place)))
      (lost-error place)))

(defun check-waiting (place end-ns)
  "Signal why PLACE waits no longer: it was left or lost, or END-NS is past."
  (unless (and (member (place-state place) '(:waiting :held))
               (lease-alive-p (place-lease place)))
    (error (gone-error place)))
  (when (<= end-ns (loop:world-now))
    (error 'not-obtained :text (format nil "others were before ~A until the time was over"
                                       (place-key place)))))

(defun pause-place (place end-ns)
  "Wait until END-NS, or until PLACE is stirred, left or lost."
  (loop:await-until (place-bell place) (place-lock place) end-ns
                    (lambda () (or (not (eq :waiting (place-state place))) (place-stirred place)))))

(defun stir-place (place)
  (sb-thread:with-mutex ((place-lock place))
    (setf (place-stirred place) t)
    (sb-thread:condition-broadcast (place-bell place))))

(defun step-timeout (place end-ns)
  "How long one request for PLACE may take, of the time until END-NS."
  (min (etcd-timeout (place-etcd place)) (loop:seconds-until end-ns)))

(defun call-patiently (place end-ns function)
  "What FUNCTION, which may be called again, returns, though members may be missing meanwhile; until
END-NS."
  (loop with pauses = (loop:make-pauses +place-pause-seconds+ +place-pause-seconds+)
        do (handler-case (return (funcall function (step-timeout place end-ns)))
             (etcd-error (error)
               (let ((next (loop:notice-end (loop:next-pause pauses))))
                 (when (or (not (passing-p error)) (<= end-ns next)) (error error))
                 (pause-place place next)
                 (check-waiting place end-ns))))))

;;; Joining the queue, and leaving it

(defun note-place (place)
  "The lease of PLACE has its key."
  (let ((lease (place-lease place)))
    (sb-thread:with-mutex ((lease-lock lease))
      (pushnew place (lease-places lease)))))

(defun forget-place (place)
  "The lease of PLACE has its key no more, or is to lose it."
  (let ((lease (place-lease place)))
    (sb-thread:with-mutex ((lease-lock lease))
      (setf (lease-places lease) (remove place (lease-places lease))))))

(defun shared-key-p (place)
  "True if another place is the same, since it has the same lease and name, and so the same key."
  (some (lambda (other)
          (and (not (eq other place)) (string= (place-key other) (place-key place))))
        (lease-places (place-lease place))))

(defun enter-queue (place value end-ns)
  "Put PLACE's key with VALUE, until END-NS. If it is there, since its lease has this place already,
have it as it is; return false then if its value is another."
  (unless (place-own-lease place) (forget-chore (place-lease place) (place-key place)))
  (call-patiently
   place end-ns
   (lambda (timeout)
     (setf (place-asked place) t)
     (multiple-value-bind (new results revision)
         (transact (place-etcd place)
                   :when `((:absent ,(place-key place)))
                   :then `((:put ,(place-key place) ,value :lease ,(place-lease place)))
                   :else `((:get ,(place-key place)))
                   :timeout timeout)
       (let ((entry (first results)))
         (setf (place-revision place) (if new revision (entry-created entry)))
         (note-place place)
         (or new (equalp (text-octets value) (entry-value entry))))))))

(defun make-place (constructor etcd name lease seconds on-loss end-ns)
  "A place in the queue NAME that CONSTRUCTOR makes, with LEASE or one of its own for SECONDS."
  (check-type name string)
  (let* ((lease-of-its-own (null lease))
         (lease (or lease (grant-lease etcd seconds :timeout (loop:seconds-until end-ns))))
         (place (funcall constructor :etcd etcd :name name :lease lease :on-loss on-loss
                                     :own-lease lease-of-its-own))
         (mourner (lambda (condition) (lose-place place condition))))
    (setf (place-mourner place) mourner)
    (on-lease-loss lease mourner)
    place))

(defun remove-place (place timeout)
  "Remove the key of PLACE, whose lease is its user's. If it is not known whether it was made it has
that lease if it was; then it is left to another place that is the same."
  (let ((condition (cond ((plusp (place-revision place)) (place-guard place))
                         ((not (shared-key-p place))
                          `(:lease ,(place-key place) = ,(place-lease place))))))
    (when condition
      (transact (place-etcd place) :when (list condition)
                                   :then `((:remove ,(place-key place))) :timeout timeout))))

(defun leave-queue (place timeout)
  "Leave PLACE: end its lease if that is its own, else remove its key. Signal an ETCD-ERROR if that
was not to be done; a lease of its own then ends by itself, and with another one the key is removed
when etcd can be reached, if the lease is kept alive here."
  (set-place place :left)
  (forget-mourner (place-lease place) (place-mourner place))
  (forget-place place)
  (cond ((place-own-lease place) (revoke-lease (place-lease place) :timeout timeout))
        ((place-asked place)
         (handler-bind ((etcd-error (lambda (error)
                                      (declare (ignore error))
                                      (add-chore (place-lease place) (place-key place)
                                                 (lambda (seconds)
                                                   (remove-place place seconds))))))
           (remove-place place timeout))))
  nil)

(defmacro with-place-kept ((place) &body body)
  "Evaluate BODY; if it is left by an error, PLACE's, leave the queue, as far as that can be done."
  (let ((kept (gensym "KEPT")))
    `(let ((,kept nil))
       (unwind-protect (multiple-value-prog1 (progn ,@body)
                         (setf ,kept t))
         (unless ,kept
           (handler-case (leave-queue ,place nil)
             (etcd-error ())))))))

;;; Waiting

(defun place-before (place timeout)
  "The entry just before PLACE in the queue, or nil if it is at its head, and the revision at which
that is so. Signal OWNERSHIP-LOST if PLACE's own is gone, NOT-OBTAINED if it was left."
  (multiple-value-bind (there results revision)
      (transact (place-etcd place)
                :when (list (place-guard place))
                :then `((:get-all :prefix ,(place-prefix place) :keys-only t :limit 1
                                  :order (:created :descending)
                                  :max-created ,(1- (place-revision place))))
                :timeout timeout)
    (unless there
      (let ((condition (gone-error place)))
        (lose-place place condition)
        (error condition)))
    (values (first (first results)) revision)))

(defun await-removal (place key revision end-ns)
  "Wait until the entry of KEY is removed after REVISION, until END-NS, or until PLACE is left or
lost. Signal an ETCD-ERROR if that cannot be watched; what was compacted meanwhile is to be looked
at anew, since it may be the removal."
  (setf (place-stirred place) nil)
  (let* ((trouble nil)
         (watch (watch (place-etcd place)
                       (lambda (changes revision)
                         (declare (ignore changes revision))
                         (stir-place place))
                       :key key :after revision :only :removals
                       :on-end (lambda (condition)
                                 (setf trouble condition)
                                 (stir-place place))
                       :timeout (step-timeout place end-ns))))
    (unwind-protect
         (pause-place place (min end-ns (lease-end-ns (place-lease place))))
      (cancel-watch watch))
    (unless (typep trouble '(or null compacted future-revision)) (error trouble))))

(defun hold-place (place)
  "PLACE is at the head of its queue."
  (let ((meter (etcd-meter (place-etcd place))))
    (when (and (set-place place :held) meter)
      (metrics:record (meter-waits meter)
                      (ns-seconds (- (loop:world-now) (place-began-ns place)))))))

(defun await-head (place end-ns)
  "Wait until PLACE is at the head of its queue. Signal NOT-OBTAINED if it is not by END-NS or was
left, OWNERSHIP-LOST if it is lost, or another ETCD-ERROR."
  (loop
    (check-waiting place end-ns)
    (when (eq :held (place-state place)) (return place))
    (call-patiently
     place end-ns
     (lambda (timeout)
       (multiple-value-bind (before revision) (place-before place timeout)
         (if before
             (handler-case (await-removal place (entry-key-octets before) revision end-ns)
               ((or compacted future-revision) ()))
             (hold-place place)))))))
