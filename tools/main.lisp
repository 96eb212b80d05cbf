;;;; The entry point of the saved core.

(in-package #:clgrpc.tools)

(defun text-stream (descriptor direction)
  "A stream that reads or writes UTF-8 at DESCRIPTOR, whatever the locale; DIRECTION is :input or
:output."
  (sb-sys:make-fd-stream descriptor :input (eq direction :input) :output (eq direction :output)
                                    :name (aref #("standard input" "standard output"
                                                  "standard error")
                                                descriptor)
                                    :buffering (if (eq direction :input) :full :line)
                                    :external-format '(:utf-8 :replacement #\?)))

(defun open-standard-descriptors ()
  "Have those of descriptors 0 to 2 that the caller closed be /dev/null, open to read: input is at
its end, and writing fails. SBCL waits for ever for octets of a closed one, and what else is opened
would get its number."
  (loop for descriptor = (sb-unix:unix-open "/dev/null" sb-unix:o_rdonly 0)
        while (and descriptor (<= descriptor 2))
        finally (when descriptor (sb-unix:unix-close descriptor))))

(defun main ()
  "Run the command line of this process and exit with its code. This is the toplevel function of
bin/clgrpc."
  (sb-ext:disable-debugger)
  (open-standard-descriptors)
  (setf *standard-input* (text-stream 0 :input)
        *standard-output* (text-stream 1 :output)
        *error-output* (text-stream 2 :output))
  (profile:start-agent-if-asked)
  (let ((code (handler-case (run-command (called-arguments sb-ext:*posix-argv*))
                (sb-sys:interactive-interrupt ()
                  ;; what is in the streams may have been written: it was being so, perhaps
                  (sb-ext:exit :code 130 :abort t)))))
    (flush-log)
    (ignore-errors (finish-output))
    (ignore-errors (finish-output *error-output*))
    (sb-ext:exit :code code :abort t)))
