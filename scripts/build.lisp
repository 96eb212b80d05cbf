;;;; Save the `clgrpc` command as an executable core. The name of the file comes from CLGRPC_OUTPUT.
;;;; It is rehearsed before; where that cannot be, as without a loopback device, its first calls are
;;;; slower.

(load (merge-pathnames "load.lisp" *load-truename*))
(in-package #:clgrpc.scripts)

;; a newer SBCL that warns of more is no reason not to have the command
(load-strictly "clgrpc-tools" :strict *familiar-lisp-p*)
(handler-case (unless (uiop:symbol-call '#:clgrpc.tools '#:rehearse)
                (format t "~&The rehearsal went wrong.~%"))
  (error (condition) (format t "~&No rehearsal: ~A~%" condition)))
(sb-ext:save-lisp-and-die (uiop:getenvp "CLGRPC_OUTPUT")
                          :executable t
                          :save-runtime-options t
                          :toplevel (fdefinition (uiop:find-symbol* '#:main '#:clgrpc.tools)))
