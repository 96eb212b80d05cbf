;;;; Every tracer (src/base/log/tracer.lisp) logs its events, at both ends of real connections, and
;;;; only while it is on.

(in-package #:clgrpc.tests.client)

(defun call-with-tracers (names function)
  (with-log ()
    (with-changed (((grpc:tracers) names)) (funcall function))))

(defmacro with-tracers ((names) &body body)
  "Evaluate BODY while the tracers NAMES are on and the log is kept."
  `(call-with-tracers ,names (lambda () ,@body)))

(defmacro with-traced-probe ((channel names &rest options) (&rest handlers) &body body)
  "As WITH-PROBE; the tracers NAMES are on from before the server's start until BODY is left."
  `(with-changed (((grpc:tracers)))
     (with-probe (,channel ,@options) ,handlers
       (setf (grpc:tracers) ,names)
       ,@body)))

(defun traced (event &rest plist)
  "The events EVENT of a tracer that have all of PLIST, oldest first."
  (remove-if-not (lambda (event)
                   (loop for (key value) on plist by #'cddr
                         always (equal value (getf event key))))
                 (reverse (events-of event))))

(defun traced-once (event &rest plist)
  "True if EVENT is logged with PLIST exactly once, perhaps by the other end's thread."
  (and (wait-until (lambda () (apply #'traced event plist)))
       (= 1 (length (apply #'traced event plist)))))

(test nothing-is-told-by-default
  (with-traced-probe (channel '()) (:ask #'double)
    (ask channel (note 1))
    (is (null (remove-if (lambda (event) (member (first event) '(:info :debug)))
                         (car clgrpc.tests.server:*events*))))))

(test tracer-call
  (with-traced-probe (channel "call")
      (:ask #'double
       :watch (handling ()
                (grpc:fail :not-found "none")))
    (ask channel (note 1))
    (caught (grpc:receive (watch channel (note 1))))
    (dolist (role '(:client :server))
      (is (traced-once :call-begun :role role :method "/lab.Bench/Ask" :tracer :call))
      (is (traced-once :call-ended :role role :method "/lab.Bench/Ask" :status :ok))
      (is (traced-once :call-ended :role role :method "/lab.Bench/Watch" :status :not-found
                                 :message "none")))
    (is (plusp (getf (first (traced :call-begun :role :client)) :remaining)))
    (is (traced-once :call-on-stream :stream 1 :method "/lab.Bench/Ask"))
    (is (traced-once :call-on-stream :stream 3 :method "/lab.Bench/Watch"))
    (let ((stages (getf (first (traced :call-ended :role :client)) :stages)))
      (is (plusp (getf stages :total)))
      (is (= 1 (getf stages :messages-received))))))

(test tracer-channel
  (let ((address (free-address)))
    (with-tracers ("channel")
      (grpc:with-channel (channel address)
        (caught (ask channel (note 1))))
      (is (traced-once :channel-made :target address))
      (is (traced-once :call-waits :target address :state :idle :method "/lab.Bench/Ask"))
      (is (traced-once :channel-closed :target address)))))

(test tracer-connectivity-state
  (with-traced-probe (channel "connectivity_state" :server server) (:ask #'double)
    (ask channel (note 1))
    (grpc:stop-server server)
    (is (traced-once :state-changed :from :idle :to :connecting))
    (is (traced-once :state-changed :from :connecting :to :ready))
    (is (traced-once :state-changed :from :ready :to :idle
                                  :target (grpc:channel-target channel)))))

(test tracer-dns-resolver
  (with-tracers ("dns_resolver")
    (dolist (target '("localhost:1" "no-such-host.invalid:1"))
      (grpc:with-channel (channel target) (caught (ask channel (note 1)))))
    (is (traced-once :look-up :name "no-such-host.invalid"))
    (is (every (lambda (address) (search ":1" address))
               (getf (first (traced :resolved :name "localhost:1")) :addresses)))
    (is (traced-once :look-up-failed :name "no-such-host.invalid:1"))))

(test tracer-subchannel
  (let ((address (free-address)))
    (with-tracers ("subchannel")
      (grpc:with-channel (channel address :backoff-initial-seconds 0.01)
        (caught (ask channel (note 1)))
        (eventually (traced :back-off :target address))
        (let ((server (start-probe (list :ask #'double) :listen address)))
          (ask channel (note 1) :wait-for-ready t)
          (grpc:stop-server server)
          (eventually (traced :connection-ended))))
      (is (traced :attempt :address address :tracer :subchannel))
      (is (traced :attempt-failed :address address :reason "Connection refused"))
      (is (traced-once :connected :peer address))
      (is (traced-once :connection-left :peer address :reason "the server is going away"))
      (is (traced-once :connection-ended :target address)))))

(test tracer-server
  (with-traced-probe (channel "server" :server server)
      (:ask (handling (note)
              (when (= 2 (number-of note)) (grpc:fail :aborted "no"))
              note))
    (ask channel (note 1))
    (caught (ask channel (note 2)))
    (grpc:stop-server server)
    (is (traced-once :connection-begun))
    (is (= 2 (length (traced :handler-begun :method "/lab.Bench/Ask"))))
    (is (traced-once :handler-ended :outcome :returned))
    (is (traced-once :handler-ended :outcome :aborted))
    (is (traced-once :connection-ended))))

(test tracer-http
  "The frames of a call in their order, at both ends."
  (with-traced-probe (channel "http") (:ask #'double)
    (ask channel (note 1))
    (flet ((frames (event role)
             (loop for plist in (traced event :role role)
                   unless (member (getf plist :frame) '("SETTINGS" "WINDOW-UPDATE" "PING")
                                  :test #'string=)
                     collect (list (getf plist :frame) (getf plist :stream)
                                   (getf plist :flags)))))
      (let ((request '(("HEADERS" 1 (:end-headers)) ("DATA" 1 (:end-stream))))
            (response '(("HEADERS" 1 (:end-headers)) ("DATA" 1 nil)
                        ("HEADERS" 1 (:end-stream :end-headers)))))
        (eventually (= 3 (length (frames :frame-received :client))))
        ;; the server traces after its write, when the client may have read the frame already
        (eventually (= 3 (length (frames :frame-sent :server))))
        (is (equal request (frames :frame-sent :client)))
        (is (equal request (frames :frame-received :server)))
        (is (equal response (frames :frame-sent :server)))
        (is (equal response (frames :frame-received :client)))))
    (let ((settings (getf (first (traced :frame-sent :role :server :frame "SETTINGS" :flags nil))
                          :settings)))
      (is (integerp (getf settings :max-concurrent-streams))))
    (setf (grpc:tracers) '())
    (let ((before (length (traced :frame-sent))))
      (ask channel (note 1))
      (is (= before (length (traced :frame-sent)))))))

(test tracer-http-large
  "Output that the peer takes in parts is logged frame by frame as well."
  (with-traced-probe (channel "http") (:ask (handling (note) note))
    (is (= 3000000 (length (lab:note-body (ask channel (note 1 :body 3000000))))))
    (dolist (role '(:client :server))
      (flet ((octets (event)
               (loop for plist in (traced event :role role :frame "DATA")
                     sum (getf plist :length))))
        (eventually (= (octets :frame-sent) (octets :frame-received)))
        (is (< 3000000 (octets :frame-sent) 3000100))))
    (is (null (set-difference (mapcar (lambda (plist) (getf plist :frame))
                                      (append (traced :frame-sent) (traced :frame-received)))
                              '("DATA" "HEADERS" "SETTINGS" "WINDOW-UPDATE" "PING")
                              :test #'string=)))))

(test tracer-flowctl
  (let ((go-on (make-signal)) (sent 0))
    (with-traced-probe (channel "flowctl" :options '(:stream-window-octets 65535))
        (:chat (handling (stream)
                 (await-signal go-on)
                 (grpc:do-messages (note stream))))
      (let ((call (chat channel (lambda ()
                                  (when (<= (incf sent) 40) (note 1 :body 10000))))))
        (eventually (traced :window-withheld :tracer :flowctl))
        (is (null (traced :window-given-back)))
        (signal-it go-on)
        (is (null (grpc:receive call))))
      (is (traced :window-given-back))
      (is (traced :frame-sent :frame "WINDOW-UPDATE" :role :server))
      (is (null (traced :frame-sent :frame "DATA"))))))

(test tracer-handshaker
  (with-traced-probe (channel "tls" :options (list :credentials (credentials "server"))
                                    :channel-options (list :credentials (trusting nil)))
      (:ask #'double)
    (ask channel (note 1))
    (dolist (role '(:client :server))
      (is (traced-once :handshake-done :role role :protocol "TLSv1.3"))
      (is (traced-once :settings-received :role role)))
    (is (uiop:string-prefix-p "127.0.0.1:" (getf (first (traced :settings-received :role :server))
                                                 :peer)))))

(test tracer-http-keepalive
  (with-traced-probe (channel "http_keepalive" :options '(:min-ping-interval-seconds 0)
                                               :channel-options '(:keepalive-seconds 0.02
                                                                  :min-keepalive-seconds 0))
      (:ask (handling (note) (sleep 0.3) note))
    (ask channel (note 1))
    (is (traced :keepalive-ping))
    (is (traced :frame-sent :frame "PING" :role :client :flags nil))
    (is (traced :frame-received :frame "PING" :role :client :flags '(:ack)))))

(test tracer-http-keepalive-of-idle-connections
  (with-traced-probe (channel "http_keepalive"
                              :options '(:max-connection-idle-seconds 0.05))
      (:ask #'double)
    (ask channel (note 1))
    (is (traced-once :connection-idle))))

(test tracer-loop
  (with-traced-probe (channel "loop")
      (:ask (handling (note) (sleep 0.3) note))
    (ask channel (note 1))
    (is (traced :overtaken))
    (is (traced-once :method-blocks :method "/lab.Bench/Ask"))))

(test tracer-tcp
  (with-traced-probe (channel "tcp") (:ask #'double)
    (ask channel (note 1))
    (is (traced :octets-written))
    (is (some (lambda (plist) (plusp (getf plist :result))) (traced :octets-read)))))

(defun writes-of (server function)
  "The least number of writes to SERVER in several calls of FUNCTION; if many threads need a
processor, FUNCTION may be overtaken."
  (flet ((writes ()
           (length (traced :octets-written :peer (grpc:server-address server)))))
    (loop repeat 10
          minimize (let ((before (writes)))
                     (funcall function)
                     (- (writes) before)))))

(test messages-sent-in-a-row-leave-together
  "A caller who sends one message after another, without waiting, writes only the first few alone; a
caller who takes turns with a handler writes each at once, and nothing else."
  (with-traced-probe (channel "tcp" :server server) (:collect #'add-up :chat #'echo)
    (flet ((send-many ()
             (let ((call (collect channel :open)))
               (dotimes (i 100) (grpc:send call (note i)))
               (grpc:close-send call)
               (is (= 4950 (number-of (grpc:receive call)))))))
      (send-many)
      (let ((least (writes-of server #'send-many)))
        (is (< 0 least 20) "100 messages took ~D writes" least)))
    (grpc:with-call (call (chat channel :open))
      (flet ((speak-by-turns ()
               (dotimes (i 20)
                 (grpc:send call (note i))
                 (is (= i (number-of (grpc:receive call)))))))
        (is (= 20 (writes-of server #'speak-by-turns)))))))

(test sequences-leave-in-one-write
  "A caller who drives the loop does not write each message of a sequence alone."
  (with-traced-probe (channel "tcp" :server server) (:collect #'add-up :ask #'double)
    (ask channel (note 1))
    (let ((least (writes-of server (lambda ()
                                     (collect channel (loop for i below 100 collect (note i)))))))
      (is (< 0 least 10) "100 messages took ~D writes" least))))
