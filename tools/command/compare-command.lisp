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
  (ecase format
    (:summary (profile:write-difference before after *standard-output*))
    (:json (write-json (profile:difference-data before after) :stream *standard-output*)
     (terpri))
    (:html (profile:write-profile-page after *standard-output* :before before))))

(defconstant +exit-unclear+ 5
  "The exit code if no figure is known to be worse, but a figure is unclear or unknown.")

(defun verdict-exit-code (comparisons)
  "The exit code of --fail-if-worse for COMPARISONS. Signal a FAILURE if a figure is worse. Print
unclear figures on standard error."
  (flet ((words-of (test)
           (mapcar #'report:comparison-words (remove-if-not test comparisons))))
    (let ((worse (words-of (lambda (comparison)
                             (eq :worse (report:comparison-verdict comparison)))))
          (unclear (words-of #'report:unclear-p)))
      (when worse (fail-command "~{~A~^; ~}" worse))
      (when unclear
        (tell "clgrpc compare: ~{~A~^; ~}~:[~;; measure both with --rounds 5~]"
              unclear (find :unknown comparisons :key #'report:comparison-verdict)))
      (if unclear +exit-unclear+ 0))))

(defun compare-runs (format before after fail-if-worse)
  "Print the differences of the runs BEFORE and AFTER in FORMAT; return the exit code. If
FAIL-IF-WORSE is true, signal a FAILURE if a figure is worse."
  (ecase format
    (:summary (report:write-comparison before after *standard-output*))
    (:json (write-json (report:runs-comparison-json before after) :stream *standard-output*)
     (terpri))
    (:html (report:write-report :html after *standard-output* :before before)))
  (if fail-if-worse
      (verdict-exit-code (report:compare-runs before after))
      0))

(define-command "compare"
    (((before "BEFORE.json" #'parse-report-argument
              "A report in JSON, by `clgrpc load`, ghz or `clgrpc profile`.")
      (after "AFTER.json" #'parse-report-argument "Another report of the same kind."))
     (((format nil "-O") "FORMAT" (choice-parser :summary :json :html) :summary
       "Print the differences, in words or as JSON, or write a page about AFTER with them.")
      (fail-if-worse "[BOOLEAN]" #'parse-boolean nil
                     "Exit with 1 if a figure of a run is worse by more than noise. Exit with 5
      if no figure is worse, but noise could hide that; p99.9, p99.99 and max do not count for
      this.")))
    "Compare two runs of `clgrpc load`, or two profiles. Prints each change, its size, and whether
it is more than noise; the noise is known only if both runs were made with --rounds. A change that
cannot be judged is called unclear, and the number of rounds that would decide is printed."
  (cond ((and (listp before) (listp after))
         (when fail-if-worse (refuse "--fail-if-worse is about runs, not profiles"))
         (compare-profiles format before after)
         0)
        ((or (listp before) (listp after)) (refuse "one file is a run, the other a profile"))
        (t (compare-runs format before after fail-if-worse))))
