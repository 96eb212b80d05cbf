;;;; Observers by themselves: what may be given, who is told, what an error in one does.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.rpc)

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
    (is (null (rpc:check-observer nil)))))

(test what-is-no-observer-is-refused
  (signals misuse (rpc:make-observer :no-such-thing #'list))
  (signals misuse (rpc:make-observer :refused 5))
  (signals misuse (rpc:check-observer #'list)))

(test what-is-told-is-evaluated-only-for-somebody
  (let ((count 0))
    (rpc:observe message-sent nil nil (incf count))
    (is (zerop count))))

(test an-error-in-an-observer-goes-to-the-log
  (let* ((events '())
         (*log-function* (lambda (level event &rest plist)
                           (declare (ignore level plist))
                           (push event events)))
         (observer (rpc:make-observer :refused (lambda (option peer)
                                                 (declare (ignore option peer))
                                                 (error "no")))))
    (finishes (rpc:observe refused observer :max-calls "x"))
    (is (equal '(:observer-error) events))))
