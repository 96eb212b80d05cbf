;;;; Calls that are their own futures, without a transport.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.calling)

(defstruct (future-call (:include test-call))
  (completions '()))

(loop:define-completions (call future-call) (future-call-completions call))

(defun new-future (&key (reply :reply))
  "A client's call that is its own future, with REPLY."
  (make-future-call :rpc-method *test-method*
                    :operations (call-operations-of
                                 (new-call :client-p t :future-p (constantly t)
                                           :reply-of-future (constantly reply)
                                           :reserve-of-future (constantly nil)))))

(defun call-operations-of (call)
  (rpc::call-operations call))

(test a-future-is-its-call
  (let ((future (new-future)))
    (is (search "pending /s.S/M" (princ-to-string future)))
    (is (not (loop:future-done-p future)))
    (rpc:end-call future :ok)
    (is-true (loop:future-done-p future))
    (is (not (search "pending" (princ-to-string future))))
    (is (equal (list :reply future) (multiple-value-list (loop:await future))))))

(test a-future-fails-as-its-call
  (let ((future (new-future)))
    (rpc:end-call future :aborted :message "why")
    (loop repeat 2 do (signals status:aborted (loop:await future))))
  (let ((future (new-future :reply (status:make-rpc-error :internal))))
    (rpc:end-call future :ok)
    (signals status:internal (loop:await future))))

(test completions-run-without-a-reserve
  (let ((future (new-future)) (outcomes '()))
    (loop:attach future (fn (reply &rest _others) (push reply outcomes)))
    (rpc:end-call future :ok)
    (is (equal '() outcomes))
    (loop:run-completions future)
    (is (equal '(:reply) outcomes))))

(test call-async-says-what-it-takes
  (dolist (arguments (list '() (list #'list) (list #'list nil)))
    (is (search "takes a stub, a channel and a request"
                (handler-case (progn (apply #'calling:call-async arguments) "")
                  (misuse (error) (princ-to-string error))))))
  (is (equal '(function channel request &rest options)
             (mapcar (lambda (name)
                       (if (member name lambda-list-keywords) name (intern (string name))))
                     (sb-kernel:%fun-lambda-list #'calling:call-async)))))

(test only-some-calls-are-futures
  (signals misuse (loop:await (new-call)))
  (signals misuse (loop:await (new-call :client-p t :future-p (constantly nil))))
  (let ((cancelled '()))
    (flet ((stub (channel request &key async)
             (declare (ignore channel request))
             (is-true async)
             (new-call :client-p t :future-p (constantly nil)
                       :abort (fn (_call status _text _ended-by) (push status cancelled)))))
      (signals misuse (calling:call-async #'stub nil nil))
      (is (equal '(:cancelled) cancelled)))))
