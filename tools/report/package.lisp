;;;; Reports about runs of `clgrpc load`: as ghz writes them and as a page, comparisons of two runs,
;;;; conditions under which a run is a failure.

(defpackage #:clgrpc.report
  (:use #:cl #:clgrpc.base)
  (:import-from #:alexandria #:if-let #:when-let)
  (:local-nicknames (#:load #:clgrpc.load) (#:page #:clgrpc.page)
                    (#:protobuf #:clgrpc.protobuf))
  (:export
   ;; ghz.lisp
   #:object
   ;; figure.lisp
   #:figure-value
   ;; report-condition.lisp
   #:parse-conditions #:broken-conditions #:condition-syntax-error
   ;; run-json.lisp
   #:run-json
   ;; run-reader.lisp
   #:parse-run #:read-run-file #:unreadable-run #:error-reason
   ;; significance.lisp
   #:mean #:calm-half #:noise
   ;; comparison.lisp
   #:comparison #:compare-values #:compare-runs #:comparison-words #:comparison-name
   #:comparison-verdict #:unclear-p
   #:write-comparison #:runs-comparison-json
   ;; report-page.lisp
   #:verdict-class
   ;; report.lisp
   #:*formats* #:write-report))
