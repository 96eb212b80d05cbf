;;;; Times as cron(5) writes them: five fields, the minute (0 to 59), the hour (0 to 23), the day of
;;;; the month (1 to 31), the month (1 to 12 or JAN to DEC) and the day of the week (0 to 7 or SUN
;;;; to SAT; 0 and 7 are Sunday). A field is * or a list of numbers and ranges, as in 1,15-20; with
;;;; /N after a range or a *, every Nth of it. If both the day of the month and that of the week are
;;;; restricted, one match is enough, as in cron: "0 9 1 * MON" means the first day of each month
;;;; and each Monday.
;;;;
;;;; All times are in UTC, in which no hour is missing or occurs twice.

(in-package #:clgrpc.workflow)

(defstruct (cron (:copier nil))
  "The times of a cron expression. Each field is an integer with the bits of its numbers."
  (minutes 0 :type (unsigned-byte 60) :read-only t) ; bits for the minutes of the hour
  (hours 0 :type (unsigned-byte 24) :read-only t) ; bits for the hours of the day
  (days 0 :type (unsigned-byte 32) :read-only t) ; bits for the days of the month, from bit 1
  (months 0 :type (unsigned-byte 13) :read-only t) ; bits for the months, from bit 1
  (weekdays 0 :type (unsigned-byte 7) :read-only t) ; bits for the weekdays; bit 0 is Sunday
  (any-day nil :type boolean :read-only t) ; every day of the month is meant
  (any-weekday nil :type boolean :read-only t)) ; every day of the week is meant

(declaim (sb-ext:freeze-type cron))

(defparameter *months* '("JAN" "FEB" "MAR" "APR" "MAY" "JUN" "JUL" "AUG" "SEP" "OCT" "NOV" "DEC"))
(defparameter *weekdays* '("SUN" "MON" "TUE" "WED" "THU" "FRI" "SAT"))
(defconstant +epoch-days+ 25567 "Days from 1900, where universal times begin, to 1970.")
(defconstant +longest-cron+ 200 "The maximum number of characters of a cron expression.")
(defconstant +days-searched+ 3000 "The number of days in which the next time of a cron expression is
searched, because a February 29 is at most eight years and a day away.")

(defun refuse-cron (text)
  (refuse :invalid-request
          "~S is not a minute, hour, day of the month, month and day of the week in the form of ~
           cron"
          text))

(defun cron-number (text low high names)
  "The number from LOW to HIGH that TEXT denotes, in digits or by a name's position in NAMES; nil if
TEXT denotes no such number."
  (let ((name (position text names :test #'string-equal)))
    (cond (name (+ low name))
          ((and (<= 1 (length text) 2) (every #'digit-char-p text))
           (let ((number (parse-integer text))) (and (<= low number high) number))))))

(defun cron-item (text low high names)
  "The bits of the values from LOW to HIGH that TEXT, an item of a field, denotes; nil if TEXT is
not valid."
  (destructuring-bind (&optional (range "") (step "1" step-p) &rest more)
      (uiop:split-string text :separator "/")
    (destructuring-bind (&optional (first "") (last first last-p) &rest others)
        (if (string= range "*")
            (list (princ-to-string low) (princ-to-string high))
            (uiop:split-string range :separator "-"))
      (let ((from (cron-number first low high names)) (to (cron-number last low high names))
            (by (cron-number step 1 99 '())))
        (and from to by (null more) (null others)
             (<= from to)
             (or last-p (not step-p))
             (loop with bits = 0
                   for number from from to to by by
                   do (setf bits (logior bits (ash 1 number)))
                   finally (return bits)))))))

(defun cron-field (text low high &optional names)
  "The bits of the values from LOW to HIGH that TEXT, a field, denotes; nil if TEXT is not valid."
  (let ((items (mapcar (lambda (item) (cron-item item low high names))
                       (uiop:split-string text :separator ","))))
    (and (notany #'null items) (reduce #'logior items))))

(defun parse-cron (text)
  "The cron that TEXT means. Signal TOO-LARGE for another text, and for times that never come."
  (when (< +longest-cron+ (length text)) (refuse-cron text))
  (let ((fields (remove "" (uiop:split-string text) :test #'string=)))
    (unless (= 5 (length fields)) (refuse-cron text))
    (destructuring-bind (minutes hours days months weekdays)
        (loop for field in fields
              for (low high names) in `((0 59) (0 23) (1 31) (1 12 ,*months*) (0 7 ,*weekdays*))
              collect (or (cron-field field low high names) (refuse-cron text)))
      (let ((cron (make-cron :minutes minutes :hours hours :days days :months months
                             ;; 7 is Sunday, too
                             :weekdays (logior (ldb (byte 7 0) weekdays) (ash weekdays -7))
                             :any-day (char= #\* (char (third fields) 0))
                             :any-weekday (char= #\* (char (fifth fields) 0)))))
        (unless (next-cron cron 0) (refuse :invalid-request "no time matches ~S" text))
        cron))))

(defun cron-day-p (cron day month weekday)
  "True if CRON selects the DAY of MONTH, which is a WEEKDAY; Sunday is 0."
  (flet ((in-p (number bits) (logbitp number bits)))
    (and (in-p month (cron-months cron))
         (let ((day (in-p day (cron-days cron))) (weekday (in-p weekday (cron-weekdays cron))))
           (if (or (cron-any-day cron) (cron-any-weekday cron))
               (and day weekday)
               (or day weekday))))))

(defun cron-minute (cron from)
  "The first minute, not before FROM, of a day that CRON includes; nil if no such minute is left."
  (loop for minute from from below 1440
        for (hour rest) = (multiple-value-list (floor minute 60))
        when (and (logbitp hour (cron-hours cron)) (logbitp rest (cron-minutes cron)))
          return minute))

(defun next-cron (cron ms)
  "The first time of CRON after MS, in milliseconds since 1970; nil if no such time is found."
  (multiple-value-bind (day minute) (floor (1+ (floor ms 60000)) 1440)
    (loop repeat +days-searched+
          for today from day
          for from = minute then 0
          do (multiple-value-bind (second minute hour date month year weekday)
                 (decode-universal-time (* 86400 (+ today +epoch-days+)) 0)
               (declare (ignore second minute hour year))
               ;; decoded weekdays begin with Monday
               (when (cron-day-p cron date month (mod (1+ weekday) 7))
                 (let ((minute (cron-minute cron from)))
                   (when minute (return (* 60000 (+ minute (* 1440 today)))))))))))
