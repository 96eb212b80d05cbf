;;;; Retries (gRFC A6), their throttling among them.

(in-package #:clgrpc.tests.policy)

(define-scenario retry-succeeds-second
    ("A6 Retryable Status Codes, Exposed Retry Metadata: :unavailable once, then OK."
     :rules '((:times 1 :status :unavailable)))
  (ok (make-call (open-channel (address 1) (retry-config 3 0.05 0.2))))
  (is (equal '(nil "1") (previous (attempts)))))

(define-scenario retry-exhausts-max-attempts
    ("A6 Maximum Number of Retries: 3 attempts; the last status reaches the application."
     :rules '((:skip 2 :status :unavailable :message "third")
              (:status :unavailable :message "early")))
  (let ((result (make-call (open-channel (address 1) (retry-config 3 0.05 0.2)))))
    (ended result :unavailable)
    (is (search "third" (result-message result)))
    (is (equal '(nil "1" "2") (previous (attempts))))))

(defun sent-again-p (channel)
  "True if calls on CHANNEL are sent again when they may be: the first attempt of \"usual\" fails."
  (ok (make-call channel :call "usual"))
  (= 2 (length (attempts "usual"))))

(define-scenario retry-not-for-other-codes
    ("A6 Retryable Status Codes: a status that is not listed is not retried."
     :rules '((:call "usual" :times 1 :status :unavailable) (:call "x" :status :aborted)))
  (let ((channel (open-channel (address 1) (retry-config 3 0.05 0.2))))
    (ended (make-call channel :call "x") :aborted)
    (came 1 "x")
    (is (sent-again-p channel))))

(define-scenario retry-committed-by-headers
    ("A6 When Retries are Valid: :unavailable behind Response-Headers is not retried."
     :rules '((:call "usual" :times 1 :status :unavailable)
              (:call "x" :headers-first t :delay 1/20 :status :unavailable)))
  (let ((channel (open-channel (address 1) (retry-config 3 0.05 0.2))))
    (ended (make-call channel :call "x") :unavailable)
    (came 1 "x")
    (is (sent-again-p channel))))

(define-scenario retry-capped-at-five
    ("A6 Limits on Retries and Hedges: of maxAttempts 10 the channel makes 5."
     :rules '((:status :unavailable)))
  (ended (make-call (open-channel (address 1) (retry-config 10 0.02 0.02))) :unavailable)
  (came 5))

(define-scenario retry-pushback-negative
    ("A6 Pushback: grpc-retry-pushback-ms -1 ends the retries."
     :rules '((:call "usual" :times 1 :status :unavailable)
              (:call "x" :status :unavailable :pushback "-1")))
  (let ((channel (open-channel (address 1) (retry-config 3 0.02 0.02))))
    (ended (make-call channel :call "x") :unavailable)
    (came 1 "x")
    (is (sent-again-p channel))))

(define-scenario retry-pushback-delay
    ("A6 Pushback: the second attempt comes 700 ms after the first failure."
     :rules '((:times 1 :status :unavailable :pushback "700")))
  (ok (make-call (open-channel (address 1) (retry-config 3 0.02 0.02))))
  (came 2)
  (between 0.7 (gap (attempts) 0) 0.72))

(define-scenario retry-client-stream-replays
    ("A6 Memory Management: an attempt fails after 3 of 5 messages; the second gets all."
     :rules '((:times 1 :on 3 :status :unavailable)))
  (ok (make-call (open-channel (address 1) (retry-config 3 0.02 0.02))
                 :method :collect :messages 5 :payload 1000 :interval 0.06))
  (came 2)
  (let ((messages (attempt-messages (second (attempts)))))
    (is (= 5 (length messages)))
    (is (<= 5000 (reduce #'+ (mapcar #'length messages))))))

(define-scenario retry-goes-to-another-backend
    ("A6 Where Retries Occur: b1 always fails, and every call is answered by b2." :backends 2)
  (change 1 :rules '((:status :unavailable)))
  (let* ((config (retry-config 4 0.01 0.01 (json ",'loadBalancingConfig':[{'round_robin':{}}]")))
         (results (make-calls (open-to-names config 1 2) 10)))
    (all-ok results 10)
    (is (= 10 (of-backend results 2)))
    (is (< 10 (length (attempts))) "b1 was never tried")))

(define-scenario transparent-refused-stream
    ("A6 Transparent Retries: REFUSED_STREAM is retried without a policy, and not counted."
     :rules '((:times 1 :reset :refused-stream)))
  (ok (make-call (open-channel (address 1))))
  (is (equal '(nil nil) (previous (attempts)))))

(defun throttled (ratio)
  "A channel with maxTokens 4 and tokenRatio RATIO."
  (open-channel (address 1)
                (retry-config 5 0.02 0.02
                              (json ",'retryThrottling':{'maxTokens':4,'tokenRatio':~A}" ratio))))

(define-scenario throttle-arithmetic
    ("A6 Throttling: of 4 tokens the first call has 2 attempts (3, 2: the threshold), the next 1."
     :rules '((:status :unavailable)))
  (let ((channel (throttled "0.1")))
    (ended (make-call channel :call "a") :unavailable)
    (came 2 "a")
    (ended (make-call channel :call "b") :unavailable)
    (came 1 "b")))

(define-scenario throttle-recovers
    ("A6 Throttling: three successes at tokenRatio 1 bring back what two failing calls took."
     :rules '((:call "a" :status :unavailable) (:call "b" :status :unavailable)
              (:call "c" :status :unavailable)))
  (let ((channel (throttled 1)))
    (ended (make-call channel :call "a") :unavailable)
    (ended (make-call channel :call "b") :unavailable)
    (came 1 "b")
    (all-ok (make-calls channel 3) 3)
    (ended (make-call channel :call "c") :unavailable)
    (came 2 "c")))

;;; Numbers of a config that make no sense

(define-scenario retry-bears-any-multiplier
    ("A6: with a factor of 1e308 the second wait is the longest; the call ends, its connection stays."
     :rules '((:status :unavailable)))
  (dolist (factor (list "1e308" (format nil "1~400,,,'0A" "") "5e-324"))
    (let ((config (method-config
                   (format nil "'retryPolicy':{'maxAttempts':4,'initialBackoff':'0.05s',~
                                'maxBackoff':'0.2s','backoffMultiplier':~A,~
                                'retryableStatusCodes':['UNAVAILABLE']}"
                           factor)))
          (before (length (attempts))))
      (ended (make-call (open-channel (address 1) config) :timeout nil) :unavailable)
      (is (= 4 (- (length (attempts)) before)))))
  (is (= 3 (length (lines 1)))))

(define-scenario hedges-may-be-ten-thousand-years-apart
    ("A6: the longest hedgingDelay that a config can have is longer than our clock.")
  (ok (make-call (open-channel (address 1) (hedging-config 3 "315576000000"))))
  (came 1))

(define-scenario a-failure-in-what-follows-an-attempt-ends-the-call
    ("No call is left with nothing that could end it, nor a connection lost to the others."
     :rules '((:call "x" :status :unavailable) (:call "y" :delay 1)))
  (let* ((channel (open-channel (address 1) (retry-config 3 0.05 0.2)))
         (other (start-call channel :call "y")))
    (server-tests:with-log (:call-failed)
      (with-replaced (('clgrpc.config:retry-delay-ns
                       (fn (_function &rest _arguments) (error "There is no such delay."))))
        (let ((result (make-call channel :call "x" :timeout nil)))
          (ended result :internal)
          (is (search "There is no such delay." (result-message result))))))
    (ok (result-of other))
    (is (= 1 (length (lines 1))))))
