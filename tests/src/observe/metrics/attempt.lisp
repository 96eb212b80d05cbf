;;;; The counts of calls with several attempts, and of calls that are ended from outside (gRFC A66,
;;;; A78 and A96).

(in-package #:clgrpc.tests.metrics)

(defun call-with-policy (policy handler function)
  "Call FUNCTION with a channel to a probe whose method Ask is HANDLER, with POLICY, a plist, in the
config of all methods; with the channel's metrics, all instruments; and with the server's."
  (let* ((client (grpc:make-metrics :enable t))
         (server (grpc:make-metrics)))
    (with-started (probe (start-probe (list :ask handler) :observer server) :drain 0)
      (grpc:with-channel (channel (grpc:server-address probe)
                          :observer client
                          :service-config (list :method-config
                                                (list (list* :name '(()) policy))))
        (funcall function channel client server)))))

(defun sum-and-count (metrics name)
  "The sum of the histogram NAME of METRICS, and the number of its values; nil without one."
  (let ((point (first (metrics:family-points (or (family metrics name)
                                                 (return-from sum-and-count nil))))))
    (and point (list (metrics:point-sum point) (metrics:point-count point)))))

(defun failing-first (count)
  "A handler that fails COUNT times with :unavailable before it answers."
  (handling (note)
    (when (plusp count)
      (decf count)
      (grpc:fail :unavailable "not yet"))
    note))

(test each-retry-is-an-attempt-of-one-call
  (call-with-policy
   '(:retry-policy (:max-attempts 4 :initial-backoff 0.02 :max-backoff 0.02 :backoff-multiplier 1
                    :retryable-status-codes (:unavailable)))
   (failing-first 2)
   (lambda (channel client server)
     (ask channel (note 1))
     (is-true (ended-p client "grpc.client.call.duration" 1))
     (is (equal '(("lab.Bench/Ask" 3)) (points client "grpc.client.attempt.started")))
     (is (equal '(("lab.Bench/Ask" "OK" 1) ("lab.Bench/Ask" "UNAVAILABLE" 2))
                (points client "grpc.client.attempt.duration")))
     (is (equal '(("lab.Bench/Ask" "OK" 1)) (points client "grpc.client.call.duration")))
     (is-true (ended-p server "grpc.server.call.duration" 3))
     (is (equal '(2 1) (sum-and-count client "grpc.client.call.retries")))
     (is (null (sum-and-count client "grpc.client.call.hedges")))
     (is (null (sum-and-count client "grpc.client.call.transparent_retries")))
     (destructuring-bind (seconds count) (sum-and-count client "grpc.client.call.retry_delay")
       (is (= 1 count))
       ;; twice 20 ms by chance, 0.8 to 1.2 of them
       (is (< 0.03 seconds 10))))))

(test calls-without-retries-say-nothing-of-them
  (call-with-policy
   '(:retry-policy (:max-attempts 4 :initial-backoff 0.02 :max-backoff 0.02 :backoff-multiplier 1
                    :retryable-status-codes (:unavailable)))
   (failing-first 0)
   (fn (channel client _server)
     (ask channel (note 1))
     (is-true (ended-p client "grpc.client.call.duration" 1))
     (is (null (sum-and-count client "grpc.client.call.retries")))
     (is (null (sum-and-count client "grpc.client.call.retry_delay"))))))

(test hedges-are-attempts
  (let ((left 1))
    (call-with-policy
     '(:hedging-policy (:max-attempts 2 :hedging-delay 0.02))
     (lambda (note call)
       (cond ((plusp left) (decf left) call) ; which is never answered
             (t note)))
     (lambda (channel client server)
       (ask channel (note 1))
       (is-true (ended-p client "grpc.client.call.duration" 1))
       (is-true (ended-p client "grpc.client.attempt.duration" 2))
       (is (equal '(("lab.Bench/Ask" 2)) (points client "grpc.client.attempt.started")))
       (is (equal '(("lab.Bench/Ask" "CANCELLED" 1) ("lab.Bench/Ask" "OK" 1))
                  (points client "grpc.client.attempt.duration")))
       (is (equal '(("lab.Bench/Ask" "OK" 1)) (points client "grpc.client.call.duration")))
       (is (equal '(1 1) (sum-and-count client "grpc.client.call.hedges")))
       (is (null (sum-and-count client "grpc.client.call.retries")))
       (is-true (ended-p server "grpc.server.call.duration" 2))
       (is (equal '(("lab.Bench/Ask" "CANCELLED" 1) ("lab.Bench/Ask" "OK" 1))
                  (points server "grpc.server.call.duration")))))))

(test calls-that-are-ended-from-outside-have-their-status
  (call-with-policy
   '()
   (lambda (note call) (declare (ignore note)) call) ; which is never answered
   (lambda (channel client server)
     (signals grpc:deadline-exceeded (ask channel (note 1) :timeout 0.1))
     (let ((call (grpc:call-async #'lab.bench:ask channel (note 1))))
       (eventually (equal '(("lab.Bench/Ask" 2))
                          (points server "grpc.server.call.started")))
       (grpc:cancel call))
     (is-true (ended-p client "grpc.client.call.duration" 2))
     ;; the attempt ends on the loop, the call perhaps before
     (is-true (ended-p client "grpc.client.attempt.duration" 2))
     (is (equal '(("lab.Bench/Ask" "CANCELLED" 1) ("lab.Bench/Ask" "DEADLINE_EXCEEDED" 1))
                (points client "grpc.client.call.duration")))
     (is (equal '(("lab.Bench/Ask" "CANCELLED" 1) ("lab.Bench/Ask" "DEADLINE_EXCEEDED" 1))
                (points client "grpc.client.attempt.duration")))
     (is-true (ended-p server "grpc.server.call.duration" 2)))))

(test weights-that-nobody-tells-are-counted
  "A78: with one server without load reports, each update falls back to round_robin."
  (let ((client (grpc:make-metrics :enable t)))
    (with-probe (channel :channel-options
                         (list :observer client
                               :service-config '(:load-balancing-config
                                                 ((:weighted-round-robin ())))))
        (:ask #'double)
      (ask channel (note 1))
      (flet ((number (name)
               (reduce #'+ (let ((family (family client name)))
                             (and family (metrics:family-points family)))
                       :key #'metrics:point-value)))
        (eventually (plusp (number "grpc.lb.wrr.rr_fallback")))
        (is (plusp (number "grpc.lb.wrr.endpoint_weight_not_yet_usable")))
        (is (zerop (number "grpc.lb.wrr.endpoint_weight_stale")))
        (destructuring-bind (sum count) (sum-and-count client "grpc.lb.wrr.endpoint_weights")
          (is (zerop sum))
          (is (plusp count)))))))
