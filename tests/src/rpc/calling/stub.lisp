;;;; The arguments of stubs of all channels, and the requests that they send, on calls without a
;;;; transport.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.calling)

(test options-of-stubs
  (finishes (calling:check-call-options *test-method* '(:timeout 1 :metadata nil :async t)))
  (signals misuse (calling:check-call-options *test-method* '(:time-out 1))))

(test the-earliest-deadline-counts
  (let ((now (* 100 1000000000)) (second 1000000000))
    (is (= 0 (calling:absolute-deadline nil nil 0)))
    (is (= (+ now (* 2 second)) (calling:absolute-deadline 2 nil now)))
    (is (= (1+ now) (calling:absolute-deadline 0 nil now)))
    (is (= (+ now second) (calling:absolute-deadline 2 (+ now second) now)))
    (let ((method:*call* (new-call)))
      (setf (rpc:call-deadline method:*call*) (+ now 5))
      (is (= (+ now 5) (calling:absolute-deadline 2 (+ now second) now)))
      (is (= (+ now 5) (calling:absolute-deadline nil nil 0))))
    (signals misuse (calling:absolute-deadline -1 nil now))
    (signals misuse (calling:absolute-deadline "1" nil now))
    (signals misuse (calling:absolute-deadline nil 1767225600 now))))

(test generators-of-requests
  (flet ((all (request)
           (let ((generator (calling:request-generator request)))
             (loop for item = (funcall generator) while item collect item))))
    (is (equal '(1 2) (all '(1 2))))
    (is (equal '(1 2) (all #(1 2))))
    (is (equal '() (all '())))
    (is (equal '(1 2) (let ((i 0)) (all (lambda () (when (< i 2) (incf i))))))))
  (signals misuse (calling:request-generator 5)))

(defun sending-call (accept-p)
  "Two values: a client's call, and a function that returns its notes, newest first: the messages
sent while ACCEPT-P is true of them, which means room, and :closed and :left."
  (let ((sent '()))
    (values (new-call :client-p t :future-p (constantly nil)
                      :send (fn (_call message wait-p _compress)
                              (and (or wait-p (funcall accept-p message))
                                   (push message sent)
                                   t))
                      :close-send (lambda (call) (declare (ignore call)) (push :closed sent))
                      :leave (lambda (call) (declare (ignore call)) (push :left sent))
                      :room (constantly 1) :schedule (constantly nil))
            (lambda () sent))))

(test requests-are-sent-by-their-maker
  (multiple-value-bind (call sent) (sending-call (constantly t))
    (setf (rpc:call-rpc-method call) nil)
    (calling:send-requests call (calling:request-generator '(1 2)))
    (is (equal '(:closed 2 1) (funcall sent)))))

(test a-generator-that-fails-leaves-its-call
  (multiple-value-bind (call sent) (sending-call (constantly t))
    (signals error (calling:send-requests call (lambda () (error "No more."))))
    (is (equal '(:left) (funcall sent)))))

(test requests-of-a-call-that-ends-are-left
  "Its stub, not the sending, signals the error, with the restart that repeats the call."
  (multiple-value-bind (call sent) (sending-call (constantly t))
    (setf (rpc:call-rpc-method call) nil)
    (calling:send-requests call (lambda ()
                                  (rpc:end-call call :unavailable :message "gone")
                                  (status:fail :unavailable "gone")))
    (is (not (member :left (funcall sent))))))

(test requests-are-pumped-as-there-is-room
  (let ((room 2))
    (multiple-value-bind (call sent) (sending-call (fn (_message) (<= 0 (decf room))))
      (calling:send-requests call (calling:request-generator '(1 2 3)) :on-loop t)
      (let ((pump (room-callback call)))
        (funcall pump)
        (is (equal '(2 1) (funcall sent)))
        (setf room 1)
        (funcall pump)
        (is (equal '(:closed 3 2 1) (funcall sent)))))))

(test a-failed-call-may-be-made-again
  (let ((call (new-call)) (channel (make-instance 'test-channel)))
    (rpc:end-call call :unavailable :message "gone")
    (signals status:unavailable (calling:fail-or-retry call channel *test-method* 1 '()))
    (is (equal `(,*test-method* 1 (:timeout 2))
               (handler-bind ((status:unavailable (fn (_error)
                                                 (is (string= "Make the call again."
                                                              (princ-to-string
                                                               (find-restart 'rpc:retry-call))))
                                                 (rpc:retry-call))))
                 (calling:fail-or-retry call channel *test-method* 1 '(:timeout 2)))))))

(test values-that-a-call-begins-with
  (let ((call (new-call)))
    (rpc:begin-own-options call :values '(user 1 count 2 user 3))
    (is (eql 1 (rpc:call-value call 'user)))
    (is (eql 2 (rpc:call-value call 'count)))
    (dolist (bad '(user (user) (1 2) (nil 2)))
      (signals misuse (rpc:begin-own-options (new-call) :values bad)))))
