;;;; The entry point of the saved core.

(in-package #:clgrpc.tools)

(defun make-standard-input ()
  "A stream that reads the standard input as UTF-8, whatever the locale."
  (sb-sys:make-fd-stream 0 :input t :name "standard input" :buffering :full
                           :external-format '(:utf-8 :replacement #\?)))

(defun open-standard-descriptors ()
  "If the caller has closed descriptors 0, 1 or 2, open /dev/null for reading in their places: then
input is at its end, and writing fails. Otherwise SBCL would wait for ever for octets from a closed
descriptor, and the next file that is opened would get its number."
  (loop for descriptor = (sb-unix:unix-open "/dev/null" sb-unix:o_rdonly 0)
        while (and descriptor (<= descriptor 2))
        finally (when descriptor (sb-unix:unix-close descriptor))))

(defun finish-command (code)
  "Write the rest of the output; return CODE, or 1 if a write fails."
  (handler-case (progn (finish-output) code)
    (stream-error (error) (complain nil error) 1)))

(defun main ()
  "Run the command line of this process and exit with its code. MAIN is the toplevel function of
bin/clgrpc."
  (sb-ext:disable-debugger)
  (open-standard-descriptors)
  (setf *standard-input* (make-standard-input)
        *standard-output* (make-standard-output)
        *error-output* (make-standard-error))
  ;; SBCL's own handler exits with 0, which passes for success. This thread unwinds first, while the
  ;; threads that run loops still exist
  (os:handle-signal os:+sigterm+
                    (lambda ()
                      (sb-thread:interrupt-thread
                       (sb-thread:main-thread)
                       (lambda () (sb-ext:exit :code +exit-terminated+)))))
  (profile:start-agent-if-asked)
  (let ((code (with-unread-output
                (handler-case (finish-command (run-command
                                               (called-arguments sb-ext:*posix-argv*)))
                  (sb-sys:interactive-interrupt ()
                    ;; aborted, since the streams may still have octets that were written: perhaps a
                    ;; write was under way
                    (sb-ext:exit :code 130 :abort t))))))
    (program:write-everything)
    (sb-ext:exit :code code :abort t)))
