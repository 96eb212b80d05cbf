;;;; Calls of stubs on a channel with a service config or interceptors of attempts, and the making
;;;; of such a channel.

(in-package #:clgrpc.inproc)

;;; Stubs

(defun method-plan (channel method)
  "The plan of CHANNEL for METHOD; nil if CHANNEL has none."
  (let* ((service-config (channel-config channel))
         (config (and service-config
                      (config:find-method-config service-config
                                                 (method:rpc-method-path method)))))
    (gethash config (channel-plans channel))))

(defun relayed-p (channel plan method)
  "True if calls of METHOD on CHANNEL, whose plan is PLAN, lead to a relay."
  (and (or (plan-policy plan)
           (interceptors-of channel method))
       t))

(defun within-limits (plan options)
  "OPTIONS of a stub, with the limits for messages reduced to the limits of PLAN."
  (let ((config (plan-config plan)))
    (flet ((limited (name configured)
             (let ((value (getf options name)))
               (when (and configured (typep value '(integer 0 2147483647)) (< configured value))
                 (setf options (list* name configured options))))))
      (when config
        (limited :max-send-octets (config:method-config-max-request-octets config))
        (limited :max-receive-octets (config:method-config-max-response-octets config)))
      options)))

(defun within-timeout (plan options)
  "OPTIONS of a stub, with the timeout and the limits for messages reduced to the values of PLAN."
  (let ((options (within-limits plan options))
        (timeout-ns (and (plan-config plan)
                         (config:method-config-timeout-ns (plan-config plan))))
        (timeout (getf options :timeout)))
    (if (and timeout-ns (typep timeout '(or null (real 0))))
        (let ((allowed (/ timeout-ns +ns-per-second+)))
          (list* :timeout (if timeout (min timeout allowed) allowed) options))
        options)))

(defun at-hand-p (method request)
  "True if all messages that METHOD sends for REQUEST exist already."
  (ecase (rpc-method-kind method)
    ((:unary :server-streaming) t)
    (:client-streaming (typep request 'sequence))
    (:bidi nil)))

(defun checked-request (method request)
  "Return REQUEST, which is available already. Signal an error if METHOD does not accept the
request, or a message in it."
  (if (eq :client-streaming (rpc-method-kind method))
      (every (lambda (message) (rpc:only-request method message)) request)
      (rpc:only-request method request))
  request)

(defun requests-at-hand (channel method request on-caller)
  "A list of the requests in REQUEST, which is available already, for the attempts of a call of
METHOD on CHANNEL. The requests are copies unless ON-CALLER is true, since the stub may return
before an attempt begins."
  (flet ((keep (message)
           (if on-caller message (inproc-core-copy (channel-inproc-core channel) message))))
    (if (eq :client-streaming (rpc-method-kind method))
        (map 'list #'keep request)
        (list (keep request)))))

(defun relay-route (callee method function)
  "A route of CALLEE, the callee of all relays, for a call of METHOD. The handler of the route is
FUNCTION, which is called with the handler's end of the call."
  (make-inproc-route
   :server callee :epoch 1 :method method
   :binding (method:make-binding :class (find-class t)
                                 :function (lambda (service request call)
                                             (declare (ignore service request))
                                             (funcall (the function function) call)
                                             call))))

(defun relayed-call-pair (relay outer-channel method deadline options)
  (let* ((inproc-core (channel-inproc-core outer-channel))
         (callee (inproc-core-callee inproc-core))
         (call-pair (call-pair-to inproc-core callee
                                  (relay-route callee method
                                               (lambda (call) (begin-relay relay call)))
                                  method deadline (relay-fields relay) options)))
    (setf (call-pair-unattended call-pair) (and (getf options :async) t))
    call-pair))

(defun invoke-on-caller (relay method deadline request channel options)
  "INVOKE of METHOD for RELAY, whose caller waits for one answer."
  (with-call-pair (call-pair (relayed-call-pair relay (channel-outer-channel channel) method
                                                deadline options))
    (setf (inproc-call-half-closed (call-pair-server call-pair)) t)
    (begin-here call-pair)
    (await-relay relay (call-pair-client call-pair))
    (finish-blocking call-pair channel method request options)))

(defun invoke-at-once (relay method deadline request wait channel asked options)
  "INVOKE of METHOD for RELAY. The call begins at once, or when ASKED, call credentials or nil, have
answered; if WAIT is true, return its answer."
  (with-call-pair (call-pair (relayed-call-pair relay (plan-outer-channel (relay-plan relay)) method
                                                deadline options))
    (let* ((client (call-pair-client call-pair))
           (over (relay-closed relay)))
      (when asked (await-credentials call-pair))
      (when over (setf (inproc-call-half-closed (call-pair-server call-pair)) t))
      (cond ((or over (eq :open request))
             (setf (call-pair-queued-reply call-pair)
                   (and (eq :open request) (rpc:answers-once-p client)))
             (begin-here call-pair))
            (wait (begin-here call-pair)
                  (calling:send-requests client (calling:request-generator request)))
            ;; user code that makes the requests may wait
            (t (setf (call-pair-source call-pair) (calling:request-generator request))
               (begin-elsewhere call-pair)))
      (when asked
        (ask-credentials call-pair channel asked
                         (lambda (fields) (setf (relay-fields relay) fields))))
      (if wait
          (finish-blocking call-pair channel method request options)
          client))))

(defun invoke-relayed (channel plan method request options)
  "INVOKE for calls that lead to a relay."
  (calling:check-call-options method options)
  (destructuring-bind (&key timeout deadline metadata wait-for-ready async call-credentials
                         compression values &allow-other-keys)
      options
    (declare (ignore wait-for-ready values))
    (encoding:check-compression compression)
    (unless (inproc-core-open (channel-inproc-core channel)) (misuse "~A is closed." channel))
    (let* ((inproc-core (channel-inproc-core channel))
           (now (inproc-core-now inproc-core))
           (deadline (calling:absolute-deadline timeout deadline now))
           (at-hand (and (at-hand-p method request) (checked-request method request) t))
           (wait (and (member (rpc-method-kind method) '(:unary :client-streaming))
                      (not async)
                      (not (eq :open request))))
           (on-caller (and wait at-hand (one-by-one-p plan)
                           (eq :caller (inproc-core-execution inproc-core))))
           (asked (and async call-credentials))
           (relay (make-relay (when at-hand (requests-at-hand channel method request on-caller))
                              at-hand
                              :channel channel :plan plan :began-ns now
                              :caller (and on-caller sb-thread:*current-thread*)
                              :fields (call-fields-of channel method deadline metadata
                                                      (if asked nil call-credentials)))))
      (if on-caller
          (invoke-on-caller relay method deadline request channel options)
          (invoke-at-once relay method deadline request wait channel asked options)))))

(defmethod method:invoke ((channel configured-inproc-channel) method request &rest options)
  (let ((plan (and (typep method 'rpc-method) ; CALL-NEXT-METHOD refuses any other METHOD
                   (method-plan channel method))))
    (cond ((null plan) (call-next-method))
          ((relayed-p channel plan method)
           (invoke-relayed channel plan method request (within-timeout plan options)))
          (t (apply #'method:invoke (plan-channel plan) method request
                    (within-timeout plan options))))))

;;; Channels

(defun plan-options (inproc-core config arguments)
  "The options of INPROC-CORE's channel, which was made with ARGUMENTS, within the limits of CONFIG,
a method's config."
  (let ((options (copy-options (inproc-core-options inproc-core))))
    (flet ((limit (configured name value)
             (cond ((null configured) value)
                   ((getf arguments name) (min configured value))
                   (t configured))))
      (setf (options-max-send-octets options)
            (limit (config:method-config-max-request-octets config)
                   :max-send-octets (options-max-send-octets options))
            (options-max-receive-octets options)
            (limit (config:method-config-max-response-octets config)
                   :max-receive-octets (options-max-receive-octets options)))
      options)))

(defun derive-channel (inproc-core &key (callee (inproc-core-callee inproc-core))
                                   (name (inproc-core-name inproc-core))
                              (options (inproc-core-options inproc-core))
                              (observer (inproc-core-observer inproc-core))
                              (share (inproc-core-share inproc-core))
                              (execution (inproc-core-execution inproc-core))
                              (client-operations **client-operations**)
                              (server-operations **server-operations**))
  "A channel whose inproc core is a copy of INPROC-CORE with the given keywords changed."
  (make-instance 'inproc-channel
                 :inproc-core (make-inproc-core :target (inproc-core-target inproc-core)
                                                :callee callee :name name
                                                :options options :observer observer :share share
                                                :execution execution
                                                :client-operations client-operations
                                                :server-operations server-operations)))

(defun relay-callee (inproc-core)
  "The callee of calls on INPROC-CORE that lead to a relay. Its limits are never reached, since the
user's limits apply to the attempts."
  (make-callee :name (inproc-core-target inproc-core) :relays t
               :options (make-server-options :max-calls 10000000
                                             :max-receive-octets 2147483647)))

(defun plan-for (config inproc-core options arguments)
  "The plan of a channel of INPROC-CORE, which was made with ARGUMENTS, for CONFIG, a method's
config or nil. OPTIONS determine whether calls are tried again."
  (multiple-value-bind (policy limit) (attempt:find-retry-policy config options)
    (let ((limited (if config (plan-options inproc-core config arguments)
                       (inproc-core-options inproc-core))))
      (if (or policy (getf arguments :attempt-interceptors))
          ;; calls are reported to the channel's observer
          (make-plan :config config :policy policy :limit (or limit 1)
                     :channel (derive-channel inproc-core :options limited :observer nil
                                                          :client-operations **attempt-operations**)
                     :outer-channel (derive-channel inproc-core :options limited
                                                    :callee (relay-callee inproc-core) :name nil
                                                    :server-operations **relay-operations**))
          (make-plan :config config :channel (derive-channel inproc-core :options limited))))))

(defun make-outer-channel (inproc-core)
  "A channel for the calls on INPROC-CORE whose relays have a caller. The channel does not copy
messages or check their length, since the attempts do this."
  (derive-channel inproc-core :callee (relay-callee inproc-core) :name nil :share t
                  :execution :caller :server-operations **relay-operations**))

(defun configured-arguments (config inproc-core options arguments)
  "The initargs of a channel of INPROC-CORE, which was made with ARGUMENTS, with CONFIG, a service
config or nil. OPTIONS determine whether and how often calls are tried again."
  (let ((plans (make-hash-table :test 'eq))
        (interceptors (getf arguments :attempt-interceptors)))
    (flet ((add-plan (method-config)
             (unless (gethash method-config plans)
               (setf (gethash method-config plans)
                     (plan-for method-config inproc-core options arguments)))))
      (when config
        (mapc #'add-plan (alexandria:hash-table-values (config:service-config-methods config))))
      (when interceptors (add-plan nil)))
    (list :config config :options options :plans plans
          :outer-channel (make-outer-channel inproc-core)
          :attempt-interceptors (check-arities (rpc:check-interceptors interceptors) '(attempt))
          :throttle (attempt:current-throttle nil config))))

(defmethod calling:close-channel :after ((channel configured-inproc-channel))
  (calling:close-channel (channel-outer-channel channel))
  (loop for plan being the hash-values of (channel-plans channel)
        do (dolist (inner (list (plan-outer-channel plan) (plan-channel plan)))
             (when inner (calling:close-channel inner)))))
