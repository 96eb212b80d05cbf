;;;; The threads on which handlers run, and the time when they begin.

(in-package #:clgrpc.tests.inproc)

(test unary-handlers-run-on-the-callers-thread
  (let ((thread nil))
    (with-inproc (channel) (:ask (handling (note)
                                   (setf thread sb-thread:*current-thread*)
                                   note))
      (lab.bench:ask channel (note 1))
      (is (eq sb-thread:*current-thread* thread))
      (lab.bench:ask channel (note 1) :timeout 10 :metadata '(("x-a" . "b")))
      (is (eq sb-thread:*current-thread* thread)))))

(test answers-later
  "A client waits for a unary handler that keeps its call."
  (with-inproc (channel) (:ask #'double-later)
    (is (= 4 (number-of (ask channel (note 2)))))
    (is (= 6 (number-of (ask channel (note 3) :timeout 20))))
    (is (= 6 (number-of (grpc:await (grpc:call-async #'lab.bench:ask channel (note 3))))))))

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
      ;; if its messages are received singly, the handler must run on another thread
      (grpc:with-call (call (watch channel (note 3)))
        (is (= 0 (number-of (grpc:receive call))))
        (is (not (this-thread-p thread)))))))

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
  "Messages beyond the send budget begin the handler."
  (with-inproc (channel) (:collect #'add-up)
    (let ((call (collect channel :open)))
      (dotimes (i 1000) (grpc:send call (note i :body 1000)))
      (grpc:close-send call)
      (is (= 499500 (number-of (grpc:receive call)))))))

(test generators-run-in-the-callers-context
  (let ((seen nil) (left 2))
    (with-inproc (channel) (:collect #'add-up)
      (handler-bind ((simple-condition (fn (_condition) (setf seen t))))
        (collect channel (lambda ()
                           (signal 'simple-condition)
                           (is (null method:*call*))
                           (when (plusp left) (note (decf left))))))
      (is (eq t seen)))))
