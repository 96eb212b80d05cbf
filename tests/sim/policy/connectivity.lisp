;;;; States of channels, what happens to calls meanwhile, and keepalive.

(in-package #:clgrpc.tests.policy)

(define-scenario state-idle-until-used
    ("Connectivity semantics, A62: a new channel is :idle and connects to nobody.")
  (let ((channel (open-channel (address 1))))
    (sim:wait-for 0.4)
    (is (eq :idle (grpc:channel-state channel)))
    (is (null (lines)))
    (connect channel)
    (await-state channel 5 :ready)
    (is (= 1 (length (lines))))))

(define-scenario call-waits-while-connecting
    ("Connectivity semantics, CONNECTING: SETTINGS come after 700 ms, and a plain call waits."
     :settings-delay 0.7)
  (let ((result (make-call (open-channel (address 1)))))
    (ok result)
    (between 0.7 (result-seconds result) 0.72)))

(define-scenario idle-timeout
    ("Connectivity semantics, IDLE: 1.5 s after the last call the connection is closed.")
  (let ((channel (open-channel (address 1) nil :idle-seconds 1.5)))
    (ok (make-call channel))
    (sim:wait-for 0.6)
    (is (eq :ready (grpc:channel-state channel)))
    (await-state channel 8 :idle)
    (within 1 (every #'line-closed (lines)))
    (ok (make-call channel))
    (is (= 2 (length (lines))))))

(define-scenario connection-reset-under-calls
    ("Status codes: a reset under 5 calls makes all :unavailable; the next call is :ok."
     :rules '((:call "x" :on :headers :stall t)))
  (let* ((channel (open-channel (address 1)))
         (calls (loop repeat 5 collect (start-call channel :call "x"))))
    (within 3 (= 5 (length (attempts))))
    (do-to-lines #'reset-line (backend 1))
    (dolist (call calls) (ended (result-of call) :unavailable))
    (ok (make-call channel :wait-for-ready t))))

(define-scenario backoff-grows
    ("Connection back-off: connections that are closed at once are tried again after 1 s, 1.6 s."
     :mode :close)
  (let ((channel (open-channel (address 1))))
    (connect channel)
    (within 12 (<= 3 (length (lines))))
    (destructuring-bind (one two three &rest more) (mapcar #'line-at (lines))
      (is (null more))
      (between 0.799 (- two one) 1.22)
      (between 1.279 (- three two) 1.94))))

(define-scenario wait-for-ready
    ("Wait for ready: with the backend down a plain call fails, the other waits until it is up."
     :mode :refuse)
  (let ((channel (open-channel (address 1))))
    (ended (make-call channel) :unavailable)
    (let ((call (start-call channel :wait-for-ready t :timeout 15)))
      (sim:wait-for 0.6)
      (is (null (first call)))
      (change 1 :mode :accept)
      (ok (result-of call)))))

(define-scenario goaway-graceful
    ("RFC 9113 6.8: a call ends well on the connection that drains, the next takes a new one."
     :rules '((:call "long" :delay 0.9)))
  (let* ((channel (open-channel (address 1)))
         (long (start-call channel :call "long")))
    (within 3 (attempts))
    (do-to-lines #'drain-line (backend 1))
    (sim:wait-for 0.1)
    (ok (make-call channel :call "next"))
    (is (null (first long)))
    (ok (result-of long))
    (came 1 "long")
    (is (= 2 (line-number (attempt-line (first (attempts "next"))))))))

(define-scenario keepalive-not-without-calls
    ("A8, KEEPALIVE_WITHOUT_CALLS: no call is open, so no PING goes out for 13 s."
     :rules '((:call "long" :delay 13)))
  (let ((channel (open-channel (address 1) nil
                               :keepalive-seconds 10 :keepalive-timeout-seconds 5)))
    (ok (make-call channel))
    (sim:wait-for 1)
    (let ((before (line-pings (first (lines)))))
      (sim:wait-for 12.5)
      (is (= before (line-pings (first (lines)))))
      (ok (make-call channel :call "long" :timeout 20))
      (is (< before (line-pings (first (lines)))) "none goes out in a call either"))))

(define-scenario keepalive-dead-peer
    ("A8: a peer that falls silent in a call is given up after 10 s and 1 s."
     :rules '((:on :headers :stall t)))
  (let* ((channel (open-channel (address 1) nil
                                :keepalive-seconds 10 :keepalive-timeout-seconds 1))
         (call (start-call channel :timeout 35)))
    (within 3 (attempts))
    (change 1 :mute t)
    (let ((result (result-of call)))
      (ended result :unavailable)
      (between 10.9 (result-seconds result) 11.2))))
