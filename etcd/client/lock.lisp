;;;; Locks: one client at a time has the lock of a name; waiting clients get it in order. A lock is
;;;; the place at the head of a queue (waiter.lisp), the same queue that `etcdctl lock` uses.

(in-package #:clgrpc.etcd)

(defstruct (lock (:include waiter) (:constructor %make-lock) (:copier nil))
  "A lock that this client holds, has held, or waits for; see ACQUIRE-LOCK.")

(document-functions
  lock-name "The name of LOCK, a string."
  lock-lease "The lease that LOCK ends with."
  lock-revision "The fencing number of LOCK: the revision of the store at which its owner requested
it. A later owner of the lock has a greater number.")

(defun lock-key (lock)
  "The key of LOCK's owner while it holds the lock or waits, a string. From any thread."
  (waiter-key lock))

(defun lock-guard (lock)
  "Return a comparison for :when of TRANSACT that is true only while LOCK is held. So a write with
this comparison never mixes with writes of the next owner, however late it reaches etcd. From any
thread."
  (waiter-guard lock))

(defun lock-held-p (lock)
  "True if this client certainly holds LOCK: its lease was renewed in time, by this machine's clock.
From any thread."
  (waiter-held-p lock))

(defun new-lock (etcd name lease seconds on-loss timeout)
  "Two values: a lock that is not yet requested, and the time at which TIMEOUT seconds are over; see
REQUEST-LOCK."
  (let ((end (loop:notice-end (or timeout (etcd-timeout etcd)))))
    (values (make-waiter #'%make-lock etcd name lease seconds on-loss end) end)))

(define-keyword-function request-lock
    (etcd name &key lease (seconds +waiter-seconds+) on-loss timeout)
  "Request the lock NAME, a string, and return it at once; AWAIT-LOCK waits for it, RELEASE-LOCK
releases it. The lock is bound to LEASE or, if that is nil, to a lease of its own, which ends
SECONDS after the last renewal. If LEASE holds the lock already, or waits for it, return the same
lock. If the lease is lost ON-LOSS is called with an ETCD-ERROR, on the lease's thread. Signal an
ETCD-ERROR if the request takes more than TIMEOUT seconds, by default those of ETCD. From any
thread."
  (multiple-value-bind (lock end-ns) (new-lock etcd name lease seconds on-loss timeout)
    (with-waiter-kept (lock)
      (enter-queue lock "" end-ns))
    lock))

(define-keyword-function await-lock (lock &key timeout)
  "Wait until this client holds LOCK, which REQUEST-LOCK has returned, and return it. Signal
NOT-OBTAINED if this takes longer than TIMEOUT seconds, by default the timeout of the client, or if
RELEASE-LOCK is called meanwhile; OWNERSHIP-LOST if the lease has ended; or another ETCD-ERROR. Even
then LOCK stays in the queue, until RELEASE-LOCK. From any thread."
  (await-head lock (loop:notice-end (or timeout (etcd-timeout (lock-etcd lock))))))

(defun obtain-lock (lock end-ns)
  "Request LOCK, a new lock, and wait for it until END-NS. Within CALL-WITH-WAITER."
  (enter-queue lock "" end-ns)
  (await-lock lock :timeout (loop:seconds-until end-ns)))

(define-keyword-function acquire-lock
    (etcd name &key lease (seconds +waiter-seconds+) on-loss timeout)
  "Return the lock NAME, a string, when this client holds it. Signal NOT-OBTAINED if others hold the
lock for TIMEOUT seconds (by default the timeout of ETCD), OWNERSHIP-LOST if the lease ends
meanwhile, or another ETCD-ERROR; then the request is cancelled. For the other arguments see
REQUEST-LOCK. Give the lock back with RELEASE-LOCK, or use WITH-LOCK. From any thread."
  (multiple-value-bind (lock end-ns) (new-lock etcd name lease seconds on-loss timeout)
    (with-waiter-kept (lock)
      (obtain-lock lock end-ns))))

(define-keyword-function release-lock (lock &key timeout)
  "Give LOCK up, or stop waiting for it: AWAIT-LOCK then signals NOT-OBTAINED. A lock that is lost,
or was released, is not an error. Signal an ETCD-ERROR if etcd does not answer; then the lock ends
with its lease, which is no longer renewed if it is the lock's own. From any thread."
  (leave-queue lock timeout))

(defun call-with-lock (function etcd name
                       &key lease (seconds +waiter-seconds+) on-loss timeout)
  "See WITH-LOCK."
  (let ((held nil))
    (multiple-value-bind (lock end-ns) (new-lock etcd name lease seconds on-loss timeout)
      (multiple-value-prog1
          (call-with-waiter (lambda ()
                              (obtain-lock lock end-ns)
                              (multiple-value-prog1 (funcall function lock)
                                (setf held (lock-held-p lock))))
                            lock)
        (unless held (error (lost-error lock)))))))

(defmacro with-lock ((variable etcd name &rest options) &body body)
  "Evaluate BODY under the lock NAME, with VARIABLE bound to it; OPTIONS are as for ACQUIRE-LOCK.
The lock is released when BODY is left, if etcd can be reached. Signal the conditions of
ACQUIRE-LOCK; and OWNERSHIP-LOST after BODY if the lock was lost meanwhile. Transactions in BODY
that compare LOCK-GUARD are safe even if the lock was lost; other actions of BODY may then have
overlapped with those of another owner."
  `(call-with-lock (lambda (,variable)
                     (declare (ignorable ,variable))
                     ,@body)
                   ,etcd ,name ,@options))
