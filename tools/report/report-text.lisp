;;;; Reports as text: the summary, which begins like ghz's and continues with figures that ghz
;;;; lacks; the list of calls for spreadsheets; the comparison of two runs.

(in-package #:clgrpc.report)

(defun plain (text)
  "TEXT, which a peer may have written, made safe for one line of a terminal."
  (substitute-if #\? (lambda (char)
                       (or (< (char-code char) 32) (<= 127 (char-code char) 159)
                           (<= #x202A (char-code char) #x202E)
                           (<= #x2066 (char-code char) #x2069)))
                 text))

(defun write-columns (stream rows &key (indent "  ") (left '(0)))
  "Write ROWS, lists of strings, in columns that are as wide as needed. The columns whose numbers
are in LEFT are aligned to the left, the others to the right. If the last column is aligned to the
left it is not padded."
  (let* ((count (reduce #'max rows :key #'length :initial-value 0))
         (widths (loop for column below count
                       collect (loop for row in rows
                                     maximize (length (or (nth column row) ""))))))
    (dolist (row rows)
      (let ((line (with-output-to-string (line)
                    (loop for cell in row
                          for width in widths
                          for column from 0
                          do (write-string (if (zerop column) indent "  ") line)
                             (format line (if (member column left) "~VA" "~V@A") width cell)))))
        (write-line (string-right-trim " " line) stream)))))

;;; As ghz

(defun histogram-marks (latency)
  "The upper ends of the eleven buckets that are shown: even steps up to the 99.9th percentile, and
the slowest call. With these ends a single slow call does not move all other calls into one bucket."
  (let ((low (load:histogram-min latency))
        (high (load:histogram-max latency))
        (most (load:histogram-quantile latency 999/1000)))
    (if (< (* 2 (- most low)) (- high low))
        (append (even-marks low most 9) (list high))
        (even-marks low high 10))))

(defun mark-text (mark)
  "MARK, nanoseconds, in milliseconds."
  (format nil "~,3F" (/ mark 1d6)))

(defun distinct-marks (marks)
  "The elements of MARKS, a rising list, whose texts differ from the text of the next element. If
all calls took the same time, a single mark remains."
  (loop for (mark next) on marks
        unless (and next (string= (mark-text mark) (mark-text next)))
          collect mark))

(defun write-bars (latency stream)
  (let* ((marks (distinct-marks (histogram-marks latency)))
         (counts (bucket-counts latency marks))
         (most (max 1 (reduce #'max counts))))
    (write-columns stream
                   (loop for mark in marks
                         for count in counts
                         collect (list (mark-text mark)
                                       (format nil "[~D]" count)
                                       (format nil "|~A" (make-string (round (* 40 count) most)
                                                                      :initial-element #\∎))))
                   :left '(0 1 2))))

(defun write-percentiles (latency stream)
  (write-columns stream
                 (loop for name in '("10" "25" "50" "75" "90" "95" "99" "99.9" "99.99")
                       for share = (percentile (format nil "p~A" name))
                       collect (list (format nil "~A % in" name)
                                     (page:duration-text
                                      (load:histogram-quantile latency share))))
                 :left '(1)))

(defun duration-cell (ns histogram)
  "NS, a time from HISTOGRAM, as text; a dash if HISTOGRAM is empty."
  (if (zerop (load:histogram-count histogram)) "–" (page:duration-text ns)))

(defun write-ghz-part (run stream)
  (let* ((latency (load:run-latency run)) (succeeded (plusp (load:histogram-count latency))))
    (format stream "~%Summary:~%")
    (write-columns stream
                   `(,@(when (load:run-name run) (list (list "Name:" (load:run-name run))))
                     ("Count:" ,(princ-to-string (load:run-count run)))
                     ("Total:" ,(page:duration-text (load:run-duration-ns run)))
                     ("Slowest:" ,(duration-cell (load:histogram-max latency) latency))
                     ("Fastest:" ,(duration-cell (load:histogram-min latency) latency))
                     ("Average:" ,(duration-cell (load:histogram-mean (load:run-all-latency run))
                                                 (load:run-all-latency run)))
                     ("Requests/sec:" ,(format nil "~,2F" (rate run))))
                   :left '(0 1))
    (when succeeded
      (format stream "~%Response time histogram (ms):~%")
      (write-bars latency stream)
      (format stream "~%Latency distribution:~%")
      (write-percentiles latency stream))
    (when (load:run-statuses run)
      (format stream "~%Status code distribution:~%")
      (write-columns stream
                     (loop for row in (load:run-statuses run)
                           collect (list (format nil "[~A]" (load:status-row-name row))
                                         (princ-to-string (load:status-row-count row))
                                         "responses"))
                     :left '(0 2)))
    (when (under-way-words run)
      (format stream "~%Without an end:~%  [under way at the end]  ~A~%" (under-way-words run)))
    (when (error-rows run)
      (format stream "~%Error distribution:~%")
      (write-columns stream
                     (loop for (text . count) in (error-rows run)
                           collect (list (format nil "[~D]" count) (plain text)))
                     :left '(0 1)))))

;;; Figures that ghz does not report

(defun loop-words (run)
  (if (eq :open (load:run-loop-kind run))
      (let ((waiting (1- (load:run-burst run))))
        (format nil "open~@[, ~A a second intended~]; latency counts from the intended time~
                     ~[~:;; in bursts of ~D: latencies have up to ~D time~:P of service in ~
                     them, as calls of a burst wait for each other~]"
                (and (load:run-intended-rps run) (page:digits-text (load:run-intended-rps run)))
                waiting (1+ waiting) waiting))
      "closed: each worker waits for the answer before the next call"))

(defun sent-words (run octets)
  "A text about OCTETS: all of them, and the octets for each call of RUN."
  (format nil "~A~@[, ~A a call~]" (page:octets-text octets)
          (and (plusp (load:run-count run))
               (page:octets-text (round octets (load:run-count run))))))

(defun cpu-words (run)
  (when-let ((per-call (figure-value "cpu-per-call" run)))
    (format nil "~A a call, ~A of a core" (page:duration-text per-call)
            (page:share-text (/ (load:run-cpu-ns run) (max 1 (load:run-duration-ns run)))))))

(defun quantile-words (histogram)
  "Three percentiles of HISTOGRAM and its maximum."
  (format nil "~{~A ~A~^, ~}"
          (append (loop for name in '("p50" "p99" "p99.9")
                        append (list name (page:duration-text
                                           (load:histogram-quantile histogram
                                                                    (percentile name)))))
                  (list "max" (page:duration-text (load:histogram-max histogram))))))

(defun server-words (run)
  "The server's own counts of the calls of RUN, next to the tool's."
  (flet ((figure (name) (cdr (assoc name (load:run-server run) :test #'string=))))
    (format nil "~D calls of the method~:[~; with those that do not count here~]~
                 ~{, ~A ~A of ~A here~}, by its metrics' buckets"
            (figure "count")
            (intersection '("warm-up" "skipFirst") (mapcar #'car (load:run-options run))
                          :test #'string=)
            (loop for name in '("p50" "p90" "p99")
                  when (and (figure name) (figure-value name run))
                    append (list name (page:duration-text (figure name))
                                 (page:duration-text (figure-value name run)))))))

(defun lateness-words (run)
  "A text about the lateness of the tool itself, or nil for a closed loop, in which calls have no
time at which they are due."
  (let ((lateness (load:run-lateness run)))
    (and (plusp (load:histogram-count lateness)) (quantile-words lateness))))

(defun ended-words (run)
  (ecase (load:run-ended-early run)
    ((nil) nil)
    (:interrupted "interrupted before all calls were made")
    (:terminated "ended by SIGTERM before all calls were made")
    (:deadline "the time was over before all calls were made")))

(defun under-way-words (run)
  "A text about the calls that were under way when RUN was broken off, or nil if no calls were."
  (and (plusp (load:run-under-way run))
       (format nil "~D call~:P, the oldest for ~A" (load:run-under-way run)
               (page:duration-text (load:run-oldest-under-way-ns run)))))

(defun given (count)
  "COUNT, or nil if COUNT is 0."
  (and (plusp count) count))

(defun load-facts (run)
  "The rows that describe how RUN was made: lists (name text)."
  (remove nil
          (list (list "Target:" (format nil "~A ~A (~(~A~))" (load:run-target run)
                                        (load:run-method run)
                                        (substitute #\Space #\- (string (load:run-kind run)))))
                (list "Loop:" (loop-words run))
                ;; workers do not report connections made and octets
                (list "Connections:" (format nil "~D asked for~@[, ~D made~]"
                                             (load:run-connections run)
                                             (given (load:run-connects run))))
                (and (given (load:run-octets-sent run))
                     (list "Sent:" (sent-words run (load:run-octets-sent run))))
                (and (given (load:run-octets-received run))
                     (list "Received:" (sent-words run (load:run-octets-received run))))
                (and (plusp (load:histogram-count (load:run-message-latency run)))
                     (list "Between responses:" (quantile-words (load:run-message-latency run))))
                (and (load:run-server run) (list "By the server:" (server-words run)))
                (and (cpu-words run) (list "CPU of the tool:" (cpu-words run)))
                (and (lateness-words run) (list "Tool was late by:" (lateness-words run)))
                (list "Limited by:" (or (load:run-limited run)
                                        "neither the tool nor streams or workers"))
                (and (ended-words run) (list "Ended early:" (ended-words run)))
                (and (under-way-words run) (list "Under way at the end:" (under-way-words run))))))

(defparameter *row-percentiles* '("p50" "p90" "p99" "p99.9"))

(defun latency-cells (histogram)
  "Percentiles and the maximum of HISTOGRAM as texts; dashes if it is empty."
  (append (loop for name in *row-percentiles*
                collect (duration-cell (load:histogram-quantile histogram (percentile name))
                                       histogram))
          (list (duration-cell (load:histogram-max histogram) histogram))))

(defun write-shares (title rows stream)
  "Write ROWS, SHARE-ROWs of a run, below TITLE; nothing if there are fewer than two."
  (when (rest rows)
    (format stream "~%~A:~%" title)
    (write-columns stream
                   (cons `("" "calls" "failed" ,@*row-percentiles* "max")
                         (loop for row in rows
                               collect `(,(plain (load:share-row-name row))
                                         ,(page:count-text (load:share-row-count row))
                                         ,(page:count-text (load:share-row-errors row))
                                         ,@(latency-cells (load:share-row-latency row))))))))

(defun write-own-part (run stream)
  (format stream "~%Load:~%")
  (write-columns stream (load-facts run) :left '(0 1))
  (when (load:run-stages run)
    (format stream "~%Stages of calls:~%")
    (write-columns stream
                   (cons `("" ,@*row-percentiles* "max")
                         (loop for (name . histogram) in (load:run-stages run)
                               collect (cons name (latency-cells histogram))))))
  (write-shares "Methods" (load:run-methods run) stream)
  (write-shares "Backends" (load:run-backends run) stream)
  (when (rest (load:run-rounds run))
    (format stream "~%Rounds:~%")
    (write-columns stream
                   (cons `("" "calls/s" ,@*row-percentiles* "max")
                         (loop for round in (load:run-rounds run)
                               for number from 1
                               collect `(,(princ-to-string number)
                                         ,(page:digits-text (rate round))
                                         ,@(latency-cells (load:run-latency round))))))))

(defun write-summary (run stream)
  (write-ghz-part run stream)
  (write-own-part run stream))

;;; CSV

(defun csv-field (text)
  "TEXT as a field of CSV (RFC 4180)."
  (if (find-if (lambda (char) (find char '(#\, #\" #\Newline #\Return))) text)
      (format nil "\"~A\"" (with-output-to-string (field)
                             (loop for char across text
                                   do (when (char= char #\") (write-char #\" field))
                                      (write-char char field))))
      text))

(defun write-csv (run stream)
  "Write to STREAM the calls that RUN lists one by one, in ghz's format."
  (format stream "duration (ms),status,error~%")
  (dolist (sample (load:run-samples run))
    (let ((status (load:sample-status sample)))
      (format stream "~,4F,~A,~A~%" (/ (load:sample-latency-ns sample) 1d6) (csv-field status)
              (csv-field (if (string= status "OK")
                             ""
                             (error-text status (or (load:sample-error sample) ""))))))))

;;; Comparisons

(defun verdict-text (verdict)
  "The word in reports for VERDICT, of a comparison."
  (string-downcase verdict))

(defun write-comparisons (comparisons stream)
  "Write COMPARISONS as a table, and the changes in words."
  (write-columns stream
                 (cons '("" "before" "after" "difference" "noise" "")
                       (loop for comparison in comparisons
                             for unit = (comparison-unit comparison)
                             collect (list (comparison-name comparison)
                                           (value-text unit (comparison-before comparison))
                                           (value-text unit (comparison-after comparison))
                                           (difference-text comparison)
                                           (noise-text comparison)
                                           (verdict-text (comparison-verdict comparison)))))
                 :left '(0 5))
  (terpri stream)
  (dolist (comparison comparisons)
    (unless (eq :same (comparison-verdict comparison))
      (format stream "  ~A~%" (comparison-words comparison))))
  (dolist (comparison comparisons)
    (when (outlier-words comparison) (format stream "  ~A.~%" (outlier-words comparison))))
  (when-let ((same (loop for comparison in comparisons
                         when (eq :same (comparison-verdict comparison))
                           collect (comparison-name comparison))))
    (format stream "  The same, within ~A: ~{~A~^, ~}.~%" (page:share-text *equivalence*)
            same)))

(defun write-comparison (before after stream)
  "Write the differences between the runs BEFORE and AFTER to STREAM."
  (format stream "~%Comparison:~%")
  (write-columns stream
                 (loop for run in (list before after)
                       for name in '("before:" "after:")
                       collect (list name (load:run-target run) (load:run-method run)
                                     (format nil "~D calls" (load:run-count run))
                                     (if (zerop (load:run-started-unix-ns run))
                                         ""
                                         (second-text (load:run-started-unix-ns run)))))
                 :left '(0 1 2 4))
  (loop for (name was is) in (option-differences before after)
        do (format stream "  They differ in ~A: ~A and ~A.~%" name was is))
  (terpri stream)
  (write-comparisons (compare-runs before after) stream)
  (format stream "  ~A~%" (noise-note before after)))
