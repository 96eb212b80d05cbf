;;;; Two profiles side by side: for each figure both values, their difference, and whether that is
;;;; more than noise. A count of N samples varies from run to run by the root of N, by chance alone;
;;;; a difference counts if it is more than twice that noise of both profiles together. A single
;;;; pair of runs does not show other variation, such as that of the load. Profiles of several
;;;; rounds do: their figures are means of the calm half of the rounds, and the noise is that of
;;;; rounds, as for runs of `clgrpc load` (tools/report/significance.lisp), if that is larger. The
;;;; mean of a calm half is below a single round on average. So if one profile has a single round,
;;;; the other profile's figure is the mean of all its rounds, and the noise is the uncertainty of
;;;; that mean.

(in-package #:clgrpc.profile)

(defstruct (difference (:copier nil))
  "The values of one figure in two profiles."
  (name "" :type string :read-only t)
  (unit "" :type string :read-only t)
  (before 0 :type real :read-only t)
  (after 0 :type real :read-only t)
  (noise 0 :type real :read-only t))    ; the largest difference that chance explains

(defun difference-change (difference)
  (- (difference-after difference) (difference-before difference)))

(defun difference-verdict (difference)
  "\"more\", \"less\", or \"same\" if DIFFERENCE is within its noise."
  (let ((change (difference-change difference)))
    (cond ((<= (abs change) (difference-noise difference)) "same")
          ((plusp change) "more")
          (t "less"))))

(defun sampling-noise (ns period-ns)
  "The error that chance gives NS, the sum of samples of PERIOD-NS each: two standard deviations."
  (* 2 period-ns (sqrt (/ (max ns period-ns) period-ns))))

(defun rounds-of (profile)
  "The rounds of PROFILE, a list of profiles. If PROFILE has a single round, it is the only
element."
  (or (coerce (member-of profile "rounds") 'list) (list profile)))

(defun root-of-squares (values)
  (sqrt (reduce #'+ values :key (lambda (value) (* value value)))))

(defun doubt (values)
  "Two standard deviations of the mean of VALUES, figures of rounds; 0 if VALUES has a single
element."
  (let ((count (length values)) (mean (mean values)))
    (if (< count 2)
        0
        (* 2 (/ (root-of-squares (mapcar (lambda (value) (- value mean)) values))
                (sqrt (* count (1- count))))))))

(defun difference (name unit before after figure noise &optional (better :less))
  "The difference of FIGURE, a function of a round, between the profiles BEFORE and AFTER, or nil if
one of them lacks the figure. NOISE is a function of the mean and of the figures of the rounds, and
returns the error of the mean that chance can cause. BETTER is :LESS or :MORE."
  (declare (type function figure noise))
  (flet ((figures (rounds) (mapcar figure rounds)))
    (let* ((old-rounds (rounds-of before)) (old (figures old-rounds))
           (new-rounds (rounds-of after)) (new (figures new-rounds))
           (several (and (rest old) (rest new))))
      (unless (or (member nil old) (member nil new))
        (flet ((compared (rounds)
                 (if several (report:calm-half rounds better :key figure) rounds))
               (error-of (rounds) (funcall noise (mean (figures rounds)) rounds)))
          (let ((old-compared (compared old-rounds)) (new-compared (compared new-rounds)))
            (make-difference
             :name name :unit unit
             :before (mean (figures old-compared)) :after (mean (figures new-compared))
             :noise (max (if several
                             (report:noise old new better)
                             (root-of-squares (list (doubt old) (doubt new))))
                         (root-of-squares (list (error-of old-compared)
                                                (error-of new-compared)))))))))))

(defun names-of (before after path)
  "The names of the rows at PATH, names, of all rounds of the profiles BEFORE and AFTER."
  (remove-duplicates
   (loop for profile in (append (rounds-of before) (rounds-of after))
         append (map 'list (lambda (row) (member-of row "name"))
                     (apply #'member-of profile path)))
   :test #'string= :from-end t))

(defun row-figure (profile path name field)
  "FIELD of the row NAME at PATH of PROFILE, or 0 if PROFILE has no such row."
  (let ((row (find name (apply #'member-of profile path) :test #'string=
                   :key (lambda (row) (member-of row "name")))))
    (or (and row (member-of row field)) 0)))

(defun round-calls (profile)
  "The number of calls to which PROFILE's CPU time belongs, or nil if it is not known."
  (let ((calls (member-of profile "cpu" "calls")))
    (and calls (plusp calls) calls)))

(defun cpu-differences (before after part)
  "Differences of the rows PART of the CPU of the profiles BEFORE and AFTER, in µs a call if all
rounds know their calls, else in ms in total."
  (let* ((path (list "cpu" part))
         (known (every #'round-calls (append (rounds-of before) (rounds-of after)))))
    (flet ((unit-ns (profile) (if known (* 1d3 (round-calls profile)) 1d6)))
      (loop for name in (names-of before after path)
            collect (let ((name name))
                      (difference name (if known "µs/call" "ms") before after
                                  (lambda (profile)
                                    (/ (row-figure profile path name "ns") (unit-ns profile)))
                                  (lambda (mean rounds)
                                    (declare (ignore mean))
                                    (/ (root-of-squares
                                        (mapcar (lambda (profile)
                                                  (/ (sampling-noise
                                                      (row-figure profile path name "ns")
                                                      (member-of profile "cpu" "periodNs"))
                                                     (unit-ns profile)))
                                                rounds))
                                       (length rounds)))))))))

(defun plain-differences (before after path field unit)
  "The differences between the profiles BEFORE and AFTER in FIELD of the rows at PATH, a list of
names. The figures are counts per call. A difference of at most a thirtieth, or of a thousandth of a
count, counts as chance."
  (loop for name in (names-of before after path)
        collect (let ((name name))
                  (difference name unit before after
                              (lambda (profile) (row-figure profile path name field))
                              (lambda (mean rounds)
                                (declare (ignore rounds))
                                (max (/ mean 30) 1/1500))))))

(defun figure-differences (before after)
  "Differences of those figures of which a profile has a single one."
  (flet ((both (name unit function &optional (noise 1/100) (better :less))
           (difference name unit before after function
                       (lambda (mean rounds) (declare (ignore rounds)) (* noise mean)) better))
         (of (&rest path) (lambda (profile) (apply #'member-of profile path))))
    (remove nil
            (list (both "CPU" "µs/call"
                        (lambda (profile)
                          (let ((calls (round-calls profile)))
                            (and calls (/ (member-of profile "cpu" "kernelNs") calls 1d3))))
                        2/100)
                  (both "calls" "/s" (lambda (profile)
                                       (let ((calls (member-of profile "cpu" "calls")))
                                         (and calls (/ calls (member-of profile "cpu" "seconds")))))
                        2/100 :more)
                  (both "octets consed" "/call" (of "counters" "octetsPerCall"))
                  (both "switches of thread" "/call" (of "events" "switchesPerCall") 4/100)))))

(defun greatest (differences most)
  "The elements of DIFFERENCES with the greatest changes, at most MOST of them, without differences
of 0."
  (let ((sorted (sort (copy-list differences) #'>
                      :key (lambda (difference) (abs (difference-change difference))))))
    (subseq sorted 0 (min most (length sorted)))))

(defun all-differences (before after)
  "The differences between the profiles BEFORE and AFTER: a list of (title . differences)."
  (remove nil
          (list (cons "figure" (figure-differences before after))
                (cons "subsystem" (cpu-differences before after "areas"))
                (cons "phase of a call" (phases-in-order-of
                                         (cpu-differences before after "phases")))
                (cons "function" (greatest (cpu-differences before after "functions") 25))
                (cons "system call" (plain-differences before after '("events" "systemCalls")
                                                       "perCall" "/call"))
                (cons "allocated, by subsystem" (plain-differences
                                                 before after '("heapHistogram" "areas")
                                                 "octetsPerCall" "octets/call")))
          :key #'rest))

(defun phases-in-order-of (differences)
  (sort differences #'<
        :key (lambda (difference)
               (or (position (difference-name difference) *phase-order* :test #'string=) 100))))

(defun change-text (difference)
  "The change of DIFFERENCE, in per cent of the figure before."
  (let ((before (difference-before difference)))
    (if (zerop before)
        (if (zerop (difference-after difference)) "" "new")
        (format nil "~:[~;+~]~,1F %" (plusp (difference-change difference))
                (* 100d0 (/ (difference-change difference) before))))))

(defun write-difference (before after stream)
  "Write how the profiles BEFORE and AFTER differ to STREAM, as text."
  (loop for (title . differences) in (all-differences before after)
        do (write-rows stream (list title "before" "after" "" "change" "")
                       (mapcar (lambda (difference)
                                 (list (difference-name difference)
                                       (figure (difference-before difference))
                                       (figure (difference-after difference))
                                       (difference-unit difference)
                                       (change-text difference)
                                       (let ((verdict (difference-verdict difference)))
                                         (if (string= verdict "same") "" verdict))))
                               differences)))
  (format stream "A figure that is neither more nor less is within the noise of sampling.~%"))

(defun difference-data (before after)
  "How the profiles BEFORE and AFTER differ, as data for WRITE-JSON."
  (map 'vector
       (lambda (section)
         (object "title" (first section)
                 "rows" (map 'vector
                             (lambda (difference)
                               (object "name" (difference-name difference)
                                       "unit" (difference-unit difference)
                                       "before" (difference-before difference)
                                       "after" (difference-after difference)
                                       "noise" (difference-noise difference)
                                       "verdict" (difference-verdict difference)))
                             (rest section))))
       (all-differences before after)))
