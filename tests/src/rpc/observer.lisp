;;;; Observers alone: valid arguments, the observers that are called, the effect of an error in one.

(in-package #:clgrpc.tests.rpc)

(test observers-are-told-what-they-ask-for
  (let* ((told '())
         (observer (rpc:make-observer :refused (lambda (option peer)
                                                 (push (list option peer) told)))))
    (is (null (rpc:observe refused observer :max-calls "x")))
    (is (null (rpc:observe message-sent observer nil 5)))
    (is (null (rpc:observe refused nil :max-calls "y")))
    (is (equal '((:max-calls "x")) told))
    (is (search "refused" (princ-to-string observer)))
    (is (eq observer (rpc:check-observer observer)))
    (is (null (rpc:check-observer nil)))
    (is (equal (list observer) (rpc:check-observer (list observer nil (list observer))))
        "each once")))

(test observers-are-joined-in-their-order
  (let* ((told '())
         (one (rpc:make-observer :refused (fn (option _peer) (push (list 1 option) told))))
         (two (rpc:make-observer :refused (fn (option _peer) (push (list 2 option) told))
                                 :message-sent (fn (_call octets) (push octets told))))
         (both (rpc:observer-for (list one nil two) :role :server)))
    (rpc:observe refused both :a nil)
    (rpc:observe message-sent both nil 5)
    (is (equal '(5 (2 :a) (1 :a)) told))
    (is (eq one (rpc:observer-for (list nil one))))
    (is (null (rpc:observer-for '(nil nil))))))

(test what-is-no-observer-is-refused
  (signals misuse (rpc:make-observer :no-such-thing #'list))
  (signals misuse (rpc:make-observer :refused 5))
  (signals misuse (rpc:check-observer #'list))
  (signals misuse (rpc:check-observer (list nil #'list)))
  (signals misuse (rpc:check-observer (cons nil 5)))
  (signals misuse (rpc:observer-for #'list)))

(test what-is-told-is-evaluated-only-for-somebody
  (let ((count 0))
    (rpc:observe message-sent nil nil (incf count))
    (is (zerop count))))

(test an-error-in-an-observer-goes-to-the-log
  (with-logged (events :observer-error)
    (finishes (rpc:observe refused (rpc:make-observer :refused (fn (_option _peer) (error "no")))
                           :max-calls "x"))
    (is (equal '(:observer-error) (mapcar #'second (events))))))
