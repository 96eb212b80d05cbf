;;;; Calls whose deadline has passed end alike, whether the client or the server notices it first.

(in-package #:clgrpc.tests.client)

(defun end-after-deadline (ending timeout)
  "The error of a call with TIMEOUT that its server ends by ENDING after the deadline. The loop is
blocked meanwhile, so that it reads the server's answer before it runs timers. Nil if the machine
was too slow for this."
  (let ((due 0) (in-time nil) (asked (make-signal)) (answered (make-signal)))
    (with-raw-server (address)
        (lambda (peer exchange)
          (signal-it asked)
          (wait-until (lambda () (< 0 due (monotonic-ns))))
          (ecase ending
            (:status (send-fields (exchange-stream exchange)
                                  '((":status" . "200") ("content-type" . "application/grpc")
                                    ("grpc-status" . "2")
                                    ("grpc-message" . "context deadline exceeded"))
                                  t))
            (:reset (http2:reset-stream (exchange-stream exchange) http2:+internal-error+))
            (:close (setf (peer-closed peer) t)))
          (flush-peer peer)
          (signal-it answered))
      (grpc:with-channel (channel address)
        (grpc:ensure-connected channel)
        (let* ((loop (client:core-loop (client::channel-core channel)))
               (holding (make-signal))
               (future (grpc:call-async #'lab.bench:ask channel (note 1) :timeout timeout)))
          (await-signal asked)
          (loop:post loop (lambda ()
                            (setf in-time (< (monotonic-ns) (grpc:call-deadline future)))
                            (signal-it holding)
                            (wait-until (lambda () (< 0 due (monotonic-ns))))
                            (await-signal answered)))
          (setf due (grpc:call-deadline future))
          (await-signal holding)
          (let ((error (caught (grpc:await future))))
            (and in-time error)))))))

(test the-deadline-is-heard-before-the-server
  "If a server ends a call after its deadline, the deadline counts, whichever was noticed first."
  (dolist (ending '(:status :reset :close))
    (let ((error (loop for timeout in '(0.2 1 5 25)
                       thereis (end-after-deadline ending timeout))))
      (is (typep error 'grpc:deadline-exceeded) "~S: ~A" ending error)
      (when (eq ending :status)
        (is (search "UNKNOWN from the server: context deadline exceeded"
                    (grpc:rpc-error-cause error)))))))

;;; Errors in what is called for a call, or for a server

(test an-error-in-what-follows-a-failed-attempt-ends-the-call
  (with-probe (channel :events (:call-failed)) (:chat #'echo :ask #'double)
    (let ((call (chat channel :open)))
      (speak call 1)
      (loop:post (client::wire-call-loop call)
                 (lambda ()
                   (client::ensure-retries call)
                   (client::follow-failure call nil 0 nil :no-failure)))
      (let ((error (caught (grpc:receive call))))
        (is (typep error 'grpc:internal))
        (is (search "the channel has failed" (grpc:rpc-error-message error))))
      (is (eql 4 (number-of (ask channel (note 2)))) "other calls continue"))))

(test an-error-in-another-attempt-ends-the-call
  (with-probe (channel :events (:call-failed)) (:chat #'echo)
    (let ((call (chat channel :open)))
      (loop:post (client::wire-call-loop call)
                 (lambda ()
                   (let ((retries (client::make-client-retries nil 3))) ; hedged without policy
                     (setf (client::client-parts-retries (client::ensure-client-parts call)) retries
                           (client::client-retries-awaited retries) :hedge)
                     (client::await-attempt call 1))))
      (is (typep (caught (grpc:receive call)) 'grpc:internal)))))

(test errors-of-listeners-tear-nothing
  "A listener of the ends of attempts fails each time: the connection and its calls continue, and
the next listener is called."
  (with-probe (channel :events (:balancer-failed)) (:ask #'double)
    (is (eql 2 (number-of (ask channel (note 1)))))
    (let* ((subchannel (the-subchannel channel))
           (links (client::connection-set-links (connection-set-of subchannel)))
           (heard 0))
      (flet ((refuse (&rest arguments)
               (declare (ignore arguments))
               (error "too much to hear"))
             (hear (&rest arguments)
               (declare (ignore arguments))
               (incf heard)))
        (loop:call-in-loop (client:core-loop (client:subchannel-core subchannel))
                           (lambda ()
                             (client:add-listener subchannel #'refuse)
                             (client:add-listener subchannel #'hear))))
      (dotimes (i 30) (is (eql 4 (number-of (ask channel (note 2))))))
      (wait-until (lambda () (= 30 heard)))
      (is (equal links (client::connection-set-links (connection-set-of subchannel)))))))

(test errors-of-watchers-keep-no-state-from-the-balancer
  (with-log (:balancer-failed)
    (with-core (core puppet :round-robin)
      (client::leave-idle core)
      (tell-backends puppet "10.0.0.1:1")
      (let ((subchannel (first (client:core-subchannels core))))
        (push (fn (_subchannel) (error "seen too much"))
              (client:subchannel-watchers subchannel))
        (client::change-state (connection-set-of subchannel) :ready)
        (is (eq :ready (client:core-state core)))))))

(test an-error-with-new-addresses-is-a-failure-to-resolve
  (with-log (:resolver-error)
    (with-core (core puppet :round-robin)
      (let ((told '()))
        (client:run-resolver puppet (client:core-loop core)
                             (fn (_backends failure _config)
                               (unless failure (error "too many"))
                               (push failure told)))
        (tell-backends puppet "10.0.0.1:1")
        (is (equal '("too many") told))))))
