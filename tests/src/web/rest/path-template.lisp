;;;; Path templates that are right and wrong.

(in-package #:clgrpc.tests.rest)

(defun template-parts (text)
  (let ((template (parse-template text)))
    (list (coerce (rest::template-segments template) 'list)
          (mapcar (lambda (variable)
                    (list (rest::variable-path variable) (rest::variable-start variable)
                          (rest::variable-end variable)
                          (rest::variable-wide-p template variable)))
                  (rest::template-variables template))
          (rest::template-verb template))))

(test templates-are-read-into-segments-variables-and-verb
  (is (equal '(("v1" :one "x") (("a" 1 2 nil)) nil) (template-parts "/v1/{a}/x")))
  (is (equal '(("v1" :one) (("a.b_2" 1 2 nil)) nil) (template-parts "/v1/{a.b_2=*}")))
  (is (equal '(("shelves" :one "books" :rest) (("n" 0 4 t)) "move")
             (template-parts "/{n=shelves/*/books/**}:move")))
  (is (equal '((:one :rest) () "go") (template-parts "/*/**:go")))
  (is (equal '(("a b" "$x-._~@") () nil) (template-parts "/a%20b/$x-._~@"))))

(defparameter *wrong-templates*
  '("" "v1/x" "/" "/v1/" "/v1//x" "/v1/{a" "/v1/a}" "/v1/{}" "/v1/{=a}" "/v1/{a=}" "/v1/{a}b"
    "/v1/b{a}" "/v1/{a}{b}" "/v1/{a={b}}" "/v1/{a=x/{b}}" "/v1/{1a}" "/v1/{a..b}" "/v1/{.a}"
    "/v1/{a.}" "/v1/{a-b}" "/v1/{a:b}" "/v1/{a=/x}" "/v1/{a=x/}" "/v1/**/x" "/v1/{a=**}/x"
    "/v1/{a=**/x}" "/v1/{a=**}/{b=**}" "/v1/***" "/v1/a*" "/v1/*a" "/v1/x:" "/v1/x:a:b" "/v1/a:b/c"
    "/v1/x:*" "/v1/x:{a}" "/v1/:x" "/v1/a b" "/v1/a?b=c" "/v1/a#b" "/v1/%zz" "/v1/%4" "/v1/%ff"
    "/v1/a\\b" "/v1/{a b}" "/v1/{a=x y}" "http://h/v1")
  "Texts that are not templates.")

(test wrong-templates-are-refused
  (dolist (text *wrong-templates*)
    (signals rule-error (parse-template text) "~S" text)))

(test templates-have-limits
  (flet ((long (count) (format nil "~{~A~}" (make-list count :initial-element "/x"))))
    (is (parse-template (long 100)))
    (signals rule-error (parse-template (long 101)))
    (signals rule-error (parse-template (format nil "/~A" (make-string 4096
                                                                       :initial-element #\x))))))
