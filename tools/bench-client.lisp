;;;; The command `bench-client`: the client as a load of GetFeature calls, in the three manners a
;;;; program can wait for many answers, so that bench/run can measure what a call costs the caller.
;;;; What it prints and how it is driven is the protocol of the command `load` of tests/peers.

(in-package #:clgrpc.tools)

;;; Latencies are counted in buckets, 128 for each doubling, since a list of them would be garbage
;;; of the measurement's own.

(defconstant +buckets-per-doubling+ 128)

(deftype buckets () '(simple-array fixnum (5120)))

(defstruct (tally (:copier nil))
  "What one caller has done: CALLS that took TOTAL-NS together, and how many took how long."
  (calls 0 :type fixnum)
  (total-ns 0 :type nanoseconds)
  (buckets (make-array 5120 :element-type 'fixnum :initial-element 0) :type buckets))

(define-hot latency-bucket ((ns nanoseconds)) fixnum
  "The index of the bucket of NS: its highest eight bits, and where they stand."
  (if (< ns +buckets-per-doubling+)
      ns
      (let ((shift (- (integer-length ns) 8)))
        (+ (* shift +buckets-per-doubling+) (ash ns (- shift))))))

(defun bucket-ns (bucket)
  "The middle of the latencies of BUCKET."
  (if (< bucket +buckets-per-doubling+)
      bucket
      (multiple-value-bind (shift highest) (floor (- bucket +buckets-per-doubling+)
                                                  +buckets-per-doubling+)
        (* (+ highest +buckets-per-doubling+ 1/2) (expt 2 shift)))))

(define-hot count-call ((tally tally) (ns nanoseconds)) null
  (incf (tally-calls tally))
  (setf (tally-total-ns tally) (logand most-positive-fixnum (+ (tally-total-ns tally) ns)))
  (incf (aref (tally-buckets tally) (min (latency-bucket ns) 5119)))
  nil)

(defun merge-tallies (tallies)
  (let ((sum (make-tally)))
    (dolist (tally tallies sum)
      (incf (tally-calls sum) (tally-calls tally))
      (incf (tally-total-ns sum) (tally-total-ns tally))
      (map-into (tally-buckets sum) #'+ (tally-buckets sum) (tally-buckets tally)))))

(defun tally-quantile-us (tally share)
  "The latency in microseconds that SHARE of the calls of TALLY did not exceed."
  (let ((left (floor (* share (tally-calls tally)))))
    (loop for count across (tally-buckets tally)
          for bucket from 0
          do (when (minusp (decf left count))
               (return (/ (bucket-ns bucket) 1d3)))
          finally (return 0d0))))

;;; Three manners of calling. Each calls until END, a time of MONOTONIC-NS, and returns a tally.

(defparameter *bench-point* (routeguide:make-point :latitude 409146138 :longitude -746188906)
  "Where the first of the known features lies.")

(defun call-until (end channel)
  "One call after the other on this thread."
  (let ((tally (make-tally)))
    (loop with begin = (monotonic-ns)
          while (< begin end)
          do (routeguide.route-guide:get-feature channel *bench-point*)
             (let ((now (monotonic-ns)))
               (count-call tally (- now begin))
               (setf begin now)))
    tally))

(defun call-on-threads-until (end channel in-flight)
  "IN-FLIGHT threads that share CHANNEL, each with one call after the other."
  (merge-tallies
   (mapcar #'sb-thread:join-thread
           (loop for i from 1 to in-flight
                 collect (sb-thread:make-thread #'call-until :arguments (list end channel)
                                                :name (format nil "caller ~D" i))))))

(defun call-ahead-until (end channel in-flight)
  "This thread alone, with IN-FLIGHT calls on their way: it awaits the oldest and makes another."
  (let ((tally (make-tally))
        (futures (make-array in-flight))
        (begins (make-array in-flight :element-type 'nanoseconds :initial-element 0)))
    (flet ((begin-call (i now)
             (setf (aref begins i) now
                   (aref futures i) (grpc:call-async #'routeguide.route-guide:get-feature channel
                                                     *bench-point*)))
           (end-call (i)
             (grpc:await (aref futures i))
             (let ((now (monotonic-ns)))
               (count-call tally (- now (aref begins i)))
               now)))
      (dotimes (i in-flight) (begin-call i (monotonic-ns)))
      (loop with now = 0
            while (< now end)
            do (dotimes (i in-flight)
                 (setf now (end-call i))
                 (begin-call i now)))
      (dotimes (i in-flight) (end-call i)))
    tally))

(defun call-in-manner-until (manner end channel in-flight)
  (ecase manner
    (:one (call-until end channel))
    (:threads (call-on-threads-until end channel in-flight))
    (:async (call-ahead-until end channel in-flight))))

;;; Measuring

(defun manner-parser (string)
  (or (find string '(:one :threads :async) :test #'string-equal)
      (refuse "one, threads or async is wanted, not ~S" string)))

(defun measure-calls (manner channel in-flight milliseconds)
  "Call for MILLISECONDS and print what came of it as one line of JSON."
  (let* ((cpu (get-internal-run-time))
         (begin (monotonic-ns))
         (tally (call-in-manner-until manner (+ begin (* milliseconds 1000000)) channel in-flight))
         (seconds (ns-seconds (- (monotonic-ns) begin)))
         (cpu-seconds (/ (- (get-internal-run-time) cpu)
                         (float internal-time-units-per-second 1d0))))
    (format t "{\"calls\":~D,\"messages\":~:*~D,\"seconds\":~,6F,\"cpu_seconds\":~,6F,~
               \"mean_latency_us\":~,3F,\"p50_us\":~,3F,\"p99_us\":~,3F}~%"
            (tally-calls tally) seconds cpu-seconds
            (/ (tally-total-ns tally) 1d3 (max 1 (tally-calls tally)))
            (tally-quantile-us tally 1/2) (tally-quantile-us tally 99/100))
    (finish-output)))

(define-command "bench-client"
    (((address "ADDRESS" (address-parser 1) "Where a RouteGuide server listens."))
     ((manner "MANNER" #'manner-parser :async
              "How to wait: `one` call at a time, `threads` that block, or `async`, one thread with
      futures.")
      (in-flight "N" (integer-parser 1 10000) 100 "Calls at once, all on one connection.")
      (milliseconds "N" (integer-parser 1 3600000) 1000 "How long a measurement takes.")
      client-tls))
    "Measure what calls cost the client, as the benchmarks do. Calls GetFeature; prints `ready` and
then, for each line on standard input, a line of JSON with calls, CPU seconds and latencies."
  (tune-collector)
  (grpc:with-channel (channel address
                      :credentials (client-credentials tls-ca tls-cert tls-key tls-name))
    (call-in-manner-until manner (+ (monotonic-ns) (* milliseconds 200000)) channel in-flight)
    (format t "ready~%")
    (finish-output)
    (loop while (read-line *standard-input* nil)
          do (measure-calls manner channel in-flight milliseconds)))
  0)
