;;;; grpc-timeout and deadlines.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.status)

(test parse-timeout
  "All units, one to eight digits, no other text."
  (flet ((parsed (string) (status:parse-timeout (ascii-octets string))))
    (is (= 1 (parsed "1n")))
    (is (= 2000 (parsed "2u")))
    (is (= 3000000 (parsed "3m")))
    (is (= 4000000000 (parsed "4S")))
    (is (= 300000000000 (parsed "5M")))
    (is (= 21600000000000 (parsed "6H")))
    (is (= 0 (parsed "0S")))
    (is (= 99999999 (parsed "99999999n")))
    (is (typep (parsed "99999999H") '(unsigned-byte 62)))
    (dolist (bad '("" "n" "1" "123456789n" "1s" "-1S" "1.5S" " 1S" "1S "))
      (is (null (parsed bad)) "~S" bad))))

(test deadline-in
  "Even the longest time-out gives a deadline: one once cost a server its connection."
  (is (= 7 (status:deadline-in 3 4)))
  (is (typep (status:deadline-in (status:parse-timeout (ascii-octets "99999999H")) (monotonic-ns))
             'status:deadline))
  (is (typep (status:deadline-in (seconds-ns 1d300) (monotonic-ns)) 'status:deadline)))

(test encode-timeout
  "The finest unit that fits, rounded up, so that no end gives up early; and it parses back."
  (flet ((encoded (ns) (map 'string #'code-char (status:encode-timeout ns))))
    (is (string= "1n" (encoded 0)))
    (is (string= "1n" (encoded -5)))
    (is (string= "99999999n" (encoded 99999999)))
    (is (string= "100000u" (encoded 100000000)))
    (is (string= "100001u" (encoded 100000001)))
    (loop for ns in '(1 1000 123456789 5000000000 86400000000000)
          for back = (status:parse-timeout (status:encode-timeout ns))
          do (is (<= ns back (* ns 101/100))))))
