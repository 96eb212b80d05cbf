(in-package #:clgrpc.tests.report)

(defun json-text (run)
  (base:write-json (report:run-json run)))

(test what-is-written-is-read
  (let* ((round (sample-run :seconds 2 :seed 3))
         (run (sample-run :seconds 8 :name "it" :rounds (list round round)))
         (read (report:parse-run (json-text run))))
    (is (string= (json-text run) (json-text read)))
    (is (equalp (load:run-samples run) (load:run-samples read)))
    (dolist (name '("p50" "p99" "p99.99" "max" "min" "mean" "errors" "rps" "cpu-per-call"))
      (is (= (report:figure-value name run) (report:figure-value name read)) "~A" name))
    (is (= 2 (length (load:run-rounds read))))
    (is (= 8 (length (load:run-seconds read))))
    (is (eq :open (load:run-loop-kind read)))
    (is (equal (load:run-tags run) (load:run-tags read)))))

(test runs-of-ghz-are-read
  (let ((run (report:parse-run "{\"count\":3,\"total\":1000000000,\"endReason\":\"timeout\",
\"options\":{\"call\":\"a.B.C\",\"host\":\"h:1\"},\"errorDistribution\":{\"x\":1},
\"statusCodeDistribution\":{\"OK\":2,\"NotFound\":1},\"tags\":null,
\"details\":[{\"timestamp\":\"2026-01-01T00:00:00Z\",\"latency\":1000,\"status\":\"OK\"},
{\"timestamp\":\"2026-01-01T00:00:00Z\",\"latency\":3000,\"error\":\"\",\"status\":\"OK\"},
{\"latency\":9000,\"error\":\"x\",\"status\":\"NotFound\"}]}")))
    (is (= 3000 (report:figure-value "max" run)))
    (is (= 2000 (report:figure-value "mean" run)))
    (is (= 1/3 (report:figure-value "error-ratio" run)))
    (is (= 3 (report:figure-value "rps" run)))
    (is (eq :deadline (load:run-ended-early run)))
    (is (= 5 (load:status-row-code (find "NotFound" (load:run-statuses run)
                                         :key #'load:status-row-name :test #'string=))))))

(test details-of-ghz-are-read
  "What ghz tells of a call is when it ended, in its own zone; of many calls some are kept."
  (flet ((samples (format &rest arguments)
           (load:run-samples
            (report:parse-run (format nil "{\"count\":1,\"total\":1,\"details\":[~?]}" format
                                      arguments)))))
    (let ((sample (first (samples "{\"timestamp\":\"2026-11-01T02:00:00.5+02:00\",
\"latency\":1500000000,\"error\":\"rpc error: code = NotFound desc = no\",
\"status\":\"NotFound\"}"))))
      (is (= 1793491199000000000 (load:sample-unix-ns sample)))
      (is (= 1500000000 (load:sample-latency-ns sample)))
      (is (string= "NotFound" (load:sample-status sample)))
      (is (string= "no" (load:sample-error sample))))
    (let ((many (samples "~{{\"timestamp\":\"1970-01-01T00:00:~2,'0D.~6,'0DZ\",\"latency\":1,~
                          \"status\":\"OK\"}~^,~}"
                         (loop for i from 9999 downto 0
                               collect (floor i 200) collect (mod i 200)))))
      (is (= 3334 (length many)))
      (is (apply #'< (mapcar #'load:sample-unix-ns many))))))

(test what-is-no-report-is-refused
  (loop for (text part) in `(("" "Invalid JSON") ("{" "Invalid JSON") ("[]" "\"total\"")
                             ("{}" "\"total\"") ("{\"clgrpc\":{\"version\":2}}" "later version")
                             ("{\"clgrpc\":{\"version\":1}}" "\"target\"")
                             ("{\"clgrpc\":5}" "\"clgrpc\"")
                             ("{\"total\":5,\"count\":1,\"details\":[{\"latency\":-1}]}"
                              "\"latency\"")
                             ("{\"total\":5,\"count\":4611686018427387904}" "\"count\"")
                             ("{\"total\":1e30,\"count\":1}" "\"total\"")
                             ("{\"total\":10000000000000000000,\"count\":1}" "\"total\"")
                             ("{\"total\":5,\"count\":1,\"details\":[{\"latency\":1,
                               \"status\":\"OK\",\"timestamp\":\"noon\"}]}"
                              "\"noon\" is not a time"))
        do (is (search part (handler-case (progn (report:parse-run text) "")
                              (report:unreadable-run (error) (princ-to-string error))))
               "~S" text))
  (is (search "/nowhere/x.json" (handler-case (report:read-run-file "/nowhere/x.json")
                                  (report:unreadable-run (error) (princ-to-string error))))))

(test broken-reports-are-refused-and-nothing-else
  ;; each octet of a report changed, one after another, a few hundred of them
  (let* ((text (json-text (sample-run :seconds 1 :rate 20 :failures 1)))
         (state (sb-ext:seed-random-state 7)))
    (dotimes (i 300)
      (let ((broken (copy-seq text)))
        (setf (char broken (random (length text) state)) (char "\"{}[],:x9-" (random 10 state)))
        (handler-case (report:parse-run broken)
          (report:unreadable-run () nil))))
    (pass)))
