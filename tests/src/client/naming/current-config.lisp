;;;; Service configs in the client: the config in force, and its effect on calls. Without sockets,
;;;; unless a message must be sent.

(in-package #:clgrpc.tests.client)

(defparameter *ask-path* "/lab.Bench/Ask")

(defun config-of-ask (&rest fields)
  "A config whose only method, Ask of lab.Bench, has FIELDS, a plist."
  (list :method-config (list (list* :name '((:service "lab.Bench" :method "Ask")) fields))))

(defun push-config (puppet source)
  "Let PUPPET push a server and the service config SOURCE, as PUSH-ADDRESSES takes it."
  (client:deliver puppet (list (client::parse-backend "127.0.0.1:1")) nil
                  (client::parse-pushed-config source)))

(defun timeout-in-force (core)
  "The timeout of Ask that is in force in CORE's channel, in seconds, or nil."
  (let* ((config (client::core-config core))
         (method (and config (config:find-method-config config *ask-path*))))
    (and method (/ (config:method-config-timeout-ns method) 1000000000))))

(test the-resolvers-config-goes-before-the-default
  (with-core (core puppet nil :default (config-of-ask :timeout 7))
    (is (null (timeout-in-force core)) "no config is in force before the resolver has answered")
    (client::wake core)
    (push-config puppet nil)
    (is (eql 7 (timeout-in-force core)))
    (push-config puppet (config-of-ask :timeout 3))
    (is (eql 3 (timeout-in-force core)))
    (push-config puppet "{}")
    (is (null (timeout-in-force core)) "an empty config is a config")
    (push-config puppet nil)
    (is (eql 7 (timeout-in-force core)))))

(test a-bad-config-leaves-the-good-one-in-force
  (with-core (core puppet nil)
    (client::wake core)
    (push-config puppet (config-of-ask :timeout 3))
    (push-config puppet "{\"methodConfig\":3}")
    (is (eql 3 (timeout-in-force core)))
    (is (eq :connecting (client:core-state core))
        "the addresses that come with a bad config are used"))
  (with-core (core puppet nil :default (config-of-ask :timeout 7))
    (client::wake core)
    (push-config puppet (config-of-ask :timeout 3))
    (push-config puppet "{\"methodConfig\":3}")
    (is (eql 3 (timeout-in-force core)) "the previous config stays, not the default"))
  (with-core (core puppet nil)
    (client::wake core)
    (push-config puppet nil)
    (push-config puppet "{\"methodConfig\":3}")
    (is (eq :connecting (client:core-state core)) "the absence of a config is a good config, too")))

(test a-bad-first-config-fails-calls
  "They fail until a valid config or none is pushed; calls that wait for ready wait for that."
  (with-core (core puppet nil :options (:backoff-initial-seconds 0.01))
    (let ((call (begin-ask core))
          (patient (begin-ask core :wait-for-ready t)))
      (push-config puppet "{\"methodConfig\":3}")
      (is (eq :transient-failure (client:core-state core)))
      (is (eq :unavailable (grpc:call-status call)))
      (is (search "methodConfig must be a list" (princ-to-string (caught (grpc:await call)))))
      (is (eq :unavailable (grpc:call-status (begin-ask core))))
      (is (null (grpc:call-status patient)))
      (is (null (client:core-subchannels core)) "no connection is begun")
      (is (wait-until (lambda ()
                        (run-loop-of core)
                        (< 1 (puppet-asked puppet))))
          "the resolver is asked again after a while")
      (push-config puppet nil)
      (is (eq :connecting (client:core-state core)))
      (is (null (grpc:call-status patient))))))

(test a-bad-first-config-leaves-the-default
  (with-core (core puppet nil :default (config-of-ask :timeout 7))
    (client::wake core)
    (push-config puppet "{\"methodConfig\":3}")
    (is (eq :connecting (client:core-state core)))
    (is (eql 7 (timeout-in-force core)))))

(test the-policy-is-the-users-the-configs-or-pick-first
  (flet ((policy-class (policy source)
           (with-core (core puppet policy)
             (client::wake core)
             (push-config puppet source)
             (type-of (client::switch-child (client::core-balancer core))))))
    (let ((turns '(:load-balancing-config ((:round-robin nil)))))
      (is (string= "PICK-FIRST" (policy-class nil nil)))
      (is (string= "ROUND-ROBIN" (policy-class nil turns)))
      (is (string= "PICK-FIRST" (policy-class :pick-first turns))))))

(test calls-that-wait-take-the-first-config
  (with-core (core puppet nil)
    (let ((call (begin-ask core))
          (hasty (begin-ask core :timeout 2))
          (patient (begin-ask core :timeout 60)))
      (is (zerop (grpc:call-deadline call)))
      (let ((before (grpc:call-deadline hasty)))
        (push-config puppet (config-of-ask :timeout 20))
        (is (= before (grpc:call-deadline hasty)) "the call's own deadline is earlier"))
      (is (= 20000000000 (- (grpc:call-deadline call) (wire::wire-call-born-ns call))))
      (is (= 20000000000 (- (grpc:call-deadline patient) (wire::wire-call-born-ns patient))))
      (let ((next (begin-ask core)))
        (is (= 20000000000 (- (grpc:call-deadline next) (wire::wire-call-born-ns next)))))
      (push-config puppet (config-of-ask :timeout 1))
      (is (= 20000000000 (- (grpc:call-deadline call) (wire::wire-call-born-ns call)))
          "a call keeps the timeout of the config that it has"))))

(test a-timeout-ends-waiting-calls
  (with-core (core puppet nil)
    (let ((call (begin-ask core :wait-for-ready t)))
      (push-config puppet (config-of-ask :timeout 1/100))
      (is (wait-until (lambda ()
                        (run-loop-of core)
                        (grpc:call-status call))))
      (is (eq :deadline-exceeded (grpc:call-status call))))
    (push-config puppet (config-of-ask :timeout 0))
    (is (eq :deadline-exceeded (grpc:call-status (begin-ask core))))))

(test the-config-says-who-waits-for-ready
  (with-core (core puppet nil)
    (client::wake core)
    (push-config puppet (config-of-ask :wait-for-ready t))
    (client::change-picker core :transient-failure (client:make-failure "it rains"))
    (is (null (grpc:call-status (begin-ask core))))
    (is (null (grpc:call-status (begin-ask core :wait-for-ready t))))
    (is (eq :unavailable (grpc:call-status (begin-ask core :wait-for-ready nil)))
        "the call's user may override the config")
    (push-config puppet (config-of-ask :wait-for-ready nil))
    (client::change-picker core :transient-failure (client:make-failure "it rains"))
    (is (eq :unavailable (grpc:call-status (begin-ask core))))
    (is (null (grpc:call-status (begin-ask core :wait-for-ready t))))))

(test what-a-config-says-of-a-method-is-looked-up-once
  (with-core (core puppet nil)
    (client::wake core)
    (push-config puppet nil)
    (is (null (client::core-methods core)) "nothing is looked up without a config")
    (is (null (wire::endpoint-limits core)))
    (push-config puppet (config-of-ask :timeout 20))
    (begin-ask core)
    (let ((found (client::method-table-found (client::core-methods core))))
      (is (= 1 (length found)))
      (begin-ask core)
      (is (eq found (client::method-table-found (client::core-methods core)))))
    (let ((table (client::core-methods core)))
      (push-config puppet (config-of-ask :timeout 20))
      (is (eq table (client::core-methods core)) "an equal config changes nothing")
      (push-config puppet (config-of-ask :timeout 21))
      (is (not (eq table (client::core-methods core)))))))

(test no-more-than-so-many-methods-are-remembered
  (let ((table (client::make-method-table
                (config:parse-service-config '(:method-config ((:name (()) :timeout 1)))) nil))
        (method (method:stub-method 'lab.bench:ask)))
    (dotimes (i 100)
      (is (= 1000000000 (config:method-config-timeout-ns
                         (client::table-method-config
                          table (copy-structure method))))))
    (is (= client::+remembered-methods+ (length (client::method-table-found table))))))

(test limits-of-messages-are-the-smaller-of-both
  (flet ((limits (arguments &rest fields)
           (with-core (core puppet nil :options arguments)
             (client::wake core)
             (push-config puppet (apply #'config-of-ask fields))
             (let ((call (begin-ask core)))
               (multiple-value-list (client::call-limits call))))))
    (is (equal '(2147483647 4194304) (limits '() :timeout 1)))
    (is (equal '(10 20) (limits '() :max-request-message-bytes 10
                                    :max-response-message-bytes 20)))
    (is (equal '(10 10000000) (limits '(:max-send-octets 10) :max-request-message-bytes 11
                                      :max-response-message-bytes 10000000))
        "without the user's limit the config may exceed the default")
    (is (equal '(9 100) (limits '(:max-send-octets 10 :max-receive-octets 100)
                                :max-request-message-bytes 9
                                :max-response-message-bytes 10000000)))))

;;; Over the network

(defmacro status-with (form)
  "The status of the error that FORM ends with."
  `(status:rpc-error-status (caught ,form)))

(test long-requests-are-refused-by-the-config
  "Before the resolver's first answer and after it, such requests are not sent."
  (with-probe (channel :channel-options '(:service-config (:method-config
                                                           ((:name (())
                                                             :max-request-message-bytes 20)))))
      (:ask #'double :collect #'add-up)
    (let ((long (note 1 :text (make-string 21 :initial-element #\x))))
      (dolist (attempt (list (lambda () (ask channel long))
                             (lambda () (ask channel long))
                             (lambda () (grpc:await (grpc:call-async #'lab.bench:ask channel long)))
                             (lambda () (collect channel (list (note 1) long)))))
        (is (eq :resource-exhausted (status-with (funcall attempt))))
        (is (= 2 (number-of (ask channel (note 1))))))
      (is (not (status:rpc-error-sent-p (caught (ask channel long))))))))

(test long-responses-are-refused-by-the-config
  (with-probe (channel :channel-options '(:service-config (:method-config
                                                           ((:name ((:service "lab.Bench"))
                                                             :max-response-message-bytes 9)))))
      (:ask #'double)
    (is (eq :resource-exhausted
            (status-with (ask channel (note 1 :text "more than nine")))))
    (is (= 2 (number-of (ask channel (note 1)))))))

(test a-streams-first-messages-are-checked-when-the-config-comes
  (with-core (core puppet nil)
    (let* ((channel (make-instance 'client:wire-channel :target "puppet:x" :core core))
           (call (chat channel :open)))
      (grpc:send call (note 1 :text "quite long"))
      (run-loop-of core)
      (is (= 1 (length (client::waiting-calls core))))
      (push-config puppet '(:method-config ((:name (()) :max-request-message-bytes 3))))
      (is (client::refuse-long-request call nil))
      (is (eq :resource-exhausted (grpc:call-status call))))))

(test wrong-configs-make-no-channel
  (signals grpc:service-config-error
    (grpc:make-channel "127.0.0.1:1" :service-config "{\"methodConfig\":3}"))
  (signals grpc:misuse (grpc:make-channel "127.0.0.1:1" :service-config '(:method-config 3))))
