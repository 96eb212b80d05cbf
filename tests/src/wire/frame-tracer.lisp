;;;; The frames that tracers log.

(in-package #:clgrpc.tests.wire)

(test frames-are-told-both-ways
  "Each frame once, with its kind, whole or in pieces; none while the tracer is off."
  (let ((told '()) (before (tracers)))
    (flet ((frames (event)
             (loop for (name . plist) in (reverse (shiftf told '()))
                   when (eq event name) collect (getf plist :frame))))
      (let ((*log-function* (fn (_level event &rest plist) (push (cons event plist) told))))
        (with-link (link)
          (memory:hears '(:ping 1))
          (is (null told))
          (unwind-protect
               (progn
                 (setf (tracers) "http")
                 (memory:hears '(:ping 2) '(:ping 3))
                 (is (equal '("PING" "PING") (remove-if-not #'stringp (frames :frame-received))))
                 ;; short frames of a message, which the core would take as one
                 (calls 1)
                 (apply #'memory:hears (loop repeat 3 collect `(:data 1 ,(octets-of 0))))
                 (is (equal '("HEADERS" "DATA" "DATA" "DATA") (frames :frame-received)))
                 (let ((octets (dialogue:frames-octets (memory:peer-of memory:*end*)
                                                       '((:ping 4)))))
                   (loop for octet across octets
                         do (memory:say memory:*world* memory:*end* (octets-of octet)))
                   (let ((sent (remove-if-not (lambda (row) (eq :frame-sent (first row))) told)))
                     (is (= 1 (length sent))))
                   (is (equal '("PING") (frames :frame-received)))))
            (setf (tracers) before))
          (memory:hears '(:ping 5))
          (is (null told)))))))
