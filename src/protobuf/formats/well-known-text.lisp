;;;; The texts of well-known types in JSON (protobuf.dev, "ProtoJSON format"): Timestamp as RFC
;;;; 3339, Duration in seconds, FieldMask as paths in camel case. The functions here are functions
;;;; of numbers and strings; readers and writers apply them to messages.
;;;;
;;;; Days are counted in the proleptic Gregorian calendar, without a table and without the clock.

(in-package #:clgrpc.protobuf)

(defconstant +least-timestamp+ -62135596800
  "The earliest timestamp, 0001-01-01T00:00:00Z, in seconds since 1970.")
(defconstant +greatest-timestamp+ 253402300799
  "The latest timestamp, 9999-12-31T23:59:59Z, in seconds since 1970.")
(defconstant +greatest-duration+ 315576000000
  "The longest duration, ten thousand years, in seconds.")

(defun civil-days (year month day)
  "Return the number of days from 1970-01-01 to the date. In this calculation years begin in March,
so that leap days come last."
  (let* ((year (if (<= month 2) (1- year) year))
         (march-month (mod (+ month 9) 12))
         (day-of-year (+ (floor (+ (* 153 march-month) 2) 5) (1- day))))
    (+ (* 365 year) (floor year 4) (- (floor year 100)) (floor year 400) day-of-year -719468)))

(defun days-civil (days)
  "Return the year, the month and the day of the date that is DAYS after 1970-01-01."
  (multiple-value-bind (era day-of-era) (floor (+ days 719468) 146097)
    (let* ((year-of-era (floor (- day-of-era (floor day-of-era 1460) (- (floor day-of-era 36524))
                                  (floor day-of-era 146096))
                               365))
           (day-of-year (- day-of-era (+ (* 365 year-of-era) (floor year-of-era 4)
                                         (- (floor year-of-era 100)))))
           (march-month (floor (+ (* 5 day-of-year) 2) 153))
           (month (1+ (mod (+ march-month 2) 12))))
      (values (+ year-of-era (* 400 era) (if (<= month 2) 1 0))
              month
              (1+ (- day-of-year (floor (+ (* 153 march-month) 2) 5)))))))

(defun nanos-text (nanos)
  "Return a point and NANOS in 3, 6 or 9 digits, or an empty text if NANOS is 0."
  (cond ((zerop nanos) "")
        ((zerop (mod nanos 1000000)) (format nil ".~3,'0D" (floor nanos 1000000)))
        ((zerop (mod nanos 1000)) (format nil ".~6,'0D" (floor nanos 1000)))
        (t (format nil ".~9,'0D" nanos))))

(defun timestamp-text (seconds nanos)
  "Return the text of the time that is SECONDS, an integer, and NANOS, 0 to 999,999,999, after the
beginning of 1970, or nil if it is outside the years 1 to 9999. The text is in UTC in the form of
RFC 3339, with 0, 3, 6 or 9 digits after the point."
  (when (and (<= +least-timestamp+ seconds +greatest-timestamp+) (<= 0 nanos 999999999))
    (multiple-value-bind (days second) (floor seconds 86400)
      (multiple-value-bind (year month day) (days-civil days)
        (format nil "~4,'0D-~2,'0D-~2,'0DT~2,'0D:~2,'0D:~2,'0D~AZ" year month day
                (floor second 3600) (mod (floor second 60) 60) (mod second 60)
                (nanos-text nanos))))))

(defun duration-text (seconds nanos)
  "Return the text of the duration of SECONDS and NANOS, or nil if it is out of range or its parts
differ in sign."
  (when (and (<= (abs seconds) +greatest-duration+)
             (<= (abs nanos) 999999999)
             (not (minusp (* seconds nanos))))
    (format nil "~:[~;-~]~D~As" (or (minusp seconds) (minusp nanos)) (abs seconds)
            (nanos-text (abs nanos)))))

;;; Reading: a cursor of characters; every part throws NIL if the text does not fit

(defstruct (cursor (:constructor make-cursor (text)) (:copier nil))
  "A text that is being read from its beginning to its end."
  (text "" :type simple-string)         ; the text
  (at 0 :type index))                   ; the index of the next character

(defmacro reading-text ((cursor text) &body body)
  "Run BODY with CURSOR at the beginning of TEXT. Return BODY's values if it has read all of TEXT,
or nil if a part of TEXT was not as expected."
  `(block reading
     (let ((,cursor (make-cursor (coerce ,text 'simple-string))))
       (flet ((misfit () (return-from reading nil)))
         (multiple-value-prog1 (progn ,@body)
           (unless (= (cursor-at ,cursor) (length (cursor-text ,cursor))) (misfit)))))))

(defun next-char (cursor)
  (let ((at (cursor-at cursor)))
    (and (< at (length (cursor-text cursor))) (schar (cursor-text cursor) at))))

(defun pass-char (cursor chars)
  "Skip the next character and return it if it is one of CHARS."
  (let ((char (next-char cursor)))
    (when (and char (find char chars))
      (incf (cursor-at cursor))
      char)))

(defun pass-digits (cursor least most)
  "Pass over LEAST to MOST digits; return their value and count, or nil if there are fewer."
  (let ((value 0) (count 0))
    (loop for char = (next-char cursor)
          while (and char (< count most) (char<= #\0 char #\9))
          do (setf value (+ (* 10 value) (- (char-code char) 48)))
             (incf count)
             (incf (cursor-at cursor)))
    (and (>= count least) (values value count))))

(defun pass-nanos (cursor)
  "Skip a fraction, if there is one, and return it in billionths; return 0 without a fraction, and
nil if it is malformed."
  (if (pass-char cursor ".")
      (multiple-value-bind (value count) (pass-digits cursor 1 9)
        (and value (* value (expt 10 (- 9 count)))))
      0))

(defun month-length (year month)
  (if (= month 12)
      31
      (- (civil-days year (1+ month) 1) (civil-days year month 1))))

(defun parse-timestamp-text (text)
  "Return two values, the seconds and the nanoseconds of TIMESTAMP-TEXT, for TEXT, a time with its
zone in the form of RFC 3339, or nil if TEXT is not such a time."
  (reading-text (cursor text)
    (flet ((part (count low high before)
             (unless (or (null before) (pass-char cursor before)) (misfit))
             (let ((value (pass-digits cursor count count)))
               (if (and value (<= low value high)) value (misfit)))))
      (let* ((year (part 4 1 9999 nil)) (month (part 2 1 12 "-"))
             (day (part 2 1 (month-length year month) "-"))
             (hour (part 2 0 23 "T")) (minute (part 2 0 59 ":")) (second (part 2 0 59 ":"))
             (nanos (or (pass-nanos cursor) (misfit)))
             (sign (or (pass-char cursor "Z+-") (misfit)))
             (offset (if (eql sign #\Z)
                         0
                         (* (if (eql sign #\+) -60 60)
                            (+ (* 60 (part 2 0 23 nil)) (part 2 0 59 ":")))))
             (seconds (+ (* 86400 (civil-days year month day)) (* 3600 hour) (* 60 minute) second
                         offset)))
        (unless (<= +least-timestamp+ seconds +greatest-timestamp+) (misfit))
        (values seconds nanos)))))

(defun parse-duration-text (text)
  "Return two values, the seconds and the nanoseconds of TEXT, a duration such as 1.5s, or nil if
TEXT is not a duration."
  (reading-text (cursor text)
    (let* ((sign (if (pass-char cursor "-") -1 1))
           (seconds (or (pass-digits cursor 1 12) (misfit)))
           (nanos (or (pass-nanos cursor) (misfit))))
      (unless (and (pass-char cursor "s") (<= seconds +greatest-duration+)) (misfit))
      (values (* sign seconds) (* sign nanos)))))

;;; Field masks

(defun camel-path (path)
  "PATH, of names in snake case, converted to camel case; nil if the reverse conversion would not
give PATH."
  (let ((up nil))
    (let ((camel (with-output-to-string (out)
                   (loop for char across path
                         do (cond ((or (upper-case-p char)
                                       (and up (not (char<= #\a char #\z))))
                                   (return-from camel-path nil))
                                  ((char= char #\_) (setf up t))
                                  (t (write-char (if up (char-upcase char) char) out)
                                     (setf up nil)))))))
      (and (not up) camel))))

(defun snake-path (path)
  "PATH, of names in camel case, converted to snake case; nil if it has an underscore."
  (unless (find #\_ path)
    (with-output-to-string (out)
      (loop for char across path
            do (when (char<= #\A char #\Z) (write-char #\_ out))
               (write-char (char-downcase char) out)))))

(defun split-text (text separator)
  "The parts of TEXT between occurrences of SEPARATOR; the empty list if TEXT is empty."
  (unless (string= "" text)
    (uiop:split-string text :separator (list separator))))
