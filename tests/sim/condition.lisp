;;;; What servers of the mix of client policy say of themselves beside their answers: their health
;;;; (gRFC A17) and their load (gRFC A51); and the policies that may balance calls on them.

(in-package #:clgrpc.tests.sim)

;;; Health

(defconstant +news-ns+ 600000000
  "How long it may take until a channel has heard that a server is not well: twice the longest
latency, a packet that is lost, and turns of the loops.")

(defstruct (patient (:copier nil))
  "What is known of a server's health."
  (service nil)                         ; its health service, since it last started
  (status :serving :type symbol)        ; what that says of "fleet"
  (since-ns 0 :type nanoseconds))       ; when it began to say so

(defmethod print-object ((patient patient) stream)
  (print-unreadable-object (patient stream :type t)
    (format stream "~(~S~)" (patient-status patient))))

(defun admit (patient)
  "PATIENT's server starts: return its health service."
  (let ((service (make-instance 'grpc:health-service)))
    (grpc:set-health-status service "fleet" (patient-status patient))
    (setf (patient-service patient) service)))

(defun turn (patient status now-ns)
  "PATIENT's server is STATUS from now on."
  (unless (eq status (patient-status patient))
    (sim:note "~(~S~)" status)
    (setf (patient-status patient) status
          (patient-since-ns patient) now-ns)
    (grpc:set-health-status (patient-service patient) "fleet" status)))

(defun known-unwell-p (patient now-ns)
  "True if PATIENT's server has long been unwell, so that all know."
  (and (eq :not-serving (patient-status patient))
       (< (+ (patient-since-ns patient) +news-ns+) now-ns)))

;;; Load

(defclass load-reporter (xds.service.orca.v3:open-rca-service)
  ((chance :initarg :chance :reader reporter-chance)
   (calls :initform '() :accessor reporter-calls)) ; to which reports are sent
  (:documentation "OpenRcaService that sends reports as its CHANCE says."))

(defun report-load (service call seconds)
  "Send CALL a report now and each SECONDS."
  (when (member call (reporter-calls service))
    (grpc:try-send call (xds.data.orca.v3:make-orca-load-report
                         :cpu-utilization (/ (sim:between (reporter-chance service) 0 10) 10d0)
                         :rps-fractional (* 1d0 (sim:between (reporter-chance service) 0 100))))
    (grpc:after call seconds (lambda () (report-load service call seconds)))))

(defmethod xds.service.orca.v3.open-rca-service:stream-core-metrics
    ((service load-reporter) request &key call)
  (let ((interval (xds.service.orca.v3:orca-load-report-request-report-interval request)))
    (push call (reporter-calls service))
    (grpc:on-cancel call (lambda ()
                           (setf (reporter-calls service)
                                 (delete call (reporter-calls service)))))
    (report-load service call (max 1/10 (grpc:duration-in-seconds interval)))
    call))

(defmethod grpc:note-server-stopping ((service load-reporter) server)
  (declare (ignore server))
  ;; the server waits for its calls to end, and these would not by themselves
  (dolist (call (shiftf (reporter-calls service) '()))
    (grpc:finish call :status :unavailable :message "the server is stopping")))

;;; Balancing

(grpc:define-balancer last-of-all "last_of_all" ((servers :initform '() :accessor servers))
  (:documentation "A policy of a user: calls go to the last server that is ready."))

(defmethod grpc:update-backends ((balancer last-of-all) backends config)
  (declare (ignore config))
  (mapc #'grpc:close-subchannel (servers balancer))
  (setf (servers balancer)
        (mapcar (lambda (backend) (grpc:open-subchannel balancer backend)) backends))
  (mapc #'grpc:connect (servers balancer))
  (unless backends
    (grpc:publish balancer :transient-failure (grpc:make-failure "there is no server"))))

(defmethod grpc:subchannel-changed ((balancer last-of-all) subchannel)
  (when (eq :idle (grpc:subchannel-state subchannel)) (grpc:connect subchannel))
  (flet ((last-in (state)
           (find state (servers balancer) :key #'grpc:subchannel-state :from-end t)))
    (let ((ready (last-in :ready)))
      (cond (ready (grpc:publish balancer :ready
                                 (grpc:make-picker (constantly ready) "the last of all")))
            ((last-in :connecting) (grpc:publish balancer :connecting nil))
            (t (grpc:publish balancer :transient-failure
                             (grpc:make-failure "no server can be reached")))))))

(defparameter *watchful-policies*
  '("{\"round_robin\":{}}"
    "{\"least_request_experimental\":{\"choiceCount\":3}}"
    "{\"weighted_round_robin\":{\"blackoutPeriod\":\"0s\",\"weightUpdatePeriod\":\"0.1s\"}}"
    "{\"weighted_round_robin\":{\"blackoutPeriod\":\"0.2s\",\"weightUpdatePeriod\":\"0.1s\",
      \"enableOobLoadReport\":true,\"oobReportingPeriod\":\"0.2s\"}}"
    "{\"ring_hash_experimental\":{\"requestHashHeader\":\"x-key\"}}"
    "{\"outlier_detection_experimental\":{\"interval\":\"0.3s\",\"baseEjectionTime\":\"0.5s\",
      \"maxEjectionPercent\":60,\"failurePercentageEjection\":{\"threshold\":50,
      \"minimumHosts\":2,\"requestVolume\":2},\"childPolicy\":[{\"round_robin\":{}}]}}"
    "{\"random_subsetting_experimental\":{\"subsetSize\":2,
      \"childPolicy\":[{\"least_request_experimental\":{}}]}}"
    "{\"priority_experimental\":{\"priorities\":[\"a\",\"b\"],\"children\":
      {\"a\":{\"config\":[{\"round_robin\":{}}]},\"b\":{\"config\":[{\"round_robin\":{}}]}}}}"
    "{\"weighted_target_experimental\":{\"targets\":{\"a\":{\"weight\":1,
      \"childPolicy\":[{\"round_robin\":{}}]}}}}")
  "Policies, as elements of loadBalancingConfig, that heed what servers say of their health.")

(defparameter *other-policies*
  '("{\"pick_first\":{}}" "{\"pick_first\":{\"shuffleAddressList\":true}}" "{\"last_of_all\":{}}")
  "Others, which do not.")
