;;;; A run's time, second by second. In a run longer than an hour two seconds become one row, later
;;;; two of these rows become one, and so on. So the number of rows is limited.

(in-package #:clgrpc.load)

(defconstant +most-rows+ 3600 "The maximum number of SECOND-ROWs of a run. When a run has more, each
pair of neighbours is merged.")

(defun merge-second-rows (rows &key at-once)
  "One row that sums up ROWS, which cover successive seconds or, if AT-ONCE is true, the same
second."
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
  "The vector ROWS of SECOND-ROWs with each pair merged into one row; an odd last row stays as it
is."
  (let ((count (length rows)))
    (coerce (loop for i from 0 below count by 2
                  collect (if (= (1+ i) count)
                              (aref rows i)
                              (merge-second-rows (list (aref rows i) (aref rows (1+ i))))))
            'vector)))

(defun fit-rows (rows interval-seconds least-seconds)
  "Merge pairs of rows in the vector ROWS, each of which covers INTERVAL-SECONDS, until a row covers
at least LEAST-SECONDS, which is INTERVAL-SECONDS times a power of two, and at most +MOST-ROWS+ rows
are left. Return the rows and the number of seconds of each."
  (loop while (or (< interval-seconds least-seconds) (< +most-rows+ (length rows)))
        do (setf rows (pair-rows rows)
                 interval-seconds (* 2 interval-seconds)))
  (values rows interval-seconds))
