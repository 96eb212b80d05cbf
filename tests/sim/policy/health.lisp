;;;; Health checks of clients (gRFC A17).

(in-package #:clgrpc.tests.policy)

(defparameter *watchful*
  (json "{'loadBalancingConfig':[{'round_robin':{}}],'healthCheckConfig':{'serviceName':'svc'}}")
  "round_robin that watches the service svc.")

(define-scenario health-not-serving-avoided
    ("A17 Client Workflow: a backend that is not serving gets no call."
     :backends 2 :health '("svc" :serving))
  (change 2 :health '("svc" :not-serving))
  (let ((results (make-calls (open-to-names *watchful* 1 2) 12)))
    (all-ok results 12)
    (is (= 12 (of-backend results 1)))))

(define-scenario health-unimplemented-is-healthy
    ("A17 Client Workflow: where Watch is :unimplemented calls pass, and it is asked once."
     :backends 2)
  (let* ((channel (open-to-names *watchful* 1 2))
         (results (make-calls channel 10)))
    (all-ok results 10)
    (is (= 5 (of-backend results 1)))
    (sim:wait-for 1.5)
    (is (= 2 (length (internal-calls "/grpc.health.v1.Health/Watch"))))))

(define-scenario health-turns
    ("A17 Client Workflow: calls leave b2 and come back, over one connection."
     :backends 2 :health '("svc" :serving))
  (let ((channel (open-to-names *watchful* 1 2)))
    (flet ((given-by-b2 ()
             (sim:wait-for 0.05)
             (of-backend (make-calls channel 10) 2)))
      (is (= 5 (given-by-b2)))
      (change 2 :health '("svc" :not-serving))
      (is (= 0 (given-by-b2)))
      (change 2 :health '("svc" :serving))
      (is (= 5 (given-by-b2)))
      (is (= 1 (length (lines 2)))))))

(define-scenario a-server-that-greets-and-goes-is-asked-rarely
    ("gRPC's connection back-off: our own Watch makes no connection a useful one." :mode :greet)
  (open-to-one-that-fails)
  (sim:wait-for 60)
  ;; at once, then after 1, 1.6, 2.56 … seconds, each 20 % more or less
  (between 8 (length (lines 1)) 14))

(define-scenario a-watch-that-ends-is-asked-again-rarely
    ("A17 Client Workflow: the next attempt at once, any subsequent one after a back-off."
     :health '("svc" :serving) :side-end :unavailable)
  (open-to-one-that-fails)
  (sim:wait-for 60)
  (is (= 1 (length (lines 1))))
  (between 8 (length (internal-calls "/grpc.health.v1.Health/Watch")) 14))

(define-scenario reports-that-end-are-asked-for-again-rarely
    ("A51: a stream of load reports is renewed as one of health is."
     :load-stream (load-of 0.5d0) :side-end :ok)
  (open-to-names (balancing "weighted_round_robin" "'enableOobLoadReport':true") 1)
  (sim:wait-for 60)
  (is (= 1 (length (lines 1))))
  (between 8 (length (internal-calls "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics")) 14))

(defun open-to-one-that-fails ()
  "A channel that watches the backend 1, and is to connect."
  (set-names 1)
  (connect (open-channel (name-target) *watchful*)))

;;; Call credentials

(defparameter *watchful-with-load*
  (json "{'loadBalancingConfig':[{'weighted_round_robin':{'enableOobLoadReport':true}}],
          'healthCheckConfig':{'serviceName':'svc'}}"))

(define-scenario internal-calls-have-the-channels-credentials
    ("A17: \"the client will send those credentials with the Watch() call\"; and for load reports."
     :health '("svc" :serving) :load-stream (load-of 0.5d0) :token "Bearer of 7")
  (set-names 1)
  (let* ((asked 0)
         (channel (open-channel (name-target) *watchful-with-load* :plaintext-credentials t
                                :call-credentials (grpc:bearer-token
                                                   (lambda ()
                                                     (incf asked)
                                                     (sim:wait-for 1/10)
                                                     "of 7")))))
    (ok (make-call channel))
    (is (= 3 asked))
    (dolist (path '("/grpc.health.v1.Health/Watch"
                    "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics"))
      (is (= 1 (length (internal-calls path))))
      (is (null (attempt-ended (first (internal-calls path))))))))

(define-scenario internal-calls-without-credentials-are-not-made
    ("Credentials that fail, or that would go in the clear: nothing is sent, and the reason is told."
     :health '("svc" :serving) :token "Bearer of 7")
  (set-names 1)
  (dolist (options `((:call-credentials ,(grpc:bearer-token "of 7"))
                     (:plaintext-credentials t
                      :call-credentials ,(lambda (path) (error "none for ~A" path)))))
    (let ((channel (apply #'open-channel (name-target) *watchful* options)))
      (connect channel)
      (await-state channel 5 :transient-failure)
      (sim:wait-for 30)
      (is (null (internal-calls "/grpc.health.v1.Health/Watch")))
      (is (search "UNAUTHENTICATED"
                  (getf (first (grpc:channel-addresses channel)) :last-error))))))
