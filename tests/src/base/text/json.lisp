;;;; JSON: forms of values, refused texts, places of errors, limits, doubles in both directions.

(in-package #:clgrpc.tests.base)

(defun json-round-trip (text)
  (write-json (parse-json text)))

(test json-values
  (is (eq :true (parse-json "true")))
  (is (eq :false (parse-json " false ")))
  (is (eq :null (parse-json "null")))
  (is (equalp #() (parse-json "[]")))
  (is (null (parse-json "{}")))
  (is (equalp #(1 #(2 #()) ()) (parse-json "[1, [2, []], {}]")))
  (is (equalp '(("a" . 1) ("b" . #(:true)) ("a" . (("" . "x"))))
              (parse-json "{\"a\" : 1, \"b\":[true],\"a\":{\"\":\"x\"}}")))
  (is (equal "λ" (parse-json (string-octets "\"λ\""))))
  (is (typep (parse-json "[1]") 'simple-vector)))

(test json-numbers
  (loop for (text value)
          in '(("0" 0) ("-0" 0) ("-12" -12)
               ("123456789012345678901234567890" 123456789012345678901234567890)
               ("0.5" 0.5d0) ("-0.0" -0d0) ("1e2" 100d0) ("1E+2" 100d0) ("25e-1" 2.5d0) ("1.0" 1d0)
               ("0.1" 0.1d0) ("1.7976931348623157e308" 1.7976931348623157d308)
               ("2.2250738585072014e-308" 2.2250738585072014d-308)
               ("0e999999999" 0d0) ("1e-999999999" 0d0)
               ;; halfway between 1 and the next double, and a hair more
               ("1.00000000000000011102230246251565404236316680908203125" 1d0)
               ("1.00000000000000011102230246251565404236316680908203126" 1.0000000000000002d0)
               ("9007199254740993e0" 9007199254740992d0))
        do (is (eql value (parse-json text)) "~A: ~S, not ~S" text (parse-json text) value)))

(test json-denormals
  (let ((least least-positive-double-float))
    (is (eql least (parse-json "5e-324")))
    (is (eql (- least) (parse-json "-4.9406564584124654e-324")))
    (is (eql 0d0 (parse-json "2.4703282292062327e-324")))
    (is (eql least (parse-json "2.4703282292062328e-324")))
    (is (eql (scale-float 1d0 -1070) (parse-json (format nil "~D" "7.905050333459945e-323"))))
    (is (eql (- (scale-float 1d0 -1022) least)
             (parse-json "2.2250738585072009e-308")))))

(test json-double-round-trip
  (let* ((seed (random (expt 2 32) (make-random-state t)))
         (state (sb-ext:seed-random-state seed)))
    (dotimes (i 2000)
      (let* ((high (random (expt 2 32) state))
             (double (sb-kernel:make-double-float
                      (if (logbitp 31 high) (- (logand high #x7FFFFFFF) (expt 2 31)) high)
                      (random (expt 2 32) state))))
        (unless (or (sb-ext:float-nan-p double) (sb-ext:float-infinity-p double))
          (unless (eql double (parse-json (write-json double)))
            (fail "~S is written ~A; seed ~D" double (write-json double) seed))))))
  (is (string= "0" (write-json 0)))
  (is (string= "-7" (write-json -7)))
  (is (string= "0.1" (write-json 0.1d0)))
  (is (string= "0.1" (write-json 0.1f0)))
  (is (string= "100.0" (write-json 1d2)))
  (is (eql 1d23 (parse-json (write-json 1d23))))
  (is (string= "-0.0" (write-json -0d0))))

(test json-strings
  (loop for (text value)
          in `(("\"\"" "") ("\"a b\"" "a b")
               ("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\""
                ,(coerce '(#\" #\\ #\/ #\Backspace #\Page #\Newline #\Return #\Tab) 'string))
               ("\"x\\u00e9\\u20AC\""
                ,(coerce (list #\x (code-char #xE9) (code-char #x20AC)) 'string))
               ("\"\\ud83d\\uDE00\"" ,(string (code-char #x1F600)))
               ("\"\\u0000\"" ,(string (code-char 0))))
        do (is (equal value (parse-json text)) "~A" text)
           (is (equal value (parse-json (write-json value))))))

(test json-writing
  (is (string= "{\"a\":[1,2.5,\"x\"],\"b\":{},\"c\":[],\"d\":null,\"e\":true,\"f\":false}"
               (json-round-trip "{ \"a\": [1, 2.5, \"x\"], \"b\": { }, \"c\": [ ], \"d\": null,
                                  \"e\": true, \"f\": false }")))
  (is (string= "\"\\\"\\\\\\n\\r\\t\\u0001\\u001F\""
               (write-json (map 'string #'code-char '(34 92 10 13 9 1 31)))))
  ;; a lone surrogate, which JSON does not have
  (is (string= (format nil "\"~C\"" (code-char #xFFFD))
               (write-json (string (code-char #xD800)))))
  (is (string= "[1,2]" (write-json (make-array 2 :element-type 'octet :initial-contents '(1 2)))))
  (let ((*print-base* 16) (*print-radix* t) (*print-pretty* t))
    (is (string= "[255,\"x\"]" (write-json #(255 "x")))))
  (is (string= "[1]" (with-output-to-string (stream) (write-json #(1) :stream stream)))))

(test json-unwritable
  (dolist (value (list 'symbol 1/2 #C(1 2) '(1 2) '((:name . 1))
                       sb-ext:double-float-positive-infinity
                       sb-ext:single-float-negative-infinity))
    (signals misuse (write-json value))))

(defun json-error-place (text)
  "The place, (line column), of the error in TEXT, or the value if it is JSON."
  (handler-case (parse-json text)
    (json-error (condition)
      (princ-to-string condition)
      (list (json-error-line condition) (json-error-column condition)))))

(test json-refusals
  (loop for (text line column)
          in `(("" 1 1) ("  " 1 3) ("nul" 1 1) ("tru" 1 1) ("nulll" 1 5) ("1 2" 1 3) ("[1,]" 1 4)
               ("[1 2]" 1 4) ("[" 1 2) ("[1" 1 3) ("]" 1 1)
               ("{" 1 2) ("{a:1}" 1 2) ("{\"a\" 1}" 1 6)
               ("{\"a\":1,}" 1 8) ("{\"a\":}" 1 6) (,(format nil "[1,~%  x]") 2 3)
               (,(format nil "{~%~%  \"a\": 01}") 3 8)
               ("01" 1 1)
               ("-" 1 2) ("+1" 1 1) (".5" 1 1) ("1." 1 3) ("1e" 1 3) ("1e+" 1 4) ("--1" 1 2)
               ("1e400" 1 6) ("NaN" 1 1) ("Infinity" 1 1) ("0x10" 1 2) ("'a'" 1 1) ("\"a" 1 3)
               ("\"\\x\"" 1 3) ("\"\\" 1 3) ("\"\\u12\"" 1 6) ("\"\\u12g4\"" 1 6)
               (,(format nil "\"a~Cb\"" #\Tab) 1 3) (,(format nil "\"a~%b\"") 1 3)
               ("\"\\ud800\"" 1 8) ("\"\\ud800\\n\"" 1 9) ("\"\\udc00\"" 1 8)
               ("\"\\ud800\\u0041\"" 1 14) ("// a" 1 1) (,(format nil "~C1" (code-char #xFEFF)) 1 1)
               (,(octets-of 91 10 34 97 #xFF 34 93) 2 3)
               ("\"\\u٣٣٣٣\"" 1 4))
        do (is (equal (list line column) (json-error-place text)) "~S: at ~S" text
               (json-error-place text))))

(test json-limits
  (flet ((nested (depth)
           (concatenate 'string (make-string depth :initial-element #\[)
                        (make-string depth :initial-element #\]))))
    (is (vectorp (parse-json (nested 100))))
    (signals limit-exceeded (parse-json (nested 101)))
    (signals limit-exceeded (parse-json (nested 3) :max-depth 2))
    (is (vectorp (parse-json "[[],[],{},[]]" :max-depth 2))))
  (signals limit-exceeded (parse-json "[1,2]" :max-length 4))
  (is (vectorp (parse-json "[1,2]" :max-length 5)))
  (is-true (parse-json (make-string 1100 :initial-element #\1)))
  (signals limit-exceeded (parse-json (make-string 1101 :initial-element #\1)))
  (signals limit-exceeded (parse-json (format nil "1e~A" (make-string 2000 :initial-element #\1)))))

(test what-is-written-is-fit-for-a-terminal
  (is (string= "\"\\u001B\\u007F\\u009B\\u2028\\u202E é\""
               (write-json (map 'string #'code-char
                                '(#x1B #x7F #x9B #x2028 #x202E #x20 #xE9)))))
  (let ((all (coerce (loop for code from 0 below #x11000
                           unless (<= #xD800 code #xDFFF) collect (code-char code))
                     'string)))
    (is (string= all (parse-json (write-json all))))))
