;;;; Servers and their entrances, whatever carries their calls.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.serving)

(defun new-server ()
  (make-instance 'serving:server :services '() :options (make-server-options) :reserve nil))

(test an-entrance-is-made-once
  (let ((server (new-server)) (made 0))
    (flet ((entrance (kind)
             (serving:ensure-entrance server (lambda (entrance) (eq kind (first entrance)))
                                  (lambda () (incf made) (list kind)))))
      (is (eq (entrance :door) (entrance :door)))
      (is (= 1 made))
      (is (equal '(:window) (entrance :window)))
      (is (equal '((:window) (:door)) (serving:server-entrances server))))))

(test who-waits-for-calls-hears-that-they-have-ended
  (let* ((server (new-server))
         (waiter (sb-thread:make-thread
                  (lambda ()
                    (sb-thread:with-mutex ((serving:server-lock server))
                      (sb-thread:condition-wait (serving:server-emptied server)
                                                (serving:server-lock server) :timeout 10)))))
         (heard nil))
    (loop until (setf heard (not (sb-thread:thread-alive-p waiter)))
          do (serving:note-emptied server)
             (sb-thread:thread-yield))
    (is-true (sb-thread:join-thread waiter :default nil))))
