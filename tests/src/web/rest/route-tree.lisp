;;;; The route of a request.

(in-package #:clgrpc.tests.rest)

(test paths-are-found
  (requests (library-router)
    (("GET" "/v1/shelves/a/books/b") ("Get" "{\"name\":\"shelves/a/books/b\"}"))
    (("GET" "/v1/books/b") ("Get" "{\"name\":\"b\"}"))
    (("HEAD" "/v1/books/b") ("Get" "{\"name\":\"b\"}"))
    (("GET" "/v1/files") ("File" "{\"name\":\"files\"}"))
    (("GET" "/v1/files/a/b") ("File" "{\"name\":\"files/a/b\"}"))
    (("GET" "/v1/files/a//b/") ("File" "{\"name\":\"files/a//b/\"}"))
    (("GET" "/v1/files/a/b:watch") ("Watch" "{\"name\":\"a/b\"}"))
    (("GET" "/v1/files/a/b%3Awatch") ("File" "{\"name\":\"files/a/b:watch\"}"))
    (("GET" "/v1/files/a:b/c") ("File" "{\"name\":\"files/a:b/c\"}"))
    (("GET" "/v1/files/a:b:watch") ("Watch" "{\"name\":\"a:b\"}"))
    (("GET" "/v1/b%6foks/b") ("Get" "{\"name\":\"b\"}"))
    (("REPORT" "/v1/any/x") ("Any" "{\"name\":\"x\"}"))
    (("GET" "/v1/books/") (:none ()))
    (("GET" "/v1/books") (:none ()))
    (("GET" "/v1/books/b/") (:none ()))
    (("GET" "v1/books/b") (:none ()))
    (("GET" "/") (:none ()))
    (("GET" "") (:none ()))
    (("DELETE" "/v1/books/b") (:none ("GET" "HEAD" "PUT")))
    (("GET" "/v1/books/b:scan") ("Get" "{\"name\":\"b:scan\"}"))
    (("GET" "/v1/books/%F") (400 nil))
    (("GET" "/v1/books/%FF") (400 nil))))

(test single-segments-are-decoded-and-wide-ones-but-for-slashes
  (requests (library-router)
    (("GET" "/v1/books/a%2Fb%20c+d") ("Get" "{\"name\":\"a/b c+d\"}"))
    (("GET" "/v1/files/a%2Fb%2fc%20d/%E2%82%AC") ("File" "{\"name\":\"files/a%2Fb%2fc d/€\"}"))
    (("GET" "/v1/files/%252e") ("File" "{\"name\":\"files/%2e\"}"))
    (("GET" "/v1/files/../x") ("File" "{\"name\":\"files/../x\"}"))))

(test literals-come-before-stars-in-any-order
  "All orders of the rules give the same routes; a literal without a route hides no other."
  (let ((rules '((:get "/v1/a/{name}") (:get "/v1/{name}/b") (:get "/v1/{name=**}"))))
    (dolist (order '((0 1 2) (0 2 1) (1 0 2) (1 2 0) (2 0 1) (2 1 0)))
      (let ((router (apply #'rule-router (mapcar (lambda (i) (nth i rules)) order))))
        (flet ((path (path)
                 (template-text (route-template (find-route router "GET" path)))))
          (is (string= "/v1/a/{name}" (path "/v1/a/b")))
          (is (string= "/v1/{name}/b" (path "/v1/c/b")))
          (is (string= "/v1/{name=**}" (path "/v1/c/d")))
          (is (string= "/v1/{name=**}" (path "/v1/a/b/c")))
          (is (string= "/v1/{name=**}" (path "/v1"))))))))

(test a-named-method-comes-before-any
  (let ((router (rule-router '(:custom (:kind "*" :path "/v1/{name}")) '(:put "/v1/*"))))
    (is (equal '("Any") (butlast (requested router "PUT" "/v1/x"))))
    (is (equal '("Silent") (butlast (requested router "POST" "/v1/x"))))))

(test each-method-is-allowed-once
  "This holds for several routes of a path, too; GET allows HEAD."
  (is (equal '("DELETE" "GET" "HEAD")
             (rest::allowed-verbs (list "GET" (copy-seq "DELETE") (copy-seq "DELETE")
                                        (copy-seq "GET")))))
  (is (equal '("PUT") (rest::allowed-verbs (list "PUT" (copy-seq "PUT"))))))

(test long-paths-cost-what-their-length-does
  "The search for a long path visits each node of the tree once."
  (let* ((rules (list (list :get (format nil "~{~A~}" (make-list 40 :initial-element "/a")))
                      (list :get (substitute #\* #\x (format nil "~{~A~}"
                                                             (make-list 40 :initial-element "/x"))))
                      (list :get (format nil "~{~A~}/**" (make-list 20 :initial-element "/a")))))
         (router (apply #'rule-router rules)))
    (is (null (find-route router "GET" (format nil "/b~{~A~}"
                                                (make-list 5000 :initial-element "/a")))))
    (is (find-route router "GET" (format nil "~{~A~}" (make-list 5000 :initial-element "/a"))))))

(test a-match-is-no-longer-than-the-templates
  "A match is kept with its head, and a peer can repeat a head of thousands of segments cheaply."
  (let* ((router (rule-router '(:get "/v1/{name=**}") '(:get "/v2/{name=**}:go")))
         (path (format nil "/v1/~{~A/~}end" (make-list 5000 :initial-element "a"))))
    (multiple-value-bind (route match) (find-route router "GET" path)
      (is-true route)
      (is (<= (length (rest::match-starts match)) 2))
      (is (= (length path) (rest::match-end match))))))

(test verbs-of-paths-have-an-end
  "The search for a verb covers only as much of a path as the longest verb, escaped, can take."
  (let ((router (rule-router '(:get "/v1/{name=**}:go"))))
    (flet ((found (path) (and (find-route router "GET" path) t)))
      (is-true (found "/v1/a:b:go"))
      (is-true (found "/v1/a:%67%6F"))
      (is-true (found (format nil "/v1/~A:go" (make-string 5000 :initial-element #\:))))
      (is (not (found (format nil "/v1/a:go~A" (make-string 5000 :initial-element #\o)))))
      (is (not (found "/v1/a:go/b"))))))
