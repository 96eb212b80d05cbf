;;;; What the mix has found, each as a test of its own that needs virtual time.

(in-package #:clgrpc.tests.sim)

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

(defun start-collector (&rest options)
  "A server whose COLLECT answers with the last note it gets, whose ASK does with its only one, and
whose WATCH never ends."
  (apply #'lab-server:start-probe
         (list :ask (lambda (note call) (declare (ignore call)) note)
               :watch (lambda (note call) (declare (ignore note)) call)
               :collect (fn (stream _call)
                          (let ((last nil))
                            (grpc:do-messages (note stream last) (setf last note)))))
         :listen "server:50051" options))

(test a-drained-server-waits-for-its-last-answers-to-arrive
  "To close a connection while the client says something more would reset it, answers and all."
  (flet ((scenario (simulation)
           (declare (ignore simulation))
           (let ((server (sim:add-host
                          "server"
                          (lambda ()
                            (lab-server:start-probe
                             (list :watch (lambda (note call)
                                            (grpc:after call 1 (lambda ()
                                                                 (grpc:send call note)
                                                                 (grpc:finish call)))
                                            call))
                             :listen "server:50051")))))
             (grpc:with-channel (channel "server:50051")
               (let ((call (lab.bench:watch channel (lab:make-note)))
                     (others (loop repeat 20
                                   collect (lab.bench:watch channel (lab:make-note)))))
                 (sim:wait-for 1/2)
                 (sim:restart-host server :drain 10)
                 (dotimes (i 20)
                   (sim:at (+ 0.4 (/ i 100)) (let ((other (nth i others)))
                                               (lambda () (grpc:cancel other)))))
                 (unless (grpc:receive call) (error "The answer is lost.")))))))
    (is (= 50 (sim:run-seeds #'scenario :count 50 :latency '(1/1000 1/20))))))

(test a-drain-is-in-no-hurry-while-calls-run
  "The answer to its PING comes late, behind a long request."
  (flet ((scenario (simulation)
           (declare (ignore simulation))
           (let ((server (sim:add-host "server"
                                       (lambda ()
                                         (start-collector :max-connection-age-seconds 1)))))
             (grpc:with-channel (channel "server:50051")
               (lab.bench:watch channel (lab:make-note))
               (sim:wait-for 1/2)
               (sim:slow server 40000)
               (lab.bench:collect channel (loop repeat 10
                                                collect (lab:make-note
                                                         :body (make-octets 20000))))))))
    (is (= 20 (sim:run-seeds #'scenario :count 20)))))

(defun count-goaways (octets)
  "How many GOAWAY frames there are in OCTETS, whole frames."
  (loop with at = 0
        while (< at (length octets))
        count (= 7 (aref octets (+ at 3)))
        do (incf at (+ 9 (ash (aref octets at) 16) (ash (aref octets (+ at 1)) 8)
                       (aref octets (+ at 2))))))

(test a-drain-waits-for-a-peer-that-says-other-things-first
  "The answer to the PING may be behind them; of one that says nothing more none is expected."
  (sim:with-simulation (simulation)
    (sim:add-host "server" (lambda () (start-echo :max-connection-age-seconds 1
                                                  :min-ping-interval-seconds 0
                                                  :ping-without-calls t)))
    (let ((peer (sim:connect-peer "server" 50051)) (heard '()))
      (flet ((goaways-after (seconds)
               (sim:wait-for seconds)
               (setf heard (append heard (sim:hear peer)))
               (count-goaways (apply #'concatenate 'octets heard)))
             (frame (type length)
               (concatenate 'octets (list 0 0 length type 0 0 0 0 0) (make-octets length))))
        (sim:say peer (concatenate 'octets (ascii-octets "PRI * HTTP/2.0") #(13 10 13 10)
                                   (ascii-octets "SM") #(13 10 13 10)))
        (sim:say peer (frame 4 0))
        (loop repeat 10
              do (sim:say peer (frame 6 8))
                 (is (>= 1 (goaways-after 3/10))))
        (is (= 1 (goaways-after 0)))
        (is (< 1 (goaways-after 2)))))))

(test a-drain-waits-for-its-ping-to-leave
  "A server that ends an old connection has much to send first; a request comes meanwhile."
  (flet ((scenario (simulation)
           (declare (ignore simulation))
           (let ((client (sim:add-host "client")))
             (sim:add-host "server" (lambda () (start-collector :max-connection-age-seconds 1)))
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

(test keepalive-may-end-what-its-line-cannot-carry-in-time
  "The PING waits behind 400 KB, 4 KB of them under way at once: seeds 27907 and 159802."
  (sim:with-simulation (simulation)
    (flet ((explained-p (size latency-ns)
             (let ((job (make-job :kind :collect :count 20 :size size :route (make-route)
                                  :reason "keepalive: no sign of the peer for 4.200 s")))
               (setf (sim::simulation-most-latency-ns simulation) latency-ns)
               (silent-p (make-mix :simulation simulation :jobs (vector job) :keepalive t
                                   :channel-options '(:keepalive-timeout-seconds 4))
                         job))))
      (is-true (explained-p 20000 40000000))
      (is (not (explained-p 20000 1000000)))
      (is (not (explained-p 1000 40000000))))))

(test a-call-after-a-silence-asks-first-whether-the-server-is-there
  "gRFC A8: the connection has been silent for longer than the keepalive when a call begins, so it
is found to be lost after keepalive-timeout-seconds, and not after both."
  (with-echo (channel :client client :server server)
    (grpc:with-channel (asking "server:50051" :keepalive-seconds 60 :keepalive-timeout-seconds 5)
      (is (= 1 (ask asking 1)))
      (sim:wait-for 100)
      (sim:partition client server)
      (is (<= 5 (seconds-of (is (eq :unavailable (status-of-asking asking)))) 6)))))

(test an-address-behind-silent-ones-has-its-turn
  "Each attempt has the time limit, not all of them together."
  (dolist (silent '(3 4 20))
    (sim:with-simulation (simulation)
      (let ((hosts (loop for i below silent
                         collect (sim:add-host (format nil "silent-~D" i))))
            (server (sim:add-host "server" #'start-echo)))
        (dolist (host hosts) (sim:partition (first (sim::simulation-hosts simulation)) host))
        (grpc:with-channel (channel (format nil "ipv4:~{10.0.0.~D:50051~^,~}"
                                            (mapcar #'sim::host-number
                                                    (append hosts (list server))))
                                    :connect-timeout-seconds 1)
          (is (< (* silent 0.24) (seconds-of (ask channel 1 :timeout 60)) (+ 0.5 (* silent 0.25)))
              "behind ~D" silent))))))
