;;;; Percent-encoding: valid and invalid escapes.

(in-package #:clgrpc.tests.base)

(test percents-are-decoded-as-utf-8
  (is (string= "a b" (percent-decoded-text "a%20b")))
  (is (string= "é%é" (percent-decoded-text "%C3%a9%25é")))
  (is (string= "" (percent-decoded-text "")))
  (is (equalp #(255 65) (percent-decoded "%fFA")))
  (dolist (wrong '("%" "a%4" "%4g" "%%41" "%C3"))
    (is (null (percent-decoded-text wrong)) "~S" wrong)))

(test octets-are-unescaped
  "This is for strings of both widths."
  (dolist (type '(simple-base-string wide-string))
    (flet ((octets (text &rest keys)
             (let ((text (coerce (format nil "x~Ay" text) type)))
               (apply #'percent-octets text 1 (1- (length text)) keys))))
      (is (equalp (ascii-octets "a+b/ ") (octets "a+b%2F%20")))
      (is (equalp (ascii-octets "a b") (octets "a+b" :plus t)))
      (is (equalp (ascii-octets "%2f/%2F ") (octets "%2f/%2F%20" :keep-slashes t)))
      (is (equalp #(255 171) (octets "%fF%Ab")))
      (is (equalp #() (octets "")))
      (dolist (wrong '("%" "a%4" "%4g" "%%41" "%g4" "% 4"))
        (is (null (octets wrong)) "~S" wrong))))
  (is (equalp #(233) (percent-octets "é" 0 1)))
  (is (null (percent-octets "€" 0 1))))
