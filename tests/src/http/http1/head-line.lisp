;;;; Heads: the data of good ones, and heads that two readers might read differently.

(in-package #:clgrpc.tests.http1)

(test requests-are-read
  (is-said '(("GET" "/healthz?full=1" (":authority: a.example:80" "accept: */*") 0 t) :end)
           "GET /healthz?full=1 HTTP/1.1|Host: a.example:80|Accept:  */* 	||")
  (is-said '(("GET" "/" () 0 nil) :end) "GET / HTTP/1.0||")
  (is-said '(("OPTIONS" "*" (":authority: a") 0 t) :end) "OPTIONS * HTTP/1.1|host:a||")
  ;; an empty line before a request is passed over
  (is-said '(("GET" "/" (":authority: a") 0 t) :end) "|GET / HTTP/1.1|Host: a||"))

(test absolute-targets-are-believed
  (is-said '(("GET" "/x?y" (":authority: b:1" "accept: */*") 0 t) :end)
           "GET http://b:1/x?y HTTP/1.1|Host: a|Accept: */*||")
  (is-said '(("GET" "/?y" (":authority: b") 0 t) :end) "GET http://b?y HTTP/1.1|Host: b||")
  (is-said '(("GET" "/" (":authority: b") 0 t) :end) "GET HTTPS://b HTTP/1.1|Host: b||"))

(test responses-are-read
  (is-said '((200 "OK" ("content-length: 2") 2 t) "hi" :end (204 "" () 0 t) :end)
           "HTTP/1.1 200 OK|Content-Length: 2||hiHTTP/1.1 204||"
           :role :client :requests '("GET" "GET")))

(test lines-end-with-both
  (loop for text in (list (format nil "GET / HTTP/1.1~%Host: a||")
                          (format nil "GET / HTTP/1.1|Host: a~%|")
                          (format nil "GET / HTTP/1.1|Host: a|~%")
                          (format nil "GET / HTTP/1.1|X: a~Cb|Host: a||" #\Return)
                          (format nil "GET / HTTP/1.1|Host: a|X: b~C~C~%|" #\Return #\Return)
                          (format nil "GET / HTTP/1.1~C|Host: a||" #\Return))
        do (is (eql 400 (status-of text)) "~S" text)))

(test bad-request-lines-are-refused
  (loop for (text status) in
        '(("GET / HTTP/2.0|Host: a||" 505)
          ("GET / HTTP/1.1 |Host: a||" 400)
          ("GET  / HTTP/1.1|Host: a||" 400)
          ("GET /	HTTP/1.1|Host: a||" 400)
          (" GET / HTTP/1.1|Host: a||" 400)
          ("GET /a b HTTP/1.1|Host: a||" 400)
          ("GET a HTTP/1.1|Host: a||" 400)
          ("GET * HTTP/1.1|Host: a||" 400)
          ("GET /a#b HTTP/1.1|Host: a||" 400)
          ("GET / http/1.1|Host: a||" 400)
          ("GET / HTTP/1.10|Host: a||" 400)
          ("GET / HTTP/1|Host: a||" 400)
          ("GET /|Host: a||" 400)
          ("G(T / HTTP/1.1|Host: a||" 400)
          ("GET(/ HTTP/1.1|Host: a||" 400)
          ("GET /#HTTP/1.1|Host: a||" 400)
          ("CONNECT a:1 HTTP/1.1|Host: a||" 501)
          ("||GET / HTTP/1.1|Host: a||" 400)
          ("PRI * HTTP/2.0||" 505))
        do (is (eql status (status-of text)) "~S" text)))

(test bad-fields-are-refused
  (loop for text in
        (list "GET / HTTP/1.1|Host : a||"
              "GET / HTTP/1.1|Host: a|X :b||"
              "GET / HTTP/1.1|Host: a|X	: b||"
              "GET / HTTP/1.1|Host: a|X: b| folded||"
              "GET / HTTP/1.1|Host: a|X: b|	folded||"
              "GET / HTTP/1.1| X: b|Host: a||"
              "GET / HTTP/1.1|Host: a|no colon||"
              "GET / HTTP/1.1|Host: a|: b||"
              "GET / HTTP/1.1|Host: a|X(: b||"
              (format nil "GET / HTTP/1.1|Host: a|X: b~Cc||" (code-char 0))
              (format nil "GET / HTTP/1.1|Host: a|X: b~Cc||" (code-char 127))
              (format nil "GET / HTTP/1.1|Host: a|X~C: b||" (code-char 0))
              (format nil "GET / HTTP/1.1|Host: a|X~C: b||" (code-char #xE4)))
        do (is (eql 400 (status-of text)) "~S" text)))

(test bad-responses-are-refused
  (dolist (text '("HTTP/1.1 20 OK||" "HTTP/1.1 2000 OK||" "HTTP/1.1 abc OK||" "HTTP/1.1 099 no||"
                  "HTTP/1.1||" "HTTP/1.1  200 OK||" "HTTP/1.1 200	OK||"))
    (is (eql 502 (status-of text :role :client :requests '("GET"))) "~S" text))
  (is (eql 502 (status-of "HTTP/1.1 200 OK|Content-Length: 0||" :role :client))
      "a response without a request is refused"))

(test heads-have-limits
  (let ((head "GET / HTTP/1.1|Host: a|X: 0123456789||"))
    (is (null (status-of head :options (list :max-head-octets (length (wire head))))))
    (is (eql 431 (status-of head :options (list :max-head-octets (1- (length (wire head)))))))
    (is (null (status-of head :options '(:max-fields 2))))
    (is (eql 431 (status-of head :options '(:max-fields 1))))
    ;; the head is refused even before its end
    (is (eql 431 (status-of "GET / HTTP/1.1|X: 0123456789" :options '(:max-head-octets 20))))))
