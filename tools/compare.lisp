;;;; The command `compare`: two reports of `clgrpc load`, or of ghz, side by side.

(in-package #:clgrpc.tools)

(defun parse-run-argument (path)
  "The run whose report is in the file PATH."
  (handler-case (report:read-run-file path)
    (report:unreadable-run (error) (refuse "~A" error))))

(define-command "compare"
    (((before "BEFORE.json" #'parse-run-argument
              "A report that `clgrpc load -O json` or ghz has written.")
      (after "AFTER.json" #'parse-run-argument "Another one."))
     ((format "summary|html" (choice-parser :summary :html) :summary
         "Tell the differences, or write a page about AFTER with them.")
      (fail-if-worse "[BOOLEAN]" #'parse-boolean nil
                     "Exit with 1 if a figure is worse by more than noise.")))
    "Compare two runs of `clgrpc load`. Tells what has changed, by how much, and whether that is
more than noise, which is known if both runs were made with --rounds."
  (ecase format
    (:summary (report:write-comparison before after *standard-output*))
    (:html (report:write-report :html after *standard-output* :before before)))
  (let ((worse (and fail-if-worse
                    (loop for comparison in (report:compare-runs before after)
                          when (eq :worse (report:comparison-verdict comparison))
                            collect (report:comparison-words comparison)))))
    (when worse (fail-command "~{~A~^; ~}" worse)))
  0)
