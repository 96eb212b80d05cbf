;;;; Messages on their way between two threads.

(in-package #:clgrpc.tests.inproc)

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
  "A sender that does not wait is refused once its budget is used up, and notified when half of that
is free; accepted messages arrive in order, those of the mailbox among them."
  (let ((accepted 0) (told 0) (done (make-signal)))
    (with-inproc (channel :options '(:send-budget-octets 65536))
        (:watch (fn (_note call)
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

(test room-at-a-reactive-handler
  "A client that reads no answers cannot send for ever: once the answers have used up the handler's
budget, its own messages wait and are charged."
  (with-inproc (channel :options '(:send-budget-octets 65536)
                        :channel-options '(:send-budget-octets 65536))
      (:chat (lambda (stream call) (echo-reactively stream call)))
    ;; the channel learns from the first call that the handler is reactive
    (dotimes (i 3)
      (let ((call (chat channel :open)))
        (grpc:send call (note 0))
        (is (= 0 (number-of (grpc:receive call))))
        (let ((sent (loop for i from 1 to 10000
                          while (grpc:try-send call (note i :body 100))
                          count t)))
          (is (< 100 sent 5000))
          (is-true (loop for i from 1 to sent always (= i (number-of (grpc:receive call))))))
        (grpc:close-send call)
        (is (null (grpc:receive call)))))))
