;;;; Steps as they are written.

(in-package #:clgrpc.tests.workflow)

(define-workflow parcel
  (:task "pack" :attempts 3 :backoff 1/2 :max-backoff 5 :factor 3 :attempt-timeout 30 :timeout 60
                :input "a box" :name "packing")
  (:wait 1/4)
  (:until 1000)
  (:signal "paid" :timeout 5)
  "send")

(test steps-as-they-are-written
  (let ((steps (workflow::steps-of 'parcel)))
    (is (protobuf:message=
         (pb:make-step :name "packing" :task "pack" :input (string-octets "a box") :max-attempts 3
                       :backoff-ms 500 :max-backoff-ms 5000 :backoff-factor 3
                       :attempt-timeout-ms 30000 :timeout-ms 60000)
         (first steps)))
    (is (protobuf:message= (pb:make-step :wait-ms 250) (second steps)))
    (is (protobuf:message= (pb:make-step :until-unix-ms 1000000) (third steps)))
    (is (protobuf:message= (pb:make-step :signal "paid" :timeout-ms 5000) (fourth steps)))
    (is (protobuf:message= (pb:make-step :task "send") (fifth steps))))
  (is (eq :task (pb:step-action-case (first (workflow::steps-of (list (pb:make-step :task "x")))))))
  (dolist (form '(nil (:do "x") (:task "x" :attempts 0) (:wait -1) (:wait "x") 7))
    (signals error (workflow::step-of form)))
  (signals misuse (find-workflow-steps 'none)))

(test payloads-as-they-are-given
  (is (equalp (string-octets "ä") (workflow::payload-octets "ä")))
  (is (equalp (make-octets 0) (workflow::payload-octets nil)))
  (is (equalp (protobuf:serialize (pb:make-held :id "a"))
              (workflow::payload-octets (pb:make-held :id "a"))))
  (signals misuse (workflow::payload-octets 5)))
