;;;; The structures that the files of the client share, and what is asked of a channel's core by all
;;;; of them.
;;;;
;;;; The user has a channel, a CLOS object (network-channel.lisp). It points to its core, which is
;;;; what the channel is on its loop: nothing on a loop points back, so that the collector finds a
;;;; channel that its user has dropped (dropped-channel.lisp). The core has a resolver, a balancer
;;;; and subchannels; a subchannel has a connection set, which has the links; channels that are
;;;; alike may share connection sets. A channel, its subchannels and their links are on one loop for
;;;; life.

(in-package #:clgrpc.client)

(deftype connectivity ()
  "The states of gRPC's connectivity document."
  '(member :idle :connecting :ready :transient-failure :shutdown))

(defstruct (method-table (:constructor make-method-table (config receive-limit)) (:copier nil))
  "What a service config says of the methods of a channel's calls; see current-config.lisp."
  (config nil :type config:service-config :read-only t) ; what is looked up
  (receive-limit nil :type (or null index) :read-only t) ; that the user has set, of messages
  (found '() :type list))               ; an alist from RPC-METHOD to METHOD-CONFIG or nil; atomic

(declaim (sb-ext:freeze-type method-table))

(defmethod print-object ((table method-table) stream)
  (print-unreadable-object (table stream :type t)
    (format stream "~D methods found" (length (method-table-found table)))))

(defstruct (subchannel-pool (:constructor make-subchannel-pool (key)) (:copier nil))
  "What channels that are alike share on their loop; see connection-set.lisp."
  (key '() :type list :read-only t)      ; EQUAL for these channels
  (waiting-count 0 :type index)         ; how many calls of all of them wait for a stream
  ;; from lists of addresses, text, to the connection sets for them
  (connection-sets (make-hash-table :test #'equal) :type hash-table :read-only t))

(declaim (sb-ext:freeze-type subchannel-pool))

(defmethod print-object ((subchannel-pool subchannel-pool) stream)
  (print-unreadable-object (subchannel-pool stream :type t)
    (format stream "~D connection sets"
            (hash-table-count (subchannel-pool-connection-sets subchannel-pool)))))

(defstruct (resolution (:constructor make-resolution (resolver)) (:copier nil))
  "How a channel's target is resolved to backends; see core.lisp."
  (resolver nil :type (or null resolver)) ; that finds them
  (begun nil :type boolean)             ; the resolver has begun
  (done nil :type boolean)              ; it has told of backends
  (backends '() :type list)             ; those of them that were used last
  (keys '() :type list)                 ; of all that it last told of, sorted; for channelz
  (awaited nil :type boolean)           ; its next answer is to be connected to
  (back-off (make-back-off) :type back-off :read-only t)) ; of a resolver that fails

(defmethod print-object ((resolution resolution) stream)
  (print-unreadable-object (resolution stream :type t)
    (format stream "~A, ~D backends" (resolution-resolver resolution)
            (length (resolution-backends resolution)))))

(defstruct (stream-queue (:copier nil))
  "The calls of a channel that wait for a stream: heads of rings of QUEUED-ATTEMPTs, and how many
there are; see stream-queue.lisp."
  (waiting (make-ring) :type ring :read-only t) ; those that any stream will do for
  (patient (make-ring) :type ring :read-only t) ; those that wait for another picker
  (scattered nil :type boolean)         ; some queued attempt is not in WAITING
  (count 0 :type index)                 ; of all, those of subchannels too
  (unpicked-count 0 :type index)        ; of those that no server was picked for
  (next-number 0 :type (unsigned-byte 62))) ; that the next one gets

(defstruct (idle-watch (:copier nil))
  "Since when a channel has had no calls; see core.lisp."
  (timer nil :type (or null timer))     ; while the channel may go idle
  (picks 0 :type index)                 ; how many streams it had had when it was last seen busy
  (since-ns 0 :type nanoseconds))       ; when that was

(declaim (sb-ext:freeze-type resolution stream-queue idle-watch))

(defmethod print-object ((stream-queue stream-queue) stream)
  (print-unreadable-object (stream-queue stream :type t)
    (format stream "~D wait" (stream-queue-count stream-queue))))

(defstruct (core (:include wire:endpoint)
                 (:constructor make-core
                     (&key name client-loop loop options observer sink sender on-stream
                        subchannel-pool credentials call-credentials plaintext-credentials
                        authority user-agent encoding codec resolution balancing default-config
                        receive-limit attempt-interceptors channel-trace))
                 (:copier nil))
  "What a channel is on its loop."
  (name "" :type string :read-only t)   ; the channel's target, as it was given
  (client-loop nil :type (or null client-loop) :read-only t) ; whose LOOP it is on
  (open t :type boolean)                ; until CLOSE-CHANNEL
  (dropped nil :type (or null function)) ; once nobody has the channel: called when a link has ended
  (lock (sb-thread:make-mutex :name "clgrpc channel") :read-only t) ; of CHANGED
  ;; STATE has, or FAILED-ATTEMPTS
  (changed (sb-thread:make-waitqueue :name "clgrpc channel state") :read-only t)
  (credentials nil :type (or null loop:tls-credentials) :read-only t) ; for TLS, or nil
  (call-credentials nil :read-only t)   ; see calling/call-credentials.lisp, or nil
  (plaintext-credentials nil :type boolean :read-only t) ; those go without TLS as well
  (sink nil :type (or null http2:sink) :read-only t) ; what links tell of their streams
  (pool (http2:make-pool :keeps-users t) :type http2:pool :read-only t) ; of all links
  (authority nil :type hpack:field :read-only t) ; the field :authority of calls
  (user-agent nil :type (or null hpack:field) :read-only t) ; likewise, if not **USER-AGENT**
  (encoding nil :type (or null wire:encoding) :read-only t) ; of requests, if nobody says otherwise
  (codec nil :type (or null method:message-codec) :read-only t) ; of messages, or nil
  (refused '() :type list)              ; the encodings that no server is known to read, as one is
                                        ; known not to; changed by one store
  (resolution (make-resolution nil) :type resolution :read-only t) ; how its target is resolved
  (config nil :type (or null config:service-config)) ; in force, once the resolver has answered
  (default-config nil :type (or null config:service-config) :read-only t) ; if the resolver has none
  (receive-limit nil :type (or null index) :read-only t) ; max-receive-octets, if the user gave it
  (methods nil :type (or null method-table)) ; what CONFIG says of methods; nil if nothing
  (balancing nil :type (or null config:policy-config)) ; as the user says, before CONFIG
  (balancer nil :type (or null balancer)) ; that chooses among them, a SWITCH
  (picker nil)                          ; see balancer.lisp; changed by one store
  ;; of what the balancer publishes: the picker that calls have; see guarded-picker.lisp
  (picker-wrapper #'identity :type function)
  (idle-watch (make-idle-watch) :type idle-watch :read-only t) ; whether it may go idle
  (state :idle :type connectivity)      ; of the channel
  (state-functions '() :type list)      ; that hear of it, see ON-STATE-CHANGE
  (subchannels '() :type list)          ; those in use, and those that have calls still
  (subchannel-count 0 :type index)      ; how many these are
  (crowded nil :type boolean)           ; there was no room for another, since the last update
  ;; what it shares with channels that are alike, if it does; see connection-set.lisp
  (subchannel-pool nil :type (or null subchannel-pool) :read-only t)
  (stream-queue (make-stream-queue) :type stream-queue :read-only t) ; calls without a stream
  (on-stream nil :type (or null function)) ; called with it and a subchannel of it of which a stream
                                        ; may be free, see core.lisp
  (clock (make-wait-clock) :type wait-clock :read-only t) ; of what its calls wait for
  (keepalive-ns nil :type (or null nanoseconds)) ; of new links, once a server has found that of
                                        ; others too short
  (silence-ns nil :type (or null nanoseconds)) ; a silence after which links ask, see LIMIT-SILENCE
  (last-error nil :type (or null string)) ; why the last attempt to connect failed
  (failed-attempts 0 :type (unsigned-byte 62)) ; to resolve its target, or to connect to a server
  (throttle nil :type (or null throttle)) ; of retries, once one may be throttled
  (replays (make-octet-budget) :type octet-budget :read-only t) ; octets of requests that are kept
  (retrying (make-hash-table :test 'eq) :type hash-table :read-only t) ; calls that wait for their
                                        ; next attempt, as keys
  ;; from calls that wait for what their credentials say to how many of their attempts do
  (asking (make-hash-table :test 'eq) :type hash-table :read-only t)
  (attempt-interceptors '() :type list :read-only t) ; see MAKE-CHANNEL
  ;; for channelz
  ;; its number and its last events
  (channel-trace (make-channel-trace 0) :type channel-trace :read-only t)
  (calls-begun 0 :type (unsigned-byte 62)) ; of users
  (calls-succeeded 0 :type (unsigned-byte 62)) ; that have ended with OK
  (calls-failed 0 :type (unsigned-byte 62)) ; that have ended otherwise
  (call-ns 0 :type (unsigned-byte 62)))  ; when the last one began, 0 for none

(defglobal **cores** (make-registry)
  "The cores of the channels that are open, a registry.")

(defmethod print-object ((core core) stream)
  (print-unreadable-object (core stream :type t)
    (format stream "~A ~(~A~)~@[, ~A~]" (core-name core) (core-state core) (core-last-error core))))

(defun core-now (core)
  (loop:event-loop-now (core-loop core)))

(defun note-core-event (core severity text &rest arguments)
  "Note for channelz what has happened to CORE's channel: TEXT, a control string, with ARGUMENTS."
  (note-channel-event (core-channel-trace core) (core-now core) (apply #'format nil text arguments)
                      :severity severity))

(document-functions
  subchannel-key "The addresses of the server that SUBCHANNEL is for, as text; empty if it is for
several."
  subchannel-attributes "What the resolver says of the server that SUBCHANNEL is for besides its
addresses, a plist."
  subchannel-state "The state of SUBCHANNEL as its balancer sees it: :idle, :connecting, :ready,
:transient-failure or :shutdown.")

(defun health-service (core)
  "The service that servers of CORE's channel are asked whether they serve, or nil."
  (let ((config (core-config core)))
    (and config
         (options-health-checking (core-options core))
         (config:service-config-health-service config))))

(defun balancer-now (balancer)
  "The time of the turn under way on the loop of BALANCER, in nanoseconds."
  (core-now (balancer-core balancer)))

(defun balancer-observer (balancer)
  "The observer of BALANCER's channel, or nil."
  (core-observer (balancer-core balancer)))

(defun balancer-random (balancer)
  "The random state that BALANCER's choices are of."
  (loop:event-loop-random (core-loop (balancer-core balancer))))

(defun enter-stage (core stage)
  "CORE, or one of its subchannels, has come to STAGE of getting a connection, or to :queue, having
one. While calls can be made, that others connect is nothing that anybody waits for."
  (unless (and (eq :ready (core-state core)) (not (eq :queue stage)))
    (enter-clock-stage (core-clock core) stage (core-now core))))

(define-hot (note-call-begun :inline t) ((core core)) null
  "A call of CORE's user begins."
  (incf (core-calls-begun core))
  (setf (core-call-ns core) (loop:event-loop-now (core-loop core)))
  nil)

(defun note-call-ended (core status)
  "A call of CORE's user has ended with STATUS."
  (if (eq :ok status)
      (incf (core-calls-succeeded core))
      (incf (core-calls-failed core))))

(defun tell-failed-attempt (core)
  "An attempt to resolve CORE's target has failed, or one to connect to a server of it: those who
wait for the outcome of one hear of that."
  (incf (core-failed-attempts core))
  (sb-thread:with-mutex ((core-lock core))
    (sb-thread:condition-broadcast (core-changed core))))

(defun answer-comes-p (core)
  "True if ASK-RESOLVER has the resolver of CORE answer soon. One that has just failed is not asked
before its back-off has ended."
  (let ((resolution (core-resolution core)))
    (and (null (back-off-timer (resolution-back-off resolution)))
         (answers-p (resolution-resolver resolution)))))

(defun ask-resolver (core)
  "Servers of CORE have gone or cannot be reached: their addresses may have changed. A resolver that
has just failed is asked later in any case."
  (let ((resolution (core-resolution core)))
    (unless (back-off-timer (resolution-back-off resolution))
      (resolve-again (resolution-resolver resolution)))))

(defun resolved-p (core)
  "True if the resolver of CORE has told of backends."
  (resolution-done (core-resolution core)))

(defstruct (client-link (:include link) (:constructor make-client-link (loop options owner))
                        (:copier nil))
  "One HTTP/2 connection of a connection set."
  (greeted nil :type boolean)           ; the peer's SETTINGS made it one to use
  (farewell nil :type (or null string)) ; the name of the error code of the peer's first GOAWAY
  (accepted :unknown :type (or list (eql :unknown))) ; the encodings that the peer reads
  (side-streams 0 :type index)          ; how many streams internal calls have had
  (authorities '() :type list))         ; texts: those of calls that its peer's certificate is for

(declaim (sb-ext:freeze-type client-link))

(defstruct (veto (:constructor make-veto (name state text)) (:copier nil))
  "Why a subchannel that is connected is not used."
  (name nil :type symbol :read-only t)  ; of what makes and ends it
  (state nil :type connectivity :read-only t) ; of the subchannel meanwhile
  (text "" :type string :read-only t))  ; for people

(defmethod print-object ((veto veto) stream)
  (print-unreadable-object (veto stream :type t)
    (format stream "~(~A, ~A~): ~A" (veto-name veto) (veto-state veto) (veto-text veto))))

(defstruct (connection-set (:copier nil))
  "The connections to one of some addresses, and how they come about; see connection-set.lisp."
  (core nil :type core :read-only t)    ; of the channel whose name, credentials … links have
  (pool nil :type (or null subchannel-pool) :read-only t) ; that it is shared by; nil if it is not
  (owners '() :type list)               ; the subchannels that use it
  (addresses '() :type list)            ; the kernel's, octets
  (link-state :idle :type connectivity) ; of its connections
  (connect-rounds '() :type list)       ; to connect: those under way
  (links '() :type list)                ; in use, oldest first
  (leaving '() :type list)              ; links that take no more calls and still have some
  (proven nil :type boolean)            ; the last connection was a working one
  (useless 0 :type (integer 0 2))       ; so many connections in a row were of no use, or more
  (back-off (make-back-off) :type back-off :read-only t) ; between attempts to connect
  (failure nil :type (or null string))  ; the text of the last failed attempt
  (failed-connects 0 :type (unsigned-byte 62))) ; how often all addresses were tried in vain

(declaim (sb-ext:freeze-type connection-set))

(defstruct (subchannel (:constructor make-subchannel
                           (&key core balancer key addresses attributes channel-trace note))
                       (:copier nil))
  "Addresses of one server, or of several that are taken for one, as a balancer sees them."
  (core nil :type core :read-only t)    ; of its channel
  (balancer nil :type balancer :read-only t) ; that hears of its states
  (addresses '() :type list)            ; the kernel's, octets
  (connection-set nil :type (or null connection-set)) ; whose links it uses
  (former-sets '() :type list)          ; connection sets on which calls of it may still go on
  (link-state :idle :type connectivity) ; what it has asked for and heard of its connection set
  (open-calls 0 :type index)            ; attempts of calls that are under way, internal ones too
  (picks 0 :type (unsigned-byte 62))    ; how many of users' calls it has had
  (key "" :type string :read-only t)    ; of the backend that it is for, if it is for one
  (attributes '() :type list)           ; a plist, the backend's, or of several that of the last one
                                        ; it was connected to
  (backends '() :type list)             ; that it is for, if it is for several
  (vetoes '() :type list)               ; on its being ready, newest first
  (state :idle :type connectivity)      ; what the two come to, as its balancer sees it
  (watchers '() :type list)             ; functions of the subchannel: LINK-STATE has changed
  (listener nil :type (or null function)) ; told of the end of each attempt, see ADD-LISTENER
  (breaker nil :type (or null breaker)) ; of a guarded channel's
  ;; the channel's own calls on its links, see internal-call.lisp
  (internal-calls '() :type list)
  (waiting (make-ring) :type ring :read-only t) ; PLACEs of calls that wait for a stream of it
  (waiting-count 0 :type index)         ; for how many calls without a stream it was picked last
  (note nil)                            ; what its balancer knows of it
  (failures 0 :type (unsigned-byte 62)) ; attempts that ended badly; not if cancelled
  (cancellations 0 :type (unsigned-byte 62)) ; attempts that were cancelled
  ;; its number and its last events
  (channel-trace (make-channel-trace 0) :type channel-trace :read-only t))

(declaim (sb-ext:freeze-type subchannel))

(defstruct (connect-round (:copier nil))
  "An attempt of a connection set to connect to one of its addresses: the first whose peer's
SETTINGS come (gRFC A61)."
  (connection-set nil :type connection-set :read-only t) ; that connects
  (connector nil :type (or null loop:connector)) ; tries the addresses
  (began-ns 0 :type nanoseconds :read-only t) ; when
  (links '() :type list)                ; candidates: their peers have sent no SETTINGS yet
  (met nil :type boolean))              ; some peer has taken a connection, whatever became of it

(declaim (sb-ext:freeze-type connect-round))

(defmethod print-object ((connect-round connect-round) stream)
  (print-unreadable-object (connect-round stream :type t)
    (format stream "~A, ~D link~:P" (connect-round-connector connect-round)
            (length (connect-round-links connect-round)))))

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
  "As NOTE-CORE-EVENT, of SUBCHANNEL."
  (note-channel-event (subchannel-channel-trace subchannel) (core-now (subchannel-core subchannel))
                      (apply #'format nil text arguments)
                      :severity severity))

(defun note-child-event (subchannel text)
  "Note TEXT, which has happened to SUBCHANNEL, for its channel."
  (let ((core (subchannel-core subchannel)))
    (note-channel-event (core-channel-trace core) (core-now core) text
                        :child (channel-trace-number (subchannel-channel-trace subchannel))
                        :child-name (server-text subchannel))))

(defmethod print-object ((connection-set connection-set) stream)
  (print-unreadable-object (connection-set stream :type t)
    (format stream "~A ~(~A~), of ~D subchannel~:P~@[, ~A~]"
            (addresses-text (connection-set-addresses connection-set))
            (connection-set-link-state connection-set)
            (length (connection-set-owners connection-set))
            (connection-set-failure connection-set))))

(defmethod print-object ((subchannel subchannel) stream)
  (print-unreadable-object (subchannel stream :type t)
    (format stream "~A ~(~A~)" (server-text subchannel) (subchannel-state subchannel))))

(defstruct (client-failure (:include calling:attempt-failure)
                           (:constructor make-client-failure
                               (status message &key how (reach :handler) pushback (trailers #())))
                           (:copier nil))
  "How an attempt of a call failed, with what its user is told if the call ends so."
  (how '() :type list :read-only t)     ; a plist, as END-CALL takes it
  (trailers #() :type simple-vector :read-only t)) ; metadata that came with it

(defstruct (client-retries (:include calling:retries)
                           (:constructor make-client-retries (policy limit &optional running))
                           (:copier nil))
  "What is known of a call that is tried more than once, or may be."
  (timer nil :type (or null timer)))    ; of what is awaited

(declaim (sb-ext:freeze-type client-failure client-retries))

(defstruct (caller-identity (:constructor make-caller-identity (credentials metadata))
                            (:copier nil))
  "Who makes a call, which its attempts are to say; see caller-identity.lisp."
  (credentials nil :read-only t)        ; call credentials, see calling/call-credentials.lisp
  (metadata '() :type list :read-only t) ; what else the attempts send, an alist
  (asked nil :type boolean)             ; what the next attempt sends was asked for already
  (awaited nil :type boolean)           ; they have been asked, and have not answered, or failed
  ;; how the next attempt fails, once it has a stream, since they have failed for it
  (failure nil :type (or null client-failure)))

(declaim (sb-ext:freeze-type caller-identity))

(defmethod print-object ((identity caller-identity) stream)
  (print-unreadable-object (identity stream :type t)
    (princ (caller-identity-credentials identity) stream)))

(defstruct (client-parts (:include wire:wire-parts) (:copier nil))
  "The parts of a call on the client."
  (identity nil :type (or null caller-identity)) ; of who makes it, if that is to be said
  (internal nil :type boolean)          ; the channel's own call, see internal-call.lisp
  (retries nil :type (or null client-retries)) ; once it may have more than one attempt
  (wait nil :type (or null wait-clock)) ; what the call waited for
  ;; its QUEUED-ATTEMPT while it waits for a stream (stream-queue.lisp)
  (queued-attempt nil))

(defstruct (client-outlet (:include wire:wire-outlet) (:copier nil))
  "What goes out on the streams of a call."
  (outbox '() :type list))              ; the loop's: messages that wait for one, newest first

(declaim (sb-ext:freeze-type wire:wire-parts wire:wire-outlet))

(defstruct (client-call (:include wire-call) (:constructor make-client-call) (:copier nil))
  "A call as the client has it. Its stream is that of the attempt that it goes on with, so far; of
several that are under way the oldest."
  (request nil)                         ; the only one, a message or encoded, until the response
                                        ; begins (request.lisp)
  (reply nil)                           ; of a method that answers once, as WIRE-DECODE takes it
  (completions '() :type loop:completions)) ; of a call that is its own future (future.lisp)

(declaim (sb-ext:freeze-type client-call))

(define-hot (unattended-p :inline t) ((call client-call)) boolean
  "True if CALL is its own future: no stub waits for it."
  (wire:marked-p call :unattended))

(defstruct (attempt (:constructor make-attempt (stream)) (:copier nil))
  "One try of a call, on one stream. It is made once for the object that stands for streams, and
used again with that."
  (stream nil :type http2:stream :read-only t) ; whose user it is
  (subchannel nil :type (or null subchannel)) ; that STREAM was opened for, until it is closed
  (call nil :type (or null client-call)) ; that it is part of, until its stream is closed
  (number 0 :type index)                ; how many attempts of CALL came before it
  (began-ns 0 :type nanoseconds)        ; when it did
  (cause nil :type (or null client-failure)) ; once it has failed, and CALL goes on without it
  (view nil :type (or null calling:attempt))) ; what interceptors know of it, if there are some

(declaim (sb-ext:freeze-type attempt))

(defmethod print-object ((attempt attempt) stream)
  (print-unreadable-object (attempt stream :type t)
    (format stream "~D~@[ of ~A~] on ~A" (1+ (attempt-number attempt))
            (and (attempt-call attempt) (rpc:call-path (attempt-call attempt)))
            (attempt-stream attempt))))

(rpc:define-own-part parts client client-call "The parts")
(rpc:define-own-part outlet client client-call "What goes out")

(define-hot (call-replay :inline t) ((call client-call)) (or null replay)
  "What is kept of what CALL has sent, or nil."
  (let ((parts (call-client-parts call)))
    (and parts (client-parts-replay parts))))

(define-hot (call-retries :inline t) ((call client-call)) (or null client-retries)
  "What is known of the attempts of CALL; nil while it has but one, and no hedging policy."
  (let ((parts (call-client-parts call)))
    (and parts (client-parts-retries parts))))

(define-hot (encoded-p :inline t) (reply) boolean
  "True if REPLY, of a call or its future, is a message that WIRE-DECODE has yet to decode."
  (typep reply '(or wire:parcel wire:packed)))

(define-hot (stream-link :inline t) ((stream http2:stream)) link
  "The link that STREAM is on."
  (the link (http2:connection-user (http2:stream-connection stream))))

(define-hot (stream-attempt :inline t) ((stream http2:stream)) attempt
  "The attempt that STREAM, which FREE-STREAM has opened, is for."
  (the attempt (http2:stream-user stream)))

(define-hot (stream-call :inline t) ((stream http2:stream)) (or null client-call)
  "The call that goes on with STREAM, so far, or nil."
  (let* ((attempt (the (or null attempt) (http2:stream-user stream)))
         (call (and attempt (attempt-call attempt))))
    (and call (eq stream (client-call-stream call)) call)))

(define-hot (client-call-core :inline t) ((call client-call)) core
  (the core (client-call-endpoint call)))
