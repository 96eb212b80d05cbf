;;;; The figures of a worker of gRPC's benchmarks: times, and latencies in the buckets that its
;;;; driver wants.

(in-package #:clgrpc.tools)

(defstruct (clock-reading (:copier nil) (:conc-name reading-))
  "The times of the clocks at one moment."
  (ns (monotonic-ns) :type nanoseconds)  ; the time
  (user-us 0 :type unsigned-byte)        ; microseconds of CPU of this process in user mode
  (system-us 0 :type unsigned-byte)      ; time in the kernel
  ;; the ticks of all processors of the machine since it was started
  (total-ticks 0 :type unsigned-byte)
  (idle-ticks 0 :type unsigned-byte))    ; the ticks in which nothing ran

(defun read-clocks ()
  "A CLOCK-READING of the present moment."
  (multiple-value-bind (total idle) (os:processor-ticks)
    (multiple-value-bind (good user system) (sb-unix:unix-getrusage sb-unix:rusage_self)
      (declare (ignore good))
      (make-clock-reading :user-us user :system-us system
                          :total-ticks (or total 0) :idle-ticks (or idle 0)))))

(defun times-since (begin now)
  "The keyword arguments of MAKE-CLIENT-STATS and MAKE-SERVER-STATS for the time between BEGIN and
NOW, readings."
  (flet ((seconds (reader unit)
           (/ (- (funcall reader now) (funcall reader begin)) (float unit 1d0))))
    (list :time-elapsed (seconds #'reading-ns +ns-per-second+)
          :time-user (seconds #'reading-user-us 1000000)
          :time-system (seconds #'reading-system-us 1000000))))

(defconstant +most-driver-buckets+ 100000
  "The maximum number of buckets for which a driver may ask; 2,600 are usual.")

(defun driver-bucket (ns growth)
  "The number of the bucket for NS, if each bucket is GROWTH times as wide as the previous bucket."
  (if (<= ns 1) 0 (floor (log (float ns 1d0) growth))))

(defun driver-buckets (params)
  "Return two values for the histogram that PARAMS, HistogramParams or nil, specify: the factor by
which each bucket is wider than the previous bucket, and the number of the last bucket."
  (let* ((resolution (and params (testing:histogram-params-resolution params)))
         (most (and params (testing:histogram-params-max-possible params)))
         (wanted (and params (finite-p resolution) (finite-p most) (plusp resolution)))
         ;; a finer resolution would need more buckets than allowed
         (growth (1+ (if wanted (clamp resolution 1d-6 1d9) 0.01d0))))
    (values growth (driver-bucket (if wanted (clamp most 0d0 1d18) 6d10) growth))))

(defun histogram-data (histogram params)
  "The data of HISTOGRAM in the buckets that PARAMS, HistogramParams or nil, specify: each of our
buckets is counted in the bucket that contains its middle, which differs from its values by at most
one part in 256."
  (multiple-value-bind (growth last) (driver-buckets params)
    (unless (<= 0 last +most-driver-buckets+)
      (grpc:fail :invalid-argument "That would be too many buckets."))
    (let ((buckets (make-array (1+ last) :initial-element 0)) (squares 0d0))
      (load:map-histogram (lambda (low high count)
                            (let ((middle (/ (+ low high -1) 2)))
                              (incf (aref buckets (min last (driver-bucket middle growth))) count)
                              (incf squares (* count (expt (float middle 1d0) 2)))))
                          histogram)
      (testing:make-histogram-data
       :bucket buckets
       :min-seen (float (load:histogram-min histogram) 1d0)
       :max-seen (float (load:histogram-max histogram) 1d0)
       :sum (float (load:histogram-sum histogram) 1d0)
       :sum-of-squares squares
       :count (float (load:histogram-count histogram) 1d0)))))
