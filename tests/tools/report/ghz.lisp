;;;; What ghz's own reader makes of our reports: a Go program with ghz's types, printers and web
;;;; API.

(in-package #:clgrpc.tests.report)

(defun seen-by-ghz (run)
  "The lines that ghz's reader prints of RUN's report, and its exit code."
  (uiop:with-temporary-file (:stream stream :pathname path :external-format :utf-8)
    (report:write-report :json run stream)
    (close stream)
    (multiple-value-bind (code lines)
        (support:run-to-end (support:need-peer "ghz-reader") (list (uiop:native-namestring path)))
      (values lines code))))

(test ghz-reads-it
  (let* ((run (sample-run :name "a run" :seconds 10))
         (latency (load:run-latency run)))
    (multiple-value-bind (lines code) (seen-by-ghz run)
      (is (eql 0 code))
      (is (equal
           `(,(format nil "count 5000 total 10000000000 average ~D fastest ~D slowest ~D ~
                          rps 500.000"
                      (round (load:histogram-mean (load:run-all-latency run)))
                      (load:histogram-min latency) (load:histogram-max latency))
             ,@(loop for percentage in '(10 25 50 75 90 95 99)
                     collect (format nil "percentage ~D ~D" percentage
                                     (round (load:histogram-quantile latency
                                                                     (/ percentage 100)))))
             "histogram 11 4970" "end normal date 2026-11-01T00:00:10Z"
             "options rps 500 total 5000 insecure true"
             "stored 5000 fail details 2 buckets 11"
             "detail 1793491200123638023 181234 OK \"\""
             ,(format nil "detail 1793491201005000000 5000000 Unavailable ~A"
                      "\"rpc error: code = Unavailable desc = <b>gone</b>, \\\"away\\\"\""))
           lines)))))

(test ghz-reads-a-run-of-which-nothing-succeeded
  (multiple-value-bind (lines code)
      (seen-by-ghz (load:make-run :duration-ns 1 :ended-early :interrupted))
    (is (eql 0 code))
    (is (member "histogram 0 0" lines :test #'string=))
    (is (member "end cancel date 1970-01-01T00:00:00Z" lines :test #'string=))))

(test an-option-that-ghz-cannot-read-is-ours
  (let* ((run (load:make-run :options '(("rps" . 0.5d0) ("total" . 5) ("loops" . 2)
                                        ("insecure" . "yes") ("metadata" ("a" . "b")))))
         (json (report:run-json run)))
    (flet ((options (object) (cdr (assoc "options" object :test #'string=))))
      (is (eql 5 (cdr (assoc "total" (options json) :test #'string=))))
      (is (equal '(("a" . "b")) (cdr (assoc "metadata" (options json) :test #'string=))))
      (is (eq :false (cdr (assoc "insecure" (options json) :test #'string=))))
      (is (null (assoc "rps" (options json) :test #'string=)))
      (is (equal '(("rps" . 0.5d0) ("loops" . 2) ("insecure" . "yes"))
                 (options (cdr (assoc "clgrpc" json :test #'string=))))))))

(test buckets-as-ghz-counts-them
  (let* ((latency (histogram-of '(100 110 150 200)))
         (buckets (report::ghz-histogram latency)))
    (is (= 11 (length buckets)))
    (is (equal '(1 1 0 0 0 1 0 0 0 0 1)
               (map 'list (lambda (bucket) (cdr (assoc "count" bucket :test #'string=))) buckets)))
    (is (= 1d-7 (cdr (assoc "mark" (aref buckets 0) :test #'string=))))
    (is (= 2d-7 (cdr (assoc "mark" (aref buckets 10) :test #'string=))))
    (is (= 1/4 (rational (cdr (assoc "frequency" (aref buckets 10) :test #'string=)))))))

(test errors-add-up
  (is (equal '(("rpc error: code = Unavailable desc = <b>gone</b>, \"away\"" . 59)
               ("rpc error: code = Unavailable, other messages" . 1))
             (report::error-rows (sample-run :seconds 20)))))
