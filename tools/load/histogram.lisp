;;;; Histograms of times in nanoseconds: 128 buckets for each doubling, so that a value and the
;;;; middle of its bucket differ by at most one part in 256. Count, sum, least and greatest are
;;;; exact. Only the buckets between the least and the greatest value seen, rounded to doublings,
;;;; are kept: a histogram of a second of calls takes some kilooctets.
;;;;
;;;; A histogram belongs to one thread until it is merged with others.

(in-package #:clgrpc.load)

(defconstant +buckets-per-doubling+ 128)

(deftype quantity ()
  "A number of calls, octets or other counted things."
  '(unsigned-byte 62))

(deftype buckets () '(simple-array fixnum (*)))

(defstruct (histogram (:copier nil) (:constructor make-histogram ()))
  "The distribution of times in nanoseconds."
  (count 0 :type quantity) ; how many values there are
  (sum 0 :type quantity)   ; the sum of all values
  (min 0 :type nanoseconds)                  ; the least value; 0 without any
  (max 0 :type nanoseconds)                  ; the greatest value
  (first 0 :type index)                      ; the number of the bucket that BUCKETS begins with
  (buckets (make-array 0 :element-type 'fixnum) :type buckets)) ; how many values each bucket has

(define-hot (bucket-of :inline t) ((ns nanoseconds)) index
  "The number of the bucket of NS, which depends on the highest eight bits of NS and on their
position."
  (if (< ns +buckets-per-doubling+)
      ns
      (let ((shift (- (integer-length ns) 8)))
        (declare (type (integer 0 54) shift))
        (+ (* shift +buckets-per-doubling+) (ash ns (- shift))))))

(defun bucket-low (bucket)
  "The lowest value of BUCKET. The highest value of BUCKET is one less than the lowest value of the
next bucket."
  (if (< bucket (* 2 +buckets-per-doubling+))
      bucket
      (multiple-value-bind (shift highest) (floor (- bucket +buckets-per-doubling+)
                                                  +buckets-per-doubling+)
        (ash (+ highest +buckets-per-doubling+) shift))))

(defun bucket-middle (bucket)
  (/ (+ (bucket-low bucket) (1- (bucket-low (1+ bucket)))) 2))

(defun widen (histogram bucket)
  "Extend HISTOGRAM so that it contains BUCKET. The range of times grows by whole doublings."
  (flet ((down (number) (* +buckets-per-doubling+ (floor number +buckets-per-doubling+))))
    (let* ((old (histogram-buckets histogram))
           (first (histogram-first histogram))
           (empty (zerop (length old)))
           (low (down (if empty bucket (min first bucket))))
           (high (+ +buckets-per-doubling+
                    (down (if empty bucket (max (+ first (length old) -1) bucket)))))
           (new (make-array (- high low) :element-type 'fixnum :initial-element 0)))
      (replace new old :start1 (if empty 0 (- first low)))
      (setf (histogram-buckets histogram) new
            (histogram-first histogram) low)
      nil)))

(define-hot record-value ((histogram histogram) (ns nanoseconds)) null
  "Count NS in HISTOGRAM."
  (let ((bucket (bucket-of ns)))
    (unless (< -1 (- bucket (histogram-first histogram)) (length (histogram-buckets histogram)))
      (widen histogram bucket))
    (incf (aref (histogram-buckets histogram) (- bucket (histogram-first histogram))))
    (when (or (< ns (histogram-min histogram)) (zerop (histogram-count histogram)))
      (setf (histogram-min histogram) ns))
    (when (> ns (histogram-max histogram)) (setf (histogram-max histogram) ns))
    (incf (histogram-count histogram))
    (setf (histogram-sum histogram)
          (logand most-positive-fixnum (+ (histogram-sum histogram) ns)))
    nil))

(defun merge-histograms (histograms)
  "Return a histogram of the values of all HISTOGRAMS."
  (let ((sum (make-histogram)))
    (dolist (histogram histograms sum)
      (let ((buckets (histogram-buckets histogram)) (first (histogram-first histogram)))
        (when (plusp (histogram-count histogram))
          (widen sum first)
          (widen sum (+ first (length buckets) -1))
          (loop for count across buckets
                for i from (- first (histogram-first sum))
                do (incf (aref (histogram-buckets sum) i) count))
          (setf (histogram-min sum) (if (zerop (histogram-count sum))
                                        (histogram-min histogram)
                                        (min (histogram-min sum) (histogram-min histogram)))
                (histogram-max sum) (max (histogram-max sum) (histogram-max histogram)))
          (incf (histogram-count sum) (histogram-count histogram))
          (incf (histogram-sum sum) (histogram-sum histogram)))))))

(defun restore-histogram (pairs &key sum min max)
  "Return the histogram whose data MAP-HISTOGRAM has passed to its function. PAIRS are conses: a
time in a bucket, such as the bucket's lowest time, and the number of values in the bucket. SUM, MIN
and MAX are the sum, the minimum and the maximum of all values."
  (let ((histogram (make-histogram)))
    (loop for (ns . count) in pairs
          for bucket = (bucket-of ns)
          do (widen histogram bucket)
             (incf (aref (histogram-buckets histogram) (- bucket (histogram-first histogram)))
                   count)
             (incf (histogram-count histogram) count))
    (setf (histogram-sum histogram) sum
          (histogram-min histogram) min
          (histogram-max histogram) max)
    histogram))

(defun map-histogram (function histogram)
  "Call FUNCTION with LOW, HIGH and COUNT for each bucket of HISTOGRAM that is not empty, in
ascending order. COUNT is the number of values NS with LOW <= NS < HIGH."
  (loop for count across (histogram-buckets histogram)
        for bucket from (histogram-first histogram)
        when (plusp count)
          do (funcall function (bucket-low bucket) (bucket-low (1+ bucket)) count)))

(defun histogram-quantile (histogram share)
  "The quantile SHARE, from 0 to 1, of HISTOGRAM: the shortest time in nanoseconds, a rational, that
this share of the values does not exceed. The error is at most one part in 256. Return 0 if
HISTOGRAM has no values."
  (let* ((count (histogram-count histogram))
         (rank (max 1 (ceiling (* (rational share) count)))))
    (cond ((zerop count) 0)
          ((= rank count) (histogram-max histogram))
          (t (loop for of-bucket across (histogram-buckets histogram)
                   for bucket from (histogram-first histogram)
                   do (when (<= (decf rank of-bucket) 0)
                        (return (max (histogram-min histogram)
                                     (min (histogram-max histogram) (bucket-middle bucket))))))))))

(defun histogram-mean (histogram)
  "The exact mean of the values of HISTOGRAM, a rational, or 0 if HISTOGRAM has no values."
  (/ (histogram-sum histogram) (max 1 (histogram-count histogram))))
