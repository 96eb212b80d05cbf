;;;; What is read out of a plain request.

(in-package #:clgrpc.tests.server)
(in-suite :clgrpc.server)

(defun request-for (target)
  (server::make-http-request :carrier server::**http1-carrier** :method "GET" :target target
                             :source '(("host" . "a") ("x" . "1") ("x" . "2"))))

(test parts-of-a-request
  (let ((request (request-for "/a/b?c=d&e")))
    (is (string= "/a/b" (grpc:http-request-path request)))
    (is (string= "c=d&e" (grpc:http-request-query request)))
    (is (string= "1" (grpc:http-request-header request "x")))
    (is (null (grpc:http-request-header request "y"))))
  (is (null (grpc:http-request-query (request-for "/a"))))
  (is (string= "" (grpc:http-request-query (request-for "/a?")))))

(test parameters-of-a-query
  (loop for (target name expected) in
        '(("/?a=b" "a" "b") ("/?a=b&c=d" "c" "d") ("/?a=b&a=c" "a" "b") ("/?a" "a" "")
          ("/?a=" "a" "") ("/?a=b" "b" nil) ("/" "a" nil) ("/?" "a" nil) ("/?&&a=1" "a" "1")
          ("/?a=x%20y+z" "a" "x y z") ("/?a%62=1" "ab" "1") ("/?a=%C3%A4" "a" "ä")
          ("/?a=%" "a" "%") ("/?a=%4" "a" "%4") ("/?a=%zz" "a" "%zz") ("/?a=b=c" "a" "b=c")
          ("/?a=%FF" "a" "%FF"))
        do (is (equal expected (grpc:http-request-parameter (request-for target) name))
               "~A of ~A" name target)))

(test queries-are-not-printed
  "A query may have a secret, and what is printed gets into the log."
  (let ((text (prin1-to-string (request-for "/a?token=secret"))))
    (is (search "GET /a>" text))
    (is (null (search "secret" text)))))
