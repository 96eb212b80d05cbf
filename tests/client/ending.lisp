;;;; How calls end whose deadline has passed, whoever says so first.

(in-package #:clgrpc.tests.client)
(in-suite :clgrpc.client)

(defun end-after-deadline (ending timeout)
  "The error that a call with TIMEOUT ends with whose server ends it as ENDING says when its deadline
has passed, while the loop is held up so that it reads that before it sees to timers; nil if the
machine was too slow for that."
  (let ((due 0) (in-time nil) (asked (make-signal)) (answered (make-signal)))
    (with-raw-server (address)
        (lambda (peer exchange)
          (signal-it asked)
          (wait-until (lambda () (< 0 due (monotonic-ns))))
          (ecase ending
            (:status (send-fields (exchange-stream exchange)
                                  '((":status" . "200") ("content-type" . "application/grpc")
                                    ("grpc-status" . "2")
                                    ("grpc-message" . "context deadline exceeded"))
                                  t))
            (:reset (http2:reset-stream (exchange-stream exchange) http2:+internal-error+))
            (:close (setf (peer-closed peer) t)))
          (flush-peer peer)
          (signal-it answered))
      (grpc:with-channel (channel address)
        (grpc:ensure-connected channel)
        (let* ((loop (client::core-loop (client::channel-core channel)))
               (holding (make-signal))
               (future (grpc:call-async #'lab.bench:ask channel (note 1) :timeout timeout)))
          (await-signal asked)
          (loop:post loop (lambda ()
                            (setf in-time (< (monotonic-ns) (grpc:call-deadline future)))
                            (signal-it holding)
                            (wait-until (lambda () (< 0 due (monotonic-ns))))
                            (await-signal answered)))
          (setf due (grpc:call-deadline future))
          (await-signal holding)
          (let ((error (caught (grpc:await future))))
            (and in-time error)))))))

(test the-deadline-is-heard-before-the-server
  "What a server says of a call after its deadline is that of the deadline, whoever was first."
  (dolist (ending '(:status :reset :close))
    (let ((error (loop for timeout in '(0.2 1 5 25)
                       thereis (end-after-deadline ending timeout))))
      (is (typep error 'grpc:deadline-exceeded) "~S: ~A" ending error)
      (when (eq ending :status)
        (is (search "UNKNOWN from the server: context deadline exceeded"
                    (grpc:rpc-error-cause error)))))))
