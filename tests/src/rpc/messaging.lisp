;;;; The user's operations on a call without a transport (call.lisp), and misuse.

(in-package #:clgrpc.tests.rpc)

(test leaving-messages
  "DO-MESSAGES cancels a call only if it is left early; its result form is evaluated at the end."
  (let* ((left 0)
         (call (new-call :leave (lambda (call) (declare (ignore call)) (incf left)))))
    (dolist (item '(1 2 3)) (rpc:push-incoming call item 1))
    (is (= 1 (rpc:do-messages (item call) (return item))))
    (is (= 1 left))
    (rpc:end-call call :ok)
    (let ((items '()))
      (is (eq :done (rpc:do-messages (item call :done) (push item items))))
      (is (equal '(3 2) items)))
    (is (= 1 left))
    (is (= 5 (rpc:with-call (call call) (rpc:call-status call) 5)))
    (is (= 2 left))))

(test an-answer-is-not-a-call
  "If a unary stub's reply is used as a call, the error says that the call is the second value."
  (flet ((complaint (function)
           (handler-case (progn (funcall function) nil)
             (misuse (error) (princ-to-string error)))))
    (dolist (complaint (list (complaint (lambda () (rpc:receive :reply)))
                             (complaint (lambda () (rpc:send :reply 1)))
                             (complaint (lambda () (rpc:try-send :reply 1)))
                             (complaint (lambda () (rpc:do-messages (item :reply) item)))
                             (complaint (lambda () (rpc:with-call (call :reply) call)))))
      (is (search ":REPLY is not a call." complaint))
      (is (search "call as second value" complaint)))))

(test arguments-are-checked-before-the-call-is-touched
  "Another object in place of a call or callback is MISUSE, which names the arguments."
  (flet ((complaint (function &rest arguments)
           (handler-case (progn (apply function arguments) "")
             (misuse (error) (princ-to-string error)))))
    (dolist (function (list #'rpc:call-metadata #'rpc:close-send #'rpc:cancelled-p #'rpc:finish
                            #'rpc:time-remaining #'rpc:call-compression #'rpc:filter-messages
                            (lambda (call) (rpc:reply call 1))
                            (lambda (call) (rpc:send-metadata call '()))
                            (lambda (call) (rpc:on-message call #'list))
                            (lambda (call) (rpc:on-half-close call #'list))
                            (lambda (call) (rpc:on-cancel call #'list))
                            (lambda (call) (rpc:on-writable call #'list))
                            (lambda (call) (rpc:on-end call #'list))
                            (lambda (call) (rpc:after call 1 #'list))))
      (is (search "#(1) is not a call. A handler has its call in the keyword argument CALL."
                  (complaint function (vector 1)))))
    (let ((call (new-call)))
      (is (search "ON-MESSAGE takes a call and a function, not \"f\"."
                  (complaint #'rpc:on-message call "f")))
      (is (search "ON-END takes a call and a function, not LIST: #'LIST is its function."
                  (complaint #'rpc:on-end call 'list)))
      (is (search "a function, not NIL." (complaint #'rpc:on-cancel call nil)))
      (is (search "SECONDS of AFTER" (complaint #'rpc:after call nil #'list))))))

(test time-remaining
  (let ((call (new-call)))
    (is (null (rpc:time-remaining call)))
    (setf (rpc:call-deadline call) (+ (monotonic-ns) 1000000000))
    (is (< 0.9 (rpc:time-remaining call) 1.0001))
    (setf (rpc:call-deadline call) (- (monotonic-ns) 1000000000))
    (is (< (rpc:time-remaining call) 0))))

(test what-a-transport-lacks
  (let ((call (new-call)))
    (signals misuse (rpc:send call 1))
    (signals misuse (rpc:reply call 1))
    (signals misuse (rpc:finish call :status :bad))
    (signals misuse (rpc:finish call :details "x"))
    (is (search "open" (princ-to-string call)))))

(test filters-are-in-the-order-of-interceptors
  "The function of an outer interceptor sees an incoming message first, and an outgoing one last."
  (flet ((tagging (tag) (lambda (message) (append message (list tag)))))
    (let ((call (new-call)))
      (rpc:filter-messages call :incoming (tagging :outer) :outgoing (tagging :outer))
      (rpc:filter-messages call :incoming (tagging :inner) :outgoing (tagging :inner))
      (rpc:push-incoming call '(1) 1)
      (is (equal '(1 :outer :inner) (rpc:receive call)))
      (is (equal '(1 :inner :outer) (rpc:outgoing call '(1)))))))
