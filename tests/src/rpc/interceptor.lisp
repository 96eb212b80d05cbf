;;;; Valid lists of interceptors. The tests of calls show how interceptors are called.

(in-package #:clgrpc.tests.rpc)

(defun method-named (symbol) (method:stub-method symbol))

(test interceptors-are-functions-or-their-names
  (dolist (good (list '() (list #'list) '(list) (list 'list #'car)
                      '(("words.Speaker" list car) car (words.speaker:echo list))))
    (is (eq good (rpc:check-interceptors good))))
  (dolist (bad (list #'list 'list '(nil) '(1) '("f") (list #'list nil)
                     '((1 car)) '(("words.Speaker")) (list (list #'car #'car)) '((nil car))
                     '(("words.Speaker" 1))
                     '(("words.Speaker" ("words.Speaker" car))) '(("words.Speaker" . car))))
    (signals misuse (rpc:check-interceptors bad))))

(test interceptors-are-for-methods
  (let ((all (list 'first (list "words.Speaker" 'second 'third) 'fourth
                   (list 'words.speaker:echo 'fifth) (list "words" 'sixth)
                   (list "words.speaker" 'seventh))))
    (is (equal '(first second third fourth fifth)
               (rpc:interceptors-for all (method-named 'words.speaker:echo))))
    (is (equal '(first second third fourth)
               (rpc:interceptors-for all (method-named 'words.speaker:spell)))))
  (let ((plain '(first second)))
    (is (eq plain (rpc:interceptors-for plain (method-named 'words.speaker:echo))))))
