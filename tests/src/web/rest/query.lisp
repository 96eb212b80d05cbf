;;;; Parameters of queries.

(in-package #:clgrpc.tests.rest)

(test parameters-become-fields
  (requests (library-router)
    (("GET" "/v1/books/b?shelf_name=s") ("Get" "{\"name\":\"b\",\"shelfName\":\"s\"}"))
    (("GET" "/v1/books/b?shelfName=a+b%20c%2Bd")
     ("Get" "{\"name\":\"b\",\"shelfName\":\"a b c+d\"}"))
    (("GET" "/v1/books/b?book.sequel.pages=3&book.name=x")
     ("Get" "{\"name\":\"b\",\"book\":{\"name\":\"x\",\"sequel\":{\"pages\":3}}}"))
    (("GET" "/v1/books/b?years=1&years=2&bindings=PAPER&bindings=2&book.authors=a")
     ("Get" "{\"name\":\"b\",\"book\":{\"authors\":[\"a\"]},\"years\":[1,2],\"bindings\":[\"PAPER\",\"CLOTH\"]}"))
    (("GET" "/v1/books/b?edition=-9223372036854775808&full=true&weight=1e3&copies=4294967295")
     ("Get" "{\"name\":\"b\",\"edition\":\"-9223372036854775808\",\"full\":true,\"weight\":1000,\"copies\":4294967295}"))
    (("GET" "/v1/books/b?weight=NaN&rating=-Infinity")
     ("Get" "{\"name\":\"b\",\"weight\":\"NaN\",\"rating\":\"-Infinity\"}"))
    (("GET" "/v1/books/b?cover=-_8") ("Get" "{\"name\":\"b\",\"cover\":\"+/8=\"}"))
    (("GET" "/v1/books/b?cover=%2B/8%3D") ("Get" "{\"name\":\"b\",\"cover\":\"+/8=\"}"))
    (("GET" "/v1/books/b?since=2024-02-29T12:00:00Z&loan=1.5s&mask=name,book.shelfName&motto=")
     ("Get" "{\"name\":\"b\",\"since\":\"2024-02-29T12:00:00Z\",\"loan\":\"1.500s\",\"mask\":\"name,book.shelfName\",\"motto\":\"\"}"))
    (("GET" "/v1/books/b?&&shelf_name=a=b;c&") ("Get" "{\"name\":\"b\",\"shelfName\":\"a=b;c\"}"))
    (("GET" "/v1/books/b?shelf_name") ("Get" "{\"name\":\"b\"}"))
    (("GET" "/v1/books/b?$alt=json") ("Get" "{\"name\":\"b\"}"))
    (("GET" "/v1/books/b?name=other") ("Get" "{\"name\":\"b\"}"))
    (("PUT" "/v1/books/x" :body "{\"book\":{\"name\":\"y\",\"pages\":2}}")
     ("Put" "{\"book\":{\"name\":\"x\",\"pages\":2}}"))
    (("POST" "/v1/shelves/s/books?name=n" :body "{\"pages\":2}")
     ("Add" "{\"name\":\"n\",\"shelfName\":\"shelves/s\",\"book\":{\"pages\":2}}"))))

(test wrong-parameters-are-named
  (requests (library-router)
    (("GET" "/v1/books/b?bogus=1") (400 "bogus"))
    (("GET" "/v1/books/b?book.bogus=1") (400 "book.bogus"))
    (("GET" "/v1/books/b?shelf_name.x=1") (400 "shelf_name.x"))
    (("GET" "/v1/books/b?book=x") (400 "book"))
    (("GET" "/v1/books/b?extra=x") (400 "extra"))
    (("GET" "/v1/books/b?book.volumes.name=x") (400 "book.volumes.name"))
    (("GET" "/v1/books/b?book.notes=x") (400 "book.notes"))
    (("GET" "/v1/books/b?copies=-1") (400 "copies"))
    (("GET" "/v1/books/b?copies=4294967296") (400 "copies"))
    (("GET" "/v1/books/b?copies=") (400 "copies"))
    (("GET" "/v1/books/b?copies=1.5") (400 "copies"))
    (("GET" "/v1/books/b?copies=%201") (400 "copies"))
    (("GET" "/v1/books/b?edition=9223372036854775808") (400 "edition"))
    (("GET" "/v1/books/b?full=yes") (400 "full"))
    (("GET" "/v1/books/b?full=") (400 "full"))
    (("GET" "/v1/books/b?weight=1e999") (400 "weight"))
    (("GET" "/v1/books/b?rating=1e39") (400 "rating"))
    (("GET" "/v1/books/b?weight=x") (400 "weight"))
    (("GET" "/v1/books/b?cover=*") (400 "cover"))
    (("GET" "/v1/books/b?book.binding=LEATHER") (400 "book.binding"))
    (("GET" "/v1/books/b?since=yesterday") (400 "since"))
    (("GET" "/v1/books/b?loan=5") (400 "loan"))
    (("GET" "/v1/books/b?mask=shelf_name") (400 "mask"))
    (("GET" "/v1/books/b?copies=1&copies=2") (400 "copies"))
    (("GET" "/v1/books/b?room=a&floor=1") (400 "floor"))
    (("GET" "/v1/books/b?shelf_name=%zz") (400 nil))
    (("GET" "/v1/books/b?shelf_name=%ff") (400 nil))
    (("POST" "/v1/shelves/s/books?book.pages=1" :body "{}") (400 "book.pages"))
    (("PUT" "/v1/books/b?copies=1" :body "{}") (400 "copies"))))

(defun deep-authors (count)
  (format nil "book~{~A~}.authors=a" (make-list count :initial-element ".sequel")))

(test queries-have-limits
  (flet ((answer (query)
           (first (requested (library-router) "GET" (format nil "/v1/books/b?~A" query)))))
    (flet ((many (count) (format nil "~{~A~^&~}" (make-list count :initial-element "years=1")))
           (deep (count) (format nil "~{~A~^.~}.pages=1"
                                 (cons "book" (make-list count :initial-element "sequel"))))
           (fields (count)
             (format nil "~{~A~^&~}"
                     (loop for i from 1 to count
                           collect (deep-authors i)))))
      (is (equal "Get" (answer (many 150))))
      (is (eql 400 (answer (many 151))))
      (is (equal "Get" (answer (deep 30))))
      (is (equal "has more than 32 names"
                 (third (requested (library-router) "GET"
                                   (format nil "/v1/books/b?~A" (deep 31))))))
      (is (equal "Get" (answer (fields 6))))
      (is (eql 400 (answer (fields 7)))))))

(test names-that-alternate-are-few
  "A parameter with the previous one's name costs no look-up; a query has a limit of others."
  (flet ((answer (count &rest names)
           (first (requested (library-router) "GET"
                             (format nil "/v1/books/b?~{~A~^&~}"
                                     (loop for i below count
                                           collect (format nil "~A=1"
                                                           (nth (mod i (length names)) names))))))))
    (is (equal "Get" (answer 150 "years")))
    (is (equal "Get" (answer 20 "years" "bindings")))
    (is (eql 400 (answer 21 "years" "bindings")))
    ;; the path binds one of them
    (is (equal "Get" (answer 20 "years" "name")))
    (is (eql 400 (answer 21 "years" "name")))
    ;; which are not looked up
    (is (equal "Get" (answer 150 "$alt" "%24key")))
    (is (eql 400 (answer 1 (make-string 1025 :initial-element #\a))))))

(test a-second-value-ends-the-reading
  "The text after the second value of a singular field is not read, so it may be wrong."
  (let ((answer (requested (library-router) "GET" "/v1/books/b?copies=1&copies=2&%zz=%zz")))
    (is (eql 400 (first answer)))
    (is (search "copies" (format nil "~A" answer)))))

(test long-numbers-are-none
  (flet ((answer (name count)
           (first (requested (library-router) "GET"
                             (format nil "/v1/books/b?~A=0.~A" name
                                     (make-string count :initial-element #\1))))))
    (is (equal "Get" (answer "weight" 100)))
    (is (eql 400 (answer "weight" 127)))))
