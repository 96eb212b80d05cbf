;;;; Errors in user code.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.rpc)

(test user-code
  "Errors become conditions, of any kind; *CALL* is bound."
  (let ((call (new-call)))
    (is (null (rpc:with-user-code (call) (is (eq call rpc:*call*)))))
    (is (typep (rpc:with-user-code (call) (error "x")) 'rpc:internal))
    (is (typep (rpc:with-user-code (call) (rpc:fail :aborted "")) 'rpc:aborted))
    (is (typep (rpc:with-user-code (call) (error 'storage-condition)) 'rpc:internal))
    (is (typep (rpc:with-user-code (call) (error 'heap-full :octets 1)) 'rpc:resource-exhausted))
    (is (null (rpc:with-user-code (call) (signal 'simple-condition))))))
