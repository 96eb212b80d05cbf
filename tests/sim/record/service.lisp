;;;; The courses of the services that come with clgrpc, and of the interoperability tests.

(in-package #:clgrpc.tests.record)

(defparameter *cases*
  '("empty_unary" "large_unary" "client_streaming" "server_streaming" "ping_pong" "empty_stream"
    "custom_metadata" "status_code_and_message" "special_status_message" "unimplemented_method"
    "unimplemented_service" "cancel_after_begin" "cancel_after_first_response"
    "timeout_on_sleeping_server" "orca_per_rpc" "client_compressed_unary"
    "server_compressed_unary" "client_compressed_streaming" "server_compressed_streaming")
  "The cases of gRPC's interoperability tests that need no time of the machine.")

(define-record interoperability (server client)
    "gRPC's interoperability tests, frame by frame."
  (sim:add-host "server" (lambda () (grpc:start-server (make-instance 'testee:interop-service)
                                                       :listen "server:50051" :observer server)))
  (sim:on-host ((sim:add-host "client"))
    (dolist (name *cases*)
      (grpc:with-channel (channel "server:50051" :observer client)
        (ending (testee:run-interop-case name channel))))))

(defun all-of (call)
  "The messages of CALL."
  (let ((messages '()))
    (grpc:do-messages (message call (nreverse messages)) (push message messages))))

(defun reflect (channel &rest requests)
  "Note what reflection answers to REQUESTS, each a plist of a request's field."
  (ending (mapcar (lambda (message)
                    (grpc.reflection.v1:server-reflection-response-error-response message))
                  (all-of (grpc.reflection.v1.server-reflection:server-reflection-info
                           channel
                           (mapcar (lambda (fields)
                                     (apply #'grpc.reflection.v1:make-server-reflection-request
                                            fields))
                                   requests))))))

(define-record services (server client :write 'write-dialogue)
    "Health that is asked, listed and watched while it changes; reflection of files and symbols."
  (let ((health (make-instance 'grpc:health-service)))
    (sim:add-host "server" (lambda ()
                             (grpc:start-server (list* (make-probe) health
                                                       (grpc:reflection-services))
                                                :listen "server:50051" :observer server)))
    (sim:on-host ((sim:add-host "client"))
      (grpc:with-channel (channel "server:50051" :observer client)
        (flet ((request (name) (grpc.health.v1:make-health-check-request :service name)))
          (let ((watch (grpc.health.v1.health:watch channel (request "lab.Bench"))))
            (dolist (name '("" "lab.Bench" "no.Such"))
              (ending (grpc.health.v1.health:check channel (request name))))
            (dolist (status '(:not-serving :not-serving :serving :unknown))
              (grpc:set-health-status health "lab.Bench" status)
              (sim:wait-for 1/10))
            (ending (grpc.health.v1.health:list channel
                                                (grpc.health.v1:make-health-list-request)))
            (grpc:cancel watch)))
        (reflect channel '(:list-services "") '(:file-containing-symbol "lab.Bench")
                 '(:file-containing-symbol "lab.None") '(:file-by-filename "none.proto")
                 '(:all-extension-numbers-of-type "lab.Note"))))))

(defun load-octets (tenths)
  "A report of a load of TENTHS."
  (protobuf:serialize (xds.data.orca.v3:make-orca-load-report :cpu-utilization (/ tenths 10d0)
                                                              :rps-fractional 10d0)))

(define-record policies (server client :write 'write-events)
    "Each policy of balancing, on three servers of which one reports its load."
  (dolist (name '("one" "two" "three"))
    (let ((name name))
      (sim:add-host name (lambda ()
                           (let ((health (make-instance 'grpc:health-service)))
                             (grpc:start-server
                              (list (make-probe
                                     :ask (lambda (note call)
                                            (setf (grpc:call-trailers call)
                                                  `(("endpoint-load-metrics-bin"
                                                     . ,(load-octets (length name)))))
                                            (sim:note "answers")
                                            note))
                                    health)
                              :listen (format nil "~A:50051" name) :execution :inline
                              :observer server))))))
  (sim:on-host ((sim:add-host "client"))
    (dolist (policy (append sim-tests:*watchful-policies* sim-tests:*other-policies*))
      (sim:note "~A" policy)
      (grpc:with-channel (channel "ipv4:10.0.0.2:50051,10.0.0.3:50051,10.0.0.4:50051"
                          :observer client
                          :service-config (format nil "{\"loadBalancingConfig\":[~A]}" policy))
        (dotimes (i 8)
          (ending (number-of (lab.bench:ask channel (note i)
                                            :metadata `(("x-key" . ,(princ-to-string i))))))
          (sim:wait-for 1/4))))))

(define-record gateways (server client)
    "Calls of each kind and each end through a gateway."
  (sim:add-host "server" (lambda () (serve-notes server)))
  (sim:add-host "gateway"
                (lambda ()
                  (let ((channel (grpc:make-channel "server:50051" :observer client)))
                    (list (grpc:start-server (grpc:make-gateway-service channel)
                                             :listen "gateway:50051" :observer server)
                          channel))))
  (sim:on-host ((sim:add-host "client"))
    (grpc:with-channel (channel "gateway:50051" :observer client)
      (call-unary channel)
      (call-streams channel))))

(define-record topics (server client :write 'write-dialogue)
    "What subscribers get, from now on or from the past; one that does not read."
  (let ((topic (grpc:make-topic :past 2 :queue 4)))
    (sim:add-host "server"
                  (lambda ()
                    (start-probe (list :watch (lambda (note call)
                                                (let ((from (number-of note)))
                                                  (grpc:subscribe topic call
                                                                  :from (and (plusp from) from)))))
                                 :listen "server:50051" :observer server)))
    (sim:on-host ((sim:add-host "client"))
      (grpc:with-channel (channel "server:50051" :observer client :stream-window-octets 65535)
        (let ((first (lab.bench:watch channel (note 0))))
          (sim:wait-for 1/10)
          (dotimes (i 4) (grpc:broadcast topic (note (* 10 i))))
          (let ((later (lab.bench:watch channel (note 3))))
            (sim:wait-for 1/10)
            (dotimes (i 12) (grpc:broadcast topic (note i :body 2000)))
            (dotimes (i 3) (ending (number-of (grpc:receive first))))
            (sim:wait-for 1/10)
            (sim:note "~S" (grpc:topic-statistics topic))
            (grpc:cancel first)
            (sim:wait-for 1/10)
            (grpc:broadcast topic (note 1))
            (grpc:close-topic topic)
            (ending (numbers-of later))))))))

(define-record faults (server client)
    "Lines that are cut, parted and slow; a host that is killed, and one that stops."
  (let ((host (sim:add-host "server" (lambda () (serve-notes server)))))
    (sim:on-host ((sim:add-host "client"))
      (grpc:with-channel (channel "server:50051" :observer client :keepalive-seconds 10
                                                 :keepalive-timeout-seconds 5)
        (let ((here (sim:current-host)))
          (asks channel 1)
          (sim:cut here host)
          (asks channel 1)
          (sim:partition here host)
          (asks channel 1 :timeout 1)
          (sim:heal here host)
          (sim:slow host 20000)
          (ending (number-of (lab.bench:ask channel (note 1 :body 5000))))
          (sim:slow host nil)
          (let ((call (grpc:call-async #'lab.bench:ask channel (note 408))))
            (sim:wait-for 1/10)
            (sim:partition here host)
            (ending (grpc:await call))
            (sim:heal here host))
          (asks channel 1 :wait-for-ready t)
          (sim:restart-host host :down 3)
          (sim:wait-for 1/10)
          (asks channel 1 :wait-for-ready t)
          (sim:stop-host host :drain 1)
          (sim:wait-for 1)
          (asks channel 1))))))
