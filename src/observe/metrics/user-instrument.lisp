;;;; Instruments of users: counters, up-down counters, gauges and histograms, read with all others.
;;;; An instrument has a row for each list of attribute values, up to a bound; all further lists are
;;;; counted together, with the attribute otel.metric.overflow (OpenTelemetry's cardinality limit).
;;;; Rows are found without a lock: further rows are only added at the front of a table's lists, and
;;;; a table is replaced by one of twice the length when it has as many rows as lists. Any thread
;;;; may count: it adds atomically to one of several stripes of a row. Numbers are kept exactly, as
;;;; integers and billionths.

(in-package #:clgrpc.metrics)

(defconstant +stripes+ 8 "How many stripes of cells a row has, among which threads are
distributed.")

(defconstant +billion+ 1000000000)

(defstruct (row (:constructor make-row (values stripes)) (:copier nil))
  "An instrument's counts for one list of attribute values."
  ;; strings; :OVERFLOW in the row for all further lists
  (values '() :type (or list (eql :overflow)) :read-only t)
  ;; by stripe CELLS: whole units, billionths, and a histogram's buckets
  (stripes #() :type simple-vector :read-only t)
  (last nil :type (or null real)))      ; a gauge's

(defstruct (custom (:copier nil))
  "An instrument of a user's."
  (metrics nil :type metrics :read-only t) ; the metrics with which it is read
  (name "" :type string :read-only t)   ; as in OpenTelemetry
  ;; the instrument's way to combine numbers
  (kind :counter :type (member :counter :up-down-counter :gauge :histogram) :read-only t)
  (unit "" :type string :read-only t)   ; the unit as in UCUM
  (text "" :type string :read-only t)   ; a description for people
  (attributes '() :type list :read-only t) ; the names of its attributes
  (bounds '() :type list :read-only t)  ; a histogram's, ascending reals
  (shown-bounds '() :type list :read-only t) ; the bounds as readers get them, see SHOWN-BOUND
  (function nil :type (or null function) :read-only t) ; the function of MAKE-GAUGE, or nil
  (limit 0 :type (unsigned-byte 32) :read-only t) ; the greatest number of rows
  (rows '() :type list)                 ; all rows but OVERFLOW, newest first
  (row-count 0 :type (unsigned-byte 32)) ; the length of ROWS
  ;; lists of ROWS by the hashes of their values; its length is a power of two
  (table (make-array 8 :initial-element '()) :type simple-vector)
  (overflow nil :type (or null row)))   ; the row for all further values

(declaim (sb-ext:freeze-type row custom))

(defmethod print-object ((row row) stream)
  (print-unreadable-object (row stream :type t) (format stream "~S" (row-values row))))

(define-printer (custom custom)
  "~A ~(~A~)" (custom-name custom) (custom-kind custom))

(defun shown-bound (bound)
  "BOUND in the form of points. For a single float this is the double float with the same digits:
0.1 is not read as 0.10000000149011612."
  (if (typep bound 'single-float) (coerce (rationalize bound) 'double-float) bound))

(defun add-custom (metrics name kind &key (unit "") (text "") attributes bounds function
                                       (max-series 2000))
  "Make an instrument of METRICS, see MAKE-COUNTER, and return it."
  (check-type metrics metrics)
  (unless (name-p name)
    (misuse "~S cannot name an instrument: give a string of letters, digits and . _ - /, which ~
             begins with a letter and has less than 256 characters." name))
  (unless (and (listp attributes) (every #'name-p attributes))
    (misuse "The names of attributes are a list of strings like names of instruments, not ~S."
            attributes))
  (unless (and (every #'realp bounds) (or (null bounds) (apply #'< bounds)))
    (misuse "Bounds are ascending numbers, not ~S." bounds))
  (check-type unit string)
  (check-type text string)
  (check-type max-series (integer 1 1000000))
  (let ((custom (make-custom :metrics metrics :name name :kind kind :unit unit :text text
                             :attributes attributes :bounds bounds
                             :shown-bounds (mapcar #'shown-bound bounds) :function function
                             :limit max-series)))
    (sb-thread:with-mutex ((metrics-lock metrics))
      (when (or (find name **instruments** :key #'instrument-name :test #'string-equal)
                (find name (metrics-customs metrics) :key #'custom-name :test #'string-equal))
        (misuse "An instrument ~S exists already." name))
      (push custom (metrics-customs metrics)))
    custom))

(define-keyword-function make-counter
    (metrics name &key (unit "") (text "") attributes (max-series 2000))
  "Return a counter of METRICS for a value that only grows: see ADD. NAME has OpenTelemetry's form,
such as \"shop.orders\"; UNIT has the form of UCUM, \"s\", \"By\" or \"{order}\"; TEXT explains the
counter; ATTRIBUTES are the names of its attributes. At most MAX-SERIES lists of attribute values
are counted separately; further lists count together, with the attribute otel.metric.overflow.
Signal MISUSE for a wrong argument, or if METRICS has an instrument of this NAME. From any thread."
  (add-custom metrics name :counter :unit unit :text text :attributes attributes
                                    :max-series max-series))

(define-keyword-function make-up-down-counter
    (metrics name &key (unit "") (text "") attributes (max-series 2000))
  "Return a counter of METRICS for a value that grows and shrinks, such as a queue. The arguments
and errors are as for MAKE-COUNTER. From any thread."
  (add-custom metrics name :up-down-counter :unit unit :text text :attributes attributes
                                            :max-series max-series))

(define-keyword-function make-gauge
    (metrics name &key (unit "") (text "") attributes function (max-series 2000))
  "Return a gauge of METRICS, whose value is the number that was recorded last: see RECORD. If
FUNCTION, a function without arguments, is given, it is called whenever METRICS are read. It returns
a real or nil; or, with ATTRIBUTES, a list of lists, one for each series: a real followed by the
values of the attributes. The other arguments and the errors are as for MAKE-COUNTER. From any
thread."
  (add-custom metrics name :gauge :unit unit :text text :attributes attributes
                                  :function (check-function function ":function")
                                  :max-series max-series))

(define-keyword-function make-histogram
    (metrics name &key (unit "") (text "") attributes
                    (bounds (scale-values **latency**)) (max-series 2000))
  "Return a histogram of METRICS: see RECORD. BOUNDS, ascending reals, are the upper bounds of its
buckets, inclusive; by default the bounds of gRPC's latencies, for seconds. The other arguments and
the errors are as for MAKE-COUNTER. From any thread."
  (add-custom metrics name :histogram :unit unit :text text :attributes attributes :bounds bounds
                                      :max-series max-series))

;;; Sets of instruments

(defun ensure-instruments (metrics key function)
  "Return the instruments of METRICS under KEY, a symbol. The first request for KEY makes them:
FUNCTION, called with METRICS, returns them. So all programs that count the same thing in one
METRICS object share its instruments. Return nil if METRICS is nil. From any thread, but not from
FUNCTION."
  (when metrics
    (sb-thread:with-mutex ((metrics-sets-lock metrics))
      (or (getf (metrics-sets metrics) key)
          (setf (getf (metrics-sets metrics) key) (funcall function metrics))))))

;;; Rows

(defun value-text (value)
  (typecase value
    (string value)
    (symbol (string-downcase value))
    (t (princ-to-string value))))

(defun new-row (custom values)
  (make-row values (coerce (loop repeat +stripes+
                                 collect (make-cells (+ 3 (length (custom-bounds custom)))))
                           'simple-vector)))

(define-hot (table-place :inline t) ((table simple-vector) (values list)) index
  "The index of the list in TABLE, a custom's, that has the row for VALUES, strings."
  (let ((hash 0))
    (declare (type (unsigned-byte 62) hash))
    (dolist (value values)
      (setf hash (ldb (byte 62 0) (+ (* 31 hash) (sxhash (the string value))))))
    (logand hash (1- (length table)))))

(define-hot find-row ((custom custom) (values list)) (or null row)
  "The row of CUSTOM for VALUES, strings, or nil if it has none."
  (let ((table (custom-table custom)))
    (dolist (row (the list (svref table (table-place table values))) nil)
      (when (equal values (row-values (the row row))) (return row)))))

(defun widen-table (custom)
  "Give CUSTOM a table of twice the length. The caller must hold the lock of CUSTOM's metrics."
  (let ((table (make-array (* 2 (length (custom-table custom))) :initial-element '())))
    (dolist (row (custom-rows custom))
      (push row (svref table (table-place table (row-values row)))))
    (sb-thread:barrier (:write))
    (setf (custom-table custom) table)))

(defun put-row (custom row)
  "Add ROW, which is complete, to CUSTOM and return it. The caller must hold the lock of CUSTOM's
metrics."
  (when (= (custom-row-count custom) (length (custom-table custom)))
    (widen-table custom))
  (let* ((table (custom-table custom))
         (place (table-place table (row-values row)))
         (found (cons row (svref table place)))
         (rows (cons row (custom-rows custom))))
    (sb-thread:barrier (:write))
    ;; done completely or not at all, even if this thread is unwound
    (sb-sys:without-interrupts
      (setf (svref table place) found
            (custom-rows custom) rows)
      (incf (custom-row-count custom)))
    row))

(defun overflow-row (custom)
  "The row of CUSTOM for values without a row of their own; it is made now if it does not exist. The
caller must hold the lock of CUSTOM's metrics."
  (or (custom-overflow custom)
      (let ((row (new-row custom :overflow)))
        (sb-thread:barrier (:write))
        (setf (custom-overflow custom) row))))

(defun add-row (custom values)
  "The row of CUSTOM for VALUES. Make the row if it does not exist, unless CUSTOM already has as
many rows as it may have."
  (unless (= (length values) (length (custom-attributes custom)))
    (misuse "~A has the attributes ~S, not ~D values." (custom-name custom)
            (custom-attributes custom) (length values)))
  (let ((values (mapcar #'value-text values)))
    (sb-thread:with-mutex ((metrics-lock (custom-metrics custom)))
      (cond ((find-row custom values))
            ((< (custom-row-count custom) (custom-limit custom))
             ;; copied: the caller may write other texts into its own strings
             (put-row custom (new-row custom (mapcar #'copy-seq values))))
            (t (overflow-row custom))))))

(defun row-of (custom values)
  (or (and (every #'stringp values) (find-row custom values))
      (add-row custom values)))

(defun count-real (cells at number)
  "Add NUMBER to the units and billionths of CELLS from AT."
  (multiple-value-bind (whole rest) (floor number)
    (sb-ext:atomic-incf (aref (the cells cells) at) (the (signed-byte 64) whole))
    (unless (zerop rest)
      (sb-ext:atomic-incf (aref (the cells cells) (1+ at)) (round (* rest +billion+))))))

(defun countable-p (number)
  "True if NUMBER, any object, is a real of up to 18 digits."
  (and (realp number)
       (finite-p number)
       (< (abs number) 1000000000000000000)))

(defun check-number (custom number)
  "Signal MISUSE unless CUSTOM can record NUMBER."
  (unless (countable-p number)
    (misuse "~S is not a number for ~A." number (custom-name custom))))

(defun add (counter number &rest values)
  "Add NUMBER, a real, to COUNTER, which MAKE-COUNTER or MAKE-UP-DOWN-COUNTER has made. For a
counter of MAKE-COUNTER, NUMBER must not be negative. VALUES are the values of its attributes, in
their order: strings, or objects that are shown as strings. Signal MISUSE for invalid arguments.
From any thread."
  (unless (and (custom-p counter) (member (custom-kind counter) '(:counter :up-down-counter)))
    (misuse "~S is not a counter." counter))
  (check-number counter number)
  (when (and (eq :counter (custom-kind counter)) (minusp number))
    (misuse "~A only grows; ~S cannot be added to it." (custom-name counter) number))
  (count-real (svref (row-stripes (row-of counter values)) (shared-place)) +padding+ number)
  nil)

(defun record (instrument number &rest values)
  "Record NUMBER, a real, in INSTRUMENT, of MAKE-HISTOGRAM or MAKE-GAUGE. VALUES and the errors are
as for ADD. From any thread."
  (unless (and (custom-p instrument) (member (custom-kind instrument) '(:histogram :gauge))
               (null (custom-function instrument)))
    (misuse "~S is neither a histogram nor a gauge to record in." instrument))
  (check-number instrument number)
  (let ((row (row-of instrument values)))
    (if (eq :gauge (custom-kind instrument))
        (setf (row-last row) number)
        (let ((cells (svref (row-stripes row) (shared-place)))
              (bucket (or (position number (custom-bounds instrument) :test #'<=)
                          (length (custom-bounds instrument)))))
          (count-real cells +padding+ number)
          (sb-ext:atomic-incf (aref (the cells cells) (+ 2 +padding+ bucket))))))
  nil)

;;; Reading

(defun signed (word)
  (if (logbitp 63 word) (- word (ash 1 64)) word))

(defun row-total (row)
  "The sum of the counts in ROW, a rational."
  (loop for cells across (row-stripes row)
        sum (+ (signed (aref (the cells cells) +padding+))
               (/ (aref (the cells cells) (1+ +padding+)) +billion+))))

(defun named-values (custom values)
  "An alist from the names of CUSTOM's attributes to VALUES."
  (mapcar #'cons (custom-attributes custom) values))

(defun custom-point (custom row)
  (let ((attributes (if (eq :overflow (row-values row))
                        '(("otel.metric.overflow" . "true"))
                        (named-values custom (row-values row)))))
    (ecase (custom-kind custom)
      ((:counter :up-down-counter) (make-point :attributes attributes :value (row-total row)))
      (:gauge (make-point :attributes attributes :value (row-last row)))
      (:histogram
       (make-point :attributes attributes :sum (row-total row)
                   :bounds (custom-shown-bounds custom)
                   :buckets (loop for i from 0 to (length (custom-bounds custom))
                                  collect (loop for cells across (row-stripes row)
                                                sum (aref (the cells cells)
                                                          (+ 2 +padding+ i)))))))))

(defun asked-points (custom)
  "The points that the function of CUSTOM, a gauge, returns now; none if it fails."
  (loop:guarding (:gauge-function-error :name (custom-name custom))
    (let ((answer (funcall (the function (custom-function custom)))))
      (loop for (number . values) in (if (custom-attributes custom) answer (list (list answer)))
            when (countable-p number)
              collect (make-point :attributes (named-values custom (mapcar #'value-text values))
                                  :value number)))))

(defun all-rows (custom)
  "The rows of CUSTOM, the oldest first, without rows of a gauge whose first number is about to be
recorded."
  (let ((rows (append (reverse (custom-rows custom))
                      (and (custom-overflow custom) (list (custom-overflow custom))))))
    (if (eq :gauge (custom-kind custom))
        (remove nil rows :key #'row-last)
        rows)))

(defun custom-family (custom)
  (make-family
   :name (custom-name custom) :kind (custom-kind custom) :unit (custom-unit custom)
   :text (custom-text custom)
   :points (if (custom-function custom)
               (asked-points custom)
               (mapcar (lambda (row) (custom-point custom row)) (all-rows custom)))))
