;;;; The run: input after input, each judged by what it did, how long it took and what it allocated;
;;;; progress, findings and a summary on the standard output. Another thread ends the process when
;;;; an input does not come to its end.

(in-package #:clgrpc.tests.fuzz)

(defparameter *tries* 4
  "How often an input that takes too long is given: the machine, or a collection, may be to blame.")

(defparameter *hang-seconds* (support:patient-seconds 60)
  "When an input counts as hanging.")

(defparameter *consed-octets* (expt 2 26)
  "How much one input may allocate.")

(defparameter *grown-octets* (expt 2 25)
  "How much more memory may be in use after a run than before.")

(defparameter *most-findings* 10
  "After so many findings a run ends.")

(defstruct (report (:copier nil))
  (target nil)
  (seed 0)
  (inputs 0)
  (accepted 0)
  (findings '())
  (longest-seconds 0)
  (most-consed 0)
  (grown 0))

(defun group-samples (samples)
  "SAMPLES as a vector of vectors, those of one kind together."
  (let ((groups (make-hash-table :test 'equal)))
    (dolist (sample samples) (push sample (gethash (sample-kind sample) groups)))
    (coerce (loop for kind being the hash-keys of groups using (hash-value samples)
                  collect (coerce samples 'simple-vector))
            'simple-vector)))

(defun make-samples (target seed)
  "The samples of TARGET, the same for the same SEED."
  (let ((*random-state* (sb-ext:seed-random-state seed)))
    (group-samples (funcall (target-samples target)))))

(defun input (target groups seed index)
  "The kind and the octets of input INDEX of the run SEED."
  (begin-input seed index)
  (let* ((siblings (pick groups)) (sample (pick siblings)))
    (values (sample-kind sample)
            (coerce (funcall (target-mutate target) sample siblings) 'octets))))

(defun thread-seconds ()
  "How much processor time this thread has used: a busy machine is nobody's fault. One that waits is
seen by the watch."
  (multiple-value-bind (seconds nanoseconds)
      (sb-unix::clock-gettime sb-unix:clock-thread-cputime-id)
    (+ seconds (/ nanoseconds 1000000000))))

(defun run-once (target kind octets)
  "Run TARGET on OCTETS: true if they are accepted, nil if refused as documented; as second value
the text of a finding, if it is one, and then the thread's seconds and octets consed."
  (let ((start (thread-seconds))
        (consed (sb-ext:get-bytes-consed))
        (accepted nil)
        (text nil))
    (handler-case (progn (funcall (target-run target) kind octets)
                         (setf accepted t))
      (serious-condition (condition)
        (unless (some (lambda (type) (typep condition type)) (target-conditions target))
          (setf text (format nil "~A: ~A" (type-of condition)
                             (or (ignore-errors (princ-to-string condition)) "unprintable"))))))
    (let ((seconds (- (thread-seconds) start))
          (octets (- (sb-ext:get-bytes-consed) consed)))
      (values accepted
              (cond (text)
                    ((> octets *consed-octets*) (format nil "it allocates ~:D octets" octets)))
              seconds octets))))

(defun judge (target groups seed index)
  "Run TARGET on input INDEX of the run SEED. Return what RUN-ONCE does, and the kind and octets of
the input. One that takes too long is run again, and the shortest time counts."
  (let ((times '()))
    (loop
      (multiple-value-bind (kind octets) (input target groups seed index)
        (multiple-value-bind (accepted text seconds consed) (run-once target kind octets)
          (push seconds times)
          (let ((slow-p (> seconds (target-seconds target))))
            (when (or text (not slow-p) (= *tries* (length times)))
              (let ((seconds (reduce #'min times)))
                (return (values accepted
                                (or text (and slow-p (format nil "it takes ~,3F s" seconds)))
                                seconds consed kind octets))))))))))

(defun shown (octets)
  "OCTETS as text if they are that, else in hexadecimal."
  (or (ignore-errors (octets-string octets))
      (format nil "~(~{~2,'0X~}~)" (coerce octets 'list))))

(defun note-finding (report index kind octets text)
  (push (list index text) (report-findings report))
  (format t "~&FOUND by ~A, seed ~D, input ~D~@[, ~A~]: ~A~%  ~A~%"
          (target-name (report-target report)) (report-seed report) index kind text
          (let ((shown (shown octets))) (subseq shown 0 (min 4000 (length shown)))))
  (finish-output))

(defun note-progress (report started)
  (let ((seconds (max 1/1000 (/ (- (get-internal-real-time) started)
                                internal-time-units-per-second))))
    (format t "~&~12A ~11:D inputs  ~9:D a second  ~5,1F % accepted  ~D finding~:P~%"
            (target-name (report-target report)) (report-inputs report)
            (round (report-inputs report) seconds)
            (/ (* 100 (report-accepted report)) (max 1 (report-inputs report)))
            (length (report-findings report)))
    (finish-output)))

(defun call-with-watch (report function)
  "Call FUNCTION while a thread sees to it that REPORT's count of inputs grows."
  (let* ((done (sb-thread:make-semaphore :name "fuzzing done"))
         (watch (sb-thread:make-thread
                 (lambda ()
                   (loop for before = (report-inputs report)
                         until (sb-thread:wait-on-semaphore done :timeout *hang-seconds*)
                         do (when (= before (report-inputs report))
                              (format t "~&HANGS: ~A, seed ~D, input ~D~%"
                                      (target-name (report-target report)) (report-seed report)
                                      (report-inputs report))
                              (finish-output)
                              (sb-ext:exit :code 3 :abort t))))
                 :name "fuzzing watch")))
    (unwind-protect (funcall function)
      (sb-thread:signal-semaphore done)
      (sb-thread:join-thread watch))))

(defconstant +inputs-per-collection+ 200000
  "After so many inputs everything is collected: what lives at a collection grows old, and SBCL
lets old garbage grow to most of the heap before it looks there.")

(defun memory-in-use ()
  (sb-ext:gc :full t)
  (sb-kernel:dynamic-usage))

(defun fuzz (target &key (inputs 1000) (seed 1) (first 0) (progress-seconds nil))
  "Give TARGET the inputs FIRST to FIRST + INPUTS - 1 of the run SEED; return a report. Print a line
each PROGRESS-SECONDS."
  (let* ((groups (make-samples target seed))
         (report (make-report :target target :seed seed))
         (before (memory-in-use))
         (started (get-internal-real-time))
         (said started))
    (flet ((step-input (index)
             (multiple-value-bind (accepted text seconds consed kind octets)
                 (judge target groups seed index)
               (when text (note-finding report index kind octets text))
               (when accepted (incf (report-accepted report)))
               (setf (report-longest-seconds report)
                     (max seconds (report-longest-seconds report))
                     (report-most-consed report) (max consed (report-most-consed report)))
               (incf (report-inputs report))))
           (say-so ()
             (let ((now (get-internal-real-time)))
               (when (and progress-seconds
                          (> (- now said) (* progress-seconds internal-time-units-per-second)))
                 (setf said now)
                 (note-progress report started)))))
      (call-with-watch report
                       (lambda ()
                         (loop for index from first below (+ first inputs)
                               until (>= (length (report-findings report)) *most-findings*)
                               do (step-input index)
                                  (when (zerop (mod (1+ index) +inputs-per-collection+))
                                    (sb-ext:gc :full t))
                                  (say-so)))))
    (setf (report-grown report) (- (memory-in-use) before))
    (when (> (report-grown report) *grown-octets*)
      (push (list nil (format nil "~:D octets more are in use" (report-grown report)))
            (report-findings report)))
    (when progress-seconds
      (note-progress report started)
      (format t "             longest ~,3F s, most allocated ~:D octets, memory grown by ~:D octets~%"
              (report-longest-seconds report) (report-most-consed report) (report-grown report)))
    report))

;;; The command

(defparameter *usage* "usage: scripts/fuzz [DECODER…] [--inputs N] [--seed S] [--first I]
       scripts/fuzz cost [SUBJECT…] [--seconds N] [--seed S]

Give each DECODER (~{~A~^, ~}; default: all)
N mutated inputs (default 100,000), the same for the same seed S (default: the time),
beginning with input I (default 0). Exit code: 0, or 1 if something was found, 3 if an
input hangs, 2 for wrong arguments.

With cost, search each SUBJECT (~{~A~^, ~}; default: all) for the inputs that
take most processor time for each octet, for N seconds in all (default 60), and write them
as a table. Exit code: 0, or 1 if one costs more than ~D times an ordinary call.
")

(defun usage (code)
  (format t *usage* (mapcar #'target-name *targets*) (mapcar #'subject-name *subjects*)
          +most-units+)
  code)

(defun main-cost (arguments)
  "Do what ARGUMENTS, the words after scripts/fuzz cost, say; return the exit code."
  (let ((seconds 60) (seed (get-universal-time)) (subjects '()))
    (loop while arguments
          do (let* ((word (pop arguments))
                    (subject (find word *subjects* :key #'subject-name :test #'string=))
                    (option (find word '("--seconds" "--seed") :test #'string=))
                    (number (and option arguments
                                 (parse-integer (pop arguments) :junk-allowed t))))
               (cond (subject (push subject subjects))
                     ((null number) (return-from main-cost (usage 2)))
                     ((string= word "--seconds") (setf seconds number))
                     (t (setf seed number)))))
    (format t "seed ~D~%" seed)
    (if (find-dearest seconds seed :subjects (or (reverse subjects) *subjects*)) 0 1)))

(defun main (arguments)
  "Do what ARGUMENTS, the words after scripts/fuzz, say; return the exit code."
  (when (equal "cost" (first arguments))
    (return-from main (main-cost (rest arguments))))
  (let ((targets '()) (inputs 100000) (seed (get-universal-time)) (first 0))
    (flet ((number ()
             (let ((number (and arguments (parse-integer (pop arguments) :junk-allowed t))))
               (or number (return-from main (usage 2))))))
      (loop while arguments
            do (let ((word (pop arguments)))
                 (cond ((string= word "--inputs") (setf inputs (number)))
                       ((string= word "--seed") (setf seed (number)))
                       ((string= word "--first") (setf first (number)))
                       ((string= word "--help") (return-from main (usage 0)))
                       ((find-target word) (push (find-target word) targets))
                       (t (return-from main (usage 2)))))))
    (format t "seed ~D~%" seed)
    (if (loop for target in (or (reverse targets) *targets*)
              for report = (fuzz target :inputs inputs :seed seed :first first
                                        :progress-seconds 10)
              count (report-findings report) into found
              finally (return (zerop found)))
        0
        1)))
