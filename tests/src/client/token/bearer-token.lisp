;;;; Tokens that the program has.

(in-package #:clgrpc.tests.token)

(defun sent-token (token)
  "The metadata that BEARER-TOKEN sends for TOKEN."
  (let ((credentials (grpc:bearer-token token)))
    (if (functionp credentials)
        (funcall credentials "/s.S/M")
        (credentials:get-request-metadata credentials nil))))

(test a-token-is-a-string-or-a-function
  (is (equal '(("authorization" . "Bearer secret")) (sent-token "secret")))
  (is (equal '(("authorization" . "Bearer new")) (sent-token (lambda () "new"))))
  (flet ((text (function)
           (handler-case (progn (funcall function) "")
             (clgrpc.base:misuse (error) (princ-to-string error)))))
    (is (search "a string, or a function that returns one, not a value of the type"
                (text (lambda () (grpc:bearer-token 5)))))
    (let ((text (text (lambda () (sent-token (lambda () (list "secret")))))))
      (is (search "returns a string" text))
      (is (null (search "secret" text)) "a token is not shown"))))
