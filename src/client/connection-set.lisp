;;;; Connection sets: what subchannels have their connections of. Each has one, of its own unless
;;;; its channel shares connections (the option :share-connections). Then those of all alike
;;;; channels on one loop that are for the same addresses have the same, as in gRPC core's
;;;; subchannel pool. Channels are alike if they have the same credentials, authority, observer and
;;;; options; their service configs, policies and interceptors may differ.
;;;;
;;;; 1. Links, connect rounds to connect and back-off are the connection set's, all else is the
;;;;    subchannel's: vetoes, listeners, breakers, internal calls, counts of calls.
;;;; 2. A subchannel is idle until it is told to connect, whatever its connection set is. From then
;;;;    on its LINK-STATE follows the connection set's, until that is idle; then it has to ask
;;;;    again.
;;;; 3. An attempt knows the subchannel that was picked for it: the end of its stream is told to
;;;;    that, even if it uses the connection set no more.
;;;; 4. A subchannel that is closed leaves its connection set; when the last has left that, its
;;;;    links end with their last calls.
;;;; 5. A subchannel whose addresses change takes its connection set along if nobody else uses that
;;;;    or has one for them. Else it goes to the one for those; but if it is connected to one of
;;;;    them it is misplaced, and goes when that connection has ended.

(in-package #:clgrpc.client)

(defun connection-set-loop (connection-set)
  (core-loop (connection-set-core connection-set)))

(defun connection-set-options (connection-set)
  (core-options (connection-set-core connection-set)))

(defun all-links (connection-set)
  "The links of CONNECTION-SET, with those that take no more calls. On its loop."
  (append (connection-set-links connection-set) (connection-set-leaving connection-set)))

;;; Which channels share

(defun pool-key (options credentials resolver authority observer)
  "What channels must have EQUAL to share connections: OPTIONS, CREDENTIALS, the host of RESOLVER,
whose certificate they want, and its proxy, AUTHORITY, text, and OBSERVER."
  (list* credentials (and credentials (resolver-host resolver)) authority observer
         (and (resolver-proxy resolver) (proxy:proxy-key (resolver-proxy resolver)))
         (mapcar #'rest (option-values options))))

(defun connection-set-key (addresses)
  "What the connection set for ADDRESSES, the kernel's, is found by."
  (mapcar #'os:address-text addresses))

(defun find-connection-set (pool addresses)
  "The connection set for ADDRESSES of those that POOL's channels share, or nil."
  (and pool
       (values (gethash (connection-set-key addresses) (subchannel-pool-connection-sets pool)))))

(defun register-connection-set (connection-set)
  "CONNECTION-SET, if it may be shared, is found by its addresses from now on."
  (let ((pool (connection-set-pool connection-set)))
    (when pool
      (setf (gethash (connection-set-key (connection-set-addresses connection-set))
                     (subchannel-pool-connection-sets pool))
            connection-set))))

(defun forget-connection-set (connection-set)
  "Nobody finds CONNECTION-SET by its addresses any more."
  (let ((pool (connection-set-pool connection-set)))
    (when pool
      (remhash (connection-set-key (connection-set-addresses connection-set))
               (subchannel-pool-connection-sets pool)))))

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
  "True if the connection set of SUBCHANNEL is for other addresses than its own."
  (not (equalp (subchannel-addresses subchannel)
               (connection-set-addresses (subchannel-connection-set subchannel)))))

;;; What owners are told

(defun engaged-owners (connection-set)
  "The subchannels that use CONNECTION-SET and have asked it to connect."
  (remove-if (lambda (owner) (member (subchannel-link-state owner) '(:idle :shutdown)))
             (connection-set-owners connection-set)))

(defun change-link-states (subchannels state)
  "The links of SUBCHANNELS, all of one connection set, come to STATE. Their watchers hear of that,
then, if their own state is another now, their balancers. What those do comes after all have the new
state."
  (dolist (subchannel subchannels) (setf (subchannel-link-state subchannel) state))
  (dolist (subchannel subchannels)
    (tell-watchers subchannel)
    (review-state subchannel)))

(defun tell-watchers (subchannel)
  "The state of SUBCHANNEL's links is another."
  (dolist (watcher (subchannel-watchers subchannel))
    (loop:guarding (:balancer-failed :balancer (subchannel-balancer subchannel))
      (funcall (the function watcher) subchannel))))

(defun change-state (connection-set state)
  "The links of CONNECTION-SET come to STATE."
  (let ((concerned (engaged-owners connection-set)))
    (setf (connection-set-link-state connection-set) state)
    (change-link-states concerned state)))

(defun map-cores (function connection-set)
  "Call FUNCTION with the core of each channel that uses CONNECTION-SET; once for each of its
subchannels."
  (declare (type function function))
  (dolist (owner (connection-set-owners connection-set))
    (funcall function (subchannel-core owner))))

(defun note-failure (connection-set text)
  (setf (connection-set-failure connection-set) text)
  (map-cores (lambda (core) (setf (core-last-error core) text)) connection-set))

(defun note-connection-set-event (connection-set severity text &rest arguments)
  "As NOTE-SUBCHANNEL-EVENT, of those that use CONNECTION-SET."
  (dolist (owner (connection-set-owners connection-set))
    (apply #'note-subchannel-event owner severity text arguments)))

(defun enter-stages (connection-set stage)
  "The channels that wait for CONNECTION-SET have come to STAGE of getting a connection, see
ENTER-STAGE."
  (dolist (owner (engaged-owners connection-set)) (enter-stage (subchannel-core owner) stage)))

(defun resolving-wanted-for-p (subchannel)
  "True if no balancer above that of SUBCHANNEL minds that addresses are resolved again."
  (loop for child = (subchannel-balancer subchannel) then parent
        for parent = (balancer-parent child)
        while (typep parent 'balancer)
        always (resolving-wanted-p parent child)))

(defun ask-resolvers (connection-set)
  "The server of CONNECTION-SET has gone or cannot be reached: have other addresses asked for."
  (dolist (owner (connection-set-owners connection-set))
    (when (resolving-wanted-for-p owner) (ask-resolver (subchannel-core owner)))))

(defun room-p (subchannel)
  "True if a link of SUBCHANNEL is likely to have a stream."
  (some (lambda (link)
          (let ((http2 (client-link-http2 link)))
            (< (http2:connection-stream-count http2) (http2:connection-peer-max-streams http2))))
        (connection-set-links (subchannel-connection-set subchannel))))

(defun serve-owner (subchannel)
  "A stream of SUBCHANNEL may be free: calls of its channel that wait for one may get it."
  (let ((core (subchannel-core subchannel)))
    (when (waiting-p core) (funcall (the function (core-on-stream core)) core subchannel))))

(defun serve-owners (connection-set)
  "A stream of CONNECTION-SET may be free: calls that wait for one may get it, those of each channel
that shares CONNECTION-SET first at times."
  (let ((owners (connection-set-owners connection-set))
        (pool (connection-set-pool connection-set)))
    (cond ((null owners))
          ((null (rest owners)) (serve-owner (first owners)))
          ((plusp (subchannel-pool-waiting-count pool))
           (setf (connection-set-owners connection-set)
                 (append (rest owners) (list (first owners))))
           (loop for owner in owners
                 do (serve-owner owner)
                 while (room-p owner))))))

(defun impatient-calls-p (connection-set)
  "True if calls wait for CONNECTION-SET to be connected that do not wait for ready."
  (some (lambda (owner)
          (notevery #'client-call-wait-for-ready (waiting-calls (subchannel-core owner))))
        (connection-set-owners connection-set)))

;;; Whose streams are whose

(define-hot note-stream-opened ((subchannel subchannel) (stream http2:stream)) null
  "STREAM was opened for SUBCHANNEL: it has an attempt, which knows that."
  (let ((attempt (or (the (or null attempt) (http2:stream-user stream))
                     (setf (http2:stream-user stream) (make-attempt stream)))))
    (setf (attempt-subchannel attempt) subchannel))
  (incf (subchannel-open-calls subchannel))
  (incf (subchannel-picks subchannel))
  nil)

(defun map-own-streams (function subchannel)
  "Call FUNCTION with each stream that is for a call of SUBCHANNEL, also on connection sets that it
uses no more."
  (declare (type function function))
  (dolist (connection-set (cons (subchannel-connection-set subchannel)
                                (subchannel-former-sets subchannel)))
    (dolist (link (all-links connection-set))
      (http2:map-streams (lambda (stream)
                           (when (eq subchannel (attempt-subchannel (stream-attempt stream)))
                             (funcall function stream)))
                         (client-link-http2 link)))))
