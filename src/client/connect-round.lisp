;;;; Connecting: a connect round tries the addresses of a connection set, several at once if they
;;;; are slow. A new byte channel is a candidate with a link on it, with TLS if the channel has
;;;; credentials. The first link whose peer's SETTINGS arrive becomes the connection set's; the
;;;; other links are closed. If all candidates fail, the connection set waits (back-off), and is
;;;; idle after that. Everything here runs on the channel's loop.

(in-package #:clgrpc.client)

(defun widen (connection-set count)
  "Begin as many connect rounds of CONNECTION-SET, which is ready, as are needed to reach COUNT
links. A round that fails is not repeated."
  (when (eq :ready (connection-set-link-state connection-set))
    (loop repeat (- count (+ (length (connection-set-links connection-set))
                             (length (connection-set-connect-rounds connection-set))))
          do (begin-connect-round connection-set))))

(defun keep-links (connection-set)
  "If CONNECTION-SET is ready, begin links until it has connections-per-subchannel of them."
  (when (null (back-off-timer (connection-set-back-off connection-set)))
    (widen connection-set
           (options-connections-per-subchannel (connection-set-options connection-set)))))

(defun begin-connect-round (connection-set)
  "Begin an attempt to connect to one of CONNECTION-SET's addresses."
  (let* ((core (connection-set-core connection-set))
         (options (core-options core))
         (connect-round (make-connect-round :connection-set connection-set
                                            :began-ns (core-now core))))
    (dolist (owner (engaged-owners connection-set))
      (let ((core (subchannel-core owner)))
        ;; each attempt is counted in that stage
        (unless (eq :resolve (wait-clock-stage (core-clock core))) (enter-stage core :resolve))
        (enter-stage core :connect)))
    (push connect-round (connection-set-connect-rounds connection-set))
    (setf (connect-round-connector connect-round)
          (loop:connect-addresses
           (core-loop core) (core-name core) (connection-set-addresses connection-set)
           (seconds-ns (options-connect-timeout-seconds options))
           (lambda (byte-channel condition)
             (declare (ignore byte-channel)) ; the byte channel is a candidate first
             (connect-round-failed connect-round condition))
           :limit-each t
           :delay-ns (seconds-ns (options-connection-attempt-delay-seconds options))
           :on-candidate (lambda (byte-channel) (begin-link connect-round byte-channel))
           :on-progress (lambda (event &rest plist)
                          (connect-progress connection-set event plist))))))

(defun connect-progress (connection-set event plist)
  "Report an EVENT of CONNECT-ADDRESSES, :attempt or :attempt-failed."
  (when (tracing-p :subchannel)
    (apply #'log-event :trace event :tracer :subchannel
           :target (core-name (connection-set-core connection-set)) plist))
  (when (eq event :attempt-failed)
    (note-connection-set-event connection-set :warning "an attempt to connect failed: ~A"
                               (getf plist :reason))
    (rpc:observe subchannel-failed (core-observer (connection-set-core connection-set))
                 (getf plist :reason))
    (note-failure connection-set (getf plist :reason))))

(defun find-address (addresses peer)
  "The address among ADDRESSES, the kernel's, whose text is PEER; nil if no address has this text."
  (find peer addresses :key #'os:address-text :test #'string=))

(defun begin-link (connect-round byte-channel)
  "Make a link on BYTE-CHANNEL, a connected one, as a candidate of CONNECT-ROUND. The round succeeds
when a peer's SETTINGS come."
  (let* ((connection-set (connect-round-connection-set connect-round))
         (core (connection-set-core connection-set)))
    (setf (connect-round-met connect-round) t)
    (enter-stages connection-set :handshake)
    (trace-event :subchannel :connected :target (core-name core)
                                        :peer (loop:byte-channel-peer byte-channel))
    (limit-silence core byte-channel)
    (handler-case
        (push (wire:open-link connection-set (core-loop core)
                              (secure-byte-channel connection-set
                                                   (tunnelled-byte-channel core byte-channel))
                              :client
                              (core-sink core) (core-options core) (core-pool core)
                              :make #'make-client-link
                              :account (core-account core)
                              :observer (core-observer core)
                              :keepalive-ns (keepalive-ns core)
                              :keepalive-timeout-ns (keepalive-timeout-ns core))
              (connect-round-links connect-round))
      (clgrpc-error (error)
        (loop:close-byte-channel byte-channel)
        (loop:candidate-failed (connect-round-connector connect-round)
                               (loop:byte-channel-peer byte-channel)
                               (string-right-trim "." (princ-to-string error)))))))

(defun tunnelled-byte-channel (core byte-channel)
  "Return BYTE-CHANNEL, which belongs to CORE; if CORE has a proxy, return a tunnel over
BYTE-CHANNEL."
  (if-let ((proxy (resolver-proxy (resolution-resolver (core-resolution core)))))
    (proxy:make-tunnel-byte-channel byte-channel proxy)
    byte-channel))

(defun secure-byte-channel (connection-set byte-channel)
  "Return BYTE-CHANNEL, which belongs to CONNECTION-SET, with TLS if the channel has credentials."
  (let* ((core (connection-set-core connection-set))
         (credentials (core-credentials core)))
    (if credentials
        (loop:make-tls-byte-channel (core-loop core) byte-channel credentials :client
                                    :server-name (server-name
                                                  connection-set
                                                  (loop:byte-channel-peer byte-channel)))
        byte-channel)))

(defun server-name (connection-set peer)
  "The name that the certificate of CONNECTION-SET's server at PEER, an address as text, must have
if the credentials give no name: the host of the channel's own :authority, else the attribute
:server-name that the resolver gave this server, else the host of the target."
  (let ((address (find-address (connection-set-addresses connection-set) peer))
        (owner (first (connection-set-owners connection-set)))
        (core (connection-set-core connection-set)))
    (or (resolver-own-host (resolution-resolver (core-resolution core)))
        (and owner (getf (if (subchannel-backends owner)
                             (attributes-at address (subchannel-backends owner))
                             (subchannel-attributes owner))
                         :server-name))
        (certificate-name (resolution-resolver (core-resolution core)) address))))

(defun connect-round-of (connection-set link)
  "The connect round of CONNECTION-SET that has LINK as a candidate; nil if no round has it."
  (find-if (lambda (connect-round) (member link (connect-round-links connect-round)))
           (connection-set-connect-rounds connection-set)))

(defun end-connect-round (connect-round text)
  "End CONNECT-ROUND, and close its candidates because of TEXT."
  (let ((connection-set (connect-round-connection-set connect-round)))
    (setf (connection-set-connect-rounds connection-set)
          (remove connect-round (connection-set-connect-rounds connection-set)))
    (loop:end-connecting (connect-round-connector connect-round))
    (dolist (link (shiftf (connect-round-links connect-round) '()))
      (wire:close-link link text))))

(defun end-connect-rounds (connection-set text)
  (dolist (connect-round (connection-set-connect-rounds connection-set))
          (end-connect-round connect-round text)))

(defun handle-settings (connection-set link)
  "Handle SETTINGS of LINK's peer. If LINK is a candidate, its first SETTINGS make CONNECTION-SET
connected, and say how many streams the peer allows."
  (when-let ((connect-round (connect-round-of connection-set link)))
    (setf (connect-round-links connect-round) (remove link (connect-round-links connect-round)))
    (end-connect-round connect-round "another address was faster")
    (setf (connection-set-links connection-set)
          (append (connection-set-links connection-set) (list link))
          (client-link-settings-received link) t)
    (rpc:observe subchannel-connected (core-observer (connection-set-core connection-set))
                 (client-link-peer link))
    (note-failure connection-set nil)
    (note-connection-set-event connection-set :info "connected to ~A, socket ~D"
                               (client-link-peer link)
                               (client-link-number link))
    (enter-stages connection-set :queue)
    (trace-event :handshaker :settings-received
                 :role :client :peer (client-link-peer link)
                 :max-concurrent-streams (http2:connection-peer-max-streams
                                          (client-link-http2 link)))
    (if (eq :ready (connection-set-link-state connection-set))
        (forget-failures (connection-set-back-off connection-set))
        (change-state connection-set :ready))
    (keep-links connection-set)))

(defun preface-failed (connect-round link text)
  "Handle the end of LINK, a candidate of CONNECT-ROUND, which has ended because of TEXT before its
peer's SETTINGS came."
  (let ((core (connection-set-core (connect-round-connection-set connect-round))))
    (setf (connect-round-links connect-round) (remove link (connect-round-links connect-round)))
    (loop:candidate-failed (connect-round-connector connect-round) (client-link-peer link)
                           (format nil "~A~:[ (perhaps it requires TLS)~;~]"
                                   (string-right-trim "." text)
                                   (or (core-credentials core)
                                       ;; the peer's protocol is known
                                       (search "the peer speaks" text)
                                       (search "the proxy" text))))))

(defun connect-round-failed (connect-round condition)
  "Handle the end of CONNECT-ROUND, in which all addresses have failed. If no other round is under
way the connection set waits, by the rules of gRPC's document on connection back-off. The exception
is a server that restarts: when it closes its listener, connections that the kernel had accepted are
reset, while the next process of the server listens. So if the last connection worked and a peer has
accepted a connection of CONNECT-ROUND, another round begins at once if calls would fail otherwise."
  (let* ((connection-set (connect-round-connection-set connect-round))
         (text (string-right-trim "." (princ-to-string condition))))
    (end-connect-round connect-round text)
    (cond ((connection-set-connect-rounds connection-set))
          ((eq :ready (connection-set-link-state connection-set))
           (pause-widening connection-set text))
          ((not (eq :connecting (connection-set-link-state connection-set))))
          ((and (shiftf (connection-set-proven connection-set) nil)
                (connect-round-met connect-round)
                (impatient-calls-p connection-set))
           (note-failure connection-set text)
           (begin-connect-round connection-set))
          (t (wait-for-better-times connection-set text (connect-round-began-ns connect-round))))))

(defun pause-widening (connection-set text)
  "Begin no other link of CONNECTION-SET, which is ready, until a back-off ends, since a further
link has failed with TEXT."
  (incf (connection-set-failed-connects connection-set))
  (let ((core (connection-set-core connection-set)))
    (trace-event :subchannel :no-further-connection :target (core-name core) :reason text)
    (start-back-off (connection-set-back-off connection-set) (core-loop core) (core-options core)
                    (lambda ()
                      (cond ((eq :ready (connection-set-link-state connection-set))
                             (keep-links connection-set)
                             (serve-owners connection-set))
                            (t (end-wait connection-set)))))))

(defun wait-for-better-times (connection-set text
                              &optional (since-ns (core-now (connection-set-core connection-set))))
  "Begin the back-off of CONNECTION-SET, which has no connection because of TEXT, and ask for new
addresses. The wait counts from SINCE-NS, when the last attempt began."
  (let ((core (connection-set-core connection-set)))
    (note-failure connection-set text)
    (map-cores #'tell-failed-attempt connection-set)
    (incf (connection-set-failed-connects connection-set))
    (ask-resolvers connection-set)
    (change-state connection-set :transient-failure)
    ;; unless a listener has closed the subchannel
    (when (eq :transient-failure (connection-set-link-state connection-set))
      (enter-stages connection-set :back-off)
      (let ((seconds (start-back-off (connection-set-back-off connection-set) (core-loop core)
                                     (core-options core)
                                     (lambda () (end-wait connection-set))
                                     :since-ns since-ns)))
        (trace-event :subchannel :back-off :target (core-name core) :seconds seconds)
        (log-event :info :connect-failed :target (core-name core) :again-in-seconds seconds
                                         :reason text)))))

(defun end-wait (connection-set)
  "End the back-off of CONNECTION-SET, if it waits after a failure: it may connect at once."
  (when (eq :transient-failure (connection-set-link-state connection-set))
    (stop-back-off (connection-set-back-off connection-set) (connection-set-loop connection-set))
    (change-state connection-set :idle)))
