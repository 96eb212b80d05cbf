;;;; Percent-encoding: escapes that are right and wrong.

(in-package #:clgrpc.tests.base)
(in-suite :clgrpc.base)

(test percents-are-decoded-as-utf-8
  (is (string= "a b" (percent-decoded-text "a%20b")))
  (is (string= "é%é" (percent-decoded-text "%C3%a9%25é")))
  (is (string= "" (percent-decoded-text "")))
  (is (equalp #(255 65) (percent-decoded "%fFA")))
  (dolist (wrong '("%" "a%4" "%4g" "%%41" "%C3"))
    (is (null (percent-decoded-text wrong)) "~S" wrong)))
