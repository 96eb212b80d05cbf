;;;; A subchannel: what connects to one server. It knows addresses that are taken for one server's
;;;; and has a link to one of them, or several links when it is told to (WIDEN). It connects when
;;;; its balancer says so, and waits between failed attempts. It tells its balancer of its states.
;;;; Everything here runs on the channel's loop.
;;;;
;;;; A veto makes a subchannel whose links are ready count as not ready: its server says by its
;;;; health service that it does not serve, or outlier detection has ejected it.
;;;;
;;;; States, as in gRPC's connectivity document: :idle → :connecting → :ready → :idle when the last
;;;; link ends; :connecting → :transient-failure → (back-off) → :idle; :shutdown for good, when the
;;;; balancer gives it up or the channel is closed.

(in-package #:clgrpc.client)

(defun open-subchannel (balancer backend)
  "Return a new subchannel of BALANCER's to the server BACKEND. It is idle. On the channel's loop."
  (let* ((core (balancer-core balancer))
         (subchannel (make-subchannel
                      :core core :balancer balancer :key (backend-key backend)
                      :addresses (backend-addresses backend)
                      :attributes (backend-attributes backend)
                      :keepalive-ns (seconds-ns (options-keepalive-seconds
                                                 (core-options core))))))
    (push subchannel (core-subchannels core))
    (map-ancestors (lambda (ancestor) (subchannel-opened ancestor subchannel)) balancer)
    subchannel))

(defun subchannel-loop (subchannel)
  (core-loop (subchannel-core subchannel)))

(defun subchannel-options (subchannel)
  (core-options (subchannel-core subchannel)))

(defun effective-state (subchannel)
  "The state of SUBCHANNEL as its balancer sees it: that of its links, or while they are ready what
the newest veto makes of it."
  (let ((state (subchannel-link-state subchannel))
        (veto (first (subchannel-vetoes subchannel))))
    (if (and veto (eq :ready state)) (veto-state veto) state)))

(defun come-to-state (subchannel state)
  "SUBCHANNEL comes to STATE, and its balancer hears of it."
  (trace-event :subchannel :subchannel-changed
               :target (core-name (subchannel-core subchannel))
               :addresses (addresses-text subchannel)
               :from (subchannel-state subchannel) :to state)
  (setf (subchannel-state subchannel) state)
  (loop:guarding (:balancer-failed :balancer (subchannel-balancer subchannel))
    (subchannel-changed (subchannel-balancer subchannel) subchannel)))

(defun change-state (subchannel state)
  "The links of SUBCHANNEL come to STATE. Its watchers hear of that, then, if its own state is
another now, its balancer."
  (setf (subchannel-link-state subchannel) state)
  (dolist (watcher (subchannel-watchers subchannel))
    (funcall (the function watcher) subchannel))
  (review-state subchannel))

(defun review-state (subchannel)
  "Tell the balancer of SUBCHANNEL if that has come to another state."
  (let ((state (effective-state subchannel)))
    (unless (eq state (subchannel-state subchannel)) (come-to-state subchannel state))))

(defun impose-veto (subchannel name state text)
  "While the links of SUBCHANNEL are ready, its state is STATE, because of TEXT, until LIFT-VETO of
the same NAME, or another veto. In place of the veto that NAME has already."
  (setf (subchannel-vetoes subchannel)
        (cons (make-veto name state text)
              (remove name (subchannel-vetoes subchannel) :key #'veto-name)))
  (review-state subchannel))

(defun lift-veto (subchannel name)
  "The veto of NAME on SUBCHANNEL, if there is one, is over."
  (setf (subchannel-vetoes subchannel)
        (remove name (subchannel-vetoes subchannel) :key #'veto-name))
  (review-state subchannel))

(defun trouble-text (subchannel)
  "Why SUBCHANNEL, which is in :transient-failure, is not ready."
  (let ((veto (first (subchannel-vetoes subchannel))))
    (cond ((and veto (eq :ready (subchannel-link-state subchannel))) (veto-text veto))
          ((subchannel-failure subchannel))
          (t "no connection"))))

(defun add-listener (subchannel function)
  "Have FUNCTION called at the end of each attempt of a call on SUBCHANNEL, after those that are
called already, with the call, SUBCHANNEL, the attempt's status and its trailers, fields or nil."
  (declare (type function function))
  (let ((before (subchannel-listener subchannel)))
    (setf (subchannel-listener subchannel)
          (if before
              (lambda (call subchannel status trailers)
                (funcall (the function before) call subchannel status trailers)
                (funcall function call subchannel status trailers))
              function))))

(defun note-failure (subchannel text)
  (setf (subchannel-failure subchannel) text
        (core-trouble (subchannel-core subchannel)) text))

;;; Connecting

(defun connect (subchannel)
  "Begin to connect SUBCHANNEL, if it is idle. On the channel's loop."
  (when (eq :idle (subchannel-link-state subchannel))
    (change-state subchannel :connecting)
    (unless (subchannel-endeavours subchannel) (begin-endeavour subchannel))))

(defun widen (subchannel count)
  "Begin to connect SUBCHANNEL, which is ready, so often that it has COUNT links. A link that does
not come about is not tried for again."
  (when (eq :ready (subchannel-link-state subchannel))
    (loop repeat (- count (+ (length (subchannel-links subchannel))
                             (length (subchannel-endeavours subchannel))))
          do (begin-endeavour subchannel))))

(defun most-links (subchannel)
  "How many links SUBCHANNEL may have (gRFC A105)."
  (let* ((options (subchannel-options subchannel))
         (config (core-config (subchannel-core subchannel)))
         (wanted (and config (config:service-config-max-connections config))))
    (max (options-connections-per-subchannel options)
         (min (or wanted 1) (options-max-connections-per-subchannel options)))))

(defun ask-for-link (subchannel)
  "A call finds no stream of SUBCHANNEL: begin another link, unless it has as many as it may, one is
under way, or the last attempt has failed a short while ago. Return true if one is under way now."
  (let ((count (length (subchannel-links subchannel))))
    (when (and (< count (most-links subchannel))
               (null (back-off-timer (subchannel-back-off subchannel))))
      (widen subchannel (1+ count)))
    (and (subchannel-endeavours subchannel) t)))

(defun keep-links (subchannel)
  "Begin what links SUBCHANNEL, if it is ready, lacks of those it is to keep."
  (when (null (back-off-timer (subchannel-back-off subchannel)))
    (widen subchannel (options-connections-per-subchannel (subchannel-options subchannel)))))

(defun quiet-p (link since-ns)
  "True if LINK has no calls and its peer has sent nothing since SINCE-NS."
  (and (zerop (wire:link-calls link))
       (< (http2:connection-last-receive-ns (wire:link-http2 link)) since-ns)))

(defun leave-spare-links (subchannel since-ns)
  "Use those links of SUBCHANNEL no more, beyond those that it is to keep, that have been quiet
since SINCE-NS, the newest first."
  (let ((kept (options-connections-per-subchannel (subchannel-options subchannel))))
    (dolist (link (reverse (nthcdr kept (subchannel-links subchannel))))
      (when (quiet-p link since-ns)
        (setf (wire:link-draining link) t)
        (leave-link subchannel link "no calls for a while")))))

(defun begin-endeavour (subchannel)
  "Begin an attempt to connect to one of SUBCHANNEL's addresses."
  (let* ((core (subchannel-core subchannel))
         (options (core-options core))
         (endeavour (make-endeavour :subchannel subchannel :began-ns (core-now core))))
    ;; each attempt is counted there
    (unless (eq :resolve (wire:wait-clock-stage (core-clock core))) (enter-stage core :resolve))
    (enter-stage core :connect)
    (push endeavour (subchannel-endeavours subchannel))
    (setf (endeavour-connector endeavour)
          (loop:connect-addresses
           (core-loop core) (core-name core) (subchannel-addresses subchannel)
           (seconds-ns (options-connect-timeout-seconds options))
           (lambda (transport condition)
             (declare (ignore transport)) ; it is a candidate first
             (endeavour-failed endeavour condition))
           :delay-ns (seconds-ns (options-connection-attempt-delay-seconds options))
           :on-candidate (lambda (transport) (begin-link endeavour transport))
           :on-progress (lambda (event &rest plist)
                          (connect-progress subchannel event plist))))))

(defun connect-progress (subchannel event plist)
  "What CONNECT-ADDRESSES says on its way: EVENT is :attempt or :attempt-failed."
  (when (tracing-p :subchannel)
    (apply #'log-event :trace event :tracer :subchannel
           :target (core-name (subchannel-core subchannel)) plist))
  (when (eq event :attempt-failed)
    (note-failure subchannel (getf plist :reason))))

(defun address-p (subchannel peer)
  "True if PEER, text, is one of SUBCHANNEL's addresses."
  (find peer (subchannel-addresses subchannel) :key #'os:address-text :test #'string=))

(defun begin-link (endeavour transport)
  "ENDEAVOUR has TRANSPORT, a connected one. It has led to something when the peer's SETTINGS come."
  (let* ((subchannel (endeavour-subchannel endeavour))
         (core (subchannel-core subchannel)))
    (setf (subchannel-accepted subchannel) :unknown
          (endeavour-met endeavour) t)
    (enter-stage core :handshake)
    (trace-event :subchannel :connected :target (core-name core)
                                        :peer (loop:transport-peer transport))
    (handler-case
        (push (wire:open-link subchannel (core-loop core) (secure-transport core transport) :client
                             (core-sink core) (core-options core) (core-pool core)
                             :ledger (core-ledger core)
                             :keepalive-ns (subchannel-keepalive-ns subchannel))
              (endeavour-links endeavour))
      (clgrpc-error (error)
        (loop:close-transport transport)
        (loop:candidate-failed (endeavour-connector endeavour) (loop:transport-peer transport)
                               (string-right-trim "." (princ-to-string error)))))))

(defun secure-transport (core transport)
  "TRANSPORT, with TLS if CORE has credentials."
  (let ((credentials (core-credentials core)))
    (if credentials
        (loop:make-tls-transport (core-loop core) transport credentials :client
                                 :server-name (resolver-host (core-resolver core)))
        transport)))

(defun endeavour-of (subchannel link)
  "The endeavour of SUBCHANNEL's that LINK is a candidate of, or nil."
  (find-if (lambda (endeavour) (member link (endeavour-links endeavour)))
           (subchannel-endeavours subchannel)))

(defun end-endeavour (endeavour text)
  "ENDEAVOUR is over: its candidates are given up because of TEXT."
  (let ((subchannel (endeavour-subchannel endeavour)))
    (setf (subchannel-endeavours subchannel)
          (remove endeavour (subchannel-endeavours subchannel)))
    (loop:end-connecting (endeavour-connector endeavour))
    (dolist (link (shiftf (endeavour-links endeavour) '()))
      (wire:close-link link text))))

(defun end-endeavours (subchannel text)
  (dolist (endeavour (subchannel-endeavours subchannel)) (end-endeavour endeavour text)))

(defun greeted (subchannel link)
  "The peer's SETTINGS have come over LINK; with the first of them we are connected and know how
many streams it allows."
  (let ((endeavour (endeavour-of subchannel link))
        (core (subchannel-core subchannel)))
    (when endeavour
      (setf (endeavour-links endeavour) (remove link (endeavour-links endeavour)))
      (end-endeavour endeavour "another address was faster")
      (setf (subchannel-links subchannel) (append (subchannel-links subchannel) (list link))
            (subchannel-failure subchannel) nil
            (core-trouble core) nil)
      (enter-stage core :queue)
      (trace-event :handshaker :settings-received
                   :role :client :peer (wire:link-peer link)
                   :max-concurrent-streams (http2:connection-peer-max-streams
                                            (wire:link-http2 link)))
      (if (eq :ready (subchannel-link-state subchannel))
          (forget-failures (subchannel-back-off subchannel))
          (change-state subchannel :ready))
      (keep-links subchannel))))

(defun greeting-failed (endeavour link text)
  "LINK, a candidate of ENDEAVOUR's, has ended because of TEXT before the peer's SETTINGS came."
  (let ((core (subchannel-core (endeavour-subchannel endeavour))))
    (setf (endeavour-links endeavour) (remove link (endeavour-links endeavour)))
    (loop:candidate-failed (endeavour-connector endeavour) (wire:link-peer link)
                           (format nil "~A~:[ (perhaps it wants TLS)~;~]"
                                   (string-right-trim "." text)
                                   (or (core-credentials core)
                                       ;; what it speaks is known
                                       (search "the peer speaks" text))))))

(defun impatient-calls-p (core)
  "True if calls wait for CORE to have a connection that do not wait for ready."
  (notevery #'client-call-wait-for-ready (waiting-calls core)))

(defun endeavour-failed (endeavour condition)
  "All addresses were tried in vain: if nothing else may come of what is under way, the subchannel
waits. If the connection before it worked and a peer has taken one of ENDEAVOUR's, that is what a
restart looks like: a server that closes its listener leaves those to be reset whom the kernel had
accepted, while its successor listens. So another attempt is made at once if calls would fail for
it; others wait as long as gRPC's document on connection back-off says."
  (let* ((subchannel (endeavour-subchannel endeavour))
         (text (string-right-trim "." (princ-to-string condition))))
    (end-endeavour endeavour text)
    (cond ((subchannel-endeavours subchannel))
          ((eq :ready (subchannel-link-state subchannel)) (pause-widening subchannel text))
          ((not (eq :connecting (subchannel-link-state subchannel))))
          ((and (shiftf (subchannel-proven subchannel) nil)
                (endeavour-met endeavour)
                (impatient-calls-p (subchannel-core subchannel)))
           (note-failure subchannel text)
           (begin-endeavour subchannel))
          (t (wait-for-better-times subchannel text (endeavour-began-ns endeavour))))))

(defun pause-widening (subchannel text)
  "SUBCHANNEL, which is ready, has got no further link because of TEXT. It begins none for a while."
  (incf (subchannel-failed-connects subchannel))
  (let ((core (subchannel-core subchannel)))
    (trace-event :subchannel :no-further-connection :target (core-name core) :reason text)
    (start-back-off (subchannel-back-off subchannel) (core-loop core) (core-options core)
                    (lambda ()
                      (cond ((eq :ready (subchannel-link-state subchannel))
                             (keep-links subchannel)
                             (serve-waiting core))
                            (t (end-wait subchannel)))))))

(defun wait-for-better-times (subchannel text
                              &optional (since-ns (core-now (subchannel-core subchannel))))
  "SUBCHANNEL, which has no connection because of TEXT, is to make its next attempt a while after
SINCE-NS, when the last began. Its addresses may have changed."
  (let ((core (subchannel-core subchannel)))
    (note-failure subchannel text)
    (incf (subchannel-failed-connects subchannel))
    (ask-resolver core)
    (change-state subchannel :transient-failure)
    (enter-stage core :back-off)
    (let ((seconds (start-back-off (subchannel-back-off subchannel) (core-loop core)
                                   (core-options core)
                                   (lambda () (end-wait subchannel))
                                   :since-ns since-ns)))
      (trace-event :subchannel :back-off :target (core-name core) :seconds seconds)
      (log-event :info :connect-failed :target (core-name core) :again-in-seconds seconds
                                       :reason text))))

(defun end-wait (subchannel)
  (when (eq :transient-failure (subchannel-link-state subchannel))
    (stop-back-off (subchannel-back-off subchannel) (subchannel-loop subchannel))
    (change-state subchannel :idle)))

(defun addresses-beyond (addresses others)
  "Those of ADDRESSES that are not among OTHERS."
  (let ((table (make-hash-table :test #'equalp :size (max 1 (length others)))))
    (dolist (address others) (setf (gethash address table) t))
    (remove-if (lambda (address) (gethash address table)) addresses)))

(defun change-addresses (subchannel addresses)
  "SUBCHANNEL's addresses are ADDRESSES from now on. Connections to those that stay are kept. If
none is left, or none has come about yet and there are other addresses, an attempt begins at once;
another order is for the next one."
  (let ((old (shiftf (subchannel-addresses subchannel) addresses)))
    (unless (equalp old addresses)
      (let ((new (addresses-beyond addresses old)))
        (ecase (subchannel-link-state subchannel)
          ((:idle :shutdown))
          (:ready (leave-addresses subchannel))
          (:connecting
           (when (or new (addresses-beyond old addresses))
             (end-endeavours subchannel "its address is the server's no more")
             (begin-endeavour subchannel)))
          (:transient-failure (when new (end-wait subchannel))))))))

(defun leave-addresses (subchannel)
  "Use the links of SUBCHANNEL, which is ready, no more that are to other addresses than its own."
  (dolist (link (subchannel-links subchannel))
    (unless (address-p subchannel (wire:link-peer link))
      (setf (wire:link-draining link) t
            (subchannel-useless subchannel) 0) ; the server is not to blame
      (leave-link subchannel link "its address is the server's no more")))
  (connect subchannel))

;;; Streams

(defun next-stream (link)
  "A new stream of LINK, or nil if it has none now; if it has used up its identifiers, mark it so
that it is left."
  (let ((http2 (wire:link-http2 link)))
    (or (http2:open-stream http2)
        (progn
          (when (and (http2:connection-ready-p http2)
                     (< (http2:connection-stream-count http2)
                        (http2:connection-peer-max-streams http2)))
            (setf (wire:link-draining link) t))
          nil))))

(define-hot free-stream ((subchannel subchannel)) (values (or null http2:stream) (or null link))
  "A new stream of the first link of SUBCHANNEL that has one, and the link; or nil."
  (dolist (link (subchannel-links subchannel) (values nil nil))
    (let ((stream (next-stream link)))
      (when stream (return (values stream (the link link)))))))

(defun subchannel-calls (subchannel)
  "How many calls of users' are under way on the links of SUBCHANNEL."
  (let ((calls 0))
    (declare (type fixnum calls))
    (dolist (link (subchannel-links subchannel))
      (incf calls (wire:link-calls link)))
    (dolist (call (subchannel-side-calls subchannel) calls)
      (unless (call-status call) (decf calls)))))

(defun room-p (subchannel)
  "True if a link of SUBCHANNEL is likely to have a stream."
  (some (lambda (link)
          (let ((http2 (wire:link-http2 link)))
            (< (http2:connection-stream-count http2) (http2:connection-peer-max-streams http2))))
        (subchannel-links subchannel)))

(defun leave-full-links (subchannel)
  "Use those links of SUBCHANNEL no more that have used up their streams' identifiers."
  (dolist (link (subchannel-links subchannel))
    (when (wire:link-draining link) (leave-link subchannel link))))

;;; Links that go

(defun leave-link (subchannel link &optional (text "the server is going away"))
  "Use LINK, which its peer, or we, are about to close because of TEXT, for no more calls."
  (trace-event :subchannel :connection-left :target (core-name (subchannel-core subchannel))
                                            :peer (wire:link-peer link) :reason text)
  (let ((endeavour (endeavour-of subchannel link)))
    (cond (endeavour (greeting-failed endeavour link text))
          ((member link (subchannel-links subchannel))
           (forget-link subchannel link)
           (push link (subchannel-leaving subchannel))
           (dolist (call (subchannel-side-calls subchannel))
             (when (eq link (wire-call-link call)) (client-abort call :unavailable text :local)))
           (when (linkless-p subchannel) (go-on-without subchannel link text)))))
  (when (zerop (wire:link-calls link)) (wire:close-link link text)))

(defun forget-link (subchannel link)
  (setf (subchannel-links subchannel) (remove link (subchannel-links subchannel))))

(defun linkless-p (subchannel)
  "True if SUBCHANNEL, which is in use, has no link for calls."
  (not (or (subchannel-links subchannel)
           (eq :shutdown (subchannel-link-state subchannel)))))

(defun link-streams (link)
  "How many streams LINK has had."
  (http2:counters-streams-opened (http2:connection-counters (wire:link-http2 link))))

(defun all-links (subchannel)
  (append (subchannel-links subchannel) (subchannel-leaving subchannel)))

(defun subchannel-picks (subchannel)
  "How many streams the links of SUBCHANNEL have had."
  (+ (subchannel-former-streams subchannel)
     (reduce #'+ (all-links subchannel) :key #'link-streams)))

(defun useful-p (subchannel link)
  "True if LINK, which has worked, had a call, other than such as the peer's GOAWAY says it has not
seen, or lasted as long as the first wait between attempts."
  (let ((http2 (wire:link-http2 link)))
    (or (and (plusp (link-streams link)) (/= 0 (http2:connection-goaway-received http2)))
        (>= (- (core-now (subchannel-core subchannel)) (wire:link-born-ns link))
            (seconds-ns (options-backoff-initial-seconds (subchannel-options subchannel)))))))

(defun go-on-without (subchannel link text)
  "SUBCHANNEL was connected by LINK, and is not any more because of TEXT. A server that greets and
goes, again and again, before any call has begun is no better than one that does not listen: from
the second time in a row the next attempt waits."
  (cond ((useful-p subchannel link)
         (forget-failures (subchannel-back-off subchannel))
         (setf (subchannel-useless subchannel) 0
               (subchannel-proven subchannel) t))
        (t (setf (subchannel-useless subchannel) (min 2 (1+ (subchannel-useless subchannel))))))
  (ask-resolver (subchannel-core subchannel))
  (if (< (subchannel-useless subchannel) 2)
      (change-state subchannel
                    ;; a further link that was asked for may still come about, or have failed
                    (cond ((subchannel-endeavours subchannel) :connecting)
                          ((back-off-timer (subchannel-back-off subchannel)) :transient-failure)
                          (t :idle)))
      (wait-for-better-times subchannel
                             (format nil "~A takes connections and ends them: ~A"
                                     (core-name (subchannel-core subchannel)) text))))

(defconstant +longest-keepalive-ns+ (* 1000000000 +ns-per-second+))

(defun ping-less (subchannel)
  "A server finds that SUBCHANNEL's links ask too often whether it is alive (gRFC A8)."
  (setf (subchannel-keepalive-ns subchannel)
        (min +longest-keepalive-ns+ (* 2 (subchannel-keepalive-ns subchannel)))))

(defmethod wire:link-due ((subchannel subchannel) link event)
  (setf (wire:link-draining link) t
        (subchannel-useless subchannel) 0) ; the server is not to blame
  (ecase event
    (:idle (leave-link subchannel link "no calls for a while"))
    (:age (leave-link subchannel link "the connection is old"))
    (:grace (wire:abandon-link link :unavailable "the connection is too old"))))

(defmethod wire:link-ended ((subchannel subchannel) link)
  (let ((core (subchannel-core subchannel))
        (endeavour (endeavour-of subchannel link))
        (used (member link (subchannel-links subchannel))))
    (trace-event :subchannel :connection-ended :target (core-name core)
                 :peer (wire:link-peer link) :reason (wire:link-failure link))
    (setf (subchannel-leaving subchannel) (delete link (subchannel-leaving subchannel)))
    (forget-link subchannel link)
    (incf (subchannel-former-streams subchannel) (link-streams link))
    (cond (endeavour (greeting-failed endeavour link (wire:link-failure link)))
          ((and used (linkless-p subchannel))
           (go-on-without subchannel link (wire:link-failure link)))
          (used
           (keep-links subchannel)
           (serve-waiting core)))
    (forget-if-ended subchannel)
    (when (core-dropped core) (funcall (core-dropped core)))))

;;; The end

(defun ended-p (subchannel)
  "True if SUBCHANNEL is in use no more and has no links."
  (and (eq :shutdown (subchannel-link-state subchannel))
       (null (subchannel-leaving subchannel))))

(defun forget-if-ended (subchannel)
  "SUBCHANNEL, if it has ended, is its channel's no more."
  (when (ended-p subchannel)
    (let ((core (subchannel-core subchannel)))
      (setf (core-subchannels core) (remove subchannel (core-subchannels core))))))

(defun stop-connecting (subchannel text)
  "SUBCHANNEL is in use no more, because of TEXT; its balancer knows."
  (setf (subchannel-link-state subchannel) :shutdown
        (subchannel-state subchannel) :shutdown)
  (end-endeavours subchannel text)
  (dolist (watcher (subchannel-watchers subchannel))
    (funcall (the function watcher) subchannel))
  (stop-back-off (subchannel-back-off subchannel) (subchannel-loop subchannel)))

(defun give-up (subchannel text)
  "SUBCHANNEL has no more calls, because of TEXT."
  (map-ancestors (lambda (ancestor) (subchannel-closed ancestor subchannel))
                 (subchannel-balancer subchannel))
  (stop-connecting subchannel text)
  (dolist (link (subchannel-links subchannel))
    (setf (wire:link-draining link) t)
    (leave-link subchannel link text)))

(defun close-subchannel (subchannel &optional (text "its balancer gives it up"))
  "Give SUBCHANNEL up because of TEXT: it has no more calls, those that it has go on. On the
channel's loop."
  (give-up subchannel text)
  (forget-if-ended subchannel))

(defun close-several (balancer subchannels text)
  "Give up SUBCHANNELS of BALANCER, a list, because of TEXT; together, since there may be many."
  (let ((core (balancer-core balancer)))
    (dolist (subchannel subchannels) (give-up subchannel text))
    (setf (core-subchannels core) (remove-if #'ended-p (core-subchannels core)))))

(defun close-subchannels (balancer text)
  "Give up all subchannels of BALANCER because of TEXT."
  (close-several balancer
                 (remove-if-not (lambda (subchannel)
                                  (and (eq balancer (subchannel-balancer subchannel))
                                       (not (eq :shutdown (subchannel-link-state subchannel)))))
                                (core-subchannels (balancer-core balancer)))
                 text))

(defun abandon-subchannel (subchannel)
  "End SUBCHANNEL and every call on it: the channel is closed."
  (stop-connecting subchannel "the channel is closed")
  (dolist (link (append (shiftf (subchannel-links subchannel) '())
                        (shiftf (subchannel-leaving subchannel) '())))
    (multiple-value-call #'wire:abandon-link link (rpc:verdict :channel-closed)))
  (forget-if-ended subchannel))
