;;;; Quotas: how much of a reserve each of its users may have, so that no user excludes the others.
;;;; A reserve has a root quota, and quotas have children: the quota of a peer is a child of the
;;;; root, and the quota of a connection is a child of its peer's quota. A function waits in its
;;;; user's quota; functions without a user, which run loops, wait in the root.
;;;;
;;;; The rule is the dynamic threshold of switches that share a buffer (Choudhury and Hahne): a
;;;; quota may have another thread, or another place in the queue, while
;;;;
;;;;     its number  ≤  WEIGHT × (free number − KEPT)
;;;;
;;;; and a quota that has nothing may have one while anything is free. The same rule divides the
;;;; number that a quota may have among its children. An example with weight 1, nothing kept
;;;; and 240 threads: one user alone gets some 120 threads, since then 120 are free; two users get
;;;; 80 each, three get 60 each. So each user gets fewer threads as more users arrive, and the last
;;;; user still finds free threads. The rule ignores the number of quotas and takes no thread back.
;;;;
;;;; Waiting functions are served round robin at each level. A search for a function that may run
;;;; skips quotas that have too many threads; there are at most as many such quotas as threads.
;;;;
;;;; User code that began on a loop and has lost the loop occupies a thread as well. The root has
;;;; already counted that thread, as the one that ran the loop; the user's quota counts it once the
;;;; loop is lost (NOTE-LATE-RUNNING).
;;;;
;;;; Invariants: RUNNING and WAITING of a quota include the numbers of its children, except for late
;;;; user code; a quota with waiting functions is LISTED, once, among the items of its parent. The
;;;; callers of these functions hold the reserve's lock.

(in-package #:clgrpc.loop)

(defstruct (quota (:constructor make-quota (&key parent (weight 1) (kept 0) (most (ash 1 30))))
                  (:copier nil))
  "A limit of the threads of a reserve and of the places in its queue that a group of functions may
use. The limit is a dynamic threshold, not a fixed number. It falls as fewer threads, or places, are
free."
  (parent nil :type (or null quota) :read-only t) ; the parent of this quota, or nil
  ;; the quota may have another thread or place while its number is at most
  ;; WEIGHT × (free number − KEPT)
  (weight 1 :type (unsigned-byte 16) :read-only t)
  ;; the number of free threads or places that the rule for WEIGHT does not count
  (kept 0 :type index :read-only t)
  ;; the fixed number of functions of the quota that may run and wait together
  (most 0 :type index :read-only t)
  (running 0 :type index)               ; running functions, those of its children included
  (waiting 0 :type index)               ; waiting functions, those of its children included
  (items (make-fifo) :type fifo :read-only t) ; waiting functions, and children that have some
  (listed nil :type boolean))           ; true while the quota is among the ITEMS of PARENT

(declaim (sb-ext:freeze-type quota))

(document-functions
  make-quota "Return a new quota; see the type QUOTA and MAKE-RESERVE."
  quota-running "The number of functions of QUOTA that run now.")

(define-printer (quota quota)
  "~D running, ~D waiting" (quota-running quota) (quota-waiting quota))

(defmacro do-ancestors ((variable quota) &body body)
  "Do BODY with VARIABLE bound to QUOTA, to its parent, and so on to the root."
  `(loop for ,variable of-type (or null quota) = ,quota then (quota-parent ,variable)
         while ,variable
         do (progn ,@body)))

(defun child-free (quota count free)
  "Return the number of further items that QUOTA, which has COUNT items, may have, if its parent may
have FREE further items. Zero or less means that it may have none."
  (declare (type index count) (type fixnum free))
  (let* ((weight (quota-weight quota))
         (room (- (* weight (- free (quota-kept quota))) count)))
    (cond ((not (plusp free)) 0)
          ((not (minusp room)) (min free (1+ (floor room (1+ weight)))))
          ((zerop count) 1)
          (t 0))))

(defun free-for (quota reader free)
  "Return the number of further items that QUOTA may have, by the rule for QUOTA and all its
ancestors, if the reserve has FREE free items. READER returns the number of items of a quota."
  (declare (type function reader))
  (if (quota-parent quota)
      (child-free quota (funcall reader quota) (free-for (quota-parent quota) reader free))
      free))

(defun may-have-p (quota reader free)
  (plusp (free-for quota reader free)))

(defun quota-full-p (quota)
  "True if QUOTA has the maximum number of functions that may run or wait together."
  (<= (quota-most quota) (+ (quota-running quota) (quota-waiting quota))))

(defun enqueue-function (quota function)
  "Queue FUNCTION in QUOTA after its other functions."
  (enqueue function (quota-items quota))
  (do-ancestors (ancestor quota)
    (incf (quota-waiting ancestor))
    (when (and (quota-parent ancestor) (not (quota-listed ancestor)))
      (setf (quota-listed ancestor) t)
      (enqueue ancestor (quota-items (quota-parent ancestor))))))

(defun enqueue-before-all (root function)
  "Queue FUNCTION in ROOT before all other functions."
  (enqueue-first function (quota-items root))
  (incf (quota-waiting root)))

(defun dequeue-function (quota free)
  "Remove the next function of QUOTA, which may have FREE more threads; return two values, the
function and the quota in which it waited, or nil if no function may run."
  (loop with passed-over = nil
        for item = (first (fifo-items (quota-items quota)))
        until (or (null item) (eq item passed-over))
        do (dequeue (quota-items quota))
           (when (functionp item)
             (decf (quota-waiting quota))
             (return (values item quota)))
           (multiple-value-bind (function owner)
               (let ((free (child-free item (quota-running item) free)))
                 (and (plusp free) (dequeue-function item free)))
             (cond ((zerop (quota-waiting item)) (setf (quota-listed item) nil))
                   (t (enqueue item (quota-items quota))
                      (unless (or function passed-over) (setf passed-over item))))
             (when function
               (decf (quota-waiting quota))
               (return (values function owner))))))

(defun withdraw-function (quota function)
  "If FUNCTION waits in QUOTA, remove it, so that its place becomes free."
  (let ((items (quota-items quota)))
    (when (member function (fifo-items items) :test #'eq)
      (remove-from-fifo function items)
      (do-ancestors (ancestor quota) (decf (quota-waiting ancestor))))))

(defun clear-quota (quota)
  "Forget the functions that wait in QUOTA, which has no children."
  (let ((count (quota-waiting quota)))
    (loop while (dequeue (quota-items quota)))
    (do-ancestors (ancestor quota) (decf (quota-waiting ancestor) count))))

(defun note-running (quota change)
  "Note that a function of QUOTA begins to run, if CHANGE is 1, or has ended, if CHANGE is -1."
  (declare (type (member 1 -1) change))
  (do-ancestors (ancestor quota) (incf (quota-running ancestor) change)))

(defun note-late-running (quota change)
  "If CHANGE is 1, note that user code of QUOTA that began on a loop has lost the loop and occupies
a thread; if it is -1, note that this user code has returned. The root has counted the thread."
  (declare (type (member 1 -1) change))
  (do-ancestors (ancestor quota)
    (when (quota-parent ancestor) (incf (quota-running ancestor) change))))
