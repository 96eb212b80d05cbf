;;;; Connect's GETs.

(in-package #:clgrpc.tests.web)
(in-suite :clgrpc.web)

(test only-methods-without-side-effects-have-get
  "A GET, which any page may send, reaches no handler of a method that may have effects."
  (let ((calls 0))
    (with-web-probe (server)
        (:ask (lambda (request call)
                (declare (ignore call))
                (incf calls)
                request))
      (dolist (version *versions*)
        (is (string= " 405" (apply #'curl-text server
                                   "/lab.Bench/Ask?encoding=json&message=%7B%7D" version
                                   *status*)))))
    (is (zerop calls))))

(test a-get-is-a-call
  "The message is in the query, as JSON or in base64 for URLs; HEAD and others are refused."
  (with-web-probe (server) (:peek #'double)
    (dolist (version *versions*)
      (flet ((peek (query)
               (apply #'curl-text server (concatenate 'string "/lab.Bench/Peek?" query) version
                      *status*)))
        (is (string= "{\"number\":\"42\"} 200"
                     (peek "connect=v1&encoding=json&message=%7B%22number%22%3A21%7D")))
        (is (string= "{\"number\":\"42\"} 200"
                     (peek "encoding=json&base64=1&message=eyJudW1iZXIiOjIxfQ")))
        (is (string= "{\"number\":\"42\"} 200"
                     (peek "encoding=json&base64=1&message=eyJudW1iZXIiOjIxfQ%3D%3D")))
        (is (search " 400" (peek "encoding=json&base64=1&message=*")))
        (is (search " 400" (peek "encoding=json&message=%7B")))
        (is (search " 400" (peek "connect=v2&encoding=json&message=%7B%7D")))
        (is (search " 501" (peek "compression=br&encoding=json&message=%7B%7D")))
        (is (search " 415" (peek "encoding=xml&message=%7B%7D")))))))
