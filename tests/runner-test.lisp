;;;; Which suites the runner runs at once, and what it makes of a process that dies.

(defpackage #:clgrpc.tests.runner
  (:use #:cl #:fiveam)
  (:local-nicknames (#:tests #:clgrpc.tests)))

(in-package #:clgrpc.tests.runner)

(def-suite :clgrpc.runner :description "The runner of the tests.")
(in-suite :clgrpc.runner)

(test suites-of-the-runner-s-lists-exist
  (let ((words (mapcar #'tests::suite-word (tests::chosen-suites '()))))
    (dolist (word (append tests::*waiting-suites* tests::*lonely-suites*))
      (is-true (member word words :test #'string=) "~A is no suite" word))
    (is (null (intersection tests::*waiting-suites* tests::*lonely-suites* :test #'string=)))))

(defun played (suites end)
  "The pairs of suites that run at once, and those that run alone, if SUITES run in two processes
and END chooses which of two ends first."
  (let ((left suites) (running '()) (moments '()))
    (loop (loop for suite = (and (< (length running) 2) (tests::next-suite left running))
                while suite
                do (setf left (remove suite left))
                   (push suite running))
          (unless running (return (nreverse moments)))
          (push running moments)
          (setf running (remove (funcall end running) running)))))

(test all-suites-run-and-some-of-them-alone
  (let ((suites (tests::chosen-suites '())))
    (dolist (end (list #'first (lambda (running) (first (last running)))))
      (let ((moments (played suites end)))
        (is (null (set-exclusive-or suites (reduce #'union moments))))
        (is (every (lambda (running) (or (notany #'tests::lonely-p running) (null (rest running))))
                   moments))
        ;; one that waits runs beside one that computes while there are both
        (let ((mixed (loop for running in moments
                           until (every #'tests::waits-p running) ; those that compute are through
                           until (notany #'tests::waits-p running)
                           collect running)))
          (is (< 5 (length mixed)))
          (is (equal "abuse" (tests::suite-word (find-if #'tests::waits-p (first mixed)))))
          (is (loop for running in mixed always (= 2 (length running)))))))))

(test a-process-that-dies-is-a-failure
  (let ((tally (tests::job-tally (tests::make-job :suite (first (tests::chosen-suites '()))
                                                  :output "/nonexistent/output"
                                                  :result "/nonexistent/result"))))
    (is (= 1 (tests::tally-failed tally)))
    (is (search "its process ended before its tests did"
                (with-output-to-string (*standard-output*)
                  (tests::print-job (tests::make-job
                                     :suite (first (tests::chosen-suites '()))
                                     :output "/nonexistent/output" :result "/nonexistent/result")
                                    tally))))))
