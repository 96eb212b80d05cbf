;;;; Deadlines and cancellation.

(in-package #:clgrpc.tests.policy)

(define-scenario deadline-exceeded
    ("PROTOCOL-HTTP2, Timeout: ended at 500 ms, grpc-timeout at most that, the stream is reset."
     :rules '((:on :headers :stall t)))
  (let ((result (make-call (open-channel (address 1)) :timeout 1/2)))
    (ended result :deadline-exceeded)
    (between 0.5 (result-seconds result) 0.51)
    (between 0.4 (timeout-seconds (first (attempts))) 0.5)
    (within 1/10 (eq :cancelled (attempt-ended (first (attempts)))))))

(define-scenario deadline-spans-attempts
    ("A6 Maximum Number of Retries: the deadline of 700 ms ends the call in a back-off of 400 ms."
     :rules '((:status :unavailable)))
  (let ((result (make-call (open-channel (address 1) (retry-config 5 0.4 0.4)) :timeout 0.7)))
    (ended result :deadline-exceeded)
    (between 0.699 (result-seconds result) 0.71)))

(define-scenario cancel-reaches-server
    ("Cancellation: the call is :cancelled, and the server gets RST_STREAM CANCEL."
     :rules '((:on :headers :stall t)))
  (ended (make-call (open-channel (address 1)) :cancel-after 0.3) :cancelled)
  (came 1)
  (within 1/10 (cancelled-p (first (attempts)))))
