;;;; Unary calls: their values, the texts of their errors, their allocation.

(in-package #:clgrpc.tests.inproc)

(test second-values-are-calls
  (with-inproc (channel)
      (:ask (lambda (note call)
              (when (= 1 (number-of note)) (setf (grpc:call-trailers call) '(("x-t" . "u"))))
              note))
    (dotimes (i 2)
      (let ((call (nth-value 1 (ask channel (note i)))))
        (is (eq :ok (grpc:call-status call)))
        (is (null (grpc:call-metadata call)))
        (is (equal (if (= i 1) '(("x-t" . "u")) '()) (grpc:call-trailers call)))
        (is (search "inproc:" (grpc:call-peer call)))
        (is (null (grpc:call-security call)))
        (is (null (grpc:cancel call)))
        (is (eq :ok (grpc:call-status call)))))))

(test requests-that-are-none-leave-no-call-behind
  "However the call is made, the server has no call under way after its request was refused."
  (dolist (options '(() (:threads t)))
    (with-inproc (channel :channel-options options)
        (:ask (handling (note) note)
         :watch (lambda (note call) (grpc:send call note)))
      (signals grpc:misuse (ask channel 5))
      (signals grpc:misuse (ask channel 5 :values '(:a 1)))
      (signals grpc:misuse (watch channel 5))
      (is-false (nth-value 1 (clgrpc.serving:acceptor-state
                              (inproc::callee-of (inproc::channel-inproc-core channel))))))))

(test errors-say-what-calls-were-at
  "The stage is there, without times."
  (with-inproc (channel)
      (:ask (handling (note)
              (when (= 1 (number-of note)) (grpc:fail :not-found "none"))
              note))
    (let ((error (caught (ask channel (note 1)))))
      (is (equal '(:stage :answer) (grpc:rpc-error-stages error)))
      (is (string= "waiting for the handler" (grpc:rpc-error-reason error)))
      (is (search "NOT_FOUND: none" (princ-to-string error)))
      (is (search "waiting for the handler" (princ-to-string error))))
    (let ((call (nth-value 1 (ask channel (note 2)))))
      (is (null (grpc:call-stages call))))))

(defclass plain-bench (lab:bench) ())

(defmethod lab.bench:ask ((service plain-bench) note &key)
  note)

(test unary-calls-allocate-little
  "At most 170 octets beside the messages."
  (let ((channel (grpc:service-channel (make-instance 'plain-bench))))
    (let* ((note (note 1))
           (message (octets-consed (lambda () (grpc:copy-message note))))
           (whole (octets-consed (lambda () (lab.bench:ask channel note)))))
      (is (<= (- whole (* 2 message)) 170) "~,1F octets, ~,1F of them messages" whole
          (* 2 message)))))

(defun octets-consed (function)
  "The octets that FUNCTION allocates each time: the least of a few rounds."
  (declare (type function function))
  (loop repeat 5
        minimize (let ((before (sb-ext:get-bytes-consed)))
                   (loop repeat 100000 do (funcall function))
                   (/ (- (sb-ext:get-bytes-consed) before) 100000.0))))
