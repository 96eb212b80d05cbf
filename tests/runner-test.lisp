;;;; Which suites the runner runs at once, what it makes of a process that dies, and what comes of
;;;; tests that are skipped and of ASDF:TEST-SYSTEM.

(defpackage #:clgrpc.tests.runner
  (:use #:cl #:clgrpc.tests.form)
  (:local-nicknames (#:tests #:clgrpc.tests) (#:support #:clgrpc.tests.support)))

(in-package #:clgrpc.tests.runner)

(def-suite :clgrpc.runner :description "The runner of the tests.")

(test suites-of-the-runner-s-lists-exist
  (let ((words (mapcar #'tests::suite-word (tests::chosen-suites '()))))
    (let ((named (append tests::*waiting-suites* tests::*long-suites* tests::*lonely-suites*)))
      (dolist (word named)
        (is-true (member word words :test #'string=) "~A is no suite" word))
      (is (= (length named) (length (remove-duplicates named :test #'string=)))))))

(defun played (suites end count)
  "The lists of suites that run at once if SUITES run in COUNT processes and END chooses which of
those that run ends first."
  (let ((left suites) (running '()) (moments '()))
    (loop (loop for suite = (and (< (length running) count)
                                 (tests::next-suite left running))
                while suite
                do (setf left (remove suite left))
                   (push suite running))
          (unless running (return (nreverse moments)))
          (push running moments)
          (setf running (remove (funcall end running) running)))))

(defun last-begin (suites moments waits)
  "The place in MOMENTS at which the last of those SUITES begins that wait, or do not, as WAITS says,
of those that need not run alone."
  (loop for suite in (remove-if #'tests::lonely-p suites)
        when (eq waits (and (tests::waits-p suite) t))
          maximize (position-if (lambda (running) (member suite running)) moments)))

(test all-suites-run-and-some-of-them-alone
  (let ((suites (tests::chosen-suites '())))
    (dolist (count '(3 5))
      (dolist (end (list #'first (lambda (running) (first (last running)))))
        (let ((moments (played suites end count)))
          (is (null (set-exclusive-or suites (reduce #'union moments))))
          (is (every (lambda (running)
                       (or (notany #'tests::lonely-p running) (null (rest running))))
                     moments))
          ;; two compute, and the others wait, while there are both
          (let ((mixed (subseq moments 0 (1+ (min (last-begin suites moments t)
                                                  (last-begin suites moments nil))))))
            (is (< 5 (length mixed)))
            (is (subsetp '("abuse" "architecture") (mapcar #'tests::suite-word (first mixed))
                         :test #'string=))
            (is (loop for running in mixed
                      always (and (= count (length running))
                                  (= (- count tests::*most-computing*)
                                     (count-if #'tests::waits-p running)))))))))))

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

(test failures-are-repeated-alone
  "Up to so many tests that failed run again; a leak, and more failures than that, stay."
  (let* ((suite (first (tests::chosen-suites '())))
         (suite-name (find suite (test-names) :key #'get-test))
         (ran '()))
    (flet ((failures-left (failed names most)
             "How many of FAILED failures, which the tests NAMES have, are left; STEADY passes never."
             (let ((tally (tests::make-tally :suite suite-name
                                             :failed failed :failures names)))
               (setf ran '())
               (let ((output (with-output-to-string (*standard-output*)
                               (tests::repeat-failures
                                (list suite) (list tally) most
                                :run-alone (lambda (of name)
                                             (is (eq suite of))
                                             (push name ran)
                                             (not (eq :steady name)))))))
                 (is (= (tests::tally-passed tally) (count :flaky ran)))
                 (is (eq (and (member :flaky ran) t)
                         (and (search "NOT STEADY: FLAKY" output) t))))
               (tests::tally-failed tally))))
      (is (= 0 (failures-left 1 '(:flaky) 2)))
      (is (= 1 (failures-left 2 '(:steady :flaky) 2)))
      (is (equal '(:flaky :steady) ran))
      (is (= 1 (failures-left 1 '(:flaky) 0)))
      (is (= 3 (failures-left 3 '(:flaky :flaky :flaky) 2)) "more than MOST")
      (is (= 2 (failures-left 2 '(:flaky) 2)) "a leak beside it")
      (is (null ran)))))

;;; Tests made for this, which belong to no suite that the runner knows

(defmacro with-sample-test ((name suite &body test) &body body)
  "Evaluate BODY while there is a test NAME of TEST, the one of the suite SUITE, a keyword."
  `(progn
     (def-suite ,suite)
     (test (,name :suite ,suite) ,@test)
     (unwind-protect (let ((*test-dribble* (make-broadcast-stream))) ,@body)
       (rem-test ',name)
       (rem-test ',suite))))

(defun helper-that-skips ()
  (support:need-program "no-such-program-of-clgrpc")
  (fail "the helper went on"))

(test what-skips-ends-the-test
  "A function that finds no program ends the test that has called it, which counts as skipped."
  (with-sample-test (sample-skip :samples.skip
                      (helper-that-skips)
                      (fail "the test went on"))
    (let ((tally (tests::make-tally)))
      (tests::run-one (get-test 'sample-skip) tally)
      (is (equal '(0 0 1) (list (tests::tally-passed tally) (tests::tally-failed tally)
                                (tests::tally-skipped tally))))
      (is (equal '("skipped SAMPLE-SKIP: no-such-program-of-clgrpc is not installed")
                 (tests::tally-remarks tally))))))

(defclass sample-layer (asdf-user::layer-tests) ())

(defmethod asdf:component-depends-on ((operation asdf:test-op) (system sample-layer)) nil)

(defun test-sample-layer ()
  "What ASDF does to test the system clgrpc-tests/sample: its class is that of all layers'."
  (asdf:perform (asdf:make-operation 'asdf:test-op)
                (make-instance 'sample-layer :name "clgrpc-tests/sample")))

(test testing-a-system-signals-failures
  (with-sample-test (sample-failure :clgrpc.sample.failing (is (= 1 2)))
    (with-sample-test (sample-success :clgrpc.sample (is (= 1 1)))
      (let ((error (handler-case (test-sample-layer)
                     (support:tests-failed (error) error))))
        (is (typep error 'support:tests-failed))
        (is (equal '(:clgrpc.sample.failing) (support:tests-failed-suites error))))))
  (with-sample-test (sample-success :clgrpc.sample (is (= 1 1)))
    (finishes (test-sample-layer)))
  (signals error (test-sample-layer)))

(test all-test-systems-are-tested-alike
  "ASDF:TEST-SYSTEM of each layer runs its suites: its system is of the one class, and has some."
  (dolist (name (asdf:system-depends-on (asdf:find-system "clgrpc-tests")))
    (let ((layer (and (uiop:string-prefix-p "clgrpc-tests/" name)
                      (subseq name (length "clgrpc-tests/")))))
      (unless (or (null layer) (member layer '("support" "world") :test #'string=))
        (is (typep (asdf:find-system name) 'asdf-user::layer-tests) "~A" name)
        (is-true (support:layer-suites layer) "~A has no suite" name)))))
