;;;; What is on its way between two threads.

(in-package #:clgrpc.tests.inproc)
(in-suite :clgrpc.inproc)

(test bidi-in-two-threads
  (let ((thread nil))
    (with-inproc (channel)
        (:chat (lambda (stream call)
                 (setf thread sb-thread:*current-thread*)
                 (echo stream call)))
      (let ((call (chat channel :open)))
        (dotimes (i 1000)
          (grpc:send call (note i))
          (is (= i (number-of (grpc:receive call)))))
        (grpc:close-send call)
        (is (null (grpc:receive call)))
        (is (not (this-thread-p thread)))))))

(test room-for-what-nobody-has-taken
  "A sender that does not wait is refused once its budget is used up, and told when half of that is
free; what was accepted comes in order, the mail among it."
  (let ((accepted 0) (told 0) (done (make-signal)))
    (with-inproc (channel :options '(:send-budget-octets 65536))
        (:watch (lambda (note call)
                  (declare (ignore note))
                  (flet ((fill-up ()
                           (loop while (and (< accepted 200)
                                            (grpc:try-send call (note accepted :body 1000)))
                                 do (incf accepted))
                           (incf told)
                           (signal-it done)
                           (when (= accepted 200) (grpc:finish call))))
                    (grpc:on-writable call #'fill-up)
                    call)))
      (let ((call (lab.bench:watch channel (note 1))))
        (grpc:call-metadata call)
        (wait-until (lambda () (plusp told)))
        (is (< 0 accepted 100))
        (is (equal (loop for i below 200 collect i) (numbers call)))
        (is (= 200 accepted))
        (is (< 1 told 100))))))
