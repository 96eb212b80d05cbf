;;;; Hedging (gRFC A6).

(in-package #:clgrpc.tests.policy)

(defun cancelled-p (attempt)
  (and (eq :cancelled (attempt-ended attempt)) (eq :cancel (attempt-reset-code attempt))))

(define-scenario hedge-second-wins
    ("A6 Hedging Policy: the first stalls, the second goes out after 300 ms and wins."
     :rules '((:previous 0 :stall t)))
  (ok (make-call (open-channel (address 1) (hedging-config 3 "0.3"))))
  (is (equal '(nil "1") (previous (attempts))))
  (between 0.298 (gap (attempts) 0) 0.31)
  (within 1/10 (cancelled-p (first (attempts)))))

(define-scenario hedge-zero-delay
    ("A6 Hedging Policy: with hedgingDelay 0s all 4 go out at once; three are cancelled."
     :rules '((:previous 3 :delay 1/5) (:stall t)))
  (ok (make-call (open-channel (address 1) (hedging-config 4 "0"))))
  (came 4)
  (between 0 (- (attempt-at (fourth (attempts))) (attempt-at (first (attempts)))) 0.02)
  (within 1/10 (= 3 (count-if #'cancelled-p (attempts)))))

(define-scenario hedge-nonfatal-sends-next-now
    ("A6 Hedging Policy: a non-fatal status sends the next attempt at once, not after 3 s."
     :rules '((:previous 0 :status :unavailable)))
  (ok (make-call (open-channel (address 1) (hedging-config 3 "3")) :timeout 9))
  (came 2)
  (between 0 (gap (attempts) 0) 0.02))

(define-scenario hedge-fatal-ends-all
    ("A6 Hedging Policy: a fatal status of the second ends the call; the first is cancelled."
     :rules '((:previous 0 :stall t) (:previous 1 :status :invalid-argument)))
  (ended (make-call (open-channel (address 1) (hedging-config 4 "0.4"))) :invalid-argument)
  (within 1/10 (cancelled-p (first (attempts))))
  (sim:wait-for 1)
  (came 2))

(define-scenario hedge-all-fail
    ("A6 Hedging Policy: the call fails after 3 attempts with the status of all."
     :rules '((:status :unavailable)))
  (ended (make-call (open-channel (address 1) (hedging-config 3 "0.1"))) :unavailable)
  (came 3))

(define-scenario hedge-pushback-stop
    ("A6 Pushback: -1 on the only attempt: no further hedges, the call fails."
     :rules '((:call "usual" :times 1 :status :unavailable)
              (:call "x" :status :unavailable :pushback "-1")))
  (let ((channel (open-channel (address 1) (hedging-config 4 "0.1"))))
    (ended (make-call channel :call "x") :unavailable)
    (sim:wait-for 1/2)
    (came 1 "x")
    (is (sent-again-p channel))))

(defun breaker-states (channel)
  "An alist from the addresses of CHANNEL to the states of their circuit breakers."
  (loop for plist in (grpc:channel-addresses channel)
        collect (cons (getf plist :address) (getf plist :breaker))))

(define-scenario hedging-finds-a-server-that-hangs
    ("A breaker hears of attempts that one which began later was faster than; not of the others."
     :backends 2)
  (change 1 :rules '((:stall t)))
  (set-names 1 2)
  (let ((channel (open-channel (name-target)
                               (json "{'loadBalancingConfig':[{'round_robin':{}}],~
                                       'methodConfig':[{'name':[{}],'hedgingPolicy':~
                                       {'maxAttempts':2,'hedgingDelay':'0.05s'}}]}")
                               :breaker-failure-percent 50 :breaker-open-seconds 60)))
    (connect channel)
    (await-connections 1 2)
    (all-ok (make-calls channel 100) 100)
    (is (equal (list (address 1)) (mapcar #'car (remove :closed (breaker-states channel)
                                                        :key #'cdr))))
    (is (= 20 (count (backend 1) (attempts) :key #'attempt-backend)))))
