;;;; Connection sets: what subchannels have their connections of. A subchannel is a connection set
;;;; of its own, unless its channel shares connections (the option :share-connections). Then it has
;;;; one that is shared: those of all alike channels on one loop that are for the same addresses
;;;; have the same, as in gRPC core's subchannel pool. Channels are alike if they have the same
;;;; credentials, authority, observer and options; their service configs, policies and interceptors
;;;; may differ.
;;;;
;;;; 1. Links, connect rounds to connect and back-off are the connection set's, all else is the
;;;;    subchannel's: vetoes, listeners, breakers, internal calls, counts of calls.
;;;; 2. A subchannel is idle until it is told to connect, whatever its connection set is. From then
;;;;    on its LINK-STATE follows the connection set's, until that is idle; then it has to ask
;;;;    again.
;;;; 3. SUBCHANNEL-POOL-USERS says whose a stream on a shared connection set is: its end is told to
;;;;    the subchannel that was picked for it, even if that uses the connection set no more.
;;;; 4. A subchannel that is closed leaves its connection set; when the last has left that, its
;;;;    links end with their last calls.
;;;; 5. A subchannel whose addresses change goes to the connection set for those. If its connection
;;;;    set is connected to one of them it is misplaced, and goes when that connection has ended.

(in-package #:clgrpc.client)

(defun connection-set-loop (connection-set)
  (core-loop (connection-set-core connection-set)))

(defun connection-set-options (connection-set)
  (core-options (connection-set-core connection-set)))

;;; Which channels share

(defun pool-key (options credentials host authority observer)
  "What channels must have EQUAL to share connections: OPTIONS, CREDENTIALS, HOST, whose certificate
they want, AUTHORITY, text, and OBSERVER."
  (list* credentials (and credentials host) authority observer
         (mapcar #'rest (option-values options))))

(defun connection-set-key (addresses)
  "What the connection set for ADDRESSES, the kernel's, is found by."
  (mapcar #'os:address-text addresses))

(defun find-shared-connection-set (core addresses)
  "The connection set for ADDRESSES that channels share which are like CORE's, or nil."
  (values (gethash (connection-set-key addresses)
                   (subchannel-pool-connection-sets (core-subchannel-pool core)))))

(defun register-connection-set (connection-set)
  (setf (gethash (connection-set-key (connection-set-addresses connection-set))
                 (subchannel-pool-connection-sets
                  (core-subchannel-pool (connection-set-core connection-set))))
        connection-set))

(defun forget-connection-set (connection-set)
  "Nobody finds CONNECTION-SET, a shared one, by its addresses any more."
  (remhash (connection-set-key (connection-set-addresses connection-set))
           (subchannel-pool-connection-sets
            (core-subchannel-pool (connection-set-core connection-set)))))

(defun join-connection-set (subchannel)
  "Have SUBCHANNEL, whose channel shares, use the connection set for its addresses, made now if
there is none."
  (let* ((core (subchannel-core subchannel))
         (addresses (subchannel-addresses subchannel))
         (connection-set (or (find-shared-connection-set core addresses)
                             (register-connection-set (make-shared-connection-set
                                                       :core core :addresses addresses)))))
    (push subchannel (shared-connection-set-owners connection-set))
    (setf (subchannel-shared subchannel) connection-set)))

(defun misplaced-p (subchannel)
  "True if the connection set of SUBCHANNEL is for other addresses than its own."
  (not (equalp (subchannel-addresses subchannel)
               (connection-set-addresses (connection-set-of subchannel)))))

;;; What owners are told

(defun engaged-owners (connection-set)
  "The subchannels that use CONNECTION-SET and have asked it to connect."
  (remove-if (lambda (owner) (member (subchannel-link-state owner) '(:idle :shutdown)))
             (owners connection-set)))

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
  (let ((concerned (if (subchannel-p connection-set) (list connection-set)
                       (engaged-owners connection-set))))
    (setf (connection-set-link-state connection-set) state)
    (change-link-states concerned state)))

(defun map-cores (function connection-set)
  "Call FUNCTION with the core of each channel that uses CONNECTION-SET; once for each of its
subchannels."
  (declare (type function function))
  (dolist (owner (owners connection-set)) (funcall function (subchannel-core owner))))

(defun note-failure (connection-set text)
  (setf (connection-set-failure connection-set) text)
  (map-cores (lambda (core) (setf (core-last-error core) text)) connection-set))

(defun note-connection-set-event (connection-set severity text &rest arguments)
  "As NOTE-SUBCHANNEL-EVENT, of those that use CONNECTION-SET."
  (dolist (owner (owners connection-set))
    (apply #'note-subchannel-event owner severity text arguments)))

(defun enter-stages (connection-set stage)
  "The channels that wait for CONNECTION-SET have come to STAGE of getting a connection, see
ENTER-STAGE."
  (dolist (owner (engaged-owners connection-set)) (enter-stage (subchannel-core owner) stage)))

(defun resolving-wanted-for-p (subchannel)
  "True if no balancer above that of SUBCHANNEL minds that addresses are resolved anew."
  (loop for child = (subchannel-balancer subchannel) then parent
        for parent = (balancer-parent child)
        while (typep parent 'balancer)
        always (resolving-wanted-p parent child)))

(defun ask-resolvers (connection-set)
  "The server of CONNECTION-SET has gone or cannot be reached: have other addresses asked for."
  (dolist (owner (owners connection-set))
    (when (resolving-wanted-for-p owner) (ask-resolver (subchannel-core owner)))))

(defun room-p (subchannel)
  "True if a link of SUBCHANNEL is likely to have a stream."
  (some (lambda (link)
          (let ((http2 (wire:link-http2 link)))
            (< (http2:connection-stream-count http2) (http2:connection-peer-max-streams http2))))
        (connection-set-links (connection-set-of subchannel))))

(defun serve-owners (connection-set)
  "A stream of CONNECTION-SET may be free: calls that wait for one may get it, those of each channel
that shares CONNECTION-SET first at times."
  (flet ((waits-p (owner) (waiting-p (subchannel-core owner)))
         (serve (owner)
           (let ((core (subchannel-core owner)))
             (funcall (the function (core-on-stream core)) core owner))))
    (cond ((subchannel-p connection-set) (when (waits-p connection-set) (serve connection-set)))
          ((plusp (subchannel-pool-waiting-count
                   (core-subchannel-pool (connection-set-core connection-set))))
           (let ((owners (shared-connection-set-owners connection-set)))
             (setf (shared-connection-set-owners connection-set)
                   (append (rest owners) (list (first owners))))
             (dolist (owner owners)
               (when (waits-p owner)
                 (serve owner)
                 (unless (room-p owner) (return)))))))))

(defun impatient-calls-p (connection-set)
  "True if calls wait for CONNECTION-SET to be connected that do not wait for ready."
  (some (lambda (owner)
          (notevery #'client-call-wait-for-ready (waiting-calls (subchannel-core owner))))
        (owners connection-set)))

;;; Whose streams are whose

(define-hot (users :inline t) ((connection-set connection-set)) hash-table
  "What says which subchannel a stream of CONNECTION-SET, a shared one, is of."
  (subchannel-pool-users (the subchannel-pool
                              (core-subchannel-pool (connection-set-core connection-set)))))

(defun note-user (subchannel stream)
  "STREAM of the connection set that SUBCHANNEL shares is for a call of its channel."
  (setf (gethash stream (users subchannel)) subchannel)
  (incf (subchannel-shared-calls subchannel))
  (incf (subchannel-shared-picks subchannel)))

(define-hot stream-subchannel ((stream http2:stream) (link link)) subchannel
  "The subchannel that was picked for the call on STREAM of LINK."
  (let ((owner (link-owner link)))
    (if (subchannel-p owner)
        owner
        (values (gethash stream (users owner))))))

(defun forget-user (stream link)
  "STREAM of LINK, one of a shared connection set, has ended. Return the subchannel that it was of."
  (let* ((users (users (link-owner link)))
         (subchannel (gethash stream users)))
    (remhash stream users)
    (decf (subchannel-shared-calls subchannel))
    subchannel))

(defun map-own-streams (function subchannel)
  "Call FUNCTION with each stream of a shared connection set that is for a call of SUBCHANNEL's
channel."
  (declare (type function function))
  (when (plusp (subchannel-shared-calls subchannel))
    (mapc function (loop for stream being the hash-keys of (users subchannel)
                           using (hash-value user)
                         when (eq user subchannel) collect stream))))
