;;;; The command `compare`: two reports of `clgrpc load`, or of ghz, side by side.

(in-package #:clgrpc.tools)

(defun parse-run-argument (path)
  "The run whose report is in the file PATH."
  (handler-case (report:read-run-file path)
    (report:unreadable-run (error) (refuse "~A" error))))

(defun parse-report-argument (path)
  "The run, or the profile, an alist, whose report is in the file PATH."
  (handler-case (report:read-run-file path)
    (report:unreadable-run (error)
      (handler-case (profile:read-profile path)
        (profile:profile-error () (refuse "~A" error))))))

(defun compare-profiles (format before after)
  "Tell the differences of the profiles BEFORE and AFTER in FORMAT."
  (ecase format
    (:summary (profile:write-difference before after *standard-output*))
    (:json (write-json (profile:difference-data before after) :stream *standard-output*)
     (terpri))
    (:html (profile:write-profile-page after *standard-output* :before before))))

(defun compare-runs (format before after fail-if-worse)
  "Tell the differences of the runs BEFORE and AFTER in FORMAT; a FAILURE if FAIL-IF-WORSE is true
and one is worse."
  (ecase format
    (:summary (report:write-comparison before after *standard-output*))
    (:json (write-json (report:runs-comparison-json before after) :stream *standard-output*)
     (terpri))
    (:html (report:write-report :html after *standard-output* :before before)))
  (let ((worse (and fail-if-worse
                    (loop for comparison in (report:compare-runs before after)
                          when (eq :worse (report:comparison-verdict comparison))
                            collect (report:comparison-words comparison)))))
    (when worse (fail-command "~{~A~^; ~}" worse))))

(define-command "compare"
    (((before "BEFORE.json" #'parse-report-argument
              "A report in JSON, by `clgrpc load`, ghz or `clgrpc profile`.")
      (after "AFTER.json" #'parse-report-argument "Another one of the same kind."))
     (((format nil "-O") "FORMAT" (choice-parser :summary :json :html) :summary
       "Tell the differences, in words or as JSON, or write a page about AFTER with them.")
      (fail-if-worse "[BOOLEAN]" #'parse-boolean nil
                     "Exit with 1 if a figure of a run is worse by more than noise.")))
    "Compare two runs of `clgrpc load`, or two profiles. Tells what has changed, by how much, and
whether that is more than noise, which is known if both were made with --rounds."
  (cond ((and (listp before) (listp after))
         (when fail-if-worse (refuse "--fail-if-worse is about runs, not profiles"))
         (compare-profiles format before after))
        ((or (listp before) (listp after)) (refuse "one is a run, the other a profile"))
        (t (compare-runs format before after fail-if-worse)))
  0)
