;;;; The names of functions in a map for perf.

(in-package #:clgrpc.tests.program)

(test names-of-functions-are-one-line-each
  "This holds for names of any form and length."
  (flet ((long (name) (intern (make-string 60 :initial-element name) '#:clgrpc.tests.program)))
    (loop for (name label)
            in `((car "car") ("a text" "\"a text\"") ("two
lines" "\"two lines\"") ((setf car) "(setf car)") (program:end "clgrpc.program:end")
                 ((lambda (list) :in car) "(lambda (list) :in car)")
                 ((1 2 3 4 5 6) "(1 2 3 4 5 6)") ((1 2 3 4 5 6 7) "(1 2 3 4 5 6 ...)")
                 ((1 (2 (3 (4)))) "(1 (2 (3 (4))))") ((1 (2 (3 (4 (5))))) "(1 (2 (3 (4 #))))")
                 ((,(long #\X) ,(long #\Y) ,(long #\Z))
                  ,(format nil "(~@{clgrpc.tests.program::~A~^ ~})"
                           (make-string 60 :initial-element #\x)
                           (make-string 60 :initial-element #\y)
                           (make-string 60 :initial-element #\z))))
          do (is (equal label (program::function-label name))))))

(test a-map-that-cannot-be-written-is-logged
  (with-replaced (('program::write-perf-map (lambda (function &rest arguments)
                                              (declare (ignore function arguments))
                                              (error "no room"))))
    (with-logged (events)
      (sb-thread:join-thread (program::begin-perf-map))
      (destructuring-bind (level name . plist) (first (events))
        (is (equal '(:error :perf-map-failed) (list level name)))
        (is (string= "no room" (princ-to-string (getf plist :condition))))))))
