;;;; Streams in one thread.

(in-package #:clgrpc.tests.inproc)

(test streams-are-lazy
  "The handler has got only as far as the consumer."
  (let ((sent 0))
    (with-inproc (channel)
        (:watch (fn (_note call) (loop (grpc:send call (note (incf sent))))))
      (let ((seen 0))
        (grpc:do-messages (note (watch channel (note 1)))
          (is (= sent (incf seen)))
          (when (= seen 5) (return)))
        (is (= 5 sent))))))

(test locks-of-handlers-are-held-in-bodies
  (let ((lock (sb-thread:make-mutex)) (held '()))
    (with-inproc (channel)
        (:watch (lambda (note call)
                  (sb-thread:with-mutex (lock) (count-up note call))))
      (grpc:do-messages (note (watch channel (note 2)))
        (push (sb-thread:holding-mutex-p lock) held)))
    (is (equal '(t t) held))))

(test bidi-in-one-thread
  "DO-MESSAGES whose body sends needs no other thread."
  (let ((thread nil) (count 0))
    (with-inproc (channel)
        (:chat (lambda (stream call)
                 (setf thread sb-thread:*current-thread*)
                 (echo stream call)))
      (let ((call (chat channel :open)))
        (grpc:send call (note 0))
        (grpc:do-messages (note call)
          (is (= count (number-of note)))
          (if (< (incf count) 100)
              (grpc:send call (note count))
              (grpc:close-send call))))
      (is (= 100 count))
      (is (this-thread-p thread)))))

(test receiving-within-do-messages
  "Its handler could never continue: this is misuse, and must not hang."
  (with-inproc (channel) (:watch #'count-up)
    (let ((call (watch channel (note 3))))
      (signals grpc:misuse
        (grpc:do-messages (note call)
          (grpc:receive call))))))

(test messages-before-the-handler-are-bounded
  "The client keeps no more octets than its budget for a handler that has not begun."
  (with-inproc (channel :channel-options '(:send-budget-octets 65536)) (:collect #'add-up)
    (let* ((call (collect channel :open)) (pair (inproc::call-call-pair call))
           (each (+ 936 rpc:+batch-octets+)))
      (is (= (floor 65536 each)
             (loop repeat 1000 count (inproc::keep-early pair (note 1) 936))))
      (grpc:cancel call))))
