;;;; What the mix has found, each as a test of its own that needs virtual time.

(in-package #:clgrpc.tests.sim)
(in-suite :clgrpc.sim)

(test a-connection-that-is-being-made-is-not-idle
  "The server's SETTINGS take longer than connections may be idle."
  (with-echo (channel :client client)
    (sim:slow client 200)
    (grpc:with-channel (brief "server:50051" :max-connection-idle-seconds 1/20)
      (is (= 1 (ask brief 1))))))

(test connections-that-we-end-say-nothing-of-the-server
  "They became idle before a call could use them; the next is made at once."
  (with-echo (channel)
    (grpc:with-channel (brief "server:50051" :max-connection-idle-seconds 1/50)
      (dotimes (i 5)
        (grpc:ensure-connected brief)
        (is (eq :idle (grpc:wait-for-state-change brief :ready :timeout 1))))
      (is (= 1 (ask brief 1))))))

(test a-drain-waits-for-its-ping-to-leave
  "A server that ends an old connection has much to send first; a request comes meanwhile."
  (flet ((scenario (simulation)
           (declare (ignore simulation))
           (let ((client (sim:add-host "client")))
             (sim:add-host "server"
                           (lambda ()
                             (lab-server:start-probe
                              (list :ask (lambda (note call) (declare (ignore call)) note)
                                    :collect (lambda (stream call)
                                               (declare (ignore call))
                                               (let ((last nil))
                                                 (grpc:do-messages (note stream last)
                                                   (setf last note)))))
                              :listen "server:50051" :max-connection-age-seconds 1)))
             (sim:on-host (client)
               (grpc:with-channel (channel "server:50051")
                 (grpc:ensure-connected channel)
                 (sim:slow client 40000)
                 (let ((long (grpc:call-async #'lab.bench:ask channel
                                              (lab:make-note :body (make-octets 200000)))))
                   (sim:wait-for 2)
                   (lab.bench:collect channel (list (lab:make-note :number 1)
                                                    (lab:make-note :number 2)))
                   (grpc:await long)))))))
    (is (= 20 (sim:run-seeds #'scenario :count 20)))))
