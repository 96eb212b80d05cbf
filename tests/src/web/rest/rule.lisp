;;;; Rules checked against the types of their methods, and shadows.

(in-package #:clgrpc.tests.rest)

(test annotations-become-routes
  (let ((routes (make-routes (library-methods))))
    (is (equal '("GET /v1/{name=shelves/*/books/*}" "GET /v1/books/{name}"
                 "POST /v1/{shelf_name=shelves/*}/books" "PUT /v1/books/{book.name}"
                 "POST /v1/books/{name}:scan" "GET /v1/files/{name=**}:watch"
                 "GET /v1/{name=files/**}" "POST /v1/uploads/{name}" "* /v1/any/{name}")
               (mapcar (lambda (route)
                         (format nil "~A ~A" (route-verb route)
                                 (template-text (route-template route))))
                       routes)))
    (is (every (lambda (route) (eq :payload (route-payload route))) routes))
    (is (null (method-rule (first (method-named "Silent")))))))

(defparameter *wrong-rules*
  '(((:body "*") "no pattern")
    ((:get "") "no path")
    ((:get "/v1/{nosuch}") "nosuch")
    ((:get "/v1/{book.nosuch}") "book.nosuch")
    ((:get "/v1/{name.x}") "name.x")
    ((:get "/v1/{shelfName}") "shelf_name")
    ((:get "/v1/{years}") "repeated")
    ((:get "/v1/{book.authors}") "repeated")
    ((:get "/v1/{book.volumes.name}") "book.volumes.name")
    ((:get "/v1/{book.notes}") "a map")
    ((:get "/v1/{book.notes.key}") "book.notes.key")
    ((:get "/v1/{book}") "a message")
    ((:get "/v1/{since}") "a message")
    ((:get "/v1/{motto}") "a message")
    ((:get "/v1/{name}/{name}") "twice")
    ((:get "/v1/{book.name}/x/{book.name=*}") "twice")
    ((:get "/v1/{room}/{floor}") "oneof")
    ((:get "/v1/x" :body "*") "GET")
    ((:get "/v1/x" :body "book") "GET")
    ((:delete "/v1/x" :body "*") "DELETE")
    ((:custom (:kind "HEAD" :path "/v1/x") :body "*") "HEAD")
    ((:post "/v1/x" :body "nosuch") "nosuch")
    ((:post "/v1/x" :body "book.name") "itself")
    ((:post "/v1/x" :body "shelfName") "shelf_name")
    ((:post "/v1/x" :body "**") "**")
    ((:post "/v1/{name}" :body "name") "in its path")
    ((:get "/v1/x" :response-body "nosuch") "nosuch")
    ((:get "/v1/x" :response-body "request.name") "itself")
    ((:get "/v1/x" :response-body "*") "*")
    ((:custom (:kind "" :path "/v1/x")) "empty")
    ((:custom (:kind "GET" :path "")) "no path")
    ((:custom (:kind "A B" :path "/v1/x")) "not a method")
    ((:custom (:kind "CONNECT" :path "/v1/x")) "CONNECT")
    ((:get "/v1/x" :additional-bindings ((:body "*"))) "no pattern")
    ((:get "/v1/x" :additional-bindings ((:get "/v1/y/{nosuch}"))) "nosuch")
    ((:get "/v1/x" :additional-bindings ((:get "/v1/y" :selector "a.B.C"))) "selector")
    ((:get "/v1/x" :additional-bindings
      ((:get "/v1/y" :additional-bindings ((:get "/v1/z"))))) "additional bindings")
    ((:get "/v1/x" :additional-bindings ((:get "/v1/x"))) "same requests")
    ((:get "/v1/{name}" :additional-bindings ((:get "/v1/{shelf_name=*}"))) "same requests"))
  "Wrong rules, and the text of each error.")

(test wrong-rules-are-refused
  "Each is refused with an error that names the rule's method and the reason."
  (loop for (rule word) in *wrong-rules*
        do (let ((complaint (rule-complaint rule)))
             (is (and complaint (search word complaint) (search "Library.Silent" complaint))
                 "~S: ~A" rule complaint)))
  (dolist (template *wrong-templates*)
    (is (rule-complaint (list :get template)) "~S" template)))

(test right-rules-are-taken
  (dolist (rule '((:get "/v1/{name}/{shelf_name=a/*}/{book.name}")
                  (:post "/v1/{book.name}" :body "book") (:post "/v1/x" :body "years")
                  (:post "/v1/x" :body "name") (:post "/v1/{name}" :body "*")
                  (:get "/v1/x" :response-body "names") (:get "/v1/x" :response-body "count")
                  (:custom (:kind "*" :path "/v1/x") :body "*")
                  (:custom (:kind "REPORT" :path "/v1/x") :body "*")
                  (:get "/v1/{room}" :additional-bindings ((:get "/v1/y/{floor}")))
                  (:get "/v1/x" :additional-bindings ((:post "/v1/x") (:get "/v1/x:y")
                                                      (:get "/v1/*") (:get "/v1/**")
                                                      (:get "/v1/x/y")))))
    (is (null (rule-complaint rule)) "~S: ~A" rule (rule-complaint rule))))

(test shadows-are-found
  "If two methods have the same requests, the error names both, in either order."
  (loop for (first second) in '(((:get "/v1/{name}") (:get "/v1/*"))
                                ((:get "/v1/{name=files/**}") (:get "/v1/files/{shelf_name=**}"))
                                ((:post "/v1/{name}:go" :body "*") (:post "/v1/{book.name}:go"))
                                ((:get "/v1/a%62") (:get "/v1/ab")))
        do (dolist (complaint (list (rule-complaint first second) (rule-complaint second first)))
             (is (and complaint (search "Library.Silent" complaint)
                      (search "Library.Any" complaint))
                 "~S ~S: ~A" first second complaint))))

(test rules-beside-take-the-place-of-annotations
  "The last rule with a selector counts."
  (let ((selector "clgrpc.tests.library.Library.File"))
    (is (equal "/v2/c"
               (template-text
                (route-template
                 (first (make-routes (list (method-named "File"))
                                     :rules (read-rules `((:selector ,selector :get "/v2/b")
                                                          (:selector ,selector
                                                           :get "/v2/c"))))))))))
  (signals rule-error (make-routes (list (method-named "File"))
                                   :rules (read-rules '((:selector "a.B.C" :get "/v2/b"))))))
