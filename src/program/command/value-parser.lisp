;;;; Parsers of the values of arguments: functions of a string that return its value, or refuse it.

(in-package #:clgrpc.command)

(defun integer-parser (minimum maximum)
  "Return a parser of integers from MINIMUM to MAXIMUM."
  (lambda (string)
    (let ((value (and (<= 1 (length string) 19)
                      (every (lambda (char) (char<= #\0 char #\9)) string)
                      (parse-integer string))))
      (unless (and value (<= minimum value maximum))
        (refuse "an integer from ~D to ~D is expected, not ~S" minimum maximum string))
      value)))

(defun parse-boolean (string)
  "The boolean in STRING, \"true\" or \"false\"."
  (cond ((string= string "true") t)
        ((string= string "false") nil)
        (t (refuse "true or false is expected, not ~S" string))))

(defun parse-decimal (string what)
  "The rational that STRING, a decimal, represents; refuse another STRING, and name WHAT as
expected."
  (let* ((dot (or (position #\. string) (length string)))
         (digits (remove #\. string :count 1))
         (fraction (max 0 (- (length string) dot 1))))
    (unless (and (<= 1 (length digits) 12) (every (lambda (char) (char<= #\0 char #\9)) digits))
      (refuse "~A, not ~S" what string))
    (/ (parse-integer digits) (expt 10 fraction))))

(defun parse-duration (string)
  "The seconds, a rational, in STRING: in Go's form of durations, such as 1m30s, 1.5s or 200ms, or a
plain number of seconds."
  (let ((at 0) (total 0))
    (flet ((wrong () (refuse "a duration is expected, such as 10s, 200ms or 1m30s, not ~S" string)))
      (when (string= "" string) (wrong))
      (loop while (< at (length string))
            do (let* ((end (or (position-if-not (lambda (char)
                                                  (or (char<= #\0 char #\9) (char= #\. char)))
                                                string :start at)
                               (length string)))
                      (next (or (position-if (lambda (char) (char<= #\0 char #\9)) string
                                             :start end)
                                (length string)))
                      (unit (assoc (subseq string end next)
                                   '(("ns" . 1/1000000000) ("us" . 1/1000000) ("µs" . 1/1000000)
                                     ("ms" . 1/1000) ("s" . 1) ("m" . 60) ("h" . 3600) ("" . 1))
                                   :test #'string=)))
                 (when (or (= at end) (null unit)
                           (and (string= "" (car unit)) (or (plusp at) (< next (length string)))))
                   (wrong))
                 (incf total (* (cdr unit) (handler-case (parse-decimal (subseq string at end) "")
                                             (usage-error () (wrong)))))
                 (setf at next)))
      (when (< 31536000 total) (wrong))
      total)))

(defun parse-seconds (string)
  "As PARSE-DURATION, for a time that is longer than 0."
  (let ((seconds (parse-duration string)))
    (unless (plusp seconds) (refuse "a duration above 0 is expected, such as 2s, not ~S" string))
    seconds))

(defun parse-ratio (string)
  "The share, a rational from 0 to 1, in STRING, a decimal; \"true\" means all."
  (let* ((what "a number from 0 to 1 is expected, such as 0.01")
         (ratio (if (string= string "true") 1 (parse-decimal string what))))
    (unless (<= ratio 1) (refuse "~A, not ~S" what string))
    ratio))

(defun choice-parser (&rest choices)
  "Return a parser of the names of CHOICES, keywords."
  (lambda (string)
    (or (find string choices :test #'string-equal)
        (refuse "it is one of ~{~(~A~)~^, ~}, not ~S" choices string))))

(defun limit-parser (name)
  "Return a parser of values for the row NAME, a keyword, of the options table."
  (let ((row (find-option-row name)))
    (cond ((typep (option-row-default row) 'boolean) #'parse-boolean)
          ((string= "seconds" (option-row-unit row))
           (lambda (string)
             (let ((value (if (string= "0" string) 0 (parse-seconds string))))
               (handler-case (check-option row value)
                 (misuse (condition) (refuse "~A" condition)))
               value)))
          (t (integer-parser (option-row-minimum row) (option-row-maximum row))))))

(defun parse-limits (string)
  "The plist of the options in STRING, a list of NAME=VALUE separated by commas; the names are rows
of the options table."
  (loop for word in (or (uiop:split-string string :separator ",") '(""))
        append (let* ((equals (or (position #\= word)
                                  (refuse "NAME=VALUE is expected, not ~S" word)))
                      (name (subseq word 0 equals))
                      (rows (remove :channel (option-table) :key #'option-row-scope))
                      (row (or (find name rows :key #'option-row-name :test #'string-equal)
                               (refuse "servers have no option ~S; they have ~{~(~A~)~^, ~}" name
                                       (mapcar #'option-row-name rows)))))
                 (list (option-row-name row)
                       (funcall (limit-parser (option-row-name row))
                                (subseq word (1+ equals)))))))

(defun address-parser (minimum-port)
  "Return a parser of addresses in the forms of doc/addresses.md, with a port of at least
MINIMUM-PORT."
  (lambda (string)
    (handler-case (loop:parse-target string :smallest-port minimum-port)
      (misuse (error) (refuse "~A" (string-right-trim "." (princ-to-string error)))))
    string))

(defun addresses-parser (minimum-port)
  "Return a parser of lists of such addresses, separated by commas."
  (lambda (string)
    (mapcar (address-parser minimum-port)
            (or (uiop:split-string string :separator ",") '("")))))
