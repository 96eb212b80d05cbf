;;;; Accounts: what a peer makes us keep, in octets of memory. A connection has an account, which is
;;;; part of its peer's, which is part of its server's, which is part of the process's. What is kept
;;;; is charged to the connection where it begins to be kept, and taken off where it ends.
;;;;
;;;; The thread that owns a connection charges it by a plain addition (CHARGE-OWN). Other threads,
;;;; which take messages or bring answers, do so atomically (CHARGE-ACCOUNT,
;;;; DISCHARGE-ACCOUNT). The accounts above
;;;; learn of it in steps: TELL-WHOLE passes on what has changed once that is more than
;;;; +ACCOUNT-STEP+. So calls that begin and end between two steps cost the accounts above nothing;
;;;; each connection may be a step ahead of what they know.
;;;;
;;;; Invariant: HELD of an account with parts is the sum of what its parts have TOLD. TOLD changes
;;;; by compare-and-swap from a sum that was told to another that was read, so each change is told
;;;; once, in whatever order threads do it.
;;;;
;;;; Who gives way when too much is held is not decided here: see doc/limits.md,
;;;; wire/link-memory.lisp and server/limits/valve.lisp.

(in-package #:clgrpc.base)

(defconstant +account-step+ 16384
  "A connection's change that is no larger is not told to the accounts above.")

(defstruct (account (:constructor make-account (&optional whole)) (:copier nil))
  "What is held by one connection, or by several together."
  (whole nil :type (or null account) :read-only t) ; that it is part of; nil of the process's
  (held 0 :type sb-ext:word)            ; charged by any thread, or told by parts; atomic
  (own 0 :type (signed-byte 49))        ; charged by the thread that owns the connection
  (told 0 :type sb-ext:word)            ; what WHOLE knows; see above
  (step +account-step+ :type (unsigned-byte 32)) ; changes up to this are not told; 0 once closed
  (least 0 :type sb-ext:word)           ; the least that was told since the collection EPOCH
  (epoch nil)                           ; see COLLECTION-EPOCH
  (most most-positive-fixnum :type fixnum) ; with more, ON-EXCESS is called
  (on-excess nil :type (or null function))) ; without arguments, from any thread; it must not wait

(declaim (sb-ext:freeze-type account))

(document-functions
  make-account "Return an account of nothing that is part of WHOLE, an account or nil."
  account-whole "The account that ACCOUNT is part of, or nil."
  account-most "With more octets than these ON-EXCESS of ACCOUNT is called. SETFable."
  account-on-excess "The function that is called, without arguments and from any thread, when
ACCOUNT is charged with more than ACCOUNT-MOST; nil for none. SETFable.")

(define-hot (account-sum :inline t) ((account account)) (signed-byte 50)
  "What ACCOUNT is charged with, in octets. From any thread."
  (+ (ldb (byte 48 0) (account-held account))
     (account-own account)))

(defmethod print-object ((account account) stream)
  (print-unreadable-object (account stream :type t)
    (format stream "~D octets" (account-sum account))))

(defun tell-accounts-above (account change)
  "Charge the accounts that ACCOUNT is part of with CHANGE, which may be negative."
  (loop for whole = (account-whole account) then (account-whole whole)
        while whole
        do (cond ((minusp change) (atomic-decf (account-held whole) (- change)))
                 (t (atomic-incf (account-held whole) change)
                    (when (and (account-on-excess whole)
                               (< (account-most whole) (account-sum whole)))
                      (funcall (account-on-excess whole)))))))

(defun tell-change (account)
  "Tell the accounts above what has changed of ACCOUNT."
  (loop
    (let* ((told (account-told account))
           (sum (max 0 (account-sum account))))
      (cond ((= told sum) (return nil))
            ((= told (compare-and-swap (account-told account) told sum))
             (tell-accounts-above account (- sum told))
             (return (count-fresh account told sum)))))))

(define-hot (tell-whole :inline t) ((account account)) null
  "Tell the accounts above ACCOUNT, a connection's, what has changed, if that is much. From any
thread."
  (let ((change (- (account-sum account) (ldb (byte 48 0) (account-told account)))))
    (unless (<= (- (account-step account)) change (account-step account))
      (tell-change account)))
  nil)

(define-hot (charge-own :inline t) ((account account) (octets (signed-byte 49))) null
  "Charge ACCOUNT with OCTETS, which may be negative. On the thread that owns the connection."
  (setf (account-own account) (+ (account-own account) octets))
  (tell-whole account))

(define-hot charge-account ((account account) (octets index)) null
  "Charge ACCOUNT with OCTETS. From any thread."
  (atomic-incf (account-held account) octets)
  (tell-whole account))

(define-hot discharge-account ((account account) (octets index)) null
  "Take OCTETS off ACCOUNT. From any thread."
  (atomic-decf (account-held account) octets)
  (tell-whole account))

(defun account-closed-p (account)
  "True once CLOSE-ACCOUNT was called for ACCOUNT."
  (zerop (account-step account)))

(defun close-account (account)
  "The connection of ACCOUNT has ended: take off it what its thread has charged. What others have
charged they still take off."
  (setf (account-step account) 0
        (account-own account) 0)
  (sb-thread:barrier (:memory)) ; a thread that changes HELD after the next look at it sees STEP
  (tell-change account))

;;; All of the process

(sb-ext:define-load-time-global **process-account** (make-account)
  "The account of all that the connections of the process hold.")
(declaim (type account **process-account**))

;;; Collecting early. What a collection copies is what lives of what was made since the one before,
;;; so that is what must not become much. What all hold says little of it: while the connections of
;;; one storm end, those of the next may come to hold as much. Therefore each connection counts what
;;; it holds beyond the least that it has held since garbage was collected; FRESH is the sum of
;;; that. Threads that count at once may leave a little too much or too little in it, until the next
;;; collection.

(defconstant +early-octets+ (* 24 1024 1024)
  "So much may be fresh. In memory that is up to twice as much, of which a collection copies 1 MB in
a millisecond or two.")

(declaim (type cons **fresh**) (type fixnum **fresh-most**))
(defglobal **fresh** (list 0))          ; octets; atomic
(defglobal **fresh-most** +early-octets+) ; with more it is time for a collection
(defglobal **fresh-epoch** nil)         ; the collection after which FRESH counts

(defun count-fresh (account told sum)
  "What ACCOUNT, a connection's, was charged with has changed from TOLD to SUM."
  (declare (type sb-ext:word told sum))
  (let ((epoch (collection-epoch)))
    (unless (eq epoch **fresh-epoch**)
      (setf **fresh-epoch** epoch
            (car **fresh**) 0
            **fresh-most** +early-octets+))
    (unless (eq epoch (account-epoch account))
      (setf (account-epoch account) epoch
            (account-least account) told))
    (let* ((before (shiftf (account-least account) (min sum (account-least account))))
           (change (- (- sum (account-least account)) (- told before)))
           (fresh (+ change (the fixnum (atomic-incf (car **fresh**) change)))))
      (declare (type fixnum change fresh))
      (cond ((minusp change) (setf **fresh-most** (min **fresh-most** (+ fresh +early-octets+))))
            ((< **fresh-most** fresh)
             (setf **fresh-most** (+ fresh +early-octets+))
             (collect-early))))
    nil))

(defun collect-early ()
  "Much is fresh: collect it now, in a process whose collector is tuned, unless it is in long
vectors, which are not copied. A twentieth of a second now is better than a fifth later."
  (when (and **tuned** (< +early-octets+ (young-octets)))
    (collect-young)))

(defun old-garbage-due-p ()
  "True if it is time for COLLECT-OLD: early collections have made an eighth of the heap old and
little is held, so that most of it is garbage by now; or they have made half as much again old."
  (let ((eighth (ash (heap-size) -3)))
    (< (if (< (account-sum **process-account**) (min +early-octets+ (ash eighth -1)))
           eighth
           (+ eighth (ash eighth -1)))
       **promoted**)))

(defun collect-due-generation (call)
  "If early collections have made much old, collect that. CALL is called with the function that does
so, which stops all threads for a while: call it without locks."
  (when (old-garbage-due-p) (funcall call #'collect-old)))
