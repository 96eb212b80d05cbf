(in-package #:clgrpc.tests.report)

(test every-format-is-written
  (let ((run (sample-run :seconds 1)))
    (dolist (format report:*formats*)
      (is (plusp (length (report-text format run))) "~A" format))
    (is (equalp (base:parse-json (report-text :json run))
                (base:parse-json (report-text :pretty run))))
    (is (= 1 (count #\Newline (report-text :json run))))))
