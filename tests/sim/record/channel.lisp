;;;; The courses of channels: their states, names that change while they connect, connections that
;;;; they share, breakers.

(in-package #:clgrpc.tests.record)

(defun note-states (channel)
  "Note each state of CHANNEL from now on."
  (grpc:on-state-change channel (lambda (state) (sim:note "is ~(~A~)" state))))

(define-record names-while-connecting (server client :tracers "dns_resolver,channel,tls")
    "The addresses of a name grow, shrink and change while a channel connects, is ready, and waits."
  (multiple-value-bind (names address) (sim-tests:add-name-server)
    (let ((hosts (loop for name in '("one" "two" "three")
                       collect (let ((name name))
                                 (sim:add-host name (lambda () (serve-named name server 0)))))))
      (sim:on-host ((sim:add-host "client"))
        (flet ((set-names (&rest numbers)
                 (apply #'dns-tests:set-records names "svc.test" dns:+a+
                        (loop for number in numbers collect (format nil "10.0.0.~D" (+ 2 number))))
                 (sim:wait-for 3/2)))
          (set-names 1)
          (dolist (policy '("pick_first" "round_robin"))
            (grpc:with-channel (channel (format nil "dns://~A/svc.test:50051" address)
                                :observer client :resolve-interval-seconds 1
                                :connect-timeout-seconds 4
                                :service-config
                                (json (format nil "{'loadBalancingConfig':[{'~A':{}}]}" policy)))
              (note-states channel)
              (dolist (host hosts) (sim:partition (sim:current-host) host))
              (ending (grpc:ensure-connected channel :timeout 1))
              (set-names 1 2)
              (set-names 2)
              (set-names 3)
              (sim:heal (sim:current-host) (third hosts))
              (sim:wait-for 2)
              (asks channel 1 :timeout 3)
              (set-names 1 3)
              (asks channel 1 :timeout 3)
              (set-names 1)
              (asks channel 1 :timeout 3)
              (dolist (host hosts) (sim:heal (sim:current-host) host))
              (sim:wait-for 10)
              (asks channel 2 :timeout 3)
              (set-names 2 3)
              (asks channel 2 :timeout 3))))))))

(define-record states (server client :tracers "channel,subchannel,connectivity_state,server")
    "A channel is idle, connects, fails, waits and is reset; it shares its connection with another."
  (let ((host (sim:add-host "server" (lambda () (serve-notes server)))))
    (sim:on-host ((sim:add-host "client"))
      (let ((channels (loop repeat 2
                            collect (grpc:make-channel "server:50051" :observer client
                                                       :share-connections t :idle-seconds 5
                                                       :backoff-initial-seconds 2))))
        (note-states (first channels))
        (ending (grpc:ensure-connected (first channels) :timeout 1))
        (dolist (channel channels) (asks channel 1))
        (sim:note "~S" (grpc:channel-addresses (first channels)))
        (sim:wait-for 12)
        (sim:restart-host host :drain 0 :down 1)
        (sim:wait-for 1/10)
        (asks (second channels) 1)
        (asks (first channels) 1 :timeout 1)
        (grpc:reset-back-off (first channels))
        (sim:wait-for 1/10)
        (dolist (channel channels) (asks channel 1))
        (mapc #'grpc:close-channel channels)))))
