;;;; What attacks are watched with. While one runs a bystander, on a connection of its own, makes
;;;; one small call after the other, and the kernel notes how much memory the process has at most;
;;;; when it is over, everything must come to rest and come back. Attacker and bystander live in the
;;;; server's process, so what is measured is the server's share and theirs: the figures are upper
;;;; bounds.

(in-package #:clgrpc.tests.abuse)

(defparameter *p99-seconds* 1
  "Ninety-nine of a hundred calls of a bystander are answered in so long.")
(defparameter *growth-octets* 100000000
  "How much more resident memory than before a process may have at any moment of an attack, garbage
included.")
(defparameter *nursery-octets* 26000000
  "What is consed between two collections meanwhile: SBCL's default for a heap of 512 MB.")
(defparameter *return-seconds* 10
  "So long after an attack all descriptors and threads are back, and the processor is idle.")

(defstruct (watch (:copier nil))
  "OCTETS is how much memory the process had before; LATENCIES what the bystander's calls took,
conses of seconds and of those that were not the machine's; LATE-NS by how much a thread that does
nothing else woke too late so far, which it is to do next at DUE-NS; RUN-TIME is of the process, as
GET-INTERNAL-RUN-TIME has it."
  channel
  (over (make-signal))
  (asleep (make-signal))
  (octets 0)
  (latencies '())
  (late-ns 0 :type (unsigned-byte 62))
  (due-ns (monotonic-ns) :type (unsigned-byte 62))
  (run-time (get-internal-run-time)))

;;; Memory, as the kernel has it

(defun process-octets (key &optional (process "self"))
  "What the kernel says of PROCESS, a process id, by KEY: \"VmRSS\" is the resident memory it has,
\"VmHWM\" the most it has had since FORGET-PEAK."
  (with-open-file (in (format nil "/proc/~A/status" process))
    (loop for line = (read-line in)
          when (uiop:string-prefix-p key line)
            return (* 1024 (parse-integer line :start (1+ (length key)) :junk-allowed t)))))

(defun forget-peak (&optional (process "self"))
  "Have PROCESS's peak be what it has now; return that."
  (with-open-file (out (format nil "/proc/~A/clear_refs" process) :direction :output
                                                                  :if-exists :append)
    (write-line "5" out))
  (process-octets "VmRSS" process))

(defun call-with-small-nursery (function)
  "Call FUNCTION while *NURSERY-OCTETS* are consed between two collections, from a full one on."
  (with-changed (((sb-ext:bytes-consed-between-gcs) *nursery-octets*))
    (sb-ext:gc :full t)
    (funcall function)))

;;; What the machine does to threads

(defun stolen-ns (watch)
  "The time until now in which threads that should have run did not."
  (+ (watch-late-ns watch) (max 0 (- (monotonic-ns) (watch-due-ns watch)))))

(defun wake-often (watch)
  (loop
    (setf (watch-due-ns watch) (+ (monotonic-ns) 2000000))
    (when (await-signal (watch-asleep watch) :seconds 0.002) (return))
    (incf (watch-late-ns watch) (max 0 (- (monotonic-ns) (watch-due-ns watch))))))

;;; The bystander

(defun stand-by (watch)
  "Make calls until the attack is over; return the first failure, or nil."
  (loop
    with failure = nil
    until (await-signal (watch-over watch) :seconds 0.002)
    do (let* ((stolen (stolen-ns watch))
              (seconds (elapsed-seconds
                         (let ((error (caught (unless (= 7 (number-of (ask (watch-channel watch)
                                                                           (note 6))))
                                                (setf failure "a wrong answer")))))
                           (when error (setf failure (or failure (princ-to-string error))))))))
         (push (cons seconds (max 0 (- seconds (ns-seconds (- (stolen-ns watch) stolen)))))
               (watch-latencies watch)))
    finally (return failure)))

(defun percentile-99 (seconds)
  (let ((sorted (sort seconds #'>)))
    (or (nth (floor (length sorted) 100) sorted) 0)))

(defun check-latencies (watch)
  "Check what the bystander's calls took. If only without the machine's part it was short enough
that shows nothing: garbage collected for the attacker is in that part."
  (let ((p99 (percentile-99 (mapcar #'car (watch-latencies watch))))
        (ours (percentile-99 (mapcar #'cdr (watch-latencies watch)))))
    (cond ((< p99 *p99-seconds*) (pass))
          ((< ours *p99-seconds*)
           (support:skip-on-slow-machine "a bystander's p99 was ~,1F s, of which threads could run ~
                                          for ~,1F s" p99 ours))
          (t (fail "The bystander's p99 was ~,3F s." ours)))))

;;; Coming back

(defun soon-p (watch predicate)
  "True once PREDICATE is, false after *RETURN-SECONDS* in which threads could run."
  (let ((start (- (monotonic-ns) (stolen-ns watch))))
    (wait-until (lambda ()
                  (or (and (funcall predicate) :yes)
                      (and (< (seconds-ns *return-seconds*)
                              (- (monotonic-ns) (stolen-ns watch) start))
                           :no)))
                :seconds (* 20 *return-seconds*))))

(defun resting-p ()
  "True if this process has hardly run for the twentieth of a second that this takes."
  (let ((before (get-internal-run-time)))
    (await-signal (make-signal) :seconds 0.05)
    (< (- (get-internal-run-time) before) (* 0.02 internal-time-units-per-second))))

(defun thread-count ()
  (count-if #'sb-thread:thread-alive-p (sb-thread:list-all-threads)))

(defun report-watch (watch growth)
  (format t "~&; ~(~A~): bystander p99 ~,1F ms of ~D calls, growth ~,1F MB, CPU ~,2F s~@[, ~
             threads stood still for ~,1F s~]~%"
          (support:test-name (symbol-value 'fiveam::current-test))
          (* 1000 (percentile-99 (mapcar #'car (watch-latencies watch))))
          (length (watch-latencies watch)) (/ growth 1e6)
          (/ (- (get-internal-run-time) (watch-run-time watch))
             internal-time-units-per-second 1.0)
          (when (< 1000000000 (watch-late-ns watch)) (ns-seconds (watch-late-ns watch)))))

(defun call-watched (channel function)
  "Call FUNCTION, an attack, while a bystander calls on CHANNEL; check what is promised of both.
Return FUNCTION's value."
  (call-with-small-nursery
   (lambda ()
     (let* ((watch (make-watch :channel channel :octets (forget-peak)))
            (descriptors (os:open-descriptor-count))
            (threads (thread-count))
            (waker (sb-thread:make-thread #'wake-often :name "waker" :arguments (list watch)))
            (bystander (sb-thread:make-thread #'stand-by :name "bystander"
                                                         :arguments (list watch))))
       (unwind-protect
            (multiple-value-prog1
                (unwind-protect (funcall function)
                  (signal-it (watch-over watch))
                  (let ((failure (sb-thread:join-thread bystander :timeout (* 3 +patience+)
                                                                  :default "it hangs")))
                    (is (null failure) "The bystander's call failed: ~A" failure)))
              (let ((growth (- (process-octets "VmHWM") (watch-octets watch))))
                (report-watch watch growth)
                (is (< growth *growth-octets*) "The process grew by ~D octets." growth))
              (check-latencies watch)
              (check-return watch descriptors (1+ threads))) ; with the waker
         (signal-it (watch-asleep watch))
         (sb-thread:join-thread waker))))))

(defun check-return (watch descriptors threads)
  "Check that the process comes to rest, with no more DESCRIPTORS and THREADS than that."
  (flet ((check (what predicate)
           (is (eq :yes (soon-p watch predicate)) "~A" what)))
    (check "The process does not come to rest." #'resting-p)
    (check "Descriptors are left." (lambda () (<= (os:open-descriptor-count) descriptors)))
    (let ((left (soon-p watch (lambda () (<= (thread-count) threads)))))
      (is (eq :yes left) "There were ~D threads, and there are~{ ~A~^,~}" threads
          (mapcar #'sb-thread:thread-name (sb-thread:list-all-threads))))))

(defmacro with-bystander ((channel) &body body)
  "Evaluate BODY, an attack, as CALL-WATCHED does."
  `(call-watched ,channel (lambda () ,@body)))
