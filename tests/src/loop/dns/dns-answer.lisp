;;;; What answers come to: records, aliases, and the ways of having nothing.

(in-package #:clgrpc.tests.dns)
(in-suite :clgrpc.dns)

(defun outcome-of (type code &rest records)
  "The outcome of asking after TYPE of x, answered with CODE and RECORDS, and the data."
  (multiple-value-list
   (message-outcome (parsed (answer-octets (question-octets "x" type) records :code code))
                    (name-octets "x") type)))

(test records-are-found-in-their-order
  (is (equalp '(:found (#(1 2 3 4) #(5 6 7 8)))
              (outcome-of +a+ 0 (record-octets +a+ "1.2.3.4") (record-octets +txt+ '("a"))
                          (record-octets +a+ "9.9.9.9" :name (name-octets "y"))
                          (record-octets +a+ "5.6.7.8")))))

(test aliases-are-followed
  (flet ((alias (from to) (record-octets +cname+ to :name (name-octets from)))
         (address (name) (record-octets +a+ "1.2.3.4" :name (name-octets name))))
    (is (equalp '(:found (#(1 2 3 4)))
                (outcome-of +a+ 0 (address "z") (alias "X" "Y") (alias "y" "z"))))
    (is (eq :no-data (first (outcome-of +a+ 0 (alias "x" "y")))))
    (is (eq :no-data (first (outcome-of +a+ 0 (alias "x" "y") (alias "y" "x")))) "a circle")
    (is (eq :no-data (first (apply #'outcome-of +a+ 0 (alias "x" "0") (address "20")
                                   (loop for i below 20
                                         collect (alias (princ-to-string i)
                                                        (princ-to-string (1+ i)))))))
        "too many")))

(test answers-that-have-nothing
  (loop for (code outcome text) in '((0 :no-data "x has no A record")
                                     (1 :server-failed "code 1")
                                     (2 :server-failed "fails")
                                     (3 :no-such-name "no such host x")
                                     (5 :refused "refuses"))
        do (destructuring-bind (got data) (outcome-of +a+ code)
             (is (eq outcome got))
             (is (search text data)))))
