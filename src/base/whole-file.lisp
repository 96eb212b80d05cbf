;;;; Files that are read whole, up to a limit: a path may name a file longer than the heap, or a
;;;; device without end.

(in-package #:clgrpc.base)

(defconstant +most-file-octets+ 67108864
  "The maximum length in octets of a file that is read whole, unless its reader has another limit.")

(define-condition file-too-long (clgrpc-error)
  ((most :initarg :most))               ; the limit
  (:report (lambda (condition stream)
             (format stream "it is longer than ~D octets" (slot-value condition 'most))))
  (:documentation "A file that is read whole has more octets than its reader allows."))

(defun file-octets (source &key (most +most-file-octets+))
  "Return the octets of SOURCE, a stream of octets or the path of a file, native if it is a string.
Signal FILE-TOO-LONG if it has more than MOST octets, and another error if it cannot be read. From
any thread."
  (if (streamp source)
      (loop with buffer = (make-buffer)
            with part = (make-octets 65536)
            for count = (read-sequence part source)
            while (plusp count)
            do (append-octets buffer part :end count)
               (when (< most (buffer-fill buffer))
                 (error 'file-too-long :most most))
            finally (return (subseq-octets (buffer-octets buffer) (buffer-start buffer)
                                           (buffer-end buffer))))
      (with-open-file (stream (if (stringp source) (sb-ext:parse-native-namestring source) source)
                              :element-type 'octet)
        (file-octets stream :most most))))
