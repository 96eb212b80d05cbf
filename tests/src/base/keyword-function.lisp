;;;; Functions whose errors name the wrong argument: one in a keyword's place, or an unknown
;;;; keyword.

(in-package #:clgrpc.tests.base)

(define-keyword-function (open-toy :hint "a size is the value of :SIZE")
    (name &rest arguments &key (size 1) &allow-other-keys)
  "A function for the tests below."
  (list name size arguments))

(define-keyword-function paint-toy (toy brush &key colour ((:coats times) (if colour 2 1)))
  "Another one, which has all of its keywords."
  (declare (type (or null symbol) colour))
  (unless toy (return-from paint-toy :nothing))
  (list toy brush colour times))

(define-keyword-function make-toy (&key wheels)
  "A third one, with no other arguments."
  wheels)

(test keywords-and-values-alternate
  "The error names a value in a keyword's place, a keyword without a value, and the place where the
value belongs."
  (is (equal '("a" 1 ()) (open-toy "a")))
  (is (equal '("a" 2 (:size 2 :weight 3)) (open-toy "a" :size 2 :weight 3)))
  (is (equal (format nil "OPEN-TOY takes keywords and their values after its first argument, not ~
                          5: a size is the value of :SIZE.")
             (refusal #'open-toy "a" 5)))
  (is (search "not \"b\": a size" (refusal #'open-toy "a" :size 2 "b" 3)))
  (is (equal "The keyword :SIZE of OPEN-TOY has no value." (refusal #'open-toy "a" :size)))
  (is (equal "PAINT-TOY takes keywords and their values after its first two arguments, not 5."
             (refusal #'paint-toy 1 2 5)))
  (is (equal "MAKE-TOY takes keywords and their values, not 5." (refusal #'make-toy 5 6))))

(test missing-arguments-are-named
  "An argument that is nil is not missing."
  (is (equal "OPEN-TOY needs one argument before its keywords: NAME." (refusal #'open-toy)))
  (is (equal "PAINT-TOY needs two arguments before its keywords: TOY, BRUSH."
             (refusal #'paint-toy)))
  (is (equal (refusal #'paint-toy) (refusal #'paint-toy 1)))
  (is (equal '(1 nil nil 1) (paint-toy 1 nil))))

(test unknown-keywords-are-refused
  "The text has the function, the keyword that was probably meant, and all keywords. A function that
allows others checks them itself."
  (is (equal '(1 2 :red 2) (paint-toy 1 2 :colour :red)))
  (is (equal '(1 2 nil 3) (paint-toy 1 2 :coats 3)))
  (is (eq :nothing (paint-toy nil 2)))
  (is (equal '(1 2 nil 3) (paint-toy 1 2 :times 1 :coats 3 :allow-other-keys t)))
  (is (equal '(1 2 nil 3) (paint-toy 1 2 :coats 3 :allow-other-keys nil)))
  (is (equal "PAINT-TOY has no keyword :COLOR (is it :colour?); it takes :colour, :coats."
             (refusal #'paint-toy 1 2 :color :red)))
  (is (equal "PAINT-TOY has no keyword :TIMES; it takes :colour, :coats."
             (refusal #'paint-toy 1 2 :times 1)))
  (is (equal "MAKE-TOY has no keyword :DOORS; it takes :wheels." (refusal #'make-toy :doors 4))))

(test keyword-functions-show-their-keywords
  "Lambda lists are for `describe', editors, and the compiler, which warns of wrong calls."
  (is (equal '(name &rest arguments &key (size 1) &allow-other-keys)
             (sb-kernel:%fun-lambda-list #'open-toy)))
  (is (equal "A function for the tests below." (documentation 'open-toy 'function)))
  (flet ((warnings (form)
           (let ((texts '()))
             (handler-bind ((warning (lambda (warning)
                                       (push (princ-to-string warning) texts)
                                       (muffle-warning warning))))
               (compile nil `(lambda () ,form)))
             texts)))
    (is (null (warnings '(paint-toy 1 2 :colour :red))))
    (is (null (warnings '(open-toy 1 :weight 3))))
    (is (search "TIMES is not a known" (first (warnings '(paint-toy 1 2 :times 3)))))
    (is (search "one argument" (first (warnings '(paint-toy 1)))))
    (is (search "odd number of keyword" (first (warnings '(open-toy 1 2)))))))

(test options-alternate-with-values
  (is (search "Options are alternately keywords and values; 50051 is not a keyword."
              (refusal #'make-channel-options 50051 1))))
