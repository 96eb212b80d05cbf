;;;; The YAML of service configs.

(in-package #:clgrpc.tests.rest)

(defparameter *service-config*
  "# a config
type: google.api.Service
config_version: 3

http:
  rules:
  - selector: clgrpc.tests.library.Library.Silent   # one
    get: '/v1/{name=x/*}:it''s'
    additional_bindings:
      - post: \"/v1/\\u0078\"
        body: '*'
      -
        custom:
          kind: HEAD
          path: /v1/h
  - selector: clgrpc.tests.library.Library.File
    put: /v1/a#b
documentation:
  summary: >-
    One: two
    three
  text: |
    # no comment

    a
empty:
list: []
")

(test configs-are-read
  (is (equalp '(("type" . "google.api.Service") ("config_version" . 3)
                ("http"
                 ("rules"
                  . #((("selector" . "clgrpc.tests.library.Library.Silent")
                       ("get" . "/v1/{name=x/*}:it's")
                       ("additional_bindings"
                        . #((("post" . "/v1/x") ("body" . "*"))
                            (("custom" ("kind" . "HEAD") ("path" . "/v1/h"))))))
                      (("selector" . "clgrpc.tests.library.Library.File") ("put" . "/v1/a#b")))))
                ("documentation" ("summary" . "One: two three")
                 ("text" . #.(format nil "# no comment~2%a")))
                ("empty" . :null) ("list" . #()))
              (parse-yaml *service-config*)))
  (is (equal '() (parse-yaml "")))
  (is (equal '(("a") ("b" . "c")) (parse-yaml (format nil "a: {}~%b: c"))))
  (is (equal '(("a" . "b")) (parse-yaml (format nil "---~%a: b~C~%" #\Return))))
  (is (equal "x" (parse-yaml "x"))))

(test rules-of-a-config-are-rules
  (let ((rules (read-rules *service-config*)))
    (is (equal '("clgrpc.tests.library.Library.Silent" "clgrpc.tests.library.Library.File")
               (mapcar #'google.api:http-rule-selector rules)))
    (is (= 2 (length (google.api:http-rule-additional-bindings (first rules))))))
  (is (equal '() (read-rules "type: google.api.Service"))))

(test wrong-yaml-is-refused-with-its-line
  (loop for (text line) in `(("a: b
c" 2) ("a: b
 c: d" 2) ("a:
	b: c" 2) ("a: &x b" 1) ("a: [b]" 1) ("a: {b: c}" 1) ("a: b: c" 1) ("a: 'b" 1) ("a: \"b" 1)
                             ("a: 'b'c" 1) ("a: b
a: c" 2) ("a:
    b: c
  d: e" 3) ("- a
b" 2) (": b" 1) ("{}: b" 1) ("a: *b" 1) ("a: !!str b" 1)
                             (,(format nil "~{~A~}x" (make-list 33 :initial-element "- ")) 1))
        do (with-signalled (condition rule-error (parse-yaml text))
             (is (search (format nil "in line ~D " line) (princ-to-string condition))
                 "~S: ~A" text condition)))
  (loop for (length taken) in '((1048576 t) (1048577 nil))
        do (is (eq taken
                   (handler-case (and (parse-yaml (make-string length :initial-element #\a)) t)
                     (rule-error () nil)))
               "~D" length))
  (flet ((nested (levels)
           (format nil "~{~A~%~}~VAa: b~%"
                   (loop for level below (1- levels) collect (format nil "~VAa:" level ""))
                   (1- levels) "")))
    (is (consp (parse-yaml (nested 32))))
    (signals rule-error (parse-yaml (nested 33)))))

(test scalars-without-quotes
  "Words of JSON in three spellings, and numbers of at most 18 digits; any other scalar is text."
  (loop for (value . texts) in '((:null "null" "~" "Null" "NULL") (:true "true" "True" "TRUE")
                                 (:false "false" "False" "FALSE") (0 "0" "00") (12 "12")
                                 (999999999999999999 "999999999999999999"))
        do (dolist (text texts)
             (is (eql value (parse-yaml text)) "~A" text)
             (is (equal (list (cons "a" value)) (parse-yaml (format nil "a: ~A" text))) "~A" text)))
  (dolist (text '("nULL" "tRUE" "yes" "-1" "1.5" "1e3" "0x1" "9999999999999999999"))
    (is (equal text (parse-yaml text)) "~A" text)))

(test characters-that-begin-no-text
  "These characters begin syntax that is not supported. Elsewhere in a text they are ordinary."
  (loop for character across "&*!|>%@`[{"
        for text = (string character)
        do (is (search (format nil "cannot begin with ~S" text)
                       (handler-case (princ-to-string (parse-yaml (format nil "~Ax" text)))
                         (rule-error (condition) (princ-to-string condition)))))
           (is (equal (format nil "x~A" text) (parse-yaml (format nil "x~A" text))))))

(test colons-in-keys-and-texts
  "A key ends at a colon before a blank, or at the end of its line."
  (loop for (text . expected) in '(("a:b: c" ("a:b" . "c")) ("a:b:" ("a:b" . :null))
                                   ("a::b: c:d" ("a::b" . "c:d")) ("'a: b': c" ("a: b" . "c")))
        do (is (equal (list (first expected)) (parse-yaml text)) "~S" text))
  (is (equal "a:b" (parse-yaml "a:b"))))

(test wrong-configs-are-refused
  (dolist (text '("http: x" "http:
  rules: x" "http:
  rules:
  - x" "http:
  rules:
  - get: /v1/x" "http:
  rules:
  - selector: a.B.C
    gets: /v1/x" "http:
  rule:
  - selector: a.B.C" "http:
  fully_decode_reserved_expansion: true" "http:
  rules:
  - selector: a.B.C
    get: /v1/x
    put: /v1/x" "- x"))
    (signals rule-error (read-rules text) "~S" text))
  (dolist (list '((x) ((:get "/v1/x")) ((:selector "a.B.C" :gets "/v1/x"))
                  ((:selector "a.B.C" :get 1)) ((:selector "a.B.C" :get))
                  ((:selector "a.B.C" :get "/v1/x" :additional-bindings 5))))
    (signals rule-error (read-rules list) "~S" list)))
