;;;; The choice of a report by the name of its format.

(in-package #:clgrpc.report)

(defparameter *formats* '(:summary :json :pretty :csv :html)
  "The formats of WRITE-REPORT.")

(defun write-report (format run stream &key before)
  "Write to STREAM, a character stream, a report of RUN in FORMAT, one of *FORMATS*. With BEFORE,
another run, the reports but csv compare them."
  (ecase format
    (:summary (write-summary run stream)
     (when before (write-comparison before run stream)))
    (:json (write-json (run-json run :before before) :stream stream)
     (terpri stream))
    (:pretty (write-string (pretty-json (run-json run :before before)) stream)
     (terpri stream))
    (:csv (write-csv run stream))
    (:html (write-html run before stream))))
