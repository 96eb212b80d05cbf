;;;; How many streams and connections: MAX_CONCURRENT_STREAMS, connection scaling (gRFC A105), and
;;;; the limit of calls (A32).

(in-package #:clgrpc.tests.policy)

(defun scaling (connections)
  (json "{'connectionScaling':{'maxConnectionsPerSubchannel':~D}}" connections))

(define-scenario streams-limit-kept
    ("RFC 9113 5.1.2, A105: of 6 calls two at a time pass on one connection."
     :max-streams 2 :rules '((:delay 1/5)))
  (let ((results (make-calls (open-channel (address 1)) 6 :parallel 6 :timeout 10)))
    (all-ok results 6)
    (between 0.6 (reduce #'max results :key #'result-seconds) 0.65)
    (is (equal '(0) (mapcar #'line-over (lines))))))

(define-scenario streams-limit-raised
    ("RFC 9113 6.5.2, A105: when MAX_CONCURRENT_STREAMS is raised, the call that waits goes."
     :max-streams 1 :rules '((:call "long" :delay 2.5)))
  (let* ((channel (open-channel (address 1)))
         (long (start-call channel :call "long")))
    (within 3 (attempts))
    (let ((waiting (start-call channel :call "waiting")))
      (sim:wait-for 0.3)
      (came 0 "waiting")
      (change 1 :max-streams 10)
      (let ((result (result-of waiting)))
        (ok result)
        (between 0.3 (result-seconds result) 0.32)))
    (is (null (first long)))
    (ok (result-of long))))

(define-scenario scale-up
    ("A105 Subchannel Behavior: 2 streams, 3 connections: six calls run at once on three."
     :max-streams 2 :rules '((:delay 0.8)))
  (let ((results (make-calls (open-channel (address 1) (scaling 3)) 6 :parallel 6 :timeout 10)))
    (all-ok results 6)
    (is (equal '(2 2 2) (mapcar #'line-most (lines))))
    (is (equal '(0 0 0) (mapcar #'line-over (lines))))
    (between 0.8 (reduce #'max results :key #'result-seconds) 0.9)))

(define-scenario scale-no-further-than-set
    ("A105 Picking a Connection for Each RPC: eight calls on two connections of two streams."
     :max-streams 2 :rules '((:delay 0.3)))
  (all-ok (make-calls (open-channel (address 1) (scaling 2)) 8 :parallel 8 :timeout 10) 8)
  (is (equal '(0 0) (mapcar #'line-over (lines)))))

(define-scenario circuit-limit
    ("A32, max_requests: of 6 calls at once three pass, three fail at once and are never sent."
     :rules '((:delay 0.7)))
  (let ((channel (open-channel (address 1) nil :max-concurrent-requests 3)))
    (connect channel)
    (await-state channel 5 :ready)
    (let ((results (make-calls channel 6 :parallel 6)))
      (is (= 3 (with-status results :ok)))
      (is (= 3 (with-status results :unavailable)))
      (dolist (result results)
        (when (eq :unavailable (result-status result))
          (between 0 (result-seconds result) 0.05))))
    (came 3)))

(define-scenario circuit-frees-at-the-end
    ("A32: with a limit of 1, ten calls one after another are :ok, but not two at once.")
  (let ((channel (open-channel (address 1) nil :max-concurrent-requests 1)))
    (all-ok (make-calls channel 10) 10)
    (is (= 1 (with-status (make-calls channel 2 :parallel 2) :unavailable)))))
