;;;; The standard input, and files that options name, read whole. Input that cannot be read, or is
;;;; too long, is refused.

(in-package #:clgrpc.tools)

(defun octet-input ()
  "A stream of the octets of the standard input."
  (sb-sys:make-fd-stream 0 :input t :element-type 'octet :buffering :full))

(defun read-input (name function)
  "Call FUNCTION, which reads the input called NAME, and return its value. Signal an error if the
input cannot be read."
  (handler-case (funcall function)
    (error (error) (refuse "~A cannot be read: ~A" name (report:error-reason error)))))

(defun read-standard-octets (&rest limit)
  "The octets of the standard input; LIMIT is that of FILE-OCTETS."
  (read-input "the standard input" (lambda () (apply #'file-octets (octet-input) limit))))

(defun read-standard-text (&key (most (ash 1 26)))
  "The text of the standard input, which may have at most MOST characters."
  (flet ((text ()
           (with-output-to-string (text)
             (loop with part = (make-string 65536)
                   for count = (read-sequence part *standard-input*)
                   sum count into read
                   while (plusp count)
                   do (when (< most read)
                        (fail-command "it is longer than ~D characters" most))
                      (write-string part text :end count)))))
    (read-input "the standard input" #'text)))

(defun read-octets-file (file)
  (read-input file (lambda () (file-octets file))))

(defun read-text-file (file &rest limit)
  "The text of FILE, which must be UTF-8; LIMIT is that of FILE-OCTETS."
  (read-input file (lambda () (octets-string (apply #'file-octets file limit)))))
