;;;; A ranking of owners by the number of places that they hold. The ranking finds the owner with
;;;; the most places. Each owner has an OWNER-USAGE. Owner usages with the same count form a row,
;;;; which is a ring with a head; rows are indexed by count. A count changes by one at a time, so
;;;; the owner with the most is always known, and every operation takes the same time however many
;;;; owners there are.
;;;;
;;;; Invariants: TOTAL is the sum of the counts; MOST is the largest of them; an owner usage is in
;;;; the row of its count, and in no row if the count is 0. The caller ensures that only one thread
;;;; at a time works on a ranking.

(in-package #:clgrpc.server)

(defstruct (owner-usage (:include ring) (:constructor %make-owner-usage (owner)) (:copier nil))
  "The number of places that an owner holds."
  (owner nil :read-only t)              ; the owner, any object
  (count 0 :type index))                ; how many

(defun make-owner-usage (owner)
  "Return an owner usage of OWNER, without a place."
  (isolate-ring (%make-owner-usage owner)))

(define-printer (owner-usage owner-usage)
  "~D of ~A" (owner-usage-count owner-usage) (owner-usage-owner owner-usage))

(defstruct (ranking (:constructor make-ranking ()) (:copier nil))
  "Owners ordered by the number of their places; see the head of the file."
  (total 0 :type index)                 ; how many places are taken
  (most 0 :type index)                  ; the greatest count
  ;; indexed by count: the head of the row, or nil if no owner has that count
  (rows (make-array 8 :initial-element nil) :type simple-vector))

(declaim (sb-ext:freeze-type owner-usage ranking))

(define-printer (ranking ranking)
  "~D, ~D of one" (ranking-total ranking) (ranking-most ranking))

(document-functions
  make-ranking "Return a ranking without owner usages."
  ranking-total "How many places of RANKING are taken."
  owner-usage-count "How many places the owner of OWNER-USAGE holds."
  owner-usage-owner "The owner of OWNER-USAGE.")

(defun leave-row (ranking owner-usage)
  "Take OWNER-USAGE out of its row. If no other is in the row, drop the row and return its head,
which can be used again."
  (let* ((count (owner-usage-count owner-usage))
         (head (svref (ranking-rows ranking) count)))
    (quit-ring owner-usage)
    (when (and head (null (ring-first head)))
      (setf (svref (ranking-rows ranking) count) nil)
      head)))

(defun ranking-row (ranking count head)
  "The head of the row of the owner usages with COUNT; of a new row it is HEAD, or a new one if that
is nil."
  (let ((rows (ranking-rows ranking)))
    (when (<= (length rows) count)
      (setf rows (replace (make-array (max (1+ count) (* 2 (length rows))) :initial-element nil)
                          rows)
            (ranking-rows ranking) rows))
    (or (svref rows count)
        (setf (svref rows count) (or head (make-ring))))))

(defun change-owner-usage (ranking owner-usage change)
  "Change the number of places of OWNER-USAGE in RANKING by CHANGE, 1 or -1. Return the new number."
  (declare (type (member 1 -1) change))
  (let* ((emptied (leave-row ranking owner-usage))
         (before (owner-usage-count owner-usage))
         (count (incf (owner-usage-count owner-usage) change))
         (most (ranking-most ranking)))
    (incf (ranking-total ranking) change)
    (when (plusp count) (enter-ring owner-usage (ranking-row ranking count emptied)))
    (when (or (< most count) (and (= most before) emptied))
      (setf (ranking-most ranking) count))
    count))

(defun largest-user (ranking)
  "The owner usage with the most places of RANKING; among equals, the owner usage that has had this
number for the longest time. Nil if no owner has a place."
  (and (plusp (ranking-most ranking))
       (ring-first (svref (ranking-rows ranking) (ranking-most ranking)))))
