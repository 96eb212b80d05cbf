;;;; Functions that say which of their arguments stands in a keyword's place.

(in-package #:clgrpc.tests.base)
(in-suite :clgrpc.base)

(define-keyword-function open-toy (name &rest arguments &key (size 1) &allow-other-keys)
    "a size is the value of :SIZE"
  "A function for the tests below."
  (list name size arguments))

(test keywords-and-values-alternate
  "A value in a keyword's place, and a keyword without a value, are named; so is the place where the
value belongs."
  (is (equal '("a" 1 ()) (open-toy "a")))
  (is (equal '("a" 2 (:size 2 :weight 3)) (open-toy "a" :size 2 :weight 3)))
  (is (equal (format nil "OPEN-TOY takes keywords and their values after its first argument, not 5: ~
                          a size is the value of :SIZE.")
             (refusal #'open-toy "a" 5)))
  (is (search "not \"b\": a size" (refusal #'open-toy "a" :size 2 "b" 3)))
  (is (equal "The keyword :SIZE of OPEN-TOY has no value." (refusal #'open-toy "a" :size))))

(test keyword-functions-show-their-keywords
  (is (equal '(name &rest arguments &key (size 1) &allow-other-keys)
             (sb-kernel:%fun-lambda-list #'open-toy)))
  (is (equal "A function for the tests below." (documentation 'open-toy 'function))))

(test options-alternate-with-values
  (is (search "Options are keywords and their values by turns; 50051 is not a keyword."
              (refusal #'make-channel-options 50051 1))))
