;;;; A simulation as a whole: the same seed gives the same trace, octet for octet, and nothing is
;;;; left when it ends.

(in-package #:clgrpc.tests.sim)

(defun mix-trace (seed)
  (let ((trace nil) (digest nil))
    (apply #'sim:call-with-simulation
           (lambda (simulation)
             (run-mix simulation)
             (setf trace (sim:simulation-entries simulation)
                   digest (sim:simulation-digest simulation)))
           :seed seed *mix-options*)
    (values trace digest)))

(test the-same-seed-gives-the-same-trace
  (loop for seed from 1 to 20
        do (multiple-value-bind (trace digest) (mix-trace seed)
             (sb-ext:gc)
             (multiple-value-bind (second second-digest) (mix-trace seed)
               (is (string= trace second) "seed ~D" seed)
               (is (= digest second-digest))))))

(test another-seed-gives-another-trace
  (is (= 10 (length (remove-duplicates (loop for seed from 1 to 10 collect (mix-trace seed))
                                       :test #'string=)))))

(test another-image-gives-the-same-trace
  (multiple-value-bind (code output)
      (run-to-output sb-ext:*runtime-pathname* "--dynamic-space-size" "2048" "--noinform"
                     "--non-interactive" "--no-sysinit" "--no-userinit" "--load"
                     (namestring (support:root-file "scripts/lisp/simulate.lisp"))
                     "--end-toplevel-options" "--first" "1" "--seeds" "20")
    (is (= 0 code))
    (is (search (format nil "digest ~16,'0X" (digest-of-seeds 1 20)) output) "~A" output)))

(defun run-to-output (program &rest arguments)
  "The exit code of PROGRAM, run with ARGUMENTS, and what it has written."
  (let* ((output (make-string-output-stream))
         (process (sb-ext:run-program program arguments :output output :error output :input nil)))
    (values (sb-ext:process-exit-code process) (get-output-stream-string output))))

(test nothing-is-left-of-a-simulation
  (let ((threads (length (sb-thread:list-all-threads))))
    (sim:with-simulation (simulation)
      (sim:add-host "server" (lambda () (start-echo)))
      (sim:start-task "for ever" (lambda () (sim:wait-until (constantly nil))))
      (let ((channel (grpc:make-channel "server:50051")))
        (is (= 1 (ask channel 1)))
        ;; neither is ended by whoever began it
        (lab.bench:watch channel (lab:make-note))))
    (is (= threads (length (sb-thread:list-all-threads))))
    (is (null sim:*simulation*))
    (is (not (loop:simulated-p)))))

(test the-collector-closes-no-channel-of-a-simulation
  "The seed does not decide when the collector runs, and the collector's thread has no turn."
  (flet ((closed-p () (clgrpc.calling:when-dropped (list 1) "dropped" (constantly nil))))
    (is-true (closed-p))
    (sim:with-simulation (simulation) (is-false (closed-p)))))

(test errors-of-the-body-pass
  (signals division-by-zero
    (sim:with-simulation (simulation)
      (sim:add-host "server" (lambda () (start-echo)))
      (grpc:with-channel (channel "server:50051")
        (is (= 1 (ask channel 1)))
        (error 'division-by-zero)))))

(test one-simulation-at-a-time
  (sim:with-simulation (simulation)
    (signals grpc:misuse (sim:with-simulation (other) nil))))
