;;;; The command `bench-client` makes GetFeature calls in the three ways in which a program can wait
;;;; for many answers, so that bench/run can measure a call's cost for the caller. The client's
;;;; input and output follow the protocol of the command `load` of tests/peers.

(in-package #:clgrpc.testee)

;;; Three ways to make calls. Each function makes calls until END, a time of MONOTONIC-NS, and
;;; returns a histogram of latencies.

(defparameter *bench-point* (routeguide:make-point :latitude 409146138 :longitude -746188906)
  "The location of the first of the known features.")

(defun call-until (end channel)
  "Make one call after the other on this thread."
  (let ((latencies (load:make-histogram)))
    (loop with begin = (monotonic-ns)
          while (< begin end)
          do (routeguide.route-guide:get-feature channel *bench-point*)
             (let ((now (monotonic-ns)))
               (load:record-value latencies (- now begin))
               (setf begin now)))
    latencies))

(defun call-on-threads-until (end channel in-flight)
  "Let IN-FLIGHT threads that share CHANNEL each make one call after the other."
  (load:merge-histograms
   (mapcar #'sb-thread:join-thread
           (loop for i from 1 to in-flight
                 collect (sb-thread:make-thread #'call-until :arguments (list end channel)
                                                :name (format nil "caller ~D" i))))))

(defun call-ahead-until (end channel in-flight)
  "Keep IN-FLIGHT calls under way on this thread alone: await the oldest call, then make another."
  (let ((latencies (load:make-histogram))
        (futures (make-array in-flight))
        (begins (make-array in-flight :element-type 'nanoseconds :initial-element 0)))
    (flet ((begin-call (i now)
             (setf (aref begins i) now
                   (aref futures i) (grpc:call-async #'routeguide.route-guide:get-feature channel
                                                     *bench-point*)))
           (end-call (i)
             (grpc:await (aref futures i))
             (let ((now (monotonic-ns)))
               (load:record-value latencies (- now (aref begins i)))
               now)))
      (dotimes (i in-flight) (begin-call i (monotonic-ns)))
      (loop with now = 0
            while (< now end)
            do (dotimes (i in-flight)
                 (setf now (end-call i))
                 (begin-call i now)))
      (dotimes (i in-flight) (end-call i)))
    latencies))

(defun call-in-manner-until (manner end channel in-flight)
  (ecase manner
    (:one (call-until end channel))
    (:threads (call-on-threads-until end channel in-flight))
    (:async (call-ahead-until end channel in-flight))))

;;; Measuring

(defun manner-parser (string)
  (or (find string '(:one :threads :async) :test #'string-equal)
      (refuse "one, threads or async is expected, not ~S" string)))

(defun measure-calls (manner channel in-flight milliseconds)
  "Call for MILLISECONDS and print the results as one line of JSON."
  (let* ((cpu (get-internal-run-time))
         (begin (monotonic-ns))
         (end (+ begin (* milliseconds 1000000)))
         (latencies (call-in-manner-until manner end channel in-flight))
         (seconds (ns-seconds (- (monotonic-ns) begin)))
         (cpu-seconds (/ (- (get-internal-run-time) cpu)
                         (float internal-time-units-per-second 1d0))))
    (format t "{\"calls\":~D,\"messages\":~:*~D,\"seconds\":~,6F,\"cpu_seconds\":~,6F,~
               \"mean_latency_us\":~,3F,\"p50_us\":~,3F,\"p99_us\":~,3F}~%"
            (load:histogram-count latencies) seconds cpu-seconds
            (/ (load:histogram-mean latencies) 1d3)
            (/ (load:histogram-quantile latencies 1/2) 1d3)
            (/ (load:histogram-quantile latencies 99/100) 1d3))
    (finish-output)))

(define-command "bench-client"
    (((address "ADDRESS" (address-parser 1) "Where a RouteGuide server listens."))
     ((manner "MANNER" #'manner-parser :async
              "How to wait: `one` call at a time, `threads` that block, or `async`, one thread with
      futures.")
      (in-flight "N" (integer-parser 1 10000) 100 "Calls at once, all on one connection.")
      (milliseconds "N" (integer-parser 1 3600000) 1000 "How long a measurement takes.")
      client-tls))
    "Measure the cost of calls for the client, as the benchmarks do. Calls GetFeature; prints
`ready` and then, for each line on standard input, a line of JSON with calls, CPU seconds and
latencies."
  (tune-collector)
  (grpc:with-channel (channel address
                      :credentials (client-credentials tls-ca tls-cert tls-key tls-name))
    (call-in-manner-until manner (+ (monotonic-ns) (* milliseconds 200000)) channel in-flight)
    (format t "ready~%")
    (finish-output)
    (loop while (read-line *standard-input* nil)
          do (measure-calls manner channel in-flight milliseconds)))
  0)
