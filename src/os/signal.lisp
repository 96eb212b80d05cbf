;;;; Signals. SBCL runs a handler in whatever thread the kernel chose, when it is next safe to run
;;;; Lisp there: not while that thread allocates or has interrupts off. So it does for the signals
;;;; that it knows to be asynchronous (sigaddset_deferrable in interrupt.c). The handlers of others,
;;;; SIGUSR1 among them, it runs at once, which ends the process sooner or later; so we tell it of
;;;; those. That is not all: of these it takes a second one that comes while a handler waits for a
;;;; mistake, and ends the process. So SIGHUP and its like are for what may come often. A handler
;;;; may have interrupted anything, so all it should do is post to a loop.

(in-package #:clgrpc.os)

(defun defer-signal (signal)
  "Have SBCL take SIGNAL for asynchronous from now on: what handles it waits until that is safe."
  (dolist (name '("deferrable_sigset" "blockable_sigset")) ; each a bit for each signal from 1 on
    (let ((address (sb-sys:find-foreign-symbol-address name)))
      (when address
        (let ((set (int-sap address)))
          (setf (sb-sys:sap-ref-64 set 0)
                (logior (ash 1 (1- signal)) (sb-sys:sap-ref-64 set 0))))))))

(defun handle-signal (signal function)
  "Call FUNCTION, without arguments and in any thread, whenever the process gets SIGNAL; this
replaces what happened before."
  (declare (type function function))
  (defer-signal signal)
  (sb-sys:enable-interrupt signal (lambda (signal information context)
                                    (declare (ignore signal information context))
                                    (funcall function))))

(defun reset-signal (signal)
  "Give SIGNAL its default action again: the kernel's, or of SIGINT, with which C-c comes, the
Lisp's."
  (sb-sys:enable-interrupt signal (if (= signal +sigint+)
                                      (fdefinition (find-symbol "SIGINT-HANDLER" '#:sb-unix))
                                      :default)))
