(in-package #:clgrpc.tests.report)

(test every-format-is-written
  (let ((run (sample-run :seconds 1)))
    (dolist (format '(:csv :json :summary)) ; the page is another test's
      (support:check-record (format nil "report-~A" format) (report-text format run)))
    (is (equalp (base:parse-json (report-text :json run))
                (base:parse-json (report-text :pretty run))))
    (is (= 1 (count #\Newline (report-text :json run))))))
