;;;; Memberships in the store: an entry for each member, under its lease. Every change is a
;;;; transaction that compares the entries that were read. If two processes decide by the same
;;;; entries, one succeeds; the other reads and decides again.
;;;;
;;;; The last assigned generation of each name is in the store, too, without a lease, in one of the
;;;; +GENERATION-ENTRIES+ entries of the cluster. So the generations of a name grow even if its
;;;; entry is made and deleted between another process's read and write, or if the store has gone
;;;; back to lower revisions than some generation.

(in-package #:clgrpc.cluster)

(defconstant +most-tries+ 20
  "The maximum number of times that a process reads and decides, if each time another process has
written meanwhile.")
(defconstant +first-try-pause-seconds+ 1/200
  "About how long a process waits before its second try, so that many processes that write at the
same time all succeed.")
(defconstant +longest-try-pause-seconds+ 1/2 "The longest wait between two tries.")

(defun call-deciding-again (what function)
  "Call FUNCTION until it returns true, and return that value; see DECIDING-AGAIN."
  (loop with pauses = (loop:make-pauses +first-try-pause-seconds+ +longest-try-pause-seconds+)
        repeat +most-tries+
        do (let ((result (funcall function)))
             (when result (return result))
             (loop:world-sleep (loop:next-pause pauses)))
        finally (error 'etcd:overloaded
                       :text (format nil "other processes change ~A all the time" what))))

(defmacro deciding-again ((what) &body body)
  "Evaluate BODY until BODY returns true, at most +MOST-TRIES+ times, with pauses. WHAT, a text in
the condition, names the part of the store that others write."
  `(call-deciding-again ,what (lambda () ,@body)))

(defun fetch-entry (store cluster name &key timeout)
  "Return three values: the entry of the member NAME, nil if it does not exist; the member, or nil;
and the revision of the store."
  (multiple-value-bind (entry revision) (etcd:fetch store (member-key cluster name)
                                                    :timeout timeout)
    (values entry (entry-member entry cluster) revision)))

(defun unchanged (key entry)
  "The comparison that KEY's entry is still ENTRY, or, if ENTRY is nil, that KEY has no entry."
  (if entry
      (list :changed key '= (etcd:entry-changed entry))
      (list :absent key)))

(defconstant +generation-entries+ 64
  "The number of the store's entries that hold a cluster's last generations; names with equal hashes
share an entry.")

(defun generation-key (cluster name)
  "The key of the entry that has the generations of NAME and of other names."
  (format nil "clgrpc/generations/~A/~D" cluster
          (mod (reduce #'+ (string-octets name)) +generation-entries+)))

(defun last-generation (entry)
  "The last assigned generation in ENTRY; 0 if ENTRY is nil or has no number."
  (or (and entry
           (handler-case (parse-integer (etcd:entry-text entry) :junk-allowed t)
             (invalid-utf8 () nil)))
      0))

(defun write-member (store cluster member entry lease &key when then timeout)
  "Put MEMBER in place of ENTRY, under LEASE, and do the operations THEN in the same transaction. If
ENTRY is nil, there must be no entry; if LEASE is nil, the entry has no lease. Write only if WHEN is
true, and within TIMEOUT seconds. Return the revision, or nil if ENTRY has changed or WHEN is
false."
  (let ((key (member-key cluster (member-name member))))
    (multiple-value-bind (done values revision)
        (etcd:transact store
                       :when (cons (unchanged key entry) when)
                       :then (cons `(:put ,key ,(member-text member)
                                          ,@(and lease (list :lease lease)))
                                   then)
                       :timeout timeout)
      (declare (ignore values))
      (and done revision))))

(defun entry-lease (store entry)
  "The lease of ENTRY in STORE; nil if it was put without one."
  (and (plusp (etcd:entry-lease entry))
       (etcd:lease-by-number store (etcd:entry-lease entry))))

(defun entries-members (entries cluster)
  "The members of CLUSTER described by ENTRIES of the store, in the order of their names."
  (loop for entry in entries
        for member = (entry-member entry cluster)
        when member collect member))

(defun fetch-members (store cluster)
  "Return two values: the members of CLUSTER, a name, in STORE, a list by name; and the revision of
the store at which they were read. Signal an ETCD-ERROR. From any thread."
  (multiple-value-bind (entries revision)
      (etcd:fetch-entries store :prefix (members-prefix (check-name cluster "cluster")))
    (values (entries-members entries cluster) revision)))

;;; Joining

(defun check-room (store cluster max-members)
  "Signal CLUSTER-FULL if CLUSTER has MAX-MEMBERS."
  (when (<= max-members (etcd:count-entries store :prefix (members-prefix cluster)))
    (refuse-membership 'cluster-full "~A has ~D members, its limit (:max-members)" cluster
                       max-members)))

(defun write-or-look (store cluster member entry lease given)
  "Put MEMBER in place of ENTRY, under LEASE, as WRITE-MEMBER does, and its generation in place of
the entry GIVEN, or nil. If the result of the write is unknown, look at the store."
  (handler-bind
      ((etcd:etcd-error
         (lambda (condition)
           (when (etcd:etcd-error-perhaps-done-p condition)
             (let ((found (handler-case (fetch-entry store cluster (member-name member))
                            (etcd:etcd-error () nil))))
               (when (and found (= (etcd:entry-lease found) (etcd:lease-id lease)))
                 (return-from write-or-look (etcd:entry-changed found))))))))
    (let ((key (generation-key cluster (member-name member))))
      (write-member store cluster member entry lease
                    :when (list (unchanged key given))
                    :then `((:put ,key ,(princ-to-string (member-generation member))))))))

(defun enter (store cluster asked lease if-taken known max-members)
  "Enter ASKED, a member, into CLUSTER with LEASE, see DECIDE-JOIN. Return the resulting member, the
revision, and true if it was a member already."
  (let ((name (member-name asked)) (already nil) (at 0))
    (values
     (deciding-again (name)
       (multiple-value-bind (entry existing revision) (fetch-entry store cluster name)
         (ecase (decide-join existing asked if-taken known)
           (:taken (refuse-membership 'name-taken "a member ~A exists, of generation ~D, at ~A"
                                      name (member-generation existing)
                                      (printable-text (member-address existing))))
           (:superseded (require-life existing name known))
           (:same (setf already t
                        at revision)
            existing)
           (:enter
            (unless entry (check-room store cluster max-members))
            (let* ((given (etcd:fetch store (generation-key cluster name)))
                   (known (max known (last-generation given)))
                   (member (renewed-member
                            asked :generation (next-generation revision existing known)
                                  :lease-seconds (etcd:lease-seconds lease))))
              (and (setf at (write-or-look store cluster member entry lease given))
                   member))))))
     at already)))

(defun join-cluster (store cluster member &key (if-taken :take-over) (known 0) (max-members 1000)
                                            (keep-alive t) on-loss)
  "Enter MEMBER, of MAKE-CLUSTER-MEMBER, into CLUSTER in STORE. Return three values: the resulting
member, with its generation; the revision of the store at which it was entered; and its lease, for
which KEEP-ALIVE and ON-LOSS have the same meaning as in GRANT-LEASE. If there is another member of
its name, IF-TAKEN decides: :take-over or :refuse. KNOWN is the generation that the caller had, or
0: a member with a later generation is not replaced. If a member with the instance of MEMBER exists,
nothing is changed, and there is no lease. Signal NAME-TAKEN, SUPERSEDED, CLUSTER-FULL, an
ETCD-ERROR, or MISUSE for a wrong description in MEMBER. From any thread."
  (check-type if-taken (member :take-over :refuse))
  (check-name cluster "cluster")
  (check-member member)
  (let ((lease (etcd:grant-lease store (member-lease-seconds member) :keep-alive keep-alive
                                                                     :on-loss on-loss))
        (used nil))
    (unwind-protect
         (multiple-value-bind (member revision already)
             (enter store cluster member lease if-taken known max-members)
           (setf used (not already))
           (values member revision (and used lease)))
      ;; a lease that cannot be ended now ends by itself
      (unless used
        (handler-case (etcd:revoke-lease lease :timeout 1)
          (etcd:etcd-error ()))))))

;;; After joining

(defun renew-membership (store cluster name generation)
  "Renew the lease of the member NAME of CLUSTER, of GENERATION. Return its seconds.
Signal NOT-A-MEMBER, SUPERSEDED or an ETCD-ERROR. From any thread."
  (multiple-value-bind (entry existing) (fetch-entry store cluster (check-name name "member"))
    (require-life existing name generation)
    (handler-case (etcd:renew-lease (etcd:lease-by-number store (etcd:entry-lease entry)))
      (etcd:lease-not-found () (require-life nil name generation)))))

(defun announce (store cluster name generation &key (state :draining) timeout)
  "Set the state of the member NAME of GENERATION to STATE. Return the member's former entry, or nil
if there is no such member. The announcement may take TIMEOUT seconds, if TIMEOUT is not nil."
  (let ((end (and timeout (loop:notice-end timeout))))
    (flet ((seconds () (and end (loop:seconds-until end))))
      (block nil
        (deciding-again (name)
          (multiple-value-bind (entry existing) (fetch-entry store cluster name
                                                             :timeout (seconds))
            (cond ((not (eq :alive (decide-life existing generation))) (return nil))
                  ((eq state (member-state existing)) entry)
                  ((write-member store cluster (renewed-member existing :state state) entry
                                 (entry-lease store entry) :timeout (seconds))
                   entry))))))))

(defun leave-cluster (store cluster name generation)
  "End the membership of NAME in CLUSTER, of GENERATION, and its lease with all its entries. Return
true, or nil if there is no such member. A member of another generation remains. Signal an
ETCD-ERROR. From any thread."
  (when-let ((entry (announce store cluster (check-name name "member") generation)))
    (if-let ((lease (entry-lease store entry)))
      (etcd:revoke-lease lease)
      (remove-member store cluster name generation))
    t))

(defun remove-member (store cluster name generation)
  "Remove the member NAME of GENERATION, whose entry was put without a lease."
  (deciding-again (name)
    (multiple-value-bind (entry existing) (fetch-entry store cluster name)
      (or (not (eq :alive (decide-life existing generation)))
          (etcd:transact store :when (list (unchanged (member-key cluster name) entry))
                         :then `((:remove ,(member-key cluster name))))))))
