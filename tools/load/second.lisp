;;;; A run's time, second by second. Of a run longer than an hour two seconds become one row, then
;;;; two of these, and so on, so that the rows that are kept, and reported, are bounded.

(in-package #:clgrpc.load)

(defconstant +most-rows+ 3600 "How many SECOND-ROWs a run has; beyond them two become one.")

(defun merge-second-rows (rows &key at-once)
  "ROWS as one: of seconds that follow each other or, if AT-ONCE is true, of the same second."
  (flet ((sum (reader) (reduce #'+ rows :key reader)))
    (make-second-row
     :count (sum #'second-row-count) :errors (sum #'second-row-errors)
     :latency (merge-histograms (mapcar #'second-row-latency rows))
     :sent-octets (sum #'second-row-sent-octets)
     :received-octets (sum #'second-row-received-octets)
     :connections (if at-once
                      (sum #'second-row-connections)
                      (second-row-connections (first (last rows))))
     :lateness-max-ns (reduce #'max rows :key #'second-row-lateness-max-ns))))

(defun pair-rows (rows)
  "The vector ROWS of SECOND-ROWs with two and two of them as one; an odd last one stays."
  (let ((count (length rows)))
    (coerce (loop for i from 0 below count by 2
                  collect (if (= (1+ i) count)
                              (aref rows i)
                              (merge-second-rows (list (aref rows i) (aref rows (1+ i))))))
            'vector)))

(defun fit-rows (rows interval-seconds least-seconds)
  "The vector ROWS, of INTERVAL-SECONDS each, with two as one until they are of LEAST-SECONDS, a
doubling of that, and at most +MOST-ROWS+; and of how many seconds they are then."
  (loop while (or (< interval-seconds least-seconds) (< +most-rows+ (length rows)))
        do (setf rows (pair-rows rows)
                 interval-seconds (* 2 interval-seconds)))
  (values rows interval-seconds))
