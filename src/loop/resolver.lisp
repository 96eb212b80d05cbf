;;;; Resolvers: a few threads that ask the system's resolver (getaddrinfo), which may take long.
;;;; They start when there is something to look up and end when there is nothing. A loop with a
;;;; reserve asks on a thread of that.

(in-package #:clgrpc.loop)

(defconstant +resolver-threads+ 4
  "How many look-ups are under way at once; others wait.")
(defconstant +waiting-look-ups+ 10000
  "How many may wait.")

(sb-ext:define-load-time-global **resolvers**
  (make-reserve :threads +resolver-threads+ :queue +waiting-look-ups+ :idle-seconds 0))

(defun run-on-resolver (loop function)
  "Have FUNCTION, which may block, called for LOOP. Return false if too many are waiting."
  (let ((reserve (event-loop-reserve loop)))
    (or (and reserve (run-on-reserve reserve function :if-busy :exceed))
        (run-on-reserve **resolvers** function))))

(defun look-up-host (loop host port function)
  "Ask for the addresses of HOST, each with PORT. Then (FUNCTION addresses failure) is called on
LOOP; FAILURE is nil or why there are none, as text."
  (flet ((answer (addresses failure)
           (post loop (lambda () (funcall function addresses failure)))))
    (unless (run-on-resolver loop (lambda ()
                                    (multiple-value-bind (addresses failure)
                                        (os:resolve-host host port)
                                      (answer addresses failure))))
      (answer '() "too many look-ups are waiting"))))
