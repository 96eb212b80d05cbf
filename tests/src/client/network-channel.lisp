;;;; Channels: arguments, states, and their end while calls are open.

(in-package #:clgrpc.tests.client)

(test wrong-targets-are-misuse
  (dolist (bad (list "" "host:" ":80" "host:0" "host:65536" "http://host:80"
                     "dns://ns.example.org/host:80" "dns://1.1.1.1/a..b:80" "unix:" nil 5))
    (signals grpc:misuse (grpc:make-channel bad))))

(test wrong-channels-are-misuse
  (let ((threads (our-threads)))
    (signals grpc:misuse (grpc:make-channel "nonsense:"))
    (signals grpc:misuse (grpc:make-channel "127.0.0.1:80" :no-such-option 1))
    (flet ((complaint (function &rest arguments)
             (handler-case (progn (apply function arguments) "")
               (grpc:misuse (error) (princ-to-string error)))))
      (dolist (text (list (complaint #'grpc:make-channel "localhost" 50051)
                          (complaint #'grpc:make-channel "localhost" 50051 :loops 1)
                          (complaint (lambda ()
                                       (grpc:with-channel (channel "localhost" 50051) channel)))))
        (is (search "not 50051: a port is a part of the target, \"HOST:PORT\"." text))))
    (signals grpc:misuse (grpc:make-channel "127.0.0.1:80" :max-receive-octets "x"))
    (is (= threads (our-threads)))))

(defun loop-users ()
  "The number of channels that have a loop."
  (reduce #'+ (calling::client-loops) :key #'calling::client-loop-channels))

(test timeouts-leave-no-half-of-a-channel
  "A channel that has a loop is completed, so that the collector finds it and the loop ends."
  (let ((users (loop-users)) (made '()))
    (with-replaced (('calling:acquire-client-loop
                     (lambda (function &rest arguments)
                       (multiple-value-prog1 (apply function arguments) (sleep 0.05))))
                    ('calling:when-dropped
                     (lambda (function channel &rest arguments)
                       (push channel made)
                       (apply function channel arguments))))
      (signals sb-ext:timeout
        (sb-ext:with-timeout 0.02 (grpc:make-channel "127.0.0.1:80"))))
    (is (= 1 (length made)))
    (mapc #'grpc:close-channel made)
    (is (= users (loop-users)))))

(defclass failing-observer () ())

(defmethod rpc:check-observer ((source failing-observer))
  source)

(defmethod rpc:observer-for ((source failing-observer) &key &allow-other-keys)
  (error "no observer"))

(test errors-leave-no-loop-behind
  "The last parts of a channel, which are made for its loop, may fail."
  (let ((users (loop-users)))
    (signals error (grpc:make-channel "127.0.0.1:80" :observer (make-instance 'failing-observer)))
    (is (= users (loop-users)))))

(defvar *interrupts-seen* '() "Whether interrupts were enabled, for each WATCHFUL that was made.")

(grpc:define-resolver watchful nil ()
  (:documentation "Notes whether it is made with interrupts on."))

(defmethod initialize-instance :after ((resolver watchful) &key)
  (push sb-sys:*interrupts-enabled* *interrupts-seen*))

(test interrupts-are-on-while-the-parts-of-a-channel-are-made
  "Making them may take long: files are read, and the user's resolver is made."
  (let ((*interrupts-seen* '()))
    (grpc:close-channel (grpc:make-channel "watchful:x" :resolvers '(("watchful" . watchful))))
    (is (equal '(t) *interrupts-seen*))))

(test wrong-names-are-misuse
  ;; names become the :authority of calls; no loop may stay acquired
  (let ((before (loop-users)))
    (dolist (host (list (format nil "b~Ccher.example" (code-char 252))
                        (format nil "~C.example" (code-char 1088)) "a b"))
      (dolist (credentials (list nil (grpc:tls-credentials :verify nil)))
        (signals grpc:misuse
          (grpc:make-channel (format nil "~A:80" host)
                             :credentials credentials))))
    (is (= before (loop-users)))))

(test channel-states
  (let ((server (start-probe (list :ask #'double))))
    (grpc:with-channel (channel (grpc:server-address server))
      (is (eq :idle (grpc:channel-state channel)))
      (is (search "idle" (princ-to-string channel)))
      (is (eq channel (grpc:ensure-connected channel)))
      (is (eq channel (grpc:ensure-connected channel :timeout 0)))
      (is (eq :ready (grpc:channel-state channel)))
      (is (= 2 (number-of (ask channel (note 1)))))
      (grpc:stop-server server)
      (eventually (eq :idle (grpc:channel-state channel)))
      (is (typep (caught (grpc:ensure-connected channel)) 'grpc:unavailable))
      (is (eq :transient-failure (grpc:channel-state channel)))
      (grpc:close-channel channel)
      (is (eq :shutdown (grpc:channel-state channel)))
      (is (search "shutdown" (princ-to-string channel)))
      (signals grpc:misuse (grpc:ensure-connected channel))
      (signals grpc:misuse (ask channel (note 1)))
      (grpc:close-channel channel))))

(test ensure-connected-does-not-spin
  "Once a channel has failed, ENSURE-CONNECTED waits for the outcome of its next attempt."
  (let ((address (free-address)))
    (grpc:with-channel (channel address :backoff-initial-seconds 0.05 :backoff-jitter 0)
      (let ((start (monotonic-ns)))
        (dotimes (i 3)
          (is (typep (caught (grpc:ensure-connected channel)) 'grpc:unavailable)))
        (is (<= (seconds-ns 0.1) (- (monotonic-ns) start)))) ; two back-offs
      (let ((error (caught (grpc:ensure-connected channel :timeout 0.001))))
        (is (typep error 'grpc:deadline-exceeded))
        (is (search "refused" (princ-to-string error))))
      (let ((server (start-probe (list :ask #'double) :listen address)))
        (is (eq channel (grpc:ensure-connected channel)))
        (grpc:stop-server server)))))

(test ensure-connected-in-time
  "ENSURE-CONNECTED does not wait longer than its timeout for an attempt."
  (support:with-silent-listener (address)
    (grpc:with-channel (channel address)
      (let ((error (caught (grpc:ensure-connected channel :timeout 0.05))))
        (is (typep error 'grpc:deadline-exceeded))
        (is (not (grpc:rpc-error-sent-p error))))
      (eventually (eq :connecting (grpc:channel-state channel))))))

(test names-and-families
  "localhost by name, and IPv6."
  (dolist (listen '("localhost:0" "[::1]:0"))
    (with-started (server (start-probe (list :ask #'double) :listen listen))
      (let* ((address (grpc:server-address server))
             (port (subseq address (position #\: address :from-end t))))
        (grpc:with-channel (channel (if (char= #\l (char listen 0))
                                        (concatenate 'string "localhost" port)
                                        address))
          (is (= 2 (number-of (ask channel (note 1))))))))))

(test unknown-host
  (grpc:with-channel (channel "no-such-host.invalid:80")
    (let ((error (caught (ask channel (note 1)))))
      (is (typep error 'grpc:unavailable))
      (is (not (grpc:rpc-error-sent-p error)))
      (is (search "no-such-host.invalid" (grpc:rpc-error-message error))))))

(test close-with-calls-open
  "All open calls end with :cancelled at both ends, in whatever stage they are."
  (let ((running (make-signal)) (seen (make-signal)))
    (with-probe (channel :server server :options '(:max-concurrent-streams 3))
        (:chat (handling (stream)
                 (signal-it running)
                 (handler-case (grpc:receive stream)
                   (grpc:cancelled (error) (signal-it seen) (error error)))))
      (grpc:with-channel (other (grpc:server-address server))
        (grpc:ensure-connected other)
        (let ((calls (loop repeat 5 collect (chat other :open))))
          (is (await-signal running :count 3))
          (grpc:close-channel other)
          (dolist (call calls)
            (is (typep (caught (grpc:receive call)) 'grpc:cancelled)))
          (is (await-signal seen :count 3)))
        (let* ((waiting (grpc:make-channel (free-address)))
               (future (grpc:call-async #'lab.bench:ask waiting (note 1) :wait-for-ready t)))
          (grpc:close-channel waiting)
          (is (typep (caught (grpc:await future)) 'grpc:cancelled)))))))

(test close-after-goaway
  "Closing also ends the calls of a connection that the server is draining."
  (let ((running (make-signal)) (seen (make-signal)))
    (with-probe (kept) ()
      (let ((server (start-probe (list :chat (handling (stream)
                                               (signal-it running)
                                               (handler-case (grpc:receive stream)
                                                 (grpc:cancelled () (signal-it seen) nil)))))))
        (grpc:with-channel (channel (grpc:server-address server))
          (let ((call (chat channel :open))
                (stopper nil))
            (is (await-signal running))
            (setf stopper (in-thread (grpc:stop-server server :drain 20)))
            (eventually (not (eq :ready (grpc:channel-state channel))))
            (is (null (grpc:call-status call)))
            (grpc:close-channel channel)
            (is (typep (caught (grpc:receive call)) 'grpc:cancelled))
            (is (await-signal seen))
            (is-true (sb-thread:join-thread stopper :timeout 20 :default nil))))))))

(test close-while-calling
  "Threads that call while the channel is closed get an error and never hang."
  (with-probe (kept :server server) (:ask #'double)
    (loop repeat 20
          do (let ((channel (grpc:make-channel (grpc:server-address server))))
               (ask channel (note 1))
               (let ((threads (loop repeat 4
                                    collect (in-thread (handler-case
                                                           (loop (ask channel (note 1)))
                                                         (grpc:rpc-error (error)
                                                           (grpc:rpc-error-status error))
                                                         (grpc:misuse () :misuse))))))
                 (ask kept (note 1))
                 (grpc:close-channel channel)
                 (dolist (thread threads)
                   (is (member (sb-thread:join-thread thread :timeout 10 :default :hangs)
                               '(:cancelled :unavailable :misuse)))))))))

(test channels-share-threads
  "Any number of channels has one loop; the last channel that is closed ends all threads."
  (let ((threads (our-threads)))
    (with-probe (channel :server server :options '(:execution :inline)) (:ask #'double)
      (ask channel (note 1))
      (let ((before (our-threads))
            (channels (loop repeat 20
                            collect (grpc:make-channel (grpc:server-address server)))))
        (dolist (channel channels) (is (= 2 (number-of (ask channel (note 1))))))
        ;; there may be a few threads for all channels, but not one for each
        (is (<= (our-threads) (+ 10 before)))
        (mapc #'grpc:close-channel channels)
        (is (= 2 (number-of (ask channel (note 1)))))))
    (eventually (= threads (our-threads)))))

(test close-from-several-threads
  "Each call returns, and the channel is closed when all have returned."
  (with-probe (kept :server server) ()
    (let ((channel (grpc:make-channel (grpc:server-address server))))
      (grpc:ensure-connected channel)
      (is (equal '(nil nil nil nil) (with-threads (i 4) (grpc:close-channel channel))))
      (is (eq :shutdown (grpc:channel-state channel))))))

(test a-close-that-is-cut-short-gives-the-loop-up
  "The thread that closes the channel is terminated while the loop has other work."
  (with-probe (channel) (:ask #'double)
    (ask channel (note 1))
    (let ((users (loop-users)) (begun (make-signal)) (over (make-signal)))
      (loop:post (client:core-loop (client::channel-core channel))
                 (lambda () (signal-it begun) (await-signal over)))
      (is-true (await-signal begun))
      (let ((closer (in-thread (grpc:close-channel channel))))
        (eventually (not (client::channel-open-p channel)))
        (sb-thread:terminate-thread closer)
        (signal-it over)
        (sb-thread:join-thread closer :default nil :timeout +patience+)
        (is (not (sb-thread:thread-alive-p closer))))
      (eventually (eq :shutdown (grpc:channel-state channel)))
      (is (< (loop-users) users)))))

(test states-can-be-waited-for
  (let ((server (start-probe (list :ask #'double))))
    (grpc:with-channel (channel (grpc:server-address server))
      (is (null (grpc:wait-for-state-change channel :idle :timeout 0.01)))
      (is (eq :idle (grpc:wait-for-state-change channel :ready)) "already another")
      (let ((heard (in-thread (grpc:wait-for-state-change channel :idle :timeout +patience+))))
        (grpc:ensure-connected channel)
        (is (member (sb-thread:join-thread heard) '(:connecting :ready))))
      (let ((heard (in-thread (grpc:wait-for-state-change channel :ready :timeout +patience+))))
        (grpc:stop-server server)
        (is (eq :idle (sb-thread:join-thread heard))))
      (signals type-error (grpc:wait-for-state-change channel :asleep)))))

(test states-are-told
  "In order, from the present one to :shutdown; an error in a function does not stop others."
  (with-log (:state-function-error)
    (let ((server (start-probe (list :ask #'double))) (states '()) (late '()))
      (let ((channel (grpc:make-channel (grpc:server-address server))))
        (is (eq channel (grpc:on-state-change channel (fn (_state) (error "on purpose")))))
        (grpc:on-state-change channel (lambda (state) (push state states)))
        (ask channel (note 1))
        (grpc:stop-server server)
        (eventually (eq :idle (grpc:channel-state channel)))
        (grpc:close-channel channel)
        (eventually (equal '(:idle :connecting :ready :idle :shutdown) (reverse states)))
        (grpc:on-state-change channel (lambda (state) (push state late)))
        (eventually (equal '(:shutdown) late))))))
