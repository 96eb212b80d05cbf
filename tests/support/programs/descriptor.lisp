;;;; How many descriptors this process may have, for tests that have it run out of them.

(in-package #:clgrpc.tests.support)

(defun set-descriptor-limit (count)
  "Allow this process COUNT descriptors; return how many it was allowed before."
  (sb-alien:with-alien ((limit (array (sb-alien:unsigned 64) 2)))
    (macrolet ((call (name)
                 `(sb-alien:alien-funcall
                   (sb-alien:extern-alien ,name (function sb-alien:int sb-alien:int
                                                          (* (array (sb-alien:unsigned 64) 2))))
                   7 (sb-alien:addr limit)))) ; RLIMIT_NOFILE
      (call "getrlimit")
      (let ((before (sb-alien:deref limit 0)))
        (setf (sb-alien:deref limit 0) count)
        (call "setrlimit")
        before))))
