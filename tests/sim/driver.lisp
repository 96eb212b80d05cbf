;;;; The command scripts/simulate: the mix for as many seeds as one likes.

(in-package #:clgrpc.tests.sim)

(defparameter *usage* "usage: scripts/simulate [--seeds N] [--first SEED]
                        [--policy | --cluster | --workflow | --raft]

Run servers and clients with calls of all kinds, faults, deadlines, cancellations and drains in
the simulator, for N seeds (default 1,000) from SEED (default 1) on, and see that each call ends
as it should. With --policy the calls are under retry and hedging policies, and their servers come
and go, die, fail, push back and slow down. With --cluster there is a cluster on an etcd in memory
that fails, stops and loses its data; with --workflow there are nodes, workers and users of
workflows on one that fails; with --raft there is the example of Raft, whose machines crash.
Prints how far it is on a terminal, and at the end a digest of all traces. A seed that fails is
run again, and its story printed. Exit code: 0 if all was well, 1 if a seed failed, 2 for wrong
arguments.
")

(defun usage (code)
  (write-string *usage*)
  code)

(defun add-digest (digest simulation)
  (ldb (byte 64 0) (+ (* 31 digest) (sim:simulation-digest simulation))))

(defun digest-of-seeds (first count)
  "What stands for the traces of COUNT seeds from FIRST on."
  (let ((digest 0))
    (apply #'sim:run-seeds 'run-mix :first first :count count
           :on-seed (fn (_seed simulation) (setf digest (add-digest digest simulation)))
           *mix-options*)
    digest))

(defun run-with-progress (first count scenario)
  "Run SCENARIO, a function, for COUNT seeds from FIRST on; print each second how far it is, if the
output is a terminal, and at the end what it was. Signal SIM:SEED-FAILED."
  (let* ((digest 0) (steps 0) (done 0) (terminal (interactive-stream-p *standard-output*))
         (start (monotonic-ns)) (said start))
    (flet ((say (control)
             (let ((seconds (ns-seconds (max 1 (- (monotonic-ns) start)))))
               (format t control done count (/ done seconds) steps)
               (finish-output))))
      (apply #'sim:run-seeds scenario :first first :count count
             :rerun (lambda (seed)
                      (format nil "scripts/simulate --first ~D --seeds 1~@[ ~A~]" seed
                              (car (rassoc scenario (scenarios)))))
             :on-seed (fn (_seed simulation)
                        (incf done)
                        (incf steps (sim:simulation-steps simulation))
                        (setf digest (add-digest digest simulation))
                        (when (and terminal (> (- (monotonic-ns) said) 1000000000))
                          (setf said (monotonic-ns))
                          (say "~C~:D of ~:D seeds, ~,1F a second, ~:D steps")))
             *mix-options*)
      (when terminal (format t "~C~C[K" #\Return #\Escape))
      (say "~:D of ~:D seeds, ~,1F a second, ~:D steps; ")
      (format t "digest ~16,'0X~%" digest))))

(defun scenarios ()
  "From an option to the scenario that it stands for."
  `(("--policy" . run-fleet)
    ,@(loop for (option package name) in '(("--cluster" "CLGRPC.TESTS.SIMULATION" "RUN-CLUSTER")
                                           ("--workflow" "CLGRPC.TESTS.SIMULATION" "RUN-WORKFLOWS")
                                           ("--raft" "CLGRPC.TESTS.RAFT-EXAMPLE" "RUN-GROUP"))
            when (find-package package)
              collect (cons option (find-symbol name package)))))

(defun main (arguments)
  "Do what ARGUMENTS, the words after scripts/simulate, say; return the exit code."
  (let ((seeds 1000) (first 1) (scenario 'run-mix))
    (flet ((number ()
             (let ((number (and arguments (ignore-errors (parse-integer (pop arguments))))))
               (if (and number (not (minusp number)))
                   number
                   (return-from main (usage 2))))))
      (loop while arguments
            do (let ((word (pop arguments)))
                 (cond ((string= word "--seeds") (setf seeds (number)))
                       ((string= word "--first") (setf first (number)))
                       ((assoc word (scenarios) :test #'string=)
                        (setf scenario (cdr (assoc word (scenarios) :test #'string=))))
                       ((member word '("--help" "-h") :test #'string=)
                        (return-from main (usage 0)))
                       (t (return-from main (usage 2)))))))
    (handler-case (progn (run-with-progress first seeds scenario) 0)
      (sim:seed-failed (failure)
        (format t "~&~A~%" failure)
        1))))
