;;;; The courses of calls that are tried again, hedged and balanced, of connections that are idle or
;;;; old, and of servers that come, go and are unwell.

(in-package #:clgrpc.tests.record)

(defun serve-named (name observers failures &rest options)
  "Serve notes at the host NAME. The first FAILURES calls fail, with a pushback where their number
is even."
  (apply #'start-probe
         (list :ask (lambda (note call)
                      (cond ((minusp (decf failures))
                             (grpc:after call (/ (number-of note) 1000)
                                         (lambda () (grpc:reply call note)))
                             call)
                            (t (grpc:fail :unavailable name
                                          :trailers (when (evenp (number-of note))
                                                      '(("grpc-retry-pushback-ms" . "70"))))))))
         :listen (format nil "~A:50051" name) :observer observers :execution :inline options))

(defun asks (channel count &rest options)
  "Note what comes of COUNT calls on CHANNEL, one after the other."
  (dotimes (i count)
    (ending (number-of (apply #'lab.bench:ask channel (note i) options)))))

(defun json (text)
  "TEXT with double quotes for single ones."
  (substitute #\" #\' text))

(define-record retries (server client)
    "Failures are tried again, after the back-off or the pushback; then throttled."
  (sim:add-host "server" (lambda () (serve-named "server" server 6)))
  (sim:on-host ((sim:add-host "client"))
    (grpc:with-channel (channel "server:50051" :observer client
                        :service-config
                        (json "{'methodConfig':[{'name':[{}],'timeout':'5s','retryPolicy':{
                                'maxAttempts':3,'initialBackoff':'0.1s','maxBackoff':'1s',
                                'backoffMultiplier':2,'retryableStatusCodes':['UNAVAILABLE']}}],
                                'retryThrottling':{'maxTokens':10,'tokenRatio':0.5}}"))
      (asks channel 6))))

(define-record hedging (server client)
    "Attempts begin while others run; the first answer cancels the others."
  (dolist (name '("one" "two"))
    (let ((name name)) (sim:add-host name (lambda () (serve-named name server 1)))))
  (sim:on-host ((sim:add-host "client"))
    (grpc:with-channel (channel "ipv4:10.0.0.2:50051,10.0.0.3:50051" :observer client
                        :service-config
                        (json "{'loadBalancingConfig':[{'round_robin':{}}],
                                'methodConfig':[{'name':[{}],'hedgingPolicy':{'maxAttempts':3,
                                'hedgingDelay':'0.05s','nonFatalStatusCodes':['UNAVAILABLE']}}]}"))
      (asks channel 2)
      (ending (number-of (lab.bench:ask channel (note 120)))))))

(define-record balancing (server client)
    "Names change, one server fails and is ejected, one is restarted."
  (let ((failing 1000))
    (multiple-value-bind (names address) (sim-tests:add-name-server)
      (dns-tests:set-records names "svc.test" dns:+a+ "10.0.0.3" "10.0.0.4")
      (sim:add-host "one" (lambda () (serve-named "one" server 0)))
      (sim:add-host "two" (lambda () (serve-named "two" server failing)))
      (let ((three (sim:add-host "three" (lambda () (serve-named "three" server 0)))))
        (sim:on-host ((sim:add-host "client"))
          (grpc:with-channel (channel (format nil "dns://~A/svc.test:50051" address)
                              :observer client :resolve-interval-seconds 1
                              :service-config
                              (json "{'loadBalancingConfig':[{'outlier_detection_experimental':{
                                      'interval':'1s','baseEjectionTime':'3s',
                                      'maxEjectionPercent':60,'failurePercentageEjection':{
                                      'threshold':50,'minimumHosts':2,'requestVolume':3},
                                      'childPolicy':[{'round_robin':{}}]}}]}"))
            (asks channel 8)
            (sim:wait-for 2)
            (asks channel 4)
            (dns-tests:set-records names "svc.test" dns:+a+ "10.0.0.3" "10.0.0.5")
            (sim:wait-for 3)
            (asks channel 4)
            (sim:restart-host three :down 1)
            (sim:wait-for 1/10)
            (asks channel 2)
            (sim:wait-for 3)
            (asks channel 2)))))))

(define-record ages (server client :tracers "keepalive,subchannel")
    "Keep-alives on a quiet connection; one that is idle, and one that is old, ends."
  (sim:add-host "server" (lambda ()
                           (start-probe (list :ask (handling (note) note)
                                              :watch (lambda (note call)
                                                       (grpc:send call note)
                                                       call))
                                        :listen "server:50051" :observer server
                                        :max-connection-age-seconds 20
                                        :max-connection-age-grace-seconds 5
                                        :max-connection-idle-seconds 8)))
  (sim:on-host ((sim:add-host "client"))
    (grpc:with-channel (channel "server:50051" :observer client :keepalive-seconds 10
                                               :idle-seconds 60)
      (asks channel 1)
      (sim:wait-for 12)
      (let ((call (lab.bench:watch channel (note 1))))
        (grpc:receive call)
        (sim:wait-for 40)
        (ending (grpc:receive call)))
      (asks channel 1))))
