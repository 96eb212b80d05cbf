;;;; The entry point of the saved core.

(in-package #:clgrpc.tools)

(defun text-stream (descriptor)
  "A stream that writes UTF-8 to DESCRIPTOR, whatever the locale."
  (sb-sys:make-fd-stream descriptor :output t :buffering :line
                                    :external-format '(:utf-8 :replacement #\?)))

(defun main ()
  "Run the command line of this process and exit with its code. This is the toplevel function of
bin/clgrpc."
  (sb-ext:disable-debugger)
  (setf *standard-output* (text-stream 1)
        *error-output* (text-stream 2))
  (let ((code (handler-case (run-command (called-arguments sb-ext:*posix-argv*))
                (sb-sys:interactive-interrupt () 130))))
    (ignore-errors (finish-output))
    (ignore-errors (finish-output *error-output*))
    (sb-ext:exit :code code :abort t)))
