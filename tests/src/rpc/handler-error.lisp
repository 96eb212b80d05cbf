;;;; Errors in user code.

(in-package #:clgrpc.tests.rpc)

(test user-code
  "Errors become conditions, of any kind; *CALL* is bound."
  (let ((call (new-call)))
    (is (null (rpc:with-user-code (call) (is (eq call method:*call*)))))
    (is (typep (rpc:with-user-code (call) (error "x")) 'status:internal))
    (is (typep (rpc:with-user-code (call) (status:fail :aborted "")) 'status:aborted))
    (is (typep (rpc:with-user-code (call) (error 'storage-condition)) 'status:internal))
    (is (typep (rpc:with-user-code (call)
                 (error (find-symbol "HEAP-FULL" '#:clgrpc.base) :octets 1))
               'status:resource-exhausted))
    (is (null (rpc:with-user-code (call) (signal 'simple-condition))))))
