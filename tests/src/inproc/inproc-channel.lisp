;;;; Channels by name and by server: their states, their servers' ends, their options.

(in-package #:clgrpc.tests.inproc)

(defun server-at (address &rest handlers)
  (start-probe handlers :listen address))

(test channels-by-name
  "The name is looked up when a call is made; the server may start later, and another one after it."
  (let ((channel (grpc:make-channel "inproc:channels-by-name")))
    (unwind-protect
         (flet ((try () (status-of-error (caught (ask channel (note 1))))))
           (is (eq :unavailable (try)))
           (signals grpc:unavailable (grpc:ensure-connected channel))
           (dotimes (i 2)
             (with-started (server (server-at "inproc:channels-by-name" :ask #'double))
               (is (equal '("inproc:channels-by-name") (grpc:server-addresses server)))
               (is (eq channel (grpc:ensure-connected channel)))
               (is (= 2 (number-of (ask channel (note 1)))))
               (signals grpc:misuse (server-at "inproc:channels-by-name" :ask #'double)))
             (is (eq :unavailable (try)))))
      (grpc:close-channel channel))))

(test calls-of-a-former-server-end-with-the-channel
  "Its name leads elsewhere since that server has stopped, but calls of that server are open."
  (let* ((begun (sb-thread:make-semaphore)) (go-on (sb-thread:make-semaphore))
         (server (server-at "inproc:former" :ask (handling (note)
                                                   (sb-thread:signal-semaphore begun)
                                                   (sb-thread:wait-on-semaphore
                                                    go-on :timeout +patience+)
                                                   note)))
         (channel (grpc:make-channel "inproc:former" :threads t))
         (call (grpc:call-async #'lab.bench:ask channel (note 1)))
         (stopping (progn
                     (is-true (sb-thread:wait-on-semaphore begun :timeout +patience+))
                     (in-thread (grpc:stop-server server :drain 1000)))))
    (unwind-protect
         (progn
           (eventually (not (eq :open (inproc::callee-state (inproc::server-callee server)))))
           (is (eq :unavailable (status-of-error (caught (ask channel (note 1))))))
           (grpc:close-channel channel)
           (is (eq :cancelled (status-of-error (caught (grpc:await call))))))
      (sb-thread:signal-semaphore go-on)
      (sb-thread:join-thread stopping))))

(test several-acceptors
  "A server may listen on names and on ports."
  (let ((server (start-probe (list :ask #'double)
                             :listen '("inproc:one" "127.0.0.1:0" "inproc:two"))))
    (unwind-protect
         (progn
           (is (find "inproc:one" (grpc:server-addresses server) :test #'string=))
           (dolist (target (list* "inproc:two" (grpc:server-addresses server)))
             (grpc:with-channel (channel target)
               (is (= 4 (number-of (ask channel (note 2))))))))
      (is-true (grpc:stop-server server)))))

(test channels-of-a-server-that-has-stopped
  "This holds even for the first channel, made after the stop: no handler runs."
  (let ((server (start-probe (list :ask #'double))))
    (is-true (grpc:stop-server server))
    (let ((channel (grpc:server-channel server)))
      (is (eq :unavailable (status-of-error (caught (ask channel (note 1))))))
      (grpc:close-channel channel))))

(test states-of-channels
  (with-inproc (channel) (:ask #'double :chat #'echo)
    (is (eq :ready (grpc:channel-state channel)))
    (is (search "ready" (princ-to-string channel)))
    (is (null (grpc:wait-for-state-change channel :ready :timeout 0.01)))
    (let ((call (chat channel :open)))
      (grpc:send call (note 1))
      (is (= 1 (number-of (grpc:receive call))))
      (grpc:close-channel channel)
      (is (eq :cancelled (status-of-error (caught (grpc:receive call)))))
      (is (null (grpc:after call 0.001 (lambda (call) (grpc:cancel call))))
          "a timer of a call that has ended needs no loop"))
    (is (eq :shutdown (grpc:channel-state channel)))
    (is (eq :shutdown (grpc:wait-for-state-change channel :ready)))
    (grpc:close-channel channel)
    (signals grpc:misuse (ask channel (note 1)))
    (signals grpc:misuse (grpc:ensure-connected channel))))

(test states-are-told-within-the-image
  (with-inproc (channel :server server) (:ask #'double)
    (let ((channel (grpc:server-channel server)) (states '()))
      (is (eq channel (grpc:on-state-change channel (lambda (state) (push state states)))))
      (grpc:close-channel channel)
      (grpc:close-channel channel)
      (grpc:on-state-change channel (lambda (state) (push state states)))
      (is (equal '(:ready :shutdown :shutdown) (reverse states))))))

(test options-of-channels
  (with-inproc (channel :server server) (:ask #'double)
    (dolist (wrong '((:messages :move) (:on 5) (:max-send-octets -1) (:no-such 1)
                     (:compression :lzma) (:interceptors 5)))
      (signals grpc:misuse (apply #'grpc:server-channel server wrong)))
    (is (search "write inproc:NAME" (handler-case (grpc:make-channel "inproc:")
                                      (grpc:misuse (error) (princ-to-string error)))))
    (let ((channel (grpc:server-channel
                    server :interceptors
                    (list (fn (_method request options next)
                            (funcall next (note (1+ (number-of request))) options))))))
      (is (= 4 (number-of (ask channel (note 1)))))
      (grpc:close-channel channel))))

(test inproc-is-among-the-schemes
  (handler-case (grpc:make-channel "ftp://example.com")
    (grpc:misuse (misuse) (is (search "inproc" (princ-to-string misuse))))
    (:no-error (channel)
      (grpc:close-channel channel)
      (fail "there is no scheme ftp"))))
