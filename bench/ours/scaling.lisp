;;;; The servers of bench/parts/scaling.py: `clgrpc serve bench` in an image that reports the work
;;;; of its collector. Loaded after scripts/load.lisp with the arguments of `serve` in CLGRPC_SERVE.
;;;; For each line on standard input it prints a line that begins with `figures` and goes on with
;;;; JSON. The answer to a line `totals` is, since the start, the octets consed, the milliseconds of
;;;; CPU of all collections (SBCL 2.2.9 counts neither collections nor their time by the clock), and
;;;; the context switches of all threads, ended ones included; and the octets of the nursery now.
;;;; The answer to a line with a number is the shortest of a few collections of almost nothing
;;;; beside that many sleeping threads, in milliseconds of wall-clock time.

(in-package #:clgrpc.scripts)

(load-strictly "clgrpc-tools/testee")

(defpackage #:clgrpc.bench.scaling
  (:use #:cl)
  (:local-nicknames (#:base #:clgrpc.base)))

(in-package #:clgrpc.bench.scaling)

(defconstant +tries+ 15)

(defun stop-ms ()
  (loop repeat +tries+
        minimize (let ((begin (base:monotonic-ns)))
                   (sb-ext:gc)
                   (/ (- (base:monotonic-ns) begin) 1d6))))

(defun stop-ms-beside (count)
  "The milliseconds of a collection beside COUNT threads that sleep."
  (let* ((over (sb-thread:make-semaphore))
         (threads (loop repeat count
                        collect (sb-thread:make-thread
                                 (lambda () (sb-thread:wait-on-semaphore over)) :name "sleeper"))))
    (prog1 (stop-ms)
      (loop repeat count do (sb-thread:signal-semaphore over))
      (mapc #'sb-thread:join-thread threads))))

(defun context-switches ()
  "How often threads of this process have left a core."
  (let ((usage (multiple-value-list (sb-unix:unix-getrusage sb-unix:rusage_self))))
    (reduce #'+ (last usage 2))))       ; voluntary and not

(defun answer (line)
  (if (string= line "totals")
      `(("consed" . ,(sb-ext:get-bytes-consed))
        ("collector_ms" . ,(/ (* 1000d0 sb-ext:*gc-run-time*) internal-time-units-per-second))
        ("switches" . ,(context-switches))
        ("nursery" . ,(sb-ext:bytes-consed-between-gcs)))
      `(("stop_ms" . ,(stop-ms-beside (parse-integer line))))))

(sb-thread:make-thread (lambda ()
                         (loop for line = (read-line *standard-input* nil)
                               while line
                               do (format t "figures ~A~%" (base:write-json (answer line)))
                                  (finish-output)))
                       :name "figures")
(clgrpc.tools:run-command (uiop:split-string (uiop:getenv "CLGRPC_SERVE")))
