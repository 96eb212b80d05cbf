(in-package #:clgrpc.tests.report)

(defun report-text (format run &key before)
  (with-output-to-string (stream)
    (report:write-report format run stream :before before)))

(defun lines (text) (uiop:split-string text :separator '(#\Newline)))

(defun check-parts (text &rest parts)
  (dolist (part parts) (is (search part text) "~S is missing in~%~A" part text)))

(test the-summary
  (let ((text (report-text :summary (sample-run :name "it" :seconds 10))))
    (check-parts text
                 (format nil "~%Summary:~%  Name:          it~%  Count:         5000~%  ~
                              Total:         10.0 s~%")
                 (format nil "  Requests/sec:  500.00~%")
                 (format nil "~%Response time histogram (ms):~%")
                 (format nil "~%Latency distribution:~%     10 % in  ")
                 (format nil "~%  99.99 % in  ")
                 (format nil "~%Status code distribution:~%  [OK]           4970  responses~%")
                 (format nil "~%Error distribution:~%  [29]  rpc error: code = Unavailable desc = ")
                 "open, 500 a second intended" "205 kB, 41 B a call" "7.00 µs a call"
                 "  neither the tool nor streams or workers" (format nil "~%Stages of calls:~%")
                 "127.0.0.1:50052")
    (is (= 11 (count-if (lambda (line) (search "]" (subseq line 0 (or (search "|" line) 0))))
                        (lines text))))
    (is (search "|∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎∎" text) "the longest bar has 40")))

(test a-summary-says-what-was-wrong
  (let ((run (load:make-run :count 2 :duration-ns 1000000000 :limited "the core was full"
                            :ended-early :interrupted :under-way 132
                            :oldest-under-way-ns 5900000000 :burst 5
                            :loop-kind :open
                            :statuses (list (load:make-status-row
                                             :name "Internal" :code 13 :count 2
                                             :messages `((,(format nil "a~Cb" #\Escape)
                                                          . 2)))))))
    (check-parts (report-text :summary run)
                 "  the core was full" "interrupted before all calls"
                 "[under way at the end]  132 calls, the oldest for 5.90 s"
                 "in bursts of 5: latencies have up to 4 times of service in them"
                 "[2]  rpc error: code = Internal desc = a?b")
    (is (null (search "Latency distribution" (report-text :summary run))))
    (loop for (ended text) in '((:terminated "ended by SIGTERM before all calls")
                                (:deadline "the time was over before all calls"))
          do (check-parts (report-text :summary (load:make-run :count 2 :duration-ns 1000000000
                                                               :ended-early ended))
                          text))))

(test rounds-are-told
  (check-parts (report-text :summary (rounds-of 180000 '(1 2)))
               (format nil "~%Rounds:~%") "calls/s"))

(test one-slow-call-does-not-hide-the-rest
  (let* ((latency (histogram-of (cons 900000000 (loop for i below 5000 collect (+ 1000000 i)))))
         (counts (report::bucket-counts latency (report::histogram-marks latency))))
    (is (= 1 (first (last counts))))
    (is (= 5001 (reduce #'+ counts)))))

(defun run-of-latencies (values)
  (let ((latency (histogram-of values)))
    (load:make-run :count (length values) :duration-ns 1000000000 :latency latency
                   :all-latency latency)))

(test the-least-value-is-in-the-first-bar
  (let ((latency (histogram-of (cons 1000001 (loop for i below 100
                                                collect (+ 1003000 (* i 9000)))))))
    (let ((counts (report::bucket-counts latency (report::histogram-marks latency))))
      (is (plusp (first counts)))
      (is (= 101 (reduce #'+ counts))))))

(test calls-that-took-as-long-have-one-bar
  (let ((text (report-text :summary (run-of-latencies '(701480001 701480002 701480003)))))
    (check-parts text (format nil "histogram (ms):~%  701.480  [3]  |∎"))
    (is (null (search "[0]" text)))))

(test a-summary-without-success
  "has no least and no greatest latency, nor octets of each of no calls."
  (let ((text (report-text :summary (load:make-run :count 0 :duration-ns 1000 :octets-sent 3920
                                                   :connections 1))))
    (check-parts text "Slowest:       –" "Fastest:       –" "Average:       –" "1 asked for"
                 (format nil "Sent:         3.92 kB~%"))
    (is (null (search "a call" text)))
    (is (null (search "0 made" text)) "that is not known")
    (is (null (search "Received" text)))
    (is (null (search "Status code" text)))))

(test calls-as-csv
  (is (string= (format nil "duration (ms),status,error~%0.1812,OK,~%5.0000,Unavailable,~A~%"
                       "\"rpc error: code = Unavailable desc = <b>gone</b>, \"\"away\"\"\"")
               (report-text :csv (sample-run :seconds 1)))))

(test comparisons-are-told
  (let ((text (report-text :summary (rounds-of 180000 '(1 2 3))
                           :before (rounds-of 300000 '(4 5 6)))))
    (check-parts text (format nil "~%Comparison:~%  before:  127.0.0.1:50051")
                 "p50 fell from " "): better" "Medians of 3 and 3 rounds"))
  (check-parts (with-output-to-string (stream)
                 (report:write-comparison (sample-run :seconds 2 :rate 100)
                                          (sample-run :seconds 2 :rate 200) stream))
               "They differ in rps: 100 and 200." "unknown with one round"))

(test a-comparison-does-not-say-that-nothing-has-changed
  "It says that it is unclear, which is another thing, and which round was disturbed."
  (let ((text (with-output-to-string (stream)
                (report::write-comparisons
                 (list (report:compare-values "p50" :time :less '(100 300 90) '(50 280 40)))
                 stream))))
    (check-parts text "unclear" "rounds would decide")
    (is (null (search "changed" text)))))
