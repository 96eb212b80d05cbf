;;;; Channels over the network (rpc/calling/channel.lisp). Making a channel never blocks and
;;;; connects nothing: its first call connects it, or ENSURE-CONNECTED does.

(in-package #:clgrpc.client)

(defclass wire-channel (method:channel)
  ((target :initarg :target :reader channel-target) ; the target as the user gave it
   (core :initarg :core :reader channel-core
         :documentation "The state of the channel on its loop."))
  (:documentation "A channel over the network; made by MAKE-CHANNEL, ended by CLOSE-CHANNEL."))

(defclass intercepted-channel (interception wire-channel) ()
  (:documentation "A channel over the network whose calls go through interceptors."))

(define-printer (channel wire-channel)
  "~A ~(~A~)" (channel-target channel) (channel-state channel))

;;; Security, of cores as well, since their internal calls have call credentials

(defmethod channel-secure-p ((channel core))
  (let ((credentials (core-credentials channel)))
    ;; a server that was not verified gets no credentials
    (values (and credentials (loop:tls-credentials-verify credentials))
            (core-plaintext-credentials channel))))

(defmethod channel-secure-p ((channel wire-channel))
  (channel-secure-p (channel-core channel)))

(defmethod channel-target ((channel core))
  (core-name channel))

(define-keyword-function
    (make-channel
     :hint "a port is a part of the target, \"HOST:PORT\"")
    (target &rest arguments &key credentials compression interceptors call-credentials
                              plaintext-credentials observer balance service-config
                              attempt-interceptors (proxy :environment) authority user-agent codec
                              resolvers
     &allow-other-keys)
  "Return a channel to TARGET, \"HOST:PORT\", \"[IPV6]:PORT\", \"unix:PATH\" or any other form in
doc/addresses.md. The channel does not connect yet. End the channel with CLOSE-CHANNEL, or use
WITH-CHANNEL.
CREDENTIALS            TLS credentials made by TLS-CREDENTIALS; nil, the default, is plaintext
COMPRESSION            :gzip, :deflate, a name of REGISTER-COMPRESSOR, or :identity, the default:
                       the compression of requests, unless a stub's :compression sets another or
                       the server does not accept it
INTERCEPTORS           a list of functions (method request options next), the first the outermost,
                       each called around every call, in the caller's thread. METHOD is an
                       RPC-METHOD, OPTIONS a plist of the stub's keywords. (funcall next request
                       options) makes the call; the interceptor's values are those of the stub
CALL-CREDENTIALS       the source of metadata that identify the caller, asked before each attempt of
                       a call: an object made by BEARER-TOKEN, TOKEN-FILE, SELF-SIGNED-TOKEN,
                       CLIENT-TOKEN, EXCHANGED-TOKEN or COMPOSE-CREDENTIALS, an instance of a
                       subclass of CALL-CREDENTIALS, or a function of a method's path that returns
                       metadata. The function may wait: for the first attempt it is called in the
                       caller's thread, for further attempts in another thread. The
                       :call-credentials of a stub are sent in addition. On a channel without TLS,
                       or with TLS that verifies nothing, calls with credentials are refused with
                       :unauthenticated
PLAINTEXT-CREDENTIALS  true if call credentials are also sent on a channel that is not secure
BALANCE                the balancing policy, in place of a service config's: :pick-first, the
                       default, uses the address to which the channel is connected; :round-robin
                       uses all that can be reached, in turn; doc/fleets.md has the others
SERVICE-CONFIG         the service config if the resolver has none: a text in JSON of gRPC's
                       service_config.proto, or the same as a plist; see doc/fleets.md
PROXY                  the URL of a proxy, http://[USER:PASSWORD@]HOST:PORT or socks5://…;
                       :environment, the default, takes it from the environment variables
                       grpc_proxy, https_proxy or http_proxy unless no_proxy excepts the target's
                       host; nil means no proxy. See doc/addresses.md
AUTHORITY              a string, the :authority of all calls, by which proxies and meshes route, in
                       place of the target's host and port. With TLS its host is also the name that
                       the server must prove, unless CREDENTIALS have a :server-name. Stubs take
                       :authority as well
RESOLVERS              an alist from schemes, strings, to names of classes that DEFINE-RESOLVER has
                       defined: a TARGET of such a scheme has that resolver, in place of the image's
USER-AGENT             a string, the application's name and version, which precedes this library's
                       in the header user-agent: \"shop/1.2 grpc-lisp-clgrpc/…\"
CODEC                  the name of a codec, see REGISTER-CODEC, for the messages of all calls,
                       unless their method has a codec of its own, or raw messages; nil, the
                       default, and \"proto\" are Protocol Buffers
OBSERVER               an object made by MAKE-OBSERVER, MAKE-METRICS, MAKE-TRACING, MAKE-ACCESS-LOG
                       or MAKE-CONSOLE, or a list of these, which receives the events of the
                       channel's calls, messages and connections
ATTEMPT-INTERCEPTORS   a list of functions of an ATTEMPT, called in order before each attempt of a
                       call is sent to its server, on the loop, so they must not wait. The
                       interceptors may change an attempt's metadata (ATTEMPT-REQUEST-METADATA),
                       make it fail (FAIL), and get its end (ON-ATTEMPT-END). If an interceptor
                       signals another error, the attempt fails with :internal
An element (WHERE . functions) of either list of interceptors is for some methods only: WHERE is the
full name of a service, a string, or the symbol of one method. All other keywords are rows of the
options table, see OPTION-TABLE. Signal MISUSE for a wrong target or option, TLS-ERROR if
CREDENTIALS cannot be used. From any thread."
  (declare (ignore observer attempt-interceptors authority user-agent codec))
  (let ((scheme (and (null (own-resolver target (check-resolvers resolvers)))
                     (loop:find-scheme target))))
    (if (and scheme (loop:scheme-open scheme))
        (funcall (loop:scheme-open scheme) target arguments)
        (make-wire-channel target arguments credentials compression interceptors call-credentials
                           plaintext-credentials balance service-config proxy))))

(defun make-wire-channel (target arguments credentials compression interceptors call-credentials
                          plaintext-credentials balance service-config proxy)
  "Do the work of MAKE-CHANNEL for a channel over the network."
  (when credentials (loop:check-credentials credentials :client))
  (let* ((options (apply #'make-channel-options
                         (alexandria:remove-from-plist
                          arguments :credentials :compression :interceptors :call-credentials
                          :plaintext-credentials :balance :service-config :observer
                          :attempt-interceptors :proxy :authority :user-agent :codec
                          :resolvers)))
         (own-resolver (own-resolver target (getf arguments :resolvers)))
         (observers (rpc:check-observer (getf arguments :observer)))
         (attempt-interceptors (append (check-arities
                                        (rpc:check-interceptors
                                         (getf arguments :attempt-interceptors))
                                        '(attempt))
                                       (attempt:observer-interceptors observers)))
         (resolver (if own-resolver
                       (make-user-resolver own-resolver target)
                       (make-resolver target options proxy)))
         (balancing (and balance (config:default-policy-config balance)))
         (config (and service-config (config:parse-service-config service-config)))
         (encoding (nth-value 1 (encoding:check-compression compression)))
         (interceptors (check-arities (rpc:check-interceptors interceptors)
                                      '(method request options next)))
         (call-credentials (and call-credentials
                                (credentials:check-credentials call-credentials)))
         (codec (encoding:codec-of-name (getf arguments :codec)))
         (own-authority (getf arguments :authority))
         (user-agent (and (getf arguments :user-agent)
                          (user-agent-field (check-user-agent (getf arguments :user-agent)))))
         (authority (channel-authority resolver credentials own-authority))
         (pool-key (and (options-share-connections options)
                        (pool-key options credentials resolver
                                  (hpack:field-value-string authority)
                                  (getf arguments :observer)))))
    (open-wire-channel
     target options pool-key observers (if own-resolver target (canonical-target target))
     (when (or interceptors call-credentials)
       (list :interceptors interceptors :call-credentials call-credentials))
     :credentials credentials :call-credentials call-credentials
     :plaintext-credentials (and plaintext-credentials t)
     :encoding encoding :codec codec :authority authority :user-agent user-agent
     :resolution (make-resolution resolver) :balancing balancing :default-config config
     :receive-limit (getf arguments :max-receive-octets)
     :attempt-interceptors attempt-interceptors)))

(defun open-wire-channel (target options pool-key observers canonical-target interception
                          &rest arguments)
  "A channel to TARGET, all parts of which have been checked, on a client loop that is acquired now
and released with the channel. INTERCEPTION is a list of initargs of an INTERCEPTED-CHANNEL, or nil;
ARGUMENTS are initargs of the channel's core."
  (sb-sys:without-interrupts            ; the loop is released with the channel, or now
    (multiple-value-bind (event-loop subchannel-pool)
        (acquire-client-loop options pool-key #'make-subchannel-pool)
      (let ((core nil) (channel nil))
        (unwind-protect
             (progn
               (setf core (apply #'new-core
                                 :name target :loop event-loop :subchannel-pool subchannel-pool
                                 :options options
                                 :observer (rpc:observer-for observers :role :client
                                                                       :target canonical-target
                                                                       :loop event-loop)
                                 :channel-trace (make-channel-trace (loop:read-clock event-loop))
                                 arguments)
                     (core-balancer core) (make-instance 'switch :parent core))
               (add-guard core)
               (tell-made core)
               (setf channel (channel-of core interception)))
          (unless channel
            (if core
                (close-core core)
                (release-client-loop event-loop pool-key))))
        channel))))

(defun tell-made (core)
  "Report that CORE was made, and enter it into the registry of channels."
  (trace-event :channel :channel-made :target (core-name core))
  (note-channel-event (core-channel-trace core) (channel-trace-born-ns (core-channel-trace core))
                      "channel created")
  ;; in a simulation only its own loop answers
  (unless (loop:simulated-p) (enter-registry core **cores**))
  (loop:end-before-save core #'close-core))

(defun channel-of (core interception)
  "The channel of CORE; INTERCEPTION as for OPEN-WIRE-CHANNEL."
  (let ((channel (apply #'make-instance (if interception 'intercepted-channel 'wire-channel)
                        :target (core-name core) :core core interception)))
    (when-dropped channel (core-name core) (lambda () (when (core-open core) (drop-core core) t)))
    channel))

(defun canonical-target (target)
  "TARGET, with the default scheme if it has none (gRPC's naming document)."
  (if (loop:find-scheme target) target (format nil "dns:///~A" target)))

(defun channel-authority (resolver credentials own)
  "The field :authority of the calls to the servers of RESOLVER with CREDENTIALS or NIL; OWN is the
user's :authority, whose host the servers must prove, or nil. Signal MISUSE as CHECK-AUTHORITY
does."
  (when own
    (setf (resolver-own-host resolver) (authority-host (check-authority own))))
  (hpack:string-field ":authority"
                      (check-authority
                       (or own
                           (and credentials (loop:tls-credentials-server-name credentials))
                           (resolver-authority resolver)))))

(defun check-user-agent (prefix)
  "Return PREFIX, the user's beginning of the header user-agent. Signal MISUSE if the text is not
valid in a header."
  (unless (and (stringp prefix)
               (plusp (length prefix))
               (every (lambda (character) (char<= #\Space character #\~)) prefix))
    (misuse ":user-agent is the name and version of an application, printable ASCII, not ~S."
            prefix))
  prefix)

(defmethod close-channel ((channel wire-channel))
  (sb-ext:cancel-finalization channel)
  (close-core (channel-core channel)))

(defun channel-open-p (channel)
  (core-open (channel-core channel)))

(defun call-with-channel (target options function)
  "See WITH-CHANNEL."
  (declare (type function function))
  (let ((channel (apply #'make-channel target options)))
    (unwind-protect (funcall function channel)
      (close-channel channel))))

(defmacro with-channel ((variable target &rest options) &body body)
  "Evaluate BODY with VARIABLE bound to a channel to TARGET, made with OPTIONS as by MAKE-CHANNEL;
close it on exit. From any thread."
  (let ((function (gensym "BODY")))
    `(flet ((,function (,variable) ,@body))
       (declare (dynamic-extent #',function))
       (call-with-channel ,target (list ,@options) #',function))))

(defmethod channel-state ((channel wire-channel))
  (core-state (channel-core channel)))

(defun await-state (channel timeout function)
  "Call FUNCTION with the state of CHANNEL, now and after each change, until it returns true; return
that value, or NIL after TIMEOUT seconds."
  (declare (type function function))
  (let ((core (channel-core channel)))
    (loop:await-until (core-changed core) (core-lock core) (loop:notice-end timeout)
                      (lambda () (funcall function (channel-state channel))))))

(defmethod ensure-connected ((channel wire-channel) &key (timeout 10))
  (let* ((core (channel-core channel))
         ;; the count of failed attempts, if the state results from a failure
         (known (and (eq :transient-failure (channel-state channel))
                     (core-failed-attempts core))))
    (loop:post (core-loop core) (lambda () (wake core)))
    (unless (await-state channel timeout
                         (lambda (state)
                           (case state
                             (:ready t)
                             (:shutdown (misuse "~A is closed." channel))
                             (:transient-failure
                              (unless (eql known (core-failed-attempts core))
                                (error (status:make-rpc-error :unavailable
                                                              :message (unready-text core)
                                                              :ended-by :transport :sent nil))))
                             (t (setf known nil)))))
      (error (status:make-rpc-error :deadline-exceeded :ended-by :local :sent nil
                                                    :message (not-connected-text core timeout)))))
  channel)

(defmethod reset-back-off ((channel wire-channel))
  (let ((core (channel-core channel)))
    (loop:post (core-loop core)
               (lambda ()
                 (unless (eq :shutdown (core-state core)) (end-back-off core)))))
  channel)

(defun limit-channel-silence (channel seconds)
  "Bound the silence of CHANNEL's servers while calls are under way, even if :keepalive-seconds and
:keepalive-timeout-seconds are longer. After a silence of SECONDS a server gets a PING; if it stays
silent for SECONDS more, its connection ends. The calls on that connection end with :unavailable,
and later calls use other servers. This is for services whose servers allow such PINGs, see
MIN-PING-SECONDS. This has no effect on a channel whose server has complained of PINGs, nor on a
channel without a network. Return CHANNEL. From any thread."
  (when (typep channel 'wire-channel)
    (let ((core (channel-core channel)) (limit-ns (seconds-ns seconds)))
      (unless (let ((before (core-silence-ns core))) (and before (<= before limit-ns)))
        (loop:post (core-loop core)
                   (lambda ()
                     (setf (core-silence-ns core)
                           (min limit-ns (or (core-silence-ns core) limit-ns)))
                     (limit-links-silence core))))))
  channel)

(defun not-connected-text (core seconds)
  "A text for CORE, which is not connected after SECONDS."
  (format nil "not connected to ~A within ~A s, but ~A~@[; ~A~]" (core-name core) seconds
          (rpc:stage-text :client (wait-clock-stage (core-clock core)))
          (unready-text core)))

(defmethod calling:on-state-change ((channel wire-channel) function)
  (let ((core (channel-core channel)))
    (unless (loop:post (core-loop core) (lambda () (watch-state core function)))
      (calling:tell-state function :shutdown)))
  channel)

(defmethod wait-for-state-change ((channel wire-channel) state &key (timeout 10))
  (check-type state (member :idle :connecting :ready :transient-failure :shutdown))
  (let ((new nil))
    (await-state channel timeout (lambda (now) (unless (eq now state) (setf new now))))
    new))
