;;;; Connections that channels share.

(in-package #:clgrpc.tests.client)

(defmacro with-sharers ((channels server count &rest options) (&rest handlers) &body body)
  "Evaluate BODY with CHANNELS bound to COUNT channels that share connections and also have OPTIONS,
to SERVER, a server of a probe with HANDLERS."
  `(with-probe (kept :server ,server) (,@handlers)
     (grpc:close-channel kept)
     (let ((,channels (loop repeat ,count
                            collect (grpc:make-channel (grpc:server-address ,server)
                                                       :share-connections t ,@options))))
       (unwind-protect (progn ,@body)
         (mapc #'grpc:close-channel ,channels)))))

(defun connection-set-of-channel (channel)
  (connection-set-of (the-subchannel channel)))

(defun links-of (channel)
  "The links on which the only subchannel of CHANNEL has calls."
  (client::connection-set-links (connection-set-of-channel channel)))

(defun fact (channel name)
  "The value of NAME in CHANNEL-ADDRESSES for the only server of CHANNEL."
  (getf (first (grpc:channel-addresses channel)) name))

(test alike-channels-have-one-connection
  "Threads use three channels: each gets its own answers, and each channel has its own counts."
  (with-sharers (channels server 3) (:ask #'double)
    (let ((sums (with-threads (i 3)
                  (loop for n below 100 sum (number-of (ask (elt channels i) (note n)))))))
      (is (equal '(9900 9900 9900) sums)))
    (ask (first channels) (note 1))
    (is (= 1 (length (remove-duplicates (mapcan (lambda (channel) (copy-list (links-of channel)))
                                                channels)))))
    (is (equal '(101 100 100) (mapcar (lambda (channel) (fact channel :picks)) channels)))
    (is (equal '(1 1 1) (mapcar (lambda (channel) (fact channel :connections)) channels)))
    (is (equal '(3 3 3) (mapcar (lambda (channel) (fact channel :shared-by)) channels)))
    (is (equal '(0 0 0) (mapcar (lambda (channel) (fact channel :calls)) channels)))
    (is (search "shared by 3 channels" (with-output-to-string (stream)
                                 (describe (first channels) stream))))))

(test channels-that-differ-have-their-own
  "Channels without the option have their own connections too, and their own loops."
  (let ((observer (grpc:make-observer)))
    (with-probe (kept :server server) (:ask #'double)
      (let* ((address (grpc:server-address server))
             (channels (mapcar (lambda (options) (apply #'grpc:make-channel address options))
                               `((:share-connections t)
                                 (:share-connections t :service-config () :balance :round-robin
                                  :compression :gzip)
                                 (:share-connections t :keepalive-seconds 77)
                                 (:share-connections t :observer ,observer)
                                 ()))))
        (unwind-protect
             (destructuring-bind (first alike patient observed alone) channels
               (dolist (channel channels) (is (= 4 (number-of (ask channel (note 2))))))
               (is (eq (connection-set-of-channel first) (connection-set-of-channel alike)))
               (is (= 4 (length (remove-duplicates (mapcar #'connection-set-of-channel channels)))))
               (is (eq (channel-loop first) (channel-loop alike)))
               (dolist (other (list patient observed alone))
                 (is (= 1 (length (links-of other))))
                 (is (not (eq (channel-loop first) (channel-loop other)))))
               (is (null (fact alone :shared-by)))
               (is (= 1 (fact patient :shared-by))))
          (mapc #'grpc:close-channel channels))))))

(test a-channel-that-is-closed-ends-its-own-calls
  "The calls of other channels continue over the same connection, which ends with the last channel."
  (with-sharers (channels server 2) (:ask #'double :chat #'echo)
    (destructuring-bind (first second) channels
      (let ((one (chat first :open)) (other (chat second :open)))
        (speak one 1)
        (speak other 2)
        (let ((connection-set (connection-set-of-channel second)) (link (first (links-of second))))
          (is (= 2 (wire::link-calls link)))
          (grpc:close-channel first)
          (is (typep (caught (grpc:receive one)) 'grpc:cancelled))
          (speak other 3)
          (is (equal (list link) (links-of second)))
          (is (= 1 (wire::link-calls link)))
          (is (= 1 (fact second :shared-by)))
          (is (= 4 (number-of (ask second (note 2)))))
          (grpc:close-send other)
          (is (null (grpc:receive other)))
          (grpc:close-channel second)
          (is (eq :shutdown (client::connection-set-link-state connection-set)))
          (is (null (client::connection-set-links connection-set)))
          (is-true (wire::link-failure link)))))))

(test an-idle-channel-leaves-the-connection-to-others
  (with-sharers (channels server 2 :idle-seconds 1) (:ask #'double :chat #'echo)
    (destructuring-bind (idle busy) channels
      (ask idle (note 1))
      (let ((call (chat busy :open)))
        (speak call 1)
        (let ((links (links-of busy)))
          (is (eq :idle (grpc:wait-for-state-change idle :ready :timeout 10)))
          (is (eq :ready (grpc:channel-state busy)))
          (speak call 2)
          (is (= 6 (number-of (ask idle (note 3)))))
          (is (equal links (links-of idle)) "the idle channel comes back to the same connection"))
        (grpc:cancel call)))))

(test channels-find-a-server-again-together
  "Each channel sees that the connection was lost, and a new one that they share replaces it."
  (let ((address (free-address)) (server nil) (channels '()))
    (unwind-protect
         (progn
           (setf channels (loop repeat 3
                                collect (grpc:make-channel address
                                                           :share-connections t
                                                           :backoff-initial-seconds 0.02
                                                           :backoff-maximum-seconds 0.05)))
           (loop for i below 5
                 do (setf server (start-probe (list :ask #'double) :listen address))
                    (is (equal (list (* 2 i) (* 2 i) (* 2 i))
                               (with-threads (k 3)
                                 (number-of (ask (elt channels k) (note i)
                                                 :wait-for-ready t)))))
                    (is (= 1 (length (remove-duplicates (mapcar #'connection-set-of-channel
                                                                channels)))))
                    (is (= 1 (length (links-of (first channels)))))
                    (grpc:stop-server server)
                    (dolist (channel channels)
                      (eventually (not (eq :ready (grpc:channel-state channel)))))))
      (mapc #'grpc:close-channel channels))))

(test a-server-that-goes-away-is-left-by-all
  "After a GOAWAY calls under way continue, and later ones share another connection."
  (with-sharers (channels server 2) (:ask #'double :chat #'echo)
    (destructuring-bind (first second) channels
      (let ((calls (list (chat first :open) (chat second :open))))
        (dolist (call calls) (speak call 1))
        (let ((link (first (links-of first))))
          (loop:post (channel-loop first)
                     (lambda () (wire:link-event (wire::link-owner link) link :age)))
          (is (= 2 (number-of (ask second (note 1)))))
          (is (= 4 (number-of (ask first (note 2)))))
          (is (not (member link (links-of first))))
          (is (equal (links-of first) (links-of second)))
          (dolist (call calls)
            (speak call 2)
            (grpc:close-send call)
            (is (null (grpc:receive call))))
          (eventually (null (client::connection-set-draining
                             (connection-set-of-channel first)))))))))

(test back-off-is-seen-by-all
  "A channel whose server could not be reached a moment ago does not connect at once."
  (let ((address (free-address)))
    (flet ((share () (grpc:make-channel address :share-connections t :backoff-initial-seconds 60)))
      (let ((first (share)) (second (share)))
        (unwind-protect
             (progn
               (is (typep (caught (ask first (note 1))) 'grpc:unavailable))
               (let ((error (caught (ask second (note 1)))))
                 (is (typep error 'grpc:unavailable))
                 (is (search "refused" (grpc:rpc-error-message error))))
               (is (= 1 (fact second :failed-connects)))
               (is (< 10 (fact second :next-attempt)))
               (with-started (server (start-probe (list :ask #'double) :listen address))
                 (grpc:reset-back-off first)
                 (is (= 4 (number-of (ask second (note 2) :wait-for-ready t))))
                 (is (= 4 (number-of (ask first (note 2) :wait-for-ready t))))))
          (grpc:close-channel first)
          (grpc:close-channel second))))))

(test calls-wait-for-streams-of-other-channels
  "When all streams of a connection are open, a call of one channel starts when a call of another
channel ends, and no call waits for ever."
  (with-probe (kept :server server :options '(:max-concurrent-streams 1))
      (:ask #'double :chat #'echo)
    (grpc:close-channel kept)
    (let ((channels (loop repeat 2 collect (grpc:make-channel (grpc:server-address server)
                                                              :share-connections t))))
      (unwind-protect
           (destructuring-bind (first second) channels
             (let ((call (chat first :open)))
               (speak call 1)
               (let ((futures (loop for i below 20
                                    collect (grpc:call-async #'lab.bench:ask
                                                             (if (evenp i) first second) (note i)
                                                             :timeout 20))))
                 (flet ((waiting ()
                          (client::subchannel-pool-waiting-count
                           (client::core-subchannel-pool (client::channel-core first)))))
                   (eventually (= 20 (waiting)))
                   (is (notany #'grpc:future-done-p futures))
                   (grpc:close-send call)
                   (is (equal (loop for i below 20 collect (* 2 i))
                              (mapcar (lambda (future) (number-of (grpc:await future)))
                                      futures)))
                   (is (zerop (waiting)))))))
        (mapc #'grpc:close-channel channels)))))

(test failures-are-told-to-the-channel-that-had-them
  "Each channel has its own listeners, breakers and vetoes."
  (with-sharers (channels server 2) (:ask (lambda (note call)
                                            (if (minusp (number-of note))
                                                (grpc:fail :internal "")
                                                (double note call))))
    (destructuring-bind (first second) channels
      (dolist (channel channels) (ask channel (note 1)))
      (let ((heard '()))
        (dolist (channel channels)
          (client:add-listener (the-subchannel channel)
                               (fn (_call subchannel status _trailers)
                                 (push (list (client:subchannel-core subchannel) status) heard))))
        (caught (ask first (note -1)))
        (ask second (note 1))
        (is (equal (list (list (client::channel-core second) :ok)
                         (list (client::channel-core first) :internal))
                   heard))
        (is (equal '(1 0) (mapcar (lambda (channel) (fact channel :failures)) channels))))
      (let ((done (make-signal)))
        (loop:post (channel-loop first)
                   (lambda ()
                     (client:impose-veto (the-subchannel first) :test :transient-failure "ejected")
                     (signal-it done)))
        (await-signal done))
      (is (eq :transient-failure (grpc:channel-state first)))
      (is (typep (caught (ask first (note 1))) 'grpc:unavailable))
      (is (= 2 (number-of (ask second (note 1))))))))

(test the-breakers-of-sharers-count-their-own-calls
  (with-sharers (channels server 2 :breaker-max-calls 1) (:ask #'double :chat #'echo)
    (destructuring-bind (first second) channels
      (let ((call (chat first :open)))
        (speak call 1)
        (is (typep (caught (ask first (note 1))) 'grpc:unavailable))
        (is (= 2 (number-of (ask second (note 1)))) "the other channel's breaker admits a call")
        (grpc:cancel call)))))

(test dropped-sharers-are-closed-alone
  (with-log ()
    (with-sharers (channels server 1) (:ask #'double)
      (let ((kept (first channels)))
        (ask kept (note 1))
        (let ((links (links-of kept)))
          (sb-thread:join-thread
           (in-thread (number-of (ask (grpc:make-channel (grpc:server-address server)
                                                         :share-connections t)
                                      (note 1)))))
          (is (= 2 (fact kept :shared-by)))
          (is-true (collect-until (lambda () (= 1 (fact kept :shared-by)))))
          (is (= 2 (number-of (ask kept (note 1)))))
          (is (equal links (links-of kept))))))))

(test sharers-over-tls-have-the-same-credentials
  "They have the same object, so no channel gets rights that it lacks by itself."
  (let ((server (start-probe (list :ask #'double) :credentials (credentials "server")))
        (mine (trusting nil)))
    (unwind-protect
         (let ((channels (mapcar (lambda (credentials)
                                   (grpc:make-channel (grpc:server-address server)
                                                      :share-connections t
                                                      :credentials credentials))
                                 (list mine mine (trusting nil)))))
           (dolist (channel channels) (is (= 2 (number-of (ask channel (note 1))))))
           (is (equal '(2 2 1) (mapcar (lambda (channel) (fact channel :shared-by)) channels)))
           (mapc #'grpc:close-channel channels))
      (grpc:stop-server server))))

;;; Addresses that change, without sockets

(defun call-with-sharing-cores (function)
  "See WITH-SHARING-CORES."
  (let* ((loop (loop:make-event-loop :name "nobody runs it"))
         (subchannel-pool (client::make-subchannel-pool '(x))))
    (flet ((puppet ()
             (make-instance 'puppet :target "puppet:x" :name "x" :authority "x" :host "x"))
           (core (puppet)
             (let ((core (client::new-core
                          :name "puppet:x" :loop loop :resolution (client::make-resolution puppet)
                          :subchannel-pool subchannel-pool
                          :options (make-channel-options)
                          :authority (hpack:string-field ":authority" "x"))))
               (setf (client::core-balancer core)
                     (make-instance 'client:switch :parent core))
               core)))
      (let* ((puppets (list (puppet) (puppet)))
             (cores (mapcar #'core puppets)))
        (unwind-protect (apply function (append cores puppets))
          (mapc #'client::shut-down cores)
          (is (= 0 (hash-table-count (client::subchannel-pool-connection-sets subchannel-pool)))
              "no connection set is left")
          (loop:stop-event-loop loop))))))

(defmacro with-sharing-cores ((first second puppet other-puppet) &body body)
  "Evaluate BODY with FIRST and SECOND bound to the cores of two channels that share connections,
and PUPPET and OTHER-PUPPET to their resolvers."
  `(call-with-sharing-cores (lambda (,first ,second ,puppet ,other-puppet)
                              (declare (ignorable ,puppet ,other-puppet))
                              ,@body)))

(defun core-connection-set (core)
  (connection-set-of (first (client:core-subchannels core))))

(defun connection-set-text (core)
  (client::addresses-text (client::connection-set-addresses (core-connection-set core))))

(test subchannels-with-other-addresses-have-other-connection-sets
  "A subchannel that is not connected moves to the connection set for its addresses; a connection
set with one subchannel follows it."
  (with-sharing-cores (first second puppet other-puppet)
    (flet ((texts () (list (connection-set-text first) (connection-set-text second))))
      (mapc #'client::wake (list first second))
      (tell-backends puppet "127.0.0.1:1" "127.0.0.1:2")
      (tell-backends other-puppet "127.0.0.1:1" "127.0.0.1:2")
      (is (eq (core-connection-set first) (core-connection-set second)))
      (tell-backends puppet "127.0.0.1:3")
      (is (equal '("127.0.0.1:3" "127.0.0.1:1,127.0.0.1:2") (texts)))
      (is (eq :connecting (client:core-state first)))
      (is (eq :connecting (client::connection-set-link-state (core-connection-set first))))
      (let ((connection-set (core-connection-set second)))
        (tell-backends other-puppet "127.0.0.1:1" "127.0.0.1:4")
        (is (eq connection-set (core-connection-set second)) "no other subchannel used it")
        (is (equal '("127.0.0.1:3" "127.0.0.1:1,127.0.0.1:4") (texts)))
        (tell-backends other-puppet "127.0.0.1:3")
        (is (eq (core-connection-set first) (core-connection-set second)))
        (is (eq :shutdown (client::connection-set-link-state connection-set)))
        (is (null (client::connection-set-connect-rounds connection-set))))
      (is (eq :connecting (client:core-state second)))
      (let ((connection-set (core-connection-set first)))
        (client::wait-for-better-times connection-set "it rains")
        (is (equal '(:transient-failure :transient-failure)
                   (mapcar #'client:core-state (list first second))))
        (client::end-wait connection-set)
        (is (eq :connecting (client::connection-set-link-state connection-set))
            "pick_first tries again")
        (is (= 1 (length (client::connection-set-connect-rounds connection-set))))))))

(test one-of-several-comes-late
  "A subchannel that asks a failed connection set to connect is notified in the next turn."
  (with-sharing-cores (first second puppet other-puppet)
    (client::wake first)
    (tell-backends puppet "127.0.0.1:1")
    (client::wait-for-better-times (core-connection-set first) "it rains")
    (client::wake second)
    (tell-backends other-puppet "127.0.0.1:1")
    (is (eq :connecting (client:core-state second)))
    (run-loop-of second)
    (is (eq :transient-failure (client:core-state second)))
    (is (equal "it rains" (client:last-error-text (first (client:core-subchannels second)))))))

(grpc:define-resolver told "told-by-a-test" ())

(sb-ext:defglobal **told** '())         ; the resolvers of that class that have begun, newest first

(defmethod grpc:start-resolver ((resolver told)) (push resolver **told**))

(defmacro with-told-sharers ((first second first-server second-server) &body body)
  "Evaluate BODY with FIRST and SECOND bound to channels that share connections. Their resolvers,
which are in **TOLD**, have pushed the addresses of FIRST-SERVER and SECOND-SERVER, probes."
  `(progn
     (setf **told** '())
     (with-probe (to-first :server ,first-server) (:ask #'double :chat #'echo)
       (with-probe (to-second :server ,second-server) (:ask #'double :chat #'echo)
         (grpc:with-channel (,first "told-by-a-test:x" :share-connections t)
           (grpc:with-channel (,second "told-by-a-test:x" :share-connections t)
             (let ((futures (loop for channel in (list ,first ,second)
                                  collect (grpc:call-async #'lab.bench:ask channel (note 1)
                                                           :timeout 20)
                                  do (wait-until (lambda () **told**)))))
               (wait-until (lambda () (= 2 (length **told**))))
               (tell-addresses 0 ,first-server ,second-server)
               (tell-addresses 1 ,first-server ,second-server)
               (mapc #'grpc:await futures))
             ,@body))))))

(defun tell-addresses (index &rest servers)
  "Push the addresses of SERVERS to the channel that was made INDEX channels after the first."
  (grpc:push-addresses (elt (reverse **told**) index) (mapcar #'grpc:server-address servers)))

(defun peers-of (channel)
  (mapcar #'client::client-link-peer (links-of channel)))

(test a-misplaced-stays-until-its-connection-ends
  "A subchannel with new addresses, one of which it is connected to, keeps that connection."
  (with-told-sharers (first second one other)
    (let ((links (links-of first)))
      (is (equal (list (grpc:server-address one)) (peers-of first)))
      (tell-addresses 0 one)
      (is (= 4 (number-of (ask first (note 2)))))
      (is (equal (list links links) (list (links-of first) (links-of second))))
      (grpc:stop-server one)
      (is (= 4 (number-of (ask second (note 2) :wait-for-ready t))))
      (is (equal (list (grpc:server-address other)) (peers-of second)))
      (is (typep (caught (ask first (note 2))) 'grpc:unavailable))
      (is (= 1 (fact second :shared-by))))))

(test whose-server-is-another-now-leaves
  "The calls of the subchannel that leaves continue where they are, even while the other channel is
closed; then the connection ends."
  (with-told-sharers (first second one other)
    (let ((call (chat first :open)) (connection-set (connection-set-of-channel first)))
      (speak call 1)
      (tell-addresses 0 other)
      (is (= 4 (number-of (ask first (note 2)))))
      (is (equal (list (grpc:server-address other)) (peers-of first)))
      (is (equal (list (grpc:server-address one)) (peers-of second)))
      (is (= 1 (fact first :calls)) "only the open call counts")
      (speak call 2)
      (grpc:close-channel second)
      (speak call 3)
      (grpc:close-send call)
      (is (null (grpc:receive call)))
      (eventually (null (client::connection-set-draining connection-set))))))

(test calls-of-a-former-connection-set-end-with-their-channel
  (with-told-sharers (first second one other)
    (let ((call (chat first :open)))
      (speak call 1)
      (tell-addresses 0 other)
      (ask first (note 2))
      (grpc:close-channel first)
      (is (typep (caught (grpc:receive call)) 'grpc:cancelled))
      (is (= 4 (number-of (ask second (note 2))))))))

(test no-call-begins-on-a-broken-connection
  "Its next write has failed, and it ends once it is read: a call uses another connection."
  (with-probe (channel) (:ask #'double)
    (is (= 2 (number-of (ask channel (note 1)))))
    (setf (client::client-link-broken (first (links-of channel))) t)
    (let ((error (handler-case (ask channel (note 1) :timeout 0.3)
                   (grpc:rpc-error (error) error))))
      (is (typep error 'grpc:deadline-exceeded))
      (is (not (grpc:rpc-error-sent-p error))))
    (setf (client::client-link-broken (first (links-of channel))) nil)
    (is (= 2 (number-of (ask channel (note 1)))))))
