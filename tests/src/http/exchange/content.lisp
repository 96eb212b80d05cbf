;;;; A handler's values, and the resulting answer.

(in-package #:clgrpc.tests.exchange)

(defun answered (http-status headers body)
  "Status, headers and body of the answer for the values of a handler; :wrong if they are invalid."
  (handler-case
      (let ((answer (exchange:fixed-answer http-status headers body)))
        (list (exchange:plain-answer-http-status answer) (exchange::plain-answer-headers answer)
              (octets-string (exchange::plain-answer-body answer))))
    (error () :wrong)))

(test statuses-of-answers
  (loop for (status expected) in '((199 :wrong) (200 200) (599 599) (600 :wrong) (nil :wrong)
                                   ("200" :wrong))
        for answer = (answered status '() nil)
        do (is (eql expected (if (eq :wrong answer) answer (first answer))) "~S" status)))

(test bodies-of-answers
  "Octets, text in UTF-8, which has a content type, or nothing."
  (is (equal '(200 () "") (answered 200 '() nil)))
  (is (equal '(200 () "ab") (answered 200 '() (string-octets "ab"))))
  (is (equal '(200 () "ab") (answered 200 '() (coerce '(97 98) '(vector (unsigned-byte 8))))))
  (is (equal '(200 (("content-type" . "text/plain; charset=utf-8")) "ä") (answered 200 '() "ä")))
  (is (equal '(200 (("content-type" . "a/b")) "x")
             (answered 200 '(("Content-Type" . "a/b")) "x")))
  (dolist (body '(5 :text (97) #(97)))
    (is (eq :wrong (answered 200 '() body)) "~S" body)))

(test headers-of-answers
  "Names in lower case, values without blanks around them; the server's own are omitted."
  (loop for (entry expected)
          in `((("X-A" . " b ") ("x-a" . "b")) (("x" . "") ("x" . ""))
               (("x" . "a b~") ("x" . "a b~"))
               (("x" . ,(coerce "b" 'base-string)) ("x" . "b"))
               (("x" . ,(format nil "~Ab~:*~A" #\Tab)) ("x" . "b"))
               (("Connection" . "close")) (("content-length" . "1")) (("Keep-Alive" . "x"))
               (("Proxy-Connection" . "x")) (("TE" . "trailers")) (("Transfer-Encoding" . "x"))
               (("upgrade" . "h2c"))
               (("x" . 5) :wrong) ((x . "b") :wrong) ("x" :wrong) (("" . "b") :wrong)
               (("x y" . "b") :wrong) (("x:" . "b") :wrong) (("x" . "ä") :wrong)
               (("x" . ,(format nil "a~%b")) :wrong)
               (("x" . ,(format nil "a~Cb" (code-char 31))) :wrong)
               (("x" . ,(format nil "a~Cb" (code-char 127))) :wrong))
        for answer = (answered 204 (list entry) nil)
        do (is (equal (cond ((eq :wrong expected) expected)
                            (t (list 204 (and expected (list expected)) "")))
                      answer)
               "~S" entry))
  (is (eq :wrong (answered 200 "x" nil))))

(test wrong-headers-are-not-shown
  "They may be secret, as a cookie is, and the error is logged."
  (dolist (entry '(("set-cookie" . "s3cret
") ("s3cret key" . "x") ("x" . (s3cret)) "s3cret"))
    (handler-case (fail "~S" (exchange:fixed-answer 200 (list entry) nil))
      (error (error) (is (not (search "s3cret" (string-downcase (princ-to-string error)))))))))

(test heads-that-are-written-once
  "The head of a fixed answer is written once, unless it has a date, or a status without a body."
  (flet ((head-p (&rest arguments)
           (and (exchange::plain-answer-head (apply #'exchange:fixed-answer arguments)) t)))
    (is (eq t (head-p 200 '(("a" . "b")) "x")))
    (is (eq t (head-p 404 '() nil)))
    (is (eq nil (head-p 204 '() nil)))
    (is (eq nil (head-p 304 '() nil)))
    (is (eq nil (head-p 200 '(("Date" . "x")) "x")))))
