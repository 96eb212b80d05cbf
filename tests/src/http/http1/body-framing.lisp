;;;; The ends of bodies, and messages that are refused since two readers might disagree on the end:
;;;; the known ways of smuggling a request after another.

(in-package #:clgrpc.tests.http1)

(test bodies-of-a-length
  (is-said '(("POST" "/" (":authority: a" "content-length: 5") 5 t) "hello" :end
             ("GET" "/b" (":authority: a") 0 t) :end)
           "POST / HTTP/1.1|Host: a|Content-Length: 5||helloGET /b HTTP/1.1|Host: a||")
  (is-said '(("POST" "/" (":authority: a" "content-length: 0") 0 t) :end)
           "POST / HTTP/1.1|Host: a|Content-Length: 0||"))

(test lengths-are-said-once-and-are-numbers
  (loop for text in
        '("POST / HTTP/1.1|Host: a|Content-Length: 5|Content-Length: 5||hello"
          "POST / HTTP/1.1|Host: a|Content-Length: 5|content-length: 6||hello!"
          "POST / HTTP/1.1|Host: a|Content-Length: 5, 5||hello"
          "POST / HTTP/1.1|Host: a|Content-Length: +5||hello"
          "POST / HTTP/1.1|Host: a|Content-Length: -5||hello"
          "POST / HTTP/1.1|Host: a|Content-Length: 0x5||hello"
          "POST / HTTP/1.1|Host: a|Content-Length: 5.0||hello"
          "POST / HTTP/1.1|Host: a|Content-Length: 1_0||hello"
          "POST / HTTP/1.1|Host: a|Content-Length: 5 5||hello"
          "POST / HTTP/1.1|Host: a|Content-Length:||hello"
          "POST / HTTP/1.1|Host: a|Content-Length: 99999999999999999999||hello")
        do (is (eql 400 (status-of text)) "~S" text)))

(test chunks-and-lengths-are-not-mixed
  (loop for (text status) in
        '(("POST / HTTP/1.1|Host: a|Content-Length: 5|Transfer-Encoding: chunked||0||" 400)
          ("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked|Content-Length: 5||0||" 400)
          ("POST / HTTP/1.0|Transfer-Encoding: chunked||0||" 400)
          ("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked|Transfer-Encoding: chunked||0||" 400)
          ("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked|Transfer-Encoding: x||0||" 400)
          ("POST / HTTP/1.1|Host: a|Transfer-Encoding: gzip, chunked||0||" 501)
          ("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked, identity||0||" 400)
          ("POST / HTTP/1.1|Host: a|Transfer-Encoding: identity||0||" 400)
          ("POST / HTTP/1.1|Host: a|Transfer-Encoding: xchunked||0||" 400)
          ("POST / HTTP/1.1|Host: a|Transfer-Encoding: \"chunked\"||0||" 400)
          ("POST / HTTP/1.1|Host: a|Transfer-Encoding:||0||" 400)
          ("POST / HTTP/1.1|Host: a|Transfer-Encoding : chunked||0||" 400)
          ("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked,||0||" 501))
        do (is (eql status (status-of text)) "~S" text))
  (is (null (status-of "POST / HTTP/1.1|Host: a|Transfer-Encoding: CHUNKED||0||"))))

(test hosts-are-said-once
  (loop for text in '("GET / HTTP/1.1||"
                      "GET / HTTP/1.1|Host: a|Host: b||"
                      "GET / HTTP/1.1|Host: a|host: a||"
                      "GET / HTTP/1.1|Host: a, b||"
                      "GET / HTTP/1.1|Host: a b||"
                      "GET / HTTP/1.1|Host: a/b||"
                      "GET / HTTP/1.1|Host: u@a||"
                      "GET http://u@b/ HTTP/1.1|Host: b||")
        do (is (eql 400 (status-of text)) "~S" text))
  (is (null (status-of "GET / HTTP/1.1|Host:||")))
  (is (null (status-of "GET / HTTP/1.1|Host: [::1]:80||"))))

(test connections-that-go-on
  (flet ((persistent-p (text)
           (sixth (cons nil (first (said text))))))
    (is (eq t (persistent-p "GET / HTTP/1.1|Host: a||")))
    (is (eq nil (persistent-p "GET / HTTP/1.1|Host: a|Connection: close||")))
    (is (eq nil (persistent-p "GET / HTTP/1.1|Host: a|Connection: foo, CLOSE||")))
    (is (eq nil (persistent-p "GET / HTTP/1.1|Host: a|Connection: foo|Connection: close||")))
    (is (eq nil (persistent-p "GET / HTTP/1.0|Host: a||")))
    (is (eq t (persistent-p "GET / HTTP/1.0|Host: a|Connection: keep-alive||")))))

(test what-a-client-expects
  (let ((parser (make-parser :server)))
    (feed parser (wire "POST / HTTP/1.1|Host: a|Expect: 100-Continue|Content-Length: 1||x"))
    (is (eq t (message-expects-p (parser-message parser)))))
  (is (eql 417 (status-of "POST / HTTP/1.1|Host: a|Expect: miracles||"))))

(test bodies-of-responses
  (flet ((body (text request)
           (fourth (first (said text :role :client :requests (list request))))))
    (is (eql 0 (body "HTTP/1.1 200 OK|Content-Length: 9||" "HEAD")))
    (is (eql 0 (body "HTTP/1.1 304 x|Content-Length: 9||" "GET")))
    (is (eql 0 (body "HTTP/1.1 204 x||" "GET")))
    (is (eql :until-close (body "HTTP/1.1 200 OK||" "GET")))
    (is (eql :chunked (body "HTTP/1.1 200 OK|Transfer-Encoding: chunked||" "GET")))
    (is (eql :tunnel (body "HTTP/1.1 101 x|Upgrade: y||" "GET")))
    (is (eql :tunnel (body "HTTP/1.1 200 OK|Content-Length: 9||" "CONNECT"))))
  (is (eql 400 (status-of "HTTP/1.1 200 OK|Content-Length: 1|Transfer-Encoding: chunked||"
                          :role :client :requests '("GET")))))

(test interim-responses
  (is-said '((100 "Continue" () 0 t) :end (103 "" ("link: x") 0 t) :end
             (200 "OK" ("content-length: 1") 1 t) "x" :end)
           "HTTP/1.1 100 Continue||HTTP/1.1 103|Link: x||HTTP/1.1 200 OK|Content-Length: 1||x"
           :role :client :requests '("GET"))
  (is (eql 502 (status-of (format nil "~V@{~A~:*~}" 17 "HTTP/1.1 102 x||")
                          :role :client :requests '("GET")))))

(test interim-responses-are-counted-for-each-request
  "Sixteen interim responses before each final one are allowed, however many requests there are."
  (let ((one (format nil "~V@{~A~:*~}HTTP/1.1 200 OK|Content-Length: 0||" 16 "HTTP/1.1 102 x||")))
    (is (equal '(200 200 200)
               (remove 102 (mapcar #'first (remove :end (said (format nil "~A~:*~A~:*~A" one)
                                                              :role :client
                                                              :requests '("GET" "GET" "GET")))))))))

