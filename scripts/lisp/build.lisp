;;;; Save the command `clgrpc` as an executable core, CLGRPC_OUTPUT, and as another, CLGRPC_TESTEE,
;;;; the command with test peers: a forked process saves the systems that are loaded for the first,
;;;; while this one loads the rest. The command is rehearsed before; where that is impossible, as
;;;; without a loopback device, its first calls are slower. Documentation, and what a debugger needs
;;;; to show a place in a source, are left out: a command shows neither.

(load (merge-pathnames "../load.lisp" *load-truename*))
(in-package #:clgrpc.scripts)

;; the command is built all the same if a newer SBCL warns of more
(load-strictly "clgrpc-tools" :strict *familiar-lisp-p*)
(handler-case (unless (uiop:symbol-call '#:clgrpc.tools '#:rehearse)
                (format t "~&The rehearsal went wrong.~%"))
  (error (condition) (format t "~&No rehearsal: ~A~%" condition)))

(defun forget-documentation ()
  "Delete the documentation of all functions, variables and types."
  (sb-ext:without-package-locks
    (do-all-symbols (symbol)
      (dolist (kind '(function variable type structure setf))
        (when (documentation symbol kind)
          (setf (documentation symbol kind) nil))))))

(defun forget-places ()
  "Delete what the debugger knows of places within functions. Backtraces do without it in the SBCL
that the code is written for; in others nothing is deleted."
  (when *familiar-lisp-p*
    (let ((class (find-class (find-symbol "COMPILED-DEBUG-FUN" '#:sb-c)))
          (functions '()))
      (uiop:symbol-call '#:sb-vm '#:map-allocated-objects
                        (lambda (object type size)
                          (declare (ignore type size))
                          (when (typep object class) (push object functions)))
                        :all)
      (dolist (function functions)
        (setf (slot-value function (find-symbol "BLOCKS" '#:sb-c)) nil)))))

(defun save (variable)
  "Save this process as the executable that the environment's VARIABLE names."
  (forget-documentation)
  (forget-places)
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
