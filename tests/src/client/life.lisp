;;;; See src/wire/link-keepalive.lisp: peers that become silent, connections without calls, old
;;;; connections.

(in-package #:clgrpc.tests.client)

(defclass eager () ()
  (:documentation "A service whose clients ask every half second."))

(defmethod clgrpc.server:min-ping-seconds ((service eager)) 1/2)

(defun connections (server)
  (getf (grpc:server-statistics server) :connections))

(defun check-given-up (prepare &rest options)
  "Check that a call on a channel with OPTIONS, given to PREPARE, ends long before its deadline if
the server does not even answer PINGs."
  (let ((release (make-signal)))
    (with-log ()
      (with-raw-server (address) (fn (_peer _exchange) (await-signal release))
        (let ((channel (apply #'grpc:make-channel address options)))
          (unwind-protect
               (let ((error (caught (funcall prepare channel) (ask channel (note 1)))))
                 (is (typep error 'grpc:unavailable))
                 (is (search "keepalive" (grpc:rpc-error-message error))))
            (grpc:close-channel channel)))
        (signal-it release)))))

(test silent-servers-are-given-up
  (check-given-up #'identity :keepalive-seconds 0.05 :keepalive-timeout-seconds 0.05
                             :min-keepalive-seconds 0))

(test a-limit-of-silence-holds-for-connections-that-there-are
  "The connection to a server that hangs ends, although the channel's own keepalive takes minutes."
  (check-given-up (lambda (channel)
                    (grpc:ensure-connected channel)
                    (client:limit-channel-silence channel 0.05))))

(test servers-bear-the-pings-that-a-service-allows
  (let ((options (make-server-options)))
    (clgrpc.server::allow-pings options '(:silent))
    (is (= 300 (options-min-ping-interval-seconds options)))
    (clgrpc.server::allow-pings options (list :silent (make-instance 'eager)))
    (is (= 1/2 (options-min-ping-interval-seconds options)))))

(test answering-servers-are-kept
  "A call lasts many times the keepalive, at a server that allows PINGs."
  (with-probe (channel :options '(:min-ping-interval-seconds 0)
                       :channel-options '(:keepalive-seconds 0.02 :keepalive-timeout-seconds 5
                                          :min-keepalive-seconds 0))
      (:ask (handling (note) (sleep 0.5) note))
    (is (= 3 (number-of (ask channel (note 3)))))))

(test silent-clients-are-given-up
  (with-probe (channel :server server
                       :options '(:keepalive-seconds 0.05 :keepalive-timeout-seconds 0.05))
      (:ask (handling (note) note))
    (with-raw-client (peer (grpc:server-address server))
      (await-peer peer (lambda () (http2:connection-ready-p (peer-http2 peer))))
      (is (= 1 (connections server)))
      ;; from here on the peer hears nothing
      (eventually (zerop (connections server))))))

(test pings-too-often-end-the-connection
  "Settings that conflict: the server names the reason, and the whole channel sends fewer PINGs."
  (with-probe (channel :channel-options '(:keepalive-seconds 0.01 :min-keepalive-seconds 0)
                       :events (:goaway))
      (:ask (lambda (note call)
              (case (number-of note)
                ;; the PINGs that come meanwhile end the call, however slow the machine is
                (1 (wait-until (lambda () (grpc:cancelled-p call))))
                (2 (sleep 0.4)))
              note))
    (grpc:ensure-connected channel)
    (let* ((subchannel (the-subchannel channel))
           (link (first (client::connection-set-links (connection-set-of subchannel))))
           (error (caught (ask channel (note 1))))
           (core (client::channel-core channel)))
      (is (typep error 'grpc:unavailable))
      (is (= 20000000 (client::core-keepalive-ns core)))
      ;; however often servers complain, other connections are still watched
      (loop repeat 60
            do (setf (wire::link-keepalive-ns link) (client::core-keepalive-ns core))
               (client::ping-less (connection-set-of subchannel) link))
      (is (= (seconds-ns 7200) (client::core-keepalive-ns core)))
      (setf (client::core-keepalive-ns core) 0)
      (is (= 2 (number-of (ask channel (note 2))))))))

(test clients-ask-no-more-often-than-each-ten-seconds
  "gRFC A8."
  (flet ((seconds (&rest options)
           (let ((channel (apply #'grpc:make-channel "127.0.0.1:1" options)))
             (unwind-protect (ns-seconds (client::keepalive-ns (client::channel-core channel)))
               (grpc:close-channel channel)))))
    (is (= 10 (seconds :keepalive-seconds 1)))
    (is (= 11 (seconds :keepalive-seconds 11)))
    (is (= 0 (seconds :keepalive-seconds 0)))
    (is (= 1 (seconds :keepalive-seconds 1 :min-keepalive-seconds 0.5)))))

(test silence-is-limited-by-the-kernel-too
  "gRFC A18: where there is a keepalive, and no call nor octet waits for us."
  (flet ((limit (&rest options)
           (with-probe (channel :channel-options options) (:ask #'double)
             (ask channel (note 1))
             (os:socket-option (loop:byte-channel-descriptor
                                (loop:connection-byte-channel
                                 (wire::link-socket
                                  (first (client::connection-set-links
                                          (connection-set-of (the-subchannel channel)))))))
                               os:+ipproto-tcp+ os:+tcp-user-timeout+))))
    (is (= 7500 (limit :keepalive-seconds 60 :keepalive-timeout-seconds 7.5)))
    (is (= 0 (limit :keepalive-seconds 0 :keepalive-timeout-seconds 7.5)))))

(test connections-without-calls-are-closed
  (loop for (server-options channel-options) in '(((:max-connection-idle-seconds 0.1) ())
                                                  (() (:max-connection-idle-seconds 0.1)))
        do (with-probe (channel :server server :options server-options
                                :channel-options channel-options)
               (:ask (handling (note) note))
             (is (= 1 (number-of (ask channel (note 1)))))
             (eventually (zerop (connections server)))
             (eventually (eq :idle (grpc:channel-state channel)))
             (is (= 2 (number-of (ask channel (note 2)))) "the connection is opened again"))))

(test quiet-connections-shrink
  "A connection gives up the memory of a burst when it has been quiet for a while."
  (with-probe (channel :server server :options '(:max-connection-idle-seconds 4))
      (:ask (handling (note) note))
    (flet ((burst ()
             (let ((futures (loop for i below 100
                                  collect (grpc:call-async #'lab.bench:ask channel (note i)))))
               (is (equal (loop for i below 100 collect i)
                          (mapcar (lambda (future) (number-of (grpc:await future))) futures)))))
           (slots ()
             (loop for link in (server-links server)
                   sum (length (clgrpc.http2::connection-table (clgrpc.wire::link-http2 link))))))
      (burst)
      (is (plusp (slots)))
      (eventually (and (zerop (slots)) (= 1 (connections server))))
      (burst))))

(test calls-keep-their-connection
  "A connection that has a call does not end because it is quiet, however long."
  (with-probe (channel :server server :options '(:max-connection-idle-seconds 0.05))
      (:ask (handling (note) (sleep 0.5) note))
    (is (= 5 (number-of (ask channel (note 5)))))))

(test old-connections-are-left
  "Calls under way on an old connection end well; later calls use another connection."
  (with-probe (channel :server server :options '(:max-connection-age-seconds 0.2))
      (:chat (lambda (stream call)
               (grpc:do-messages (note stream) (grpc:send call note))))
    (let ((first (chat channel :open)))
      (grpc:send first (note 1))
      (is (= 1 (number-of (grpc:receive first))))
      (eventually (eq :idle (grpc:channel-state channel)))
      (let ((second (chat channel :open)))
        (grpc:send second (note 2))
        (is (= 2 (number-of (grpc:receive second))))
        (is (= 2 (connections server)))
        (grpc:close-send second)
        (is (null (grpc:receive second))))
      (grpc:send first (note 3))
      (is (= 3 (number-of (grpc:receive first))))
      (grpc:close-send first)
      (is (null (grpc:receive first))))))

(test grace-has-an-end
  (with-probe (channel :server server :options '(:max-connection-age-seconds 0.1
                                                 :max-connection-age-grace-seconds 0.1))
      (:chat (lambda (stream call)
               (grpc:do-messages (note stream) (grpc:send call note))))
    (let ((call (chat channel :open)))
      (grpc:send call (note 1))
      (is (= 1 (number-of (grpc:receive call))))
      (let ((error (caught (grpc:receive call))))
        (is (typep error 'grpc:unavailable))
        (is (search "too old" (grpc:rpc-error-message error)))))))

(test callers-look-before-they-write
  "A server ends each connection after its answer, while no thread runs the loop; the next call is
made on another connection and not written on the ended one. On a busy machine another thread may
run the loop at that moment and write posted calls before it reads."
  (let ((ended (sb-thread:make-semaphore)) (lost 0))
    (with-raw-server (address) (lambda (peer exchange)
                                 (ok-response exchange (note-octets 7))
                                 (flush-peer peer)
                                 (sleep 0.001)
                                 (sb-bsd-sockets:socket-shutdown
                                  (clgrpc.tests.server:peer-socket peer) :direction :io)
                                 (setf (peer-closed peer) t)
                                 (sb-thread:signal-semaphore ended))
      (grpc:with-channel (channel address)
        (loop repeat 20
              do (handler-case (progn (is (= 7 (number-of (ask channel (note 1)))))
                                      (sb-thread:wait-on-semaphore ended :timeout 20)
                                      (sleep 0.0015))
                   (grpc:unavailable () (incf lost))))
        (is (<= lost 5) "~D calls of 20 were written on a connection that had ended" lost)))))
