;;;; Conditions under which a run is a failure, as `--fail-if` takes them:
;;;;
;;;;   conditions = condition { "," condition }
;;;;   condition  = figure ( ">" | ">=" | "<" | "<=" ) number [ unit ]
;;;;   figure     = "p" percentile | "max" | "min" | "mean" | "errors" | "error-ratio" | "rps"
;;;;              | "cpu-per-call"
;;;;   unit       = "ns" | "us" | "µs" | "ms" | "s"      of times, which need one
;;;;              | "%"                                   of error-ratio, which may have one
;;;;
;;;; There may be spaces between them. If a run lacks a figure, since none of its calls succeeded,
;;;; each condition about that figure holds, so that the run is a failure: a server that answers
;;;; nothing is not fast.

(in-package #:clgrpc.report)

(define-condition condition-syntax-error (clgrpc-error)
  ((text :initarg :text :reader condition-syntax-error-text)) ; the error, in one line
  (:report (lambda (condition stream)
             (write-string (condition-syntax-error-text condition) stream)))
  (:documentation "A condition is malformed. The report has the reason, and the allowed forms."))

(defun refuse-condition (control &rest arguments)
  (error 'condition-syntax-error :text (format nil "~?" control arguments)))

(defstruct (bound (:copier nil))
  "A condition under which a run is a failure: a relation of a figure to a limit."
  (text "" :type string :read-only t)   ; the condition as the user wrote it
  (figure nil :type figure :read-only t) ; the figure that the condition is about
  (relation #'> :type function :read-only t) ; a function of its value and LIMIT
  (limit 0 :type rational :read-only t)) ; the limit, in nanoseconds if the figure is a time

(defparameter *relations* '((">=" . >=) ("<=" . <=) (">" . >) ("<" . <))
  "The relations in the order in which they are tried: longer ones first.")

(defparameter *times* '(("ns" . 1) ("us" . 1000) ("µs" . 1000) ("ms" . 1000000) ("s" . 1000000000)))

(defun trim (string)
  (string-trim '(#\Space #\Tab #\Newline #\Return) string))

(defun split-condition (text)
  "The figure's name, the relation and the rest of TEXT."
  (loop for (sign . relation) in *relations*
        for place = (search sign text)
        when place
          return (values (trim (subseq text 0 place)) relation
                         (trim (subseq text (+ place (length sign)))))
        finally (refuse-condition "a condition is FIGURE > VALUE, such as p99 > 10ms (also >=, <, ~
                                   <=), not ~S" text)))

(defun split-number (text whole)
  "Return two values: the number at the beginning of TEXT, and the unit after that number. TEXT is
the end of WHOLE, the text of a condition."
  (let* ((end (or (position-if-not (lambda (char) (or (char<= #\0 char #\9) (char= char #\.))) text)
                  (length text)))
         (number (subseq text 0 end))
         (dot (or (position #\. number) end))
         (digits (remove #\. number :count 1)))
    (when (or (zerop (length digits)) (< 15 (length digits)) (find #\. digits))
      (refuse-condition "a number is expected after the relation, such as 10ms or 0.5%, not ~S in ~
                         ~S"
                        text whole))
    (values (/ (parse-integer digits) (expt 10 (max 0 (- end dot 1))))
            (trim (subseq text end)))))

(defun unit-factor (figure unit whole)
  "The factor that makes a number with UNIT a value of FIGURE."
  (flet ((refuse-unit (allowed)
           (refuse-condition "~A ~A, ~:[not ~S~;which is missing~*~] in ~S" (figure-name figure)
                             allowed (string= "" unit) unit whole)))
    (ecase (figure-unit figure)
      (:time (or (cdr (assoc unit *times* :test #'string=))
                 (refuse-unit "needs a unit: ns, us, ms or s")))
      (:share (cond ((string= unit "") 1)
                    ((string= unit "%") 1/100)
                    (t (refuse-unit "is a share such as 0.01 or 1%"))))
      ((:count :rate) (if (string= unit "")
                          1
                          (refuse-unit "is a number without a unit"))))))

(defun parse-bound (text)
  (multiple-value-bind (name relation value) (split-condition text)
    (let ((figure (or (find-figure name)
                      (refuse-condition "no figure is called ~S; the figures are p50, p99.9 and ~
                                         all other percentiles, and ~{~A~^, ~}"
                                        name (mapcar #'figure-name *plain-figures*)))))
      (multiple-value-bind (number unit) (split-number value text)
        (make-bound :text text :figure figure :relation (fdefinition relation)
                    :limit (* number (unit-factor figure unit text)))))))

(defun parse-conditions (string)
  "The conditions in STRING, such as \"p99 > 10ms, errors > 0\", a list for BROKEN-CONDITIONS.
Signal CONDITION-SYNTAX-ERROR if STRING is malformed."
  (mapcar (lambda (text) (parse-bound (trim text)))
          (or (uiop:split-string string :separator ",") '(""))))

(defun broken-conditions (conditions run)
  "Return a list of lines, one for each of CONDITIONS that holds for RUN, with the condition and its
figure. PARSE-CONDITIONS returned CONDITIONS. RUN is a failure unless the list is empty."
  (loop for bound in conditions
        for figure = (bound-figure bound)
        for value = (funcall (figure-reader figure) run)
        when (or (null value) (funcall (bound-relation bound) value (bound-limit bound)))
          collect (if value
                      (format nil "~A: ~A is ~A" (bound-text bound) (figure-name figure)
                              (value-text (figure-unit figure) value))
                      (format nil "~A: there is no ~A, ~A" (bound-text bound) (figure-name figure)
                              (if (zerop (load:run-count run))
                                  "no call ended"
                                  "no call succeeded")))))
