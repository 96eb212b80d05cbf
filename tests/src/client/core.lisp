;;;; A channel on its loop: when its resolver is asked, and which calls wait, start or fail.

(in-package #:clgrpc.tests.client)

(defun begin-ask (core &rest options)
  "A call on CORE that has begun; its future."
  (let ((channel (make-instance 'client:wire-channel :target "puppet:x" :core core)))
    (prog1 (apply #'grpc:call-async #'lab.bench:ask channel (note 1) options)
      (run-loop-of core))))

(test the-first-call-wakes-the-resolver
  (with-core (core puppet :pick-first)
    (is (zerop (puppet-asked puppet)))
    (let ((call (begin-ask core)))
      (is (= 1 (puppet-asked puppet)))
      (is (eq :connecting (client:core-state core)))
      (is (equal (list call) (client::waiting-calls core)))
      (begin-ask core)
      (is (= 1 (puppet-asked puppet)))
      (is (= 2 (length (client::waiting-calls core)))))))

(test the-end-of-a-channel-costs-the-same-for-each-server
  "A channel to 2,000 servers ends without a search for each of them."
  (with-core (core puppet :round-robin :options (:max-addresses 2000))
    (client::wake core)
    (apply #'tell-backends puppet (loop for port from 1 to 2000
                                        collect (format nil "127.0.0.1:~D" port)))
    (is (= 2000 (length (client:core-subchannels core))))
    (let ((before (sb-ext:get-bytes-consed)))
      (client::shut-down core)
      (is (< (- (sb-ext:get-bytes-consed) before) 20000000)))
    (is (null (client:core-subchannels core)))))

(test calls-fail-with-the-resolver
  "Calls that wait for ready do not fail; each later call fails at once."
  (with-core (core puppet :pick-first)
    (let ((call (begin-ask core))
          (patient (begin-ask core :wait-for-ready t)))
      (client:deliver puppet '() "Cannot resolve puppet:x: no strings")
      (is (eq :unavailable (grpc:call-status call)))
      (is (search "no strings" (princ-to-string (caught (grpc:await call)))))
      (is (null (grpc:call-status patient)))
      (is (eq :unavailable (grpc:call-status (begin-ask core))))
      (is (null (grpc:call-status (begin-ask core :wait-for-ready t))))
      (is (= 2 (length (client::waiting-calls core))))
      (tell-backends puppet "127.0.0.1:1")
      (is (eq :connecting (client:core-state core)))
      (is (= 2 (length (client::waiting-calls core)))))))

(test who-has-failed-is-asked-again-after-a-while
  "The resolver is asked again even if no call needs it, but not sooner if servers are lost. The
channel stays in :transient-failure, so that calls fail at once."
  (dolist (answers '(t nil))
    (with-core (core puppet :pick-first :answers answers :options (:backoff-initial-seconds 0.01))
      (client::wake core)
      (client:deliver puppet '() "no strings")
      (is (eq :transient-failure (client:core-state core)))
      (client::ask-resolver core)
      (is (= 1 (puppet-asked puppet)))
      (is (wait-until (lambda ()
                        (run-loop-of core)
                        (null (client::back-off-timer
                               (client::resolution-back-off (client::core-resolution core)))))))
      (is (eq :transient-failure (client:core-state core)))
      (is (= 2 (puppet-asked puppet))))))

(test who-tells-of-no-server-is-asked-again-after-a-while
  "It counts as failed; each back-off is longer, until there is a server."
  (with-core (core puppet :pick-first :options (:backoff-initial-seconds 0.01
                                                :backoff-jitter 0))
    (let ((back-off (client::resolution-back-off (client::core-resolution core))))
      (client::wake core)
      (tell-backends puppet)
      (is (eq :transient-failure (client:core-state core)))
      (is (= 1 (puppet-asked puppet)))
      (is (wait-until (lambda ()
                        (run-loop-of core)
                        (null (client::back-off-timer back-off)))))
      (is (= 2 (puppet-asked puppet)))
      (let ((first (loop:back-off-seconds back-off)))
        (tell-backends puppet)
        (is (< first (loop:back-off-seconds back-off)))
        (is-true (client::back-off-timer back-off)))
      (tell-backends puppet "127.0.0.1:1")
      (is (eq :connecting (client:core-state core)))
      (is (null (client::back-off-timer back-off)))
      (is (zerop (loop:back-off-seconds back-off))))))

(test servers-that-are-known-are-not-kept-waiting-for
  "A resolver that has just failed is not asked before its back-off ends, so connecting waits for no
answer."
  (dolist (failed '(nil t))
    (with-core (core puppet :pick-first :answers t)
      (client::wake core)
      (tell-backends puppet "127.0.0.1:1")
      (let ((subchannel (first (client:core-subchannels core))))
        (client::end-connect-rounds (connection-set-of subchannel) "of a test")
        (client::change-state (connection-set-of subchannel) :ready)
        (when failed (client:deliver puppet '() "no strings"))
        (let ((asked (puppet-asked puppet)))
          (client::change-state (connection-set-of subchannel) :idle)
          (is (eq :idle (client:core-state core)))
          (client::wake core)
          (is (= (if failed asked (1+ asked)) (puppet-asked puppet)))
          (is (eq (if failed :connecting :idle) (client:subchannel-state subchannel)))
          (unless failed
            (tell-backends puppet "127.0.0.1:1")
            (is (eq :connecting (client:subchannel-state subchannel)))))))))

(test a-failure-takes-no-server-away
  (with-core (core puppet :pick-first)
    (client::wake core)
    (tell-backends puppet "127.0.0.1:1")
    (let ((subchannel (first (client:core-subchannels core))))
      (client::change-state (connection-set-of subchannel) :ready)
      (client:deliver puppet '() "no strings")
      (is (eq :ready (client:core-state core)))
      (is (eq subchannel (client::core-picker core))))))

(test pickers-decide-for-each-call
  "A policy's function may wait, fail or pick for each call; when another picker is published, it
picks for the calls that wait."
  (with-core (core puppet :pick-first)
    (flet ((publish (function)
             (client::change-picker core :ready (client:make-picker function "of a test"))))
      (publish (constantly nil))
      (let ((waiting (begin-ask core))
            (patient (begin-ask core :wait-for-ready t)))
        (is (equal (list waiting patient) (client::waiting-calls core)))
        (publish (constantly (client:make-failure "dropped" :resource-exhausted)))
        (is (eq :resource-exhausted (grpc:call-status waiting)))
        (is (equal (list patient) (client::waiting-calls core)))
        (let ((late (begin-ask core)))
          (is (eq :resource-exhausted (grpc:call-status late))))
        (publish (constantly (client:make-failure "no such host" :not-found)))
        (let ((late (begin-ask core)))  ; gRFC A54
          (is (eq :internal (grpc:call-status late))))
        (is (equal (list patient) (client::waiting-calls core)))
        (with-logged (events)
          (publish (lambda (call) (declare (ignore call)) (error "no pick")))
          (is (eq :internal (grpc:call-status (begin-ask core))))
          (destructuring-bind (level name . plist) (first (events))
            (is (equal '(:error :picker-failed "of a test")
                       (list level name (getf plist :picker))))
            (is (string= "no pick" (princ-to-string (getf plist :condition))))))))))

(test the-end-of-a-core
  (let (puppet-of calls)
    (with-core (core puppet :round-robin)
      (setf puppet-of puppet
            calls (list (begin-ask core) (begin-ask core :wait-for-ready t)))
      (tell-backends puppet "127.0.0.1:1" "127.0.0.1:2")
      (client::shut-down core)
      (is (eq :shutdown (client:core-state core)))
      (is (null (client:core-subchannels core)))
      (is (null (client::waiting-calls core)))
      ;; a closed channel stays closed
      (client::change-picker core :ready nil)
      (is (eq :shutdown (client:core-state core)))
      (is (eq :cancelled (grpc:call-status (begin-ask core)))))
    (is-true (puppet-ended puppet-of))
    (is (equal '(:cancelled :cancelled) (mapcar #'grpc:call-status calls)))))

(test so-many-addresses-are-used
  "The channel uses the first addresses, whatever its policy, and reports that there are more."
  (dolist (policy '(:round-robin :pick-first))
    (with-core (core puppet policy :options (:max-addresses 3))
      (client::wake core)
      (flet ((used (&rest items)
               (apply #'tell-backends puppet items)
               (sort (loop for subchannel in (client:core-subchannels core)
                           append (mapcar #'clgrpc.os:address-text
                                          (client:subchannel-addresses subchannel)))
                     #'string<)))
        (is (equal '("127.0.0.1:1" "127.0.0.1:2" "127.0.0.1:3")
                   (used "127.0.0.1:1" "127.0.0.1:2" "127.0.0.1:3")))
        (is (equal '("127.0.0.1:2" "127.0.0.1:3" "127.0.0.1:4")
                   (used "127.0.0.1:4" "127.0.0.1:2" "127.0.0.1:3" "127.0.0.1:1")))
        (is (equal '("127.0.0.1:2" "127.0.0.1:4")
                   (used '(("127.0.0.1:4" "127.0.0.1:2")) '(("127.0.0.1:3" "127.0.0.1:1")))))))))

(test so-many-subchannels-are-used
  "A policy gets no further server if the channel has no room for its subchannels. There is one
warning for each list of servers, however many servers are omitted."
  (flet ((target (policy)
           (format nil "\"~A\":{\"weight\":1,\"childPolicy\":[{\"~:*~A\":{}}]}" policy)))
    (with-core (core puppet nil
                :options (:max-subchannels 2)
                :default (format nil "{\"loadBalancingConfig\":[{\"weighted_target_experimental\":~
                                      {\"targets\":{~{~A~^,~}}}}]}"
                                 (mapcar #'target '("round_robin" "pick_first"
                                                    "least_request_experimental"))))
      (client::wake core)
      (with-log ()
        (flet ((warnings-about (&rest ports)
                 (apply #'tell-backends puppet
                        (loop for port in ports collect (format nil "127.0.0.1:~D" port)))
                 (is (= 2 (length (client:core-subchannels core))))
                 (list (length (events-of :too-many-addresses))
                       (length (events-of :too-many-subchannels)))))
          (is (equal '(1 1) (warnings-about 1 2 3)))
          (is (equal '(1 2) (warnings-about 1 2)))
          (is (equal '(2 3) (warnings-about 2 3 4))))))))
