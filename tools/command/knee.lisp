;;;; The knee of a server: the highest rate at which it meets given conditions, such as a p99 below
;;;; 10 ms. The rate is doubled until it is too high. After that the gap between the highest good
;;;; rate and the lowest bad rate is halved, on a logarithmic scale, until their ratio is at most
;;;; +KNEE-RATIO+. Each step is a run of its own.

(in-package #:clgrpc.tools)

(defconstant +knee-ratio+ 21/20
  "The precision of the search: the search ends when the lowest rate that was too high is at most
this many times the highest rate that was good.")
(defconstant +most-steps+ 24 "The maximum number of runs of a search.")

(defun find-knee (good-p rate)
  "Search the rates, beginning with RATE. Return two values: among the rates that were tried, the
highest for which GOOD-P, a function of a rate, is true, and the lowest for which GOOD-P is false;
nil in place of a rate that does not exist."
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

(defun tool-limited-p (run)
  (and (load:run-limited run) (search "the tool" (load:run-limited run)) t))

(defun knee-verdict (run conditions)
  "The reason, a text, why RUN is not good enough: one of CONDITIONS holds, its rate was below nine
tenths of the intended rate, or calls have not ended. Return nil if RUN is good enough."
  (or (first (report:broken-conditions conditions run))
      (and (< (report:figure-value "rps" run) (* 9/10 (load:run-intended-rps run)))
           (if (tool-limited-p run)
               "the tool, or its machine, does not keep up"
               "the server does not keep up"))
      (and (plusp (load:run-under-way run)) "calls have not ended")))

(defun tell-step (run verdict)
  "Print a line about a step of the search on standard error."
  (flet ((time-of (name)
           (let ((value (report:figure-value name run)))
             (if value (page:duration-text value) "none"))))
    (tell "~10,1F/s  p50 ~A  p99 ~A  ~A~@[; ~A~]" (load:run-intended-rps run)
          (time-of "p50") (time-of "p99") (or verdict "good enough") (load:run-limited run))))

(defun tell-knee (good bad by-tool)
  "Print the result of a search on standard error: the highest rate GOOD, and BAD, a rate that is
too high, or nil if none was found. BY-TOOL is true if the tool was a limit of the run at BAD."
  (tell "The knee is at ~,1F calls a second~@[~A~]~@[; ~,1F are too many~]."
        good
        (and by-tool " or above, as the tool was a limit of the runs at higher rates")
        (and (not by-tool) bad)))

(defun run-at-knee (plan conditions rate perform)
  "Search for the highest rate of PLAN's calls that meets CONDITIONS; begin with RATE. Return the
RUN at that rate. PERFORM is a function that makes the run of PLAN. If the user interrupts the
search, return the RUN that was interrupted. Signal a FAILURE if no rate meets the conditions. A
rate counts as too high if the server cannot be reached afterwards."
  (declare (type function perform))
  (let ((best nil) (by-tool nil))
    (flet ((good-p (rate)
             (setf (load:plan-rate plan) (load:make-schedule :start (float rate 1d0)))
             (let* ((run (handler-case (funcall perform)
                           (load:run-failed (error)
                             (when (load:terminated-p)
                               (return-from run-at-knee (report-terminated best)))
                             (unless best (error error))
                             (tell "~10,1F/s  ~A" rate (shown (princ-to-string error)))
                             (setf by-tool nil)
                             (return-from good-p nil))))
                    (verdict (knee-verdict run conditions)))
               (tell-step run verdict)
               (when (member (load:run-ended-early run) '(:interrupted :terminated))
                 (tell "clgrpc load: the search was broken off, and this is the report of its last ~
                        run")
                 (return-from run-at-knee run))
               (if verdict
                   (setf by-tool (tool-limited-p run))
                   (setf best run))
               (null verdict))))
      (multiple-value-bind (good bad) (find-knee #'good-p rate)
        (unless good (fail-command "no rate is good enough, not even ~,1F a second" bad))
        (tell-knee good bad by-tool)
        best))))
