;;;; The making of channels within the image: to a server, given as an object or by its name, or to
;;;; a service object.

(in-package #:clgrpc.inproc)

(defparameter *retry-options* '(:retry :max-attempts :replay-octets :total-replay-octets)
  "Options of channels that determine how often calls are tried.")

(defun make-inproc-channel (target callee name arguments)
  "A channel to CALLEE or, if CALLEE is nil, to the server that has NAME at the time of each call."
  (destructuring-bind (&key (messages :copy) threads on interceptors call-credentials
                         compression observer service-config attempt-interceptors
                    &allow-other-keys)
      arguments
    (encoding:check-compression compression)
    (unless (member messages '(:copy :share))
      (misuse ":messages is :copy or :share, not ~S." messages))
    (unless (typep on '(or null loop:event-loop)) (misuse ":on is an event loop, not ~S." on))
    (when (and threads on) (misuse "Handlers run on :threads or :on a loop, not both."))
    (let* ((inproc-core (make-inproc-core :target target :callee callee :name name
                                          :share (eq messages :share)
                                          :client-operations **client-operations**
                                          :server-operations **server-operations**
                                          :observer (rpc:observer-for (rpc:check-observer observer)
                                                                      :role :client :target target)
                                          :execution (cond (threads :threads) (t (or on :caller)))
                                          :options
                                          (apply #'make-inproc-options
                                                 (apply #'alexandria:remove-from-plist
                                                        arguments :messages :threads :on
                                                        :interceptors :call-credentials
                                                        :plaintext-credentials :compression
                                                        :observer :service-config
                                                        :attempt-interceptors *retry-options*))))
           (options (retry-options arguments))
           (configured (or service-config attempt-interceptors))
           (intercepted (or interceptors call-credentials)))
      (apply #'make-instance
             (cond (configured (if intercepted
                                   'intercepted-configured-inproc-channel
                                   'configured-inproc-channel))
                   (t (if intercepted 'intercepted-inproc-channel 'inproc-channel)))
             :inproc-core inproc-core
             (append (when intercepted
                       (list :interceptors (check-arities (rpc:check-interceptors interceptors)
                                                   '(method request options next))
                             :call-credentials call-credentials))
                     (when configured
                       (configured-arguments (and service-config
                                                  (config:parse-service-config service-config))
                                             inproc-core options arguments)))))))

(defun retry-options (arguments)
  "Options made from those of ARGUMENTS, a channel's arguments, that are among *RETRY-OPTIONS*."
  (apply #'make-channel-options
         (loop for (name value) on arguments by #'cddr
               when (member name *retry-options*) append (list name value))))

(defun server-channel (server &rest arguments
                       &key (messages :copy) threads on interceptors call-credentials observer
                         service-config attempt-interceptors &allow-other-keys)
  "Return a channel to SERVER, within the image: its stubs call SERVER's handlers on the thread of
their caller, with the semantics of the wire; doc/in-process.md says what is different. MESSAGES is
:copy, so that neither side sees the other's later changes, or :share, to pass messages without
copying. If THREADS is true, handlers run on other threads, as over the wire. If ON, an event loop
of clgrpc.loop, is given, handlers run on that loop. INTERCEPTORS, CALL-CREDENTIALS, OBSERVER,
SERVICE-CONFIG, ATTEMPT-INTERCEPTORS, which run on the thread that makes the attempt, :retry,
:max-attempts, :replay-octets and :total-replay-octets are as for MAKE-CHANNEL, whose limits may be
given as well. (make-channel \"inproc:NAME\") returns such a channel to the server that listens on
that address. From any thread; end it with CLOSE-CHANNEL."
  (declare (ignore messages threads on interceptors call-credentials observer service-config
                   attempt-interceptors))
  (let ((callee (server-callee server)))
    (make-inproc-channel (or (callee-name callee) "inproc:") callee nil arguments)))

(defun open-named (target arguments)
  "A channel to TARGET, inproc:NAME."
  (when (getf arguments :credentials)
    (misuse "A channel within the image speaks no TLS: ~S." target))
  (make-inproc-channel target nil (callee-address target)
                       (alexandria:remove-from-plist arguments :credentials)))

(loop:register-scheme "inproc" :open #'open-named :listen #'listen-here)
