;;;; Shares: how much of a reserve each of its users may have, so that no user excludes the others.
;;;; A reserve has a root share. A share may be part of another: a connection's share is part of its
;;;; peer's, and that is part of the root. A function waits in its user's share; functions without a
;;;; user, which run loops, wait in the root.
;;;;
;;;; The rule is the dynamic threshold of switches that share a buffer (Choudhury and Hahne): a
;;;; share may have another thread, or another place in the queue, while
;;;;
;;;;     its number  ≤  WEIGHT × (free number − KEPT)
;;;;
;;;; and a share that has nothing may have one while anything is free. The same rule divides the
;;;; number that a share may have among its parts. An example with weight 1, nothing kept
;;;; and 240 threads: one user alone gets some 120, since then 120 are free; two get 80 each, three
;;;; 60. So each user gets less as more arrive, and the last one still finds some free. No share
;;;; needs to know the number of shares, and no thread is taken back.
;;;;
;;;; Waiting functions are served round robin at each level. A search for a function that may run
;;;; skips shares that have too much; there are at most as many of these as threads.
;;;;
;;;; User code that began on a loop and has lost the loop occupies a thread as well. The root counts
;;;; that thread already, as the thread that ran the loop; its share counts it from then on
;;;; (NOTE-LATE-RUNNING).
;;;;
;;;; Invariants: RUNNING and WAITING of a share are the sums of its parts' and its own, except for
;;;; late user code; a share with waiting functions is LISTED, once, among the items of its whole.
;;;; The reserve's lock is held.

(in-package #:clgrpc.loop)

(defstruct (share (:constructor make-share (&key whole (weight 1) (kept 0) (most (ash 1 30))))
                  (:copier nil))
  "A share of a reserve's threads and of the places in its queue."
  ;; the share that this one is part of; nil of a root
  (whole nil :type (or null share) :read-only t)
  (weight 1 :type (unsigned-byte 16) :read-only t) ; the share may have WEIGHT times
  (kept 0 :type index :read-only t)     ; the threads that are free beyond KEPT
  (most 0 :type index :read-only t)     ; functions that may run and wait together
  (running 0 :type index)               ; functions that run, its parts' among them
  (waiting 0 :type index)               ; how many functions wait, its parts' among them
  (items (make-fifo) :type fifo :read-only t) ; functions that wait, and parts that have some
  (listed nil :type boolean))           ; the share is among the ITEMS of WHOLE

(declaim (sb-ext:freeze-type share))

(document-functions
  make-share "Return a new share; see the type SHARE and MAKE-RESERVE."
  share-running "The number of functions of SHARE that run now.")

(define-printer (share share)
  "~D running, ~D waiting" (share-running share) (share-waiting share))

(defmacro do-wholes ((variable share) &body body)
  "Do BODY with VARIABLE bound to SHARE, to its whole, and so on to the root."
  `(loop for ,variable of-type (or null share) = ,share then (share-whole ,variable)
         while ,variable
         do (progn ,@body)))

(defun part-free (share count free)
  "The number of items that SHARE may have beyond the COUNT that it has, while its whole may have
FREE more. Zero or less means that it may have no more."
  (declare (type index count) (type fixnum free))
  (let* ((weight (share-weight share))
         (room (- (* weight (- free (share-kept share))) count)))
    (cond ((not (plusp free)) 0)
          ((not (minusp room)) (min free (1+ (floor room (1+ weight)))))
          ((zerop count) 1)
          (t 0))))

(defun free-for (share reader free)
  "How many more items of the kind that READER counts SHARE may have, by the rule for SHARE and all
its wholes, if FREE items are free in all."
  (declare (type function reader))
  (if (share-whole share)
      (part-free share (funcall reader share) (free-for (share-whole share) reader free))
      free))

(defun may-have-p (share reader free)
  (plusp (free-for share reader free)))

(defun share-full-p (share)
  "True if as many functions of SHARE run or wait as may."
  (<= (share-most share) (+ (share-running share) (share-waiting share))))

(defun enqueue-function (share function)
  "Queue FUNCTION in SHARE after its other functions."
  (enqueue function (share-items share))
  (do-wholes (part share)
    (incf (share-waiting part))
    (when (and (share-whole part) (not (share-listed part)))
      (setf (share-listed part) t)
      (enqueue part (share-items (share-whole part))))))

(defun enqueue-before-all (root function)
  "Queue FUNCTION in ROOT ahead of all others."
  (enqueue-first function (share-items root))
  (incf (share-waiting root)))

(defun dequeue-function (share free)
  "Remove the next function of SHARE, which may have FREE more threads; return two values, the
function and the share that it waited in, or nil."
  (loop with passed-over = nil
        for item = (first (fifo-items (share-items share)))
        until (or (null item) (eq item passed-over))
        do (dequeue (share-items share))
           (when (functionp item)
             (decf (share-waiting share))
             (return (values item share)))
           (multiple-value-bind (function owner)
               (let ((free (part-free item (share-running item) free)))
                 (and (plusp free) (dequeue-function item free)))
             (cond ((zerop (share-waiting item)) (setf (share-listed item) nil))
                   (t (enqueue item (share-items share))
                      (unless (or function passed-over) (setf passed-over item))))
             (when function
               (decf (share-waiting share))
               (return (values function owner))))))

(defun withdraw-function (share function)
  "Remove FUNCTION from SHARE if it waits there, so that its place is free."
  (let ((items (share-items share)))
    (when (member function (fifo-items items) :test #'eq)
      (remove-from-fifo function items)
      (do-wholes (part share) (decf (share-waiting part))))))

(defun clear-share (share)
  "Forget the functions that wait in SHARE, which has no parts."
  (let ((count (share-waiting share)))
    (loop while (dequeue (share-items share)))
    (do-wholes (part share) (decf (share-waiting part) count))))

(defun note-running (share change)
  "Note that a function of SHARE begins to run, with 1 for CHANGE, or has ended, with -1."
  (declare (type (member 1 -1) change))
  (do-wholes (part share) (incf (share-running part) change)))

(defun note-late-running (share change)
  "User code of SHARE that began on a loop has lost the loop and occupies a thread, or has returned:
CHANGE is 1 or -1. The root has counted the thread."
  (declare (type (member 1 -1) change))
  (do-wholes (part share)
    (when (share-whole part) (incf (share-running part) change))))
