;;;; Streams: where they run, when they begin, and what is queued.

(in-package #:clgrpc.tests.inproc)
(in-suite :clgrpc.inproc)

(defun this-thread-p (thread) (eq sb-thread:*current-thread* thread))

(test streams-begin-when-consumed
  (let ((began 0) (thread nil))
    (with-inproc (channel)
        (:watch (lambda (note call)
                  (incf began)
                  (setf thread sb-thread:*current-thread*)
                  (count-up note call)))
      (let ((call (watch channel (note 3))))
        (is (= 0 began))
        (is (equal '(0 1 2) (numbers call)))
        (is (= 1 began))
        (is (this-thread-p thread)))
      ;; never begun, never run
      (grpc:with-call (call (watch channel (note 3)))
        (declare (ignore call)))
      (is (= 1 began))
      ;; received one by one it must run elsewhere
      (grpc:with-call (call (watch channel (note 3)))
        (is (= 0 (number-of (grpc:receive call))))
        (is (not (this-thread-p thread)))))))

(test streams-are-lazy
  "The handler is as far as the consumer."
  (let ((sent 0))
    (with-inproc (channel)
        (:watch (lambda (note call)
                  (declare (ignore note))
                  (loop (grpc:send call (note (incf sent))))))
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

(test client-streams-run-here
  (let ((threads '()))
    (with-inproc (channel)
        (:collect (lambda (stream call)
                    (push sb-thread:*current-thread* threads)
                    (add-up stream call)))
      (is (= 6 (number-of (collect channel (list (note 1) (note 2) (note 3))))))
      (let ((left 4))
        (is (= 6 (number-of (collect channel (lambda () (when (plusp left)
                                                          (note (decf left)))))))))
      (let ((call (collect channel :open)))
        (dotimes (i 4) (grpc:send call (note i)))
        (is (= 2 (length threads)))
        (grpc:close-send call)
        (is (= 6 (number-of (grpc:receive call)))))
      (is (= 3 (length threads)))
      (is (every #'this-thread-p threads)))))

(test long-client-streams-do-not-wait
  "What does not fit the send budget begins the handler."
  (with-inproc (channel) (:collect #'add-up)
    (let ((call (collect channel :open)))
      (dotimes (i 1000) (grpc:send call (note i :body 1000)))
      (grpc:close-send call)
      (is (= 499500 (number-of (grpc:receive call)))))))

(test generators-run-in-the-callers-context
  (let ((seen nil) (left 2))
    (with-inproc (channel) (:collect #'add-up)
      (handler-bind ((simple-condition (lambda (condition)
                                         (declare (ignore condition))
                                         (setf seen t))))
        (collect channel (lambda ()
                           (signal 'simple-condition)
                           (is (null rpc:*call*))
                           (when (plusp left) (note (decf left))))))
      (is (eq t seen)))))

(test bidi-in-one-thread
  "DO-MESSAGES whose body sends needs no other."
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

(test calls-left-alone-begin
  "A client may wait for what the handler does otherwise than by waiting for the call."
  (let ((begun (make-signal)) (received (make-signal)))
    (with-inproc (channel)
        (:chat (lambda (stream call)
                 (signal-it begun)
                 (grpc:do-messages (note stream)
                   (signal-it received)
                   (grpc:send call note)))
         :collect (lambda (stream call)
                    (declare (ignore call))
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
    (let* ((site (inproc::channel-site channel))
           (stop nil)
           (others (loop repeat 2
                         collect (sb-thread:make-thread
                                  (lambda ()
                                    (loop until stop
                                          do (when (inproc::site-waiting site)
                                               (inproc::look-around site)))))))
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

(test handlers-wait-in-the-consumers-thread
  "For what another thread of the client sends."
  (with-inproc (channel) (:chat #'echo)
    (let* ((call (chat channel :open))
           (sender (sb-thread:make-thread
                    (lambda ()
                      (dotimes (i 100) (grpc:send call (note i)))
                      (grpc:close-send call)))))
      (is (equal (loop for i below 100 collect i) (numbers call)))
      (sb-thread:join-thread sender))))

(test receiving-within-do-messages
  "Its handler could never go on: that is misuse, not a hang."
  (with-inproc (channel) (:watch #'count-up)
    (let ((call (watch channel (note 3))))
      (signals grpc:misuse
        (grpc:do-messages (note call)
          (grpc:receive call))))))

(test cancellation-from-other-threads
  (let ((sent (make-signal)) (seen nil))
    (with-inproc (channel)
        (:watch (lambda (note call)
                  (handler-case (loop (grpc:send call note))
                    (grpc:rpc-error (error)
                      (setf seen (status-of-error error))
                      (error error)))))
      (let* ((call (watch channel (note 1)))
             (canceller (sb-thread:make-thread (lambda ()
                                                 (await-signal sent)
                                                 (grpc:cancel call "enough")))))
        (is (eq :cancelled
                (status-of-error (caught (grpc:do-messages (note call) (signal-it sent))))))
        (is (eq :cancelled seen))
        (sb-thread:join-thread canceller)))))

(test cancellation-in-bodies
  (with-inproc (channel) (:watch #'count-up)
    (let ((call (watch channel (note 10))) (count 0))
      (is (eq :cancelled (status-of-error (caught (grpc:do-messages (note call)
                                                    (when (= 3 (incf count))
                                                      (grpc:cancel call)))))))
      (is (= 3 count)))))

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
