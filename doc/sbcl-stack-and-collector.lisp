;;;; What SBCL does not survive, as far as 2.6.7: a collection of garbage that begins while another
;;;; thread is at the end of its stack. It has threads stop by a signal, whose handler runs on the
;;;; control stack. Near the guard page the kernel finds no room for the signal's frame and sends
;;;; SIGSEGV instead, at no address: "Memory fault at (nil)", or the handler itself runs into the
;;;; guard page: "Enabling blocked gc signals", or "Control stack exhausted with gc_active_p". Then
;;;; the process ends, or hangs in the next collection. Nothing in Lisp can prevent it but not to
;;;; exhaust stacks.
;;;;
;;;; usage: sbcl --noinform --disable-ldb --non-interactive --load doc/sbcl-stack-and-collector.lisp
;;;; It takes seconds to minutes; all of SBCL 2.2.9, 2.6.4 and 2.6.7 on x86-64 come to that end.

(declaim (notinline dig))
(defun dig (n) (1+ (dig (1+ n))))

(defvar *exhausted* (list 0))

(defun exhaust-for-ever ()
  (loop (handler-case (dig 0)
          (storage-condition () (sb-ext:atomic-incf (car *exhausted*))))))

(loop repeat 2 do (sb-thread:make-thread #'exhaust-for-ever))
(loop repeat 1000000 do (sb-ext:gc))
(format t "~D stacks were exhausted, and all is well.~%" (car *exhausted*))
(sb-ext:exit :abort t)
