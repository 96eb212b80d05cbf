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

(test errors-of-other-calls-are-errors-of-the-handler
  "An error of another call, of a channel that made no call or of code becomes an error of the
handler, whose text only the client's own process sees; once a call is over its handler's calls end
by its deadline."
  (let* ((end (new-call)) (other (new-call)) (over nil)
         (call (new-call :other-end (fn (_call) end) :now (fn (_call) (if over 9 7)))))
    (setf (rpc:call-deadline call) 8)
    (flet ((ended (error &optional (call call))
             (with-logged (events :handler-error)
               (let ((condition (rpc::error-condition call error)))
                 (list (status:rpc-error-status condition)
                       (if (eq error condition) :same (status:rpc-error-message condition))
                       (length (events))))))
           (failure (&rest arguments)
             (apply #'status:make-rpc-error :aborted :message "m" arguments)))
      (let ((own '((:ended-by :local) (:ended-by :peer)))
            (others `((:call ,other) (:ended-by :transport) (:ended-by :local :sent nil))))
        (dolist (arguments (list* (list :call call) (list :call end) own))
          (is (equal '(:aborted :same 0) (ended (apply #'failure arguments))) "~S" arguments))
        (dolist (arguments others)
          (is (equal '(:internal "error in handler" 1) (ended (apply #'failure arguments)))))
        (setf over t)
        (dolist (arguments others)
          (is (equal '(:deadline-exceeded "the deadline passed" 0)
                     (ended (apply #'failure arguments)))))
        (is (equal '(:aborted :same 0) (ended (failure :call call)))))
      (let ((error (make-condition 'simple-error :format-control "secret")))
        (is (equal '(:internal "error in handler" 1) (ended error)))
        (is (equal '(:internal "error in a callback or generator of this call: secret" 1)
                   (ended error (new-call :client-p t))))))))
