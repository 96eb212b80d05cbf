;;;; Tokens, their places, numbers, strings, comments.

(in-package #:clgrpc.tests.protobuf)

(defun tokens (text)
  (coerce (protobuf::tokenize text "t.proto") 'list))

(defun kinds-and-values (text)
  (loop for token in (butlast (tokens text))
        collect (protobuf::token-kind token)
        collect (protobuf::token-value token)))

(test tokens-of-each-kind
  (is (equal '(:identifier "message" :identifier "_a1" :symbol "{" :integer 12 :symbol ";")
             (kinds-and-values "message _a1 { 12 ;")))
  (is (equal '(:integer 255 :integer 8 :integer 0) (kinds-and-values "0xFf 010 0")))
  (is (equal '(:float 1.5d0 :float 0.5d0 :float 1d3 :float 1.25d-2)
             (kinds-and-values "1.5 .5 1e3 1.25e-2")))
  (is (equal '(:symbol "-" :identifier "inf") (kinds-and-values "-inf"))))

(test huge-and-tiny-floats-stay-bounded
  (is (equal (list :float sb-ext:double-float-positive-infinity :float 0d0)
             (kinds-and-values "1e999999999 1e-999999999"))))

(test strings-and-escapes
  (flet ((octets (text) (protobuf::token-value (first (tokens text)))))
    (is (equalp (unhex "610a6209") (octets "'a\\nb\\t'")))
    (is (equalp (unhex "ff00c8") (octets "\"\\xff\\0\\310\"")))
    (is (equalp (string-octets "é𝄞") (octets "\"\\u00e9\\U0001D11E\"")))
    (is (equalp (string-octets "é") (octets "\"é\"")))))

(test places-count-from-one
  (let ((tokens (tokens (format nil "a~%  b~%~Cc" #\Tab))))
    (is (equal '((1 1) (2 3) (3 9))
               (loop for token in (butlast tokens)
                     collect (list (protobuf::token-line token) (protobuf::token-column token)))))))

(test comments-belong-to-tokens
  (let ((tokens (tokens (format nil "// one~%// two~%a // beside~%~%// far~%~%b /* in */ c"))))
    (is (equal (format nil "one~%two") (protobuf::token-leading (first tokens))))
    (is (equal "beside" (protobuf::token-trailing (first tokens))))
    (is (null (protobuf::token-leading (second tokens))))
    (is (equal "in" (protobuf::token-trailing (second tokens))))))

(test lexical-errors-have-places
  (dolist (row '(("a \"open" 1 8) ("/* open" 1 8) ("12x" 1 3) ("08" 1 2) ("'\\q'" 1 4) ("a é b" 1 3)
                 ("'\\ud800'" 1 8) ("1.2.3" 1 4) ("a.5" 1 2) ("/* /* */" 1 4) ("1e+" 1 4)))
    (destructuring-bind (text line column) row
      (let ((problem (first (nth-value 1 (protobuf::tokenize text "t.proto")))))
        (is (equal (list line column) (and problem (list (proto-syntax-error-line problem)
                                                         (proto-syntax-error-column problem))))
            "~S: ~A" text problem)))))

(test lexing-goes-on-behind-an-error
  (is (= 3 (length (nth-value 1 (protobuf::tokenize (format nil "08 12x~%'\\q' a") "t.proto"))))))

(test surrogates-join
  (flet ((octets (text) (protobuf::token-value (first (tokens text)))))
    (is (equalp (string-octets "𝄞") (octets "'\\ud834\\udd1e'")))))

(test huge-numbers-take-no-time
  (is (equal '(:float 0d0) (kinds-and-values (format nil "0.~A1"
                                                     (make-string 5000 :initial-element #\0)))))
  (is (integerp (second (kinds-and-values (make-string 200000 :initial-element #\9))))))
