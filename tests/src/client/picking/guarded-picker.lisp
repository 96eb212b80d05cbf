;;;; Refusals of guards: calls beyond a channel's limit, and calls to servers that fail too often.

(in-package #:clgrpc.tests.client)

(test no-guard-without-a-limit
  (with-probe (channel) (:ask #'double)
    (ask channel (note 1))
    (let ((core (client::channel-core channel)))
      (is (eq #'identity (client::core-picker-wrapper core)))
      (is (null (client::core-observer core)))
      (is (client:subchannel-p (client::core-picker core)) "the picker is the subchannel"))))

(test so-many-calls-are-in-flight
  "The next call is refused at once, even if it waits for ready; an ended call makes room."
  (with-probe (channel :channel-options '(:max-concurrent-requests 2)) (:ask #'double :chat #'echo)
    (let ((first (chat channel :open))
          (second (chat channel :open)))
      (speak first 1)
      (speak second 1)
      (dolist (options '(() (:wait-for-ready t)))
        (let ((error (caught (apply #'ask channel (note 1) options))))
          (is (eq :unavailable (status:rpc-error-status error)))
          (is (search "2 calls are in flight" (princ-to-string error)))
          (is (not (status:rpc-error-sent-p error)))))
      (grpc:cancel first)
      (eventually (grpc:call-status first))
      (dotimes (i 5) (is (= 6 (number-of (ask channel (note 3))))))
      (grpc:cancel second))))

(test calls-that-wait-for-a-connection-are-not-in-flight-yet
  (with-core (core puppet nil :options (:max-concurrent-requests 1))
    (client::add-guard core)
    (let ((calls (loop repeat 3 collect (begin-ask core))))
      (is (= 3 (length (client::waiting-calls core))))
      (push-config puppet nil)
      ;; no stream, but a server to be picked
      (client::change-state (connection-set-of (first (client:core-subchannels core))) :ready)
      (is (equal '(nil :unavailable :unavailable) (mapcar #'grpc:call-status calls)))
      (is (eq :unavailable (grpc:call-status (begin-ask core))))
      (client::end-client-call (first calls) :cancelled "of a test")
      (is (null (grpc:call-status (begin-ask core)))))))

(test so-many-calls-may-wait
  (with-probe (channel :options '(:max-concurrent-streams 1)
                       :channel-options '(:breaker-max-waiting 1))
      (:chat #'echo)
    (let ((first (chat channel :open)))
      (speak first 1)
      (let ((second (chat channel :open)))
        (eventually (client::waiting-calls (client::channel-core channel)))
        (let ((error (caught (grpc:receive (chat channel :open)))))
          (is (eq :unavailable (status:rpc-error-status error)))
          (is (search "breaker-max-waiting" (princ-to-string error))))
        (grpc:cancel first)
        (speak second 2)
        (grpc:cancel second)))))

(test so-many-calls-may-wait-for-each-server
  "Calls that wait for one server do not prevent others from waiting for another server."
  (with-core (core puppet :round-robin :options (:breaker-max-waiting 1))
    (client::add-guard core)
    (client::wake core)
    (tell-backends puppet "127.0.0.1:1" "127.0.0.1:2")
    (dolist (subchannel (client:core-subchannels core))
      (client::end-connect-rounds (connection-set-of subchannel) "of a test"))
    (let ((server (subchannel-to core "127.0.0.1:1"))
          (servers (make-hash-table)))
      (flet ((server-of (call)
               (or (gethash call servers) (setf (gethash call servers) server))))
        (client::change-picker core :ready (client:make-picker #'server-of "a test's")))
      (let ((calls (list (begin-ask core) (begin-ask core))))
        (is (equal '(nil :unavailable) (mapcar #'grpc:call-status calls)))
        (is (search "1 calls wait for a stream of 127.0.0.1:1"
                    (princ-to-string (caught (grpc:await (second calls)))))))
      (setf server (subchannel-to core "127.0.0.1:2"))
      (is (equal '(nil :unavailable)
                 (loop repeat 2 collect (grpc:call-status (begin-ask core))))))))

(defvar *sick* nil "True while FALL-ILL fails.")

(defun fall-ill (note call)
  (if *sick* (grpc:fail :internal "ill") (double note call)))

(test servers-that-fail-too-many-calls-get-none
  (setf *sick* t)
  (with-probe (channel :channel-options '(:breaker-failure-percent 50 :breaker-min-calls 4
                                          :breaker-open-seconds 0.2))
      (:ask #'fall-ill)
    (flet ((breaker ()
             (getf (first (grpc:channel-addresses channel)) :breaker)))
      (dotimes (i 4)
        (is (eq :internal (status:rpc-error-status (caught (ask channel (note 1)))))))
      (is (eq :open (breaker)))
      (let ((error (caught (ask channel (note 1) :wait-for-ready t))))
        (is (eq :unavailable (status:rpc-error-status error)))
        (is (search "too many of its calls have failed" (princ-to-string error)))
        (is (not (search "are open" (princ-to-string error)))
            "the text does not say that streams were lacking"))
      (setf *sick* nil)
      (eventually (eql 2 (ignore-errors (number-of (ask channel (note 1))))))
      (is (eq :closed (breaker))))))

(test breakers-leave-calls-to-other-servers
  "This holds even if the balancer picks servers in turn, regardless of breakers."
  (with-core (core puppet :round-robin :options (:breaker-max-calls 1))
    (client::add-guard core)
    (client::wake core)
    (tell-backends puppet "127.0.0.1:1" "127.0.0.1:2")
    (dolist (subchannel (client:core-subchannels core))
      (client::change-state (connection-set-of subchannel) :ready))
    (destructuring-bind (full other) (client:core-subchannels core)
      (setf (client::breaker-state (client::ensure-breaker full)) :open
            (client::breaker-until-ns (client::subchannel-breaker full)) most-positive-fixnum)
      (flet ((see-picks ()
               ;; each new call makes a pick too, so examine both turns
               (loop repeat 4
                     do (let ((call (begin-ask core)))
                          (loop repeat 2 do (is (eq other (client::pick core call))))))))
        (see-picks)
        (let ((turns (list full other)))
          (client::change-picker
           core :ready (client:make-picker (fn (_call)
                                             (setf turns (reverse turns))
                                             (first turns))
                                           "in turn")))
        (see-picks)))))

(test a-call-that-another-server-is-picked-for-gives-the-trial-back
  "Otherwise the first server's breaker would wait for the end of that call for ever."
  (with-core (core puppet :round-robin :options (:breaker-failure-percent 50))
    (client::add-guard core)
    (client::wake core)
    (tell-backends puppet "127.0.0.1:1" "127.0.0.1:2")
    (dolist (subchannel (client:core-subchannels core))
      (client::end-connect-rounds (connection-set-of subchannel) "of a test")
      (client::change-state (connection-set-of subchannel) :ready))
    (let* ((server (subchannel-to core "127.0.0.1:1"))
           (breaker (client::ensure-breaker server)))
      (setf (client::breaker-state breaker) :half-open)
      (flet ((publish (server)
               (client::change-picker core :ready (client:make-picker (constantly server) "one"))))
        (publish server)
        (let ((call (begin-ask core)))
          (is (eq call (client::breaker-trial breaker)))
          (is (eq :unavailable (grpc:call-status (begin-ask core))))
          (publish (subchannel-to core "127.0.0.1:2"))
          (is (null (grpc:call-status call)))
          (is (null (client::breaker-trial breaker))))))))

(test a-hedge-that-waits-gives-the-trial-back
  "This happens when its call ends, or is answered by another server, of which it has a stream.
Otherwise the breaker would wait for the end of a stream that does not exist."
  (with-probe (channel :server server) (:chat #'echo)
    (grpc:with-channel (channel (format nil "ipv4:~A,~A" (grpc:server-address server)
                                        (free-address))
                                :balance :round-robin :breaker-failure-percent 50)
      (grpc:ensure-connected channel)
      (let* ((core (client::channel-core channel))
             (first (chat channel :open))
             (second (chat channel :open))
             (other (subchannel-without-links core))
             (breaker (client::ensure-breaker other)))
        (flet ((hedge (call)
                 (client::ensure-retries call)
                 (client::submit call nil)
                 (list (eq call (client::breaker-trial breaker))
                       (client:failure-p (client::breaker-refusal other nil))
                       (client::breaker-state breaker))))
          (is (equal '((t t :half-open) nil (t t :half-open) (t nil :half-open))
                     ;; in one turn of the loop, so that no other picker is published
                     (client::look-at core
                                      (lambda ()
                                        (setf (client::breaker-state breaker) :half-open)
                                        (client::change-picker
                                         core :ready
                                         (client:make-picker (constantly other) "one"))
                                        (list (hedge first)
                                              (progn (grpc:cancel first)
                                                     (client::breaker-trial breaker))
                                              (hedge second)
                                              (progn (wire:mark-call second :answer)
                                                     (list (client::breaker-passed-p other nil)
                                                           (client:failure-p
                                                            (client::breaker-refusal other nil))
                                                           (client::breaker-state breaker)))))))))
        (grpc:cancel second)))))

(defun subchannel-without-links (core)
  (find nil (client:core-subchannels core)
        :key (lambda (subchannel) (client::connection-set-links (connection-set-of subchannel)))))

(test a-trial-that-is-answered-closes-the-breaker
  "Otherwise a stream that is the trial would keep other calls away while it lasts."
  (with-probe (channel :channel-options '(:breaker-failure-percent 50)) (:ask #'double :chat #'echo)
    (grpc:ensure-connected channel)
    (let* ((core (client::channel-core channel))
           (breaker (client::ensure-breaker (the-subchannel channel))))
      (client::look-at core (lambda () (setf (client::breaker-state breaker) :half-open)))
      (let ((trial (chat channel :open)))
        (is (search "a trial call is under way" (princ-to-string (caught (ask channel (note 1))))))
        (speak trial 1)
        (is (= 2 (number-of (ask channel (note 1)))))
        (is (eq :closed (client::breaker-state breaker)))
        (is (null (grpc:call-status trial)))
        (grpc:cancel trial)))))
