;;;; Libraries: one that exists, one that does not, one that lacks a function.

(in-package #:clgrpc.tests.os)

(os:define-library **absent** ("libclgrpc-absent.so.1") ()
  (call-absent "absent" sb-alien:int))

(os:define-library **lacking** ("libz.so.1") ()
  (call-lacking "clgrpc_has_no_such_function" sb-alien:int))

(test libraries
  (is-true (os:open-zlib))
  (dolist (case '((**absent** "libclgrpc-absent.so.1 cannot be opened")
                  (**lacking** "libz.so.1 has no function clgrpc_has_no_such_function")))
    (destructuring-bind (library why) case
      (let ((library (symbol-value library)))
        (loop repeat 2
              do (multiple-value-bind (open reason) (os:open-library library)
                   (is (null open))
                   (is (string= why reason))))
        ;; a library that was not found is not looked for again
        (is (eq (nth-value 1 (os:open-library library)) (nth-value 1 (os:open-library library))))
        (is (search "not open" (princ-to-string library)))))))
