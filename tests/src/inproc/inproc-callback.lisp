;;;; Callbacks, and on whose thread they run.

(in-package #:clgrpc.tests.inproc)

(test callbacks-of-what-another-thread-sends
  "None is lost, whoever looks when: messages come while the callbacks of those before run, and
while there are none to run."
  (with-inproc (channel :channel-options '(:threads t)) (:chat #'echo)
    (let ((call (chat channel :open)) (seen 0) (done (make-signal)))
      (grpc:on-message call (lambda (note)
                              (if (= seen (number-of note)) (incf seen) (signal-it done))))
      (grpc:on-half-close call (lambda () (signal-it done)))
      (dotimes (i 20000) (grpc:send call (note i)))
      (grpc:close-send call)
      (await-signal done)
      (is (= 20000 seen)))))

(test timers-that-have-rung-are-forgotten
  "A call that makes a timer after the other keeps none of them."
  (let ((kept nil))
    (with-inproc (channel)
        (:ask (lambda (note call)
                (let ((ticks 0))
                  (labels ((tick ()
                             (cond ((< (incf ticks) 20) (grpc:after call 0.001 #'tick))
                                   (t (setf kept (inproc::inproc-reactions-timers
                            (inproc::call-inproc-reactions call)))
                                      (grpc:reply call note)))))
                    (grpc:after call 0.001 #'tick)))
                call))
      (is (= 1 (number-of (ask channel (note 1)))))
      (is (null kept)))))

(test reactive-handlers-that-block
  "Who waits, having returned its call before, for his own caller gets an error, and is no longer
taken for one who does not."
  (let ((blocking nil))
    (with-inproc (channel)
        (:chat (lambda (stream call)
                 (cond (blocking (grpc:send call (grpc:receive stream))
                                 (grpc:send call (grpc:receive stream))
                                 nil)
                       (t (echo-reactively stream call)))))
      (flet ((try ()
               (let ((call (chat channel :open)))
                 (handler-case
                     (progn
                       (dotimes (i 2 :ok)
                         (grpc:send call (note i))
                         (unless (= i (number-of (grpc:receive call))) (return :wrong))))
                   (grpc:rpc-error (error) (status-of-error error))))))
        (is (eq :ok (try)))
        (is (eq :ok (try)))
        (setf blocking t)
        (is (eq :resource-exhausted (try)))
        (is (eq :ok (try)))))))
