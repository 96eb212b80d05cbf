;;;; Whether a figure has changed between two measurements of several rounds each. Other
;;;; work of the machine disturbs rounds in one direction: latencies grow, rates fall, by a little
;;;; or tenfold. So only the calm half of the rounds is compared, such as the better three of five:
;;;; the difference of the means of both calm halves, relative to the variation within them,
;;;;
;;;;   t = (mean b - mean a) / sqrt (var a / |a| + var b / |b|),    a, b: the calm halves
;;;;
;;;; Halves that were chosen like this vary less than all rounds do, so Student's quantiles do not
;;;; apply. The bound that t stays below in 99 of 100 comparisons without a change is found by a
;;;; simulation of normally distributed rounds, from a fixed seed, so that the same rounds always
;;;; have the same verdict. A second test needs no distribution at all (Mann and Whitney): with five
;;;; rounds on both sides, the chance that each round of one side is above each of the other is 2 of
;;;; 252.
;;;;
;;;; Other work of the machine seldom makes calls fail, so all rounds of a share of failed calls are
;;;; compared: a server all of whose calls fail in two of five rounds is not the same as before.

(in-package #:clgrpc.report)

(defun mean (values)
  (/ (reduce #'+ values) (length values)))

(defun median (values)
  (let* ((sorted (sort (copy-list values) #'<)) (half (floor (length values) 2)))
    (if (oddp (length values))
        (nth half sorted)
        (mean (subseq sorted (1- half) (1+ half))))))

(defun calm-half (rounds better &key (key #'identity))
  "The better half of ROUNDS, but at least three rounds, or all of ROUNDS if these are fewer. KEY is
a function from a round to its value; BETTER is :LESS or :MORE, or nil for all of ROUNDS."
  (let ((count (length rounds)))
    (subseq (sort (copy-list rounds) (if (eq :more better) #'> #'<) :key key)
            0 (if better (min count (max 3 (ceiling count 2))) count))))

(defun squared-error (values)
  "The variance of the mean of VALUES, which must be at least two."
  (let ((mean (mean values)) (count (length values)))
    (/ (reduce #'+ values :key (lambda (value) (expt (- value mean) 2)))
       (* count (1- count)))))

(defun calm-difference (before after better)
  "The difference of the means of the calm halves of BEFORE and AFTER, lists of two reals at least,
and its standard error."
  (let ((old (calm-half before better)) (new (calm-half after better)))
    (values (- (mean new) (mean old))
            (sqrt (float (+ (squared-error old) (squared-error new)) 1d0)))))

(defconstant +simulated+ 20000 "The number of simulated comparisons without a change.")
(defconstant +most-simulated-rounds+ 30
  "The number of rounds up to which quantiles are simulated; more rounds use the quantile of this
number.")

(defun normal-value (random)
  "A random number of the standard normal distribution, from the state RANDOM."
  (* (sqrt (* -2 (log (- 1d0 (random 1d0 random))))) (cos (* 2 pi (random 1d0 random)))))

(defun simulate-quantile (before after better)
  "The bound below which the absolute value of t is in 99 of 100 comparisons, with BEFORE and AFTER
rounds, of a program with itself. BETTER is as for CALM-HALF."
  (let ((random (sb-ext:seed-random-state 1))
        (values (make-array +simulated+ :element-type 'double-float)))
    (flet ((rounds (count) (loop repeat count collect (normal-value random))))
      (dotimes (i +simulated+)
        (multiple-value-bind (difference error)
            (calm-difference (rounds before) (rounds after) better)
          (setf (aref values i) (/ (abs difference) error)))))
    (aref (sort values #'<) (floor (* 99/100 +simulated+)))))

(sb-ext:define-load-time-global **quantiles**
  (make-hash-table :test 'equal :synchronized t))

(defun t-quantile (before after &optional (better :less))
  "The value of SIMULATE-QUANTILE for BEFORE and AFTER rounds, or for the highest numbers that are
simulated, and for BETTER; the quantile is the same for :LESS and :MORE."
  (let ((key (list (min before +most-simulated-rounds+) (min after +most-simulated-rounds+)
                   (and better :less))))
    (alexandria:ensure-gethash key **quantiles** (apply #'simulate-quantile key))))

(defun noise (before after better)
  "The maximum difference, if nothing has changed, between the means of the calm halves of BEFORE
and AFTER, lists of at least two reals. BETTER is as for CALM-HALF."
  (let ((error (nth-value 1 (calm-difference before after better))))
    (if (zerop error)
        0d0
        (* error (t-quantile (length before) (length after) better)))))

(defun choose (n k)
  "The number of ways to choose K of N things."
  (loop with result = 1 for i from 1 to k
        do (setf result (/ (* result (- n (- k i))) i))
        finally (return result)))

(defun apart-p (before after)
  "True if each of BEFORE is above each of AFTER, or each is below, and chance alone causes that at
most once in a hundred comparisons."
  (and (or (< (reduce #'max before) (reduce #'min after))
           (< (reduce #'max after) (reduce #'min before)))
       (<= (/ 2 (choose (+ (length before) (length after)) (length before))) 1/100)))

(defun changed-p (before after better)
  "True if BEFORE and AFTER, the values of a figure in at least two rounds each, differ by more than
chance explains."
  (let ((difference (calm-difference before after better)))
    (or (< (noise before after better) (abs difference))
        (apart-p before after))))

(defconstant +most-rounds-told+ 1000 "The maximum number of rounds that ROUNDS-NEEDED returns.")

(defun rounds-needed (before after better wanted)
  "The number of rounds that each side needs so that a difference of WANTED, a real above 0, exceeds
the noise of BEFORE and AFTER, which shrinks with the root of the number of rounds. Return NIL if
more than a thousand rounds are needed."
  (let* ((count (min (length before) (length after)))
         (needed (ceiling (* count (expt (/ (noise before after better) wanted) 2)))))
    (and (<= needed +most-rounds-told+) (max needed (1+ count)))))

(defun outliers (values better)
  "The positions in VALUES of rounds that stand apart. Such rounds are worse than the median by more
than a fifth of the median, and by more than five times the range of the calm half."
  (when (<= 4 (length values))
    (let* ((calm (calm-half values better))
           (median (median values))
           (span (abs (- (first calm) (first (last calm)))))
           (limit (max (* 1/5 (abs median)) (* 5 span))))
      (loop for value in values
            for position from 0
            when (< limit (if (eq :more better) (- median value) (- value median)))
              collect position))))
