;;;; Save the command `clgrpc` as an executable core, CLGRPC_OUTPUT, and as another, CLGRPC_TESTEE,
;;;; the command with test peers: a forked process saves the systems that are loaded for the first,
;;;; while this one loads the rest. The command is rehearsed before; where that is impossible, as
;;;; without a loopback device, its first calls are slower.

(load (merge-pathnames "../load.lisp" *load-truename*))
(in-package #:clgrpc.scripts)

;; the command is built all the same if a newer SBCL warns of more
(load-strictly "clgrpc-tools" :strict *familiar-lisp-p*)
(handler-case (unless (uiop:symbol-call '#:clgrpc.tools '#:rehearse)
                (format t "~&The rehearsal went wrong.~%"))
  (error (condition) (format t "~&No rehearsal: ~A~%" condition)))

(defun save (variable)
  "Save this process as the executable that the environment's VARIABLE names."
  (sb-ext:save-lisp-and-die (uiop:getenvp variable)
                            :executable t
                            :save-runtime-options t
                            :toplevel (fdefinition (uiop:find-symbol* '#:main '#:clgrpc.tools))))

(require :sb-posix)
(let ((saving (uiop:symbol-call '#:sb-posix '#:fork)))
  (when (zerop saving) (save "CLGRPC_OUTPUT"))
  (load-strictly "clgrpc-tools/testee" :strict *familiar-lisp-p*)
  (unless (zerop (nth-value 1 (uiop:symbol-call '#:sb-posix '#:waitpid saving 0)))
    (quit 1)))
(save "CLGRPC_TESTEE")
