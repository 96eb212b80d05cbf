;;;; Scales of axes: from a value to its place, a share from 0 to 1 of the axis, and the ticks,
;;;; which are round values with their text.

(in-package #:clgrpc.page)

(defstruct (scale (:constructor %make-scale (place ticks)) (:copier nil))
  "The scale of an axis: the place of each value, and the ticks."
  ;; a function from a value to the share of the axis before it
  (place #'identity :type function :read-only t)
  (ticks '() :type list :read-only t))  ; conses (share . text), in order

(defun scale-share (scale value)
  "The position of VALUE, a real, on SCALE: a share from 0 to 1; a value beyond an end of the scale
is at that end."
  (max 0d0 (min 1d0 (float (funcall (scale-place scale) value) 1d0))))

(defun make-scale (place values text)
  "A scale with the function PLACE and ticks at VALUES, whose texts the function TEXT makes."
  (%make-scale place (loop for value in values
                           collect (cons (max 0d0 (min 1d0 (float (funcall place value) 1d0)))
                                         (funcall text value)))))

(defun round-step (span count)
  "A step for ticks: 1, 2 or 5 times a power of ten, such that about COUNT steps fit into SPAN."
  (let* ((rough (/ (rational span) count))
         (power (expt 10 (floor (log (float rough 1d0) 10))))
         (factor (find-if (lambda (factor) (<= rough (* factor power))) '(1 2 5 10))))
    (* (or factor 10) power)))

(defun linear-scale (low high &key (text #'number-tick) (count 5))
  "A linear scale from LOW to HIGH, reals, with about COUNT ticks, whose texts the function TEXT
makes. An empty range is widened."
  (let* ((low (rational low))
         (high (if (< low (rational high)) (rational high) (1+ low)))
         (step (round-step (- high low) count)))
    (make-scale (lambda (value) (/ (- (rational value) low) (- high low)))
                (loop for value from (* step (ceiling low step)) to high by step collect value)
                text)))

(defun round-values (low high)
  "The values from LOW to HIGH, positive, to name on a logarithmic axis: powers of ten with their
doubles and quintuples, or fewer of these values if they are many."
  (let ((powers (loop for power from (floor (log low 10)) to (ceiling (log high 10))
                      collect (expt 10 power))))
    (flet ((those (factors)
             (loop for power in powers
                   append (loop for factor in factors
                                when (<= low (* factor power) high)
                                  collect (* factor power)))))
      (let ((all (those '(1 2 5))) (few (those '(1 3))))
        (cond ((<= (length all) 7) all)
              ((<= (length few) 7) few)
              (t (those '(1))))))))

(defun log-scale (low high &key (text #'number-tick))
  "A logarithmic scale from LOW to HIGH, positive reals, with ticks whose texts the function TEXT
makes."
  (let* ((low (float low 1d0))
         (high (if (< low high) (float high 1d0) (* 2 low)))
         (span (log (/ high low))))
    (make-scale (lambda (value)
                  (if (plusp value) (/ (log (/ (float value 1d0) low)) span) 0d0))
                (round-values low high)
                text)))

(defun tail-text (share)
  "SHARE, a rational such as 999/1000, in per cent with all its digits."
  (multiple-value-bind (whole rest) (floor (* 100 share))
    (if (zerop rest)
        (format nil "~D %" whole)
        (loop for places from 1
              for scaled = (* rest (expt 10 places))
              when (integerp scaled)
                return (format nil "~D.~V,'0D %" whole places scaled)))))

(defun tail-scale (nines)
  "A scale of percentiles for latencies: the range from 0 to 0.9 is as wide as the range from 0.9 to
0.99, and so on, up to the percentile with NINES nines. Values are shares from 0 to 1."
  (let ((span (float nines 1d0)))
    (make-scale (lambda (share)
                  (if (< share 1)
                      (/ (- (log (float (- 1 (rational share)) 1d0) 10)) span)
                      1d0))
                (cons 1/2
                      (loop for count from 1 to nines collect (- 1 (expt 1/10 count))))
                #'tail-text)))
