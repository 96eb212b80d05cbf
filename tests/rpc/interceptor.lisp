;;;; What may be a list of interceptors. How they are called is tested where calls are.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.rpc)

(test interceptors-are-functions-or-their-names
  (dolist (good (list '() (list #'list) '(list) (list 'list #'car)))
    (is (eq good (rpc:check-interceptors good))))
  (dolist (bad (list #'list 'list '(nil) '(1) '("f") (list #'list nil)))
    (signals misuse (rpc:check-interceptors bad))))
