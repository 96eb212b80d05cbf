;;;; A subchannel: what connects to one server. It knows addresses that are taken for one server's
;;;; and has a link to one of them, or several links when it is told to (WIDEN). It connects when
;;;; its balancer says so, and waits between failed attempts. It tells its balancer of its states.
;;;; What has the links is its trunk: it, or one that it shares (trunk.lisp). Everything here runs
;;;; on the channel's loop.
;;;;
;;;; States, as in gRPC's connectivity document: :idle → :connecting → :ready → :idle when the last
;;;; link ends; :connecting → :transient-failure → (back-off) → :idle; :shutdown for good, when the
;;;; balancer gives it up or the channel is closed.

(in-package #:clgrpc.client)

(defun room-for-subchannel-p (core)
  "True if CORE's channel may have another subchannel; if not it warns of that, once for an update."
  (let ((most (options-max-subchannels (core-options core))))
    (cond ((< (core-subchannel-count core) most))
          ((not (shiftf (core-crowded core) t))
           (log-event :warning :too-many-subchannels :target (core-name core)
                                                     :max-subchannels most)
           (note-core-event core :warning "there are more servers than ~D (max-subchannels)" most)
           nil))))

(defun open-subchannel (balancer backend)
  "Return a new subchannel of BALANCER's to the server BACKEND. It is idle. Signal an error if the
channel has as many as it may. On the channel's loop."
  (unless (room-for-subchannel-p (balancer-core balancer))
    (error "The channel may have no more subchannels (max-subchannels)."))
  (let* ((core (balancer-core balancer))
         (subchannel (make-subchannel
                      :core core :balancer balancer :key (backend-key backend)
                      :addresses (backend-addresses backend)
                      :attributes (backend-attributes backend)
                      :channel-trace (make-channel-trace (core-now core)))))
    (note-child-event subchannel "subchannel created")
    (when (core-commons core) (join-trunk subchannel))
    (push subchannel (core-subchannels core))
    (incf (core-subchannel-count core))
    (map-ancestors (lambda (ancestor) (subchannel-opened ancestor subchannel)) balancer)
    subchannel))

;;; Connecting

(defun connect (subchannel)
  "Begin to connect SUBCHANNEL, if it is idle. On the channel's loop."
  (when (eq :idle (subchannel-link-state subchannel))
    (let* ((trunk (trunk-of subchannel))
           (state (trunk-link-state trunk)))
      (when (eq :idle state) (setf (trunk-link-state trunk) :connecting))
      (change-link-states (list subchannel) :connecting)
      (case state
        ;; unless whoever has heard of it has given it up
        (:idle (when (and (eq :connecting (trunk-link-state trunk))
                          (null (trunk-endeavours trunk)))
                 (begin-endeavour trunk)))
        (:connecting (enter-stage (subchannel-core subchannel) :connect))
        ;; a balancer that has a subchannel connect does not expect it to be ready at once
        (t (loop:defer (trunk-loop trunk) #'catch-up subchannel))))))

(defun catch-up (subchannel)
  "SUBCHANNEL has asked its trunk to connect, which had others ask before: it hears of its state."
  (let ((state (trunk-link-state (trunk-of subchannel))))
    (when (and (eq :connecting (subchannel-link-state subchannel))
               (member state '(:ready :transient-failure)))
      (enter-stage (subchannel-core subchannel) (if (eq :ready state) :queue :back-off))
      (change-link-states (list subchannel) state))))

(defun widen (trunk count)
  "Begin to connect TRUNK, which is ready, so often that it has COUNT links. A link that does not
come about is not tried for again."
  (when (eq :ready (trunk-link-state trunk))
    (loop repeat (- count (+ (length (trunk-links trunk))
                             (length (trunk-endeavours trunk))))
          do (begin-endeavour trunk))))

(defun most-links (subchannel)
  "How many links SUBCHANNEL may have (gRFC A105)."
  (let* ((options (trunk-options subchannel))
         (config (core-config (subchannel-core subchannel)))
         (wanted (and config (config:service-config-max-connections config))))
    (max (options-connections-per-subchannel options)
         (min (or wanted 1) (options-max-connections-per-subchannel options)))))

(defun ask-for-link (subchannel)
  "A call finds no stream of SUBCHANNEL: begin another link, unless it has as many as it may, one is
under way, or the last attempt has failed a short while ago. Return true if one is under way now."
  (let* ((trunk (trunk-of subchannel))
         (count (length (trunk-links trunk))))
    (when (and (< count (most-links subchannel))
               (null (back-off-timer (trunk-back-off trunk))))
      (widen trunk (1+ count)))
    (and (trunk-endeavours trunk) t)))

(defun keep-links (trunk)
  "Begin what links TRUNK, if it is ready, lacks of those it is to keep."
  (when (null (back-off-timer (trunk-back-off trunk)))
    (widen trunk (options-connections-per-subchannel (trunk-options trunk)))))

(defun quiet-p (link since-ns)
  "True if LINK has no calls and its peer has sent nothing since SINCE-NS."
  (and (zerop (wire:link-calls link))
       (< (http2:connection-last-receive-ns (wire:link-http2 link)) since-ns)))

(defun leave-spare-links (trunk since-ns)
  "Use those links of TRUNK no more, beyond those that it is to keep, that have been quiet since
SINCE-NS, the newest first."
  (let ((kept (options-connections-per-subchannel (trunk-options trunk))))
    (dolist (link (reverse (nthcdr kept (trunk-links trunk))))
      (when (quiet-p link since-ns)
        (setf (wire:link-draining link) t)
        (leave-link trunk link "no calls for a while")))))

(defun begin-endeavour (trunk)
  "Begin an attempt to connect to one of TRUNK's addresses."
  (let* ((core (trunk-core trunk))
         (options (core-options core))
         (endeavour (make-endeavour :trunk trunk :began-ns (core-now core))))
    (dolist (owner (engaged-owners trunk))
      (let ((core (subchannel-core owner)))
        ;; each attempt is counted there
        (unless (eq :resolve (wait-clock-stage (core-clock core))) (enter-stage core :resolve))
        (enter-stage core :connect)))
    (push endeavour (trunk-endeavours trunk))
    (setf (endeavour-connector endeavour)
          (loop:connect-addresses
           (core-loop core) (core-name core) (trunk-addresses trunk)
           (seconds-ns (options-connect-timeout-seconds options))
           (lambda (byte-channel condition)
             (declare (ignore byte-channel)) ; it is a candidate first
             (endeavour-failed endeavour condition))
           :limit-each t
           :delay-ns (seconds-ns (options-connection-attempt-delay-seconds options))
           :on-candidate (lambda (byte-channel) (begin-link endeavour byte-channel))
           :on-progress (lambda (event &rest plist)
                          (connect-progress trunk event plist))))))

(defun connect-progress (trunk event plist)
  "What CONNECT-ADDRESSES says on its way: EVENT is :attempt or :attempt-failed."
  (when (tracing-p :subchannel)
    (apply #'log-event :trace event :tracer :subchannel
           :target (core-name (trunk-core trunk)) plist))
  (when (eq event :attempt-failed)
    (note-trunk-event trunk :warning "an attempt to connect failed: ~A" (getf plist :reason))
    (rpc:observe subchannel-failed (core-observer (trunk-core trunk)) (getf plist :reason))
    (note-failure trunk (getf plist :reason))))

(defun find-address (trunk peer)
  "That of TRUNK's addresses which PEER, text, is; nil if none is."
  (find peer (trunk-addresses trunk) :key #'os:address-text :test #'string=))

(defun keepalive-ns (core)
  "After how long a silence new links of CORE's channel ask whether their server is there; 0 is
never."
  (or (core-keepalive-ns core)
      (let ((seconds (options-keepalive-seconds (core-options core))))
        (if (zerop seconds)
            0
            (seconds-ns (max seconds (options-min-keepalive-seconds (core-options core))))))))

(defun limit-silence (core byte-channel)
  "Where links of CORE ask whether their server is there, have BYTE-CHANNEL fail as well if it does
not acknowledge what we send in the time that it has for an answer (gRFC A18)."
  (when (plusp (keepalive-ns core))
    (loop:limit-silence (core-loop core) byte-channel
                        (options-keepalive-timeout-seconds (core-options core)))))

(defun begin-link (endeavour byte-channel)
  "ENDEAVOUR has BYTE-CHANNEL, a connected one. It has led to something when the peer's SETTINGS
come."
  (let* ((trunk (endeavour-trunk endeavour))
         (core (trunk-core trunk)))
    (setf (endeavour-met endeavour) t)
    (enter-stages trunk :handshake)
    (trace-event :subchannel :connected :target (core-name core)
                                        :peer (loop:byte-channel-peer byte-channel))
    (limit-silence core byte-channel)
    (handler-case
        (push (wire:open-link trunk (core-loop core) (secure-byte-channel trunk byte-channel)
                              :client
                              (core-sink core) (core-options core) (core-pool core)
                              :make #'make-client-link
                              :account (core-account core)
                              :keepalive-ns (keepalive-ns core))
              (endeavour-links endeavour))
      (clgrpc-error (error)
        (loop:close-byte-channel byte-channel)
        (loop:candidate-failed (endeavour-connector endeavour) (loop:byte-channel-peer byte-channel)
                               (string-right-trim "." (princ-to-string error)))))))

(defun secure-byte-channel (trunk byte-channel)
  "BYTE-CHANNEL, one of TRUNK's, with TLS if its channel has credentials."
  (let* ((core (trunk-core trunk))
         (credentials (core-credentials core)))
    (if credentials
        (loop:make-tls-byte-channel (core-loop core) byte-channel credentials :client
                                    :server-name (server-name
                                                  trunk (loop:byte-channel-peer byte-channel)))
        byte-channel)))

(defun server-name (trunk peer)
  "The name that the certificate of TRUNK's server at PEER, an address as text, must have, unless
credentials say: the host of the target, or what a resolver says of this server as :server-name."
  (let ((address (find-address trunk peer))
        (owner (first (owners trunk))))
    (or (and owner (getf (if (subchannel-backends owner)
                             (attributes-at address (subchannel-backends owner))
                             (subchannel-attributes owner))
                         :server-name))
        (certificate-name (core-resolver (trunk-core trunk)) address))))

(defun endeavour-of (trunk link)
  "The endeavour of TRUNK's that LINK is a candidate of, or nil."
  (find-if (lambda (endeavour) (member link (endeavour-links endeavour)))
           (trunk-endeavours trunk)))

(defun end-endeavour (endeavour text)
  "ENDEAVOUR is over: its candidates are given up because of TEXT."
  (let ((trunk (endeavour-trunk endeavour)))
    (setf (trunk-endeavours trunk) (remove endeavour (trunk-endeavours trunk)))
    (loop:end-connecting (endeavour-connector endeavour))
    (dolist (link (shiftf (endeavour-links endeavour) '()))
      (wire:close-link link text))))

(defun end-endeavours (trunk text)
  (dolist (endeavour (trunk-endeavours trunk)) (end-endeavour endeavour text)))

(defun greeted (trunk link)
  "The peer's SETTINGS have come over LINK; with the first of them we are connected and know how
many streams it allows."
  (let ((endeavour (endeavour-of trunk link)))
    (when endeavour
      (setf (endeavour-links endeavour) (remove link (endeavour-links endeavour)))
      (end-endeavour endeavour "another address was faster")
      (setf (trunk-links trunk) (append (trunk-links trunk) (list link))
            (client-link-greeted link) t)
      (rpc:observe subchannel-connected (core-observer (trunk-core trunk)) (wire:link-peer link))
      (note-failure trunk nil)
      (note-trunk-event trunk :info "connected to ~A, socket ~D" (wire:link-peer link)
                        (wire:link-number link))
      (enter-stages trunk :queue)
      (trace-event :handshaker :settings-received
                   :role :client :peer (wire:link-peer link)
                   :max-concurrent-streams (http2:connection-peer-max-streams
                                            (wire:link-http2 link)))
      (if (eq :ready (trunk-link-state trunk))
          (forget-failures (trunk-back-off trunk))
          (change-state trunk :ready))
      (keep-links trunk))))

(defun greeting-failed (endeavour link text)
  "LINK, a candidate of ENDEAVOUR's, has ended because of TEXT before the peer's SETTINGS came."
  (let ((core (trunk-core (endeavour-trunk endeavour))))
    (setf (endeavour-links endeavour) (remove link (endeavour-links endeavour)))
    (loop:candidate-failed (endeavour-connector endeavour) (wire:link-peer link)
                           (format nil "~A~:[ (perhaps it wants TLS)~;~]"
                                   (string-right-trim "." text)
                                   (or (core-credentials core)
                                       ;; what it speaks is known
                                       (search "the peer speaks" text))))))

(defun endeavour-failed (endeavour condition)
  "All addresses were tried in vain: if nothing else may come of what is under way, the trunk waits.
If the connection before it worked and a peer has taken one of ENDEAVOUR's, that is what a
restart looks like: a server that closes its listener leaves those to be reset whom the kernel had
accepted, while its successor listens. So another attempt is made at once if calls would fail for
it; others wait as long as gRPC's document on connection back-off says."
  (let* ((trunk (endeavour-trunk endeavour))
         (text (string-right-trim "." (princ-to-string condition))))
    (end-endeavour endeavour text)
    (cond ((trunk-endeavours trunk))
          ((eq :ready (trunk-link-state trunk)) (pause-widening trunk text))
          ((not (eq :connecting (trunk-link-state trunk))))
          ((and (shiftf (trunk-proven trunk) nil)
                (endeavour-met endeavour)
                (impatient-calls-p trunk))
           (note-failure trunk text)
           (begin-endeavour trunk))
          (t (wait-for-better-times trunk text (endeavour-began-ns endeavour))))))

(defun pause-widening (trunk text)
  "TRUNK, which is ready, has got no further link because of TEXT. It begins none for a while."
  (incf (trunk-failed-connects trunk))
  (let ((core (trunk-core trunk)))
    (trace-event :subchannel :no-further-connection :target (core-name core) :reason text)
    (start-back-off (trunk-back-off trunk) (core-loop core) (core-options core)
                    (lambda ()
                      (cond ((eq :ready (trunk-link-state trunk))
                             (keep-links trunk)
                             (serve-owners trunk))
                            (t (end-wait trunk)))))))

(defun wait-for-better-times (trunk text
                              &optional (since-ns (core-now (trunk-core trunk))))
  "TRUNK, which has no connection because of TEXT, is to make its next attempt a while after
SINCE-NS, when the last began. Its addresses may have changed."
  (let ((core (trunk-core trunk)))
    (note-failure trunk text)
    (map-cores #'tell-failed-attempt trunk)
    (incf (trunk-failed-connects trunk))
    (ask-resolvers trunk)
    (change-state trunk :transient-failure)
    ;; unless whoever has heard of that has given it up
    (when (eq :transient-failure (trunk-link-state trunk))
      (enter-stages trunk :back-off)
      (let ((seconds (start-back-off (trunk-back-off trunk) (core-loop core)
                                     (core-options core)
                                     (lambda () (end-wait trunk))
                                     :since-ns since-ns)))
        (trace-event :subchannel :back-off :target (core-name core) :seconds seconds)
        (log-event :info :connect-failed :target (core-name core) :again-in-seconds seconds
                                         :reason text)))))

(defun end-wait (trunk)
  (when (eq :transient-failure (trunk-link-state trunk))
    (stop-back-off (trunk-back-off trunk) (trunk-loop trunk))
    (change-state trunk :idle)))

(defun addresses-beyond (addresses others)
  "Those of ADDRESSES that are not among OTHERS."
  (let ((table (make-hash-table :test #'equalp :size (max 1 (length others)))))
    (dolist (address others) (setf (gethash address table) t))
    (remove-if (lambda (address) (gethash address table)) addresses)))

(defun change-addresses (subchannel addresses)
  "SUBCHANNEL's addresses are ADDRESSES from now on. Connections to those that stay are kept. If
none is left, or none has come about yet and there are other addresses, an attempt begins at once;
another order is for the next one."
  (unless (equalp addresses (subchannel-addresses subchannel))
    (let ((shared (subchannel-shared subchannel)))
      (cond (shared
             (setf (subchannel-addresses subchannel) addresses)
             (change-trunk subchannel shared))
            (t (follow-addresses subchannel
                                 (shiftf (subchannel-addresses subchannel) addresses)))))))

(defun follow-addresses (trunk old)
  "TRUNK's addresses are others than before, when they were OLD."
  (let* ((addresses (trunk-addresses trunk))
         (new (addresses-beyond addresses old)))
    (ecase (trunk-link-state trunk)
      ((:idle :shutdown))
      (:ready (leave-addresses trunk))
      (:connecting
       (when (or new (addresses-beyond old addresses))
         (end-endeavours trunk "its address is the server's no more")
         (begin-endeavour trunk)))
      (:transient-failure (when new (end-wait trunk))))))

(defun change-trunk (subchannel trunk)
  "SUBCHANNEL, which uses TRUNK, a shared one, has got other addresses. TRUNK has them as well if it
is nobody else's. If it is connected to one of them SUBCHANNEL stays, until that is over."
  (let ((addresses (subchannel-addresses subchannel)))
    (cond ((eq trunk (find-shared-trunk (subchannel-core subchannel) addresses)))
          ((and (null (rest (shared-trunk-owners trunk)))
                (null (find-shared-trunk (subchannel-core subchannel) addresses)))
           (forget-trunk trunk)
           (let ((old (shiftf (trunk-addresses trunk) addresses)))
             (register-trunk trunk)
             (follow-addresses trunk old)))
          ((not (and (eq :ready (trunk-link-state trunk))
                     (every (lambda (link) (find-address subchannel (wire:link-peer link)))
                            (trunk-links trunk))))
           (let ((engaged (member subchannel (engaged-owners trunk))))
             (move-to-trunk subchannel)
             (when engaged
               (change-link-states (list subchannel) :idle)
               (connect subchannel)))))))

(defun move-to-trunk (subchannel)
  "SUBCHANNEL has the trunk for its addresses from now on; what it has on the one before goes on."
  (leave-trunk subchannel "its address is the server's no more")
  (join-trunk subchannel))

(defun send-strays-away (trunk)
  "TRUNK has lost its connection: those that used it only for that go to others."
  (unless (subchannel-p trunk)
    (let ((strays (remove-if-not #'stray-p (engaged-owners trunk))))
      (mapc #'move-to-trunk (remove-if-not #'stray-p (owners trunk)))
      (change-link-states strays :idle))))

(defun leave-addresses (trunk)
  "Use the links of TRUNK, which is ready, no more that are to other addresses than its own."
  (dolist (link (trunk-links trunk))
    (unless (find-address trunk (wire:link-peer link))
      (setf (wire:link-draining link) t
            (trunk-useless trunk) 0)    ; the server is not to blame
      (leave-link trunk link "its address is the server's no more")))
  (mapc #'connect (owners trunk)))

;;; Streams

(defun next-stream (link)
  "A new stream of LINK, or nil if it has none now; if it has used up its identifiers, mark it so
that it is left."
  (let ((http2 (wire:link-http2 link)))
    (or (let ((stream (http2:open-stream http2)))
          (when stream
            (setf (wire:link-stream-ns link) (loop:event-loop-now (link-loop link))))
          stream)
        (progn
          (when (and (http2:connection-ready-p http2)
                     (< (http2:connection-stream-count http2)
                        (http2:connection-peer-max-streams http2)))
            (setf (wire:link-draining link) t))
          nil))))

(define-hot free-stream ((subchannel subchannel)) (values (or null http2:stream) (or null link))
  "A new stream of the first link of SUBCHANNEL that has one, and the link; or nil."
  (let ((shared (subchannel-shared subchannel)))
    (dolist (link (trunk-links (or shared subchannel)) (values nil nil))
      (let ((stream (next-stream link)))
        (when stream
          (when shared (note-user subchannel stream))
          (return (values stream (the link link))))))))

(defun subchannel-calls (subchannel)
  "How many calls of its channel's users are under way on the links of SUBCHANNEL."
  (let ((calls (subchannel-shared-calls subchannel)))
    (declare (type fixnum calls))
    (dolist (link (subchannel-links subchannel)) ; its own
      (incf calls (wire:link-calls link)))
    (dolist (call (subchannel-side-calls subchannel) calls)
      (when (and (wire-call-stream call) (null (call-status call))) (decf calls)))))

(defun leave-full-links (trunk)
  "Use those links of TRUNK no more that have used up their streams' identifiers."
  (dolist (link (trunk-links trunk))
    (when (wire:link-draining link) (leave-link trunk link))))

;;; Links that go

(defun leave-link (trunk link &optional (text "the server is going away"))
  "Use LINK, which its peer, or we, are about to close because of TEXT, for no more calls."
  (trace-event :subchannel :connection-left :target (core-name (trunk-core trunk))
                                            :peer (wire:link-peer link) :reason text)
  (let ((endeavour (endeavour-of trunk link)))
    (cond (endeavour (greeting-failed endeavour link text))
          ((member link (trunk-links trunk))
           (forget-link trunk link)
           (push link (trunk-leaving trunk))
           (dolist (owner (owners trunk))
             (dolist (call (subchannel-side-calls owner))
               (when (eq link (wire-call-link call))
                 (client-abort call :unavailable text :local))))
           (when (linkless-p trunk) (go-on-without trunk link text)))))
  (when (zerop (wire:link-calls link)) (wire:close-link link text)))

(defun forget-link (trunk link)
  (setf (trunk-links trunk) (remove link (trunk-links trunk))))

(defun linkless-p (trunk)
  "True if TRUNK, which is in use, has no link for calls."
  (not (or (trunk-links trunk)
           (eq :shutdown (trunk-link-state trunk)))))

(defun link-streams (link)
  "How many streams LINK has had, other than those of side calls."
  (- (http2:counters-streams-opened (http2:connection-counters (wire:link-http2 link)))
     (client-link-side-streams link)))

(defun all-links (trunk)
  "The links of TRUNK, with those that take no more calls. On its loop."
  (append (trunk-links trunk) (trunk-leaving trunk)))

(defun subchannel-picks (subchannel)
  "How many streams the links of SUBCHANNEL have had for its channel."
  (+ (subchannel-shared-picks subchannel)
     (subchannel-former-streams subchannel)
     (reduce #'+ (all-links subchannel) :key #'link-streams)))

(defun useful-p (trunk link)
  "True if LINK, which has worked, had a call of a user's, other than such as the peer's GOAWAY says
it has not seen, or lasted as long as the first wait between attempts."
  (let ((http2 (wire:link-http2 link)))
    (or (and (plusp (link-streams link)) (/= 0 (http2:connection-goaway-received http2)))
        (>= (- (core-now (trunk-core trunk)) (wire:link-born-ns link))
            (seconds-ns (options-backoff-initial-seconds (trunk-options trunk)))))))

(defun go-on-without (trunk link text)
  "TRUNK was connected by LINK, and is not any more because of TEXT. A server that greets and goes,
again and again, before any call has begun is no better than one that does not listen: from the
second time in a row the next attempt waits."
  (cond ((useful-p trunk link)
         (forget-failures (trunk-back-off trunk))
         (setf (trunk-useless trunk) 0
               (trunk-proven trunk) t))
        (t (setf (trunk-useless trunk) (min 2 (1+ (trunk-useless trunk))))))
  (ask-resolvers trunk)
  (send-strays-away trunk)
  (cond ((eq :shutdown (trunk-link-state trunk))) ; all were strays
        ((< (trunk-useless trunk) 2)
         (change-state trunk
                       ;; a further link that was asked for may still come about, or have failed
                       (cond ((trunk-endeavours trunk) :connecting)
                             ((back-off-timer (trunk-back-off trunk)) :transient-failure)
                             (t :idle))))
        (t (wait-for-better-times trunk
                                  (format nil "~A takes connections and ends them: ~A"
                                          (core-name (trunk-core trunk)) text)))))

(defconstant +longest-keepalive-ns+ (* 2 60 60 +ns-per-second+)
  "No server has links wait longer, also those to other servers: it is what servers themselves wait
unless they are told otherwise (gRFC A8).")

(defun ping-less (trunk link)
  "The server of LINK finds that it asks too often whether it is alive: new links of the channels
that use TRUNK wait twice as long (gRFC A8)."
  (flet ((wait-longer (core)
           (setf (core-keepalive-ns core)
                 (max (keepalive-ns core)
                      (min +longest-keepalive-ns+ (* 2 (wire:link-keepalive-ns link)))))))
    (wait-longer (trunk-core trunk))
    (map-cores #'wait-longer trunk)))

(defun abandon-link (link status text)
  "End every call that goes on with a stream of LINK with STATUS and TEXT, and LINK in order."
  (http2:map-streams (lambda (stream)
                       (let ((call (stream-call stream)))
                         (when call (client-abort call status text :local))))
                     (wire:link-http2 link))
  (wire:close-link link text))

(defmethod wire:link-due ((trunk trunk) link event)
  (setf (wire:link-draining link) t
        (trunk-useless trunk) 0)        ; the server is not to blame
  (ecase event
    (:idle (leave-link trunk link "no calls for a while"))
    (:age (leave-link trunk link "the connection is old"))
    (:grace (abandon-link link :unavailable "the connection is too old"))))

(defun disconnect-error (trunk link)
  "Why LINK of TRUNK has ended, as gRFC A94 names it: what was seen of that first."
  (let ((text (or (wire:link-failure link) "")))
    (flet ((mentions (word) (search word text :test #'char-equal)))
      (cond ((client-link-farewell link) (format nil "GOAWAY ~A" (client-link-farewell link)))
            ((or (wire:link-draining link) (eq :shutdown (trunk-link-state trunk)))
             "subchannel shutdown")
            ((mentions "reset by") "connection reset")
            ((or (mentions "timed out") (mentions "keepalive")) "connection timed out")
            ((mentions "abort") "connection aborted")
            ((or (mentions "broken pipe") (mentions "unreachable")) "socket error")
            (t "unknown")))))

(defmethod wire:link-ended ((trunk trunk) link)
  (let ((endeavour (endeavour-of trunk link))
        (used (member link (trunk-links trunk))))
    (trace-event :subchannel :connection-ended :target (core-name (trunk-core trunk))
                 :peer (wire:link-peer link) :reason (wire:link-failure link))
    (unless endeavour
      (note-trunk-event trunk :info "the connection with ~A, socket ~D, has ended: ~A"
                        (wire:link-peer link) (wire:link-number link) (wire:link-failure link)))
    (when (client-link-greeted link)
      (rpc:observe subchannel-disconnected (core-observer (trunk-core trunk))
                   (wire:link-peer link) (disconnect-error trunk link)))
    (setf (trunk-leaving trunk) (delete link (trunk-leaving trunk)))
    (forget-link trunk link)
    (incf (trunk-former-streams trunk) (link-streams link))
    (cond (endeavour (greeting-failed endeavour link (wire:link-failure link)))
          ((and used (linkless-p trunk))
           (go-on-without trunk link (wire:link-failure link)))
          (used
           (keep-links trunk)
           (serve-owners trunk)))
    (mapc #'look-after-end (owners trunk))))

;;; The end

(defun ended-p (subchannel)
  "True if SUBCHANNEL is in use no more and has no links, or calls on shared ones."
  (and (eq :shutdown (subchannel-link-state subchannel))
       (null (subchannel-leaving subchannel))
       (zerop (subchannel-shared-calls subchannel))))

(defun use-room (core)
  "CORE's channel, which has had no room for all subchannels, may have some now."
  (when (and (shiftf (core-crowded core) nil) (core-resolved core)
             (not (eq :shutdown (core-state core))))
    (update-backends (core-balancer core) (core-backends core) (core-policy core))))

(defun keep-subchannels (core kept-p)
  "Of CORE's subchannels those for which the function KEPT-P is false are its no more."
  (let ((kept (remove-if-not kept-p (core-subchannels core)))
        (before (core-subchannel-count core)))
    (setf (core-subchannels core) kept
          (core-subchannel-count core) (length kept))
    (when (and (core-crowded core) (< (length kept) before))
      (loop:defer (core-loop core) #'use-room core))))

(defun forget-if-ended (subchannel)
  "SUBCHANNEL, if it has ended, is its channel's no more."
  (when (ended-p subchannel)
    (keep-subchannels (subchannel-core subchannel) (lambda (other) (not (eq other subchannel))))))

(defun look-after-end (subchannel)
  "A link of SUBCHANNEL, or a call of it on a shared one, has ended: it may have been the last."
  (let ((core (subchannel-core subchannel)))
    (forget-if-ended subchannel)
    (when (core-dropped core) (funcall (core-dropped core)))))

(defun end-trunk (trunk text)
  "TRUNK is used by nobody any more, because of TEXT: nothing more is tried."
  (setf (trunk-link-state trunk) :shutdown)
  (end-endeavours trunk text)
  (stop-back-off (trunk-back-off trunk) (trunk-loop trunk)))

(defun leave-links (trunk text)
  "Use the links of TRUNK no more, because of TEXT."
  (dolist (link (trunk-links trunk))
    (setf (wire:link-draining link) t)
    (leave-link trunk link text)))

(defun leave-trunk (subchannel text)
  "SUBCHANNEL uses the trunk that it shares no more, because of TEXT; its calls there go on."
  (let ((trunk (subchannel-shared subchannel)))
    (when (member subchannel (shared-trunk-owners trunk))
      (setf (shared-trunk-owners trunk) (remove subchannel (shared-trunk-owners trunk)))
      (dolist (call (subchannel-side-calls subchannel))
        (client-abort call :unavailable text :local))
      (unless (shared-trunk-owners trunk)
        (forget-trunk trunk)
        (end-trunk trunk text)
        (leave-links trunk text)))))

(defun stop-connecting (subchannel text)
  "SUBCHANNEL is in use no more, because of TEXT; its balancer knows."
  (end-trunk subchannel text)
  (release-places subchannel)
  (note-subchannel-event subchannel :info "shut down: ~A" text)
  (setf (subchannel-state subchannel) :shutdown)
  (tell-watchers subchannel))

(defun give-up (subchannel text)
  "SUBCHANNEL has no more calls, because of TEXT."
  (map-ancestors (lambda (ancestor) (subchannel-closed ancestor subchannel))
                 (subchannel-balancer subchannel))
  (note-child-event subchannel (format nil "subchannel removed: ~A" text))
  (stop-connecting subchannel text)
  (if (subchannel-shared subchannel)
      (leave-trunk subchannel text)
      (leave-links subchannel text)))

(defun close-subchannel (subchannel &optional (text "its balancer gives it up"))
  "Give SUBCHANNEL up because of TEXT: it has no more calls, those that it has go on. On the
channel's loop."
  (give-up subchannel text)
  (forget-if-ended subchannel))

(defun close-several (balancer subchannels text)
  "Give up SUBCHANNELS of BALANCER, a list, because of TEXT; together, since there may be many."
  (let ((core (balancer-core balancer)))
    (dolist (subchannel subchannels) (give-up subchannel text))
    (keep-subchannels core (complement #'ended-p))))

(defun close-subchannels (balancer text)
  "Give up all subchannels of BALANCER because of TEXT."
  (close-several balancer
                 (remove-if-not (lambda (subchannel)
                                  (and (eq balancer (subchannel-balancer subchannel))
                                       (not (eq :shutdown (subchannel-link-state subchannel)))))
                                (core-subchannels (balancer-core balancer)))
                 text))

(defun abandon-calls (subchannel)
  "End every call of SUBCHANNEL's channel on shared links: the channel is closed."
  (multiple-value-bind (status text) (rpc:verdict :channel-closed)
    (map-own-streams (lambda (stream)
                       (let ((call (stream-call stream)))
                         (when call (client-abort call status text :local))))
                     subchannel)))

(defun abandon-subchannel (subchannel)
  "End SUBCHANNEL and every call on it: the channel is closed."
  (stop-connecting subchannel "the channel is closed")
  (when (subchannel-shared subchannel)
    (abandon-calls subchannel)
    (leave-trunk subchannel "the channel is closed"))
  (dolist (link (append (shiftf (subchannel-links subchannel) '())
                        (shiftf (subchannel-leaving subchannel) '())))
    (multiple-value-call #'abandon-link link (rpc:verdict :channel-closed)))
  (forget-if-ended subchannel))
