;;;; What the ends do for the operations of the contract, where it is particular to them.

(in-package #:clgrpc.tests.inproc)
(in-suite :clgrpc.inproc)

(test headers-are-sent-once
  (let ((misuses 0))
    (with-inproc (channel) (:ask (lambda (note call)
                                   (grpc:send-metadata call '(("x-a" . "1")))
                                   (handler-case (grpc:send-metadata call '(("x-a" . "2")))
                                     (grpc:misuse () (incf misuses)))
                                   note))
      (let ((call (nth-value 1 (ask channel (note 1)))))
        (is (equal '(("x-a" . "1")) (grpc:call-metadata call)))
        (is (= 1 misuses))))))

(test finishing-well-without-an-answer
  "The handler's end is :ok, the client's what the wire makes of that, with the trailers."
  (let ((server-end nil))
    (with-inproc (channel) (:ask (lambda (note call)
                                   (declare (ignore note))
                                   (setf server-end call
                                         (grpc:call-trailers call) '(("x-a" . "1")))
                                   (grpc:finish call :trailers '(("x-b" . "2")))
                                   call))
      (let ((error (caught (ask channel (note 1)))))
        (is (eq :unimplemented (status-of-error error)))
        (is (search "no response message" (princ-to-string error)))
        (is (equal '(("x-a" . "1") ("x-b" . "2")) (grpc:rpc-error-trailers error)))
        (is (eq :ok (grpc:call-status server-end)))))))
