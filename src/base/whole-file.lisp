;;;; Files that are read whole, up to a limit: a path may name a file longer than the heap, or a
;;;; device without end.

(in-package #:clgrpc.base)

(defconstant +most-file-octets+ 67108864
  "The most octets of a file that is read whole, unless its reader has another limit.")

(defun file-octets (source &key (most +most-file-octets+))
  "Return the octets of SOURCE, the path of a file or a stream of octets. Signal an error if there
are more than MOST, or they cannot be read. From any thread."
  (if (streamp source)
      (loop with buffer = (make-buffer)
            with part = (make-octets 65536)
            for count = (read-sequence part source)
            while (plusp count)
            do (append-octets buffer part :end count)
               (when (< most (buffer-fill buffer))
                 (error "it is longer than ~D octets" most))
            finally (return (subseq-octets (buffer-octets buffer) (buffer-start buffer)
                                           (buffer-end buffer))))
      (with-open-file (stream source :element-type 'octet)
        (file-octets stream :most most))))
