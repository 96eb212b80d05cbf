;;;; See account.lisp of src/rpc and src/wire: the account of a call at both ends, in every stage in
;;;; which a call can end.

(in-package #:clgrpc.tests.client)

(defparameter *stages*
  '(:resolve :connect :handshake :back-off :queue :wait :receive :answer :send))

(defun check-account (stages &key at (least 0))
  "Check that STAGES, of CALL-STAGES, adds up, and that the call was AT a stage for LEAST seconds."
  (let ((sum (loop for (name value) on stages by #'cddr
                   when (member name *stages*) sum value)))
    (is (< (abs (- (getf stages :total) sum)) 0.001) "~S adds up to ~F" stages sum)
    (is (eq at (getf stages :stage)) "~S is not ~S" stages at)
    (when (plusp least)
      (is (<= least (getf stages at 0)) "~S: less than ~F s" stages least))))

(defun check-error (error class stage least &rest texts)
  "Check that ERROR is of CLASS and says, with TEXTS, that its call was LEAST seconds at STAGE."
  (is (typep error class) "~S is not of type ~S" error class)
  (check-account (grpc:rpc-error-stages error) :at stage :least least)
  (let ((reason (grpc:rpc-error-reason error)))
    (is (search reason (princ-to-string error)))
    (dolist (text (list* "after " texts))
      (is (search text reason) "~S is not in ~S" text reason))))

(test a-good-call-has-an-account
  "Both ends have the account; the first call had to connect, the second had not."
  (let ((accounts '()) (ended (make-signal)))
    ;; the time of a handler that keeps its loop is not taken
    (with-probe (channel :options '(:execution :blocking))
        (:ask (lambda (note call)
                (grpc:on-end call (lambda ()
                                    (push (grpc:call-stages call) accounts)
                                    (signal-it ended)))
                (sleep 0.05)
                (double note call)))
      (flet ((stages ()
               (let ((call (nth-value 1 (ask channel (note 1)))))
                 (is (equal (grpc:call-stages call) (grpc:call-stages call))) ; since it has ended
                 (grpc:call-stages call))))
        (let ((first (stages)) (second (stages)))
          (check-account first)
          (check-account second)
          (is (= 1 (getf first :attempts)))
          (is (plusp (getf first :handshake)))
          (is (null (getf second :attempts)))
          (is (null (getf second :handshake)))
          (dolist (stages (list first second))
            (is (<= 0.05 (getf stages :wait)))
            (is (< 0 (getf stages :remaining) +patience+))
            (is (= 1 (getf stages :messages-sent) (getf stages :messages-received))))))
      (is (await-signal ended :count 2))
      (dolist (stages accounts)
        (check-account stages)
        (is (<= 0.04 (getf stages :answer)))
        (is (= 1 (getf stages :messages-sent) (getf stages :messages-received)))))))

(defun compute (seconds)
  "Occupy the processor for SECONDS."
  (let ((end (+ (monotonic-ns) (seconds-ns seconds))))
    (loop while (< (monotonic-ns) end))))

(test handlers-on-the-loop-have-an-account
  "Handlers that stay on the loop take time as well. Such a handler is so short that no thread takes
the loop over, unless its thread is kept from running. So at least eight of ten show it."
  (let ((accounts '()) (ended (make-signal)))
    (flet ((tell (call)
             (grpc:on-end call (lambda ()
                                 (push (grpc:call-stages call) accounts)
                                 (signal-it ended)))))
      (with-probe (channel :options '(:execution :inline))
          (:ask (lambda (note call)
                  (tell call)
                  (compute 0.0005)
                  (double note call))
           :watch (lambda (note call)
                    (tell call)
                    (compute 0.0005)
                    (grpc:send call note)))
        (dotimes (i 5)
          (ask channel (note 1))
          (numbers (watch channel (note 1))))
        (is (await-signal ended :count 10))))
    (is (every (lambda (stages) (<= 0.0005 (getf stages :total))) accounts))
    (is (<= 8 (count-if (lambda (stages) (<= 0.00049 (getf stages :answer 0))) accounts))
        "~{~S~%~}" accounts)))

(test requests-that-do-not-end-are-named
  "The error of a call that waits for an answer says so if its user has not called CLOSE-SEND."
  (let ((begun (make-signal)) (over (make-signal)))
    (with-probe (channel)
        (:collect (lambda (notes call)
                    (grpc:do-messages (note notes) (signal-it begun))
                    (signal-it over)
                    call))
      (flet ((error-of (call) (grpc:cancel call) (caught (grpc:receive call))))
        (grpc:with-call (call (lab.bench:collect channel :open))
          (grpc:send call (note 1))
          (is (await-signal begun))
          (let ((error (error-of call)))
            (is-true (getf (grpc:rpc-error-stages error) :requests-open))
            (is (search "waiting for the response before CLOSE-SEND ended the requests"
                        (princ-to-string error)))))
        (grpc:with-call (call (lab.bench:collect channel :open))
          (grpc:send call (note 1))
          (grpc:close-send call)
          (is (await-signal over))
          (let ((error (error-of call)))
            (is (eq :wait (getf (grpc:rpc-error-stages error) :stage)))
            (is (null (getf (grpc:rpc-error-stages error) :requests-open)))
            (is (not (search "CLOSE-SEND" (princ-to-string error))))))))))

(test nobody-listens
  (grpc:with-channel (channel (free-address))
    (check-error (caught (ask channel (note 1))) 'grpc:unavailable :connect 0
                 "waiting for a connection" "attempts to connect: 1" "messages sent: 0")
    (check-error (caught (ask channel (note 1) :wait-for-ready t :timeout 0.6))
                 'grpc:deadline-exceeded :back-off 0.2 "Connection refused" "back off 0."
                 "waiting for the next attempt to connect")))

(test what-became-of-a-call-is-one-line
  (loop for texts in (list rpc::*client-stage-texts* rpc::*server-stage-texts*)
        do (loop for (stage text) on texts by #'cddr
                 do (is (not (find #\Newline text)) "the text of ~S" stage))))

(test no-such-name
  (grpc:with-channel (channel "no-such-host.invalid:1")
    (check-error (caught (ask channel (note 1))) 'grpc:unavailable :resolve 0
                 "the name to be looked up")))

(test nobody-accepts
  (support:with-silent-listener (address)
    (grpc:with-channel (channel address)
      (check-error (caught (ask channel (note 1) :timeout 0.6)) 'grpc:deadline-exceeded
                   :handshake 0.15 "waiting for the handshake" "messages sent: 0"))))

(test channels-that-do-not-connect
  "The error of ENSURE-CONNECTED names what the channel has waited for."
  (support:with-silent-listener (address)
    (grpc:with-channel (channel address)
      (let ((error (caught (grpc:ensure-connected channel :timeout 0.1))))
        (is (typep error 'grpc:deadline-exceeded))
        (is (search "waiting for the handshake" (grpc:rpc-error-message error)))))))

(test servers-that-stop-half-way
  "It stops before its headers, after them, after a message: the messages received are counted."
  (with-raw-server (address :at :headers)
      (lambda (peer exchange)
        (let ((path (field-of ":path" (exchange-headers exchange))))
          (unless (search "Ask" path)
            (send-fields (exchange-stream exchange)
                         '((":status" . "200") ("content-type" . "application/grpc")) nil)
            (when (search "Chat" path)
              (let ((message (note-octets 5)))
                (http2:send-data (exchange-stream exchange) message 0 (length message) nil)))
            (flush-peer peer))))
    (grpc:with-channel (channel address)
      (check-error (caught (ask channel (note 1) :timeout 0.6)) 'grpc:deadline-exceeded :wait 0.1
                   "waiting for the response" "messages sent: 1, received: 0")
      (let ((call (watch channel (note 1) :timeout 0.6)))
        (check-error (caught (grpc:receive call)) 'grpc:deadline-exceeded :receive 0.1
                     "receiving the response" "messages sent: 1, received: 0"))
      (let ((call (chat channel :open :timeout 0.8)))
        (loop repeat 3 do (grpc:send call (note 1)))
        (is (= 5 (number-of (grpc:receive call))))
        (let ((so-far (grpc:call-stages call)))
          (is (eq :receive (getf so-far :stage)))
          (is (plusp (getf so-far :remaining))))
        (check-error (caught (grpc:receive call)) 'grpc:deadline-exceeded :receive 0.1
                     "messages sent: 3, received: 1")))))

(test servers-that-do-not-read
  "The error says how much of the requests the server has not taken."
  (let ((release (make-signal)))
    (with-raw-server (address :at :headers :options (:stream-window-octets 65535))
        (fn (_peer _exchange) (await-signal release))
      (grpc:with-channel (channel address)
        (check-error (caught (ask channel (note 1 :body 300000) :timeout 0.3))
                     'grpc:deadline-exceeded :send 0 "the server to take the request"
                     "octets not taken: "))
      (signal-it release))))

(test no-stream-is-free
  (let ((go-on (make-signal)) (running (make-signal)))
    (with-probe (channel :options '(:max-concurrent-streams 1))
        (:ask (double-when running go-on))
      (grpc:ensure-connected channel)
      (let ((first (grpc:call-async #'lab.bench:ask channel (note 1))))
        (is (await-signal running))
        (check-error (caught (ask channel (note 2) :timeout 0.6)) 'grpc:deadline-exceeded
                     :queue 0.15 "waiting for a stream" "all 1 that 127.0.0.1:" "are open")
        (let ((waiting (grpc:call-async #'lab.bench:ask channel (note 3))))
          ;; until the loop has begun the call, and so has queued it
          (eventually (plusp (getf (grpc:call-stages waiting) :total)))
          (loop repeat 2 do (signal-it go-on))
          (grpc:await first)
          (let ((stages (grpc:call-stages (nth-value 1 (grpc:await waiting)))))
            (check-account stages)
            (is (plusp (getf stages :queue)))))))))

(test cancelled-and-refused-calls
  "By the caller, by the handler, by the server's end: each error names the call's stage."
  (let ((running (make-signal)))
    (with-probe (channel :server server)
        (:ask (handling ()
                (grpc:fail :not-found "no such note"))
         :chat (lambda (stream call)
                 (grpc:send call (note 1))
                 (signal-it running)
                 (grpc:receive stream)))
      (check-error (caught (ask channel (note 1))) 'grpc:not-found :wait 0 "messages sent: 1")
      (let ((call (chat channel :open)))
        (is (await-signal running))
        (grpc:receive call)
        (grpc:cancel call)
        (check-error (caught (grpc:receive call)) 'grpc:cancelled :receive 0 "received: 1"))
      (let ((call (chat channel :open)))
        (is (await-signal running))
        (grpc:receive call)
        (grpc:stop-server server :drain 0)
        (check-error (caught (grpc:receive call)) 'grpc:unavailable :receive 0 "received: 1"))
      (check-error (caught (ask channel (note 1))) 'grpc:unavailable :connect 0
                   "waiting for a connection"))))

(test handlers-know-what-became-of-their-calls
  "The deadline passes in the handler, the request does not arrive, or no thread is free."
  (let ((accounts '()) (begun (make-signal)) (ended (make-signal))
        (lock (sb-thread:make-mutex)) (error nil))
    (flet ((watch-end (call)
             (grpc:on-end call (lambda ()
                                 (sb-thread:with-mutex (lock)
                                   (push (grpc:call-stages call) accounts))
                                 (signal-it ended)))))
      (with-probe (channel)
          (:ask (lambda (note call)
                  (watch-end call)
                  (sleep 0.7)
                  note)
           :collect (lambda (stream call)
                      (watch-end call)
                      (grpc:receive stream)
                      (signal-it begun)
                      (setf error (caught (grpc:receive stream)))
                      (note 1)))
        (is (typep (caught (ask channel (note 1) :timeout 0.4)) 'grpc:deadline-exceeded))
        (is (await-signal ended))
        (check-account (first accounts) :at :answer :least 0.05)
        (let ((call (collect channel :open)))
          (grpc:send call (note 1))
          (is (await-signal begun))
          (is (= 1 (getf (grpc:call-stages call) :messages-sent)))
          (grpc:cancel call))
        (is (await-signal ended))
        (check-account (first accounts) :at :answer)
        (eventually error)
        (check-error error 'grpc:cancelled :answer 0 "waiting for the handler" "received: 1")))))

(test a-deadline-that-has-passed-waits-for-nothing
  "The error does not say that all streams are open."
  (with-probe (channel) (:ask #'double)
    (flet ((reason ()
             (grpc:rpc-error-reason (caught (ask channel (note 1) :timeout 0)))))
      (is (search "before it was sent" (reason)) "never connected")
      (ask channel (note 1))
      (let ((reason (reason)))
        (is (search "before it was sent" reason))
        (is (null (search "stream" reason)) "~A" reason)))))
