;;;; Text format as messages: all forms of literals, names, lists and separators, refused texts, the
;;;; places of errors, and limits. Mutated texts are in tests/whole/fuzz.

(in-package #:clgrpc.tests.protobuf)

(defun text-all (text &rest options)
  (apply #'parse-text-message "clgrpc.test.All" (if (stringp text) (unquote text) text) options))

(test text-comes-back
  (dolist (message (list (all)
                         (all :f1 0.1d0 :f2 1f-45 :f4 -9 :f15 (octets-of 0 34 92 200) :f16 -3
                              :r1 '(1d0 2.5d300) :r14 '("" "é\"") :r16 '(:blue 9) :p13 nil
                              :m2 (list (cons 3 (clgrpc.test:make-inner :a 1)))
                              :m3 '((t . "x") (nil . "y")) :m6 `((7 . ,(octets-of 9))))))
    (is (message= message (text-all (message-text message :as :octets))))
    (is (message= message (text-all (message-text message :as :octets :single-line t)))))
  (is (message= (everything) (parse-text-message "clgrpc.test.extension.Base"
                                                 (message-text (everything))))))

(test literals-of-text
  (loop for (text field value)
          in `(("f3: 017" :f3 15) ("f3: 0x1F" :f3 31) ("f3: - 5" :f3 -5)
               ("f3: -0x80000000" :f3 ,(- (expt 2 31)))
               ("f1: 1" :f1 1d0) ("f1: 1." :f1 1d0) ("f1: .5" :f1 0.5d0) ("f1: 10f" :f1 10d0)
               ("f1: 1.5E-3F" :f1 1.5d-3) ("f1: 1e400" :f1 ,sb-ext:double-float-positive-infinity)
               ("f2: -3.5e38" :f2 ,sb-ext:single-float-negative-infinity)
               ("f1: -Infinity" :f1 ,sb-ext:double-float-negative-infinity) ("f1: -0" :f1 -0d0)
               ("f13: t" :f13 t) ("f13: True" :f13 t) ("f13: 0x1" :f13 t) ("f13: f" :f13 nil)
               ("f14: 'a' # why
                 'b'" :f14 "ab")
               ("f14: '\\141\\x62\\u00e9\\U0001F600\\?\\a'" :f14
                ,(format nil "abé😀?~C" (code-char 7)))
               ("f15: '\\377\\0'" :f15 #(255 0)) ("f16: BLUE" :f16 :blue) ("f16: -3" :f16 :neg)
               ("f3: 1, f4: 2; f5: 3" :f4 2) ("r3: [1, 2] r3: 3 r3: []" :r3 #(1 2 3))
               ("f17 { a: 1 }" "f17" ,(clgrpc.test:make-inner :a 1))
               ("f17: < a: 1, s: '' >" "f17" ,(clgrpc.test:make-inner :a 1)))
        do (is (protobuf::value= value (field-value (text-all text) field)) "~A" text))
  (let ((message (text-all "m1 { key: 'a' value: 1 } m1: [{ value: 2 key: 'a' }, < >] r17 [{}, {a: 1}]")))
    (is (equal '(("a" . 2) ("" . 0)) (map-alist (clgrpc.test:all-m1 message))))
    (is (= 2 (length (clgrpc.test:all-r17 message))))))

(test names-in-brackets
  (let ((text "any { [ type.googleapis.com / clgrpc.test.Inner # here
 ] { a: 3 } }"))
    (is (message= (holder :any (any (clgrpc.test:make-inner :a 3)))
                  (parse-text-message "clgrpc.test.textual.Holder" text))))
  (loop for (more . failure) in '(("type_url: ''" . "type_url occurs twice")
                                  ("[a.b/clgrpc.test.Inner] { }" . "an Any holds one message"))
        for text = (format nil "any { [a.b/clgrpc.test.Inner] { } ~A }" more)
        do (with-signalled (error message-text-error
                                  (parse-text-message "clgrpc.test.textual.Holder" text))
             (is (search failure (princ-to-string error)))))
  (is (message= (base "count" 3)
                (parse-text-message "clgrpc.test.extension.Base"
                                    "[clgrpc . test.extension.count]: 3"))))

(test text-refused
  "The place and the text of each error."
  (support:check-record
   'refused-texts
   (refusals #'text-all
             '("f3" "f3: " "f3: 1 f3: 2" "nope: 1" "f3: 1.0" "f3: 2147483648" "f3: 08"
               "f3: 1x" "f3: 0x" "f3: '1'" "f1: 0x1" "f1: 1.5.2" "f13: 2" "f13: tru" "f14: a"
               "f14: 'a"
               "f14: 'a
'" "f14: '\\ud801'" "f14: '\\q'" "f14: '\\xff'" "f15: '\\400'" "f16: PINK"
               "f17 a"
               "f17 {
  next { a: x }" "f17 { a: 1 >" "f17 {" "r3: [1," "r3: [1 2]" "f3: [1]"
               "p3: 1 p6: 2" "m1 { key: 'a' key: 'b' }" "m1 { other: 1 }" "}"
               "[no.such.ext]: 1" "[a b c]: 1" "f3: 1,, f4: 2"))))

(test unknown-and-reserved-names-in-text
  (is (message= (all :f3 1)
                (text-all "x: [1, { y <> }] z { [a.b/c.d] { } } w: -inf f3: 1" :ignore-unknown t)))
  (define "reserved.proto" (proto "message R { reserved 'old'; int32 a = 1; }"))
  (is (= 5 (field-value (parse-text-message "clgrpc.test.scratch.R" "old { x: 'y' } a: 5") "a"))))

(test required-fields-in-text
  (signals required-field-missing (parse-text-message "clgrpc.test.legacy.Legacy" "count: 1"))
  (is (= 1 (field-value (parse-text-message "clgrpc.test.legacy.Legacy" "count: 1" :partial t) 1))))

(test escapes-and-signs-by-the-specification
  (flet ((string-of (literal) (field-value (text-all (concatenate 'octets (string-octets "f14: ")
                                                                  (string-octets literal)))
                                           "f14")))
    (is (string= "A" (string-of "'\\x41'")))
    (signals message-text-error (string-of "'\\X41'"))
    (is (string= "😀!" (string-of "'\\U0001f600!'")))
    (dolist (surrogate '("'\\ud83d'" "'\\ud83dx'" "'\\ud83d\\n'" "'\\ude00'" "'\\ud83d\\u0041'"
                         "'\\ud83d\\ude00'" "'\\U0000D83D\\U0000DE00'"))
      (signals message-text-error (string-of surrogate))))
  (flet ((nan-bits (text) (protobuf::double-bits (field-value (text-all text) "f1"))))
    (is (= #x7FF8000000000000 (nan-bits "f1: nan")))
    (is (= #xFFF8000000000000 (nan-bits "f1: -nan"))))
  (is (= #xFFC00000 (protobuf::single-bits (field-value (text-all "f2: - NaN") "f2"))))
  (let ((message (text-all "f1: -nan f2: -nan")))
    (is (message= message (text-all (message-text message :as :octets))))))

(test limits-of-text
  (flet ((nested (depth)
           (format nil "~{~A~}~{~A~}" (loop repeat depth collect "next{")
                   (loop repeat depth collect "}"))))
    (is (message-type-of (parse-text-message "clgrpc.test.Inner" (nested 100))))
    (signals message-text-error (parse-text-message "clgrpc.test.Inner" (nested 5000)))
    (signals message-text-error (parse-text-message "clgrpc.test.Inner" (nested 4)
                                                    :max-message-depth 3)))
  (signals message-text-error
    (parse-text-message "clgrpc.test.Inner" (format nil "~{~A~}" (loop repeat 5000 collect "x<"))
                        :ignore-unknown t))
  (signals message-text-error
    (text-all (format nil "f1: 1~A" (make-string 2000 :initial-element #\1)))))
