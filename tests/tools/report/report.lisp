(in-package #:clgrpc.tests.report)

(test every-format-is-written
  (let ((run (sample-run :seconds 1)))
    (support:check-record 'report-csv (report-text :csv run))
    (support:check-record 'report-json (report-text :json run))
    (support:check-record 'report-summary (report-text :summary run)) ; the page is another test's
    (is (equalp (base:parse-json (report-text :json run))
                (base:parse-json (report-text :pretty run))))
    (is (= 1 (count #\Newline (report-text :json run))))))
