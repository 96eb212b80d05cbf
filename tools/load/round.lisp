;;;; Several runs as one: counts are added up, histograms are merged, and the runs themselves are in
;;;; RUN-ROUNDS, for comparisons of their differences.

(in-package #:clgrpc.load)

(defun merge-rows (owners rows key merge)
  "The rows of all OWNERS, with the rows of the same KEY combined into one row. ROWS is a function
that returns the rows of an owner; MERGE is a function that combines a list of rows."
  (let ((groups '()))
    (dolist (row (loop for owner in owners append (funcall rows owner)))
      (if-let ((group (assoc (funcall key row) groups :test #'equal)))
        (push row (cdr group))
        (push (list (funcall key row) row) groups)))
    (loop for (nil . group) in (reverse groups)
          collect (funcall merge (reverse group)))))

(defun merge-status-rows (rows)
  (let ((messages '()))
    (loop for (text . count) in (loop for row in rows append (status-row-messages row))
          for known = (assoc text messages :test #'string=)
          do (if known (incf (cdr known) count) (push (cons text count) messages)))
    (make-status-row :name (status-row-name (first rows)) :code (status-row-code (first rows))
                     :count (reduce #'+ rows :key #'status-row-count)
                     :latency (merge-histograms (mapcar #'status-row-latency rows))
                     :messages (sort messages #'> :key #'cdr))))

(defun merge-share-rows (rows)
  (make-share-row :name (share-row-name (first rows))
                  :count (reduce #'+ rows :key #'share-row-count)
                  :errors (reduce #'+ rows :key #'share-row-errors)
                  :latency (merge-histograms (mapcar #'share-row-latency rows))))

(defun join-seconds (runs)
  "Return two values: the SECOND-ROWs of RUNS, one run after the other, and the number of seconds
that each row covers."
  (let ((interval (reduce #'max runs :key #'run-interval-seconds)))
    (fit-rows (apply #'concatenate 'vector
                     (loop for run in runs
                           collect (fit-rows (run-seconds run) (run-interval-seconds run)
                                             interval)))
              interval interval)))

(defun merge-rounds (runs)
  "Return one RUN for RUNS, which were made one after the other: the run itself if it is the only
one, else a new RUN with RUNS as its rounds. The new RUN has the seconds of all rounds in their
order, and the sum of their durations."
  (if (null (rest runs))
      (first runs)
      (flet ((sum (reader) (reduce #'+ runs :key reader))
             (merged (reader) (merge-histograms (mapcar reader runs)))
             (most-frequent (rows reader) (sort rows #'> :key reader)))
        (let ((whole (copy-structure (first runs))))
          (setf (values (run-seconds whole) (run-interval-seconds whole)) (join-seconds runs)
                (run-duration-ns whole) (sum #'run-duration-ns)
                (run-count whole) (sum #'run-count)
                (run-burst whole) (reduce #'max runs :key #'run-burst)
                (run-under-way whole) (sum #'run-under-way)
                (run-oldest-under-way-ns whole)
                (reduce #'max runs :key #'run-oldest-under-way-ns)
                (run-latency whole) (merged #'run-latency)
                (run-all-latency whole) (merged #'run-all-latency)
                (run-lateness whole) (merged #'run-lateness)
                (run-message-latency whole) (merged #'run-message-latency)
                (run-statuses whole)
                (most-frequent (merge-rows runs #'run-statuses #'status-row-code
                                           #'merge-status-rows)
                               #'status-row-count)
                (run-methods whole)
                (merge-rows runs #'run-methods #'share-row-name #'merge-share-rows)
                (run-backends whole)
                (most-frequent (merge-rows runs #'run-backends #'share-row-name
                                           #'merge-share-rows)
                               #'share-row-count)
                (run-stages whole)
                (merge-rows runs #'run-stages #'car
                            (lambda (rows)
                              (cons (car (first rows)) (merge-histograms (mapcar #'cdr rows)))))
                (run-octets-sent whole) (sum #'run-octets-sent)
                (run-octets-received whole) (sum #'run-octets-received)
                (run-messages-sent whole) (sum #'run-messages-sent)
                (run-messages-received whole) (sum #'run-messages-received)
                (run-connects whole) (sum #'run-connects)
                (run-cpu-ns whole) (sum #'run-cpu-ns)
                (run-limited whole) (some #'run-limited runs)
                ;; the user or SIGTERM ends only the last round, and with it all; other rounds end
                ;; by their deadline
                (run-ended-early whole) (some #'run-ended-early (reverse runs))
                (run-samples whole) (loop for run in runs append (run-samples run))
                (run-rounds whole) runs)
          whole))))
