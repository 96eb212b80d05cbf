;;;; The virtual network, and what goes wrong on it.

(in-package #:clgrpc.tests.sim)

(defun start-echo (&rest options &key (listen "server:50051") &allow-other-keys)
  "A server whose ASK answers with the note it gets, and whose WATCH never ends."
  (apply #'lab-server:start-probe
         (list :ask (lambda (note call) (declare (ignore call)) note)
               :watch (lambda (note call) (declare (ignore note)) call))
         :listen listen options))

(defun call-with-echo (function options)
  (sim:call-with-simulation
   (lambda (simulation)
     (let ((server (sim:add-host "server" (lambda () (start-echo :execution :inline))))
           (client (sim:add-host "client")))
       (sim:on-host (client)
         (grpc:with-channel (channel "server:50051" :backoff-initial-seconds 0.1)
           (funcall function simulation server client channel)))))
   :latency (getf options :latency '(1/1000 1/1000))
   :losses (getf options :losses 0)))

(defmacro with-echo ((channel &key (simulation (gensym "SIMULATION")) (server (gensym "SERVER"))
                                (client (gensym "CLIENT")) options)
                     &body body)
  "Evaluate BODY in a simulation in which CHANNEL, of the host CLIENT, leads to an echo on the host
SERVER; a packet takes a millisecond."
  `(call-with-echo (lambda (,simulation ,server ,client ,channel)
                     (declare (ignorable ,simulation ,server ,client ,channel))
                     ,@body)
                   ,options))

(defun ask (channel number &rest options)
  (lab:note-number (apply #'lab.bench:ask channel (lab:make-note :number number) options)))

(defun status-of-asking (channel &rest options)
  (handler-case (progn (apply #'ask channel 1 options) :ok)
    (status:rpc-error (error) (status:rpc-error-status error))))

(defmacro seconds-of (&body body)
  "The virtual seconds that BODY takes."
  (let ((start (gensym "START")))
    `(let ((,start (sim:now)))
       ,@body
       (- (sim:now) ,start))))

(test packets-take-their-time
  (with-echo (channel)
    (is (= 1 (ask channel 1)))          ; connects
    (is (< 0.002 (seconds-of (ask channel 2)) 0.0023)))
  (with-echo (channel :options '(:latency (1/10 1/10)))
    (is (= 1 (ask channel 1)))
    (is (< 0.2 (seconds-of (ask channel 2)) 0.2003))))

(test what-is-simulated-is-not-of-the-process
  "channelz asks loops that run by themselves, so it must not find servers and channels that do not."
  (flet ((all ()
           (append (clgrpc.base:registered clgrpc.server:**servers**)
                   (clgrpc.base:registered clgrpc.client:**cores**))))
    (let ((before (all)))
      (with-echo (channel)
        (is (= 1 (ask channel 1)))
        (is (null (set-difference (all) before)))))))

(test lost-packets-come-later
  (with-echo (channel :options '(:losses 1000))
    (is (= 1 (ask channel 1)))
    (is (< 0.402 (seconds-of (ask channel 2)) 0.4023))))

(test nobody-there
  (sim:with-simulation (simulation)
    (sim:add-host "server")
    (grpc:with-channel (channel "server:50051")
      (with-signalled (error grpc:unavailable (ask channel 1))
        (is (search "Connection refused" (princ-to-string error)))))
    (grpc:with-channel (channel "elsewhere:50051")
      (with-signalled (error grpc:unavailable (ask channel 1))
        (is (search "no such host" (princ-to-string error)))))))

(test ports-are-a-hosts-own
  (with-echo (channel :server server)
    (sim:on-host (server)
      (signals grpc:socket-error (start-echo)))
    ;; the name of another host is no address of this one
    (signals grpc:socket-error (start-echo))))

(test a-partition-holds-everything-up
  (with-echo (channel :server server :client client)
    (is (= 1 (ask channel 1)))
    (sim:partition client server)
    (is (eq :deadline-exceeded (status-of-asking channel :timeout 5)))
    (sim:at 2 (lambda () (sim:heal client server)))
    (is (< 2 (seconds-of (is (= 2 (ask channel 2)))) 2.01))))

(test a-cut-resets-and-the-next-call-connects-anew
  (with-echo (channel :server server :client client)
    (is (= 1 (ask channel 1)))
    (let ((watch (lab.bench:watch channel (lab:make-note))))
      (sim:cut client server)
      (is (eq :unavailable (handler-case (progn (grpc:receive watch) :ok)
                             (status:rpc-error (error) (status:rpc-error-status error))))))
    (is (= 2 (ask channel 2)))))

(test a-killed-host-comes-back
  (with-echo (channel :server server)
    (is (= 1 (ask channel 1)))
    (let ((task (sim:restart-host server :down 3)))
      (is (null (sim:restart-host server)))
      (sim:wait-until (lambda () (not (sim:host-up server))))
      (is (eq :unavailable (status-of-asking channel)))
      (is (= 2 (ask channel 2 :wait-for-ready t)))
      (is (sim:task-done-p task))
      (is-true (sim:host-up server))
      (is (< 3 (sim:now) 10)))))

(test a-drained-host-finishes-what-it-has-begun
  (sim:with-simulation (simulation)
    (let ((server (sim:add-host "server"
                                (lambda ()
                                  (lab-server:start-probe
                                   (list :ask (lambda (note call)
                                                (grpc:after call 2 (lambda ()
                                                                     (grpc:reply call note)))
                                                call))
                                   :listen "server:50051" :execution :inline)))))
      (grpc:with-channel (channel "server:50051")
        (let ((future (grpc:call-async #'lab.bench:ask channel (lab:make-note :number 4))))
          (sim:wait-for 0.5)
          (sim:restart-host server :drain 10 :down 1)
          (is (= 4 (lab:note-number (grpc:await future))))
          (is (= 5 (ask channel 5 :wait-for-ready t))))))))

(test a-slow-host-gets-its-octets-late
  (with-echo (channel :server server)
    (is (= 1 (ask channel 1)))
    (sim:slow server 10000)
    (is (< 1 (seconds-of (lab.bench:ask channel (lab:make-note :body (make-octets 10000))))
           1.1))
    (sim:slow server nil)
    (is (> 0.1 (seconds-of (lab.bench:ask channel (lab:make-note :body (make-octets 10000))))))))

(test channels-within-the-image-have-virtual-time-as-well
  (sim:with-simulation (simulation)
    (let* ((server (start-echo :listen "home:50051"))
           (channel (grpc:server-channel server)))
      (is (= 1 (ask channel 1)))
      (is (<= 2 (seconds-of (signals grpc:deadline-exceeded
                              (grpc:receive (lab.bench:watch channel (lab:make-note)
                                                             :timeout 2))))
              2.001))
      (grpc:close-channel channel)
      (grpc:stop-server server))))

(test peers-say-what-they-like
  "A raw peer at either end: what it says arrives, what it is told it hears, and both can leave."
  (with-echo (channel :server server)
    (is (= 1 (ask channel 1)))
    (let ((peer (sim:connect-peer "server" 50051)))
      (sim:say peer (ascii-octets "GET / HTTP/1.0"))
      (is-true (sim:settle))
      (is-true (sim:hear peer))
      (is (null (sim:hear peer)))
      (is-true (sim:left-p peer))
      (sim:hang-up peer)
      (sim:hang-up peer)
      (is-true (sim:settle))
      (is-true (sim:forgotten-p peer)))
    (signals grpc:misuse (sim:connect-peer "elsewhere" 1)))
  (sim:with-simulation (simulation)
    (let ((listener (sim:listen-as-peer 7)))
      (is (null (sim:accept-peer listener)))
      (signals grpc:misuse (sim:listen-as-peer 7))
      (grpc:with-channel (channel "home:7")
        (let ((future (grpc:call-async #'lab.bench:ask channel (lab:make-note))))
          (sim:settle)
          (let ((peer (sim:accept-peer listener)))
            (is (eql (char-code #\P) (aref (first (sim:hear peer)) 0)))
            (is (not (sim:left-p peer)))
            (sim:hang-up peer)
            (signals grpc:unavailable (grpc:await future))))))))

(test a-partition-is-between-two-hosts
  (sim:with-simulation (simulation)
    (let ((hosts (loop for name in '("a" "b" "c") collect (sim:add-host name))))
      (destructuring-bind (a b c) hosts
        (declare (ignore c))
        (sim:partition a b)
        (dolist (one hosts)
          (dolist (other hosts)
            (is (eq (and (subsetp (list one other) (list a b)) (not (eq one other)))
                    (and (sim::parted-p simulation one other) t)))))))))

(test ports-are-chosen-in-turn
  "From the first to the last, and then the first again; one that is in use is passed over."
  (sim:with-simulation (simulation)
    (let ((host (sim:add-host "chooser")))
      (flet ((next () (sim::free-port host)))
        (setf (sim::host-next-port host) 65533)
        (is (equal (list 65534 65535 sim::+first-port+) (list (next) (next) (next))))
        (setf (gethash (+ 1 sim::+first-port+) (sim::host-ports host)) t)
        (is (= (+ 2 sim::+first-port+) (next)))
        (remhash (+ 1 sim::+first-port+) (sim::host-ports host))))))

(test a-write-takes-what-there-is-room-for
  "One that leaves octets, or finds no room, is told when there is room again."
  (sim:with-simulation (simulation)
    (loop for (unread count result blocked) in (list (list 100 10 loop:+wants-write+ t)
                                                     (list 101 10 loop:+wants-write+ t)
                                                     (list 100 0 0 nil)
                                                     (list 200 0 0 nil))
          do (let ((socket (sim::make-socket (sim:add-host (format nil "h~D-~D" unread count)) 5)))
               (setf (sim::socket-room socket) 100
                     (sim::socket-unread socket) unread)
               (is (eql result
                        (sim::write-socket (loop:make-byte-channel
                                            (loop:make-byte-channel-kind
                                             :name "full" :read #'list :write #'list
                                             :shutdown #'identity :close #'identity)
                                            5 "peer" socket)
                                           (make-octets 10) 0 count)))
               (is (eq blocked (sim::socket-blocked socket)))
               (is (= unread (sim::socket-unread socket)))))))
