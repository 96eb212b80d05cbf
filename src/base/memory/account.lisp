;;;; Accounts: the memory that is held for a peer, in octets. They form a tree: a connection's
;;;; account is part of its peer's, a peer's of its server's, a server's of the process's. Code that
;;;; begins to hold memory charges the connection for it; code that releases it discharges it.
;;;;
;;;; The thread that owns a connection charges it by a plain addition (CHARGE-OWN). Other threads,
;;;; which take messages or send answers, charge and discharge it atomically (CHARGE-ACCOUNT,
;;;; DISCHARGE-ACCOUNT). The accounts above are updated in steps: TELL-WHOLE passes on a rise that
;;;; is larger than +ACCOUNT-STEP+, and a fall that is larger than an eighth of that. So calls that
;;;; begin and end between two steps cost the accounts above nothing. A connection may hold up to a
;;;; step more than the accounts above count for it; when it is idle, they count hardly more than it
;;;; holds.
;;;;
;;;; Invariant: HELD of an account with parts is the sum of TOLD of its parts. TOLD changes by
;;;; compare-and-swap from the sum that was last passed on to the sum just read. So each change is
;;;; passed on once, in whatever order the threads run.
;;;;
;;;; Which calls and connections end when too much is held is not decided here: see doc/limits.md,
;;;; wire/link-memory.lisp and server/limits/memory-pressure.lisp.

(in-package #:clgrpc.base)

(defconstant +account-step+ 16384
  "The size in octets up to which a rise of a connection's account is not passed to the accounts
above. A fall is not passed on up to an eighth of this size.")

(defstruct (account (:constructor make-account (&optional whole)) (:copier nil))
  "The memory that one connection holds, or that several connections hold together."
  (whole nil :type (or null account) :read-only t) ; the account that includes it, or nil
  ;; octets charged by any thread, or passed on by parts; atomic
  (held 0 :type sb-ext:word)
  (own 0 :type (signed-byte 49))        ; charged by the thread that owns the connection
  (told 0 :type sb-ext:word)            ; the sum included in WHOLE; see above
  (step +account-step+ :type (unsigned-byte 32)) ; see TELL-WHOLE; 0 if closed
  (least 0 :type sb-ext:word)           ; the least value of TOLD since the collection EPOCH
  (epoch nil)                           ; see COLLECTION-EPOCH
  (most most-positive-fixnum :type fixnum) ; the limit above which ON-EXCESS is called
  ;; a function without arguments, called from any thread, which must not wait
  (on-excess nil :type (or null function)))

(declaim (sb-ext:freeze-type account))

(document-functions
  make-account "Return an account without charges that is part of WHOLE, an account or nil."
  account-whole "The account of which ACCOUNT is a part, or nil if there is none.")

(defun call-on-excess (account most function)
  "Call FUNCTION, without arguments and from any thread, whenever ACCOUNT is charged and then holds
more than MOST octets. FUNCTION must not wait."
  (setf (account-most account) most
        (account-on-excess account) function))

(define-hot (account-sum :inline t) ((account account)) (signed-byte 50)
  "The memory charged to ACCOUNT, in octets. From any thread."
  (+ (ldb (byte 48 0) (account-held account))
     (account-own account)))

(define-printer (account account)
  "~D octets" (account-sum account))

(defun tell-accounts-above (account change)
  "Charge the accounts of which ACCOUNT is a part with CHANGE, which may be negative."
  (loop for whole = (account-whole account) then (account-whole whole)
        while whole
        do (cond ((minusp change) (atomic-decf (account-held whole) (- change)))
                 (t (atomic-incf (account-held whole) change)
                    (when (and (account-on-excess whole)
                               (< (account-most whole) (account-sum whole)))
                      (funcall (account-on-excess whole)))))))

(defun tell-change (account)
  (loop
    (let* ((told (account-told account))
           (sum (max 0 (account-sum account))))
      (cond ((= told sum) (return nil))
            ((= told (compare-and-swap (account-told account) told sum))
             (tell-accounts-above account (- sum told))
             (return (count-fresh account told sum)))))))

(define-hot (tell-whole :inline t) ((account account)) null
  "If the change of ACCOUNT, the account of a connection, is larger than a step, pass it to the
accounts above. From any thread."
  (let ((change (- (account-sum account) (ldb (byte 48 0) (account-told account)))))
    (unless (<= (- (ash (account-step account) -3)) change (account-step account))
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
  "Close ACCOUNT, whose connection has ended: discharge the octets that its thread has charged.
Other threads still discharge the octets that they have charged."
  (setf (account-step account) 0
        (account-own account) 0)
  ;; a thread that changes HELD after this thread has read it sees the new STEP
  (sb-thread:barrier (:memory))
  (tell-change account))

;;; All of the process

(sb-ext:define-load-time-global **process-account** (make-account)
  "The account of the memory that all connections of the process hold.")
(declaim (type account **process-account**))

;;; Collecting early. A collection copies the living objects that were made since the previous
;;; collection, so these objects must stay few. The total of all accounts does not show how many
;;; objects are new: while the connections of one burst end, those of the next burst may begin to
;;; hold as much. Therefore each connection counts the octets that it holds beyond the least that it
;;; has held since the last collection; FRESH is the sum of these counts. Threads that count at the
;;; same time may make the sum slightly wrong until the next collection.

(defconstant +early-octets+ (* 24 1024 1024)
  "The maximum number of octets that may be fresh. Fresh octets occupy up to twice as much memory,
and a collection copies 1 MB in a millisecond or two.")

(declaim (type cons **fresh**) (type fixnum **fresh-most**))
(defglobal **fresh** (list 0))          ; octets; atomic
(defglobal **fresh-most** +early-octets+) ; when there are more fresh octets, it is time for a
                                          ; collection
(defglobal **fresh-epoch** nil)         ; the collection after which FRESH counts

(defun count-fresh (account told sum)
  "Update FRESH for ACCOUNT, the account of a connection, whose charge has changed from TOLD to
SUM."
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
  "Collect garbage now if the collector of this process is tuned and much memory is fresh, not
counting long vectors, which a collection does not copy. A pause of a twentieth of a second now is
better than a pause of a fifth of a second later."
  (when (and **tuned** (< +early-octets+ (young-octets)))
    (collect-young)))

(defun old-garbage-due-p ()
  "True if COLLECT-OLD should be called. This is so if early collections have made three sixteenths
of the heap old. It is also so if they have made an eighth of the heap old and the process now holds
little memory, because most of that eighth is garbage then."
  (let ((eighth (ash (heap-size) -3)))
    (< (if (< (account-sum **process-account**) (min +early-octets+ (ash eighth -1)))
           eighth
           (+ eighth (ash eighth -1)))
       **promoted**)))

(defun collect-due-generation (call)
  "If early collections have made many objects old, collect the old objects. CALL is called with the
function that collects them, which stops all threads for a while. Call this without locks."
  (when (old-garbage-due-p) (funcall call #'collect-old)))
