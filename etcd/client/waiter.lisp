;;;; Places in a queue, the base of locks and elections. The places have the same form as in etcd's
;;;; own package (client/v3/concurrency), its services V3Lock and V3Election, `etcdctl lock` and
;;;; `etcdctl elect`, so that users of all of these wait for each other.
;;;;
;;;; 1. Each waiter puts the key NAME/LEASE, its lease's number in hexadecimal, with that lease.
;;;; 2. The key that was created first is at the head: its owner has the lock, or leads.
;;;; 3. Each later waiter watches the key just before its own, and checks again when that key is
;;;;    removed, so that of a thousand waiters only one wakes up.
;;;; 4. A place ends when its key is removed, or with its lease. The place's owner may learn of that
;;;;    end late: so the owner's writes have the comparison WAITER-GUARD as a condition, which etcd
;;;;    checks.

(in-package #:clgrpc.etcd)

(defconstant +waiter-pause-seconds+ 1/10 "How long a waiter waits before it asks a member again.")
(defconstant +waiter-seconds+ 10 "The default time of the lease of a place.")

(defstruct (waiter (:constructor nil) (:copier nil))
  "A place in a queue."
  (etcd nil :type etcd :read-only t)    ; the client that the waiter belongs to
  (name "" :type string :read-only t)   ; the name of the queue
  (lease nil :type lease :read-only t)  ; the lease with which the waiter ends
  (own-lease nil :type boolean :read-only t) ; true if the lease serves this place alone
  (began-ns (loop:world-now) :type nanoseconds :read-only t) ; when the place was requested
  (revision 0 :type (signed-byte 64))   ; the revision at which its key was made; 0 if unknown
  (asked nil :type boolean)             ; the waiter's key was perhaps made
  (cleanup nil :type list) ; the cleanup of the lease that removes the waiter's key; see ADD-CLEANUP
  ;; a function that is called when the lease is lost
  (on-loss nil :type (or null function) :read-only t)
  (loss-callback nil :type (or null function)) ; the function that is called when the waiter's lease
                                               ; is lost
  (lock (sb-thread:make-mutex :name "clgrpc place") :read-only t) ; guards the slots below
  (waitqueue (sb-thread:make-waitqueue :name "clgrpc place") :read-only t) ; a slot has changed
  ;; :held at the head of the queue; :lost since its lease has ended; :left by its user
  (state :waiting :type (member :waiting :held :lost :left))
  (stirred nil :type boolean))          ; the key before its own may be gone

(defun waiter-prefix (waiter)
  (format nil "~A/" (waiter-name waiter)))

(defun waiter-key (waiter)
  "The key of WAITER, a string."
  (format nil "~A/~(~X~)" (waiter-name waiter) (lease-id (waiter-lease waiter))))

(defun waiter-guard (waiter)
  "The comparison that is true while WAITER's key exists."
  `(:created ,(waiter-key waiter) = ,(waiter-revision waiter)))

(defun waiter-held-p (waiter)
  "True if WAITER is certainly at the head of its queue."
  (and (eq :held (waiter-state waiter)) (lease-alive-p (waiter-lease waiter))))

(defmethod print-object ((waiter waiter) stream)
  (print-unreadable-object (waiter stream :type t)
    (write-printable (waiter-name waiter) stream :quoted t :limit 80)
    (format stream " ~(~A~), revision ~D" (waiter-state waiter) (waiter-revision waiter))))

(defun set-waiter (waiter state)
  "Change the state of WAITER to STATE. Return false, and change nothing, if WAITER is lost or
left."
  (sb-sys:without-interrupts
    (sb-thread:with-mutex ((waiter-lock waiter))
      (when (member (waiter-state waiter) '(:waiting :held))
        (setf (waiter-state waiter) state)
        (sb-thread:condition-broadcast (waiter-waitqueue waiter))
        t))))

(defun lose-waiter (waiter condition)
  "Note that WAITER is lost because of CONDITION."
  (when (and (set-waiter waiter :lost) (waiter-on-loss waiter))
    (funcall (waiter-on-loss waiter) condition)))

(defun lost-error (waiter)
  (make-condition 'ownership-lost
                  :text (format nil "the lease of ~A has ended, or another client has ~
                                       removed its entry"
                                (waiter-key waiter))))

(defun gone-error (waiter)
  "The condition that says why WAITER is no longer in its queue: another thread has made it leave,
or it has lost its place."
  (if (eq :left (waiter-state waiter))
      (make-condition 'not-obtained :text (format nil "~A was given up" (waiter-key waiter)))
      (lost-error waiter)))

(defun check-waiting (waiter end-ns)
  "Signal an error if WAITER must stop waiting: it has left or is lost, or END-NS is past."
  (unless (and (member (waiter-state waiter) '(:waiting :held))
               (lease-alive-p (waiter-lease waiter)))
    (error (gone-error waiter)))
  (when (<= end-ns (loop:world-now))
    (error 'not-obtained :text (format nil "others were still ahead of ~A at the end of the timeout"
                                       (waiter-key waiter)))))

(defun pause-waiter (waiter end-ns)
  "Wait until END-NS, or until WAITER is woken, left or lost."
  (loop:await-until (waiter-waitqueue waiter) (waiter-lock waiter) end-ns
                    (lambda () (or (not (eq :waiting (waiter-state waiter)))
                                   (waiter-stirred waiter)))))

(defun notify-waiter (waiter)
  (sb-thread:with-mutex ((waiter-lock waiter))
    (setf (waiter-stirred waiter) t)
    (sb-thread:condition-broadcast (waiter-waitqueue waiter))))

(defun step-timeout (waiter end-ns)
  "How long one request for WAITER may take: the timeout of its client, or the time until END-NS if
that is shorter."
  (min (etcd-timeout (waiter-etcd waiter)) (loop:seconds-until end-ns)))

(defun call-patiently (waiter end-ns function)
  "Call FUNCTION, again while members do not answer, until END-NS; return its value."
  (loop with pauses = (loop:make-pauses +waiter-pause-seconds+ +waiter-pause-seconds+)
        do (handler-case (return (funcall function (step-timeout waiter end-ns)))
             (etcd-error (error)
               (let ((next (loop:notice-end (loop:next-pause pauses))))
                 (when (or (not (passing-p error)) (<= end-ns next)) (error error))
                 (pause-waiter waiter next)
                 (check-waiting waiter end-ns))))))

;;; Joining the queue, and leaving it

(defun shared-key-p (waiter places)
  "True if PLACES contain another place with the lease and name of WAITER, and so with its key."
  (some (lambda (other)
          (and (not (eq other waiter)) (string= (waiter-key other) (waiter-key waiter))))
        places))

(defun note-waiter (waiter)
  "Note that the key of WAITER, whose lease belongs to its user, may exist from now on. While the
same key is being removed for another place, note nothing and return false."
  (let ((lease (waiter-lease waiter)))
    (with-lease (lease)
      (unless (shared-key-p waiter (lease-removals lease))
        (pushnew waiter (lease-waiters lease))
        t))))

(defun forget-waiter (waiter)
  "Note that the key of WAITER is about to be removed."
  (let ((lease (waiter-lease waiter)))
    (with-lease (lease)
      (setf (lease-waiters lease) (remove waiter (lease-waiters lease))))))

(defun begin-removal (waiter)
  "Note that the key of WAITER is being removed, until END-REMOVAL. Return false, and note nothing,
if another place shares the key."
  (let ((lease (waiter-lease waiter)))
    (with-lease (lease)
      (unless (shared-key-p waiter (lease-waiters lease))
        (push waiter (lease-removals lease))
        t))))

(defun end-removal (waiter)
  (let ((lease (waiter-lease waiter)))
    (with-lease (lease)
      (setf (lease-removals lease) (remove waiter (lease-removals lease))))))

(defun join-places (waiter end-ns)
  "Note WAITER at its lease, which belongs to the user. First wait, at most until END-NS, while the
same key is being removed for another waiter; afterwards forget a removal of the key that is planned
for later."
  (loop until (note-waiter waiter)
        do (check-waiting waiter end-ns)
           (pause-waiter waiter (min end-ns (loop:notice-end +waiter-pause-seconds+))))
  (forget-cleanup (waiter-lease waiter) (waiter-key waiter)))

(defun enter-queue (waiter value end-ns)
  "Put WAITER's key with VALUE, until END-NS. If the key exists, because its lease has this place
already, leave it unchanged; then return false if its value differs from VALUE. Call this within
WITH-WAITER-KEPT: from now on WAITER's lease, if it is WAITER's own, is kept alive, and its loss is
noticed."
  ;; before JOIN-PLACES forgets the cleanup of an earlier place with the same key
  (setf (waiter-asked waiter) t)
  (on-lease-loss (waiter-lease waiter) (waiter-loss-callback waiter))
  (if (waiter-own-lease waiter)
      (begin-keeping (waiter-lease waiter))
      (join-places waiter end-ns))      ; before the put, so that no removal of the key follows it
  (call-patiently
   waiter end-ns
   (lambda (timeout)
     (multiple-value-bind (new results revision)
         (transact (waiter-etcd waiter)
                   :when `((:absent ,(waiter-key waiter)))
                   :then `((:put ,(waiter-key waiter) ,value :lease ,(waiter-lease waiter)))
                   :else `((:get ,(waiter-key waiter)))
                   :timeout timeout)
       (let ((entry (first results)))
         (setf (waiter-revision waiter) (if new revision (entry-created entry)))
         (or new (equalp (text-octets value) (entry-value entry))))))))

(defun make-waiter (constructor etcd name lease seconds on-loss end-ns)
  "A place in the queue NAME, made by CONSTRUCTOR, with LEASE or, if that is nil, a lease of its own
for SECONDS. The lease is not kept alive yet, see ENTER-QUEUE, so it ends if this thread is
unwound."
  (check-type name string)
  (let* ((lease-of-its-own (null lease))
         (lease (or lease (grant-lease etcd seconds :keep-alive nil
                                                    :timeout (loop:seconds-until end-ns))))
         (waiter (funcall constructor :etcd etcd :name name :lease lease :on-loss on-loss
                                      :own-lease lease-of-its-own)))
    (setf (waiter-loss-callback waiter) (lambda (condition) (lose-waiter waiter condition)))
    waiter))

(defun remove-waiter (waiter timeout)
  "Remove the key of WAITER, whose lease belongs to its user. If it is unknown whether the key was
put, remove the key only if the key has WAITER's lease; leave a key that another place shares."
  (flet ((remove-key-if (condition)
           (transact (waiter-etcd waiter) :when (list condition)
                                          :then `((:remove ,(waiter-key waiter)))
                                          :timeout timeout)))
    (if (plusp (waiter-revision waiter))
        (remove-key-if (waiter-guard waiter))
        (unwind-protect (when (begin-removal waiter)
                          (remove-key-if `(:lease ,(waiter-key waiter) = ,(waiter-lease waiter))))
          (end-removal waiter)))))

(defun leave-place (waiter)
  "Make WAITER leave its queue, without waiting. If WAITER has a lease of its own, stop renewing
that lease. With another lease, if this client keeps it alive, the key is removed when etcd can be
reached. Interrupts are off meanwhile; REMOVE-PLACE follows."
  (sb-sys:without-interrupts
    (let ((lease (waiter-lease waiter)))
      (set-waiter waiter :left)
      (forget-loss-callback lease (waiter-loss-callback waiter))
      (forget-waiter waiter)
      (cond ((waiter-own-lease waiter) (abandon-lease lease))
            ((and (waiter-asked waiter) (null (waiter-cleanup waiter)))
             (setf (waiter-cleanup waiter)
                   (add-cleanup lease (waiter-key waiter)
                                (lambda (seconds) (remove-waiter waiter seconds)))))))))

(defun remove-place (waiter timeout)
  "Remove WAITER from etcd's queue: end its lease if it belongs to WAITER, else remove its key.
Signal an ETCD-ERROR if the key cannot be removed."
  (let ((lease (waiter-lease waiter)))
    (cond ((waiter-own-lease waiter) (revoke-lease lease :timeout timeout))
          ((waiter-asked waiter)
           (remove-waiter waiter timeout)
           ;; a put without an answer may still reach the store, so the key is removed once more
           ;; after the next renewal
           (when (plusp (waiter-revision waiter))
             (set-cleanups lease (shiftf (waiter-cleanup waiter) nil))))))
  nil)

(defun leave-queue (waiter timeout)
  "Make WAITER leave its queue, also in etcd. Signal an ETCD-ERROR if etcd may not have noted it."
  (leave-place waiter)
  (remove-place waiter timeout))

(defun call-with-waiter (function waiter &key keep)
  "Call FUNCTION and return its values; then make WAITER leave its queue, as far as possible. If
KEEP is true, make WAITER leave only if this thread is unwound out of FUNCTION."
  (let ((kept nil))
    (unwind-protect
         (with-undoing (nil (unless kept (leave-place waiter)))
           (multiple-value-prog1 (funcall (the function function))
             (setf kept keep)))
      (unless kept
        (handler-case (remove-place waiter nil)
          (etcd-error ()))))))

(defmacro with-waiter-kept ((waiter) &body body)
  "Evaluate BODY. If BODY is unwound, make WAITER leave its queue, as far as possible."
  `(call-with-waiter (lambda () ,@body) ,waiter :keep t))

;;; Waiting

(defun waiter-before (waiter timeout)
  "Two values: the entry just before WAITER in the queue, or nil if WAITER is at its head; and the
revision of the store at which this was read. Signal OWNERSHIP-LOST if WAITER's own entry is gone,
NOT-OBTAINED if WAITER has left."
  (multiple-value-bind (there results revision)
      (transact (waiter-etcd waiter)
                :when (list (waiter-guard waiter))
                :then `((:get-all :prefix ,(waiter-prefix waiter) :keys-only t :limit 1
                                  :order (:created :descending)
                                  :max-created ,(1- (waiter-revision waiter))))
                :timeout timeout)
    (unless there
      (let ((condition (gone-error waiter)))
        (lose-waiter waiter condition)
        (error condition)))
    (values (first (first results)) revision)))

(defun await-removal (waiter key revision end-ns)
  "Wait until the entry of KEY is removed after REVISION, until END-NS, or until WAITER leaves its
queue or loses its place there. Signal an ETCD-ERROR if the removal cannot be watched. If changes
were compacted meanwhile, the removal may be one of them: return, so that the caller checks again."
  (setf (waiter-stirred waiter) nil)
  (let* ((failure nil)
         (watch (new-watch (waiter-etcd waiter)
                           (lambda (changes revision)
                             (declare (ignore changes revision))
                             (notify-waiter waiter))
                           :key key :after revision :only :removals
                           :on-end (lambda (condition)
                                     (setf failure condition)
                                     (notify-waiter waiter)))))
    (with-undoing (nil (detach-watch watch))
      (start-watch watch (step-timeout waiter end-ns))
      (pause-waiter waiter (min end-ns (lease-end-ns (waiter-lease waiter)))))
    (unless (typep failure '(or null compacted future-revision)) (error failure))))

(defun hold-waiter (waiter)
  "Note that WAITER is at the head of its queue."
  (let ((meter (etcd-meter (waiter-etcd waiter))))
    (when (and (set-waiter waiter :held) meter)
      (metrics:record (meter-waits meter)
                      (ns-seconds (- (loop:world-now) (waiter-began-ns waiter)))))))

(defun await-head (waiter end-ns)
  "Wait until WAITER is at the head of its queue. Signal NOT-OBTAINED if WAITER is not at the head
by END-NS or has left, OWNERSHIP-LOST if it is lost, or another ETCD-ERROR."
  (loop
    (check-waiting waiter end-ns)
    (when (eq :held (waiter-state waiter)) (return waiter))
    (call-patiently
     waiter end-ns
     (lambda (timeout)
       (multiple-value-bind (before revision) (waiter-before waiter timeout)
         (if before
             (handler-case (await-removal waiter (entry-key-octets before) revision end-ns)
               ((or compacted future-revision) ()))
             (hold-waiter waiter)))))))
