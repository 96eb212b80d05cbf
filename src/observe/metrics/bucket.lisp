;;;; Histograms with explicit bounds, as OpenTelemetry defines them: bucket I counts the values
;;;; above bound I-1 and up to bound I, the last bucket those above the last bound. The histograms
;;;; of gRFC A66 are of integers, nanoseconds or octets; the bucket of a value is found from its
;;;; length in bits, which gives the first candidate, and one or two comparisons.
;;;;
;;;;   bounds 0 10 50 100 …: 70 has 7 bits; the first bound of at least 64 is 100, number 3, and
;;;;   70 <= 100, so bucket 3

(in-package #:clgrpc.metrics)

(deftype cells ()
  "A vector of words in which events are counted."
  '(simple-array sb-ext:word (*)))

(defstruct (scale (:constructor %make-scale) (:copier nil))
  "The bounds of a histogram of integers."
  ;; the bounds, in ascending order
  (bounds (make-array 0 :element-type 'sb-ext:word) :type cells :read-only t)
  ;; by the length in bits of a value: the index of the first bound that may be above the value
  (starts (make-array 65 :element-type '(unsigned-byte 8) :initial-element 0)
   :type (simple-array (unsigned-byte 8) (65)) :read-only t)
  ;; the unit of values, in the instrument's unit: 1/10^9 for ns
  (unit 1 :type rational :read-only t))

(declaim (sb-ext:freeze-type scale))

(define-printer (scale scale)
  "~D bounds" (length (scale-bounds scale)))

(defun make-scale (bounds &key (unit 1))
  "A scale with BOUNDS, ascending rationals in the instrument's unit, for integers of UNIT each."
  (let ((integers (mapcar (lambda (bound) (/ bound unit)) bounds)))
    (assert (every (lambda (bound) (typep bound 'sb-ext:word)) integers))
    (assert (apply #'< integers))
    (let ((starts (make-array 65 :element-type '(unsigned-byte 8))))
      (dotimes (length 65)
        (setf (aref starts length)
              (or (position (if (zerop length) 0 (ash 1 (1- length))) integers :test #'<=)
                  (length integers))))
      (%make-scale :unit unit :starts starts
                   :bounds (coerce integers '(simple-array sb-ext:word (*)))))))

(define-hot (bucket-of :inline t) ((scale scale) (value (unsigned-byte 62))) (unsigned-byte 8)
  (let* ((bounds (scale-bounds scale))
         (count (length bounds))
         (i (aref (scale-starts scale) (integer-length value))))
    (declare (type (unsigned-byte 8) i))
    (loop while (and (< i count) (< (aref bounds i) value))
          do (setf i (logand 255 (1+ i))))
    i))

(defun scale-cells (scale)
  "The number of cells of a histogram of SCALE: one for the sum, and one for each bucket."
  (+ 2 (length (scale-bounds scale))))

(defun scale-values (scale)
  "The bounds of SCALE in the unit of its instrument, a list of rationals."
  (map 'list (lambda (bound) (* bound (scale-unit scale))) (scale-bounds scale)))

;;; The scales of the documents

(define-load-time-global **latency**
    (make-scale '(0 1/100000 1/20000 1/10000 3/10000 6/10000 8/10000 1/1000 2/1000 3/1000 4/1000
                  5/1000 6/1000 8/1000 1/100 13/1000 16/1000 2/100 25/1000 3/100 4/100 5/100 65/1000
                  8/100 1/10 13/100 16/100 2/10 25/100 3/10 4/10 5/10 65/100 8/10 1 2 5 10 20 50
                  100)
                :unit 1/1000000000)
  "Latencies in seconds (gRFC A66), recorded in nanoseconds.")

(define-load-time-global **size**
    (make-scale '(0 1024 2048 4096 16384 65536 262144 1048576 4194304 16777216 67108864 268435456
                  1073741824 4294967296))
  "Sizes in octets (gRFC A66).")

(define-load-time-global **retries** (make-scale '(1 2 3 4 5))
  "The scale for the number of retries and hedges of a call (gRFC A96).")

(define-load-time-global **transparent-retries** (make-scale '(1 2 3 4 5 10))
  "The scale for the number of transparent retries of a call (gRFC A96).")

(define-load-time-global **weights**
    (make-scale '(0 5 10 25 50 75 100 250 500 750 1000 2500 5000 7500 10000) :unit 1/1000)
  "The scale for weights of endpoints, in thousandths (gRFC A78 names no bounds, so these are
OpenTelemetry's).")

;;; Counting. A plain cell has one writer at a time, the thread that holds a loop's baton; others
;;; read it meanwhile. An atomic cell has many writers.

(defconstant +padding+ 8
  "The number of unused cells at each end of CELLS, so that two shards never share a cache line.")

(defun make-cells (count)
  "COUNT cells of 0, the first of them at the index +PADDING+."
  (make-array (+ count (* 2 +padding+)) :element-type 'sb-ext:word :initial-element 0))

(define-hot (count-plainly :inline t) ((cells cells) (at index) (value (unsigned-byte 62))) null
  (setf (aref cells at) (ldb (byte 64 0) (+ (aref cells at) value)))
  nil)

(define-hot (count-atomically :inline t) ((cells cells) (at index) (value (unsigned-byte 62))) null
  (sb-ext:atomic-incf (aref cells at) value)
  nil)

(define-hot (record-plainly :inline t) ((cells cells) (at index) (scale scale)
                                        (value (unsigned-byte 62)))
    null
  "Record VALUE in the histogram of SCALE whose cells begin at AT: its sum and the buckets."
  (count-plainly cells at value)
  (count-plainly cells (+ at 1 (bucket-of scale value)) 1))

(define-hot (record-atomically :inline t) ((cells cells) (at index) (scale scale)
                                           (value (unsigned-byte 62)))
    null
  "As RECORD-PLAINLY, from any thread."
  (count-atomically cells at value)
  (count-atomically cells (+ at 1 (bucket-of scale value)) 1))

(define-hot record-several ((cells cells) (at index) (scale scale) (value (unsigned-byte 62))
                            (times index))
    null
  "Record VALUE TIMES times, as RECORD-PLAINLY does."
  (setf (aref cells at) (ldb (byte 64 0) (+ (aref cells at) (ldb (byte 64 0) (* value times)))))
  (count-plainly cells (+ at 1 (bucket-of scale value)) times))
