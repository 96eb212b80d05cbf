;;;; Save the `clgrpc` command as an executable core. The name of the file comes from CLGRPC_OUTPUT.

(load (merge-pathnames "load.lisp" *load-truename*))
(in-package #:clgrpc.scripts)

;; a newer SBCL that warns of more is no reason not to have the command
(load-strictly "clgrpc/tools" :strict *familiar-lisp-p*)
(sb-ext:save-lisp-and-die (uiop:getenvp "CLGRPC_OUTPUT")
                          :executable t
                          :save-runtime-options t
                          :toplevel (fdefinition (uiop:find-symbol* '#:main '#:clgrpc.tools)))
