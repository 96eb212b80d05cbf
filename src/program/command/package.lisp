;;;; Command lines: arguments are declared; parsers, error messages and help texts are made from the
;;;; declarations. The command `clgrpc` and the programs of users (RUN-SERVER) share this code. A
;;;; wrong argument is a USAGE-ERROR: a line on the standard error and exit code 2.

(defpackage #:clgrpc.command
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:import-from #:sb-ext #:defglobal)
  (:local-nicknames (#:loop #:clgrpc.loop))
  (:export
   ;; usage.lisp
   #:usage-error #:usage-error-text #:refuse
   ;; value-parser.lisp
   #:integer-parser #:parse-boolean #:parse-decimal #:parse-duration #:parse-seconds
   #:parse-ratio #:choice-parser #:limit-parser #:parse-limits #:address-parser #:addresses-parser
   ;; argument.lisp
   #:argument #:argument-default #:argument-key #:argument-name
   #:command #:make-command #:command-name #:command-documentation #:command-function
   #:command-options #:command-parameters
   #:define-shared-options #:option-variables #:option-list #:parameter-list
   #:option-with-default
   ;; group.lisp
   #:add-group #:all-group-options #:observers-of-groups #:call-with-groups
   ;; line.lisp
   #:parse-arguments
   ;; help.lisp
   #:write-command-help #:argument-description))
