;;;; Metadata: valid entries.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.status)

(test entries-that-may-be-sent
  "A gateway may forward the entries that a user may send."
  (loop for (name value right)
          in `(("x" "" t) ("x" "a" t) ("x" " ~" t) ("x" ,(string (code-char 31)) nil)
               ("x" ,(string (code-char 127)) nil) ("x" "é" nil) ("a.b_c-9" "a" t) ("A" "a" nil)
               ("a b" "a" nil) ("" "a" nil) ("x-bin" ,(octets-of 0 255) t) ("-bin" "a" t)
               ("grpc-x" "a" nil) ("grpc-retry-pushback-ms" "1" t) ("grpcx" "a" t)
               ,@(loop for name in '("content-type" "te" "host" "connection" "transfer-encoding"
                                     "keep-alive" "proxy-connection" "upgrade" "content-length"
                                     "user-agent")
                       collect (list name "a" nil)
                       collect (list (concatenate 'string name "s") "a" t)))
        for metadata = (list (cons name value))
        do (is (equalp (and right metadata) (status:sendable-metadata metadata)) "~S" metadata)
           (is (eq right (handler-case (and (status:check-metadata metadata) t)
                           (misuse () nil)))
               "~S" metadata)))

(test metadata-refused
  "An entry that gRPC reserves, or HTTP/2 cannot carry, is the caller's error, which names it."
  (dolist (bad '((("Upper" . "x")) (("" . "x")) ((":path" . "/")) (("grpc-status" . "0"))
                 (("content-type" . "x")) (("te" . "trailers")) (("a b" . "x"))
                 (("x" . "é")) (("x" . 5)) (("x-bin" . "text")) ("x") "x: 1"))
    (signals misuse (status:check-metadata bad))))

(test what-is-refused-is-not-shown
  "A value may be secret, such as a token that was read with the end of its line; so may a name that
was given in place of the value."
  (flet ((text (metadata)
           (misuse-text (nth-value 1 (ignore-errors (status:check-metadata metadata))))))
    (dolist (bad '("s3cret" ("s3cret") (("x" . "s3cret
")) (("x" . ("s3cret"))) (("x" . #(s3cret))) (("x-bin" . "s3cret"))
                   (("Bearer s3cret" . "authorization")) ((|s3cret| . "x"))))
      (is (null (search "s3cret" (string-downcase (text bad)))) "~S" (text bad)))
    (is (search "name in entry 1 of metadata must be a string of lower-case letters, digits,"
                (text '(("a" . "") ("B" . "")))))
    (is (search "has #\\B at 0 of 6" (text '(("Bearer" . "")))))
    (is (search "has no characters" (text '(("" . "")))))
    (is (search "#\\Newline at 6 of 7" (text '(("x" . "s3cret
")))))))
