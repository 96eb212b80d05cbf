;;;; Comparisons of two measurements: each change, its size, and whether it is more than noise
;;;; (significance.lisp), which is known if each was made in several rounds. The shown value of a
;;;; figure is the median of its rounds, of a share the mean. The verdict is
;;;;
;;;;   better, worse   the difference is beyond the noise, and at least 1 %, the resolution of
;;;;                   histograms
;;;;   same            the difference is within the noise, and the noise is small: a change of 5 %
;;;;                   would have been seen
;;;;   unclear         the difference is within the noise, which could hide a change of 5 %; the
;;;;                   report says how many rounds would decide
;;;;   unknown         one side has a single round, so that the noise is unknown
;;;;
;;;; The level of confidence is 99 % and not 95 %, since a dozen figures are compared at once.

(in-package #:clgrpc.report)

(defparameter *least-difference* 1/100
  "The relative change below which a figure counts as unchanged.")
(defparameter *equivalence* 1/20 "A figure counts as the same if its noise is below this share.")
(defparameter *equivalent-share* 1/1000
  "A share, such as the error ratio, counts as the same if its noise is below this number.")

(defstruct (comparison (:copier nil))
  "A figure before and after."
  (name "" :type string :read-only t)   ; the name of the figure
  (unit :time :type keyword :read-only t) ; the figure's unit, as FIGURE-UNIT
  (before 0 :type real :read-only t)    ; the median, or a share's mean, of the figure's rounds
  (after 0 :type real :read-only t)     ; likewise
  (noise nil :type (or null real) :read-only t) ; a difference up to this is noise; NIL if unknown
  ;; the verdict on the change
  (verdict :same :type (member :better :worse :same :unclear :unknown) :read-only t)
  ;; for :UNCLEAR, the number of rounds that would decide; NIL if very many
  (rounds-needed nil :type (or null unsigned-byte) :read-only t)
  ;; positions, from 0, of the rounds that stand apart from the others
  (outliers-before '() :type list :read-only t)
  (outliers-after '() :type list :read-only t))

(document-functions
  comparison-name "The name of the figure that COMPARISON is about."
  comparison-verdict "Return the verdict of COMPARISON: :better, :worse, :same, :unclear if the
noise could hide a change of 5 %, or :unknown if a side has only one round.")

(defun least-noise (unit before)
  "The noise below which a figure in UNIT, whose value is BEFORE, may count as the same."
  (max (* *equivalence* (abs before)) (if (eq :share unit) *equivalent-share* 0)))

(defun judge (unit better before after noise changed)
  "The verdict on a figure in UNIT, whose values are BEFORE and AFTER. CHANGED is true if BEFORE
and AFTER differ by more than NOISE."
  (let ((difference (- after before)))
    (cond ((and (zerop difference) (null noise)) :same)
          ((null noise) :unknown)
          ((and changed (< (* *least-difference* (abs before)) (abs difference)))
           (if (eq (plusp difference) (eq better :more)) :better :worse))
          ((or changed (<= noise (least-noise unit before))) :same)
          (t :unclear))))

(defun compare-values (name unit better before after)
  "Compare the figure NAME, a string, which counts in UNIT (:time in ns, :count, :share or :rate)
and of which :less or :more is BETTER. BEFORE and AFTER are the figure's values in the rounds, lists
of at least one real. Return a COMPARISON."
  (let* ((several (and (rest before) (rest after)))
         (calm (if (eq :share unit) nil better)) ; as BETTER of CALM-HALF
         (noise (and several (noise before after calm)))
         (middle (if calm #'median #'mean))
         (was (funcall middle before))
         (is (funcall middle after))
         (verdict (judge unit better was is noise
                         (and several (changed-p before after calm)))))
    (make-comparison :name name :unit unit :before was :after is :noise noise :verdict verdict
                     :rounds-needed
                     (and (eq :unclear verdict)
                          (rounds-needed before after calm
                                         (max (abs (- is was)) (least-noise unit was) 1d-9)))
                     :outliers-before (outliers before better)
                     :outliers-after (outliers after better))))

(defparameter *tail-figures* '("p99.9" "p99.99" "max")
  "Figures that depend on a few calls only. An unclear verdict on such figures is no reason to
measure again.")

(defun unclear-p (comparison)
  "True if COMPARISON is unclear or unknown, and not about one of *TAIL-FIGURES*, which a run of
ordinary length cannot settle."
  (and (member (comparison-verdict comparison) '(:unclear :unknown))
       (not (member (comparison-name comparison) *tail-figures* :test #'string=))))

;;; In words

(defun difference-share (comparison)
  "The difference, as a share of the value before, or nil if the value before was 0."
  (let ((before (comparison-before comparison)))
    (and (not (zerop before))
         (/ (- (comparison-after comparison) before) (abs before)))))

(defun difference-text (comparison)
  "The difference in per cent with its sign, such as \"−51 %\"; \"\" if the value before was 0."
  (let ((share (difference-share comparison)))
    (cond ((null share) "")
          ((< (abs share) 1/1000) "0 %")
          (t (format nil "~:[+~;−~]~A %" (minusp share)
                     (page:digits-text (* 100 (abs share)) :digits 2))))))

(defun noise-text (comparison)
  "The largest difference that chance explains, in per cent; \"?\" if that is unknown."
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
        (format nil "~A differs by no more than noise, which is small: ~A and ~A" name before after)
        (format nil "~A ~:[rose~;fell~] from ~A to ~A~@[ (~A)~]: ~A" name
                (< (comparison-after comparison) (comparison-before comparison)) before after
                (and (plusp (length difference)) difference)
                (ecase (comparison-verdict comparison)
                  (:better "better")
                  (:worse "worse")
                  (:unclear (unclear-words comparison))
                  (:unknown "noise is unknown with one round"))))))

(defun unclear-words (comparison)
  "The reason why COMPARISON is unclear, and the number of rounds that would decide it."
  (format nil "unclear, the noise is ~A; ~:[more than ~D rounds~;about ~:*~D rounds~*~] ~
               would decide"
          (noise-text comparison) (comparison-rounds-needed comparison) +most-rounds-told+))

(defun outlier-words (comparison)
  "A text about the rounds of COMPARISON that stand apart from the others, or nil if no rounds do."
  (flet ((rounds (positions) (mapcar #'1+ positions)))
    (let ((before (rounds (comparison-outliers-before comparison)))
          (after (rounds (comparison-outliers-after comparison))))
      (and (or before after)
           (format nil "~A was disturbed in ~@[~{round ~D~^, ~} before~]~:[~; and ~]~
                        ~@[~{round ~D~^, ~} after~]"
                   (comparison-name comparison) before (and before after) after)))))

;;; Runs

(defparameter *compared-figures*
  '("p50" "p90" "p99" "p99.9" "p99.99" "mean" "max" "error-ratio" "rps" "cpu-per-call"))

(defun rounds (run)
  "The rounds of RUN, or a list of RUN itself if it has a single round."
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
  "Options that may differ between runs that are compared.")

(defparameter *unset-values* '(nil 0 :false "" "const")
  "The values that reports write for options that were not given, if they write them at all: ghz's
defaults.")

(defparameter *time-options* '("duration" "timeout" "interval" "together" "warm-up")
  "Endings of option names; options with these have durations as values, in nanoseconds.")

(defparameter *longest-option* 60
  "The maximum number of characters of an option's value that are shown.")

(defun meant-options (run)
  "The options of RUN that were given and had an effect in it: the options of a schedule only if
there is a schedule."
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
  "The VALUE, JSON, of the option NAME as comparisons write it."
  (cond ((null value) "none")
        ((and (integerp value)
              (some (lambda (end) (uiop:string-suffix-p name end)) *time-options*))
         (page:duration-text value))
        (t (bounded-text (write-json value) :limit *longest-option*))))

(defun option-differences (before after)
  "The options that differ between BEFORE and AFTER although they should be the same: lists (name
before after)."
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
          (object "verdict" (string-downcase (comparison-verdict comparison))
                  "roundsNeeded" (comparison-rounds-needed comparison))
          (list (cons "outliersBefore" (json-vector (mapcar #'1+ (comparison-outliers-before
                                                                  comparison))))
                (cons "outliersAfter" (json-vector (mapcar #'1+ (comparison-outliers-after
                                                                 comparison)))))))

(defun runs-comparison-json (before after)
  "The differences between the runs BEFORE and AFTER as a JSON object: the figures, each with its
verdict, and the options that differ."
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
  "A text about the noise of a comparison of the runs BEFORE and AFTER."
  (let ((old (length (rounds before))) (new (length (rounds after))))
    (if (and (< 1 old) (< 1 new))
        (format nil "Medians of ~D and ~D rounds, means of the error ratio. A difference counts if ~
                     the calm halves of the rounds differ more than by chance in 99 of 100 ~
                     comparisons, or the rounds do not overlap at all (Mann and Whitney, 99 %), ~
                     and if it is at least ~A. Where noise could hide a difference of ~A, it is ~
                     unclear whether there is one."
                old new (page:share-text *least-difference*) (page:share-text *equivalence*))
        "How much of a difference is noise is unknown with one round; measure with --rounds 5.")))
