;;;; What REST reads: path templates, requests (a path with its query, a space and a body) and the
;;;; YAML of service configs.

(in-package #:clgrpc.tests.fuzz)

(defun texts-samples (&rest texts)
  (lambda () (mapcar (lambda (text) (text-sample nil text)) texts)))

(defun latin-text (octets)
  "OCTETS as a text of as many characters, as the head of a request has them."
  (map '(simple-array character (*)) #'code-char octets))

(defun run-template (kind octets)
  (declare (ignore kind))
  (let ((template (rest:parse-template (latin-text octets))))
    (unless (string= (latin-text octets) (rest:template-text template))
      (found "the template has another text"))))

(define-target "rest-template"
  :samples (texts-samples "/v1/{name=shelves/*/books/**}:move" "/v1/{a.b_c}/x/*/{d=*}"
                          "/v1/a%20b/**:go" "/$x-._~@/{n=**}")
  :mutate #'mutate-text :run #'run-template :conditions (rest:rule-error))

(sb-ext:defglobal **library** nil)

(defun run-rest-request (kind octets)
  (declare (ignore kind))
  (let* ((router (or **library** (setf **library** (library:library-router))))
         (end (or (position 32 octets) (length octets)))
         (target (latin-text (subseq octets 0 end)))
         (query (position #\? target)))
    (multiple-value-bind (route match) (rest:find-route router "GET" (subseq target 0 query))
      (unless route
        (setf (values route match) (rest:find-route router "POST" (subseq target 0 query))))
      (unless route (error 'rest:request-error :text "no route"))
      (let ((messages (library:bound route match (and query (subseq target (1+ query)))
                                     (subseq octets (min (length octets) (1+ end))) nil)))
        (mapc #'protobuf:message-json messages)
        (mapc #'protobuf:serialize messages)))))

(define-target "rest-request"
  :samples (texts-samples "/v1/shelves/a%2Fb/books/c%20d?shelf_name=x+y&years=1&years=2"
                          "/v1/books/b?book.sequel.pages=3&since=2024-02-29T12:00:00.5Z&loan=1.5s"
                          "/v1/files/a/b%2f:watch?mask=name,book.pages&cover=-_8&weight=-1e3"
                          "/v1/shelves/s/books?name=n {\"pages\": 2, \"authors\": [\"a\"]}"
                          "/v1/uploads/n?full=true {\"pages\": 1} {\"binding\": \"PAPER\"}"
                          "/v1/books/n:scan abc")
  :mutate #'mutate-text :run #'run-rest-request :conditions (rest:request-error))

(defun run-yaml (kind octets)
  (declare (ignore kind))
  (write-json (rest:parse-yaml (latin-text octets))))

(define-target "yaml"
  :samples (texts-samples "type: x
http:
  rules:
  - selector: a.b.C  # c
    get: '/v1/{name=x/*}'
    additional_bindings:
      - post: \"/v1/x\"
        body: '*'
empty:
" "- a
-
  b: |
    text
    more
  c: >-
   x
- - d: []
")
  :mutate #'mutate-text :run #'run-yaml :conditions (rest:rule-error))

(defun run-rules (kind octets)
  "Make a router of the rules of a service config, and look paths up in it."
  (declare (ignore kind))
  (let ((router (rest:make-router (rest:make-routes (library:library-methods)
                                                    :rules (rest:read-rules
                                                            (latin-text octets))))))
    (dolist (route (rest:router-routes router))
      (handler-case (rest:find-route router (rest:route-verb route)
                                     (rest:template-text (rest:route-template route)))
        (rest:request-error ())))))

(define-target "rest-rules"
  :samples (texts-samples "http:
  rules:
  - selector: clgrpc.tests.library.Library.Silent
    get: '/v1/{name=x/*}/y/**'
    response_body: names
    additional_bindings:
      - post: \"/v1/x:go\"
        body: '*'
      - custom:
          kind: REPORT
          path: /v1/{shelf_name}
  - selector: clgrpc.tests.library.Library.Upload
    put: /v1/{book.name=books/*}:upload
    body: scan
")
  :mutate #'mutate-text :run #'run-rules :conditions (rest:rule-error))
