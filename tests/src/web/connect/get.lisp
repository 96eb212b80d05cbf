;;;; Connect's GETs.

(in-package #:clgrpc.tests.web)

(test only-methods-without-side-effects-have-get
  "A GET, which any page may send, reaches no handler of a method that may have effects."
  (let ((calls 0))
    (with-web-probe (server)
        (:ask (handling (request)
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

(defun long-get (message &rest parameters)
  "The target of a GET with MESSAGE, octets, and PARAMETERS, texts."
  (format nil "/lab.Bench/Peek?connect=v1&encoding=json&base64=1~{&~A~}&message=~A" parameters
          (substitute #\- #\+ (substitute #\_ #\/ (encode-base64 message)))))

(defun get-statuses (server target count)
  "The statuses of the answers of SERVER to COUNT GETs for TARGET over one connection of HTTP/2."
  (let* ((ids (loop for id from 1 by 2 repeat count collect id))
         (forms (frames-answered
                 server
                 (loop for id in ids
                       collect `(:headers ,id ((":method" "GET") (":scheme" "http")
                                               (":path" ,target) (":authority" "a"))
                                          :end-stream))
                 :streams ids)))
    (loop for id in ids collect (answer-status forms id))))

(test long-queries-are-decoded-so-many-a-second
  "Over HTTP/2 a long query may be sent as one octet, so few of a connection are decoded; over
HTTP/1.1 its client has sent all of it."
  (with-web-probe (server) (:peek #'double)
    (flet ((message (count)
             (ascii-octets (format nil "{\"number\":21,\"text\":\"~A\"}"
                                   (make-string count :initial-element #\a)))))
      (let ((long (get-statuses server (long-get (message 2000)) 300)))
        (is (eql 200 (first long)))
        (is (<= 20 (count 200 long)))
        (is (plusp (count 429 long)))
        (is (= 300 (+ (count 200 long) (count 429 long)))))
      (is (= 300 (count 200 (get-statuses server (long-get (message 50)) 300))))
      (is (equal (make-list 40 :initial-element 200)
                 (heard-statuses
                  (answers server
                           (format nil "~{GET ~A HTTP/1.1|Host: a|~A|~}"
                                   (loop for left from 39 downto 0
                                         collect (long-get (message 2000))
                                         collect (if (zerop left) "Connection: close|" ""))))))))))

(test bombs-in-queries
  "A compressed message in a query may become only so many times as long."
  (with-web-probe (server) (:peek #'double)
    (flet ((status (text)
             (first (get-statuses server
                                  (long-get (subseq (gzipped (ascii-octets text)) 5)
                                            "compression=gzip")
                                  1))))
      (is (eql 200 (status "{\"number\":21}")))
      (is (eql 429 (status (format nil "{\"number\":21~A}"
                                   (make-string 100000 :initial-element #\Space))))))))
