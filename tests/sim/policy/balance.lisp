;;;; The policies that heed load, keys and failures: weighted_round_robin, least_request, ring_hash,
;;;; outlier_detection, random_subsetting.

(in-package #:clgrpc.tests.policy)

(defun share (results number)
  "Which share of RESULTS the backend NUMBER gave."
  (/ (of-backend results number) (length results)))

;;; least_request and weighted_round_robin

(define-scenario lr-prefers-idle
    ("A48: b1 answers after 400 ms, b2 at once; with 8 calls at a time b2 gets most." :backends 2)
  (change 1 :rules '((:delay 0.4)))
  (let ((results (make-calls (open-to-names (balancing "least_request_experimental"
                                                       "'choiceCount':10")
                                            1 2)
                             100 :parallel 8 :pause 1/100)))
    (all-ok results 100)
    (between 0.7 (share results 2) 1)))

(defun open-weighted (config)
  "A channel with weighted_round_robin and CONFIG over b1 and b2."
  (open-to-names (balancing "weighted_round_robin"
                            (format nil "'weightUpdatePeriod':'0.1s',~A" config))
                 1 2))

(defun weighed-share (channel)
  "Which share of 200 calls on CHANNEL goes to b1, once what they report may be in use."
  (all-ok (make-calls channel 40) 40)
  (sim:wait-for 0.7)
  (let ((results (make-calls channel 200)))
    (all-ok results 200)
    (share results 1)))

(defun load-of (cpu)
  (list :cpu-utilization cpu :rps-fractional 100d0))

(define-scenario wrr-per-call
    ("A58 Per-Call Load Reporting: CPU 0.1 and 0.9 at the same rate make weights 9 to 1."
     :backends 2)
  (change 1 :load (load-of 0.1d0))
  (change 2 :load (load-of 0.9d0))
  (between 0.85 (weighed-share (open-weighted "'blackoutPeriod':'0s'")) 0.95))

(define-scenario wrr-blackout
    ("A58 blackoutPeriod: for 60 s the weights are not used, then they are." :backends 2)
  (change 1 :load (load-of 0.1d0))
  (change 2 :load (load-of 0.9d0))
  (let ((channel (open-weighted "'blackoutPeriod':'60s'")))
    (between 0.45 (weighed-share channel) 0.55)
    (sim:wait-for 60)
    (between 0.85 (weighed-share channel) 0.95)))

(define-scenario wrr-out-of-band
    ("A58 OOB Load Reporting, A51: the weights come on a stream, asked for every 100 ms."
     :backends 2)
  (change 1 :load-stream (load-of 0.1d0))
  (change 2 :load-stream (load-of 0.9d0))
  (between 0.85 (weighed-share (open-weighted "'blackoutPeriod':'0s','enableOobLoadReport':true,~
                                               'oobReportingPeriod':'0.1s'"))
           0.95)
  (is (equal '(1/10 1/10)
             (mapcar #'load-interval
                     (internal-calls "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics")))))

;;; What a server reports that makes no sense

(defparameter *senseless-loads*
  (let ((nan (sb-kernel:make-double-float #x7FF80000 0)))
    (list (list :cpu-utilization nan :rps-fractional 100d0)
          (list :cpu-utilization 0.5d0 :rps-fractional nan :eps nan)
          (list :application-utilization nan :cpu-utilization 0.5d0 :rps-fractional 100d0
                :utilization (list (cons "x" nan)))
          (list :cpu-utilization least-positive-double-float :rps-fractional 100d0)
          (list :cpu-utilization 6d-209 :rps-fractional 9d99)
          (list :cpu-utilization sb-ext:double-float-positive-infinity :rps-fractional -1d308
                :eps most-positive-double-float))))

(define-scenario wrr-bears-any-report
    ("A114: a NaN is ignored. Whatever b1 reports, with calls or on a stream, no call fails, no
connection is lost, and b2 is replaced by b3." :backends 3)
  (change 2 :load (load-of 0.1d0) :load-stream (load-of 0.1d0))
  (change 3 :load (load-of 0.1d0) :load-stream (load-of 0.1d0))
  (server-tests:with-log ()
    (dolist (more '("" ",'enableOobLoadReport':true,'oobReportingPeriod':'0.1s'"))
      (change 2 :mode :accept)
      (let* ((before (length (lines)))
             (channel (open-weighted (format nil "'blackoutPeriod':'0s'~A" more))))
        (dolist (load *senseless-loads*)
          (change 1 :load load :load-stream load)
          (all-ok (make-calls channel 40) 40)
          (sim:wait-for 0.7))
        (set-names 1 3)
        (kill 2)
        (sim:wait-for 2)
        (let ((results (make-calls channel 200)))
          (all-ok results 200)
          (is (plusp (of-backend results 3)))
          (is (= 200 (+ (of-backend results 1) (of-backend results 3)))))
        (is (= 3 (- (length (lines)) before)))))))

;;; ring_hash

(defun open-ring (&rest numbers)
  (apply #'set-names numbers)
  (open-channel (name-target) (balancing "ring_hash_experimental" "'requestHashHeader':'x-key'")))

(defun with-key (key)
  "Metadata that has KEY, a format control, of the number of a call."
  (lambda (number) (list (cons "x-key" (format nil key number)))))

(define-scenario ring-affinity
    ("A76 requestHashHeader: one key goes to one backend, many reach at least three of four."
     :backends 4)
  (let ((channel (open-ring 1 2 3 4)))
    (dolist (key '("alpha" "beta"))
      (let ((results (make-calls channel 15 :metadata (with-key key))))
        (all-ok results 15)
        (is (= 1 (length (backends-of results))))))
    (let ((results (make-calls channel 80 :metadata (with-key "key ~D"))))
      (all-ok results 80)
      (is (<= 3 (length (backends-of results)))))))

(define-scenario ring-connects-on-demand
    ("A42: subchannels stay :idle until picked; one key needs one connection." :backends 4)
  (let ((channel (open-ring 1 2 3 4)))
    (all-ok (make-calls channel 10 :metadata (with-key "alpha")) 10)
    (sim:wait-for 1/2)
    (is (= 1 (length (lines))))
    (all-ok (make-calls channel 80 :metadata (with-key "key ~D")) 80)
    (is (= 4 (length (lines))))))

(define-scenario ring-random-without-header
    ("A76: calls without the header spread at random." :backends 3)
  (let ((channel (open-ring 1 2 3)))
    (make-calls channel 30)
    (sim:wait-for 1/2)
    (let ((results (make-calls channel 150)))
      (all-ok results 150)
      (is (= 3 (length (backends-of results)))))))

;;; outlier_detection

(defun open-outlier (config)
  "A channel to b1, b2 and b3, which fails all calls, with outlier_detection and CONFIG."
  (change 3 :rules '((:status :unavailable)))
  (open-to-names (balancing "outlier_detection_experimental"
                            (format nil "'interval':'1s',~A'childPolicy':[{'round_robin':{}}]"
                                    config))
                 1 2 3))

(defun failure-percentage (base-seconds minimum-hosts)
  (format nil "'baseEjectionTime':'~Ds','maxEjectionPercent':50,'failurePercentageEjection':~
               {'threshold':50,'enforcementPercentage':100,'minimumHosts':~D,'requestVolume':5},"
          base-seconds minimum-hosts))

(defun paced-calls (channel count)
  "About 50 calls a second."
  (make-calls channel count :parallel 2 :pause 0.04))

(define-scenario od-failure-percentage
    ("A50 Failure Percentage Algorithm: b3 is ejected, and no further call reaches it."
     :backends 3)
  (let ((channel (open-outlier (failure-percentage 30 3))))
    (paced-calls channel 150)
    (let ((results (make-calls channel 30)))
      (all-ok results 30)
      (is (zerop (of-backend results 3))))))

(define-scenario od-returns
    ("A50 Ejection Reporting: after its time b3 gets calls again, on its old connection."
     :backends 3)
  (let ((channel (open-outlier (failure-percentage 1 3))))
    (paced-calls channel 120)
    (is (loop repeat 80
              do (sim:wait-for 0.05)
                thereis (zerop (of-backend (make-calls channel 9) 3)))
        "b3 is not ejected")
    (change 3 :rules '())
    (is (loop repeat 80
              do (sim:wait-for 0.1)
                thereis (= 3 (of-backend (make-calls channel 9) 3)))
        "b3 does not return")
    (is (= 1 (length (lines 3))))))

(define-scenario od-minimum-hosts
    ("A50 Failure Percentage Algorithm: of minimumHosts 5 there are 3, so nobody is ejected."
     :backends 3)
  (let ((channel (open-outlier (failure-percentage 30 5))))
    (paced-calls channel 120)
    (is (= 10 (with-status (make-calls channel 30) :unavailable)))))

(define-scenario od-without-algorithm
    ("A50: without an algorithm it is round_robin." :backends 3)
  (let ((channel (open-outlier "")))
    (paced-calls channel 90)
    (let ((results (make-calls channel 30)))
      (is (= 10 (with-status results :unavailable)))
      (is (= 20 (with-status results :ok))))))

;;; random_subsetting

(define-scenario subset-of-five
    ("A68: subsetSize 2 of 5: calls and connections at exactly two." :backends 5)
  (set-names 1 2 3 4 5)
  (let ((channel (open-channel (name-target)
                               (balancing "random_subsetting_experimental"
                                          "'subsetSize':2,'childPolicy':[{'round_robin':{}}]"))))
    (ok (make-call channel))
    (sim:wait-for 0.7)
    (let ((results (make-calls channel 40)))
      (all-ok results 40)
      (is (= 2 (length (backends-of results))))
      (is (= 2 (length (lines)))))))

(define-scenario subset-invalid
    ("A68 LB Policy Config: subsetSize, not 0, and childPolicy must be there.")
  (apply #'rejected
         (mapcar (lambda (config) (balancing "random_subsetting_experimental" config))
                 '("'subsetSize':0,'childPolicy':[{'round_robin':{}}]"
                   "'childPolicy':[{'round_robin':{}}]"
                   "'subsetSize':2"))))
