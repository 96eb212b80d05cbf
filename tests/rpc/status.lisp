;;;; Status table, conditions and the encoding of grpc-message.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.rpc)

(test status-codes
  "Keyword and number lead to each other; unknown numbers are :unknown."
  (loop for code to 16
        do (is (= code (rpc:status-code (rpc:code-status code)))))
  (is (eq :unknown (rpc:code-status 17)))
  (is (eq :unknown (rpc:code-status -1)))
  (is (eq :deadline-exceeded (rpc:code-status 4)))
  (signals misuse (rpc:status-code :no-such-status)))

(test condition-classes
  "Each status has its condition class; the report is one line that says what matters."
  (signals rpc:not-found (rpc:fail :not-found "no Ada here"))
  (signals misuse (rpc:fail :ok "well"))
  (signals misuse (rpc:fail :not-fund "no Ada here"))
  (signals misuse (rpc:fail :not-found 404))
  (signals misuse (rpc:fail :not-found "no Ada here" :details "none"))
  (let ((error (rpc:make-rpc-error :unavailable :message "cannot connect" :sent nil
                                                :peer "127.0.0.1:1" :ended-by :transport)))
    (is (typep error 'rpc:unavailable))
    (is (eq :unavailable (rpc:rpc-error-status error)))
    (is (not (find #\Newline (princ-to-string error))))
    (is (search "never sent" (princ-to-string error)))
    (is (search "127.0.0.1:1" (princ-to-string error)))))

(test status-message-encoding
  "Percent-encoding as gRPC over HTTP/2 has it, and decoding that never fails."
  (flet ((encoded (string) (map 'string #'code-char (rpc:encode-status-message string)))
         (decoded (string) (rpc:decode-status-message (ascii-octets string))))
    (is (string= "plain text, with ~ and !" (encoded "plain text, with ~ and !")))
    (is (string= "100%25%0A%C3%A9" (encoded (format nil "100%~%é"))))
    (is (string= (format nil "100%~%é") (decoded "100%25%0A%c3%a9")))
    (is (string= "%" (decoded "%")))
    (is (string= "%4" (decoded "%4")))
    (is (string= "%zz1" (decoded "%zz1")))
    (is (= 1 (length (decoded "%FF"))))
    (loop for code in '(0 31 32 37 126 127 200 8364 128512)
          for string = (string (code-char code))
          do (is (string= string (rpc:decode-status-message (rpc:encode-status-message string)))))))

(test long-status-messages-are-cut
  "Never past the limit, never within a character or its escape; an ellipsis says so."
  (flet ((cut (string limit) (map 'string #'code-char (rpc:encode-status-message string limit))))
    (is (string= "short" (cut "short" 9)))
    (is (string= "01234567..." (cut "0123456789012345" 11)))
    (is (string= "a%C3%A9..." (cut "aéé" 12)))
    (is (string= "" (cut "long enough" 3)))
    (is (= 8196 (length (cut (make-string 100000 :initial-element #\x) 8196)))))
  (loop for string in (list (make-string 300 :initial-element #\Space)
                            (make-string 300 :initial-element (code-char 128512))
                            (format nil "~{~A~}" (loop repeat 50 collect "a%é€ ")))
        do (loop for limit from 0 to 1000 by 7
                 do (let* ((octets (rpc:encode-status-message string limit))
                           (decoded (rpc:decode-status-message octets)))
                      (is (<= (length octets) limit))
                      (is (or (string= decoded string)
                              (string= decoded "")
                              (eql (- (length decoded) 3) (mismatch decoded string))
                              ;; or the ellipsis happens to go on as the text does
                              (search "..." decoded :from-end t)))
                      (is (not (find (code-char #xFFFD) decoded)))))))

(test http-status-mapping
  (is (eq :unavailable (rpc:http-status-status 503)))
  (is (eq :unimplemented (rpc:http-status-status 404)))
  (is (eq :unknown (rpc:http-status-status 200))))

(test reports-are-one-line
  "What a peer has written into a message neither ends the line of the report nor reaches a terminal
as it came."
  (let ((report (princ-to-string
                 (rpc:make-rpc-error :internal :cause (format nil "a~%b")
                                               :message (format nil "x~%y~C[2Jz" (code-char 27))))))
    (is (string= "INTERNAL: x\\ny\\x1b[2Jz: a\\nb" report))
    (let ((long (make-string 100000 :initial-element #\a)))
      (is (> 4200 (length (princ-to-string (rpc:make-rpc-error :unknown :message long))))))))
