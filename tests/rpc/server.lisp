;;;; Servers and their entrances, whatever carries their calls.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.rpc)

(defun new-server ()
  (make-instance 'rpc:server :services '() :options (make-server-options) :reserve nil))

(test an-entrance-is-made-once
  (let ((server (new-server)) (made 0))
    (flet ((entrance (kind)
             (rpc:ensure-entrance server (lambda (entrance) (eq kind (first entrance)))
                                  (lambda () (incf made) (list kind)))))
      (is (eq (entrance :door) (entrance :door)))
      (is (= 1 made))
      (is (equal '(:window) (entrance :window)))
      (is (equal '((:window) (:door)) (rpc:server-entrances server))))))

(test who-waits-for-calls-hears-that-they-have-ended
  (let* ((server (new-server))
         (waiter (sb-thread:make-thread
                  (lambda ()
                    (sb-thread:with-mutex ((rpc:server-lock server))
                      (sb-thread:condition-wait (rpc:server-emptied server)
                                                (rpc:server-lock server) :timeout 10)))))
         (heard nil))
    (loop until (setf heard (not (sb-thread:thread-alive-p waiter)))
          do (rpc:note-emptied server)
             (sb-thread:thread-yield))
    (is-true (sb-thread:join-thread waiter :default nil))))
