;;;; The protocol of a connection, by ALPN or by its first octets.

(in-package #:clgrpc.tests.exchange)

(test what-a-connection-speaks
  "The result of ALPN counts, else the first octets: \"PRI \" is HTTP/2, other text is HTTP/1.1, and
octets that are neither are left to HTTP/2."
  (loop for (agreed text expected) in '((nil "PRI * HTTP/2.0" :http2) (nil "PRI " :http2)
                                        (nil "" :more) (nil "P" :more) (nil "PRI" :more)
                                        (nil "G" :http1) (nil "PRIX" :http1) (nil "PR " :http1)
                                        (nil "#" :http1) ("h2" "GET" :http2) ("h2" "" :http2)
                                        ("http/1.1" "PRI " :http1) ("http/1.1" "" :http1))
        for octets = (ascii-octets text)
        do (is (eq expected (exchange:http-version-of agreed octets 0 (length octets)))
               "~A ~S" agreed text))
  (loop for (octet expected) in '((0 :http2) (22 :http2) (10 :http1) (13 :http1) (200 :http2))
        do (is (eq expected (exchange:http-version-of nil (coerce (list octet 1 2) 'octets) 0 3))))
  (is (eq :http2 (exchange:http-version-of nil (ascii-octets "GPRI ") 1 5))))
