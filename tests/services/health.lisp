;;;; Health: what Check, List and Watch say, as callers and grpc-health-probe see it.

(in-package #:clgrpc.tests.services)
(in-suite :clgrpc.services)

(defun call-with-health (function)
  "Call FUNCTION with a server of a probe and a health service, that service, and a channel."
  (let* ((service (make-instance 'grpc:health-service))
         (server (grpc:start-server (list (make-probe) service))))
    (unwind-protect
         (grpc:with-channel (channel (grpc:server-address server))
           (funcall function server service channel))
      (grpc:stop-server server :drain 0))))

(defmacro with-health ((server service channel) &body body)
  `(call-with-health (lambda (,server ,service ,channel)
                       (declare (ignorable ,server ,service ,channel))
                       ,@body)))

(defun health-request (name) (health:make-health-check-request :service name))

(defun checked (channel name)
  (health:health-check-response-status
   (health-methods:check channel (health-request name) :timeout +patience+)))

(defun watch-health (channel name)
  (health-methods:watch channel (health-request name) :timeout +patience+))

(defun next-status (call)
  (let ((response (grpc:receive call)))
    (and response (health:health-check-response-status response))))

(test check-knows-the-servers-services
  (with-health (server service channel)
    (is (eq :serving (checked channel "")))
    (is (eq :serving (checked channel "lab.Bench")))
    (is (eq :serving (checked channel "grpc.health.v1.Health")))
    (is (typep (caught (checked channel "no.Such")) 'grpc:not-found))
    (is (eq :serving (grpc:health-status service "lab.Bench")))
    (is (null (grpc:health-status service "no.Such")))))

(test statuses-can-be-set
  (with-health (server service channel)
    (is (eq :not-serving (grpc:set-health-status service "lab.Bench" :not-serving)))
    (is (eq :not-serving (checked channel "lab.Bench")))
    (grpc:set-health-status service "made.Up" :unknown)
    (is (eq :unknown (checked channel "made.Up")))
    (signals grpc:misuse (grpc:set-health-status service "" :fine))
    (is (equal '(("" . :serving) ("grpc.health.v1.Health" . :serving) ("lab.Bench" . :not-serving)
                 ("made.Up" . :unknown))
               (sort (loop for (name . response)
                             in (grpc:map-alist (health:health-list-response-statuses
                                                 (health-methods:list
                                                  channel (health:make-health-list-request)
                                                  :timeout +patience+)))
                           collect (cons name (health:health-check-response-status response)))
                     #'string< :key #'car)))))

(test long-lists-are-refused
  (with-health (server service channel)
    (dotimes (i 100) (grpc:set-health-status service (format nil "s~D" i) :serving))
    (is (typep (caught (health-methods:list channel (health:make-health-list-request)
                                            :timeout +patience+))
               'grpc:resource-exhausted))))

(test watchers-hear-of-changes
  (with-health (server service channel)
    (grpc:with-call (known (watch-health channel "lab.Bench"))
      (grpc:with-call (unknown (watch-health channel "made.Up"))
        (is (eq :serving (next-status known)))
        (is (eq :service-unknown (next-status unknown)))
        (grpc:set-health-status service "lab.Bench" :serving) ; no change, nothing said
        (grpc:set-health-status service "lab.Bench" :not-serving)
        (is (eq :not-serving (next-status known)))
        (grpc:set-health-status service "made.Up" :serving)
        (is (eq :serving (next-status unknown)))))
    ;; both have gone
    (is (wait-until (lambda ()
                      (zerop (hash-table-count (clgrpc.services::service-watchers service))))))))

(test long-names
  "Check does not say the name again; Watch, which would keep it, takes none that is too long."
  (with-health (server service channel)
    (let* ((name (make-string 100000 :initial-element #\n))
           (error (caught (checked channel name))))
      (is (typep error 'grpc:not-found))
      (is (< (length (grpc:rpc-error-message error)) 100))
      (is (typep (caught (next-status (watch-health channel name))) 'grpc:invalid-argument))
      (is (zerop (hash-table-count (clgrpc.services::service-watchers service)))))))

(test watchers-hold-no-thread
  (with-health (server service channel)
    (let* ((before (length (sb-thread:list-all-threads)))
           (calls (loop repeat 90 collect (watch-health channel ""))))
      (is (every (lambda (call) (eq :serving (next-status call))) calls))
      (let ((more (- (length (sb-thread:list-all-threads)) before)))
        ;; those of the reserve that some handlers ran on, but not one for each
        (is (< more 60) "there are ~D more" more))
      (grpc:set-health-status service "" :not-serving)
      (is (every (lambda (call) (eq :not-serving (next-status call))) calls))
      (mapc #'grpc:cancel calls))))

(test health-follows-the-drain
  (let* ((service (make-instance 'grpc:health-service))
         (server (grpc:start-server (list (make-probe) service))))
    (grpc:with-channel (channel (grpc:server-address server))
      (let ((watch (watch-health channel "lab.Bench")))
        (is (eq :serving (next-status watch)))
        (let ((seconds (elapsed-seconds (is-true (grpc:stop-server server :drain 10)))))
          (is (< seconds 5) "watchers do not hold the drain up: ~,2F s" seconds))
        (is (eq :not-serving (next-status watch)))
        (is (typep (caught (next-status watch)) 'grpc:unavailable))
        (is (eq :not-serving (grpc:health-status service "")))
        (grpc:set-health-status service "" :serving)
        (is (eq :not-serving (grpc:health-status service "")) "it stays so")))))

(defun probe-health (service path)
  "The status and the text with which a handler of SERVICE answers a GET of PATH."
  (let ((answer (funcall (server::http-handler-function (grpc:health-handler service))
                         (server::make-http-request :carrier server::**http1-carrier**
                                                    :method "GET" :target path))))
    (list (server::plain-answer-http-status answer)
          (octets-string (server::plain-answer-body answer)))))

(test health-over-plain-http
  "200 while the server or a service serves, 503 while it does not or drains, 404 for no service."
  (let* ((service (make-instance 'grpc:health-service))
         (server (grpc:start-server service :http (list (grpc:health-handler service)))))
    (is (equal '(200 "serving") (probe-health service "/healthz")))
    (is (equal '(200 "serving") (probe-health service "/healthz?service=grpc.health.v1.Health")))
    (is (equal '(404 "the service is not known") (probe-health service "/healthz?service=none")))
    (grpc:set-health-status service "" :not-serving)
    (is (equal '(503 "not serving") (probe-health service "/healthz")))
    (grpc:set-health-status service "" :serving)
    (is (equal '(200 "serving") (probe-health service "/healthz")))
    (grpc:stop-server server)
    (is (equal '(503 "draining") (probe-health service "/healthz")))))
