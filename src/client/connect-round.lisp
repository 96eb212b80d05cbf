;;;; Connecting: a connect round tries the addresses of a connection set, several at once if they
;;;; are slow. A byte channel that comes about is a candidate with a link on it, with TLS if the
;;;; channel has credentials; the first link whose peer's SETTINGS come is the connection set's, the
;;;; others are given up. If all fail the connection set waits (back-off), and is idle after that.
;;;; Everything here runs on the channel's loop.

(in-package #:clgrpc.client)

(defun widen (connection-set count)
  "Begin to connect CONNECTION-SET, which is ready, so often that it has COUNT links. A link that
does not come about is not tried for again."
  (when (eq :ready (connection-set-link-state connection-set))
    (loop repeat (- count (+ (length (connection-set-links connection-set))
                             (length (connection-set-connect-rounds connection-set))))
          do (begin-connect-round connection-set))))

(defun keep-links (connection-set)
  "Begin what links CONNECTION-SET, if it is ready, lacks of those it is to keep."
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
        ;; each attempt is counted there
        (unless (eq :resolve (wait-clock-stage (core-clock core))) (enter-stage core :resolve))
        (enter-stage core :connect)))
    (push connect-round (connection-set-connect-rounds connection-set))
    (setf (connect-round-connector connect-round)
          (loop:connect-addresses
           (core-loop core) (core-name core) (connection-set-addresses connection-set)
           (seconds-ns (options-connect-timeout-seconds options))
           (lambda (byte-channel condition)
             (declare (ignore byte-channel)) ; it is a candidate first
             (connect-round-failed connect-round condition))
           :limit-each t
           :delay-ns (seconds-ns (options-connection-attempt-delay-seconds options))
           :on-candidate (lambda (byte-channel) (begin-link connect-round byte-channel))
           :on-progress (lambda (event &rest plist)
                          (connect-progress connection-set event plist))))))

(defun connect-progress (connection-set event plist)
  "What CONNECT-ADDRESSES says on its way: EVENT is :attempt or :attempt-failed."
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
  "The one of ADDRESSES, the kernel's, that PEER, text, is; nil if there is none."
  (find peer addresses :key #'os:address-text :test #'string=))

(defun begin-link (connect-round byte-channel)
  "CONNECT-ROUND has BYTE-CHANNEL, a connected one. It has led to something when the peer's SETTINGS
come."
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
                              :patience-ns (patience-ns core))
              (connect-round-links connect-round))
      (clgrpc-error (error)
        (loop:close-byte-channel byte-channel)
        (loop:candidate-failed (connect-round-connector connect-round)
                               (loop:byte-channel-peer byte-channel)
                               (string-right-trim "." (princ-to-string error)))))))

(defun tunnelled-byte-channel (core byte-channel)
  "BYTE-CHANNEL, one of CORE's, by CORE's proxy if there is one."
  (let ((proxy (resolver-proxy (resolution-resolver (core-resolution core)))))
    (if proxy
        (proxy:make-tunnel-byte-channel byte-channel proxy)
        byte-channel)))

(defun secure-byte-channel (connection-set byte-channel)
  "BYTE-CHANNEL, one of CONNECTION-SET's, with TLS if its channel has credentials."
  (let* ((core (connection-set-core connection-set))
         (credentials (core-credentials core)))
    (if credentials
        (loop:make-tls-byte-channel (core-loop core) byte-channel credentials :client
                                    :server-name (server-name
                                                  connection-set
                                                  (loop:byte-channel-peer byte-channel)))
        byte-channel)))

(defun server-name (connection-set peer)
  "The name that the certificate of CONNECTION-SET's server at PEER, an address as text, must have,
unless credentials say: the host of the channel's own :authority, what a resolver says of this
server as :server-name, or the host of the target."
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
  "The connect round of CONNECTION-SET's that LINK is a candidate of, or nil."
  (find-if (lambda (connect-round) (member link (connect-round-links connect-round)))
           (connection-set-connect-rounds connection-set)))

(defun end-connect-round (connect-round text)
  "CONNECT-ROUND is over: its candidates are given up because of TEXT."
  (let ((connection-set (connect-round-connection-set connect-round)))
    (setf (connection-set-connect-rounds connection-set)
          (remove connect-round (connection-set-connect-rounds connection-set)))
    (loop:end-connecting (connect-round-connector connect-round))
    (dolist (link (shiftf (connect-round-links connect-round) '()))
      (wire:close-link link text))))

(defun end-connect-rounds (connection-set text)
  (dolist (connect-round (connection-set-connect-rounds connection-set))
          (end-connect-round connect-round text)))

(defun greeted (connection-set link)
  "The peer's SETTINGS have come over LINK; with the first of them we are connected and know how
many streams it allows."
  (let ((connect-round (connect-round-of connection-set link)))
    (when connect-round
      (setf (connect-round-links connect-round) (remove link (connect-round-links connect-round)))
      (end-connect-round connect-round "another address was faster")
      (setf (connection-set-links connection-set)
            (append (connection-set-links connection-set) (list link))
            (client-link-greeted link) t)
      (rpc:observe subchannel-connected (core-observer (connection-set-core connection-set))
                   (wire:link-peer link))
      (note-failure connection-set nil)
      (note-connection-set-event connection-set :info "connected to ~A, socket ~D"
                                 (wire:link-peer link)
                                 (client-link-number link))
      (enter-stages connection-set :queue)
      (trace-event :handshaker :settings-received
                   :role :client :peer (wire:link-peer link)
                   :max-concurrent-streams (http2:connection-peer-max-streams
                                            (client-link-http2 link)))
      (if (eq :ready (connection-set-link-state connection-set))
          (forget-failures (connection-set-back-off connection-set))
          (change-state connection-set :ready))
      (keep-links connection-set))))

(defun greeting-failed (connect-round link text)
  "LINK, a candidate of CONNECT-ROUND's, has ended because of TEXT before the peer's SETTINGS came."
  (let ((core (connection-set-core (connect-round-connection-set connect-round))))
    (setf (connect-round-links connect-round) (remove link (connect-round-links connect-round)))
    (loop:candidate-failed (connect-round-connector connect-round) (wire:link-peer link)
                           (format nil "~A~:[ (perhaps it wants TLS)~;~]"
                                   (string-right-trim "." text)
                                   (or (core-credentials core)
                                       ;; what it speaks is known
                                       (search "the peer speaks" text)
                                       (search "the proxy" text))))))

(defun connect-round-failed (connect-round condition)
  "All addresses were tried in vain: if nothing else may come of what is under way, the connection
set waits. If the connection before it worked and a peer has taken one of CONNECT-ROUND's, that is
what a restart looks like: a server that closes its listener leaves those to be reset whom the
kernel had accepted, while its successor listens. So another attempt is made at once if calls would
fail for it; others wait as long as gRPC's document on connection back-off says."
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
  "CONNECTION-SET, which is ready, has got no further link because of TEXT. It begins none for a
while."
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
  "CONNECTION-SET, which has no connection because of TEXT, is to make its next attempt a while
after SINCE-NS, when the last began. Its addresses may have changed."
  (let ((core (connection-set-core connection-set)))
    (note-failure connection-set text)
    (map-cores #'tell-failed-attempt connection-set)
    (incf (connection-set-failed-connects connection-set))
    (ask-resolvers connection-set)
    (change-state connection-set :transient-failure)
    ;; unless a listener has given it up
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
  (when (eq :transient-failure (connection-set-link-state connection-set))
    (stop-back-off (connection-set-back-off connection-set) (connection-set-loop connection-set))
    (change-state connection-set :idle)))
