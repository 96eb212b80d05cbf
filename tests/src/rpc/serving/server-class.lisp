;;;; Servers and their acceptors, for any transport.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.serving)

(defun new-server ()
  (make-instance 'serving:server :services '() :options (make-server-options) :reserve nil))

(test an-acceptor-is-made-once
  (let ((server (new-server)) (made 0))
    (flet ((acceptor (kind)
             (serving:ensure-acceptor server (lambda (acceptor) (eq kind (first acceptor)))
                                  (lambda () (incf made) (list kind)))))
      (is (eq (acceptor :door) (acceptor :door)))
      (is (= 1 made))
      (is (equal '(:window) (acceptor :window)))
      (is (equal '((:window) (:door)) (serving::server-acceptors server))))))

(test who-waits-for-calls-hears-that-they-have-ended
  (let* ((server (new-server))
         (looks 0)
         (waiter (in-thread (serving:await-emptied server 10 (lambda () (< 1 (incf looks))))))
         (heard nil))
    (loop until (setf heard (not (sb-thread:thread-alive-p waiter)))
          do (serving:note-emptied server)
             (sb-thread:thread-yield))
    (is-true (sb-thread:join-thread waiter :default nil))))
