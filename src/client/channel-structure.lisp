;;;; The structures that the files of the client share, and the functions of a channel's core that
;;;; these files need.
;;;;
;;;; The user has a channel, a CLOS object (network-channel.lisp). The object points to its core,
;;;; the channel's state on its loop. Objects on a loop do not point back, so the collector finds a
;;;; channel that its user has dropped (dropped-channel.lisp). The core has a resolver, a balancer
;;;; and subchannels; a subchannel has a connection set, which has the links. Channels that are
;;;; alike may share connection sets. A channel, its subchannels and their links stay on one loop.

(in-package #:clgrpc.client)

(deftype connectivity ()
  "The states of gRPC's connectivity document."
  '(member :idle :connecting :ready :transient-failure :shutdown))

(defstruct (method-table (:constructor make-method-table (config receive-limit)) (:copier nil))
  "The method configs of a channel's service config; see current-config.lisp."
  (config nil :type config:service-config :read-only t) ; the config that has the methods
  ;; the limit that the user has set for received messages
  (receive-limit nil :type (or null index) :read-only t)
  (found '() :type list))               ; an alist from RPC-METHOD to METHOD-CONFIG or nil; atomic

(declaim (sb-ext:freeze-type method-table))

(define-printer (table method-table)
  "~D methods found" (length (method-table-found table)))

(defstruct (subchannel-pool (:constructor make-subchannel-pool (key)) (:copier nil))
  "The connection sets that channels that are alike share on their loop; see connection-set.lisp."
  (key '() :type list :read-only t)      ; equal, by EQUAL, for channels that share
  (waiting-count 0 :type index)         ; how many calls of all channels wait for a stream
  ;; from lists of addresses, text, to the connection sets for them
  (connection-sets (make-hash-table :test #'equal) :type hash-table :read-only t))

(declaim (sb-ext:freeze-type subchannel-pool))

(define-printer (subchannel-pool subchannel-pool)
  "~D connection sets" (hash-table-count (subchannel-pool-connection-sets subchannel-pool)))

(defstruct (resolution (:constructor make-resolution (resolver)) (:copier nil))
  "The resolution of a channel's target to backends; see core.lisp."
  (resolver nil :type (or null resolver)) ; the resolver that finds them
  (begun nil :type boolean)             ; the resolver has begun
  (done nil :type boolean)              ; the resolver has published backends
  (backends '() :type list)             ; the backends that were used last
  ;; the keys of all backends that it last published, sorted; for channelz
  (keys '() :type list)
  ;; true if the channel must connect when the next answer comes
  (awaited nil :type boolean)
  (back-off (make-back-off) :type back-off :read-only t)) ; the back-off of a resolver that fails

(define-printer (resolution resolution)
  "~A, ~D backends" (resolution-resolver resolution) (length (resolution-backends resolution)))

(defstruct (stream-queue (:copier nil))
  "The calls of a channel that wait for a stream: heads of rings of QUEUED-ATTEMPTs, and their
number; see stream-queue.lisp."
  (waiting (make-ring) :type ring :read-only t) ; attempts for which any stream will do
  (patient (make-ring) :type ring :read-only t) ; attempts that wait for another picker
  (scattered nil :type boolean)         ; some queued attempt is not in WAITING
  (count 0 :type index) ; the number of all waiting attempts, including those of subchannels
  ;; the number of waiting attempts for which no server was picked
  (unpicked-count 0 :type index)
  (next-number 0 :type (unsigned-byte 62))) ; the number of the next place

(defstruct (idle-watch (:copier nil))
  "The time since which a channel has had no calls; see core.lisp."
  (timer nil :type (or null timer))     ; while the channel may go idle
  (picks 0 :type index)                 ; the number of picked streams when calls were last seen
  (since-ns 0 :type nanoseconds))       ; when calls were last seen

(declaim (sb-ext:freeze-type resolution stream-queue idle-watch))

(define-printer (stream-queue stream-queue)
  "~D wait" (stream-queue-count stream-queue))

(defstruct (core (:include wire:endpoint)
                 (:constructor make-core
                     (&key name loop options observer sink sender on-stream
                        subchannel-pool credentials call-credentials plaintext-credentials
                        authority user-agent encoding codec resolution balancing default-config
                        receive-limit attempt-interceptors channel-trace))
                 (:copier nil))
  "The state of a channel on its loop."
  (name "" :type string :read-only t)   ; the channel's target, as it was given
  (open t :type boolean)                ; true until CLOSE-CHANNEL
  ;; if the user has dropped the channel, a function that is called when a call or a link ends
  (dropped nil :type (or null function))
  (lock (sb-thread:make-mutex :name "clgrpc channel") :read-only t) ; guards CHANGED
  ;; wakes threads that wait for a change of STATE or FAILED-ATTEMPTS
  (changed (sb-thread:make-waitqueue :name "clgrpc channel state") :read-only t)
  ;; the credentials for TLS, or nil
  (credentials nil :type (or null loop:tls-credentials) :read-only t)
  (call-credentials nil :read-only t)   ; see credentials/call-credentials.lisp, or nil
  ;; true if call credentials may be sent without TLS
  (plaintext-credentials nil :type boolean :read-only t)
  (sink nil :type (or null http2:sink) :read-only t) ; the sink for events of links' streams
  (pool (http2:make-pool :keeps-users t) :type http2:pool :read-only t) ; the pool of all links
  (authority nil :type hpack:field :read-only t) ; the field :authority of calls
  (user-agent nil :type (or null hpack:field) :read-only t) ; the field, if not **USER-AGENT**
  ;; the encoding of requests, unless a call has another
  (encoding nil :type (or null encoding:encoding) :read-only t)
  (codec nil :type (or null encoding:message-codec) :read-only t) ; the codec of messages, or nil
  ;; encodings that no server with a known list accepts; changed by one store
  (refused '() :type list)
  (resolution (make-resolution nil) :type resolution :read-only t) ; see RESOLUTION
  ;; the config in force, once the resolver has answered
  (config nil :type (or null config:service-config))
  ;; the config to use if the resolver has none
  (default-config nil :type (or null config:service-config) :read-only t)
  (receive-limit nil :type (or null index) :read-only t) ; the user's max-receive-octets
  (methods nil :type (or null method-table)) ; CONFIG's method configs, or nil
  (balancing nil :type (or null config:policy-config)) ; the user's policy, used instead of CONFIG's
  (balancer nil :type (or null balancer)) ; chooses among servers, a SWITCH
  (picker nil)                          ; see balancer.lisp; changed by one store
  ;; makes the picker for calls from the balancer's picker; see guarded-picker.lisp
  (picker-wrapper #'identity :type function)
  (idle-watch (make-idle-watch) :type idle-watch :read-only t) ; whether the channel may go idle
  (state :idle :type connectivity)      ; the state of the channel
  (state-functions '() :type list)      ; functions of STATE, see ON-STATE-CHANGE
  (subchannels '() :type list)          ; subchannels in use, and those that still have calls
  (subchannel-count 0 :type index)      ; the number of SUBCHANNELS
  (crowded nil :type boolean) ; there was no room for another subchannel at the last update
  ;; the pool that the channel shares with equal channels, or nil; see connection-set.lisp
  (subchannel-pool nil :type (or null subchannel-pool) :read-only t)
  ;; the queue of calls without a stream
  (stream-queue (make-stream-queue) :type stream-queue :read-only t)
  (on-stream nil :type (or null function)) ; the function that is called with the core and a
                                        ; subchannel that may have a free stream, see core.lisp
  (clock (make-wait-clock) :type wait-clock :read-only t) ; measures how long its calls wait
  ;; the keepalive time of new links, once a server has complained of PINGs
  (keepalive-ns nil :type (or null nanoseconds))
  ;; the silence after which links send a PING, see LIMIT-CHANNEL-SILENCE
  (silence-ns nil :type (or null nanoseconds))
  (last-error nil :type (or null string)) ; why the last attempt to connect failed
  ;; failed attempts to resolve its target, or to connect to a server
  (failed-attempts 0 :type (unsigned-byte 62))
  (throttle nil :type (or null throttle)) ; the throttle of retries, once needed
  (replays (make-octet-budget) :type octet-budget :read-only t) ; octets of requests that are kept
  (retrying (make-hash-table :test 'eq) :type hash-table :read-only t) ; calls that wait for their
                                        ; next attempt, as keys
  ;; from calls that wait for their credentials to the IDENTITY-WAITs of their attempts
  (asking (make-hash-table :test 'eq) :type hash-table :read-only t)
  (attempt-interceptors '() :type list :read-only t) ; see MAKE-CHANNEL
  ;; for channelz
  ;; the channel's number and last events
  (channel-trace (make-channel-trace 0) :type channel-trace :read-only t)
  (calls-begun 0 :type (unsigned-byte 62)) ; calls that users have begun
  (calls-succeeded 0 :type (unsigned-byte 62)) ; calls that have ended with OK
  (calls-failed 0 :type (unsigned-byte 62)) ; calls that have ended otherwise
  (call-ns 0 :type (unsigned-byte 62)))  ; when the last call began, 0 for none

(defglobal **cores** (make-registry)
  "The cores of the channels that are open, a registry.")

(define-printer (core core)
  "~A ~(~A~)~@[, ~A~]" (core-name core) (core-state core) (core-last-error core))

(defun core-now (core)
  (loop:event-loop-now (core-loop core)))

(defun note-core-event (core severity text &rest arguments)
  "Add an event of CORE's channel to its channelz trace: TEXT, a control string, with ARGUMENTS."
  (note-channel-event (core-channel-trace core) (core-now core) (apply #'format nil text arguments)
                      :severity severity))

(document-functions
  subchannel-key "The addresses of SUBCHANNEL's server, as text; empty if SUBCHANNEL is for several
  servers."
  subchannel-attributes "The attributes that the resolver gives for the server of SUBCHANNEL, a
plist."
  subchannel-state "The state of SUBCHANNEL as its balancer sees it: :idle, :connecting, :ready,
:transient-failure or :shutdown.")

(defun health-service (core)
  "The service whose health is checked at the servers of CORE's channel; nil if no health is
checked."
  (let ((config (core-config core)))
    (and config
         (options-health-checking (core-options core))
         (config:service-config-health-service config))))

(defun balancer-now (balancer)
  "The time of the turn under way on the loop of BALANCER, in nanoseconds."
  (core-now (balancer-core balancer)))

(defun balancer-observer (balancer)
  "The observer of BALANCER's channel; nil if the channel has none."
  (core-observer (balancer-core balancer)))

(defun balancer-random (balancer)
  "The random state of BALANCER's choices."
  (loop:event-loop-random (core-loop (balancer-core balancer))))

(defun enter-stage (core stage)
  "Note that CORE, or one of its subchannels, has entered STAGE of getting a connection. STAGE is
:queue once there is a connection. While CORE is :ready, other stages are ignored, since no call
waits for a further connection."
  (unless (and (eq :ready (core-state core)) (not (eq :queue stage)))
    (enter-clock-stage (core-clock core) stage (core-now core))))

(define-hot (note-call-begun :inline t) ((core core)) null
  "Count a call of CORE's user, which begins."
  (incf (core-calls-begun core))
  (setf (core-call-ns core) (loop:event-loop-now (core-loop core)))
  nil)

(defun note-call-ended (core status)
  "Count a call of CORE's user that has ended with STATUS."
  (if (eq :ok status)
      (incf (core-calls-succeeded core))
      (incf (core-calls-failed core))))

(defun tell-failed-attempt (core)
  "Count a failed attempt to resolve CORE's target or to connect to one of its servers, and wake the
threads that wait for the outcome."
  (incf (core-failed-attempts core))
  (sb-thread:with-mutex ((core-lock core))
    (sb-thread:condition-broadcast (core-changed core))))

(defun answer-comes-p (core)
  "True if the resolver of CORE answers soon after ASK-RESOLVER. A resolver that has just failed is
not asked before its back-off has ended."
  (let ((resolution (core-resolution core)))
    (and (null (back-off-timer (resolution-back-off resolution)))
         (answers-p (resolution-resolver resolution)))))

(defun ask-resolver (core)
  "Ask the resolver of CORE for addresses again, because servers were lost or cannot be reached. A
resolver that has just failed is not asked now: it is asked after its back-off."
  (let ((resolution (core-resolution core)))
    (unless (back-off-timer (resolution-back-off resolution))
      (resolve-again (resolution-resolver resolution)))))

(defun resolved-p (core)
  "True if the resolver of CORE has published backends."
  (resolution-done (core-resolution core)))

(defstruct (client-link (:include link) (:constructor make-client-link (loop options owner))
                        (:copier nil))
  "One HTTP/2 connection of a connection set."
  (settings-received nil :type boolean) ; the peer's SETTINGS have come, and the link is in use
  (goaway-code nil :type (or null string)) ; the name of the error code of the peer's first GOAWAY
  (accepted :unknown :type (or list (eql :unknown))) ; the encodings that the peer reads
  (internal-streams 0 :type index)      ; the number of streams of internal calls so far
  ;; texts that calls have used as :authority and that its peer's certificate covers
  (authorities '() :type list))

(declaim (sb-ext:freeze-type client-link))

(defstruct (veto (:constructor make-veto (name state text)) (:copier nil))
  "A reason why a connected subchannel is not used."
  (name nil :type symbol :read-only t)  ; the name of its maker
  (state nil :type connectivity :read-only t) ; the state of the subchannel under the veto
  (text "" :type string :read-only t))  ; the text for people

(define-printer (veto veto)
  "~(~A, ~A~): ~A" (veto-name veto) (veto-state veto) (veto-text veto))

(defstruct (connection-set (:copier nil))
  "The connections to one of several addresses, and the attempts to make them; see
connection-set.lisp."
  (core nil :type core :read-only t)    ; the core whose name, credentials and so on the links use
  (pool nil :type (or null subchannel-pool) :read-only t) ; the pool that shares the set, or nil
  (owners '() :type list)               ; the subchannels that use the set
  (addresses '() :type list)            ; the kernel's, octets
  (link-state :idle :type connectivity) ; the state of its connections
  (connect-rounds '() :type list)       ; rounds of attempts to connect that are under way
  (links '() :type list)                ; links in use, oldest first
  ;; links that get no more calls, but still have calls under way
  (draining '() :type list)
  (proven nil :type boolean)            ; the last connection has worked
  (useless 0 :type (integer 0 2))       ; useless connections in a row, counted up to 2
  (back-off (make-back-off) :type back-off :read-only t) ; the back-off between attempts to connect
  (failure nil :type (or null string))  ; the text of the last failed attempt
  (failed-connects 0 :type (unsigned-byte 62))) ; how often all addresses have failed

(declaim (sb-ext:freeze-type connection-set))

(defstruct (subchannel (:constructor make-subchannel
                           (&key core balancer key addresses attributes channel-trace note))
                       (:copier nil))
  "One server as a balancer sees it: the addresses of one server, or of several that are treated as
one."
  (core nil :type core :read-only t)    ; the core of its channel
  (balancer nil :type balancer :read-only t) ; the balancer that gets its states
  (addresses '() :type list)            ; the kernel's, octets
  ;; the connection set whose links the subchannel uses
  (connection-set nil :type (or null connection-set))
  (former-sets '() :type list)          ; connection sets that may still have its calls
  ;; the state of the subchannel's connection set, if the subchannel has asked that set to connect
  (link-state :idle :type connectivity)
  (open-calls 0 :type index)            ; attempts of calls that are under way, internal ones too
  (picks 0 :type (unsigned-byte 62))    ; how many calls of users it has had
  (key "" :type string :read-only t)    ; the key of the backend, if it has one
  ;; the backend's plist; of several backends, the plist of the last connected one
  (attributes '() :type list)
  (backends '() :type list)             ; the subchannel's backends, if there are several
  (vetoes '() :type list)               ; the vetoes on the use of its connection, newest first
  ;; the state that follows from LINK-STATE and VETOES, which its balancer sees
  (state :idle :type connectivity)
  (watchers '() :type list)             ; called with the subchannel when LINK-STATE changes
  (listener nil :type (or null function)) ; the function that is called at each attempt's end, see
                                          ; ADD-LISTENER
  (breaker nil :type (or null breaker)) ; the circuit breaker, if the channel is guarded
  ;; the channel's own calls on its links, see internal-call.lisp
  (internal-calls '() :type list)
  (waiting (make-ring) :type ring :read-only t) ; places of calls that wait for its streams
  ;; how many calls without a stream have this subchannel as their last pick
  (waiting-count 0 :type index)
  (note nil)                            ; the balancer's data about the subchannel
  (failures 0 :type (unsigned-byte 62)) ; attempts that failed and were not cancelled
  (cancellations 0 :type (unsigned-byte 62)) ; how many attempts were cancelled
  ;; the subchannel's number and last events
  (channel-trace (make-channel-trace 0) :type channel-trace :read-only t))

(declaim (sb-ext:freeze-type subchannel))

(defstruct (connect-round (:copier nil))
  "An attempt of a connection set to connect to one of its addresses. The first connection on which
the peer's SETTINGS arrive is used (gRFC A61)."
  ;; the connection set for which the round connects
  (connection-set nil :type connection-set :read-only t)
  (connector nil :type (or null loop:connector)) ; the connector that tries the addresses
  (began-ns 0 :type nanoseconds :read-only t) ; when the round began
  (links '() :type list)                ; candidates: their peers have sent no SETTINGS yet
  (met nil :type boolean))              ; a peer has accepted a connection, which may have failed

(declaim (sb-ext:freeze-type connect-round))

(define-printer (connect-round connect-round)
  "~A, ~D link~:P" (connect-round-connector connect-round)
  (length (connect-round-links connect-round)))

(defun addresses-text (addresses)
  "ADDRESSES, the kernel's, for people."
  (format nil "~{~A~^,~}" (mapcar #'os:address-text addresses)))

(defun server-text (subchannel)
  "The addresses of SUBCHANNEL, for people."
  (addresses-text (subchannel-addresses subchannel)))

(defun state-text (state)
  "STATE, a CONNECTIVITY, as gRPC's documents spell it."
  (substitute #\_ #\- (string state)))

(defun note-subchannel-event (subchannel severity text &rest arguments)
  "As NOTE-CORE-EVENT, for an event of SUBCHANNEL."
  (note-channel-event (subchannel-channel-trace subchannel) (core-now (subchannel-core subchannel))
                      (apply #'format nil text arguments)
                      :severity severity))

(defun note-child-event (subchannel text)
  "Add TEXT, an event of SUBCHANNEL, to the trace of its channel."
  (let ((core (subchannel-core subchannel)))
    (note-channel-event (core-channel-trace core) (core-now core) text
                        :child (channel-trace-number (subchannel-channel-trace subchannel))
                        :child-name (server-text subchannel))))

(define-printer (connection-set connection-set)
  "~A ~(~A~), of ~D subchannel~:P~@[, ~A~]"
  (addresses-text (connection-set-addresses connection-set))
  (connection-set-link-state connection-set) (length (connection-set-owners connection-set))
  (connection-set-failure connection-set))

(define-printer (subchannel subchannel)
  "~A ~(~A~)" (server-text subchannel) (subchannel-state subchannel))

(defstruct (client-failure (:include attempt:attempt-failure)
                           (:constructor make-client-failure
                               (status message &key how (reach :handler) pushback (trailers #())))
                           (:copier nil))
  "The failure of an attempt of a call, with the data that the user gets if the failure ends the
call."
  (how '() :type list :read-only t)     ; a plist, as END-CALL takes it
  (trailers #() :type simple-vector :read-only t)) ; metadata that came with the failure

(defstruct (client-retries (:include attempt:retries)
                           (:constructor make-client-retries (policy limit &optional running))
                           (:copier nil))
  "The state of a call that is tried more than once, or may be."
  (timer nil :type (or null timer)))    ; the timer of the awaited time

(declaim (sb-ext:freeze-type client-failure client-retries))

(defstruct (caller-identity (:constructor make-caller-identity (credentials metadata))
                            (:copier nil))
  "The caller's identity, which the attempts of a call send; see caller-identity.lisp."
  (credentials nil :read-only t)        ; call credentials, see credentials/call-credentials.lisp
  (metadata '() :type list :read-only t) ; the other metadata of the attempts, an alist
  (asked nil :type boolean)             ; the metadata of the next attempt are known
  (awaited nil :type boolean)           ; CREDENTIALS have not answered yet, or have failed
  ;; the failure of the next attempt once it has a stream, since CREDENTIALS have failed for the
  ;; attempt
  (failure nil :type (or null client-failure)))

(declaim (sb-ext:freeze-type caller-identity))

(define-printer (identity caller-identity)
  "~A" (caller-identity-credentials identity))

(defstruct (client-call (:include wire-call) (:constructor make-client-call) (:copier nil))
  "A call on the client. A call's stream is the stream of the attempt with which the call continues
so far, the oldest attempt under way."
  (request nil)                         ; the only request, a message or encoded, until the response
                                        ; begins (request.lisp)
  ;; the reply of a method with one response, decoded or for WIRE-DECODE
  (reply nil)
  ;; the completions of a call that is its own future (future.lisp)
  (completions '() :type loop:completions))

(declaim (sb-ext:freeze-type client-call))

(defstruct (identity-wait (:constructor make-identity-wait (call taker)) (:copier nil))
  "The wait of an attempt for its call credentials; see caller-identity.lisp."
  (call nil :type (or null client-call)) ; the attempt's call; nil once the call has ended
  (taker nil :type function :read-only t) ; the function that continues the attempt
  (leave nil :type (or null function))  ; makes the credentials forget this: see ASK-CREDENTIALS
  (stage :asking :type symbol)          ; :answered or :waiting, by what came first
  (metadata '() :type list)             ; the answer
  (error nil))                          ; the RPC-ERROR of the credentials, or nil

(declaim (sb-ext:freeze-type identity-wait))

(define-printer (wait identity-wait)
  "~(~A~)~@[ of ~A~]" (identity-wait-stage wait)
  (and (identity-wait-call wait) (rpc:call-path (identity-wait-call wait))))

(define-hot (unattended-p :inline t) ((call client-call)) boolean
  "True if CALL is its own future: no stub waits for it."
  (wire:marked-p call :unattended))

(defstruct (attempt (:constructor make-attempt (stream)) (:copier nil))
  "One try of a call, on one stream. The object is made once for each stream of the pool, and is
used again with that stream."
  (stream nil :type http2:stream :read-only t) ; the stream whose user it is
  ;; the subchannel that STREAM was opened for, until STREAM is closed
  (subchannel nil :type (or null subchannel))
  ;; the call that the attempt is part of, until its stream is closed
  (call nil :type (or null client-call))
  (number 0 :type index)                ; how many attempts of CALL came before it
  (began-ns 0 :type nanoseconds)        ; when the attempt began
  ;; the failure, once it has failed and CALL continues without it
  (cause nil :type (or null client-failure))
  (view nil :type (or null attempt:attempt))) ; the view for interceptors, if the channel has some

(declaim (sb-ext:freeze-type attempt))

(define-printer (attempt attempt)
  "~D~@[ of ~A~] on ~A" (1+ (attempt-number attempt))
  (and (attempt-call attempt) (rpc:call-path (attempt-call attempt))) (attempt-stream attempt))

(rpc:define-own-part parts (client client-call wire:wire-parts)
  "The parts of a call on the client."
  (identity nil :type (or null caller-identity)) ; set if the call has call credentials
  (internal nil :type boolean)          ; the channel's own call, see internal-call.lisp
  (retries nil :type (or null client-retries)) ; set once a second attempt is possible
  (wait nil :type (or null wait-clock)) ; the clock of the call's waits, or nil
  ;; the call's QUEUED-ATTEMPT while it waits for a stream (stream-queue.lisp)
  (queued-attempt nil))

(rpc:define-own-part own-options (client client-call)
  "The settings that the user of a call has made."
  (wait-for-ready :unset :type (member :unset t nil)) ; the call outlasts failures to connect
  (authority nil :type (or null string))) ; the :authority of its requests, if not the channel's

(declaim (sb-ext:freeze-type client-own-options))

(define-hot (own-authority :inline t) ((call client-call)) (or null string)
  "The :authority that CALL's user has set for its requests; nil if the user has set none."
  (let ((own (call-client-own-options call)))
    (and own (client-own-options-authority own))))

(rpc:define-own-part outbound (client client-call wire:wire-outbound)
  "The outgoing side of a call, with its outbox."
  ;; used on the loop: messages that wait for a stream, newest first
  (outbox '() :type list))

(declaim (sb-ext:freeze-type wire:wire-parts wire:wire-outbound))

(define-hot (call-replay :inline t) ((call client-call)) (or null replay)
  "The kept messages of CALL; nil if CALL keeps none."
  (let ((parts (call-client-parts call)))
    (and parts (client-parts-replay parts))))

(define-hot (call-retries :inline t) ((call client-call)) (or null client-retries)
  "The data of the attempts of CALL; nil until a second one is possible."
  (let ((parts (call-client-parts call)))
    (and parts (client-parts-retries parts))))

(define-hot (encoded-p :inline t) (reply) boolean
  "True if REPLY, of a call or its future, is a message that is not decoded yet."
  (typep reply 'wire:byte-buffer))

(define-hot (stream-link :inline t) ((stream http2:stream)) link
  (the link (http2:connection-user (http2:stream-connection stream))))

(define-hot (stream-attempt :inline t) ((stream http2:stream)) attempt
  "The attempt on STREAM, which FREE-STREAM has opened."
  (the attempt (http2:stream-user stream)))

(define-hot (stream-call :inline t) ((stream http2:stream)) (or null client-call)
  "The call that continues with STREAM, so far; nil if no call continues with it."
  (let* ((attempt (the (or null attempt) (http2:stream-user stream)))
         (call (and attempt (attempt-call attempt))))
    (and call (eq stream (client-call-stream call)) call)))

(define-hot (client-call-core :inline t) ((call client-call)) core
  (the core (client-call-endpoint call)))
