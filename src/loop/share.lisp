;;;; Shares: what those who use a reserve together may have of it, so that nobody keeps the others
;;;; out. A reserve has a root share; a share may be part of another (a connection's of its peer's,
;;;; that of the root), and its functions wait in itself. Functions of nobody in particular wait in
;;;; the root.
;;;;
;;;; The rule is the dynamic threshold of switches that share a buffer (Choudhury and Hahne): a
;;;; share may have another thread, or another place in the queue, while it has no more than WEIGHT
;;;; times what is free beyond KEPT; one that has none may have one while anything is free. Of what
;;;; a share may have, its parts may have theirs by the same rule. So one alone gets a part, as more
;;;; want theirs each gets less, and who comes last still finds something, without anybody knowing
;;;; how many there are, and though nothing is taken back from those that came before.
;;;;
;;;; What is waiting is served round robin at each level. A look for a function that may run passes
;;;; over shares that have too much, of which there are at most as many as threads.
;;;;
;;;; User code that began on a loop and has lost that holds a thread as well. The root counts it
;;;; among those that run loops, shares do from then on (NOTE-LATE-RUNNING).
;;;;
;;;; Invariants: RUNNING and WAITING of a share are those of its parts and its own, but for what is
;;;; late; a share that has something waiting is LISTED, once, among the items of its whole. The
;;;; reserve's lock is held.

(in-package #:clgrpc.loop)

(defstruct (share (:constructor make-share (&key whole (weight 1) (kept 0) (most (ash 1 30))))
                  (:copier nil))
  "A share that is part of WHOLE, or a root; of threads it may have WEIGHT times those that are free
beyond KEPT, and of functions that run or wait MOST. ITEMS are functions and shares with functions
that wait."
  (whole nil :type (or null share) :read-only t)
  (weight 1 :type (unsigned-byte 16) :read-only t)
  (kept 0 :type index :read-only t)
  (most 0 :type index :read-only t)
  (running 0 :type index)
  (waiting 0 :type index)
  (items (make-fifo) :type fifo :read-only t)
  (listed nil :type boolean))

(declaim (sb-ext:freeze-type share))

(document-functions
  make-share "Return a new share; see the type SHARE and MAKE-RESERVE."
  share-running "How many functions of SHARE run now.")

(defmethod print-object ((share share) stream)
  (print-unreadable-object (share stream :type t)
    (format stream "~D running, ~D waiting" (share-running share) (share-waiting share))))

(defmacro do-wholes ((variable share) &body body)
  "Do BODY with VARIABLE bound to SHARE, to what it is part of, and so on to the root."
  `(loop for ,variable of-type (or null share) = ,share then (share-whole ,variable)
         while ,variable
         do (progn ,@body)))

(defun part-free (share count free)
  "How many more than COUNT of something SHARE may have while FREE ones are, for its whole, to be
had; none if that is not positive."
  (declare (type index count) (type fixnum free))
  (let* ((weight (share-weight share))
         (room (- (* weight (- free (share-kept share))) count)))
    (cond ((not (plusp free)) 0)
          ((not (minusp room)) (min free (1+ (floor room (1+ weight)))))
          ((zerop count) 1)
          (t 0))))

(defun free-for (share reader free)
  "How many more of what READER counts SHARE may have, in its whole and so on, while FREE ones are
to be had in all."
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
  "Have FUNCTION wait in SHARE behind its others."
  (enqueue function (share-items share))
  (do-wholes (part share)
    (incf (share-waiting part))
    (when (and (share-whole part) (not (share-listed part)))
      (setf (share-listed part) t)
      (enqueue part (share-items (share-whole part))))))

(defun enqueue-before-all (root function)
  "Have FUNCTION wait in ROOT before all others."
  (enqueue-first function (share-items root))
  (incf (share-waiting root)))

(defun dequeue-function (share free)
  "Take the function of SHARE that is to run next while it may have FREE threads more; return it and
the share that it waited in, or nil."
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

(defun clear-share (share)
  "Forget the functions that wait in SHARE, which has no parts."
  (let ((count (share-waiting share)))
    (clear-fifo (share-items share))
    (do-wholes (part share) (decf (share-waiting part) count))))

(defun note-running (share change)
  "A function of SHARE begins to run, or has ended: CHANGE is 1 or -1."
  (declare (type (member 1 -1) change))
  (do-wholes (part share) (incf (share-running part) change)))

(defun note-late-running (share change)
  "User code of SHARE that began on a loop has lost that, and holds a thread, or returns: CHANGE is
1 or -1. The root has counted the thread."
  (declare (type (member 1 -1) change))
  (do-wholes (part share)
    (when (share-whole part) (incf (share-running part) change))))
