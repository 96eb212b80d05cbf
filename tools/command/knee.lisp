;;;; The knee of a server: the highest rate at which it still is good enough, such as with a p99
;;;; below 10 ms. The rate is doubled until it is too high, then the gap is halved, on a logarithmic
;;;; scale, until its ends are within +KNEE-RATIO+. Each step is a run of its own.

(in-package #:clgrpc.tools)

(defconstant +knee-ratio+ 21/20
  "The precision of the search: the ratio of the lowest rate that is too high and the highest that
is not.")
(defconstant +most-steps+ 24 "How many runs a search may take.")

(defun find-knee (good-p rate)
  "The highest rate for which GOOD-P, a function of a rate, a real, is true, or nil if not even the
lowest is that was tried; and the lowest for which it was not, or nil. RATE is the first."
  (declare (type function good-p))
  (let ((good nil) (bad nil))
    (loop repeat +most-steps+
          for next = (cond ((null bad) (if good (* 2 good) rate))
                           ((null good) (/ bad 4))
                           ((< (/ bad good) +knee-ratio+) (return))
                           (t (sqrt (* 1d0 good bad))))
          until (< next 1/2)
          do (if (funcall good-p next) (setf good next) (setf bad next)))
    (values good bad)))

(defun knee-verdict (run conditions)
  "The reason, a text, why RUN is not good enough: one of CONDITIONS holds, or fewer calls ended
than were due. Nil if RUN is good enough."
  (or (first (report:broken-conditions conditions run))
      (and (< (report:figure-value "rps" run) (* 9/10 (load:run-intended-rps run)))
           "the server does not keep up")
      (and (plusp (load:run-under-way run)) "calls have not ended")))

(defun tell-step (run verdict)
  "A line about a step of the search, on standard error."
  (flet ((time-of (name)
           (let ((value (report:figure-value name run)))
             (if value (page:duration-text value) "none"))))
    (format *error-output* "~10,1F/s  p50 ~A  p99 ~A  ~A~@[; ~A~]~%" (load:run-intended-rps run)
            (time-of "p50") (time-of "p99") (or verdict "good enough") (load:run-limited run))
    (finish-output *error-output*)))

(defun run-at-knee (plan conditions rate)
  "Search the knee of PLAN's calls by CONDITIONS, from RATE on; return the RUN of the highest rate
that meets them. A FAILURE if none does."
  (let ((best nil))
    (multiple-value-bind (good bad)
        (find-knee (lambda (rate)
                     (setf (load:plan-rate plan) (load:make-schedule :start (float rate 1d0)))
                     (let* ((run (load:perform-run plan)) (verdict (knee-verdict run conditions)))
                       (tell-step run verdict)
                       (when (member (load:run-ended-early run) '(:interrupted :terminated))
                         (fail-command "the search was broken off"))
                       (unless verdict (setf best run))
                       (null verdict)))
                   rate)
      (unless good (fail-command "no rate is good enough, not even ~,1F a second" bad))
      (format *error-output* "The knee is at ~,1F calls a second~@[; ~,1F are too many~].~%"
              good bad)
      (finish-output *error-output*)
      best)))
