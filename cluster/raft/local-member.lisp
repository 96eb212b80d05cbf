;;;; The members that a service represents, each of another group, with their state machines and the
;;;; snapshots that they receive. One thread at a time is in the methods for snapshots of a member.

(in-package #:clgrpc.raft)

(defstruct (local-member (:constructor make-local-member (group name state)) (:copier nil))
  "A member of a group that this process serves."
  (group "" :type string :read-only t)  ; the group's name
  (name "" :type string :read-only t)   ; the name by which others address the member
  (state nil :read-only t)              ; the member's state machine, the user's
  (removed nil :type boolean)           ; REMOVE-GROUP was called: the member is not served any more
  (snapshot-receiver nil :type (or null snapshot-receiver)) ; the receiver of the snapshot under way
  ;; the claim of the thread that has reserved SNAPSHOT-RECEIVER, or nil
  (busy nil :type list)
  (lock (sb-thread:make-mutex :name "clgrpc raft") :read-only t) ; guards BUSY
  ;; notified when the member is no longer busy
  (waitqueue (sb-thread:make-waitqueue :name "clgrpc raft") :read-only t))

(declaim (sb-ext:freeze-type local-member))

(define-printer (member local-member)
  "~A of ~A~@[, ~A~]" (local-member-name member) (local-member-group member)
  (local-member-snapshot-receiver member))

(defconstant +longest-keeping-seconds+ 10
  "How long a stream waits until the part of another stream is stored or installed.")

(defun occupy-snapshot-receiver (member snapshot-receiver claim)
  "Reserve the snapshot receiver of MEMBER for this thread, until RELEASE-SNAPSHOT-RECEIVER gets
CLAIM, a fresh list. Signal an RPC-ERROR if another receiver has replaced SNAPSHOT-RECEIVER, unless
this is nil, or if another thread keeps the reservation for too long."
  (let ((end (loop:notice-end +longest-keeping-seconds+)))
    (sb-thread:with-mutex ((local-member-lock member))
      (loop while (local-member-busy member)
            do (unless (and (loop:prepare-to-wait)
                            (loop:await-notice (local-member-waitqueue member)
                                               (local-member-lock member) end))
                 (refuse :unavailable "an earlier part of the snapshot is still being stored")))
      (unless (or (null snapshot-receiver)
                  (eq snapshot-receiver (local-member-snapshot-receiver member)))
        (refuse :aborted "the snapshot is now sent on another stream"))
      (setf (local-member-busy member) claim))))

(defun release-snapshot-receiver (member claim)
  "Release the snapshot receiver of MEMBER for other threads, if this thread has reserved it with
CLAIM."
  (sb-sys:without-interrupts
    (sb-thread:with-mutex ((local-member-lock member))
      (when (eq claim (local-member-busy member))
        (setf (local-member-busy member) nil)
        (sb-thread:condition-broadcast (local-member-waitqueue member))))))

(defmacro with-snapshot-receiver ((member snapshot-receiver) &body body)
  "Evaluate BODY while no other thread changes the snapshot receiver of MEMBER, which is
SNAPSHOT-RECEIVER unless that is nil. After BODY other threads may change it again, even if an
interrupt has ended BODY at any instruction."
  (alexandria:with-gensyms (claim)
    (alexandria:once-only (member)
      `(let ((,claim (list nil)))
         (unwind-protect (progn (occupy-snapshot-receiver ,member ,snapshot-receiver ,claim)
                                ,@body)
           (release-snapshot-receiver ,member ,claim))))))
