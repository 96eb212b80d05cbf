;;;; Health checking: the reports of a server and their effect, also over sockets.

(in-package #:clgrpc.tests.balance)

(test health-vetoes
  (with-core (core)
    (update core "[{\"round_robin\":{}}]" 1)
    (let ((one (member-to core 1)))
      (flet ((judge (event &optional datum)
               (balance::judge-health one "svc" event datum)
               (client:subchannel-state one))
             (says (status) (health:make-health-check-response :status status)))
        (balance::judge-health one "svc" :begun nil)
        (bring core :ready 1)
        (is (eq :connecting (client:subchannel-state one)))
        (is (eq :ready (judge :message (says :serving))))
        (is (eq :transient-failure (judge :message (says :not-serving))))
        (is (search "NOT_SERVING" (client:failure-text (pick core))))
        (is (eq :ready (judge :message (says :serving))))
        (is (eq :transient-failure (judge :message (says :service-unknown))))
        (is (eq :connecting (judge :begun)))
        (is (eq :transient-failure (judge :lost :unavailable)))
        (is (eq :ready (judge :unimplemented)))))))

(test facts-about-health
  "The facts that channelz shows about a subchannel's health; none if no health is checked."
  (with-core (core)
    (update core "[{\"round_robin\":{}}]" 1)
    (let ((one (member-to core 1)) (policy (policy-of core)))
      (flet ((facts () (client:subchannel-facts policy one)))
        (bring core :ready 1)
        (is (null (facts)))
        (setf (balance::leaf-policy-health policy) "svc")
        (is (equal '(:health :serving) (facts)))
        (balance::judge-health one "svc" :begun nil)
        (is (equal '(:health :connecting) (facts)))
        (balance::judge-health one "svc" :lost :unavailable)
        (is (equal '(:health :transient-failure) (facts)))
        (bring core :idle 1)
        (is (equal '(:health :not-connected) (facts)))))))

(test servers-that-do-not-serve-have-no-calls
  "Over sockets: a server that reports not serving gets no calls until it serves again."
  (let* ((healths (list (make-instance 'grpc:health-service)
                        (make-instance 'grpc:health-service)))
         (servers (loop for health in healths
                        for name in '("0" "1")
                        collect (let ((name name))
                                  (grpc:start-server
                                   (list (make-probe :ask (handling (note)
                                                            (note (number-of note) :text name)))
                                         health)
                                   :listen "127.0.0.1:0")))))
    (unwind-protect
         (grpc:with-channel (channel (format nil "ipv4:~{~A~^,~}"
                                             (mapcar #'grpc:server-address servers))
                                     :service-config
                                     "{\"loadBalancingConfig\":[{\"round_robin\":{}}],
                                       \"healthCheckConfig\":{\"serviceName\":\"\"}}")
           (flet ((who (count)
                    (remove-duplicates
                     (loop repeat count
                           collect (lab:note-text (ask channel (note 1) :timeout 10
                                                                              :wait-for-ready t)))
                     :test #'string=)))
             (eventually (= 2 (length (who 10))))
             (grpc:set-health-status (first healths) "" :not-serving)
             (eventually (equal '("1") (who 10)))
             (grpc:set-health-status (first healths) "" :serving)
             (eventually (= 2 (length (who 10))))))
      (dolist (server servers) (is-true (grpc:stop-server server :drain 5))))))

(test channels-may-do-without-health-checks
  "gRFC A17: the user may disable what a service config asks for."
  (flet ((service (&rest options)
           (tests:with-core (core puppet :pick-first :options options)
             (setf (client::core-config core)
                   (config:parse-service-config
                    "{\"healthCheckConfig\":{\"serviceName\":\"svc\"}}"))
             (client:health-service core))))
    (is (string= "svc" (service)))
    (is (null (service :health-checking nil)))))

(test ensure-connected-reports-servers-that-do-not-serve
  "ENSURE-CONNECTED reports them although the channel has connected without an error."
  (let* ((health (make-instance 'grpc:health-service))
         (server (grpc:start-server (list (make-probe) health) :listen "127.0.0.1:0")))
    (grpc:set-health-status health "svc" :not-serving)
    (unwind-protect
         (grpc:with-channel (channel (grpc:server-address server)
                             :balance :round-robin
                             :service-config "{\"healthCheckConfig\":{\"serviceName\":\"svc\"}}")
           (let ((error (caught (grpc:ensure-connected channel :timeout 60))))
             (is (typep error 'grpc:unavailable))
             (is (search "svc" (grpc:rpc-error-message error)))))
      (is-true (grpc:stop-server server :drain 5)))))
