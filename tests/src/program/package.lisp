;;;; Tests of servers as programs: processes that a signal ends.

(defpackage #:clgrpc.tests.program
  (:use #:cl #:clgrpc.tests.form)
  (:local-nicknames (#:grpc #:clgrpc) (#:support #:clgrpc.tests.support)
                    (#:loop #:clgrpc.loop) (#:program #:clgrpc.program)))

(in-package #:clgrpc.tests.program)

(def-suite :clgrpc.program :description "A server as a program, from its command line to its end.")

(defun script-arguments (script &rest arguments)
  "The arguments of SBCL with which it runs SCRIPT, a file here, with ARGUMENTS."
  (list* "--noinform" "--end-runtime-options" "--non-interactive" "--no-sysinit" "--no-userinit"
         "--load" (support:root-file "scripts/load.lisp")
         "--load" (support:root-file (format nil "tests/src/program/~A" script))
         "--end-toplevel-options" arguments))

(defmacro with-greeter ((program address &rest arguments) &body body)
  "Run BODY while greeter.lisp runs with ARGUMENTS and listens at ADDRESS."
  `(support:call-with-program
    (lambda (,program)
      (let ((,address (support:server-address ,program)))
        (declare (ignorable ,address))
        ,@body))
    sb-ext:*runtime-pathname*
    (script-arguments "greeter.lisp" "--listen" "127.0.0.1:0" ,@arguments)))

(defun last-lines (program)
  "The text that PROGRAM prints until it ends."
  (format nil "~{~A~%~}" (loop for line = (support:program-line program) while line collect line)))

(defun greet (channel name &key (timeout 10))
  (helloworld:hello-reply-message
   (helloworld.greeter:say-hello channel (helloworld:make-hello-request :name name)
                                 :timeout timeout)))
