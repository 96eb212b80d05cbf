;;;; Policies of users: the one in doc/fleets.md, errors, and a change of policy.

(in-package #:clgrpc.tests.balance)

(test another-policy-takes-over-when-it-is-ready
  (with-core (core)
    (update core "[{\"round_robin\":{}}]" 1 2)
    (bring core :ready 1 2)
    (let ((old (live core)))
      (update core "[{\"least_request_experimental\":{}}]" 1 2)
      (is (= 4 (length (live core))))
      (is (member (pick core) old))
      (let ((new (find-if-not (lambda (subchannel) (member subchannel old)) (live core))))
        (come-to :ready new)
        (is (eq new (pick core)))
        (is (= 2 (length (live core))))))))

(grpc:define-balancer calmest "calmest" ((servers :initform '() :accessor servers)))

(defmethod grpc:update-backends ((balancer calmest) backends config)
  (declare (ignore config))
  (mapc #'grpc:close-subchannel (servers balancer))
  (setf (servers balancer)
        (mapcar (lambda (backend) (grpc:open-subchannel balancer backend)) backends))
  (mapc #'grpc:connect (servers balancer)))

(defmethod grpc:subchannel-changed ((balancer calmest) subchannel)
  (when (eq :idle (grpc:subchannel-state subchannel)) (grpc:connect subchannel))
  (flet ((all (state)
           (remove state (servers balancer) :key #'grpc:subchannel-state :test-not #'eq)))
    (let ((ready (all :ready)))
      (cond (ready
             (flet ((pick (call)
                      (declare (ignore call))
                      (first (sort (copy-list ready) #'< :key #'grpc:subchannel-calls))))
               (grpc:publish balancer :ready (grpc:make-picker #'pick "the calmest"))))
            ((all :connecting) (grpc:publish balancer :connecting nil))
            (t (grpc:publish balancer :transient-failure
                             (grpc:make-failure "no server can be reached")))))))

(test a-policy-of-ones-own
  (with-probe (channel :server server) (:ask (handling (note)
                                               (note (number-of note))))
    (let ((target (grpc:server-address server)))
      (dolist (options '((:balance :calmest)
                         (:service-config "{\"loadBalancingConfig\":[{\"calmest\":{}}]}")))
        (grpc:with-channel (own target (first options) (second options))
          (is (= 7 (number-of (ask own (note 7) :timeout 10))))
          (is (search "CALMEST" (princ-to-string
                                 (policy-of (client::channel-core own))))))))))

(grpc:define-balancer rash "rash" ())

(defmethod grpc:update-backends ((balancer rash) backends config)
  (declare (ignore backends config))
  (error "in a hurry"))

(defmethod grpc:subchannel-changed ((balancer rash) subchannel)
  (declare (ignore subchannel)))

(test errors-of-a-policy-are-the-calls
  (with-log (:balancer-failed)
    (with-core (core)
      (update core "[{\"rash\":{}}]" 1)
      (is (eq :transient-failure (state core)))
      (is (search "in a hurry" (client:failure-text (pick core)))))))

(grpc:define-balancer sleepy "sleepy" ())

(defmethod grpc:update-backends ((balancer sleepy) backends config)
  (declare (ignore backends config))
  (grpc:publish balancer :idle nil))

(defmethod grpc:subchannel-changed ((balancer sleepy) subchannel)
  (declare (ignore subchannel)))

(defmethod grpc:exit-idle ((balancer sleepy))
  (error "not yet"))

(test an-error-of-a-policy-that-is-to-connect-ends-the-calls
  (with-log (:balancer-failed)
    (with-core (core)
      (update core "[{\"sleepy\":{}}]" 1)
      (client:exit-idle (switch-of core))
      (is (eq :transient-failure (state core)))
      (is (search "not yet" (client:failure-text (pick core)))))))

(grpc:define-balancer shy "shy" ((failing :initform t :accessor shy-failing-p)))

(defmethod grpc:update-backends ((balancer shy) backends config)
  (declare (ignore config))
  (dolist (backend backends)
    (grpc:connect (grpc:open-subchannel balancer backend))))

(defmethod grpc:subchannel-changed ((balancer shy) subchannel)
  (when (shy-failing-p balancer) (error "not me"))
  (when (eq :ready (grpc:subchannel-state subchannel))
    (grpc:publish balancer :ready subchannel)))

(test an-error-of-a-policy-about-a-state-ends-the-calls
  "They would wait for ever, since it has published nothing. Its later pickers count."
  (with-log (:balancer-failed)
    (with-core (core)
      (update core "[{\"shy\":{}}]" 1)
      (is (eq :transient-failure (state core)))
      (is (search "not me" (client:failure-text (pick core))))
      (setf (shy-failing-p (policy-of core)) nil)
      (bring core :ready 1)
      (is (eq :ready (state core))))))

(test timers-of-policies-outlive-errors
  (with-log (:timer-function-error)
    (with-core (core)
      (update core "[{\"round_robin\":{}}]" 1)
      (let ((rung 0))
        (balance::start-policy-timer (policy-of core) 0
                                     (fn (_balancer) (when (= 1 (incf rung)) (error "overslept"))))
        (elapse core 10)
        (is (= 2 rung))))))
