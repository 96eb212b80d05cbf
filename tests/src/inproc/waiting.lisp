;;;; Calls that are opened and left alone.

(in-package #:clgrpc.tests.inproc)

(test calls-left-alone-begin
  "A client may wait for what the handler does otherwise than by waiting for the call."
  (let ((begun (make-signal)) (received (make-signal)))
    (with-inproc (channel)
        (:chat (lambda (stream call)
                 (signal-it begun)
                 (grpc:do-messages (note stream)
                   (signal-it received)
                   (grpc:send call note)))
         :collect (handling (stream)
                    (grpc:do-messages (note stream (note 7)) (signal-it received))))
      (let ((call (chat channel :open)))
        (is-true (await-signal begun))
        (grpc:send call (note 1))
        (is-true (await-signal received))
        (grpc:close-send call)
        (is (equal '(1) (numbers call))))
      (let ((call (chat channel :open)))
        (dotimes (i 3) (grpc:send call (note i)))
        (is-true (await-signal received :count 3))
        (grpc:close-send call)
        (is (equal '(0 1 2) (numbers call))))
      (let ((call (collect channel :open)))
        (grpc:send call (note 1))
        (is-true (await-signal received))
        (grpc:close-send call)
        (is (= 7 (number-of (grpc:receive call))))))))

(test calls-left-alone-begin-once
  "Whoever is first, the client or who looks after its calls, nothing is lost or comes twice."
  (with-inproc (channel) (:chat #'echo)
    (let* ((inproc-core (inproc::channel-inproc-core channel))
           (stop nil)
           (others (loop repeat 2
                         collect (sb-thread:make-thread
                                  (lambda ()
                                    (loop until stop
                                          do (when (inproc::inproc-core-waiting inproc-core)
                                               (inproc::look-around inproc-core)))))))
           (wrong 0))
      (dotimes (i 2000)
        (let ((call (chat channel :open)) (count 0))
          (grpc:send call (note 0))
          (cond ((evenp i)
                 (grpc:do-messages (note call)
                   (unless (= count (number-of note)) (incf wrong))
                   (if (< (incf count) 3)
                       (grpc:send call (note count))
                       (grpc:close-send call))))
                (t
                 (loop for note = (grpc:receive call)
                       do (unless (= count (number-of note)) (incf wrong))
                       while (< (incf count) 3)
                       do (grpc:send call (note count)))
                 (grpc:close-send call)
                 (unless (null (grpc:receive call)) (incf wrong))))
          (unless (= 3 count) (incf wrong))))
      (setf stop t)
      (mapc #'sb-thread:join-thread others)
      (is (= 0 wrong)))))
