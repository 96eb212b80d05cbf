;;;; pick_first (A61, A62) and round_robin.

(in-package #:clgrpc.tests.policy)

(define-scenario pf-first-address
    ("Load balancing, pick_first: without a config every call goes to the first address."
     :backends 3)
  (set-names 1 2 3)
  (let ((results (make-calls (open-channel (name-target)) 12 :parallel 3)))
    (all-ok results 12)
    (is (= 12 (of-backend results 1)))
    (is (= 1 (length (lines))))))

(define-scenario pf-failover
    ("A61: the address in use goes away, the next call is :ok on the second." :backends 2)
  (set-names 1 2)
  (let ((channel (open-channel (name-target))))
    (is (string= "b1" (result-backend (make-call channel))))
    (kill 1)
    (sim:wait-for 0.3)
    (let ((result (make-call channel)))
      (ok result)
      (is (string= "b2" (result-backend result))))))

(define-scenario pf-idle-after-loss
    ("A62 Background: the connection ends while nothing is called: :idle until the next call.")
  (let ((channel (open-channel (address 1))))
    (ok (make-call channel))
    (do-to-lines #'close-line (backend 1))
    (await-state channel 3 :idle)
    (sim:wait-for 0.9)
    (is (= 1 (length (lines))))
    (ok (make-call channel))
    (is (= 2 (length (lines))))))

(define-scenario pf-sticky-transient-failure
    ("A62 Use sticky-TF by default: :transient-failure all the time, and attempts go on."
     :mode :close)
  (let ((channel (open-channel (address 1))))
    (connect channel)
    (await-state channel 5 :transient-failure)
    (let ((before (length (lines))))
      (is (not (sim:wait-until (lambda ()
                                 (not (eq :transient-failure (grpc:channel-state channel))))
                               :timeout 5)))
      (is (<= 2 (- (length (lines)) before))))))

(define-scenario pf-shuffle
    ("A62 Enable random shuffling of address list: of 24 channels some choose the second."
     :backends 2)
  (set-names 1 2)
  (let ((results (loop repeat 24
                       collect (make-call (open-channel (name-target)
                                                        (balancing "pick_first"
                                                                   "'shuffleAddressList':true"))))))
    (all-ok results 24)
    (is (= 2 (length (backends-of results))))))

(define-scenario he-blackhole
    ("A61 Happy Eyeballs: the first address never speaks; the second is tried after 250 ms."
     :backends 2)
  (change 1 :mode :silent)
  (set-names 1 2)
  (let ((result (make-call (open-channel (name-target)))))
    (ok result)
    (is (string= "b2" (result-backend result)))
    (destructuring-bind (one two) (lines)
      (is (eq (backend 1) (line-backend one)))
      (between 0.24 (- (line-at two) (line-at one)) 0.27))))

(define-scenario rr-even
    ("Load balancing, round_robin: 30 calls over 3 backends, 10 each." :backends 3)
  (let ((results (make-calls (open-to-names *round-robin* 1 2 3) 30)))
    (all-ok results 30)
    (loop for i from 1 to 3 do (is (= 10 (of-backend results i))))))

(define-scenario rr-skips-dead
    ("Load balancing, round_robin: one of three refuses connections, the others have 10 of 20."
     :backends 3)
  (change 2 :mode :refuse)
  (set-names 1 2 3)
  (let ((channel (open-channel (name-target) *round-robin*)))
    (connect channel)
    (await-connections 1 3)
    (let ((results (make-calls channel 20)))
      (all-ok results 20)
      (is (= 10 (of-backend results 1)))
      (is (= 10 (of-backend results 3))))))

(define-scenario rr-reconnects-by-itself
    ("A61, A62: a connection of round_robin ends, and there is a new one without a call."
     :backends 2)
  (open-to-names *round-robin* 1 2)
  (do-to-lines #'close-line (backend 2))
  (within 6 (<= 2 (length (lines 2)))))
