;;;; The examples of users of the loop, run.

(in-package #:clgrpc.tests.loop)
(in-suite :clgrpc.loop)

(test delayed-answers
  (let* ((answers '())
         (output
           (with-output-to-string (*standard-output*)
             (clgrpc.examples.delayed-answer:run
              :port 0 :request-delay 0.05 :requests 20 :report 0.1
              :on-start (lambda (server)
                          (dotimes (i 20)
                            (tcp-connect "127.0.0.1" (server-port server)
                                         (lambda (socket octets)
                                           (declare (ignore socket))
                                           (push (octets-string octets) answers))
                                         :data (format nil "GET /~%~%"))))))))
    (is (= 20 (length answers)))
    (is (every (lambda (answer) (search "later" answer)) answers))
    (is (search "answered: 20 of 20" output))))
