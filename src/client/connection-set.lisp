;;;; Connection sets, which hold the connections of subchannels. Each subchannel has a connection
;;;; set of its own, unless its channel shares connections (the option :share-connections). With
;;;; this option the subchannels of all equal channels on one loop with the same addresses share one
;;;; connection set, as in gRPC core's subchannel pool. Channels are alike if they have the same
;;;; credentials, authority, observer and options; their service configs, policies and interceptors
;;;; may differ.
;;;;
;;;; 1. Links, connect rounds and back-off belong to the connection set. Everything else belongs to
;;;;    the subchannel: vetoes, listeners, breakers, internal calls, counts of calls.
;;;; 2. Until CONNECT a subchannel is idle, whatever the state of its connection set. From then on
;;;;    the subchannel's LINK-STATE follows the connection set's, until the connection set is idle;
;;;;    after that CONNECT is needed again.
;;;; 3. An attempt refers to the subchannel that was picked for it. The picked subchannel is
;;;;    informed of the end of the stream, even if it has left the connection set meanwhile.
;;;; 4. A subchannel that is closed leaves its connection set; when the last subchannel has left,
;;;;    the links of the connection set end with their last calls.
;;;; 5. A subchannel whose addresses change keeps its connection set if no other subchannel uses it
;;;;    and the pool has none for the new addresses. Otherwise the subchannel moves to the
;;;;    connection set for its new addresses. But if the subchannel is connected to one of its new
;;;;    addresses, it moves only when that connection has ended; until then it is misplaced.

(in-package #:clgrpc.client)

(defun connection-set-loop (connection-set)
  (core-loop (connection-set-core connection-set)))

(defun connection-set-options (connection-set)
  (core-options (connection-set-core connection-set)))

(defun all-links (connection-set)
  "The links of CONNECTION-SET, including those that get no more calls. On its loop."
  (append (connection-set-links connection-set) (connection-set-draining connection-set)))

;;; Sharing between channels

(defun pool-key (options credentials resolver authority observer)
  "The key by which channels share connections, compared by EQUAL. It has OPTIONS, CREDENTIALS, the
text AUTHORITY, OBSERVER, and RESOLVER's proxy and, for the certificate, host."
  (list* credentials (and credentials (resolver-host resolver)) authority observer
         (and (resolver-proxy resolver) (proxy:proxy-key (resolver-proxy resolver)))
         (mapcar #'rest (option-values options))))

(defun connection-set-key (addresses)
  "The key of the connection set for ADDRESSES, the kernel's."
  (mapcar #'os:address-text addresses))

(defun find-connection-set (pool addresses)
  "The connection set for ADDRESSES in POOL; nil if POOL has none."
  (and pool
       (values (gethash (connection-set-key addresses) (subchannel-pool-connection-sets pool)))))

(defun register-connection-set (connection-set)
  "If CONNECTION-SET may be shared, enter it into its pool under its addresses."
  (when-let ((pool (connection-set-pool connection-set)))
    (setf (gethash (connection-set-key (connection-set-addresses connection-set))
                   (subchannel-pool-connection-sets pool))
          connection-set)))

(defun forget-connection-set (connection-set)
  (when-let ((pool (connection-set-pool connection-set)))
    (remhash (connection-set-key (connection-set-addresses connection-set))
             (subchannel-pool-connection-sets pool))))

(defun join-connection-set (subchannel)
  "Give SUBCHANNEL the connection set for its addresses; create the set if needed."
  (let* ((core (subchannel-core subchannel))
         (addresses (subchannel-addresses subchannel))
         (pool (core-subchannel-pool core))
         (connection-set (or (find-connection-set pool addresses)
                             (make-connection-set :core core :pool pool :addresses addresses))))
    (unless (connection-set-owners connection-set) (register-connection-set connection-set))
    (push subchannel (connection-set-owners connection-set))
    (setf (subchannel-connection-set subchannel) connection-set)))

(defun misplaced-p (subchannel)
  "True if the addresses of SUBCHANNEL differ from those of its connection set."
  (not (equalp (subchannel-addresses subchannel)
               (connection-set-addresses (subchannel-connection-set subchannel)))))

;;; Events for owners

(defun engaged-owners (connection-set)
  "The subchannels that use CONNECTION-SET and have asked it to connect."
  (remove-if (lambda (owner) (member (subchannel-link-state owner) '(:idle :shutdown)))
             (connection-set-owners connection-set)))

(defun change-link-states (subchannels state)
  "Change the link state of all SUBCHANNELS, which belong to one connection set, to STATE. After
that call the watchers of these subchannels, and notify the balancer of each subchannel whose own
state has changed."
  (dolist (subchannel subchannels) (setf (subchannel-link-state subchannel) state))
  (dolist (subchannel subchannels)
    (tell-watchers subchannel)
    (review-state subchannel)))

(defun tell-watchers (subchannel)
  "Call the watchers of SUBCHANNEL after a change of its link state."
  (dolist (watcher (subchannel-watchers subchannel))
    (loop:guarding (:balancer-failed :balancer (subchannel-balancer subchannel))
      (funcall (the function watcher) subchannel))))

(defun change-state (connection-set state)
  "Change the link state of CONNECTION-SET to STATE, and notify its owners."
  (let ((concerned (engaged-owners connection-set)))
    (setf (connection-set-link-state connection-set) state)
    (change-link-states concerned state)))

(defun map-cores (function connection-set)
  "Call FUNCTION with the core of each channel that uses CONNECTION-SET; a channel with several
subchannels there is passed once for each."
  (declare (type function function))
  (dolist (owner (connection-set-owners connection-set))
    (funcall function (subchannel-core owner))))

(defun note-failure (connection-set text)
  "Note TEXT as the last failure of CONNECTION-SET and of the channels that use it."
  (setf (connection-set-failure connection-set) text)
  (map-cores (lambda (core) (setf (core-last-error core) text)) connection-set))

(defun note-connection-set-event (connection-set severity text &rest arguments)
  "As NOTE-SUBCHANNEL-EVENT, for all subchannels that use CONNECTION-SET."
  (dolist (owner (connection-set-owners connection-set))
    (apply #'note-subchannel-event owner severity text arguments)))

(defun enter-stages (connection-set stage)
  "Note that the channels that wait for CONNECTION-SET have entered STAGE, see ENTER-STAGE."
  (dolist (owner (engaged-owners connection-set)) (enter-stage (subchannel-core owner) stage)))

(defun resolving-wanted-for-p (subchannel)
  "True unless a balancer above SUBCHANNEL's own forbids another look-up of the addresses."
  (loop for child = (subchannel-balancer subchannel) then parent
        for parent = (balancer-parent child)
        while (typep parent 'balancer)
        always (resolving-wanted-p parent child)))

(defun ask-resolvers (connection-set)
  "Ask for other addresses, because the server of CONNECTION-SET was lost or cannot be reached."
  (dolist (owner (connection-set-owners connection-set))
    (when (resolving-wanted-for-p owner) (ask-resolver (subchannel-core owner)))))

(defun spare-stream-p (connection-set)
  "True if a link of CONNECTION-SET is likely to have a stream."
  (some (lambda (link)
          (let ((http2 (client-link-http2 link)))
            (< (http2:connection-stream-count http2) (http2:connection-peer-max-streams http2))))
        (connection-set-links connection-set)))

(defun serve-owner (subchannel)
  "Serve calls that wait in SUBCHANNEL's channel, since a stream of SUBCHANNEL may be free."
  (let ((core (subchannel-core subchannel)))
    (when (waiting-p core) (funcall (the function (core-on-stream core)) core subchannel))))

(defun serve-owners (connection-set)
  "Serve calls that wait, since a stream of CONNECTION-SET may be free. The channels that share
CONNECTION-SET take turns at being served first."
  (let ((owners (connection-set-owners connection-set))
        (pool (connection-set-pool connection-set)))
    (cond ((null owners))
          ((null (rest owners)) (serve-owner (first owners)))
          ((plusp (subchannel-pool-waiting-count pool))
           (setf (connection-set-owners connection-set)
                 (append (rest owners) (list (first owners))))
           (loop for owner in owners
                 do (serve-owner owner)
                 while (spare-stream-p connection-set))))))

(defun impatient-calls-p (connection-set)
  "True if calls without wait-for-ready wait for a connection of CONNECTION-SET."
  (some (lambda (owner)
          (notevery #'client-call-wait-for-ready (waiting-calls (subchannel-core owner))))
        (connection-set-owners connection-set)))

;;; The streams of a subchannel

(define-hot note-stream-opened ((subchannel subchannel) (stream http2:stream)) null
  "Note SUBCHANNEL in the attempt of STREAM, which was opened for it."
  (let ((attempt (or (the (or null attempt) (http2:stream-user stream))
                     (setf (http2:stream-user stream) (make-attempt stream)))))
    (setf (attempt-subchannel attempt) subchannel))
  (incf (subchannel-open-calls subchannel))
  (incf (subchannel-picks subchannel))
  nil)

(defun map-own-streams (function subchannel)
  "Call FUNCTION with each stream of a call of SUBCHANNEL, also on connection sets that SUBCHANNEL
has left."
  (declare (type function function))
  (dolist (connection-set (cons (subchannel-connection-set subchannel)
                                (subchannel-former-sets subchannel)))
    (dolist (link (all-links connection-set))
      (http2:map-streams (lambda (stream)
                           (when (eq subchannel (attempt-subchannel (stream-attempt stream)))
                             (funcall function stream)))
                         (client-link-http2 link)))))
