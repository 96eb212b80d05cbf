;;;; The encoding of grpc-message, and the statuses for codes of HTTP.

(in-package #:clgrpc.tests.client)

(test status-message-encoding
  "Percent-encoding as gRPC over HTTP/2 specifies it, and decoding that never fails."
  (flet ((encoded (string) (map 'string #'code-char (server:encode-status-message string)))
         (decoded (string) (client::decode-status-message (ascii-octets string))))
    (is (string= "plain text, with ~ and !" (encoded "plain text, with ~ and !")))
    (is (string= "100%25%0A%C3%A9" (encoded (format nil "100%~%é"))))
    (is (string= "%20a b%20" (encoded " a b ")) "HTTP/2 has no blanks at the ends of values")
    (is (string= "%EF%BF%BD" (encoded (string (code-char #xD800)))) "UTF-8 has no surrogates")
    (is (string= (format nil "100%~%é") (decoded "100%25%0A%c3%a9")))
    (is (string= "%" (decoded "%")))
    (is (string= "%4" (decoded "%4")))
    (is (string= "%zz1" (decoded "%zz1")))
    (is (string= (string (code-char #xFFFD)) (decoded "%FF")))
    (loop for code in '(0 31 32 37 126 127 200 8364 128512)
          for string = (string (code-char code))
          do (is (string= string (client::decode-status-message
                              (server:encode-status-message string)))))))

(test long-status-messages-are-cut
  "Below the limit, between characters and escapes; an ellipsis marks the cut."
  (flet ((cut (string limit) (map 'string #'code-char (server:encode-status-message string limit))))
    (is (string= "short" (cut "short" 9)))
    (is (string= "01234567..." (cut "0123456789012345" 11)))
    (is (string= "a%C3%A9..." (cut "aéé" 12)))
    (is (string= "" (cut "long enough" 3)))
    (is (= 8196 (length (cut (make-string 100000 :initial-element #\x) 8196)))))
  (loop for string in (list (make-string 300 :initial-element #\Space)
                            (make-string 300 :initial-element (code-char 128512))
                            (format nil "~{~A~}" (loop repeat 50 collect "a%é€ ")))
        do (loop for limit from 0 to 1000 by 7
                 do (let* ((octets (server:encode-status-message string limit))
                           (decoded (client::decode-status-message octets)))
                      (is (<= (length octets) limit))
                      (is (or (string= decoded string)
                              (string= decoded "")
                              (eql (- (length decoded) 3) (mismatch decoded string))
                              ;; or the ellipsis equals the text at its place
                              (search "..." decoded :from-end t)))
                      (is (not (find (code-char #xFFFD) decoded)))))))

(test http-status-mapping
  (loop for (status . codes) in '((:internal 400) (:unauthenticated 401) (:permission-denied 403)
                                  (:unimplemented 404) (:unavailable 429 502 503 504)
                                  (:unknown 200 301 402 405 431 500 501 505))
        do (dolist (code codes) (is (eq status (client:http-status-status code)) "~D" code))))

(test codes-of-errors-and-numbers-of-statuses
  (loop for (status . codes) in `((:unavailable ,http2:+refused-stream+)
                                  (:cancelled ,http2:+cancel+)
                                  (:resource-exhausted ,http2:+enhance-your-calm+)
                                  (:permission-denied ,http2:+inadequate-security+)
                                  (:internal 0 1 2 3 4 5 6 9 10 13 99))
        do (dolist (code codes) (is (eq status (client::error-code-status code)) "~D" code)))
  (is (equal '(0 16 16 nil nil nil nil)
             (mapcar #'client::status-number
                     '("0" "16" "00000016" "000000016" "" "1a" "-1")))))
