;;;; Families: the result of reading metrics. A family is one instrument with its points, one for
;;;; each set of attributes. Families are made at each reading, and are plain data for exporters.

(in-package #:clgrpc.metrics)

(defstruct (family (:copier nil))
  "An instrument and its counts."
  ;; the name in OpenTelemetry, such as "grpc.server.call.duration"
  (name "" :type string :read-only t)
  ;; the way to combine numbers
  (kind :counter :type (member :counter :up-down-counter :gauge :histogram) :read-only t)
  (unit "" :type string :read-only t)   ; the unit as in UCUM: "s", "By", "{call}"
  (text "" :type string :read-only t)   ; a description for people
  ;; the name in Prometheus, unless that is made of NAME
  (alias nil :type (or null string) :read-only t)
  (points '() :type list :read-only t)) ; points by attributes

(defstruct (point (:copier nil))
  "An instrument's counts for one set of attributes."
  (attributes '() :type list :read-only t) ; an alist of strings
  (value nil :type (or null real) :read-only t) ; the value; nil for a histogram
  (bounds '() :type list :read-only t)  ; the bounds of a histogram: reals, ascending
  (buckets '() :type list :read-only t) ; how many values each bucket has, one more than BOUNDS
  (sum nil :type (or null real) :read-only t) ; the sum of all values
  ;; exemplars by bucket, each a list (value labels unix-ns) or nil; nil if there are none
  (exemplars '() :type list :read-only t))

(declaim (sb-ext:freeze-type family point))

(define-printer (family family)
  "~A, ~D point~:P" (family-name family) (length (family-points family)))

(define-printer (point point)
  "~{~A~^ ~} ~A" (mapcar #'cdr (point-attributes point))
  (or (point-value point) (point-count point)))

(defun point-count (point)
  "How many values POINT, a histogram's, has recorded."
  (reduce #'+ (point-buckets point)))
