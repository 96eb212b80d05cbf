;;;; The figures of a run by name, for conditions and comparisons: percentiles such as
;;;; p99.9, max, mean, errors, error-ratio, rps, cpu-per-call. All times are in nanoseconds and of
;;;; the calls that ended with OK.

(in-package #:clgrpc.report)

(defstruct (figure (:constructor make-figure (name unit better reader)) (:copier nil))
  "A figure of a run."
  (name "" :type string :read-only t)   ; the figure's name in conditions
  (unit :time :type (member :time :count :share :rate) :read-only t) ; the figure's unit
  (better :less :type (member :less :more) :read-only t) ; the direction of a good change
  ;; a function from a run to the figure's value, or nil
  (reader #'identity :type function :read-only t))

(defun latency-reader (function)
  "A reader that calls FUNCTION with the latencies of a run; its value is nil if no call succeeded."
  (lambda (run)
    (let ((latency (load:run-latency run)))
      (and (plusp (load:histogram-count latency))
           (funcall function latency)))))

(defun error-count (run)
  "The number of calls of RUN that did not end with OK."
  (loop for row in (load:run-statuses run)
        unless (zerop (load:status-row-code row))
          sum (load:status-row-count row)))

(defun rate (run)
  "The number of calls that ended per second in RUN, a rational."
  (/ (* (load:run-count run) 1000000000) (max 1 (load:run-duration-ns run))))

(defparameter *plain-figures*
  (list (make-figure "max" :time :less (latency-reader #'load:histogram-max))
        (make-figure "min" :time :less (latency-reader #'load:histogram-min))
        (make-figure "mean" :time :less (latency-reader #'load:histogram-mean))
        (make-figure "errors" :count :less #'error-count)
        (make-figure "error-ratio" :share :less
                     (lambda (run)
                       (and (plusp (load:run-count run))
                            (/ (error-count run) (load:run-count run)))))
        (make-figure "rps" :rate :more #'rate)
        (make-figure "cpu-per-call" :time :less
                     (lambda (run)
                       (and (plusp (load:run-count run)) (plusp (load:run-cpu-ns run))
                            (/ (load:run-cpu-ns run) (load:run-count run))))))
  "The figures other than percentiles.")

(defun percentile (name)
  "The share that NAME, such as \"p99.9\", means, a rational above 0 and below 1. Return nil if NAME
is not the name of a percentile."
  (let* ((digits (and (< 1 (length name) 12) (char= #\p (char name 0)) (subseq name 1)))
         (dot (or (position #\. digits) (length digits)))
         (plain (remove #\. digits :count 1)))
    (when (and digits (plusp dot) (/= dot (1- (length digits)))
               (every (lambda (char) (char<= #\0 char #\9)) plain))
      (let ((share (/ (parse-integer plain) (expt 10 (max 0 (- (length digits) dot 1))) 100)))
        (and (< 0 share 1) share)))))

(defun find-figure (name)
  "The figure with NAME, a string, or nil if no figure has that name."
  (if-let ((share (percentile name)))
    (make-figure name :time :less
                 (latency-reader (lambda (latency) (load:histogram-quantile latency share))))
    (find name *plain-figures* :key #'figure-name :test #'string=)))

(defun figure-value (name run)
  "The figure NAME of RUN, a real; a time is in nanoseconds. Return NIL if RUN lacks the figure, as
it lacks percentiles if no call succeeded."
  (funcall (figure-reader (find-figure name)) run))

(defun value-text (unit value)
  "The text of VALUE, the value of a figure in UNIT, for people."
  (if (null value)
      "none"
      (ecase unit
        (:time (page:duration-text value))
        (:count (page:count-text value))
        (:share (page:share-text value))
        (:rate (page:digits-text value)))))
