;;;; Waiting, and driving a loop meanwhile.

(in-package #:clgrpc.tests.inproc)

(defun call-with-loop (attended function)
  "Call FUNCTION with a loop that runs, with a thread of its own unless it is ATTENDED."
  (let* ((reserve (loop:make-reserve))
         (event-loop (loop:make-event-loop :name "handlers" :reserve reserve
                                           :caller-driven attended)))
    (loop:launch-event-loop event-loop)
    (unwind-protect (funcall function event-loop)
      (loop:stop-event-loop event-loop)
      (loop:join-event-loop event-loop)
      (loop:close-reserve reserve 5))))

(test handlers-on-a-loop
  "They run one at a time, in the order of their calls, whatever thread these come from."
  (dolist (attended '(t nil))
    (call-with-loop
     attended
     (lambda (event-loop)
       (let ((running 0) (most 0))
         (with-inproc (channel :channel-options (list :on event-loop))
             (:ask (handling (note)
                     (setf most (max most (incf running)))
                     (decf running)
                     note)
              :watch #'count-up :collect #'add-up :chat #'echo)
           (check-loop-calls channel)
           (is (= 1 most))))))))

(defun check-loop-calls (channel)
  (is (= 1 (number-of (ask channel (note 1)))))
  (is (equal '(0 1 2) (numbers (watch channel (note 3)))))
  (is (equal '(0 1) (numbers (chat channel (list (note 0) (note 1))))))
  (is (= 3 (number-of (collect channel (list (note 1) (note 2))))))
  (grpc:with-call (call (watch channel (note 2)))
    (is (= 0 (number-of (grpc:receive call)))))
  (is (every #'zerop
             (call-with-threads
              4 (lambda (i)
                  (loop repeat 100
                        count (/= i (number-of (ask channel (note i))))))))))

(test handlers-that-keep-their-calls-run-on-their-loop
  "Even if a handler is known not to wait, its client does not begin it on its own thread."
  (call-with-loop
   nil
   (lambda (event-loop)
     (let ((elsewhere 0))
       (with-inproc (channel :channel-options (list :on event-loop))
           (:chat (lambda (stream call)
                    (unless (loop:in-event-loop-p event-loop) (incf elsewhere))
                    (echo-reactively stream call)))
         (dotimes (i 3)
           (grpc:with-call (call (chat channel :open))
             (grpc:send call (note i))
             (is (= i (number-of (grpc:receive call))))))
         (is (= 0 elsewhere)))))))

(test drivers-that-lose-their-loop
  "A caller whose handler overstays on the loop that it drives is overtaken; calls continue."
  (call-with-loop
   t
   (lambda (event-loop)
     (with-inproc (channel :channel-options (list :on event-loop))
         (:ask (lambda (note call)
                 (when (plusp (number-of note))
                   (let ((end (+ (monotonic-ns) 50000000)))
                     (wait-until (lambda () (> (monotonic-ns) end)))))
                 (when call note)))
       (dotimes (i 4)
         (is (= (mod i 2) (number-of (ask channel (note (mod i 2)))))))))))

(test handlers-wait-in-the-consumers-thread
  "They wait for messages of another thread of the client."
  (with-inproc (channel) (:chat #'echo)
    (let* ((call (chat channel :open))
           (sender (in-thread
                     (dotimes (i 100) (grpc:send call (note i)))
                     (grpc:close-send call))))
      (is (equal (loop for i below 100 collect i) (numbers call)))
      (sb-thread:join-thread sender))))
