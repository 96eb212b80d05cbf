;;;; The inbox: items from many threads to one consumer, first in first out for each thread. A push
;;;; consists of one compare-and-swap. Only a sleeping consumer must be woken, and exactly one of
;;;; the threads that push while it sleeps must wake it.
;;;;
;;;; The protocol:
;;;;
;;;; 1. The consumer sets ASLEEP to 1 (DOZE-INBOX), checks once more whether the inbox is empty, and
;;;;    sleeps. A push that comes after this check finds ASLEEP to be 1.
;;;; 2. A push that finds ASLEEP to be 1 increments WAKERS and tries to set ASLEEP to 0. The thread
;;;;    that succeeds wakes the consumer and then decrements WAKERS (CONFIRM-WAKE); the others
;;;;    decrement WAKERS at once. No interrupt may happen between these steps: a thread that is
;;;;    unwound, as when its WITH-TIMEOUT is over, would leave the consumer asleep although it has
;;;;    items to process.
;;;; 3. The consumer, awake again, sets ASLEEP to 0 (ROUSE-INBOX).
;;;; 4. CLOSE-INBOX waits until WAKERS is 0, for +LONGEST-WAKE-NS+ at most. Once WAKERS is 0, the
;;;;    means to wake the consumer, such as an eventfd, can be closed.

(in-package #:clgrpc.loop)

(defconstant +longest-wake-ns+ +ns-per-second+
  "The time in nanoseconds that NO-WAKER-LEFT-P waits for threads that may be about to wake the
consumer.")

(defstruct (inbox (:constructor make-inbox ()) (:copier nil))
  "A queue from many threads to one."
  (head nil :type (or list (eql :closed))) ; the items, newest first, or :closed
  ;; 1 while the consumer sleeps and no push has begun to wake it, else 0
  (asleep 0 :type sb-ext:word)
  (wakers 0 :type sb-ext:word)          ; the number of pushes that may be about to wake it
  (arrived nil :type list))             ; items that the consumer took from HEAD, oldest first

(declaim (sb-ext:freeze-type inbox))

(document-functions
  make-inbox "Return an empty, open inbox.")

(define-hot push-inbox ((inbox inbox) (item t)) (member nil t :closed)
  "Append ITEM to INBOX. Return true if the consumer sleeps; the caller must then wake the consumer
and call CONFIRM-WAKE. Return :CLOSED, without appending ITEM, if INBOX is closed. From any thread.
Interrupts must be off during the whole call."
  (let ((cell (list item)))
    (loop
      (let ((head (inbox-head inbox)))
        (when (eq head :closed) (return :closed))
        (setf (cdr cell) head)
        (when (eq head (compare-and-swap (inbox-head inbox) head cell))
          (return (and (= 1 (inbox-asleep inbox))
                       (become-waker inbox))))))))

(define-hot become-waker ((inbox inbox)) boolean
  "Return true if this thread must wake the consumer, because it is the first of the threads that
found it asleep."
  (atomic-incf (inbox-wakers inbox))
  (or (= 1 (compare-and-swap (inbox-asleep inbox) 1 0))
      (confirm-wake inbox)))

(define-hot confirm-wake ((inbox inbox)) null
  "Confirm that the consumer has been woken. The thread that had to wake it, by the result of
PUSH-INBOX, calls this."
  (atomic-decf (inbox-wakers inbox))
  nil)

(define-hot (inbox-empty-p :inline t) ((inbox inbox)) boolean
  "True if INBOX holds nothing."
  (and (not (consp (inbox-head inbox))) (null (inbox-arrived inbox))))

(define-hot (rouse-inbox :inline t) ((inbox inbox)) null
  "Note that the consumer is awake. Only the consumer may call this."
  (setf (inbox-asleep inbox) 0)
  nil)

(define-hot (doze-inbox :inline t) ((inbox inbox)) boolean
  "Note that the consumer is about to sleep. Return true if the consumer may sleep, because INBOX is
empty; otherwise the consumer counts as awake. Only the consumer may call this."
  (setf (inbox-asleep inbox) 1)
  (sb-thread:barrier (:memory))
  (or (inbox-empty-p inbox)
      (rouse-inbox inbox)))

(define-hot (inbox-asleep-p :inline t) ((inbox inbox)) boolean
  "True after DOZE-INBOX, until a push to INBOX begins to wake the consumer."
  (= 1 (inbox-asleep inbox)))

(define-hot take-arrivals ((inbox inbox) (new (or list (eql :closed)))) null
  "Append the pushed items to ARRIVED and leave NEW in their place."
  (loop
    (let ((head (inbox-head inbox)))
      (when (eq head :closed) (return nil))
      (when (eq head (compare-and-swap (inbox-head inbox) head new))
        (setf (inbox-arrived inbox) (nconc (inbox-arrived inbox) (nreverse head)))
        (return nil)))))

(define-hot drain-items ((inbox inbox) (function function)) null
  "Do what DRAIN-INBOX does, for an INBOX that has items."
  (take-arrivals inbox nil)
  (loop while (inbox-arrived inbox)
        until (eq :enough (funcall function (pop (inbox-arrived inbox))))))

(define-hot (drain-inbox :inline t) ((inbox inbox) (function function)) null
  "Call FUNCTION with each item that is in INBOX now, the oldest first, until it returns :ENOUGH;
items pushed meanwhile wait. If FUNCTION exits non-locally, or returns :ENOUGH, the next drain
begins with the next item. Only the consumer may call this."
  (unless (inbox-empty-p inbox) (drain-items inbox function)))

(defun close-inbox (inbox)
  "Close INBOX, so that it refuses further items; the items in it can still be drained. Return true
if no thread is about to wake the consumer, and false if a thread still is after +LONGEST-WAKE-NS+.
Only the consumer may call this."
  (take-arrivals inbox :closed)
  (rouse-inbox inbox)
  (no-waker-left-p inbox))

(defun no-waker-left-p (inbox)
  "Wait until no thread is about to wake the consumer of INBOX. Return true; return false if a waker
is still left after +LONGEST-WAKE-NS+."
  (sb-thread:barrier (:memory))
  (loop with end = (+ (monotonic-ns) +longest-wake-ns+)
        until (zerop (inbox-wakers inbox))
        always (< (monotonic-ns) end)
        do (sb-thread:thread-yield)))

(defmethod print-object ((inbox inbox) stream)
  (print-unreadable-object (inbox stream :type t :identity t)
    (write-string (cond ((eq :closed (inbox-head inbox)) "closed")
                        ((inbox-empty-p inbox) "empty")
                        (t "not empty"))
                  stream)))
