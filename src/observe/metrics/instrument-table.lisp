;;;; The table of instruments: gRPC's (gRFC A66, A78, A94, A96), ours, and those of the process.
;;;; Names, units and attributes are those of gRPC's documents. Instruments that the documents call
;;;; experimental are off unless :enable of MAKE-METRICS names them. doc/monitoring.md shows the
;;;; table. The table's rows are in instrument-rows.lisp.

(in-package #:clgrpc.metrics)

(defstruct (instrument (:constructor make-instrument
                           (name kind unit attributes optional scale reader alias default
                            text))
                       (:copier nil))
  "A row of the table."
  (name "" :type string :read-only t)   ; the instrument's name in OpenTelemetry
  ;; how it combines numbers
  (kind :counter :type (member :counter :up-down-counter :gauge :histogram) :read-only t)
  (unit "" :type string :read-only t)   ; the unit as in UCUM
  (attributes '() :type list :read-only t) ; the names of its attributes
  (optional '() :type list :read-only t) ; further attributes, which :optional-labels may request
  (scale nil :type (or null scale) :read-only t) ; a histogram's
  (reader nil :type function :read-only t) ; a function of the metrics that returns the points
  ;; the instrument's name in Prometheus, if tools expect another
  (alias nil :type (or null string) :read-only t)
  (default t :type boolean :read-only t) ; true if the instrument is on unless :disable names it
  (text "" :type string :read-only t))  ; a description for people

(define-printer (instrument instrument)
  "~A ~(~A~)" (instrument-name instrument) (instrument-kind instrument))

(defglobal **instruments** '())         ; the rows, in the order of the table

(defmacro define-instruments ((metrics scale) &body rows)
  "Declare the instruments. A row is (NAME KIND UNIT ATTRIBUTES (&key SCALE POINTS ALIAS DEFAULT
OPTIONAL) TEXT). POINTS, a form, returns the row's points in METRICS, with SCALE bound to the
row's."
  `(setf **instruments**
         (list ,@(loop for (name kind unit attributes options text) in rows
                       collect (destructuring-bind
                                   (&key ((:scale its-scale)) points alias (default t) optional)
                                   options
                                 `(make-instrument ,name ,kind ,unit ',attributes ',optional
                                                   ,its-scale
                                                   (lambda (,metrics &aux (,scale ,its-scale))
                                                     (declare (ignorable ,metrics ,scale))
                                                     ,points)
                                                   ,alias ,default ,(format nil text)))))))

(defun find-instruments (names)
  "The instruments denoted by NAMES: a list of names, or of prefixes of names up to a dot; or T for
all. Signal MISUSE for a name that denotes no instrument."
  (if (eq t names)
      **instruments**
      (loop for name in names
            append (or (remove-if-not (lambda (instrument)
                                        (named-p (instrument-name instrument) name))
                                      **instruments**)
                       (misuse "No instrument is named ~S." name)))))

(defun named-p (full name)
  "True if FULL is NAME or begins with NAME and a dot."
  (and (stringp name)
       (<= (length name) (length full))
       (string= name full :end2 (length name))
       (or (= (length name) (length full)) (char= #\. (char full (length name))))))

(defun instrument-table ()
  "The instruments, a list of lists of texts: name, kind, unit, attributes, whether it is on by
default, meaning."
  (loop for instrument in **instruments**
        collect (list (format nil "`~A`" (instrument-name instrument))
                      (substitute #\Space #\- (string-downcase (instrument-kind instrument)))
                      (format nil "~:[`~A`~;~]" (string= "" (instrument-unit instrument))
                              (instrument-unit instrument))
                      (format nil "~{`~A`~^, ~}~:{, `~A` if asked for~}"
                              (instrument-attributes instrument)
                              (mapcar #'list (instrument-optional instrument)))
                      (if (instrument-default instrument) "on" "off")
                      (instrument-text instrument))))
