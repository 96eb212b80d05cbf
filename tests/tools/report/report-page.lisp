;;;; The page, and what a browser shows of it. With CLGRPC_PICTURES it makes the pictures of
;;;; doc/tools/load.md.

(in-package #:clgrpc.tests.report)

(test the-page-has-it-all
  (let ((text (report-text :html (sample-run :seconds 4 :limited "the core was <full>")
                           :before (sample-run :seed 2 :seconds 4 :median-ns 300000))))
    (support:check-record 'report-page text)
    (is (null (search "<b>gone" text)))
    (is (null (search "<script" text)))))

(test a-page-of-a-run-without-calls
  (is (search "</html>" (report-text :html (load:make-run :method "a.B/C"))))
  (is (search "</html>" (report-text :html (sample-run :seconds 1 :rate 1 :failures 1)))))

(test a-long-run-is-put-together
  (let* ((run (sample-run :seconds 1000 :rate 1 :failures 0))
         (intervals (report::intervals run)))
    (is (<= (length intervals) 120))
    (is (= 1000 (reduce #'+ intervals :key #'report::interval-count)))
    (is (= 0 (report::interval-start (first intervals))))
    (is (= 1000 (report::interval-end (first (last intervals)))))
    (is (every (lambda (a b) (= (report::interval-end a) (report::interval-start b)))
               intervals (rest intervals)))))

(test what-is-left-at-the-end-is-no-interval-of-its-own
  (let ((run (sample-run :seconds 5 :rate 10 :failures 0)))
    (setf (load:run-duration-ns run) 4050000000)
    (is (= 4 (length (report::intervals run))))
    (is (= 50 (reduce #'+ (report::intervals run) :key #'report::interval-count)))))

(test rounds-follow-each-other
  "Each has its own time, however many seconds it began."
  (flet ((round-of (seconds)
           (let ((run (sample-run :seconds (ceiling seconds) :rate 10 :failures 0)))
             (setf (load:run-duration-ns run) (* seconds 1000000000))
             run)))
    (let ((intervals (report::intervals (load:merge-rounds (list (round-of 1/2) (round-of 201/100)
                                                                 (round-of 3/4))))))
      (is (equal '((0 1/2) (1/2 3/2) (3/2 251/100) (251/100 326/100))
                 (loop for interval in intervals
                       collect (list (report::interval-start interval)
                                     (report::interval-end interval)))))
      (is (equal '(10 10 20 10) (mapcar #'report::interval-count intervals))))))

(defun line-height (text class)
  "The y at which the first line of CLASS in TEXT, a page from some chart on, begins; 0 is the top."
  (let* ((path (search (format nil "class=\"line ~A\"" class) text))
         (x (search "d=\"M" text :start2 path)))
    (parse-integer text :start (1+ (position #\Space text :start x)) :junk-allowed t)))

(test a-legend-names-the-lines-of-octets
  "Of a run that receives nothing the line that the legend calls received is the lower one."
  (let ((run (sample-run :seconds 5)))
    (map nil (lambda (row) (setf (load:second-row-received-octets row) 0)) (load:run-seconds run))
    (let* ((text (report-text :html run))
           (chart (subseq text (search "Octets a second over time" text))))
      (flet ((height-of (name)
               (let* ((end (search (format nil "\"></i>~A<" name) chart))
                      (start (+ (length "key ") (search "key " chart :end2 end :from-end t))))
                 (line-height chart (subseq chart start end)))))
        (is (< (height-of "sent") (height-of "received")))))))

(test a-browser-shows-the-report
  (let ((seen (clgrpc.tests.page:look-with-browser
               (report-text :html (sample-run :name "The greeter, after" :seconds 60 :rate 2000)
                            :before (sample-run :seed 2 :seconds 60 :rate 2000 :median-ns 300000))
               "load-report")))
    (when seen
      (clgrpc.tests.page:check-page seen)
      (is (= 8 (length (cdr (assoc "charts" seen :test #'string=)))))
      (check-parts (cdr (assoc "text" seen :test #'string=)) "99th percentile" "<b>gone</b>"
                   "2,000 calls a second on 127.0.0.1:50051"))))
