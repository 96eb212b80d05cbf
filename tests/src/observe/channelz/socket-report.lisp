;;;; The kernel's data about a socket.

(in-package #:clgrpc.tests.channelz)

(defun option-text (function octets &rest arguments)
  "The text that FUNCTION with ARGUMENTS returns for a socket for which the kernel gives OCTETS."
  (let ((message (with-replaced (('os:socket-option-octets
                                  (fn (_real &rest _arguments) octets)))
                   (apply function 0 arguments))))
    (and message (protobuf:message-text message))))

(test options-of-the-kernel
  "Each number that the kernel gives is reported as recorded; without one none is reported."
  (let ((counting (coerce (loop for i from 1 to 92 collect i) 'octets)))
    (support:check-record
     'options-of-the-kernel
     (format nil "~{~A~}"
             (list (option-text #'channelz::linger-option (octets-of 1 0 0 0 7 1 0 0))
                   (option-text #'channelz::linger-option (octets-of 0 0 0 0 7 0 0 0))
                   (option-text #'channelz::timeout-option
                                (octets-of 2 0 0 0 0 0 0 0 32 161 7 0 0 0 0 0) "SO_RCVTIMEO" 20)
                   (option-text #'channelz::timeout-option (make-octets 16) "SO_RCVTIMEO" 20)
                   (option-text #'channelz::tcp-info-option counting)
                   (option-text #'channelz::tcp-info-option (subseq counting 11)))))
    (dolist (function (list #'channelz::linger-option #'channelz::tcp-info-option))
      (is (null (option-text function nil))))))
