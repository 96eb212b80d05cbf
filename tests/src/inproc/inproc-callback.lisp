;;;; Callbacks, and the threads on which they run.

(in-package #:clgrpc.tests.inproc)

(test callbacks-of-what-another-thread-sends
  "None is lost, in any order: messages arrive while callbacks for earlier ones run, and while none
run."
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
  "A call that makes one timer after another keeps none of them."
  (let ((kept nil))
    (with-inproc (channel)
        (:ask (lambda (note call)
                (let ((ticks 0))
                  (labels ((tick ()
                             (cond ((< (incf ticks) 20) (grpc:after call 0.001 #'tick))
                                   (t (setf kept (inproc::inproc-callbacks-timers
                            (inproc::call-inproc-callbacks call)))
                                      (grpc:reply call note)))))
                    (grpc:after call 0.001 #'tick)))
                call))
      (is (= 1 (number-of (ask channel (note 1)))))
      (is (null kept)))))

(test timers-wait-for-the-callback-that-runs
  "The function of AFTER is a callback of its call: it runs when the present callback has returned,
in the order of times."
  (let ((events '()) (rings (make-signal)))
    (with-inproc (channel)
        (:chat (lambda (stream call)
                 (grpc:on-message
                  stream
                  (fn (_note)
                    (push :begin events)
                    (loop for (name seconds) in '((:second 0.01) (:first 0.001))
                          do (let ((name name))
                               (grpc:after call seconds (lambda ()
                                                          (push name events)
                                                          (when (eq name :second)
                                                            (grpc:finish call))))))
                    ;; both have rung
                    (await-signal rings :count 2)
                    (push :end events)))
                 call))
      (with-replaced (('inproc::run-on-client-reserve
                       (lambda (function &rest arguments)
                         (multiple-value-prog1 (apply function arguments)
                           ;; the thread of the reserve has had time for it
                           (sleep 0.05)
                           (signal-it rings)))))
        (let ((call (chat channel :open)))
          (grpc:send call (note 1))
          (is (null (grpc:receive call))))))
    (is (equal '(:begin :end :first :second) (reverse events)))))

(test timers-of-handlers-that-still-receive
  "The thread that runs the function of AFTER leaves the waiting requests to the handler."
  (let ((rung (make-signal)))
    (with-inproc (channel)
        (:chat (lambda (stream call)
                 (grpc:after call 0.001 (lambda () (signal-it rung)))
                 (await-signal rung)
                 (is (= 3 (length (inproc::call-pair-ready (inproc::call-call-pair call)))))
                 (grpc:do-messages (note stream) (grpc:send call note))))
      (let ((call (chat channel :open)))
        (dotimes (i 3) (grpc:send call (note i)))
        (grpc:close-send call)
        (is (equal '(0 1 2) (numbers call)))))))

(test reactive-handlers-that-block
  "A handler that has returned its call before, and now waits for its own caller, gets an error, and
no longer counts as one that does not wait."
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
