;;;; Calls within the image under a service config: what it says of their time and of the length of
;;;; their messages, and retries (gRFC A6; calling/retry.lisp has what all transports share).
;;;;
;;;; A channel with a service config is of a class of its own, so other channels know nothing of
;;;; all this. For each method config it has a PLAN with an inner channel, whose limits are those of
;;;; the method. A call whose plan has a retry policy leads to a RELAY in place of the handler: it
;;;; makes the attempts, which are calls on the inner channel, and passes on what the last brings.
;;;; So the call itself is like any other: its deadline, which the attempts have, too, cancellation,
;;;; callbacks and futures are those of all calls within the image.
;;;;
;;;; A relay runs where a handler would. On its client's thread it sleeps before the next attempt;
;;;; elsewhere a timer goes on, and no thread waits.

(in-package #:clgrpc.inproc)

(defstruct (plan (:constructor make-plan (config policy channel)) (:copier nil))
  "How calls under a method config are made."
  (config nil :type config:method-config :read-only t) ; which it follows
  (policy nil :type (or null config:retry-policy) :read-only t) ; nil if calls are made once
  (channel nil :type inproc-channel :read-only t)) ; of the attempts

(defclass configured-inproc-channel (inproc-channel)
  ((config :initarg :config :reader channel-config) ; the service config
   (options :initarg :options :reader channel-retry-options) ; that say how often a call is tried
   (throttle :initarg :throttle :reader channel-throttle) ; or nil
   (plans :initarg :plans :reader channel-plans) ; from the METHOD-CONFIGs of CONFIG
   (front :initarg :front :reader channel-front)) ; the channel whose calls lead to relays
  (:documentation "An in-process channel with a service config."))

(defclass intercepted-configured-inproc-channel (calling:interception configured-inproc-channel) ()
  (:documentation "An in-process channel with a service config and interceptors."))

(defstruct (relay (:copier nil))
  "What makes the attempts of a call."
  (channel nil :type configured-inproc-channel :read-only t) ; that the call was made on
  (plan nil :type plan :read-only t)    ; of its method
  (fields nil :type simple-vector :read-only t) ; the metadata of the call
  (request nil :read-only t)            ; the request, or a list or vector of requests
  (began-ns 0 :type nanoseconds :read-only t) ; when the call did
  (call nil :type (or null call))       ; the handler's end of the call, once it has begun
  (attempt nil :type (or null call))    ; the client's end of the attempt under way or the last
  (count 0 :type index)                 ; of attempts that were begun
  (waits 0 :type index))                ; as RETRY-DELAY-NS takes it

(defun relay-line (relay) (call-line (relay-call relay)))

(defun relay-client (relay) (line-client (relay-line relay)))

;;; Attempts

(defun attempt-fields (relay)
  "The metadata of the next attempt of RELAY."
  (if (zerop (relay-count relay))
      (relay-fields relay)
      (concatenate 'simple-vector (relay-fields relay)
                   (list (cons "grpc-previous-rpc-attempts"
                               (princ-to-string (relay-count relay)))))))

(defun begin-attempt (relay)
  "The line of the next attempt of RELAY, whose handler has not begun."
  (let* ((call (relay-call relay))
         (method (call-rpc-method call))
         (site (channel-site (plan-channel (relay-plan relay))))
         (host (host-of site))
         (line (line-to site host (and host (route-to host method)) method (call-deadline call)
                        (attempt-fields relay))))
    (incf (relay-count relay))
    (setf (relay-attempt relay) (line-client line))
    (sb-thread:barrier (:memory))
    ;; who has ended CALL before has cancelled the attempt before
    (when (call-status call) (rpc:cancel (line-client line)))
    line))

(defun fail-relay (relay error)
  "End RELAY's call with ERROR, which says that a request cannot be sent."
  (let ((how (list (status:rpc-error-status error) :message (status:rpc-error-message error)
                   :ended-by :local)))
    (end-line (relay-line relay) how how nil)))

(defun send-kept (relay line)
  "Give the handler of LINE, an attempt of RELAY, the only request, or those it asks for. If one is
too long RELAY's call ends."
  (handler-case
      (let ((client (line-client line))
            (request (relay-request relay)))
        (cond ((rpc:takes-one-p client) (send-only-request line request))
              ((eq :caller (site-execution (call-site client)))
               (setf (line-source line) (calling:request-generator request)
                     (line-consumer line) (this-context nil)))
              (t (calling:send-requests client (calling:request-generator request)))))
    (status:rpc-error (error) (fail-relay relay error))))

(defun attempt-once (relay)
  "Make an attempt of RELAY, whose method answers once. Return the answer, if there is one."
  (let ((line (begin-attempt relay)))
    (send-kept relay line)
    (values (await-reply line))))

(defun pass-metadata (relay)
  "Give the client of RELAY's call the headers that its attempt has got, if any."
  (let ((fields (call-fields (relay-attempt relay)))
        (client (relay-client relay)))
    (when (and fields (null (call-fields client)))
      (setf (call-fields client) fields)
      (rpc:notify client))))

(defun attempt-stream (relay)
  "Make an attempt of RELAY, whose method answers with a stream, and pass on what it brings."
  (let* ((line (begin-attempt relay))
         (attempt (line-client line)))
    (unwind-protect
         (handler-case
             (progn
               (send-kept relay line)
               (rpc:call-metadata attempt)
               (pass-metadata relay)
               (loop for message = (rpc:receive attempt)
                     while (and message (rpc:send (relay-call relay) message))))
           ;; how it has ended is looked at later
           (status:rpc-error (error)
             (unless (or (call-status attempt) (call-status (relay-call relay)))
               (error error))))
      (unless (call-status attempt) (rpc:cancel attempt)))))

;;; What comes after one

(defun pushback (attempt)
  "What the trailers of ATTEMPT, which has ended, ask for, as PARSE-PUSHBACK has it, or nil."
  (let ((field (assoc "grpc-retry-pushback-ms" (rpc:call-trailers attempt) :test #'string=)))
    (and field (calling:parse-pushback (cdr field)))))

(defun note-failure (relay)
  "The attempt of RELAY has failed: its user can ask for that later, and it is counted."
  (let* ((attempt (relay-attempt relay))
         (channel (relay-channel relay))
         (outcome (rpc:call-outcome attempt)))
    (rpc:note-failed-attempt (relay-client relay) (1- (relay-count relay))
                             (rpc:call-peer attempt) (call-status attempt)
                             (if outcome (rpc:outcome-message outcome) "")
                             (/ (- (call-now attempt) (relay-began-ns relay)) 1d9))
    (when (and (channel-throttle channel)
               (or (calling:goes-on-after-p (plan-policy (relay-plan relay)) (call-status attempt))
                   (eq :never (pushback attempt))))
      (calling:count-failure (channel-throttle channel)))))

(defun again-p (relay)
  "True if there is to be another attempt of RELAY, whose attempt has failed."
  (let* ((attempt (relay-attempt relay))
         (channel (relay-channel relay))
         (policy (plan-policy (relay-plan relay))))
    (and (null (call-fields attempt))   ; else an answer had begun
         (calling:goes-on-after-p policy (call-status attempt))
         (not (eq :never (pushback attempt)))
         (< (relay-count relay) (calling:policy-limit policy (channel-retry-options channel)))
         (not (calling:throttled-p (channel-throttle channel))))))

(defun next-wait-ns (relay)
  "How long to wait before the next attempt of RELAY."
  (let ((pushback (pushback (relay-attempt relay)))
        (client-loop (ensure-client-loop (call-site (relay-call relay)))))
    (cond (pushback (setf (relay-waits relay) 0) pushback)
          ((null client-loop) 0)        ; the channel is closed, and so the call has ended
          ;; at worst two threads that draw at the same time get the same
          (t (prog1 (calling:retry-delay-ns (plan-policy (relay-plan relay)) (relay-waits relay)
                                            (loop:event-loop-random
                                             (calling:client-loop-loop client-loop)))
               (incf (relay-waits relay)))))))

(defun end-relay (relay answer)
  "End RELAY's call as its last attempt has ended, with ANSWER if that is an answer."
  (let* ((line (relay-line relay))
         (server (relay-call relay))
         (attempt (relay-attempt relay)))
    (pass-metadata relay)
    (rpc:add-trailers server (rpc:call-trailers attempt))
    (cond ((not (eq :ok (call-status attempt)))
           (let* ((error (rpc:call-condition attempt))
                  (how (list :message (status:rpc-error-message error)
                             :details (status:rpc-error-details-octets error))))
             (end-line line
                       (list* (call-status attempt)
                              :ended-by (status:rpc-error-ended-by error)
                              :sent (status:rpc-error-sent-p error) how)
                       (list* (call-status attempt) :ended-by :local how)
                       t)))
          (t (when (channel-throttle (relay-channel relay))
               (calling:count-success (channel-throttle (relay-channel relay))))
             (if (rpc:answers-once-p server)
                 (answer line answer)
                 (end-well line))))))

;;; Relays

(defun sleep-before-attempt (call seconds)
  "Wait for SECONDS, or until CALL, a handler's end, has ended."
  (let ((over nil))
    (operate after call seconds (lambda ()
                                  (setf over t)
                                  (rpc:notify call)))
    (rpc:wait-for-call call (lambda (call)
                              (declare (ignore call))
                              over))))

(defun run-relay (relay)
  "Make attempts of RELAY until one ends its call, or the call has ended, or a timer is to go on."
  (let ((call (relay-call relay)))
    (loop
      (let ((answer (if (rpc:answers-once-p call) (attempt-once relay) (attempt-stream relay))))
        (when (call-status call) (return))
        (unless (eq :ok (call-status (relay-attempt relay))) (note-failure relay))
        (when (or (eq :ok (call-status (relay-attempt relay))) (not (again-p relay)))
          (return (end-relay relay answer)))
        (let ((seconds (/ (next-wait-ns relay) +ns-per-second+)))
          (unless (eq (line-phase (relay-line relay)) sb-thread:*current-thread*)
            (return (operate after call seconds (lambda () (run-relay relay)))))
          (sleep-before-attempt call seconds)
          (when (call-status call) (return)))))))

(defun begin-relay (relay call)
  "What the handler of RELAY's call does. Return CALL, its end, which RELAY ends."
  (setf (relay-call relay) call)
  (rpc:on-cancel call (lambda ()
                        (let ((attempt (relay-attempt relay)))
                          (when attempt (rpc:cancel attempt)))))
  (run-relay relay)
  call)

(defun relay-route (relay host method)
  "A route of HOST, that of all relays, to RELAY, which a call of METHOD has."
  (make-inproc-route
   :server host :epoch 1 :method method
   :binding (service:make-binding :class (find-class t)
                                  :function (lambda (service request call)
                                              (declare (ignore service request))
                                              (begin-relay relay call)))))

;;; Stubs

(defun method-plan (channel method)
  "The plan of CHANNEL for METHOD, or nil if the service config says nothing of it."
  (let ((config (config:find-method-config (channel-config channel)
                                           (service:rpc-method-path method))))
    (and config (gethash config (channel-plans channel)))))

(defun within-timeout (plan options)
  "OPTIONS of a stub, with the time that PLAN allows."
  (let ((timeout-ns (config:method-config-timeout-ns (plan-config plan)))
        (timeout (getf options :timeout)))
    (if (and timeout-ns (typep timeout '(or null (real 0))))
        (let ((allowed (/ timeout-ns +ns-per-second+)))
          (list* :timeout (if timeout (min timeout allowed) allowed) options))
        options)))

(defun relayed-p (plan method request)
  "True if calls of METHOD with REQUEST can be made again under PLAN: what they send is at hand."
  (and (plan-policy plan)
       (ecase (rpc-method-kind method)
         ((:unary :server-streaming) t)
         (:client-streaming (typep request 'sequence))
         (:bidi nil))))

(defun checked-request (method request)
  "REQUEST, if METHOD takes it, or all in it."
  (if (eq :client-streaming (rpc-method-kind method))
      (every (lambda (message) (calling:only-request method message)) request)
      (calling:only-request method request))
  request)

(defun kept-request (channel method request)
  "REQUEST, of a call of METHOD on CHANNEL, as attempts take it after the stub has returned."
  (flet ((copy (message) (site-copy (channel-site channel) message)))
    (if (eq :client-streaming (rpc-method-kind method))
        (map 'list #'copy request)
        (copy request))))

(defun call-fields-of (channel method metadata call-credentials)
  "The metadata of a call of METHOD on CHANNEL, given METADATA and CALL-CREDENTIALS."
  (status:metadata-entries
   (append (status:check-metadata metadata)
           (when call-credentials
             (calling:credentials-metadata channel call-credentials method)))))

(defun invoke-relay (channel plan method request options)
  "INVOKE for calls that may be made again."
  (calling:check-call-options options)
  (destructuring-bind (&key timeout deadline metadata wait-for-ready async call-credentials
                         compression values)
      options
    (declare (ignore wait-for-ready))
    (rpc:check-compression compression)
    (let* ((site (channel-site (channel-front channel)))
           (host (site-host site))
           (now (site-now site))
           (request (checked-request method request))
           (later (or async (eq :server-streaming (rpc-method-kind method))))
           (relay (make-relay :channel channel :plan plan :began-ns now
                              :fields (call-fields-of channel method metadata call-credentials)
                              :request (if later (kept-request channel method request) request)))
           (line (progn
                   (unless (site-open site) (misuse "~A is closed." channel))
                   (line-to site host (relay-route relay host method) method
                            (calling:absolute-deadline timeout deadline now)
                            (relay-fields relay) values))))
      (setf (line-unattended line) (and async t)
            (call-half-closed (line-server line)) t)
      (cond (async (begin-elsewhere line) (line-client line))
            (later (line-client line))
            (t (finish-blocking line channel method request options))))))

(defmethod service:invoke ((channel configured-inproc-channel) method request &rest options)
  (let ((plan (method-plan channel method)))
    (cond ((null plan) (call-next-method))
          ((relayed-p plan method request)
           (invoke-relay channel plan method request (within-timeout plan options)))
          (t (apply #'service:invoke (plan-channel plan) method request
                    (within-timeout plan options))))))

;;; Channels

(defun plan-options (site config arguments)
  "The options of SITE's channel, which was made with ARGUMENTS, as CONFIG, a method's, allows."
  (let ((options (copy-options (site-options site))))
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

(defun derive-site (site &key (host (site-host site)) (name (site-name site))
                           (options (site-options site)) (observer (site-observer site))
                           (share (site-share site)) (execution (site-execution site)))
  "A site like SITE but for what is given."
  (make-site :target (site-target site) :host host :name name :options options
             :observer observer :share share :execution execution
             :client-operations **client-operations** :server-operations **server-operations**))

(defun plan-for (config site options arguments)
  "The plan of a channel of SITE, which was made with ARGUMENTS, for CONFIG, a method's. OPTIONS say
whether calls are tried again."
  (let* ((found (calling:find-retry-policy config options))
         (policy (and (not (calling:hedging-policy-p found)) found)))
    (make-plan config policy
               (make-instance 'inproc-channel
                              :site (derive-site site
                                                 :options (plan-options site config arguments)
                                                 ;; the channel's observer is told of calls
                                                 :observer (and (null policy)
                                                                (site-observer site)))))))

(defun make-front (site)
  "A channel for calls on SITE that lead to relays. Messages pass it as they are, since attempts
copy them, and check their length."
  (make-instance 'inproc-channel
                 :site (derive-site site
                                    :host (make-host :name (site-target site)
                                                     :options (make-server-options
                                                               :max-calls 10000000))
                                    :name nil :share t :execution :caller)))

(defun configured-arguments (config site options arguments)
  "The initargs of a channel of SITE, which was made with ARGUMENTS, with CONFIG, a service config.
OPTIONS say whether and how often calls are tried again."
  (let ((plans (make-hash-table :test 'eq)))
    (loop for method-config being the hash-values of (config:service-config-methods config)
          unless (gethash method-config plans)
            do (setf (gethash method-config plans)
                     (plan-for method-config site options arguments)))
    (list :config config :options options :plans plans :front (make-front site)
          :throttle (calling:current-throttle nil config))))

(defmethod calling:close-channel :after ((channel configured-inproc-channel))
  (calling:close-channel (channel-front channel))
  (loop for plan being the hash-values of (channel-plans channel)
        do (calling:close-channel (plan-channel plan))))
