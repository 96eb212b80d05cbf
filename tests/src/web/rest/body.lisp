;;;; Bodies of requests.

(in-package #:clgrpc.tests.rest)

(test bodies-become-messages-or-fields
  (requests (library-router)
    (("PUT" "/v1/books/b" :body "{\"copies\":2,\"book\":{\"name\":\"other\",\"pages\":1}}"
            :type "application/json")
     ("Put" "{\"book\":{\"name\":\"b\",\"pages\":1},\"copies\":2}"))
    (("PUT" "/v1/books/b" :type "text/plain") ("Put" "{\"book\":{\"name\":\"b\"}}"))
    (("PUT" "/v1/books/b" :body "{}" :type "Application/JSON; Charset=\"UTF-8\"")
     ("Put" "{\"book\":{\"name\":\"b\"}}"))
    (("POST" "/v1/shelves/s/books" :body "null") ("Add" "{\"shelfName\":\"shelves/s\"}"))
    (("GET" "/v1/books/b" :body "ignored" :type "text/plain") ("Get" "{\"name\":\"b\"}"))
    (("POST" "/v1/books/b:scan" :body "abc" :type "image/x")
     ("Scan" "{\"name\":\"b\",\"scan\":{\"contentType\":\"image/x\",\"data\":\"YWJj\"}}"))
    (("POST" "/v1/books/b:scan") ("Scan" "{\"name\":\"b\",\"scan\":{}}"))))

(test bodies-are-json-in-utf-8
  (loop for (type status) in '((nil nil) ("application/json" nil) ("APPLICATION/JSON" nil)
                               ("application/json; charset=utf-8" nil)
                               ("application/json;charset=UTF8" nil)
                               ("application/json; charset=\"utf-8\"; version=1" nil)
                               ("application/json; version=1; charset=us-ascii" nil)
                               ("application/json; version=1" nil) ("application/json;" nil)
                               ("application/json; charset=latin1" 415)
                               ("application/json; version=1; charset=utf-16" 415)
                               ("text/json" 415) ("application/jsonp" 415) ("" 415)
                               ("charset=utf-8" 415))
        do (is (eql status (handler-case (progn (rest::check-json-type type) nil)
                             (request-error (condition)
                               (request-error-http-status condition))))
               "~S" type)))

(test wrong-bodies-are-refused
  (requests (library-router)
    (("PUT" "/v1/books/b" :body "{") (400 "the body"))
    (("PUT" "/v1/books/b" :body "[]") (400 "the body"))
    (("PUT" "/v1/books/b" :body "null") (400 "the body"))
    (("PUT" "/v1/books/b" :body "{} x") (400 "the body"))
    (("PUT" "/v1/books/b" :body "{\"copies\":-1}") (400 "copies"))
    (("PUT" "/v1/books/b" :body "{\"book\":{\"pages\":\"x\"}}") (400 "book.pages"))
    (("PUT" "/v1/books/b" :body "{\"bogus\":1}") (400 "the body"))
    (("POST" "/v1/shelves/s/books" :body "{\"pages\":1.5}") (400 "book.pages"))
    (("POST" "/v1/shelves/s/books" :body "[]") (400 "book"))))

(test streams-are-values-or-an-array
  (requests (library-router)
    (("POST" "/v1/uploads/n" :body "{\"pages\":1}")
     ("Upload" "{\"name\":\"n\",\"book\":{\"pages\":1}}"))
    (("POST" "/v1/uploads/n" :body (format nil "{\"pages\":1}~%{\"pages\":2} "))
     ("Upload" "{\"name\":\"n\",\"book\":{\"pages\":1}}" "{\"name\":\"n\",\"book\":{\"pages\":2}}"))
    (("POST" "/v1/uploads/n" :body "[{\"pages\":1} , {}]")
     ("Upload" "{\"name\":\"n\",\"book\":{\"pages\":1}}" "{\"name\":\"n\",\"book\":{}}"))
    (("POST" "/v1/uploads/n" :body "[]") ("Upload"))
    (("POST" "/v1/uploads/n") ("Upload"))
    (("POST" "/v1/uploads/n" :body "[{\"pages\":1}") (400 "the body"))
    (("POST" "/v1/uploads/n" :body "{} ]") (400 "the body"))))

(defun short-values (count)
  "A body of COUNT empty messages."
  (apply #'concatenate 'string (make-list count :initial-element "{}")))

(test streams-have-a-bound
  "A stream has at most 10,000 messages. The values in its path and query are bound to each of them,
so there is a limit for both together."
  (flet ((answer (count target)
           (requested (library-router) "POST" target :body (short-values count))))
    (is (= 10001 (length (answer 10000 "/v1/uploads/n"))))
    (is (equal '(400 "the body") (subseq (answer 10001 "/v1/uploads/n") 0 2)))
    (let ((target (format nil "/v1/uploads/~A" (make-string 5000 :initial-element #\n))))
      (is (= 801 (length (answer 800 target))))
      (is (equal '(400 nil) (subseq (answer 900 target) 0 2))))))

(test values-are-told-apart-by-brackets-and-strings
  "The rest of each value is examined when it is decoded."
  (loop for (text . parts) in '(("" ) (" ") ("[]") (" [ ] ") ("1 2" "1" "2") ("[1,2]" "1" "2")
                                ("{}{}[]" "{}" "{}" "[]") ("\"a\\\"b\"\"c\"" "\"a\\\"b\"" "\"c\"")
                                ("{\"}\":\"]\\\\\"}1" "{\"}\":\"]\\\\\"}" "1")
                                ("[[1,[2]],{\"a\":[3]}]" "[1,[2]]" "{\"a\":[3]}")
                                ("null{" "null" "{") ("\"open" "\"open") ("{\"a\\" "{\"a\\")
                                ("{]" "{]") ("[" :error) ("[1" :error) ("[1,]" :error)
                                ("[,1]" :error) ("[1 2]" :error) ("[1]2" :error) ("1,2" :error)
                                ("]" :error) ("}" :error) ("{} }" :error))
        do (is (equal parts
                      (let ((octets (string-octets text)))
                        (handler-case
                            (loop for (start . end) in (rest::value-ranges octets (length octets))
                                  collect (subseq text start end))
                          (request-error () '(:error)))))
               "~A" text)))

(test long-raw-bodies-come-in-pieces
  (let* ((router (rule-router '(:get "/v1/a") '(:get "/v1/b") '(:post "/v1/c" :body "scan")))
         (found (multiple-value-bind (route match) (find-route router "POST" "/v1/c")
                  (bound route match nil (make-octets 1048577) "a/b"))))
    (is (equal '(1048576 1)
               (mapcar (lambda (message)
                         (length (google.api:http-body-data (library:request-scan message))))
                       found)))
    (is (equal '("a/b" "a/b")
               (mapcar (lambda (message)
                         (google.api:http-body-content-type (library:request-scan message)))
                       found)))))
