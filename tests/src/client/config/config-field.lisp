;;;; The JSON mapping of Protocol Buffers, field by field, and the same fields in Lisp data.

(in-package #:clgrpc.tests.config)

(defun duration (text)
  "The nanoseconds of the timeout TEXT, or :wrong."
  (handler-case (config:duration-field (list (cons "timeout" text)) "timeout" "")
    (config:service-config-error () :wrong)))

(test durations
  (loop for (text ns) in `(("1s" ,+ns-per-second+) ("1.5s" 1500000000) (".1s" 100000000)
                           ("0.000000001s" 1) ("0s" 0) ("007s" 7000000000) ("3.s" 3000000000)
                           ("315576000000s" ,most-positive-fixnum))
        do (is (eql ns (duration text)) "~A" text))
  (dolist (text '("" "s" "1" ".s" "1.5" "100ms" "1.0000000001s" "-1s" "-.5s" "+1s" "1 s" " 1s"
                  "1e3s"
                  "1.-5s" "--1s" "-s" "1s " "315576000001s" "9999999999999s" "٣s" 1 1.5d0 :true
                  nil))
    (is (eq :wrong (duration text)) "~S" text)))

(test durations-have-ranges
  (flet ((read-with (text &rest range)
           (apply #'config:duration-field (list (cons "d" text)) "d" "x" range)))
    (is (= 1 (read-with "0.000000001s" :minimum 1)))
    (signals config:service-config-error (read-with "0s" :minimum 1))
    (signals config:service-config-error (read-with "2s" :maximum +ns-per-second+))
    (is (= -5000000000 (read-with "-5s" :minimum (* -10 +ns-per-second+))))
    (is (= 100 (read-with "0s" :least 100) (read-with "0.000000099s" :least 100)))
    (is (= 101 (read-with "0.000000101s" :least 100)))))

(defun integer-read (value &rest arguments)
  "VALUE read as an integer, or :wrong."
  (handler-case (apply #'config:integer-field (list (cons "n" value)) "n" "" arguments)
    (config:service-config-error () :wrong)))

(test integers-are-numbers-or-text
  (loop for (value integer) in '((0 0) (7 7) (4294967295 4294967295) ("12" 12) (3d0 3) ("3.0" 3)
                                 ("1e2" 100) (:null nil))
        do (is (eql integer (integer-read value)) "~S" value))
  (dolist (value '(-1 4294967296 1.5d0 "1.5" "" " 1" "1 " "0x10" "one" :true () #(1)))
    (is (eq :wrong (integer-read value)) "~S" value))
  (is (eql 5 (integer-read :null :default 5)))
  (is (eq :wrong (integer-read :null :required t)))
  (is (eq :wrong (integer-read 1 :minimum 2)))
  (is (eq :wrong (integer-read 9 :maximum 8))))

(test numbers
  (flet ((number-read (value &rest arguments)
           (handler-case (apply #'config:number-field (list (cons "n" value)) "n" "" arguments)
             (config:service-config-error () :wrong))))
    (is (eql 1/2 (number-read 0.5d0)))
    (is (eql 1/4 (number-read "0.25")))
    (is (eql -2 (number-read -2)))
    (is (eq :wrong (number-read "NaN")))
    (is (eq :wrong (number-read "Infinity")))
    (is (eq :wrong (number-read 0 :above 0)))
    (is (eq :wrong (number-read 3 :maximum 2)))
    (is (eql 2 (number-read 1d300 :most 2)))
    (is (eql 2 (number-read (expt 10 400) :least 1 :most 2)))
    (is (eql 1 (number-read 1/2 :least 1 :most 2)))
    (is (eql 3/2 (number-read 1.5d0 :least 1 :most 2)))
    (is (eq :wrong (number-read sb-ext:double-float-positive-infinity :most 2)))
    (is (eq :wrong (number-read (sb-kernel:make-double-float #x7FF80000 0))))
    (is (eq :wrong (number-read :null :required t)))))

(test names-may-be-written-in-snake-case
  (is (eql 3 (config:integer-field '(("max_attempts" . 3)) "maxAttempts" "")))
  (is (eql 3 (config:integer-field '(("other" . 1) ("maxAttempts" . 3)) "maxAttempts" "")))
  (signals config:service-config-error
    (config:integer-field '(("max_attempts" . 3) ("maxAttempts" . 3)) "maxAttempts" ""))
  (signals config:service-config-error
    (config:integer-field '(("maxAttempts" . :null) ("maxAttempts" . 3)) "maxAttempts" "")))

(test booleans-and-strings
  (flet ((boolean-read (value)
           (handler-case (config:boolean-field (list (cons "b" value)) "b" "" :default :unset)
             (config:service-config-error () :wrong))))
    (is (eq t (boolean-read :true)))
    (is (eq nil (boolean-read :false)))
    (is (eq :unset (boolean-read :null)))
    (dolist (value '("true" 1 0 () t))
      (is (eq :wrong (boolean-read value)) "~S" value)))
  (is (string= "" (config:string-field '(("s" . "")) "s" "")))
  (is (null (config:string-field '(("s" . :null)) "s" "")))
  (signals config:service-config-error (config:string-field '(("s" . 1)) "s" "")))

(test what-is-wrong-is-shown
  "The text shows the value in JSON, and a key that is probably a misspelling."
  (flet ((complaint (object)
           (handler-case (config:string-field object "s" "")
             (config:service-config-error (condition) (princ-to-string condition)))))
    (loop for (value text) in '((1 "not 1") (:true "not true") (#(1) "not a list")
                                ((("a" . 1)) "not an object") (nil "not an object"))
          do (is (search (format nil "~A." text) (complaint (list (cons "s" value)))) "~S" value)))
  (loop for (key misspelt) in '(("max_attempt" t) ("maxAtempts" t) ("max_attempts" nil)
                                ("timeout" nil) ("maxAttemptsmaxAttemptsmax" nil))
        for text = (handler-case (config:integer-field (list (cons key :null)) "maxAttempts" ""
                                                       :required t)
                     (config:service-config-error (condition) (princ-to-string condition)))
        do (is (eq misspelt (and (search (format nil "is ~S a misspelling" key) text) t))
               "~A" text))
  (flet ((ranges (value &rest range)
           (handler-case (apply #'config:number-field (list (cons "n" value)) "n" "" range)
             (config:service-config-error (condition) (princ-to-string condition)))))
    (is (search "a number from 0.5 to 2, not 3" (ranges 3 :minimum 1/2 :maximum 2)))
    (is (search "a number of more than 0, not 0" (ranges 0 :above 0)))
    (is (eq 1/2 (ranges 1/2 :minimum 1/2 :above 1/4 :maximum 1/2)))
    (is (search "not \"1\"" (ranges "1" :text nil)))))

(test lists-and-objects
  (is (equal '(1 2) (config:list-field '(("l" . #(1 2))) "l" "")))
  (is (equal '(() t) (multiple-value-list (config:list-field '(("l" . #())) "l" ""))))
  (is (equal '(() nil) (multiple-value-list (config:list-field '() "l" ""))))
  (is (equal '(() t) (multiple-value-list (config:object-field '(("o")) "o" ""))))
  (is (equal '(() nil) (multiple-value-list (config:object-field '(("o" . :null)) "o" ""))))
  (signals config:service-config-error (config:list-field '(("l" . "text")) "l" ""))
  (signals config:service-config-error (config:list-field '(("l")) "l" ""))
  (signals config:service-config-error (config:list-field '(("l" . #(1 :null))) "l" ""))
  (signals config:service-config-error (config:object-field '(("o" . #())) "o" ""))
  (signals config:service-config-error (config:object-field '(("o" . 3)) "o" "")))
