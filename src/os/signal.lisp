;;;; Signals. SBCL runs a handler in whatever thread the kernel chose, when it is next safe to run
;;;; Lisp there. It may have interrupted anything, so all it should do is post to a loop.

(in-package #:clgrpc.os)

(defun handle-signal (signal function)
  "Call FUNCTION, without arguments and in any thread, whenever the process gets SIGNAL; this
replaces what happened before."
  (declare (type function function))
  (sb-sys:enable-interrupt signal (lambda (signal information context)
                                    (declare (ignore signal information context))
                                    (funcall function))))

(defun reset-signal (signal)
  "Give SIGNAL its default action again: the kernel's, or of SIGINT, with which C-c comes, the
Lisp's."
  (sb-sys:enable-interrupt signal (if (= signal +sigint+)
                                      (fdefinition (find-symbol "SIGINT-HANDLER" '#:sb-unix))
                                      :default)))
