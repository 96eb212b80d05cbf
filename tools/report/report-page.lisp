;;;; The report as a page: figures, charts over time, the distribution of latencies, failures, and
;;;; how the run was made. The seconds of a long run are combined to longer intervals, so that a
;;;; chart has at most *COLUMNS* columns.

(in-package #:clgrpc.report)

(defparameter *columns* 120 "The maximum number of intervals of a chart over time.")
(defparameter *heat-rows* 40 "The number of rows of the heat map.")
(defparameter *histogram-bars* 64)

;;; Intervals

(defstruct (interval (:copier nil))
  "The counts of some seconds of a run."
  (start 0 :type real :read-only t)     ; seconds from the begin of the run
  (end 0 :type real :read-only t)       ; likewise
  (count 0 :type unsigned-byte :read-only t) ; calls that ended
  (errors 0 :type unsigned-byte :read-only t) ; how many calls failed
  (latency nil :type load:histogram :read-only t) ; the latency of the calls that did not fail
  (sent 0 :type unsigned-byte :read-only t) ; octets sent
  (received 0 :type unsigned-byte :read-only t) ; octets received
  (lateness 0 :type unsigned-byte :read-only t)) ; the greatest of the tool, in ns

(defun sum-of (reader rows)
  (reduce #'+ rows :key reader))

(defun make-interval-of (rows start end)
  (make-interval :start start :end end
                 :count (sum-of #'load:second-row-count rows)
                 :errors (sum-of #'load:second-row-errors rows)
                 :latency (load:merge-histograms
                           (map 'list #'load:second-row-latency rows))
                 :sent (sum-of #'load:second-row-sent-octets rows)
                 :received (sum-of #'load:second-row-received-octets rows)
                 :lateness (reduce #'max rows :key #'load:second-row-lateness-max-ns)))

(defun run-seconds-long (run)
  (/ (load:run-duration-ns run) 1000000000))

(defun intervals (run)
  "The INTERVALs of RUN, about *COLUMNS* of them at most. If RUN has rounds, each round has
intervals of its own, because a round begins and ends within a second."
  (let ((rounds (load:run-rounds run)))
    (if (null rounds)
        (intervals-of-one run 0 *columns*)
        (loop for round in rounds
              for start = 0 then (+ start (run-seconds-long previous))
              for previous = round
              append (intervals-of-one round start (max 1 (floor *columns* (length rounds))))))))

(defun intervals-of-one (run begin columns)
  "At most COLUMNS INTERVALs of RUN, which begins after BEGIN seconds. They have the same length,
except the last, which ends with RUN. If the last would be shorter than a tenth of an interval, it
is added to the interval before it."
  (let* ((rows (load:run-seconds run))
         (step (max 1 (ceiling (length rows) columns)))
         (seconds (* step (load:run-interval-seconds run)))
         (end (run-seconds-long run))
         (count (max 1 (ceiling (- end (/ seconds 10)) seconds))))
    (loop for number below (min count (ceiling (length rows) step))
          for last = (= number (1- (min count (ceiling (length rows) step))))
          collect (make-interval-of
                   (subseq rows (* number step)
                           (if last (length rows) (min (length rows) (* (1+ number) step))))
                   (+ begin (* number seconds))
                   (+ begin (if last
                                (max end (* (+ number 1/10) seconds))
                                (* (1+ number) seconds)))))))

(defun interval-middle (interval)
  (/ (+ (interval-start interval) (interval-end interval)) 2))

(defun interval-rate (interval reader)
  "READER's count in INTERVAL, per second."
  (/ (funcall reader interval) (- (interval-end interval) (interval-start interval))))

(defun interval-time (interval)
  (format nil "~A to ~A" (page:seconds-tick (interval-start interval))
          (page:seconds-tick (interval-end interval))))

(defun interval-quantile (interval share)
  (let ((latency (interval-latency interval)))
    (and (plusp (load:histogram-count latency))
         (load:histogram-quantile latency share))))

;;; Scales

(defun time-scale (run)
  (page:linear-scale 0 (run-seconds-long run) :text #'page:seconds-tick))

(defun latency-scale (low high)
  "A logarithmic scale of latencies that includes LOW and HIGH, in nanoseconds."
  (page:log-scale (max 1 (* 9/10 low)) (max 2 (* 11/10 high)) :text #'page:duration-tick))

(defun rate-scale (values)
  (page:linear-scale 0 (* 11/10 (reduce #'max values :initial-value 1)) :text #'page:number-tick
                     :count 4))

;;; Charts over time

(defparameter *shown-lines* '(("p50" 1/2 "median") ("p90" 9/10 "90th")
                              ("p99" 99/100 "99th percentile") ("max" 1 "slowest"))
  "The lines of latency: class, share and name of each.")

(defun latency-title (interval)
  (format nil "~A: ~:[no call succeeded~;~:*~{~A ~A~^, ~}~]; ~A calls" (interval-time interval)
          (and (plusp (load:histogram-count (interval-latency interval)))
               (loop for (nil share name) in *shown-lines*
                     append (list name (page:duration-text (interval-quantile interval share)))))
          (page:count-text (interval-count interval))))

(defun latency-over-time (run intervals)
  (let* ((latency (load:run-latency run))
         (x (time-scale run))
         (lows (remove nil (mapcar (lambda (interval) (interval-quantile interval 1/2)) intervals)))
         (y (latency-scale (reduce #'min lows :initial-value (load:histogram-max latency))
                           (load:histogram-max latency))))
    (page:card
     "Latency over time"
     (list
      (page:chart
       (format nil "Latency over time: median ~A, 99th percentile ~A, slowest ~A."
               (page:duration-text (load:histogram-quantile latency 1/2))
               (page:duration-text (load:histogram-quantile latency 99/100))
               (page:duration-text (load:histogram-max latency)))
       (append
        (loop for (class share) in (reverse *shown-lines*)
              collect (page:line-layer
                       (loop for interval in intervals
                             collect (cons (interval-middle interval)
                                           (interval-quantile interval share)))
                       x y class))
        (list (page:title-layer (loop for interval in intervals
                                      collect (list (interval-start interval)
                                                    (interval-end interval)
                                                    (latency-title interval)))
                                x)))
       :x x :y y :height 230)
      (apply #'page:legend (loop for (class nil name) in *shown-lines*
                                 collect (cons class name)))))))

(defun heat-cells (intervals marks)
  "The cells of the heat map: in each of INTERVALS, the number of calls with a time between each two
neighbours in MARKS."
  (let* ((columns (loop for interval in intervals
                        collect (cons interval
                                      (bucket-counts (interval-latency interval) (rest marks)))))
         (most (loop for (nil . counts) in columns maximize (reduce #'max counts))))
    (loop for (interval . counts) in columns
          append (loop for (low high) on marks
                       for count in counts
                       when (plusp count)
                         collect (list (interval-start interval) (interval-end interval) low high
                                       (/ (log (1+ count)) (log (1+ (max 1 most))))
                                       (format nil "~A: ~A calls took ~A to ~A"
                                               (interval-time interval) (page:count-text count)
                                               (page:duration-text low)
                                               (page:duration-text high)))))))

(defun log-marks (low high steps)
  "The ends of STEPS steps from LOW to HIGH, each of which is the same multiple of the previous
end."
  (loop with ratio = (/ high low)
        for i from 0 to steps
        collect (* low (expt (float ratio 1d0) (/ i steps)))))

(defun heat-map (run intervals)
  (let* ((latency (load:run-latency run))
         (low (max 1 (* 99/100 (load:histogram-min latency))))
         (high (max (* 2 low) (* 101/100 (load:histogram-max latency))))
         (x (time-scale run))
         (y (page:log-scale low high :text #'page:duration-tick)))
    (page:card
     "How long calls took"
     (list
      (page:chart (format nil "Heat map of latencies over time, from ~A to ~A."
                          (page:duration-text (load:histogram-min latency))
                          (page:duration-text (load:histogram-max latency)))
                  (list (page:cell-layer (heat-cells intervals (log-marks low high *heat-rows*))
                                         x y))
                  :x x :y y :height 260)
      '(:p (:class "legend") (:span () "few " (:i (:class "key ramp")) "many calls"))))))

(defun throughput (run intervals)
  (let* ((x (time-scale run))
         (intended (load:run-intended-rps run))
         (rates (loop for interval in intervals
                      collect (cons (interval-middle interval)
                                    (interval-rate interval #'interval-count))))
         (y (rate-scale (cons (or intended 0) (mapcar #'cdr rates)))))
    (page:card
     "Calls a second"
     (list
      (page:chart (format nil "Calls a second over time, ~A on average."
                          (page:digits-text (rate run)))
                  (list (page:band-layer rates x y "ok") (page:line-layer rates x y "ok")
                        (if intended
                            (page:line-layer (list (cons 0 intended)
                                                   (cons (run-seconds-long run) intended))
                                             x y "dashed max")
                            (constantly nil))
                        (page:title-layer
                         (loop for interval in intervals
                               collect (list (interval-start interval) (interval-end interval)
                                             (format nil "~A: ~A a second, ~A sent, ~A received"
                                                     (interval-time interval)
                                                     (page:digits-text
                                                      (interval-rate interval #'interval-count))
                                                     (page:octets-text (interval-sent interval))
                                                     (page:octets-text
                                                      (interval-received interval)))))
                         x))
                  :x x :y y :height 170)
      (let ((ended '("ok" . "calls that ended")))
        (if intended
            (page:legend ended '("max" . "intended, on average"))
            (page:legend ended))))
     :half t)))

(defun failures (run intervals)
  "A card about the failures over time, or a card with the text that there were no failures."
  (let* ((x (time-scale run))
         (rates (loop for interval in intervals
                      collect (cons (interval-middle interval)
                                    (interval-rate interval #'interval-errors))))
         (y (rate-scale (mapcar #'cdr rates))))
    (page:card
     "Failures a second"
     (if (zerop (error-count run))
         '((:p (:class "good") "No call failed."))
         (list (page:chart (format nil "Failures a second over time, ~A in all."
                                   (page:count-text (error-count run)))
                           (list (page:band-layer rates x y "bad")
                                 (page:line-layer rates x y "bad"))
                           :x x :y y :height 170)
               (page:legend '("bad" . "calls that did not end with OK"))))
     :half t)))

(defun tool-lateness (run intervals)
  "A card about the lateness of the tool if RUN was at a rate; else nil."
  (when (plusp (load:histogram-count (load:run-lateness run)))
    (let* ((x (time-scale run))
           (most (load:histogram-max (load:run-lateness run)))
           (y (page:linear-scale 0 (max 1000 (* 11/10 most)) :text #'page:duration-tick :count 4))
           (points (loop for interval in intervals
                         collect (cons (interval-middle interval) (interval-lateness interval)))))
      (page:card
       "How late the tool was"
       (list (page:chart (format nil "The greatest lateness of the tool over time, at most ~A."
                                 (page:duration-text most))
                         (list (page:band-layer points x y "warn")
                               (page:line-layer points x y "warn"))
                         :x x :y y :height 170))
       :note (format nil "The greatest delay between the intended time of a call and its ~
                          beginning. All calls: ~A. Latency counts from the intended time, so ~
                          this is part of it."
                     (lateness-words run))
       :half t))))

(defun traffic (run intervals)
  (let* ((x (time-scale run))
         (lines (loop for (reader class) in (list (list #'interval-sent "p99")
                                                  (list #'interval-received "p50"))
                      collect (cons class
                                    (loop for interval in intervals
                                          collect (cons (interval-middle interval)
                                                        (interval-rate interval reader))))))
         (y (page:linear-scale 0 (* 11/10 (loop for (nil . points) in lines
                                                maximize (reduce #'max points :key #'cdr)))
                               :text #'page:octets-tick :count 4)))
    (page:card
     "Octets a second"
     (list (page:chart (format nil "Octets a second over time: ~A sent and ~A received in all."
                               (page:octets-text (load:run-octets-sent run))
                               (page:octets-text (load:run-octets-received run)))
                       (loop for (class . points) in lines
                             collect (page:line-layer points x y class))
                       :x x :y y :height 170)
           (page:legend '("p99" . "sent") '("p50" . "received")))
     :half t)))

;;; Distributions

(defun percentile-marks (latency x-low top y)
  "Vertical lines at the most important percentiles."
  (loop for name in '("p50" "p90" "p99" "p99.9")
        for value = (load:histogram-quantile latency (percentile name))
        collect (page:line-layer (list (cons value 0) (cons value top)) x-low y
                                 (format nil "~A dashed" (remove #\. name)))))

(defun distribution (run)
  (let* ((latency (load:run-latency run))
         (low (max 1 (* 99/100 (load:histogram-min latency))))
         (high (max (* 2 low) (* 101/100 (load:histogram-max latency))))
         (marks (log-marks low high *histogram-bars*))
         (counts (bucket-counts latency (rest marks)))
         (top (* 105/100 (reduce #'max counts)))
         (x (page:log-scale low high :text #'page:duration-tick))
         (y (page:linear-scale 0 top :text #'page:number-tick :count 4)))
    (page:card
     "Histogram"
     (list
      (page:chart (format nil "Histogram of the latencies of ~A calls."
                          (page:count-text (load:histogram-count latency)))
                  (cons (page:bar-layer
                         (loop for (from to) on marks
                               for count in counts
                               collect (list from to count
                                             (format nil "~A calls (~A) took ~A to ~A"
                                                     (page:count-text count)
                                                     (page:share-text
                                                      (/ count (load:histogram-count latency)))
                                                     (page:duration-text from)
                                                     (page:duration-text to))))
                         x y "ok")
                        (percentile-marks latency x top y))
                  :x x :y y :height 220)
      (page:legend '("ok" . "calls") '("p50" . "median") '("p90" . "90th") '("p99" . "99th")
                   '("p999" . "99.9th percentile")))
     :half t)))

(defun curve-points (latency nines)
  "Points (share . latency) of the percentiles of LATENCY, at equal distances on the scale with
NINES nines."
  (loop for i from 0 to 160
        for share = (- 1 (rational (expt 10d0 (- (* nines (/ i 160))))))
        collect (cons share (load:histogram-quantile latency share))))

(defun share-title (share latency)
  (format nil "~A % of the calls took at most ~A"
          (page:digits-text (* 100 share) :digits 6 :short t) (page:duration-text latency)))

(defun percentile-curve (run before)
  (let* ((latency (load:run-latency run))
         (old (and before (plusp (load:histogram-count (load:run-latency before)))
                   (load:run-latency before)))
         (nines (max 2 (min 5 (floor (log (load:histogram-count latency) 10)))))
         (x (page:tail-scale nines))
         (both (remove nil (list latency old)))
         (y (latency-scale (reduce #'min both :key #'load:histogram-min)
                           (reduce #'max both :key #'load:histogram-max))))
    (page:card
     "Percentiles"
     (list
      (page:chart (format nil "Latency by percentile: ~{~A ~A~^, ~}."
                          (loop for name in *told-percentiles*
                                append (list name (page:duration-text
                                                   (figure-value name run)))))
                  (append (when old
                            (list (page:line-layer (curve-points old nines) x y "before")))
                          (let ((points (curve-points latency nines)))
                            (list (page:band-layer points x y "ok")
                                  (page:line-layer points x y "ok")
                                  (page:title-layer
                                   (loop for ((from . nil) (to . value)) on points
                                         while to
                                         collect (list from to (share-title to value)))
                                   x))))
                  :x x :y y :height 220)
      (if old
          (page:legend '("ok" . "this run") '("before" . "before"))
          (page:legend '("ok" . "share of the calls that took at most this long"))))
     :half t)))

;;; Tables

(defun share-bar (share class)
  `(:span (:class ,(format nil "bar ~A" class)
           :style ,(format nil "width:~,1F%" (* 100 (max 0 (min 1 share)))))))

(defun latency-columns ()
  (append (loop for name in *row-percentiles* collect (list name :number))
          '(("max" :number))))

(defun status-table (run)
  (page:card
   "Statuses"
   (list
    (page:table
     `(("Status") ("calls" :number) ("share" :number) ("" :wide) ,@(latency-columns))
     (loop for row in (load:run-statuses run)
           for share = (/ (load:status-row-count row) (max 1 (load:run-count run)))
           for bad = (and (plusp (load:status-row-code row)) "bad")
           collect `((:cell ,bad ,(load:status-row-name row))
                     ,(page:count-text (load:status-row-count row)) ,(page:share-text share)
                     (:cell "bar-cell" ,(share-bar share bad))
                     ,@(latency-cells (load:status-row-latency row))))
     :label "Statuses")
    (when (error-rows run)
      `((:h3 () "Messages of failures")
        ,(page:table '(("calls" :number) ("message" :text))
                     (loop for (text . count) in (error-rows run)
                           collect (list (page:count-text count) text))
                     :label "Messages of failures"))))))

(defun stage-table (run)
  (when (load:run-stages run)
    (let ((sum (max 1 (loop for (nil . histogram) in (load:run-stages run)
                            sum (load:histogram-sum histogram)))))
      (page:card
       "Stages of calls"
       (list (page:table
              `(("Stage") ("share of the time" :number) ("" :wide) ,@(latency-columns))
              (loop for (name . histogram) in (load:run-stages run)
                    for share = (/ (load:histogram-sum histogram) sum)
                    collect `(,name ,(page:share-text share)
                                    (:cell "bar-cell" ,(share-bar share name))
                                    ,@(latency-cells histogram)))
              :label "Stages of calls"))
       :note "In the tool, before a request is on its way (queue, connect, send), and after
that, until the answer is there (wait)."))))

(defun share-table (title column rows)
  "A card with the title TITLE and a table of ROWS, SHARE-ROWs of a run; nil if there are fewer than
two. COLUMN is the heading of the column with their names."
  (when (rest rows)
    (page:card
     title
     (list (page:table `((,column) ("calls" :number) ("failed" :number) ,@(latency-columns))
                       (loop for row in rows
                             collect `(,(load:share-row-name row)
                                       ,(page:count-text (load:share-row-count row))
                                       (:cell ,(and (plusp (load:share-row-errors row)) "bad")
                                              ,(page:count-text (load:share-row-errors row)))
                                       ,@(latency-cells (load:share-row-latency row))))
                       :label title)))))

(defun round-table (run)
  (when (rest (load:run-rounds run))
    (page:card
     "Rounds"
     (list (page:table `(("Round" :number) ("calls" :number) ("a second" :number)
                         ("failed" :number) ,@(latency-columns))
                       (loop for round in (load:run-rounds run)
                             for number from 1
                             collect `(,number ,(page:count-text (load:run-count round))
                                               ,(page:digits-text (rate round))
                                               ,(page:count-text (error-count round))
                                               ,@(latency-cells (load:run-latency round))))
                       :label "Rounds")))))

(defun verdict-class (comparison)
  (ecase (comparison-verdict comparison)
    (:better "good") (:worse "bad") ((:unknown :unclear) "warn") (:same nil)))

(defun comparison-table (before after)
  "A card with the figures of the runs BEFORE and AFTER side by side."
  (page:card
   "Compared with before"
   (list
    (page:table '(("Figure") ("before" :number) ("after" :number) ("difference" :number)
                  ("noise" :number :wide) (""))
                (loop for comparison in (compare-runs before after)
                      for unit = (comparison-unit comparison)
                      for class = (verdict-class comparison)
                      collect (list (comparison-name comparison)
                                    (value-text unit (comparison-before comparison))
                                    (value-text unit (comparison-after comparison))
                                    (list :cell class (difference-text comparison))
                                    (noise-text comparison)
                                    (list :cell class
                                          (verdict-text (comparison-verdict comparison)))))
                :label "Figures before and after")
    (let ((words (loop for comparison in (compare-runs before after)
                       when (eq :unclear (comparison-verdict comparison))
                         collect (comparison-words comparison)
                       when (outlier-words comparison) collect (outlier-words comparison))))
      (when words `(:ul () ,@(loop for text in words collect `(:li () ,text)))))
    (when-let ((differences (option-differences before after)))
      `(:p (:class "note warn")
        ,(format nil "The runs differ in ~{~{~A (~A and ~A)~}~^, ~}." differences))))
   :note (noise-note before after)))

(defun run-facts (run)
  (page:card "How it was measured"
             (list (page:facts (loop for (name text) in (load-facts run)
                                     collect (list (string-right-trim ":" name) text)))
                   `(:details () (:summary () "All options")
                              (:pre () ,(pretty-json (load:run-options run)))))))

;;; The page

(defun figure-tiles (run)
  (flet ((tile (title name &optional class)
           (list title
                 (value-text (figure-unit (find-figure name)) (figure-value name run))
                 class)))
    (page:tiles
     (list (list "Calls" (page:count-text (load:run-count run)))
           (tile "Calls a second" "rps")
           (tile "Failed" "error-ratio" (if (zerop (error-count run)) "good" "bad"))
           (tile "Median" "p50")
           (tile "99th percentile" "p99")
           (tile "99.9th percentile" "p99.9")
           (tile "Slowest" "max")
           (tile "Tool's CPU a call" "cpu-per-call")))))

(defun warnings-of (run)
  (loop for text in (list (and (load:run-limited run)
                               (format nil "The server's speed was not the only limit of ~
                                            this run: ~A."
                                       (string-right-trim "." (load:run-limited run))))
                          (and (under-way-words run)
                               (format nil "Not in the latencies: ~A, under way at the end."
                                       (under-way-words run)))
                          (and (ended-words run)
                               (format nil "This is not the whole run: ~A." (ended-words run))))
        when text collect `(:section (:class "card banner") (:strong () ,text))))

(defun page-title (run)
  (or (load:run-name run) (load:run-method run)))

(defun page-lead (run)
  (format nil "~@[~A, ~]~A on ~A, for ~A" (and (load:run-name run) (load:run-method run))
          (if (eq :open (load:run-loop-kind run))
              (format nil "~A calls a second" (value-text :rate (load:run-intended-rps run)))
              "one call after another")
          (load:run-target run)
          (format nil "~A~:[, ~A~;~]" (page:duration-text (load:run-duration-ns run))
                  (zerop (load:run-started-unix-ns run))
                  (substitute #\Space #\T (second-text (load:run-started-unix-ns run))))))

(defun write-html (run before stream)
  "Write to STREAM a page about RUN, compared with the run BEFORE unless that is nil."
  (let ((intervals (intervals run))
        (answered (plusp (load:histogram-count (load:run-latency run)))))
    (page:write-page
     stream (page-title run) (page-lead run)
     (list (warnings-of run)
           (figure-tiles run)
           (when before (comparison-table before run))
           (when answered
             (list (when intervals
                     (list (latency-over-time run intervals) (heat-map run intervals)))
                   (distribution run)
                   (percentile-curve run before)))
           (when intervals
             (list (throughput run intervals)
                   (failures run intervals)
                   (traffic run intervals)
                   (tool-lateness run intervals)))
           (status-table run) (stage-table run)
           (share-table "Methods" "Method" (load:run-methods run))
           (share-table "Backends" "Backend" (load:run-backends run)) (round-table run)
           (run-facts run)))))
