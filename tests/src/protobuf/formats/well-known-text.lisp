;;;; The texts of Timestamp, Duration and FieldMask: both directions, ranges, and refused texts.

(in-package #:clgrpc.tests.protobuf)

(defun values-of (function text)
  (multiple-value-list (funcall function text)))

(test timestamps-in-text
  (loop for (seconds nanos text) in '((0 0 "1970-01-01T00:00:00Z")
                                      (1700000000 120000000 "2023-11-14T22:13:20.120Z")
                                      (951782400 1000 "2000-02-29T00:00:00.000001Z")
                                      (-1 999999999 "1969-12-31T23:59:59.999999999Z")
                                      (-62135596800 0 "0001-01-01T00:00:00Z")
                                      (253402300799 0 "9999-12-31T23:59:59Z"))
        do (is (equal text (protobuf:timestamp-text seconds nanos)))
           (is (equal (list seconds nanos) (values-of #'protobuf:parse-timestamp-text text))))
  (is (equal '(3600 0) (values-of #'protobuf:parse-timestamp-text "1970-01-01T00:00:00-01:00")))
  (is (equal '(-5400 500000000)
             (values-of #'protobuf:parse-timestamp-text "1970-01-01T00:00:00.5+01:30")))
  (dolist (text '("" "1970-01-01" "1970-01-01T00:00:00" "1970-01-01t00:00:00Z"
                  "1970-01-01T00:00:00z" "1970-02-29T00:00:00Z" "1970-13-01T00:00:00Z"
                  "1970-01-01T24:00:00Z" "1970-01-01T00:00:60Z" "1970-01-01T00:00:00.Z"
                  "1970-01-01T00:00:00.1234567890Z" "0000-01-01T00:00:00Z" "1970-01-01T00:00:00Z "
                  "0001-01-01T00:00:00+23:59" "1970-01-01T00:00:00+1:00"))
    (is (equal '(nil) (values-of #'protobuf:parse-timestamp-text text)) "~S" text))
  (is (null (protobuf:timestamp-text 253402300800 0)))
  (is (null (protobuf:timestamp-text 0 -1)))
  (is (null (protobuf:timestamp-text 0 1000000000))))

(test every-day-comes-back
  (loop for days from -719162 to 2932896 by 89
        do (multiple-value-bind (year month day) (protobuf::days-civil days)
             (unless (and (= days (protobuf::civil-days year month day))
                          (<= 1 year 9999) (<= 1 month 12)
                          (<= 1 day (protobuf::month-length year month)))
               (fail "day ~D is ~D-~D-~D" days year month day))))
  (pass))

(test durations-in-text
  (loop for (seconds nanos text) in '((0 0 "0s") (3 0 "3s") (-3 0 "-3s") (1 500000000 "1.500s")
                                      (0 -1000 "-0.000001s") (-1 -999999999 "-1.999999999s")
                                      (315576000000 0 "315576000000s"))
        do (is (equal text (protobuf::duration-text seconds nanos)))
           (is (equal (list seconds nanos) (values-of #'protobuf::parse-duration-text text))))
  (dolist (text '("" "1" "s" "1.s" ".5s" "1s " "+1s" "1.0000000001s" "315576000001s" "1e3s" "--1s"))
    (is (equal '(nil) (values-of #'protobuf::parse-duration-text text)) "~S" text))
  (is (null (protobuf::duration-text 1 -1)))
  (is (null (protobuf::duration-text 315576000001 0))))

(test paths-of-field-masks
  (is (equal "fooBar.b" (protobuf::camel-path "foo_bar.b")))
  (is (equal "foo_bar.b" (protobuf::snake-path "fooBar.b")))
  (dolist (path '("fooBar" "foo__bar" "foo_3" "foo_")) (is (null (protobuf::camel-path path))))
  (is (null (protobuf::snake-path "foo_bar")))
  (is (equal '("a" "" "b") (protobuf::split-text "a,,b" #\,)))
  (is (null (protobuf::split-text "" #\,))))
