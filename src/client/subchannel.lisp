;;;; Subchannels: a subchannel connects to one server for a balancer. A subchannel has addresses
;;;; that count as one server's, and a connection set for these addresses (connection-set.lisp),
;;;; which has one or more links to one address (WIDEN). The connection set connects when the
;;;; balancer calls CONNECT (connect-round.lisp), and waits between failed attempts; the balancer
;;;; gets the subchannel's states. Everything here runs on the channel's loop.
;;;;
;;;; States, as in gRPC's connectivity document: :idle → :connecting → :ready → :idle when the last
;;;; link ends; :connecting → :transient-failure → (back-off) → :idle; :shutdown for good, when the
;;;; balancer closes the subchannel or the channel is closed.

(in-package #:clgrpc.client)

(defun room-for-subchannel-p (core)
  "True if CORE's channel may have another subchannel; else log a warning, once for an update."
  (let ((most (options-max-subchannels (core-options core))))
    (cond ((< (core-subchannel-count core) most))
          ((not (shiftf (core-crowded core) t))
           (log-event :warning :too-many-subchannels :target (core-name core)
                                                     :max-subchannels most)
           (note-core-event core :warning
                            "the balancers want more servers than ~D (max-subchannels)" most)
           nil))))

(defun open-subchannel (balancer backend)
  "Return a new subchannel of BALANCER's to the server BACKEND. It is idle. Signal an error if the
channel already has as many subchannels as it may have. On the channel's loop."
  (unless (room-for-subchannel-p (balancer-core balancer))
    (error "The channel may have no more subchannels (max-subchannels)."))
  (let* ((core (balancer-core balancer))
         (subchannel (make-subchannel
                      :core core :balancer balancer :key (backend-key backend)
                      :addresses (backend-addresses backend)
                      :attributes (backend-attributes backend)
                      :channel-trace (make-channel-trace (core-now core)))))
    (note-child-event subchannel "subchannel created")
    (join-connection-set subchannel)
    (push subchannel (core-subchannels core))
    (incf (core-subchannel-count core))
    (map-ancestors (lambda (ancestor) (subchannel-opened ancestor subchannel)) balancer)
    subchannel))

;;; Connecting

(defun connect (subchannel)
  "Begin to connect SUBCHANNEL, if it is idle. On the channel's loop."
  (when (eq :idle (subchannel-link-state subchannel))
    (let* ((connection-set (subchannel-connection-set subchannel))
           (state (connection-set-link-state connection-set)))
      (when (eq :idle state) (setf (connection-set-link-state connection-set) :connecting))
      (change-link-states (list subchannel) :connecting)
      (case state
        ;; unless a listener has closed SUBCHANNEL
        (:idle (when (and (eq :connecting (connection-set-link-state connection-set))
                          (null (connection-set-connect-rounds connection-set)))
                 (begin-connect-round connection-set)))
        (:connecting (enter-stage (subchannel-core subchannel) :connect))
        ;; deferred, since a balancer that calls CONNECT does not expect SUBCHANNEL to be ready at
        ;; once
        (t (loop:defer (connection-set-loop connection-set) #'catch-up subchannel))))))

(defun catch-up (subchannel)
  "Give SUBCHANNEL the state of its connection set, which other subchannels have asked to connect
before."
  (let ((state (connection-set-link-state (subchannel-connection-set subchannel))))
    (when (and (eq :connecting (subchannel-link-state subchannel))
               (member state '(:ready :transient-failure)))
      (enter-stage (subchannel-core subchannel) (if (eq :ready state) :queue :back-off))
      (change-link-states (list subchannel) state))))

(defun most-links (subchannel)
  "The maximum number of links of SUBCHANNEL (gRFC A105)."
  (let* ((options (core-options (subchannel-core subchannel)))
         (config (core-config (subchannel-core subchannel)))
         (wanted (and config (config:service-config-max-connections config))))
    (max (options-connections-per-subchannel options)
         (min (or wanted 1) (options-max-connections-per-subchannel options)))))

(defun ask-for-link (subchannel)
  "Begin another link of SUBCHANNEL, whose links have no stream for a call, unless SUBCHANNEL
already has all links that it may have, a link is under way, or the last attempt to connect failed a
short while ago. Return true if a link is under way now."
  (let* ((connection-set (subchannel-connection-set subchannel))
         (count (length (connection-set-links connection-set))))
    (when (and (< count (most-links subchannel))
               (null (back-off-timer (connection-set-back-off connection-set))))
      (widen connection-set (1+ count)))
    (and (connection-set-connect-rounds connection-set) t)))

(defun quiet-p (link since-ns)
  "True if LINK has no calls and its peer has sent nothing since SINCE-NS."
  (and (zerop (client-link-calls link))
       (< (http2:connection-last-receive-ns (client-link-http2 link)) since-ns)))

(defun leave-spare-links (connection-set since-ns)
  "Leave links of CONNECTION-SET that have been quiet since SINCE-NS, the newest first, but keep the
number of links that it always keeps."
  (let ((kept (options-connections-per-subchannel (connection-set-options connection-set))))
    (dolist (link (reverse (nthcdr kept (connection-set-links connection-set))))
      (when (quiet-p link since-ns)
        (setf (client-link-draining link) t)
        (drain-link connection-set link "no calls for a while")))))

(defun addresses-beyond (addresses others)
  (let ((table (make-hash-table :test #'equalp :size (max 1 (length others)))))
    (dolist (address others) (setf (gethash address table) t))
    (remove-if (lambda (address) (gethash address table)) addresses)))

(defun change-addresses (subchannel addresses)
  "Change SUBCHANNEL's addresses to ADDRESSES. Connections to addresses that stay are kept. If
SUBCHANNEL's connection is to none of the new addresses, or if it has no connection yet and the
addresses differ, an attempt begins at once; a new order applies to the next attempt."
  (unless (equalp addresses (subchannel-addresses subchannel))
    (setf (subchannel-addresses subchannel) addresses)
    (change-connection-set subchannel (subchannel-connection-set subchannel))))

(defun follow-addresses (connection-set old)
  "Adapt CONNECTION-SET to its new addresses, which replace the addresses OLD."
  (let* ((addresses (connection-set-addresses connection-set))
         (new (addresses-beyond addresses old)))
    (ecase (connection-set-link-state connection-set)
      ((:idle :shutdown))
      (:ready (leave-addresses connection-set))
      (:connecting
       (when (or new (addresses-beyond old addresses))
         (end-connect-rounds connection-set "the server's addresses have changed")
         (begin-connect-round connection-set)))
      (:transient-failure (when new (end-wait connection-set))))))

(defun change-connection-set (subchannel connection-set)
  "Adapt SUBCHANNEL, which uses CONNECTION-SET, to its new addresses. CONNECTION-SET gets these
addresses as well if no other subchannel uses it and the pool has no connection set for them. If
SUBCHANNEL is connected to one of its new addresses, SUBCHANNEL keeps its connection set until that
connection ends. In all other cases SUBCHANNEL moves to another connection set."
  (let* ((addresses (subchannel-addresses subchannel))
         (found (find-connection-set (connection-set-pool connection-set) addresses)))
    (cond ((eq connection-set found))
          ((and (null (rest (connection-set-owners connection-set))) (null found))
           (forget-connection-set connection-set)
           (let ((old (shiftf (connection-set-addresses connection-set) addresses)))
             (register-connection-set connection-set)
             (follow-addresses connection-set old)))
          ((not (and (eq :ready (connection-set-link-state connection-set))
                     (every (lambda (link) (find-address addresses (client-link-peer link)))
                            (connection-set-links connection-set))))
           (let ((engaged (member subchannel (engaged-owners connection-set))))
             (move-to-connection-set subchannel)
             (when engaged
               (change-link-states (list subchannel) :idle)
               (connect subchannel)))))))

(defun move-to-connection-set (subchannel)
  "Move SUBCHANNEL to the connection set for its addresses; its calls on the old one continue."
  (when (plusp (subchannel-open-calls subchannel))
    (pushnew (subchannel-connection-set subchannel) (subchannel-former-sets subchannel)))
  (leave-connection-set subchannel "the server's addresses have changed")
  (join-connection-set subchannel))

(defun send-misplaceds-away (connection-set)
  "Move the misplaced subchannels of CONNECTION-SET, which has lost its connection, to others."
  (let ((misplaceds (remove-if-not #'misplaced-p (engaged-owners connection-set))))
    (mapc #'move-to-connection-set
          (remove-if-not #'misplaced-p (connection-set-owners connection-set)))
    (change-link-states misplaceds :idle)))

(defun leave-addresses (connection-set)
  "Stop using those links of CONNECTION-SET, which is ready, whose addresses no longer belong to
CONNECTION-SET."
  (dolist (link (connection-set-links connection-set))
    (unless (find-address (connection-set-addresses connection-set) (client-link-peer link))
      (setf (client-link-draining link) t
            (connection-set-useless connection-set) 0) ; not the fault of the server
      (drain-link connection-set link "the server's addresses have changed")))
  (mapc #'connect (connection-set-owners connection-set)))

;;; Streams

(defun next-stream (link)
  "A new stream of LINK, or nil if no stream is free now. If LINK has used up its identifiers, mark
it as draining."
  (let ((http2 (client-link-http2 link)))
    (cond ((client-link-broken link) nil) ; the link is about to end
          ((let ((stream (http2:open-stream http2)))
             (when stream
               (setf (client-link-stream-ns link) (loop:event-loop-now (client-link-loop link))))
             stream))
          (t (when (and (http2:connection-ready-p http2)
                        (< (http2:connection-stream-count http2)
                           (http2:connection-peer-max-streams http2)))
               (setf (client-link-draining link) t))
             nil))))

(define-hot free-stream ((subchannel subchannel)) (values (or null http2:stream) (or null link))
  "Two values: a new stream of the first link of SUBCHANNEL with a free stream, and that link; or
nil."
  (dolist (link (connection-set-links (the connection-set (subchannel-connection-set subchannel)))
                (values nil nil))
    (when-let ((stream (next-stream link)))
      (note-stream-opened subchannel stream)
      (return (values stream (the link link))))))

(defun subchannel-calls (subchannel)
  "How many attempts of users' calls are under way for which SUBCHANNEL was picked. On the channel's
loop."
  (- (subchannel-open-calls subchannel)
     (count-if (lambda (call) (and (client-call-stream call) (null (call-status call))))
               (subchannel-internal-calls subchannel))))

(defun drain-full-links (connection-set)
  "Drain the links of CONNECTION-SET that have used up their streams' identifiers."
  (dolist (link (connection-set-links connection-set))
    (when (client-link-draining link) (drain-link connection-set link))))

;;; Links that go

(defun drain-link (connection-set link &optional (text "the server is going away"))
  "Begin no more calls on LINK, which will be closed, by its peer or by us, because of TEXT."
  (trace-event :subchannel :connection-left :target (core-name (connection-set-core connection-set))
                                            :peer (client-link-peer link) :reason text)
  (let ((connect-round (connect-round-of connection-set link)))
    (cond (connect-round (preface-failed connect-round link text))
          ((member link (connection-set-links connection-set))
           (forget-link connection-set link)
           (push link (connection-set-draining connection-set))
           (dolist (owner (connection-set-owners connection-set))
             (dolist (call (subchannel-internal-calls owner))
               (when (eq link (client-call-link call))
                 (client-abort call :unavailable text :local))))
           (when (linkless-p connection-set) (go-on-without connection-set link text)))))
  (when (zerop (client-link-calls link)) (wire:close-link link text)))

(defun forget-link (connection-set link)
  (setf (connection-set-links connection-set) (remove link (connection-set-links connection-set))))

(defun linkless-p (connection-set)
  "True if CONNECTION-SET has no link for calls and is not shut down."
  (not (or (connection-set-links connection-set)
           (eq :shutdown (connection-set-link-state connection-set)))))

(defun link-streams (link)
  "How many streams LINK has had, not counting those of internal calls."
  (- (http2:counters-streams-opened (http2:connection-counters (client-link-http2 link)))
     (client-link-internal-streams link)))

(defun useful-p (connection-set link)
  "True if LINK, which has worked, was of use: it had a user's call that its peer has seen,
according to the peer's GOAWAY, or it lasted as long as the first wait between attempts."
  (let ((http2 (client-link-http2 link)))
    (or (and (plusp (link-streams link)) (/= 0 (http2:connection-goaway-received http2)))
        (>= (- (core-now (connection-set-core connection-set)) (client-link-born-ns link))
            (seconds-ns
             (options-backoff-initial-seconds (connection-set-options connection-set)))))))

(defun go-on-without (connection-set link text)
  "Change the state of CONNECTION-SET, which has lost its only remaining link, LINK; TEXT says why.
If a server twice in a row ends a connection before any call has begun, the next attempt waits, as
if the server did not listen."
  (cond ((useful-p connection-set link)
         (forget-failures (connection-set-back-off connection-set))
         (setf (connection-set-useless connection-set) 0
               (connection-set-proven connection-set) t))
        (t (setf (connection-set-useless connection-set)
                 (min 2 (1+ (connection-set-useless connection-set))))))
  (ask-resolvers connection-set)
  (send-misplaceds-away connection-set)
  (cond ((eq :shutdown (connection-set-link-state connection-set))) ; all owners were misplaced
        ((< (connection-set-useless connection-set) 2)
         (change-state connection-set
                       ;; another requested link may still be under way, or may have failed
                       (cond ((connection-set-connect-rounds connection-set) :connecting)
                             ((back-off-timer (connection-set-back-off connection-set))
                              :transient-failure)
                             (t :idle))))
        (t (wait-for-better-times connection-set
                                  (format nil "~A accepts connections and ends them: ~A"
                                          (core-name (connection-set-core connection-set)) text)))))

(defun abandon-link (link status text)
  "End every call whose stream is on LINK with STATUS and TEXT, and close LINK in order."
  (http2:map-streams (lambda (stream)
                       (let ((call (stream-call stream)))
                         (when call (client-abort call status text :local))))
                     (client-link-http2 link))
  (wire:close-link link text))

(defun link-due (connection-set link event)
  "Leave or end LINK, of CONNECTION-SET, according to EVENT, a value of WIRE:LINK-EVENT."
  (setf (client-link-draining link) t
        (connection-set-useless connection-set) 0) ; not the fault of the server
  (ecase event
    (:idle (drain-link connection-set link "no calls for a while"))
    (:age (drain-link connection-set link "the connection is old"))
    (:grace (abandon-link link :unavailable "the connection is too old"))))

(defun disconnect-error (connection-set link)
  "The reason, in the terms of gRFC A94, why LINK of CONNECTION-SET has ended; if there are several
reasons, the first that was seen."
  (let ((text (or (client-link-failure link) "")))
    (flet ((mentions (word) (search word text :test #'char-equal)))
      (cond ((client-link-goaway-code link) (format nil "GOAWAY ~A" (client-link-goaway-code link)))
            ((or (client-link-draining link)
                 (eq :shutdown (connection-set-link-state connection-set)))
             "subchannel shutdown")
            ((mentions "reset by") "connection reset")
            ((or (mentions "timed out") (mentions "keepalive")) "connection timed out")
            ((mentions "abort") "connection aborted")
            ((or (mentions "broken pipe") (mentions "unreachable")) "socket error")
            (t "unknown")))))

(defun link-ended (connection-set link)
  "Forget LINK of CONNECTION-SET, which has ended."
  (let ((connect-round (connect-round-of connection-set link))
        (used (member link (connection-set-links connection-set))))
    (trace-event
     :subchannel :connection-ended :target (core-name (connection-set-core connection-set))
                 :peer (client-link-peer link) :reason (client-link-failure link))
    (unless connect-round
      (note-connection-set-event connection-set
                                 :info "the connection with ~A, socket ~D, has ended: ~A"
                                 (client-link-peer link) (client-link-number link)
                                 (client-link-failure link)))
    (when (client-link-settings-received link)
      (rpc:observe subchannel-disconnected (core-observer (connection-set-core connection-set))
                   (client-link-peer link) (disconnect-error connection-set link)))
    (setf (connection-set-draining connection-set)
          (delete link (connection-set-draining connection-set)))
    (forget-link connection-set link)
    (cond (connect-round (preface-failed connect-round link (client-link-failure link)))
          ((and used (linkless-p connection-set))
           (go-on-without connection-set link (client-link-failure link)))
          (used
           (keep-links connection-set)
           (serve-owners connection-set)))))

(defmethod wire:link-event ((connection-set connection-set) link event)
  (if (eq :ended event)
      (link-ended connection-set link)
      (link-due connection-set link event)))

;;; The end

(defun ended-p (subchannel)
  (and (eq :shutdown (subchannel-link-state subchannel))
       (zerop (subchannel-open-calls subchannel))))

(defun use-room (core)
  "Update the balancer of CORE, which has had no room for all subchannels, since it may have room
now."
  (when (and (shiftf (core-crowded core) nil) (resolved-p core)
             (not (eq :shutdown (core-state core))))
    (update-backends (core-balancer core) (resolution-backends (core-resolution core))
                     (core-policy core))))

(defun keep-subchannels (core kept-p)
  "Remove the subchannels of CORE for which the function KEPT-P is false."
  (let ((kept (remove-if-not kept-p (core-subchannels core)))
        (before (core-subchannel-count core)))
    (setf (core-subchannels core) kept
          (core-subchannel-count core) (length kept))
    (when (and (core-crowded core) (< (length kept) before))
      (loop:defer (core-loop core) #'use-room core))))

(defun forget-if-ended (subchannel)
  (when (ended-p subchannel)
    (keep-subchannels (subchannel-core subchannel) (lambda (other) (not (eq other subchannel))))))

(defun look-after-last (subchannel)
  "Clean up after the last call of SUBCHANNEL, which has ended."
  (let ((core (subchannel-core subchannel)))
    (setf (subchannel-former-sets subchannel) '())
    (forget-if-ended subchannel)
    (when (core-dropped core) (funcall (core-dropped core)))))

(defun end-connection-set (connection-set text)
  "Stop all attempts of CONNECTION-SET because of TEXT, since no subchannel uses it."
  (setf (connection-set-link-state connection-set) :shutdown)
  (end-connect-rounds connection-set text)
  (stop-back-off (connection-set-back-off connection-set) (connection-set-loop connection-set)))

(defun drain-links (connection-set text)
  (dolist (link (connection-set-links connection-set))
    (setf (client-link-draining link) t)
    (drain-link connection-set link text)))

(defun leave-connection-set (subchannel text)
  "Let SUBCHANNEL leave its connection set, because of TEXT; its calls there continue."
  (let ((connection-set (subchannel-connection-set subchannel)))
    (when (member subchannel (connection-set-owners connection-set))
      (setf (connection-set-owners connection-set)
            (remove subchannel (connection-set-owners connection-set)))
      (dolist (call (subchannel-internal-calls subchannel))
        (client-abort call :unavailable text :local))
      (unless (connection-set-owners connection-set)
        (forget-connection-set connection-set)
        (end-connection-set connection-set text)
        (drain-links connection-set text)))))

(defun stop-connecting (subchannel text)
  "Change the state of SUBCHANNEL to :shutdown, because of TEXT, without telling its balancer."
  (setf (subchannel-link-state subchannel) :shutdown)
  (release-places subchannel)
  (note-subchannel-event subchannel :info "shut down: ~A" text)
  (setf (subchannel-state subchannel) :shutdown)
  (tell-watchers subchannel))

(defun give-up (subchannel text)
  "Close SUBCHANNEL, because of TEXT; calls under way continue."
  (map-ancestors (lambda (ancestor) (subchannel-closed ancestor subchannel))
                 (subchannel-balancer subchannel))
  (note-child-event subchannel (format nil "subchannel removed: ~A" text))
  (stop-connecting subchannel text)
  (leave-connection-set subchannel text))

(defun close-subchannel (subchannel &optional (text "the balancer has closed the subchannel"))
  "Close SUBCHANNEL because of TEXT: it gets no more calls, and those under way continue. On the
channel's loop."
  (give-up subchannel text)
  (forget-if-ended subchannel))

(defun close-several (balancer subchannels text)
  "Close SUBCHANNELS, a list, of BALANCER because of TEXT, all together, since they may be many."
  (let ((core (balancer-core balancer)))
    (dolist (subchannel subchannels) (give-up subchannel text))
    (keep-subchannels core (complement #'ended-p))))

(defun close-subchannels (balancer text)
  (close-several balancer
                 (remove-if-not (lambda (subchannel)
                                  (and (eq balancer (subchannel-balancer subchannel))
                                       (not (eq :shutdown (subchannel-link-state subchannel)))))
                                (core-subchannels (balancer-core balancer)))
                 text))

(defun abandon-calls (subchannel)
  "End every call of SUBCHANNEL, since the channel is closed."
  (multiple-value-bind (status text) (rpc:verdict :channel-closed)
    (map-own-streams (lambda (stream)
                       (let ((call (stream-call stream)))
                         (when call (client-abort call status text :local))))
                     subchannel)))

(defun abandon-subchannel (subchannel)
  "End SUBCHANNEL and every call on it, since the channel is closed."
  (stop-connecting subchannel "the channel is closed")
  (abandon-calls subchannel)
  (leave-connection-set subchannel "the channel is closed")
  (forget-if-ended subchannel))
