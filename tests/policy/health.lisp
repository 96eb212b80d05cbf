;;;; Health checks of clients (gRFC A17).

(in-package #:clgrpc.tests.policy)
(in-suite :clgrpc.policy)

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
    (is (= 2 (length (side-calls "/grpc.health.v1.Health/Watch"))))))

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
