;;;; A service manager's socket, to which programs send notices.

(in-package #:clgrpc.tests.support)

(defun call-with-service-manager (abstract function)
  "Call FUNCTION with the text for NOTIFY_SOCKET and a function that waits for the next notice and
returns its lines. The socket's name is in the abstract namespace if ABSTRACT is true."
  (let* ((name (format nil "clgrpc-notify-~36R" (random (expt 36 10) (make-random-state t))))
         (path (if abstract
                   (format nil "@~A" name)
                   (format nil "~A~A" (uiop:native-namestring (uiop:temporary-directory)) name)))
         (socket (if abstract
                     (make-instance 'sb-bsd-sockets:local-abstract-socket :type :datagram)
                     (make-instance 'sb-bsd-sockets:local-socket :type :datagram))))
    (sb-bsd-sockets:socket-bind socket (if abstract name path))
    (unwind-protect
         (funcall function path
                  (lambda ()
                    (multiple-value-bind (buffer length)
                        (sb-bsd-sockets:socket-receive socket nil 1000
                                                       :element-type '(unsigned-byte 8))
                      (uiop:split-string (map 'string #'code-char (subseq buffer 0 length))
                                         :separator '(#\Newline)))))
      (sb-bsd-sockets:socket-close socket)
      (unless abstract (uiop:delete-file-if-exists path)))))
