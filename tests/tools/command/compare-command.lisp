;;;; `compare`, of reports in files.

(in-package #:clgrpc.tests.tools)

(defun call-with-report (function median-ns seeds)
  "Call FUNCTION with the path of a file that has the report of a run of several rounds, one for
each of SEEDS, with latencies about MEDIAN-NS."
  (flet ((sample (seed rounds)
           (clgrpc.tests.report:sample-run :seconds 3 :median-ns median-ns :seed seed
                                           :rounds rounds)))
    (uiop:with-temporary-file (:stream stream :pathname path :type "json" :external-format :utf-8)
      (clgrpc.report:write-report
       :json (sample 1 (loop for seed in seeds collect (sample seed '()))) stream)
      (close stream)
      (funcall function (uiop:native-namestring path)))))

(defun check-comparison (slow fast)
  "Check what is said of the reports in the files SLOW and FAST."
  (multiple-value-bind (code output) (run-line "compare" slow fast)
    (is (= 0 code))
    (is (search "p50 fell from " output))
    (is (search "%): better" output)))
  (is (= 0 (run-line "compare" slow fast "--fail-if-worse")))
  (fails-p 1 "p50 rose from " "compare" fast slow "--fail-if-worse")
  (multiple-value-bind (code output) (run-line "compare" slow fast "--format" "html")
    (is (= 0 code))
    (is (search "Compared with before" output))))

(test compare-reports
  (call-with-report (lambda (slow)
                      (call-with-report (lambda (fast) (check-comparison slow fast))
                                        180000 '(4 5 6)))
                    300000 '(1 2 3)))

(test compare-does-not-pass-what-it-does-not-know
  "Rounds that differ among themselves by half hide a change of 5 %, which has an exit code of its
own."
  (call-with-reports
   '(200000 290000 350000) '(210000 280000 330000)
   (lambda (before after)
     (fails-p 5 "unclear, the noise is ±" "compare" before after "--fail-if-worse")
     (multiple-value-bind (code output) (run-line "compare" before after)
       (is (= 0 code))
       (is (search "rounds would decide" output))))))

(test compare-does-not-pass-single-rounds
  "Nothing is known of their noise, so a figure that is ten times as bad is not passed."
  (call-with-report
   (lambda (before)
     (call-with-report
      (lambda (after)
        (fails-p 5 "noise is unknown with one round" "compare" before after "--fail-if-worse")
        (fails-p 5 "measure both with --rounds 5" "compare" before after "--fail-if-worse")
        (is (= 0 (run-line "compare" before after)))
        (is (= 0 (run-line "compare" before before "--fail-if-worse")) "nothing differs"))
      2000000 '()))
   200000 '()))

(defun call-with-reports (before after function)
  "Call FUNCTION with the paths of two reports, whose rounds have the medians BEFORE and AFTER."
  (flet ((call-with (medians function)
           (let ((rounds (loop for median in medians
                               for seed from 1
                               collect (clgrpc.tests.report:sample-run
                                        :seconds 3 :median-ns median :seed seed))))
             (uiop:with-temporary-file (:stream stream :pathname path :type "json"
                                        :external-format :utf-8)
               (clgrpc.report:write-report
                :json (clgrpc.tests.report:sample-run :seconds 3 :rounds rounds) stream)
               (close stream)
               (funcall function (uiop:native-namestring path))))))
    (call-with before (lambda (old) (call-with after (lambda (new) (funcall function old new)))))))

(test compare-as-json
  (call-with-report
   (lambda (one)
     (multiple-value-bind (code output) (run-line "compare" one one "-O" "json")
       (is (= 0 code))
       (is (equal '("before" "after" "figures" "options" "note")
                  (mapcar #'car (base:parse-json output))))))
   300000 '(1 2)))

(defun profile-text (ns)
  "The least that a profile may say, of NS of CPU, as JSON."
  (base:write-json `(("clgrpcProfile" . 1) ("version" . "0")
                     ("cpu" ("kernelNs" . ,ns) ("seconds" . 1) ("calls" . 1000) ("samples" . 4000)
                            ("sampledNs" . ,ns) ("betweenNs" . 0) ("slept" . 1) ("preempted" . 1)
                            ("explained" . 1) ("frames" . 1) ("unknownFrames" . 0)
                            ("periodNs" . 250000) ("source" . "perf")
                            ("areas" . #((("name" . "http2") ("ns" . ,ns) ("share" . 1))))
                            ("phases" . #()) ("functions" . #()) ("threads" . #())
                            ("userFunctions" . #((("name" . "shop::find-book") ("ns" . 1000000)
                                                  ("wholeNs" . ,ns) ("share" . 1))))))))

(test a-profile-lists-the-users-functions-with-their-callees
  (let ((text (with-output-to-string (stream)
                (clgrpc.profile:write-profile
                 (clgrpc.profile::parse-profile (profile-text 500000000)) stream))))
    (is (search "function of yours" text))
    (let ((line (find "shop::find-book" (uiop:split-string text :separator '(#\Newline))
                      :test #'search)))
      (is (search "500.0" line))
      (is (search "1.0" line)))))

(test compare-profiles
  (call-with-file
   (lambda (before)
     (call-with-file
      (lambda (after)
        (multiple-value-bind (code output) (run-line "compare" before after)
          (is (= 0 code))
          (is (search "http2" output))
          (is (search "less" output)))
        (is (= 0 (run-line "compare" before after "--format" "json")))
        (fails-p 2 "about runs" "compare" before after "--fail-if-worse")
        (call-with-report (lambda (run) (fails-p 2 "one file is a run" "compare" before run))
                          300000 '(1)))
      (profile-text 500000000)))
   (profile-text 1000000000)))

(test compare-what-is-no-report
  (fails-p 2 "cannot be read" "compare" "/nowhere/a.json" "/nowhere/b.json")
  (fails-p 2 "is not the report of a run" "compare" *route-guide-proto* *route-guide-proto*))
