;;;; Two profiles side by side: for each figure both, the difference, and whether it is more than
;;;; the noise of sampling. So many samples as N differ by the root of N from run to run by chance
;;;; alone; a difference counts as one if it is more than twice what that makes of both. What else
;;;; differs from run to run, such as the load, no single pair of runs can tell.

(in-package #:clgrpc.profile)

(defstruct (difference (:copier nil))
  "A figure of two profiles."
  (name "" :type string :read-only t)
  (unit "" :type string :read-only t)
  (before 0 :type real :read-only t)
  (after 0 :type real :read-only t)
  (noise 0 :type real :read-only t))    ; by which both could differ by chance

(defun difference-change (difference)
  (- (difference-after difference) (difference-before difference)))

(defun difference-verdict (difference)
  "\"more\", \"less\", or \"same\" if DIFFERENCE is within its noise."
  (let ((change (difference-change difference)))
    (cond ((<= (abs change) (difference-noise difference)) "same")
          ((plusp change) "more")
          (t "less"))))

(defun sampling-noise (ns period-ns)
  "By how much NS, made of samples each PERIOD-NS, may be off by chance: two deviations."
  (* 2 period-ns (sqrt (/ (max ns period-ns) period-ns))))

(defun per-call (value calls)
  (if (and calls (plusp calls)) (/ value calls) value))

(defun named-rows (before after)
  "Lists (name row-or-nil row-or-nil) of the rows of BEFORE and AFTER, vectors, by their names."
  (let ((names (remove-duplicates
                (map 'list (lambda (row) (member-of row "name"))
                     (concatenate 'vector before after))
                :test #'string= :from-end t)))
    (flet ((named (name rows)
             (find name rows :key (lambda (row) (member-of row "name")) :test #'string=)))
      (mapcar (lambda (name) (list name (named name before) (named name after))) names))))

(defun cpu-differences (before after part)
  "Differences of the rows PART of the CPU of the profiles BEFORE and AFTER, a call in µs if both
know their calls, else in all in ms."
  (let* ((cpus (list (member-of before "cpu") (member-of after "cpu")))
         (calls (mapcar (lambda (cpu) (member-of cpu "calls")) cpus))
         (known (every (lambda (count) (and count (plusp count))) calls)))
    (loop for (name . rows) in (named-rows (member-of (first cpus) part)
                                           (member-of (second cpus) part))
          collect (flet ((figure (row cpu count function)
                           (/ (per-call (funcall function
                                                 (or (and row (member-of row "ns")) 0)
                                                 (member-of cpu "periodNs"))
                                        (and known count))
                              (if known 1d3 1d6))))
                    (flet ((figures (function)
                             (mapcar (lambda (row cpu count) (figure row cpu count function))
                                     rows cpus calls)))
                      (destructuring-bind (before after)
                          (figures (lambda (ns period) (declare (ignore period)) ns))
                        (make-difference :name name :unit (if known "µs/call" "ms")
                                         :before before :after after
                                         :noise (sqrt (reduce #'+ (figures #'sampling-noise)
                                                              :key (lambda (x) (* x x)))))))))))

(defun plain-differences (before after path field unit)
  "Differences of FIELD of the rows at PATH, names, in the profiles BEFORE and AFTER, which are
counts a call and differ by chance by a twentieth, or a thousandth of one, at most."
  (loop for (name . rows) in (named-rows (apply #'member-of before path)
                                         (apply #'member-of after path))
        for (old new) = (mapcar (lambda (row) (or (and row (member-of row field)) 0)) rows)
        collect (make-difference :name name :unit unit :before old :after new
                                 :noise (max (/ (max old new) 20) 1/1000))))

(defun figure-differences (before after)
  "Differences of the figures that are one for a profile."
  (flet ((both (name unit function &optional (noise 1/100))
           (let ((old (funcall function before)) (new (funcall function after)))
             (when (and old new)
               (list (make-difference :name name :unit unit :before old :after new
                                      :noise (* noise (max old new)))))))
         (of (&rest path) (lambda (profile) (apply #'member-of profile path))))
    (append (both "CPU" "µs/call"
                  (lambda (profile)
                    (let ((calls (member-of profile "cpu" "calls")))
                      (and calls (plusp calls)
                           (/ (member-of profile "cpu" "kernelNs") calls 1d3))))
                  3/100)
            (both "calls" "/s" (lambda (profile)
                                 (let ((calls (member-of profile "cpu" "calls")))
                                   (and calls (/ calls (member-of profile "cpu" "seconds")))))
                  3/100)
            (both "octets consed" "/call" (of "counters" "octetsPerCall"))
            (both "switches of thread" "/call" (of "events" "switchesPerCall") 5/100))))

(defun greatest (differences most)
  "The MOST of DIFFERENCES that changed most, if they did."
  (let ((sorted (sort (copy-list differences) #'>
                      :key (lambda (difference) (abs (difference-change difference))))))
    (subseq sorted 0 (min most (length sorted)))))

(defun all-differences (before after)
  "What differs between the profiles BEFORE and AFTER: a list of (title . differences)."
  (remove nil
          (list (cons "figure" (figure-differences before after))
                (cons "subsystem" (cpu-differences before after "areas"))
                (cons "phase of a call" (phases-in-order-of
                                         (cpu-differences before after "phases")))
                (cons "function" (greatest (cpu-differences before after "functions") 25))
                (cons "system call" (plain-differences before after '("events" "systemCalls")
                                                       "perCall" "/call"))
                (cons "allocated, by subsystem" (plain-differences
                                                 before after '("census" "areas")
                                                 "octetsPerCall" "octets/call")))
          :key #'rest))

(defun phases-in-order-of (differences)
  (sort differences #'<
        :key (lambda (difference)
               (or (position (difference-name difference) *phase-order* :test #'string=) 100))))

(defun change-text (difference)
  "The change of DIFFERENCE, in per cent of what was before."
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
  (format stream "What is neither more nor less is within the noise of sampling.~%"))

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
