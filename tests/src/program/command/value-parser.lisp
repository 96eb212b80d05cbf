;;;; Values of arguments.

(in-package #:clgrpc.tests.command)

(test values-of-arguments
  (is (= 7 (funcall (command:integer-parser 1 10) "7")))
  (is (= 1/2 (command:parse-ratio "0.5")))
  (is (equal '(5 5 1/2 90) (mapcar #'command:parse-seconds '("5" "5s" "500ms" "1m30s"))))
  (is (= 31536000 (command:parse-seconds "8760h")))
  (is (search "a duration is expected"
              (complaint (lambda () (command:parse-seconds "8760h1ns")))))
  (is (search "above 0" (complaint (lambda () (command:parse-seconds "0")))))
  (is (eq :json (funcall (command:choice-parser :text :json) "json")))
  (is (equal '(:drain-seconds 3/2 :loops-are-not 1)
             (append (command:parse-limits "drain-seconds=1.5") '(:loops-are-not 1))))
  (is (search "from 1 to 10" (complaint (lambda () (funcall (command:integer-parser 1 10) "11")))))
  (is (search "one of text, json"
              (complaint (lambda () (funcall (command:choice-parser :text :json) "xml"))))))

(test lists-of-addresses
  "An empty list is one empty address, which is refused: UIOP splits an empty text into nothing."
  (is (equal '("127.0.0.1:1" "unix:/a") (funcall (command:addresses-parser 1)
                                                 "127.0.0.1:1,unix:/a")))
  (dolist (wrong '("" "," "127.0.0.1:1,"))
    (is (search "is not an address"
                (complaint (lambda () (funcall (command:addresses-parser 1) wrong)))))))
