;;;; Spans alone: limits, counts, permanent values.

(in-package #:clgrpc.tests.trace)

(defun tracing (&rest options) (apply #'grpc:make-tracing options))

(defun a-span (&rest options)
  (let ((tracing (apply #'tracing options)))
    (trace::begin-span tracing (trace::queue-for tracing nil) "work" :internal (place 5) nil)))

(test limits-of-spans
  (let ((span (a-span :max-span-attributes 2 :max-span-events 2 :max-span-links 1
                      :max-attribute-characters 5)))
    (loop for name in '("a" "b" "c" "a") for value from 0
          do (trace::put-attribute span name value))
    (is (equal '(("a" . 3) ("b" . 1)) (trace:span-attributes span)))
    (is (= 1 (trace:span-dropped-attributes span)))
    (dolist (name '("one" "two" "three" "four")) (trace::add-event span name '()))
    (is (equal '("one" "two") (mapcar #'trace:event-name (trace:span-events span))))
    (is (= 2 (trace:span-dropped-events span)))
    (trace::add-link span (place 6) '())
    (trace::add-link span (place 7) '())
    (is (= 1 (length (trace:span-links span)) (trace:span-dropped-links span)))
    (trace::put-attribute span "b" "123456789")
    (is (string= "12345" (cdr (assoc "b" (trace:span-attributes span) :test #'string=))))
    (trace::put-status span :error "123456789")
    (is (string= "12345" (trace:span-status-text span)))))

(test values-of-attributes
  (let ((span (a-span)))
    (loop for value in (list "x" 1 1.5d0 t nil #(1 2) #("a" "b"))
          do (trace::put-attribute span "v" value)
             (is (equalp value (cdr (first (trace:span-attributes span))))))
    (trace::put-attribute span "v" 1/2)
    (is (eql 0.5d0 (cdr (first (trace:span-attributes span)))))
    (dolist (value (list 'symbol (ash 1 64) '(1) #(a)))
      (signals misuse (trace::put-attribute span "v" value)))
    (signals misuse (trace::put-attribute span 'name 1))
    (signals misuse (trace::attribute-alist '("a") (trace::span-limits span)))))

(test a-status-that-is-ok-stays
  (let ((span (a-span)))
    (trace::put-status span :error "no")
    (trace::put-status span :ok)
    (trace::put-status span :error "no")
    (is (eq :ok (trace:span-status span)))
    (is (string= "" (trace:span-status-text span)))))

(test a-span-that-has-ended-does-not-change
  (let* ((tracing (tracing)) (queue (trace::queue-for tracing nil))
         (span (trace::begin-span tracing queue "work" :internal (place 5) nil)))
    (trace::finish-span tracing queue span)
    (trace::put-attribute span "a" 1)
    (trace::add-event span "e" '())
    (trace::put-status span :error "no")
    (trace::finish-span tracing queue span)
    (is (equal (list span) (trace:drain tracing)))
    (is (null (trace:span-attributes span)))
    (is (null (trace:span-events span)))
    (is (eq :unset (trace:span-status span)))
    (is (<= (trace:span-start-ns span) (trace:span-end-ns span)))
    ;; times are those of the calendar
    (is (< (abs (- (trace:span-end-ns span) (real-time-ns))) (* 10 +ns-per-second+)))))
