;;;; Chunked bodies: their lines, extensions and trailers.

(in-package #:clgrpc.tests.http1)

(defun chunked (body)
  "The text of a chunked request with BODY."
  (format nil "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||~A" body))

(defun chunks (body &rest arguments)
  "The text after the head of a chunked request with BODY."
  (rest (apply #'said (chunked body) arguments)))

(test chunks-are-put-together
  (dolist (size '(nil 1 2 3 5))
    (is (equal '("hello world" :end) (chunks "5|hello|6| world|0||" :size size)))
    (is (equal '("0123456789abcdef" :end) (chunks "00010|0123456789abcdef|000||" :size size)))
    (is (equal '("x" :end) (chunks "0000000001|x|0||" :size size)))
    (is (equal '("x" :end) (chunks "1;a=b;c=\"d e\"|x|0;e||" :size size)))
    (is (equal '(:end) (chunks "0||" :size size)))
    (is (equal '(("GET" "/b" (":authority: a") 0 t) :end)
               (rest (chunks "0||GET /b HTTP/1.1|Host: a||" :size size))))))

(test trailers-follow-chunks
  (dolist (size '(nil 1 2 3 5))
    (is (equal '("x" (:end "a: b" "c: d")) (chunks "1|x|0|A: b|C: d||" :size size)))
    ;; fields that had to come before the body are ignored after it
    (is (equal '("x" (:end "a: b"))
               (chunks (format nil "1|x|0|~{~A: 5|~}A: b||"
                               '("Content-Length" "Content-Type" "Content-Encoding" "Authorization"
                                 "Transfer-Encoding" "Host" "Connection" "Keep-Alive" "TE"
                                 "Trailer" "Upgrade" "Proxy-Connection" "Expect"))
                       :size size)))))

(test bad-chunks-are-refused
  (loop for body in (list "|x|0||" "g|x|0||" "-1|x|0||" "+1|x|0||" "0x1|x|0||" " 1|x|0||"
                          "1 |x|0||" "1 ;a|x|0||" "1	|x|0||"
                          "1|xy|0||" "2|x|0||" "ffffffffffffffff|x|0||" "100000000000|x|0||"
                          "00000000001|x|0||"
                          (format nil "1~%x|0||")
                          (format nil "1|x~%0||")
                          (format nil "1;a~Cb|x|0||" (code-char 0))
                          (format nil "1;a~Cb|x|0||" #\Return)
                          (format nil "0|A: b~%|")
                          "0|A : b||" "0|A: b| c||")
        do (is (eql 400 (status-of (chunked body))) "~S" body)))

(test chunks-have-limits
  (loop for (length status) in '((252 nil) (253 431)) ; and "1;", CR and LF
        do (is (eql status (status-of (chunked (format nil "1;~A|x|0||"
                                                       (make-string length
                                                                    :initial-element #\a)))))))
  (is (eql 431 (status-of (chunked (format nil "0|A: ~A||" (make-string 99 :initial-element #\a)))
                          :options '(:max-head-octets 80)))))
