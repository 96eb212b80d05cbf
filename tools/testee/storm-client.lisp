;;;; `storm-client`: calls at a fixed rate, independent of earlier ones, for scripts/storm, which
;;;; kills servers meanwhile. The latency of a call counts from its due time, so that a client
;;;; that makes calls too late does not hide this delay.

(in-package #:clgrpc.testee)

(defconstant +most-outstanding+ 20000 "The maximum number of calls that are under way at one time.")

(defconstant +most-told-failures+ 20 "The maximum number of failures that are reported one by one.")

(defstruct (storm (:copier nil))
  "The outcomes of the calls so far."
  (lock (sb-thread:make-mutex :name "clgrpc storm") :read-only t) ; guards all other slots
  (begin-ns 0 :type nanoseconds :read-only t) ; when the first call was due
  (begun 0 :type index)                 ; calls that have begun
  (ended 0 :type index)                 ; how many calls have ended
  ;; the latencies of successful calls
  (latencies (load:make-histogram) :type load:histogram :read-only t)
  (statuses '() :type list)             ; an alist from status to count
  (failures '() :type list))            ; (due-ns ended-ns text), latest first

(defun note-end (storm due-ns error)
  "Note that a call of STORM that was due at DUE-NS has ended, with ERROR, a condition or nil."
  (let* ((now (monotonic-ns))
         (status (typecase error
                   (null :ok)
                   (grpc:rpc-error (grpc:rpc-error-status error))
                   (t :error))))
    (sb-thread:with-mutex ((storm-lock storm))
      (incf (storm-ended storm))
      (let ((known (assoc status (storm-statuses storm))))
        (if known (incf (cdr known)) (push (cons status 1) (storm-statuses storm))))
      (cond ((null error)
             (load:record-value (storm-latencies storm) (max 0 (- now due-ns))))
            (t (push (list due-ns now (remove #\Newline (princ-to-string error)))
                     (storm-failures storm)))))))

(defun begin-storm-call (storm channel due-ns timeout)
  "Make a call of STORM on CHANNEL that was due at DUE-NS. The latency of the call counts from
DUE-NS, or from now if now is earlier."
  (incf (storm-begun storm))
  (let ((begin-ns (min due-ns (monotonic-ns))))
    (flet ((ended (error) (note-end storm begin-ns error)))
      (if (< (- (storm-begun storm) (storm-ended storm)) +most-outstanding+)
          (handler-case
              (grpc:attach (grpc:call-async #'grpc.testing.benchmark-service:unary-call channel
                                            (testing:make-simple-request :response-size 10)
                                            :timeout timeout)
                           (lambda (reply error)
                             (declare (ignore reply))
                             (ended error)))
            (grpc:rpc-error (error) (ended error)))
          (ended (make-condition 'failure :text "too many calls were under way"))))))

(defun run-storm (channel rate seconds timeout)
  "Make RATE calls a second on CHANNEL for SECONDS, each with TIMEOUT. Wait until the calls have
ended, at most two seconds longer than TIMEOUT. Return a STORM."
  (let* ((begin (monotonic-ns))
         (storm (make-storm :begin-ns begin)))
    (loop for i from 0 below (floor (* rate seconds))
          for due = (+ begin (floor (* i +ns-per-second+) rate))
          do (let ((ahead (- due (monotonic-ns))))
               (when (> ahead 100000) (sleep (ns-seconds ahead))))
             (begin-storm-call storm channel due timeout))
    (loop repeat (ceiling (* 20 (+ timeout 2)))
          until (= (storm-begun storm) (storm-ended storm))
          do (sleep 0.05))
    storm))

(defun told-failures (storm failures)
  "A row for each of FAILURES, in the order of their due times: the due time and the end, in seconds
since STORM began, and the error."
  (flet ((seconds (ns) (float (ns-seconds (- ns (storm-begin-ns storm))) 1d0)))
    (coerce (loop for (due ended text) in failures
                  repeat +most-told-failures+
                  collect (vector (seconds due) (seconds ended) text))
            'vector)))

(defun storm-report (storm cpu-seconds grace)
  "The results of STORM, as JSON data. Failed calls that were due more than GRACE
seconds after the first failure was known are counted apart."
  (let* ((failures (sort (copy-list (storm-failures storm)) #'< :key #'first))
         (known-ns (reduce #'min failures :key #'second :initial-value most-positive-fixnum)))
    (flet ((milliseconds (share) (/ (load:histogram-quantile (storm-latencies storm) share) 1d6)))
      `(("calls" . ,(storm-begun storm))
        ("lost" . ,(- (storm-begun storm) (storm-ended storm)))
        ("statuses" . ,(loop for (status . count) in (storm-statuses storm)
                             collect (cons (string-downcase status) count)))
        ("failed" . ,(length failures))
        ("failed_later" . ,(count (+ known-ns (seconds-ns grace)) failures
                                  :key #'first :test #'<))
        ("longest_failure_s" . ,(loop for (due ended) in failures
                                      maximize (float (ns-seconds (- ended due)) 1d0)))
        ("p50_ms" . ,(milliseconds 1/2)) ("p99_ms" . ,(milliseconds 99/100))
        ("max_ms" . ,(milliseconds 1))
        ("cpu_seconds" . ,cpu-seconds)
        ("failures" . ,(told-failures storm failures))))))

(define-command "storm-client"
    (((address "ADDRESS" #'parse-channel-target "Where servers of BenchmarkService listen."))
     ((rate "N" (integer-parser 1 1000000) 2000 "The number of calls that are begun a second.")
      (seconds "DURATION" #'parse-seconds 30 "For how long.")
      (timeout "DURATION" #'parse-seconds 2 "The time-out of each call.")
      (keepalive "DURATION" #'parse-seconds nil
                 "Ping a server after this time of silence, and give it up after the same time
      again.")
      (grace "DURATION" #'parse-seconds 1/10
             "Count the failed calls that were due more than this time after the first failure was
      known.")
      balancing-options client-tls))
    "Begin calls at a fixed rate, independent of earlier ones. Prints `ready` once the first call
has been answered, and at the end a line of JSON: how the calls ended, when the failed calls were
due, and latencies, each counted from the time when the call was due."
  (tune-collector)
  (let ((channel (apply #'grpc:make-channel address
                        :credentials (client-credentials tls-ca tls-cert tls-key tls-name)
                        (append (when keepalive
                                  (list :keepalive-seconds keepalive
                                        :min-keepalive-seconds 0
                                        :keepalive-timeout-seconds keepalive))
                                (balancing-arguments service-config balance)))))
    (unwind-protect
         (progn
           (run-storm channel (min rate 200) 1 timeout)
           (format t "ready~%")
           (finish-output)
           (let* ((cpu (get-internal-run-time))
                  (storm (run-storm channel rate seconds timeout))
                  (cpu-seconds (/ (- (get-internal-run-time) cpu)
                                  (float internal-time-units-per-second 1d0))))
             (write-json (storm-report storm cpu-seconds grace) :stream *standard-output*)
             (terpri)
             (describe channel *error-output*)))
      (grpc:close-channel channel)))
  0)
