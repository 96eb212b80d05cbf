;;;; Two measurements compared: what has changed, by how much, and whether that is more than noise.
;;;; Noise is known if each was made in several rounds: a difference of the means counts if Welch's
;;;; interval of 99 % around it does not hold 0, and if it is at least 1 %, which is what histograms
;;;; can tell apart. It is 99 and not 95 % since a dozen figures are compared at once. With a round
;;;; on one side nothing is known of noise, and that is said.

(in-package #:clgrpc.report)

(defparameter *least-difference* 1/100 "Changes below this share are none.")

(defparameter *t-quantiles*
  '((1 . 63.657) (2 . 9.925) (3 . 5.841) (4 . 4.604) (5 . 4.032) (6 . 3.707) (7 . 3.499)
    (8 . 3.355) (9 . 3.250) (10 . 3.169) (12 . 3.055) (15 . 2.947) (20 . 2.845) (30 . 2.750)
    (60 . 2.660) (120 . 2.617))
  "The 99.5 % quantiles of Student's t by degrees of freedom.")

(defun t-quantile (freedom)
  "The quantile for FREEDOM, or for the next smaller number that is known."
  (cdr (or (find freedom *t-quantiles* :key #'car :test #'>= :from-end t)
           (first *t-quantiles*))))

(defun mean (values)
  (/ (reduce #'+ values) (length values)))

(defun squared-error (values)
  "The variance of the mean of VALUES, of which there are two at least."
  (let ((mean (mean values)) (count (length values)))
    (/ (reduce #'+ values :key (lambda (value) (expt (- value mean) 2)))
       (* count (1- count)))))

(defun noise (before after)
  "By how much the means of BEFORE and AFTER, lists of two reals at least, differ at most if nothing
has changed: half of Welch's interval."
  (let* ((a (float (squared-error before) 1d0))
         (b (float (squared-error after) 1d0))
         (sum (+ a b)))
    (if (zerop sum)
        0d0
        (* (sqrt sum)
           (t-quantile (/ (expt sum 2)
                          (+ (/ (expt a 2) (1- (length before)))
                             (/ (expt b 2) (1- (length after))))))))))

(defstruct (comparison (:copier nil))
  "A figure before and after."
  (name "" :type string :read-only t)   ; of the figure
  (unit :time :type keyword :read-only t) ; what it counts, as FIGURE-UNIT
  (before 0 :type real :read-only t)    ; its mean over the rounds
  (after 0 :type real :read-only t)     ; its mean over the rounds
  (noise nil :type (or null real) :read-only t) ; a difference up to this is noise; NIL if unknown
  (verdict :same :type (member :better :worse :same :unknown) :read-only t)) ; of the change

(document-functions
  comparison-name "The name of the figure that COMPARISON is about."
  comparison-verdict "What COMPARISON says of the change: :better, :worse, :same, or :unknown if it
is not known how much of it is noise.")

(defun judge (better before after noise)
  (let ((difference (- after before)))
    (cond ((<= (abs difference) (* *least-difference* (abs before))) :same)
          ((null noise) :unknown)
          ((<= (abs difference) noise) :same)
          ((eq (plusp difference) (eq better :more)) :better)
          (t :worse))))

(defun compare-values (name unit better before after)
  "Compare the figure NAME, a string, which counts in UNIT (:time in ns, :count, :share or :rate)
and of which :less or :more is BETTER. BEFORE and AFTER are its values in the rounds, lists of at
least one real. Return a COMPARISON."
  (let ((noise (and (rest before) (rest after) (noise before after)))
        (before (mean before))
        (after (mean after)))
    (make-comparison :name name :unit unit :before before :after after :noise noise
                     :verdict (judge better before after noise))))

;;; In words

(defun difference-share (comparison)
  "The difference as a share of what was before, or nil if that was nothing."
  (let ((before (comparison-before comparison)))
    (and (not (zerop before))
         (/ (- (comparison-after comparison) before) (abs before)))))

(defun difference-text (comparison)
  "The difference in per cent with its sign: \"−51 %\"; \"\" if it cannot be said so."
  (let ((share (difference-share comparison)))
    (cond ((null share) "")
          ((< (abs share) 1/1000) "0 %")
          (t (format nil "~:[+~;−~]~A %" (minusp share)
                     (page:digits-text (* 100 (abs share)) :digits 2))))))

(defun noise-text (comparison)
  "How large a difference may be without a change, in per cent; \"?\" if that is unknown."
  (let ((noise (comparison-noise comparison)) (before (comparison-before comparison)))
    (cond ((null noise) "?")
          ((zerop noise) "0 %")
          ((zerop before) (value-text (comparison-unit comparison) noise))
          (t (format nil "±~A %" (page:digits-text (* 100 (/ noise (abs before))) :digits 2))))))

(defun comparison-words (comparison)
  "COMPARISON as a sentence: \"p99 fell from 4.10 ms to 2.00 ms (−51 %): better\"."
  (let* ((before (value-text (comparison-unit comparison) (comparison-before comparison)))
         (after (value-text (comparison-unit comparison) (comparison-after comparison)))
         (name (comparison-name comparison))
         (difference (difference-text comparison)))
    (if (eq :same (comparison-verdict comparison))
        (format nil "~A differs by no more than noise: ~A and ~A" name before after)
        (format nil "~A ~:[rose~;fell~] from ~A to ~A~@[ (~A)~]: ~A" name
                (< (comparison-after comparison) (comparison-before comparison)) before after
                (and (plusp (length difference)) difference)
                (ecase (comparison-verdict comparison)
                  (:better "better")
                  (:worse "worse")
                  (:unknown "noise is unknown"))))))

;;; Runs

(defparameter *compared-figures*
  '("p50" "p90" "p99" "p99.9" "p99.99" "mean" "max" "error-ratio" "rps" "cpu-per-call"))

(defun rounds (run)
  "The rounds of RUN: itself if it has but one."
  (or (load:run-rounds run) (list run)))

(defun compare-runs (before after)
  "Compare the figures that both runs BEFORE and AFTER have: a list of COMPARISONs."
  (loop for name in *compared-figures*
        for figure = (find-figure name)
        for (old new) = (loop for run in (list before after)
                              collect (remove nil (mapcar (figure-reader figure) (rounds run))))
        when (and old new)
          collect (compare-values name (figure-unit figure) (figure-better figure) old new)))

(defparameter *unlike-options* '("name" "host" "call" "CPUs")
  "Options that need not be the same for runs to be comparable.")

(defparameter *unset-values* '(nil 0 :false "" "const")
  "What reports write for an option that was not given, if they write it at all: ghz's defaults.")

(defparameter *time-options* '("duration" "timeout" "interval" "together" "warm-up")
  "How the names of options end that are durations, integers of nanoseconds.")

(defparameter *longest-option* 60 "The characters that are told of an option's value.")

(defun meant-options (run)
  "The options of RUN that were given and mean something in it: those of a schedule only with one."
  (flet ((constant-p (schedule)
           (member (cdr (assoc schedule (load:run-options run) :test #'string=)) *unset-values*
                   :test #'equal)))
    (remove-if (lambda (option)
                 (or (member (cdr option) *unset-values* :test #'equal)
                     (loop for (start schedule) in '(("load-" "load-schedule")
                                                     ("concurrency-" "concurrency-schedule"))
                             thereis (and (uiop:string-prefix-p start (car option))
                                          (constant-p schedule)))))
               (load:run-options run))))

(defun option-text (name value)
  "The VALUE, JSON, of the option NAME as comparisons tell it."
  (cond ((null value) "none")
        ((and (integerp value)
              (some (lambda (end) (uiop:string-suffix-p name end)) *time-options*))
         (page:duration-text value))
        (t (bounded-text (write-json value) :limit *longest-option*))))

(defun option-differences (before after)
  "In which options, that should be the same, BEFORE and AFTER differ: lists (name before after)."
  (let ((old (meant-options before)) (new (meant-options after)))
    (loop for name in (remove-duplicates (mapcar #'car (append old new)) :test #'string=)
          for (was is) = (loop for options in (list old new)
                               collect (cdr (assoc name options :test #'string=)))
          unless (or (equalp was is) (member name *unlike-options* :test #'string=))
            collect (list name (option-text name was) (option-text name is)))))

;;; As JSON

(defun comparison-json (comparison)
  (append (object "name" (comparison-name comparison)
                  "unit" (if (eq :time (comparison-unit comparison))
                             "ns"
                             (string-downcase (comparison-unit comparison)))
                  "before" (json-number (comparison-before comparison))
                  "after" (json-number (comparison-after comparison)))
          (list (cons "noise" (if (comparison-noise comparison)
                                  (json-number (comparison-noise comparison))
                                  :null)))
          (object "verdict" (string-downcase (comparison-verdict comparison)))))

(defun runs-comparison-json (before after)
  "How the runs BEFORE and AFTER differ, a JSON object: figures, each with its verdict, and in which
options they differ."
  (flet ((run-object (run)
           (object "name" (load:run-name run) "target" (load:run-target run)
                   "method" (load:run-method run) "started" (load:run-started-unix-ns run)
                   "count" (load:run-count run) "rounds" (length (rounds run)))))
    (list (cons "before" (run-object before))
          (cons "after" (run-object after))
          (cons "figures" (json-vector (mapcar #'comparison-json (compare-runs before after))))
          (cons "options" (json-vector (loop for (name was is) in (option-differences before after)
                                             collect (object "name" name "before" was
                                                             "after" is))))
          (cons "note" (noise-note before after)))))

(defun noise-note (before after)
  "What is to be known of the noise of a comparison of the runs BEFORE and AFTER."
  (let ((old (length (rounds before))) (new (length (rounds after))))
    (if (and (< 1 old) (< 1 new))
        (format nil "Means of ~D and ~D rounds; a difference counts beyond the 99 % interval of ~
                     what rounds differ by (Welch), and from ~A on."
                old new (page:share-text *least-difference*))
        "How much of a difference is noise is unknown with one round; measure with --rounds 5.")))
