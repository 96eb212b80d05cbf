;;;; Connections that fail, break or are left, and the calls on them.

(in-package #:clgrpc.tests.client)

(test refused
  "Nobody listens: :unavailable, unsent, at once, even while the channel waits to connect."
  (let ((address (free-address)))
    (grpc:with-channel (channel address)
      (loop repeat 3
            do (let ((error (caught (ask channel (note 1)))))
                 (is (typep error 'grpc:unavailable))
                 (is (not (grpc:rpc-error-sent-p error)))
                 (is (eq :transport (grpc:rpc-error-ended-by error)))
                 (is (search address (grpc:rpc-error-message error)))
                 (is (search "never sent" (princ-to-string error))))
               (is (eq :transient-failure (grpc:channel-state channel))))
      (is (typep (caught (numbers (watch channel (note 1)))) 'grpc:unavailable))
      (is (typep (caught (collect channel (lambda () (note 1)))) 'grpc:unavailable))
      (is (typep (caught (numbers (chat channel (list (note 1))))) 'grpc:unavailable))
      (is (typep (caught (grpc:ensure-connected channel)) 'grpc:unavailable)))))

(test wait-for-ready
  "Such calls survive failed attempts until their deadline; what they send is bounded."
  (let ((address (free-address)) (asked 0))
    (grpc:with-channel (channel address :backoff-initial-seconds 0.02 :backoff-maximum-seconds 0.05)
      (is (typep (caught (ask channel (note 1) :wait-for-ready t :timeout 0.1))
                 'grpc:deadline-exceeded))
      (let ((future (grpc:call-async #'lab.bench:ask channel (note 4) :wait-for-ready t
                                                                     :timeout 20))
            (chat (chat channel (lambda () (when (<= (incf asked) 1000) (note asked :body 1000)))
                        :wait-for-ready t))
            (open (chat channel :open :wait-for-ready t))
            (cancelled (chat channel :open :wait-for-ready t)))
        (grpc:send open (note 8))
        (grpc:cancel cancelled)
        (is (< (settled (lambda () asked)) 100))
        (is (typep (caught (ask channel (note 1) :timeout 1)) 'grpc:rpc-error))
        (with-started (server (start-probe (list :ask #'double :chat #'echo) :listen address))
          (is (= 8 (number-of (grpc:await future))))
          (is (equal (loop for i from 1 to 1000 collect i) (numbers chat)))
          (is (= 8 (number-of (grpc:receive open))))
          (grpc:close-send open)
          (is (null (grpc:receive open)))
          (is (typep (caught (grpc:receive cancelled)) 'grpc:cancelled)))))))

(test reconnect
  "A server that stops and starts is found again, over and over."
  (let ((address (free-address)))
    (grpc:with-channel (channel address :backoff-initial-seconds 0.02 :backoff-maximum-seconds 0.05)
      (loop for i below 5
            do (let ((server (start-probe (list :ask #'double) :listen address)))
                 (is (= (* 2 i) (number-of (ask channel (note i) :wait-for-ready t))))
                 (is (eq :ready (grpc:channel-state channel)))
                 (grpc:stop-server server))
               (eventually (not (eq :ready (grpc:channel-state channel))))
               (is (typep (caught (ask channel (note 1))) 'grpc:unavailable))))))

(test whoever-calls-often-reconnects-as-well
  "Callers that fail at once, however often they call, find the server when the next attempt is due:
a timer begins the attempt, and only the callers run the loop."
  (let ((address (free-address)))
    (dolist (pause '(0 0.001 0.01))
      (grpc:with-channel (channel address :backoff-initial-seconds 0.2)
        (is (typep (caught (ask channel (note 1))) 'grpc:unavailable))
        (let ((server (start-probe (list :ask #'double) :listen address))
              (quiet (make-signal)))
          (unwind-protect
               (is-true (wait-until (lambda ()
                                      (when (plusp pause) (await-signal quiet :seconds pause))
                                      (not (caught (ask channel (note 1)))))
                                    :seconds 5)
                        "calls ~A s apart" pause)
            (grpc:stop-server server)))))))

(defun call-with-inhospitable-server (function greeting)
  "Call FUNCTION with the address of a server that sends GREETING, octets, on each connection and
ends it; and with a function that returns the number of its connections."
  (let ((count (list 0)) (greeting (coerce greeting 'octets)))
    (support:with-served-sockets (address socket)
        (progn (incf (car count))
               (ignore-errors (sb-bsd-sockets:socket-send socket greeting (length greeting))))
      (funcall function address (lambda () (car count))))))

(test who-greets-and-goes-is-not-hammered
  "A server that sends SETTINGS and then ends the connection counts as unreachable."
  (call-with-inhospitable-server
   (lambda (address count)
     (grpc:with-channel (channel address :backoff-initial-seconds 0.2)
       (let ((error (caught (ask channel (note 1) :wait-for-ready t :timeout 1))))
         (is (typep error 'grpc:deadline-exceeded))
         (is (<= 2 (funcall count) 12) "~D connections in a second" (funcall count))
         (is (search "accepts connections and ends them" (princ-to-string error))))
       (is (typep (caught (ask channel (note 1))) 'grpc:unavailable))))
   ;; SETTINGS that allow no stream
   #(0 0 6 4 0 0 0 0 0 0 3 0 0 0 0)))

(test who-sees-no-call-and-goes-is-not-hammered
  "So does a server whose GOAWAY reports that it has seen no call: it has stream 0."
  (call-with-inhospitable-server
   (lambda (address count)
     (grpc:with-channel (channel address :backoff-initial-seconds 0.2)
       (let ((end (+ (monotonic-ns) 1000000000)))
         (loop until (< end (monotonic-ns))
               do (is (typep (caught (ask channel (note 1) :timeout 5)) 'grpc:unavailable))))
       (is (<= 2 (funcall count) 12) "~D connections in a second" (funcall count))))
   #(0 0 0 4 0 0 0 0 0
     0 0 8 7 0 0 0 0 0 0 0 0 0 0 0 0 0)))

(test attempts-are-spaced
  "A channel that needs an unreachable address makes few attempts."
  (let* ((address (free-address)) (states 0))
    (grpc:with-channel (channel address :backoff-initial-seconds 0.05 :backoff-factor 1
                                        :backoff-jitter 0)
      (let ((future (grpc:call-async #'lab.bench:ask channel (note 1) :wait-for-ready t
                                                                     :timeout 1.5)))
        (loop with last = nil
              until (grpc:future-done-p future)
              for state = (grpc:channel-state channel)
              do (unless (eq last state)
                   (setf last state)
                   (when (eq state :transient-failure) (incf states)))
                 (sb-thread:thread-yield))
        (is (<= 1 states 32))))))

(test server-killed
  "The connection breaks during calls: each ends with :unavailable, none hangs, and the next call
finds the new server."
  (let ((count 0))
    (with-raw-server (address :at :headers)
        (fn (peer _exchange)
          (when (= 30 (incf count))
            ;; as the kernel does when a process is killed
            (sb-bsd-sockets:socket-close (clgrpc.tests.server:peer-socket peer) :abort t)
            (setf (peer-closed peer) t)))
      (grpc:with-channel (channel address)
        (let ((calls (loop repeat 10 collect (chat channel :open) collect (watch channel (note 1))))
              (futures (loop repeat 10
                             collect (grpc:call-async #'lab.bench:ask channel (note 1)
                                                      :timeout 20))))
          (dolist (call calls)
            (let ((error (caught (grpc:receive call))))
              (is (typep error 'grpc:unavailable))
              (is (eq :transport (grpc:rpc-error-ended-by error)))))
          (dolist (future futures)
            (is (typep (caught (grpc:await future)) 'grpc:unavailable))))))))

(test goaway
  "Calls that the server will not process, and new calls, use a new connection; others end."
  (let ((first-peer nil) (held '()))
    (with-raw-server (address)
        (lambda (peer exchange)
          (unless first-peer (setf first-peer peer))
          (cond ((not (eq peer first-peer)) (ok-response exchange (note-octets 7)))
                ((< (length held) 2) (push exchange held))
                (t
                 (http2:send-goaway
                  (peer-http2 peer) http2:+no-error+
                  :last-stream-id (http2:stream-id (exchange-stream (first held))))
                 (dolist (exchange held) (ok-response exchange (note-octets 3))))))
      (grpc:with-channel (channel address)
        (let ((futures (loop repeat 3
                             collect (grpc:call-async #'lab.bench:ask channel (note 1)
                                                      :timeout 20))))
          (is (= 3 (number-of (grpc:await (first futures)))))
          (is (= 3 (number-of (grpc:await (second futures)))))
          (is (= 7 (number-of (grpc:await (third futures)))))
          (is (= 7 (number-of (ask channel (note 1))))))))))

(test reasons-of-goaways
  "Calls that end with their connection have the text of its GOAWAY, truncated and printable."
  (loop for (code debug seen) in `((,http2:+enhance-your-calm+ "too_many_pings" "too_many_pings")
                                   (,http2:+internal-error+ ,(make-string 9000) "\\x00\"…")
                                   (,http2:+internal-error+ "" "INTERNAL_ERROR"))
        do (with-log ()
             (with-raw-server (address)
                 (fn (peer _exchange)
                   (http2:send-goaway (peer-http2 peer) code :last-stream-id 1001 :debug debug)
                   (flush-peer peer)
                   (setf (peer-closed peer) t))
               (grpc:with-channel (channel address)
                 (let ((text (princ-to-string (caught (ask channel (note 1) :timeout 20)))))
                   (is (search "UNAVAILABLE" text))
                   (is (search "GOAWAY" text))
                   (is (search (http2:error-code-name code) text))
                   (is (search seen text))
                   (is (not (search "NO_ERROR" text)))
                   (is (< (length text) 1000))))))))

(test silent-peer
  "A server accepts connections and sends nothing: the attempt fails in time, and nothing was sent."
  (support:with-silent-listener (address)
    (grpc:with-channel (channel address :preface-timeout-seconds 0.1 :settings-timeout-seconds 0.1)
      (let ((error (caught (ask channel (note 1)))))
        (is (typep error 'grpc:unavailable))
        (is (not (grpc:rpc-error-sent-p error))))
      (is (eq :transient-failure (grpc:channel-state channel))))))

(test peer-that-hangs-up
  "A server that closes every connection at once is not connected to again at once."
  (let ((count 0))
    (support:with-served-sockets (address socket) (progn socket (incf count))
      (grpc:with-channel (channel address :backoff-initial-seconds 0.05 :backoff-factor 1)
        (is (typep (caught (ask channel (note 1))) 'grpc:unavailable))
        (is (typep (caught (ask channel (note 1) :wait-for-ready t :timeout 0.3))
                   'grpc:deadline-exceeded))
        (is (<= 1 count 12))))))

(test used-up-identifiers
  "When a connection has no stream identifiers left, calls use another one; its own calls end well."
  (let ((go-on (make-signal)) (running (make-signal)))
    (with-probe (channel :server server)
        (:ask #'double
         :watch (lambda (note call)
                  (signal-it running)
                  (await-signal go-on)
                  (count-up note call)))
      (ask channel (note 1))
      (let ((watch (watch channel (note 3)))
            (done (make-signal))
            (subchannel (the-subchannel channel)))
        (is (await-signal running))
        (loop:post (client:core-loop (client:subchannel-core subchannel))
                   (lambda ()
                     (let ((http2 (wire::link-http2 (first (client::connection-set-links
                                                           (connection-set-of subchannel))))))
                       (setf (http2::connection-highest-id http2) (- #x7FFFFFFF 4)))
                     (signal-it done)))
        (is (await-signal done))
        (loop for i below 6 do (is (= (* 2 i) (number-of (ask channel (note i))))))
        (is (= 2 (getf (grpc:server-statistics server) :connections)))
        (signal-it go-on)
        (is (equal '(0 1 2) (numbers watch)))
        (eventually (= 1 (getf (grpc:server-statistics server) :connections)))))))

(test stream-limit
  "Calls beyond the server's limit of streams wait in order, and can be cancelled meanwhile."
  (let ((go-on (make-signal)) (order '()) (lock (sb-thread:make-mutex)))
    (with-probe (channel :options '(:max-concurrent-streams 2 :execution :blocking))
        (:ask (lambda (note call)
                (await-signal go-on)
                (sb-thread:with-mutex (lock) (push (number-of note) order))
                (double note call)))
      (grpc:ensure-connected channel)
      (let ((futures (loop for i below 8
                           collect (grpc:call-async #'lab.bench:ask channel (note i) :timeout 20))))
        (grpc:cancel (fifth futures))
        (is (typep (caught (grpc:await (fifth futures))) 'grpc:cancelled))
        (is (typep (caught (ask channel (note 100) :timeout 0.05)) 'grpc:deadline-exceeded))
        (loop repeat 8 do (signal-it go-on))
        (loop for future in futures
              for i from 0
              unless (= i 4) do (is (= (* 2 i) (number-of (grpc:await future)))))
        (is (equal '(0 1 2 3 5 6 7) (sort order #'<)))))))

;;; Several links

(test a-subchannel-may-have-several-links
  "A call uses the first link with a free stream; a call that finds no stream waits for any link."
  (with-probe (channel :server server :options '(:max-concurrent-streams 2)) (:chat #'echo)
    (grpc:ensure-connected channel)
    (let ((subchannel (give-links channel 3)))
      (is (eq :ready (client:subchannel-state subchannel)))
      (is (= 3 (getf (grpc:server-statistics server) :connections)))
      (let* ((calls (loop repeat 6 collect (chat channel :open :timeout 60)))
             (waiting (progn
                        (loop for call in calls for i from 0 do (speak call i))
                        (chat channel :open :timeout 60))))
        (is (equal '(2 2 2) (mapcar #'wire::link-calls
                                    (client::connection-set-links (connection-set-of subchannel)))))
        (grpc:send waiting (note 9))
        (eventually (client::waiting-calls (client::channel-core channel)))
        (grpc:close-send (fifth calls))
        (is (null (grpc:receive (fifth calls))))
        (is (= 9 (number-of (grpc:receive waiting))))
        (dolist (call (cons waiting (remove (fifth calls) calls)))
          (grpc:close-send call)
          (is (null (grpc:receive call))))
        (give-links channel 3)
        (is (= 3 (getf (grpc:server-statistics server) :connections)) "links are connected")))))

(test a-subchannel-is-ready-while-it-has-a-link
  "A link that is left does not affect the others."
  (with-probe (channel :server server) (:ask #'double)
    (grpc:ensure-connected channel)
    (let* ((subchannel (give-links channel 2))
           (links (client::connection-set-links (connection-set-of subchannel)))
           (left (make-signal)))
      (loop:post (client:core-loop (client:subchannel-core subchannel))
                 (lambda ()
                   (setf (wire::link-draining (first links)) t)
                   (client::drain-link (connection-set-of subchannel) (first links))
                   (signal-it left)))
      (is-true (await-signal left))
      (is (equal (rest links) (client::connection-set-links (connection-set-of subchannel))))
      (is (eq :ready (grpc:channel-state channel)))
      (is (= 2 (number-of (ask channel (note 1)))))
      (eventually (= 1 (getf (grpc:server-statistics server) :connections)))
      (is (eq :ready (grpc:channel-state channel))))))

(test a-link-that-does-not-come-about-changes-nothing
  (let ((server (start-probe (list :ask #'double))))
    (grpc:with-channel (channel (grpc:server-address server) :backoff-initial-seconds 0.01)
      (grpc:ensure-connected channel)
      (let* ((connection-set (connection-set-of (the-subchannel channel)))
             (addresses (client::connection-set-addresses connection-set)))
        (loop:post (client::connection-set-loop connection-set)
                   (lambda ()
                     ;; where nobody listens
                     (setf (client::connection-set-addresses connection-set)
                           (list (os:make-address "127.0.0.1" 1)))
                     (client::widen connection-set 2)
                     (setf (client::connection-set-addresses connection-set) addresses)))
        (eventually (client:connection-set-failure connection-set))
        (eventually (null (client::connection-set-connect-rounds connection-set)))
        (is (eq :ready (grpc:channel-state channel)))
        (is (= 2 (number-of (ask channel (note 1)))))))
    (grpc:stop-server server)))

;;; Several addresses (gRFC A61)

(defun call-with-silent-server (function)
  "Call FUNCTION with the address of a server that accepts connections and sends nothing."
  (let ((listener (os:open-socket os:+af-inet+)))
    (os:bind-socket listener (os:make-address "127.0.0.1" 0))
    (os:listen-socket listener 16)
    (unwind-protect (funcall function (os:address-text (os:socket-address listener)))
      (os:close-descriptor listener))))

(test silent-servers-are-passed-over
  "An attempt is under way until the peer's SETTINGS come; after a while the next begins beside it."
  (call-with-silent-server
   (lambda (silent)
     (let ((server (start-probe (list :ask #'double))))
       (grpc:with-channel (channel (format nil "ipv4:~A,~A" silent (grpc:server-address server))
                                   :connection-attempt-delay-seconds 0.1)
         (let ((begin (monotonic-ns)))
           (is (= 2 (number-of (ask channel (note 1) :timeout 20))))
           (is (<= (seconds-ns 0.1) (- (monotonic-ns) begin))))
         (is (null (client::connection-set-connect-rounds
                    (connection-set-of (the-subchannel channel))))))
       (eventually (zerop (getf (grpc:server-statistics server) :connections)))
       (grpc:stop-server server)))))

(test the-whole-of-connecting-has-a-limit
  "The limit includes the handshake."
  (call-with-silent-server
   (lambda (silent)
     (grpc:with-channel (channel silent :connect-timeout-seconds 0.1)
       (let ((error (caught (ask channel (note 1) :timeout 20))))
         (is (typep error 'grpc:unavailable))
         (is (search "no answer in time" (grpc:rpc-error-message error))))))))

(test servers-that-hang-up-are-passed-over-at-once
  (call-with-inhospitable-server
   (lambda (address count)
     (let ((server (start-probe (list :ask #'double))))
       (grpc:with-channel (channel (format nil "ipv4:~A,~A" address (grpc:server-address server))
                                   :connection-attempt-delay-seconds 2)
         (let ((begin (monotonic-ns)))
           (is (= 2 (number-of (ask channel (note 1) :timeout 20))))
           (is (< (- (monotonic-ns) begin) (seconds-ns 1.9)))
           (is (= 1 (funcall count)))))
       (grpc:stop-server server)))
   #()))

(test calls-do-not-begin-on-connections-that-have-ended
  "No thread has read them since: a thread that begins a call reads first."
  (dotimes (i 5)
    (let ((servers (loop repeat 2 collect (start-probe (list :ask #'double)))))
      (grpc:with-channel (channel (format nil "ipv4:~{~A~^,~}"
                                          (mapcar #'grpc:server-address servers)))
        (is (= 2 (number-of (ask channel (note 1)))))
        (grpc:stop-server (first servers) :drain 0)
        (is (= 2 (number-of (ask channel (note 1))))))
      (grpc:stop-server (second servers)))))

;;; Balancers that give subchannels up when they hear of them

(grpc:define-balancer quitter "quitter" ((end :initform nil :accessor quitter-end)) ; at this state
  (:documentation "It gives its only subchannel up as soon as that has come to a state."))

(defmethod grpc:update-backends ((balancer quitter) backends config)
  (declare (ignore config))
  (grpc:open-subchannel balancer (first backends)))

(defmethod grpc:subchannel-changed ((balancer quitter) subchannel)
  (when (eq (quitter-end balancer) (grpc:subchannel-state subchannel))
    (grpc:close-subchannel subchannel)))

(test what-is-given-up-meanwhile-does-not-go-on
  "The closed subchannel neither connects nor waits for the next attempt."
  (dolist (end '(:connecting :transient-failure))
    (with-core (core puppet :quitter)
      (client::wake core)
      (tell-backends puppet "127.0.0.1:1")
      (let ((subchannel (first (client:core-subchannels core))))
        (setf (quitter-end (client:subchannel-balancer subchannel)) end)
        (grpc:connect subchannel)
        (when (eq end :transient-failure)
          (is (= 1 (length (client::connection-set-connect-rounds (connection-set-of subchannel)))))
          (client::wait-for-better-times (connection-set-of subchannel) "it is down"))
        (is (eq :shutdown (client:subchannel-state subchannel)))
        (is (null (client::connection-set-connect-rounds (connection-set-of subchannel))))
        (is (null (client::back-off-timer
                   (client::connection-set-back-off (connection-set-of subchannel)))))))))
