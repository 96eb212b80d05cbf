;;;; Functions of users that cannot be called are refused where they are given.

(in-package #:clgrpc.tests.base)

(defgeneric weigh-toy (toy scale))

(defun toy-of (&rest arguments &key &allow-other-keys) arguments)

(test arities-are-checked
  "Both bounds of each kind of lambda list; functions with an unknown lambda list are accepted."
  (loop for (function accepted)
          in (list (list (lambda () 1) '(0))
                   (list (lambda (a b) (list a b)) '(2))
                   (list (lambda (a &optional b) (list a b)) '(1 2))
                   (list (lambda (a b &rest more) (list a b more)) '(2 3 4))
                   (list (lambda (a &key b) (list a b)) '(1))
                   (list (lambda (a &aux (b 1)) (list a b)) '(1))
                   (list 'weigh-toy '(2))
                   (list 'toy-of '(0 1 2 3 4))
                   (list 'no-function-by-now '(0 1 2 3 4))
                   (list (compile nil '(lambda (a) (declare (optimize (debug 0))) a))
                         '(0 1 2 3 4)))
        do (dotimes (count 5)
             (let ((refusal (refusal #'check-arity function (subseq '(a b c d e) 0 count)
                                     "A toy")))
               (if (member count accepted)
                   (is (null refusal) "~S with ~D: ~A" function count refusal)
                   (is (search "A toy is called with" refusal) "~S with ~D" function count)))))
  (is (search "A toy is called with two arguments, (call request), but"
              (refusal #'check-arity (lambda (call) call) '(call request) "A toy")))
  (is (uiop:string-suffix-p (refusal #'check-arity 'weigh-toy '(call) "A toy")
                            "WEIGH-TOY takes (toy scale).")))

(test interceptors-take-their-arguments
  "An interceptor with the wrong parameters is refused with the right ones, also in a list for some
methods."
  (let ((good (list #'list (list "words.Speaker" #'list 'list) (lambda (a b c) (list a b c)))))
    (is (eq good (check-arities good '(call request next)))))
  (dolist (bad (list (list (lambda (call) call))
                     (list #'list (list "words.Speaker" (lambda (a b c d) (list a b c d))))))
    (is (search "An interceptor is called with three arguments, (call request next), but"
                (refusal #'check-arities bad '(call request next))))))
