;;;; The data read from a plain request.

(in-package #:clgrpc.tests.exchange)

(test parts-of-a-request
  (let ((request (request-for "/a/b?c=d&e")))
    (is (string= "/a/b" (exchange:http-request-path request)))
    (is (string= "c=d&e" (exchange:http-request-query request)))
    (is (string= "1" (exchange:http-request-header request "x")))
    (is (null (exchange:http-request-header request "y"))))
  (is (null (exchange:http-request-query (request-for "/a"))))
  (is (string= "" (exchange:http-request-query (request-for "/a?")))))

(test parameters-of-a-query
  (loop for (target name expected) in
        '(("/?a=b" "a" "b") ("/?a=b&c=d" "c" "d") ("/?a=b&a=c" "a" "b") ("/?a" "a" "")
          ("/?a=" "a" "") ("/?a=b" "b" nil) ("/" "a" nil) ("/?" "a" nil) ("/?&&a=1" "a" "1")
          ("/?a=x%20y+z" "a" "x y z") ("/?a%62=1" "ab" "1") ("/?a=%C3%A4" "a" "ä")
          ("/?a=%" "a" "%") ("/?a=%4" "a" "%4") ("/?a=%zz" "a" "%zz") ("/?a=b=c" "a" "b=c")
          ("/?a=%FF" "a" "%FF") ("/?%61=1" "a" "1") ("/?%6=1" "%6" "1") ("/?%61=1" "%61" nil)
          ("/?+b=1" " b" "1") ("/?%FF=1" "%FF" "1") ("/?b&=1" "" "1") ("/?a%62=1" "a" nil)
          ("/?%C3%A4=1" "ä" "1") ("/?a=%4x&b" "b" "") ("/?a=1%2" "a" "1%2"))
        do (is (equal expected (exchange:http-request-parameter (request-for target) name))
               "~A of ~A" name target)))

(test queries-are-not-printed
  "A query may have a secret, and printed text gets into the log."
  (let ((text (prin1-to-string (request-for "/a?token=secret"))))
    (is (search "GET /a>" text))
    (is (null (search "secret" text)))))

(test parameters-of-others-are-not-decoded
  "A query of 8,000 empty parameters, or with other names, allocates nothing."
  (dolist (part '("&" "&a" "&service" "&%73" "&z%73%73%73%73%73%73%73"))
    (let ((query (format nil "~v@{~A~:*~}" (floor 8000 (length part)) part)))
      (exchange:query-parameter query "services")
      (let ((before (sb-ext:get-bytes-consed)))
        (loop repeat 10 do (exchange:query-parameter query "services"))
        (is (> 1000 (- (sb-ext:get-bytes-consed) before)) "~S" part)))))

(test parameters-have-a-limit
  "The first 64 parameters of a query are examined; the first one of a name counts."
  (flet ((found (count)
           (exchange:query-values (format nil "~v@{~A&~:*~}b=1&b=2" count "a")
                                  (list (coerce "b" 'simple-base-string)))))
    (is (equal '(("1") (nil)) (list (found 63) (found 64))))))

(test parameters-of-queries
  "Names and values are decoded, unless they are not UTF-8; the first parameter of a name counts."
  (loop for (query name value)
          in '(("a=1&b=2" "b" "2") ("a=1&a=2" "a" "1") ("%61b=x" "ab" "x") ("a+b=c+d" "a b" "c d")
               ("a" "a" "") ("a&b" "b" "") ("a=" "a" "") ("a=b=c" "a" "b=c") ("&&b=1&" "b" "1")
               ("=x" "" "x") ("é=%C3%A9" "é" "é") ("%C3%A9=1" "é" "1") ("a=%ff" "a" "%ff")
               ("ab=1" "a" nil) ("a=1" "ab" nil) ("" "a" nil) ("A=1" "a" nil) (nil "a" nil))
        do (is (equal value (exchange:query-parameter query name)) "~S of ~S" name query))
  (loop for (target path query) in '(("/a?b=1?c" "/a" "b=1?c") ("/a?" "/a" "")
                                     ("/a%20b" "/a%20b" nil))
        do (let ((request (request-for target)))
             (is (equal path (exchange:http-request-path request)))
             (is (equal query (exchange:http-request-query request))))))
