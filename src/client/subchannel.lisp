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
  (subchannel-changed (subchannel-balancer subchannel) subchannel))

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
  "Begin to connect SUBCHANNEL, if it is idle."
  (when (eq :idle (subchannel-link-state subchannel))
    (change-state subchannel :connecting)
    (endeavour subchannel)))

(defun widen (subchannel count)
  "Begin to connect SUBCHANNEL, which is ready, so often that it has COUNT links. A link that does
not come about is not tried for again."
  (when (eq :ready (subchannel-link-state subchannel))
    (loop repeat (- count (+ (length (subchannel-links subchannel))
                             (length (subchannel-greeted-by subchannel))
                             (subchannel-endeavours subchannel)))
          do (endeavour subchannel))))

(defun endeavour (subchannel)
  "Begin an attempt to connect to one of SUBCHANNEL's addresses. If they have been looked up for it,
its time began with that; how long a resolver that pushes has taken is not its business."
  (let* ((core (subchannel-core subchannel))
         (clock (core-clock core))
         (limit-ns (seconds-ns (options-connect-timeout-seconds (core-options core))))
         (spent-ns (if (and (eq :resolve (wire:wait-clock-stage clock))
                            (answers-p (core-resolver core)))
                       (- (core-now core) (wire:wait-clock-since-ns clock))
                       0)))
    ;; each attempt is counted there
    (unless (eq :resolve (wire:wait-clock-stage clock)) (enter-stage core :resolve))
    (enter-stage core :connect)
    (incf (subchannel-endeavours subchannel))
    (loop:connect-addresses
     (core-loop core) (core-name core) (subchannel-addresses subchannel)
     (max 0 (- limit-ns spent-ns))
     (lambda (transport condition)
       (decf (subchannel-endeavours subchannel))
       (if transport
           (connected subchannel transport)
           (connect-failed subchannel condition)))
     :on-progress (lambda (event &rest plist) (connect-progress subchannel event plist)))))

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

(defun connected (subchannel transport)
  (cond ((not (member (subchannel-link-state subchannel) '(:connecting :ready)))
         (loop:close-transport transport))
        ((not (address-p subchannel (loop:transport-peer transport)))
         ;; they have changed since it was chosen
         (loop:close-transport transport)
         (when (eq :connecting (subchannel-link-state subchannel)) (endeavour subchannel)))
        (t (begin-link subchannel transport))))

(defun begin-link (subchannel transport)
  "SUBCHANNEL has TRANSPORT, a connected one. It is ready when the peer's SETTINGS come."
  (let ((core (subchannel-core subchannel)))
    (setf (subchannel-accepted subchannel) :unknown)
    (enter-stage core :handshake)
    (trace-event :subchannel :connected :target (core-name core)
                                        :peer (loop:transport-peer transport))
    (handler-case
        (push (wire:open-link subchannel (core-loop core) (secure-transport core transport) :client
                             (core-sink core) (core-options core) (core-pool core)
                             :ledger (core-ledger core)
                             :keepalive-ns (subchannel-keepalive-ns subchannel))
              (subchannel-greeted-by subchannel))
      (clgrpc-error (error)
        (loop:close-transport transport)
        (connect-failed subchannel error)))))

(defun secure-transport (core transport)
  "TRANSPORT, with TLS if CORE has credentials."
  (let ((credentials (core-credentials core)))
    (if credentials
        (loop:make-tls-transport (core-loop core) transport credentials :client
                                 :server-name (resolver-host (core-resolver core)))
        transport)))

(defun greeted (subchannel link)
  "The peer's SETTINGS have come over LINK; with the first of them we are connected and know how
many streams it allows."
  (when (member link (subchannel-greeted-by subchannel))
    (let ((core (subchannel-core subchannel)))
      (setf (subchannel-greeted-by subchannel) (remove link (subchannel-greeted-by subchannel))
            (subchannel-links subchannel) (append (subchannel-links subchannel) (list link))
            (subchannel-failure subchannel) nil
            (core-trouble core) nil)
      (enter-stage core :queue)
      (trace-event :handshaker :settings-received
                   :role :client :peer (wire:link-peer link)
                   :max-concurrent-streams (http2:connection-peer-max-streams
                                            (wire:link-http2 link)))
      (unless (eq :ready (subchannel-link-state subchannel)) (change-state subchannel :ready)))))

(defun connect-failed (subchannel condition)
  "An attempt has failed: if nothing else may come of those that are under way, SUBCHANNEL waits."
  (when (and (eq :connecting (subchannel-link-state subchannel))
             (zerop (subchannel-endeavours subchannel))
             (null (subchannel-greeted-by subchannel)))
    (wait-for-better-times subchannel (string-right-trim "." (princ-to-string condition)))))

(defun wait-for-better-times (subchannel text)
  "SUBCHANNEL, which has no connection because of TEXT, is to make its next attempt after a while."
  (let ((core (subchannel-core subchannel)))
    (note-failure subchannel text)
    (incf (subchannel-failed-connects subchannel))
    (change-state subchannel :transient-failure)
    (enter-stage core :back-off)
    (let ((seconds (start-back-off (subchannel-back-off subchannel) (core-loop core)
                                   (core-options core)
                                   (lambda () (end-wait subchannel)))))
      (trace-event :subchannel :back-off :target (core-name core) :seconds seconds)
      (log-event :info :connect-failed :target (core-name core) :again-in-seconds seconds
                                       :reason text))))

(defun end-wait (subchannel)
  (when (eq :transient-failure (subchannel-link-state subchannel))
    (stop-back-off (subchannel-back-off subchannel) (subchannel-loop subchannel))
    (change-state subchannel :idle)))

(defun change-addresses (subchannel addresses)
  "SUBCHANNEL's addresses are ADDRESSES from now on. Connections to those that stay are kept."
  (unless (equalp addresses (shiftf (subchannel-addresses subchannel) addresses))
    (dolist (link (subchannel-links subchannel))
      (unless (address-p subchannel (wire:link-peer link))
        (setf (wire:link-draining link) t)
        (leave-link subchannel link "its address is the server's no more")))
    (end-wait subchannel)))

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
  (when (or (member link (subchannel-links subchannel))
            (member link (subchannel-greeted-by subchannel)))
    (forget-link subchannel link)
    (push link (subchannel-leaving subchannel))
    (dolist (call (subchannel-side-calls subchannel))
      (when (eq link (wire-call-link call)) (client-abort call :unavailable text :local)))
    (when (linkless-p subchannel) (go-on-without subchannel link text)))
  (when (zerop (wire:link-calls link)) (wire:close-link link text)))

(defun forget-link (subchannel link)
  (setf (subchannel-links subchannel) (remove link (subchannel-links subchannel))
        (subchannel-greeted-by subchannel) (remove link (subchannel-greeted-by subchannel))))

(defun linkless-p (subchannel)
  "True if SUBCHANNEL, which is in use, has no link for calls, nor one that may become one."
  (not (or (subchannel-links subchannel)
           (subchannel-greeted-by subchannel)
           (eq :shutdown (subchannel-link-state subchannel)))))

(defun link-streams (link)
  "How many streams LINK has had."
  (http2:counters-streams-opened (http2:connection-counters (wire:link-http2 link))))

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
  (if (< (subchannel-useless subchannel) 2)
      (change-state subchannel :idle)
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
        (greeting (member link (subchannel-greeted-by subchannel)))
        (used (member link (subchannel-links subchannel))))
    (trace-event :subchannel :connection-ended :target (core-name core)
                 :peer (wire:link-peer link) :reason (wire:link-failure link))
    (setf (subchannel-leaving subchannel) (delete link (subchannel-leaving subchannel)))
    (forget-link subchannel link)
    (incf (subchannel-former-streams subchannel) (link-streams link))
    (when (linkless-p subchannel)
      (cond (used (go-on-without subchannel link (wire:link-failure link)))
            ((and greeting (eq :connecting (subchannel-link-state subchannel)))
             (greeting-failed subchannel link))))
    (forget-if-ended subchannel)
    (when (core-dropped core) (funcall (core-dropped core)))))

(defun greeting-failed (subchannel link)
  "LINK, which we were connecting to, has ended before the peer's SETTINGS came. If the connection
before it worked, that is what a restart looks like: a server that closes its listener leaves those
to be reset whom the kernel had accepted, while its successor listens. So another attempt is made at
once, before calls fail for it."
  (let ((core (subchannel-core subchannel))
        (failure (wire:link-failure link)))
    (cond ((shiftf (subchannel-proven subchannel) nil)
           (note-failure subchannel failure)
           (endeavour subchannel))
          (t (connect-failed subchannel
                             (format nil "Cannot connect to ~A: ~A~:[ (perhaps it wants TLS)~;~]"
                                     (core-name core) failure
                                     (or (core-credentials core)
                                         ;; what it speaks is known
                                         (search "the peer speaks" failure))))))))

;;; The end

(defun forget-if-ended (subchannel)
  "SUBCHANNEL, if it is in use no more and has no links, is its channel's no more."
  (when (and (eq :shutdown (subchannel-link-state subchannel))
             (null (subchannel-leaving subchannel)))
    (let ((core (subchannel-core subchannel)))
      (setf (core-subchannels core) (remove subchannel (core-subchannels core))))))

(defun stop-connecting (subchannel)
  "SUBCHANNEL is in use no more; its balancer knows."
  (setf (subchannel-link-state subchannel) :shutdown
        (subchannel-state subchannel) :shutdown)
  (dolist (watcher (subchannel-watchers subchannel))
    (funcall (the function watcher) subchannel))
  (stop-back-off (subchannel-back-off subchannel) (subchannel-loop subchannel)))

(defun close-subchannel (subchannel text)
  "The balancer gives SUBCHANNEL up because of TEXT. The calls that it has go on."
  (map-ancestors (lambda (ancestor) (subchannel-closed ancestor subchannel))
                 (subchannel-balancer subchannel))
  (stop-connecting subchannel)
  (dolist (link (append (subchannel-links subchannel) (subchannel-greeted-by subchannel)))
    (setf (wire:link-draining link) t)
    (leave-link subchannel link text))
  (forget-if-ended subchannel))

(defun close-subchannels (balancer text)
  "Give up all subchannels of BALANCER because of TEXT."
  (dolist (subchannel (core-subchannels (balancer-core balancer)))
    (when (and (eq balancer (subchannel-balancer subchannel))
               (not (eq :shutdown (subchannel-link-state subchannel))))
      (close-subchannel subchannel text))))

(defun abandon-subchannel (subchannel)
  "End SUBCHANNEL and every call on it: the channel is closed."
  (stop-connecting subchannel)
  (dolist (link (append (shiftf (subchannel-links subchannel) '())
                        (shiftf (subchannel-greeted-by subchannel) '())
                        (shiftf (subchannel-leaving subchannel) '())))
    (multiple-value-call #'wire:abandon-link link (rpc:verdict :channel-closed)))
  (forget-if-ended subchannel))
