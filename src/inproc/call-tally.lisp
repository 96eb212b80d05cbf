;;;; Counts of calls, kept in many places, each on separate cache lines. A thread counts at one of
;;;; the places, so that threads that call at the same time do not pass a cache line back and forth.

(in-package #:clgrpc.inproc)

(defconstant +places+ 64 "How many places a tally has.")

(defconstant +place-words+ 16
  "The words of two cache lines, since processors fetch cache lines in pairs.")

(deftype tally ()
  "Two counts for each place: of the calls that have begun, and of the calls that have ended, on the
threads that use the place."
  `(simple-array sb-ext:word (,(* +places+ +place-words+))))

(defun make-tally ()
  (make-array (* +places+ +place-words+) :element-type 'sb-ext:word :initial-element 0))

(define-hot (place :inline t) () index
  "The place where this thread counts, computed from the address of the thread's stack in units of 2
MB, the minimum length of a stack."
  (* +place-words+
     (logand (1- +places+) (ash (sb-sys:sap-int (sb-kernel:current-sp)) -21))))

(define-hot (count-begun :inline t) ((tally tally)) null
  (atomic-incf (aref tally (place)))
  nil)

(define-hot (count-ended :inline t) ((tally tally)) null
  (atomic-incf (aref tally (1+ (place))))
  nil)

(defun total (tally offset)
  (loop for i from offset below (length tally) by +place-words+
        sum (aref (the tally tally) i)))

(defun tally-ended (tally) (total tally 1))

(defun tally-open (tally)
  "The number of calls counted in TALLY that are under way."
  ;; ended calls are read first, so that no call counts as ended but not as begun
  (let ((ended (total tally 1)))
    (sb-thread:barrier (:read))
    (- (total tally 0) ended)))
