;;;; Elections: one of the candidates for the leadership of a name leads, and publishes a value that
;;;; all may read, such as its address. A candidate has a place in a queue (waiter.lisp), the same
;;;; that `etcdctl elect` uses; the entry at its head belongs to the leader, and contains the
;;;; leader's value.

(in-package #:clgrpc.etcd)

(defstruct (leadership (:include waiter) (:constructor %make-leadership) (:copier nil))
  "A leadership that this client has or had; see CAMPAIGN.")

(document-functions
  leadership-name "Return the name of the election, a string."
  leadership-lease "The lease that LEADERSHIP ends with."
  leadership-revision "Return the revision at which the leader became a candidate. Every later
leader has a greater revision.")

(defun leadership-key (leadership)
  "Return the key of the leader's value, a string. From any thread."
  (waiter-key leadership))

(defun leadership-guard (leadership)
  "Return a comparison, for :when of TRANSACT, that is true only while LEADERSHIP exists; see
LOCK-GUARD. From any thread."
  (waiter-guard leadership))

(defun leadership-held-p (leadership)
  "True if this client certainly has LEADERSHIP: its lease was renewed in time, by this machine's
clock. From any thread."
  (waiter-held-p leadership))

(define-keyword-function campaign
    (etcd name value &key lease (seconds +waiter-seconds+) on-loss timeout)
  "Become a candidate for the leadership of NAME, a string, and return the leadership when this
client leads. VALUE, a string or octets, is the leader's value, see LEADER. The leadership is bound
to LEASE or, if that is nil, to a lease of its own, which ends SECONDS after the last renewal. If a
candidate with LEASE exists already, return its leadership, with this VALUE. If the lease is lost
ON-LOSS is called with an ETCD-ERROR, on the lease's thread. Signal NOT-OBTAINED if others lead for
TIMEOUT seconds (by default the timeout of ETCD), OWNERSHIP-LOST if the lease ends meanwhile, or
another ETCD-ERROR; then this client is no longer a candidate. From any thread; end it with RESIGN."
  (let* ((end (loop:notice-end (or timeout (etcd-timeout etcd))))
         (leadership (make-waiter #'%make-leadership etcd name lease seconds on-loss end)))
    (with-waiter-kept (leadership)
      (unless (enter-queue leadership value end)
        (proclaim-value leadership value :timeout (loop:seconds-until end)))
      (await-head leadership end))))

(define-keyword-function proclaim-value (leadership value &key timeout)
  "Publish VALUE, a string or octets, in place of the leader's value. Signal OWNERSHIP-LOST if this
client no longer leads, or another ETCD-ERROR. From any thread."
  (unless (transact (leadership-etcd leadership)
                    :when (list (leadership-guard leadership))
                    :then `((:put ,(leadership-key leadership) ,value
                                  :lease ,(leadership-lease leadership)))
                    :timeout timeout)
    (let ((condition (lost-error leadership)))
      (lose-waiter leadership condition)
      (error condition)))
  nil)

(define-keyword-function resign (leadership &key timeout)
  "Give LEADERSHIP up; the next candidate leads. A lost leadership is not an error. Signal an
ETCD-ERROR if etcd does not answer; then LEADERSHIP ends with its lease, which is no longer renewed
if it is LEADERSHIP's own. From any thread."
  (leave-queue leadership timeout))

(define-keyword-function leader (etcd name &key timeout)
  "Return the entry of the leader of NAME, a string, whose value the leader has published; nil if
there is no leader. Signal an ETCD-ERROR. From any thread."
  (values (first (fetch-entries etcd :prefix (format nil "~A/" name) :order :created :limit 1
                                :timeout timeout))))

;;; Observing

(defun first-standing (standing)
  "The entry of STANDING, a table of entries by key, that was created first; nil if STANDING is
empty."
  (let ((first nil))
    (loop for entry being the hash-values of standing
          do (when (or (null first) (< (entry-created entry) (entry-created first)))
               (setf first entry)))
    first))

(defun note-standing (standing kind items)
  "Update STANDING, an EQUALP table from keys to entries, by a mirror's KIND and ITEMS."
  (flet ((note (entry)
           (setf (gethash (entry-key-octets entry) standing) entry)))
    (ecase kind
      (:entries (clrhash standing)
       (mapc #'note items))
      (:changes
       (dolist (change items)
         (if (eq :put (change-kind change))
             (note (change-entry change))
             (remhash (entry-key-octets (change-entry change)) standing)))))))

(defun identity-of (entry)
  "A value that identifies the state of ENTRY, for EQUALP: it differs between entries, and before
and after a change of an entry, even if the store has lost its data meanwhile and counts revisions
from 1 again. ENTRY may be NIL."
  (and entry
       (list (entry-key-octets entry) (entry-created entry) (entry-changed entry)
             (entry-value entry))))

(define-keyword-function observe (etcd name function &key on-end timeout)
  "Call FUNCTION with the entry of the leader of NAME, a string, or with nil if there is no leader:
now, and in order whenever another client leads, none leads, or the leader publishes another value.
Return a mirror, which CANCEL-MIRROR ends; threads, ON-END and TIMEOUT are as for MIRROR. Signal an
ETCD-ERROR. From any thread."
  (let ((standing (make-hash-table :test #'equalp)) (told :nothing))
    (mirror etcd
            (lambda (kind items revision)
              (declare (ignore revision))
              (note-standing standing kind items)
              (let ((leader (first-standing standing)))
                (unless (equalp (identity-of leader) (shiftf told (identity-of leader)))
                  (funcall function leader))))
            :prefix (format nil "~A/" name) :on-end on-end :timeout timeout)))
