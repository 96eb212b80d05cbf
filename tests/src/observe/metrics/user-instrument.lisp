;;;; Instruments of users.

(in-package #:clgrpc.tests.metrics)

(test sums-of-threads-are-exact
  (let* ((metrics (grpc:make-metrics))
         (counter (grpc:make-counter metrics "shop.orders" :attributes '("kind")))
         (histogram (grpc:make-histogram metrics "shop.seconds" :bounds '(1 2)))
         (threads (loop for i below 8
                        collect (let ((kind (if (evenp i) "even" "odd")))
                                  (in-thread (loop repeat 10000
                                                   do (grpc:add counter 1 kind)
                                                      (grpc:record histogram 3/2)))))))
    (mapc #'sb-thread:join-thread threads)
    (is (equal '(("even" 40000) ("odd" 40000)) (points metrics "shop.orders")))
    (let ((point (first (metrics:family-points (family metrics "shop.seconds")))))
      (is (equal '(0 80000 0) (metrics:point-buckets point)))
      (is (= 120000 (metrics:point-sum point))))))

(test gauges-and-counters-that-shrink
  (let* ((metrics (grpc:make-metrics))
         (queue (grpc:make-up-down-counter metrics "queue"))
         (level (grpc:make-gauge metrics "level")))
    (grpc:add queue 5)
    (grpc:add queue -15/2)
    (grpc:record level 7)
    (grpc:record level 2.5)
    (grpc:make-gauge metrics "asked" :function (lambda () 42))
    (is (equal '((-5/2)) (points metrics "queue")))
    (is (equal '((2.5)) (points metrics "level")))
    (is (equal '((42)) (points metrics "asked")))))

(test a-gauge-s-function-has-a-series-for-each-list
  (let ((metrics (grpc:make-metrics)))
    (grpc:make-gauge metrics "asked" :attributes '("queue")
                                     :function (lambda () '((1 "a") (2 :b) (nil "c"))))
    (is (equal '(("a" 1) ("b" 2)) (points metrics "asked")))))

(test instruments-of-one-metrics-are-shared
  (let ((metrics (grpc:make-metrics)))
    (flet ((instrument (metrics)
             (metrics:ensure-instruments
              metrics 'shared (lambda (metrics) (grpc:make-counter metrics "shared")))))
      (is (eq (instrument metrics) (instrument metrics)))
      (is (not (eq (instrument metrics) (instrument (grpc:make-metrics)))))
      (is (null (instrument nil))))))

(test a-gauge-s-number-that-is-none-is-left-out
  "A NaN or an infinity would prevent reading the others as well."
  (let* ((metrics (grpc:make-metrics))
         (level (grpc:make-gauge metrics "level"))
         (counter (grpc:make-counter metrics "counter"))
         (wild (list (sb-kernel:make-double-float #x7FF80000 0)
                     (sb-kernel:make-single-float #x7FC00000)
                     sb-ext:double-float-positive-infinity
                     sb-ext:single-float-negative-infinity
                     1d300 (expt 10 400) :none))
         (number nil))
    (grpc:make-gauge metrics "asked" :function (lambda () number))
    (grpc:make-gauge metrics "row" :attributes '("x")
                                   :function (lambda () (list (list number "a") (list 1 "b"))))
    (dolist (next wild)
      (setf number next)
      (is (equal '() (points metrics "asked")))
      (is (equal '(("b" 1)) (points metrics "row")))
      (signals grpc:misuse (grpc:record level next))
      (signals grpc:misuse (grpc:add counter next)))
    (is (plusp (length (grpc:metrics-text metrics))))))

(test a-gauge-s-function-that-fails-is-told
  (with-log (:gauge-function-error)
    (let ((metrics (grpc:make-metrics)))
      (grpc:make-gauge metrics "broken" :function (lambda () (error "no number")))
      (grpc:make-gauge metrics "whole" :function (lambda () 1))
      (is (null (points metrics "broken")))
      (is (equal '((1)) (points metrics "whole")))
      (is (equal '("broken" "broken")      ; once a reading
                 (mapcar (lambda (event) (getf event :name))
                         (events-of :gauge-function-error)))))))

(test too-many-attributes-overflow
  (let* ((metrics (grpc:make-metrics))
         (counter (grpc:make-counter metrics "c" :attributes '("a") :max-series 2)))
    (dolist (value '("x" :y 3 4 "x")) (grpc:add counter 1 value))
    (is (equal '(("true" 2) ("x" 2) ("y" 1)) (points metrics "c")))))

(test a-gauge-without-its-first-number-is-left-out
  "A reader may come after RECORD has made a series and before its number is stored."
  (let* ((metrics (grpc:make-metrics))
         (level (grpc:make-gauge metrics "level" :attributes '("x"))))
    (grpc:record level 1 "a")
    (metrics::add-row level '("b"))
    (is (equal '(("a" 1)) (points metrics "level")))
    (is (plusp (length (grpc:metrics-text metrics))))
    (grpc:record level 2 "b")
    (is (equal '(("a" 1) ("b" 2)) (points metrics "level")))))

(test a-series-costs-the-same-beside-many
  "The allocation for one does not grow with the number of series."
  (let* ((count 10000)
         (metrics (grpc:make-metrics))
         (counter (grpc:make-counter metrics "c" :attributes '("a") :max-series count))
         (before (sb-ext:get-bytes-consed)))
    (loop repeat 2
          do (dotimes (i count) (grpc:add counter 1 (princ-to-string i))))
    (is (< (- (sb-ext:get-bytes-consed) before) (* 16384 count)))
    (let ((points (metrics:family-points (family metrics "c"))))
      (is (= count (length points)))
      (is (every (lambda (point) (= 2 (metrics:point-value point))) points))
      (is (equal '(("a" . "0")) (metrics:point-attributes (first points)))))))

(test threads-that-begin-a-series-share-it
  (let* ((metrics (grpc:make-metrics))
         (counter (grpc:make-counter metrics "c" :attributes '("a" "b"))))
    (with-threads (i 8)
      (dotimes (i 500) (grpc:add counter 1 (princ-to-string (mod i 10)) (floor i 10))))
    (let ((points (metrics:family-points (family metrics "c"))))
      (is (= 500 (length points)))
      (is (every (lambda (point) (= 8 (metrics:point-value point))) points)))))

(test a-series-keeps-its-label
  "It does so whatever the caller does with its string."
  (let* ((metrics (grpc:make-metrics))
         (counter (grpc:make-counter metrics "c" :attributes '("a")))
         (text (make-array 3 :element-type 'character :fill-pointer t :initial-contents "one")))
    (grpc:add counter 1 text)
    (replace text "two")
    (grpc:add counter 2 text)
    (grpc:add counter 4 "one")
    (is (equal '(("one" 5) ("two" 2)) (points metrics "c")))))

(test bounds-are-shown-as-written
  "A single float, which Lisp reads by default, gets no further digits as a double float; a value
that is equal to the bound is counted below it."
  (let* ((metrics (grpc:make-metrics))
         (histogram (grpc:make-histogram metrics "packing" :bounds '(0.1 1/4 2.5d0))))
    (grpc:record histogram 0.1)
    (let ((text (map 'string #'code-char (grpc:metrics-text metrics))))
      (dolist (line '("le=\"0.1\"} 1" "le=\"0.25\"} 1" "le=\"2.5\"} 1" "le=\"+Inf\"} 1"))
        (is (search line text) "~A" line)))))

(test wrong-instruments-are-refused
  (let* ((metrics (grpc:make-metrics))
         (counter (grpc:make-counter metrics "c" :attributes '("a"))))
    (signals misuse (grpc:make-counter metrics "c"))
    (signals misuse (grpc:make-counter metrics "grpc.server.call.started"))
    (dolist (name `("no name" "" "1a" "_a" "é" "aé" "a:b" a
                    ,(make-string 256 :initial-element #\a)))
      (signals misuse (grpc:make-counter metrics name) "~S" name)
      (signals misuse (grpc:make-metrics :resource (list (cons name "x"))) "~S" name))
    (dolist (name `("a" "Z9._-/" ,(make-string 255 :initial-element #\a)))
      (is (null (grpc:add (grpc:make-counter metrics name) 1)) "~S" name))
    (signals misuse (grpc:make-counter metrics "d" :attributes "a"))
    (signals misuse (grpc:make-counter metrics "d" :attributes '(a)))
    (signals misuse (grpc:make-histogram metrics "h" :bounds '(2 1)))
    (signals misuse (grpc:add counter 1))
    (signals misuse (grpc:add counter -1 "x"))
    (signals misuse (grpc:record counter 1 "x"))
    (signals misuse (grpc:add (grpc:make-gauge metrics "g") 1))
    (signals misuse (grpc:record (grpc:make-gauge metrics "f" :function (constantly 1)) 1))
    (signals misuse (grpc:add "c" 1))
    (dolist (resource '("x" ("x") (("x" . "y") 5)))
      (signals misuse (grpc:make-metrics :resource resource) "~S" resource))
    (signals misuse (grpc:make-metrics :enable '("nothing")))))
