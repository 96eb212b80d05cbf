;;;; The standard input, and files that options name, read whole. Input that cannot be read, or is
;;;; too long, is refused.

(in-package #:clgrpc.tools)

(defun octet-input ()
  "A stream of the octets of the standard input."
  (sb-sys:make-fd-stream 0 :input t :element-type 'octet :buffering :full))

(defmacro refusing-unreadable ((name) &body body)
  "The value of BODY, which reads the input called NAME; refuse an input that BODY cannot read."
  `(handler-case (progn ,@body)
     (error (error) (refuse "~A cannot be read: ~A" ,name (report:error-reason error)))))

(defun read-standard-octets (&rest limit)
  "The octets of the standard input, with the LIMIT of FILE-OCTETS."
  (refusing-unreadable ("the standard input") (apply #'file-octets (octet-input) limit)))

(defun read-standard-text ()
  "The text of the standard input, at most 64 M characters."
  (refusing-unreadable ("the standard input")
    (with-output-to-string (text)
      (loop with part = (make-string 65536)
            with most = (ash 1 26)
            for count = (read-sequence part *standard-input*)
            sum count into read
            while (plusp count)
            do (when (< most read) (fail-command "it is longer than ~D characters" most))
               (write-string part text :end count)))))

(defun read-octets-file (file)
  (refusing-unreadable (file) (file-octets file)))

(defun read-text-file (file &rest limit)
  "The text of FILE, which is UTF-8, with the LIMIT of FILE-OCTETS."
  (refusing-unreadable (file) (octets-string (apply #'file-octets file limit))))
