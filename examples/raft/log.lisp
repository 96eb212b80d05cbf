;;;; The log: entries after a base, up to which a snapshot stands for them.

(in-package #:clgrpc.examples.raft)

(defstruct (node-log (:constructor make-log) (:conc-name log-) (:copier nil))
  "The log of a node."
  (base-index 0)                        ; of the last entry that the snapshot stands for
  (base-term 0)
  (snapshot (make-octets 0))            ; the store at the base
  ;; of RAFT:ENTRY messages, the first of which has the index BASE-INDEX + 1
  (entries (make-array 16 :adjustable t :fill-pointer 0)))

(defmethod print-object ((log node-log) stream)
  (print-unreadable-object (log stream :type t)
    (format stream "~D to ~D" (log-base-index log) (last-index log))))

(defun last-index (log)
  "The index of the last entry of LOG."
  (+ (log-base-index log) (length (log-entries log))))

(defun entry-at (log index)
  "The entry of LOG at INDEX, which is above its base."
  (aref (log-entries log) (- index (log-base-index log) 1)))

(defun term-at (log index)
  "The term of the entry of LOG at INDEX; nil if it is not there, or the snapshot stands for it."
  (cond ((= index (log-base-index log)) (log-base-term log))
        ((< (log-base-index log) index (1+ (last-index log)))
         (v1:entry-term (entry-at log index)))))

(defun last-term (log)
  (term-at log (last-index log)))

(defun add-entry (log entry)
  "ENTRY follows the last of LOG."
  (assert (= (v1:entry-index entry) (1+ (last-index log))))
  (vector-push-extend entry (log-entries log)))

(defun drop-entries (log index)
  "LOG ends before INDEX, which is above its base."
  (setf (fill-pointer (log-entries log)) (- index (log-base-index log) 1)))

(defun entries-from (log index most-entries most-octets)
  "The entries of LOG from INDEX on, MOST-ENTRIES at most and with MOST-OCTETS of data, or one."
  (loop with octets = 0
        for i from index to (min (last-index log) (+ index most-entries -1))
        for entry = (entry-at log i)
        do (incf octets (length (v1:entry-data entry)))
        while (or (= i index) (<= octets most-octets))
        collect entry))

(defun first-index-of-term (log index)
  "The first index of LOG from which on all entries up to INDEX have the term of that."
  (loop with term = (term-at log index)
        for i downfrom index
        while (and (> i (1+ (log-base-index log))) (eql term (term-at log (1- i))))
        finally (return i)))

(defun move-base (log index term snapshot)
  "SNAPSHOT stands for the entries up to INDEX, of TERM; what follows them stays if it does so."
  (let ((rest (and (eql term (term-at log index))
                   (subseq (log-entries log) (- index (log-base-index log))))))
    (setf (log-base-index log) index
          (log-base-term log) term
          (log-snapshot log) snapshot
          (fill-pointer (log-entries log)) 0)
    (map nil (lambda (entry) (add-entry log entry)) rest)))
