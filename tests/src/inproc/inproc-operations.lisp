;;;; The operations of the contract, where these ends differ from others.

(in-package #:clgrpc.tests.inproc)

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
