;;;; perf: checking that it is installed and allowed, recording a process, and reading the record.
;;;; If the kernel allows it, perf samples whole processors by their clock, and the process's
;;;; samples are picked out afterwards. The timers of single threads stop while threads are
;;;; switched; by those timers the cost of switches would be missing, a tenth of a server's time
;;;; with one call at a time.

(in-package #:clgrpc.profile)

(defun program-there-p (name)
  (some (lambda (directory)
          (and (plusp (length directory))
               (probe-file (format nil "~A/~A" (string-right-trim "/" directory) name))))
        (uiop:split-string (or (sb-ext:posix-getenv "PATH") "") :separator ":")))

(defun paranoia ()
  "The number in /proc/sys/kernel/perf_event_paranoid, by which the kernel restricts perf, or, for
root, -1, which means no restriction."
  (if (zerop (sb-unix:unix-getuid))
      -1
      (let ((words (file-words "/proc/sys/kernel/perf_event_paranoid")))
        (if words (parse-integer (first words)) 4))))

(defun perf-there-p ()
  "True if perf can sample processes of this user, including their time in the kernel."
  (and (program-there-p "perf") (<= (paranoia) 1)))

(defun tracepoints-there-p ()
  "True if perf can follow system calls."
  (and (perf-there-p) (<= (paranoia) -1)
       (probe-file "/sys/kernel/tracing/events/raw_syscalls/")
       t))

;;; Recording

(defstruct (record (:copier nil))
  "A record of perf, and the counters when it began and ended."
  (path "" :type string :read-only t)   ; the path of perf's file
  (before nil :type reading :read-only t)
  (after nil :type reading :read-only t))

(defconstant +period-ns+ 250000 "The processor time between two samples, in nanoseconds.")

(defun sampling-arguments (pid)
  (append (list "-e" "cpu-clock" "-c" (princ-to-string +period-ns+) "-g")
          (if (<= (paranoia) 0) '("-a") (list "-p" (princ-to-string pid)))))

(defun tracing-arguments (pid)
  (list "-e" "raw_syscalls:sys_enter" "-e" "raw_syscalls:sys_exit"
        "-e" "sched:sched_switch/call-graph=fp/"
        "-e" "syscalls:sys_enter_futex/call-graph=fp/" "-p" (princ-to-string pid)))

(defun await-recording (process path)
  "Wait until perf, PROCESS, writes to PATH; fail if it ends instead."
  (loop repeat 100
        until (and (probe-file path)
                   (with-open-file (stream path :element-type '(unsigned-byte 8))
                     (plusp (file-length stream))))
        do (unless (sb-ext:process-alive-p process) (return))
           (sleep 1/50))
  (sleep 3/10)
  (unless (sb-ext:process-alive-p process)
    (fail "perf record has ended at once: ~A"
          (string-trim '(#\Newline #\Space)
                       (substitute #\Space #\Newline
                                   (uiop:slurp-stream-string (sb-ext:process-error process)))))))

(defun record (subject arguments seconds path)
  "Record SUBJECT with perf and ARGUMENTS, for SECONDS, to the file at PATH; return the RECORD."
  (let ((process (sb-ext:run-program "perf" (append '("record" "-q" "-k" "CLOCK_MONOTONIC" "-o")
                                                    (list path) arguments)
                                     :search t :wait nil :input nil :output nil
                                     :error :stream)))
    (unwind-protect
         (progn
           (await-recording process path)
           (let ((before (take-reading subject)))
             (sleep seconds)
             (let ((after (take-reading subject)))
               (make-record :path path :before before :after after))))
      (when (sb-ext:process-alive-p process) (sb-ext:process-kill process sb-unix:sigint))
      (sb-ext:process-wait process)
      (sb-ext:process-close process))))

;;; Reading

(defun call-with-script (function record fields pid)
  "Call FUNCTION with the output of perf script, a stream, for FIELDS of the RECORD of process PID."
  (declare (type function function))
  (let ((process (sb-ext:run-program "perf" (list "script" "-i" (record-path record)
                                                  "--pid" (princ-to-string pid)
                                                  "-F" fields)
                                     :search t :wait nil :input nil :output :stream :error nil
                                     :external-format '(:utf-8 :replacement #\?))))
    (unwind-protect (funcall function (sb-ext:process-output process))
      (when (sb-ext:process-alive-p process) (sb-ext:process-kill process sb-unix:sigterm))
      (sb-ext:process-wait process)
      (sb-ext:process-close process))))

(defun record-sums (record pid symbolizer)
  (call-with-script (lambda (stream)
                      (sum-samples stream symbolizer (reading-ns (record-before record))
                                   (reading-ns (record-after record))))
                    record "tid,time,ip,sym,dso" pid))

(defun record-events (record pid symbolizer locks)
  (call-with-script (lambda (stream)
                      (count-events stream symbolizer (reading-ns (record-before record))
                                  (reading-ns (record-after record)) locks))
                    record "tid,time,event,trace,ip,sym,dso" pid))

;;; strace

(defun strace (subject seconds path)
  "Count the system calls of SUBJECT with strace for SECONDS, and write a table to PATH; return the
RECORD."
  (let ((process (sb-ext:run-program "strace" (list "-f" "-q" "-c" "-o" path "-p"
                                                    (princ-to-string (subject-pid subject)))
                                     :search t :wait nil :input nil :output nil :error nil)))
    (sleep 3/10)
    (unless (sb-ext:process-alive-p process) (fail "strace has ended at once"))
    (let ((before (take-reading subject)))
      (sleep seconds)
      (let ((after (take-reading subject)))
        (sb-ext:process-kill process sb-unix:sigint)
        (sb-ext:process-wait process)
        (sb-ext:process-close process)
        (make-record :path path :before before :after after)))))
