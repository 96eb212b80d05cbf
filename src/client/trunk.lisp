;;;; Trunks: what subchannels have their connections of. A subchannel is a trunk of its own, unless
;;;; its channel shares connections (the option :share-connections). Then it has one that is shared:
;;;; those of all alike channels on one loop that are for the same addresses have the same, as in
;;;; gRPC core's subchannel pool. Channels are alike if they have the same credentials, authority,
;;;; observer and options; their service configs, policies and interceptors may differ.
;;;;
;;;; 1. Links, endeavours to connect and back-off are the trunk's, all else is the subchannel's:
;;;;    vetoes, listeners, breakers, side calls, counts of calls.
;;;; 2. A subchannel is idle until it is told to connect, whatever its trunk is. From then on its
;;;;    LINK-STATE follows the trunk's, until that is idle; then it has to ask again.
;;;; 3. Whom a stream on a shared trunk is of is looked up (COMMONS-USERS): its end is told to
;;;;    the subchannel that was picked for it, even if that uses the trunk no more.
;;;; 4. A subchannel that is closed leaves its trunk; when the last has left that, its links end
;;;;    with their last calls.
;;;; 5. A subchannel whose addresses change goes to the trunk for those. If its trunk is connected
;;;;    to one of them it is a stray, and goes when that connection has ended.

(in-package #:clgrpc.client)

(defun trunk-loop (trunk)
  (core-loop (trunk-core trunk)))

(defun trunk-options (trunk)
  (core-options (trunk-core trunk)))

;;; Which channels share

(defun likeness (options credentials host authority observer)
  "What channels must have EQUAL to share connections: OPTIONS, CREDENTIALS, HOST, whose certificate
they want, AUTHORITY, text, and OBSERVER."
  (list* credentials (and credentials host) authority observer
         (mapcar #'rest (option-values options))))

(defun trunk-key (addresses)
  "What the trunk for ADDRESSES, the kernel's, is found by."
  (mapcar #'os:address-text addresses))

(defun find-shared-trunk (core addresses)
  "The trunk for ADDRESSES that channels share which are like CORE's, or nil."
  (values (gethash (trunk-key addresses) (commons-trunks (core-commons core)))))

(defun register-trunk (trunk)
  (setf (gethash (trunk-key (trunk-addresses trunk))
                 (commons-trunks (core-commons (trunk-core trunk))))
        trunk))

(defun forget-trunk (trunk)
  "Nobody finds TRUNK, a shared one, by its addresses any more."
  (remhash (trunk-key (trunk-addresses trunk))
           (commons-trunks (core-commons (trunk-core trunk)))))

(defun join-trunk (subchannel)
  "Have SUBCHANNEL, whose channel shares, use the trunk for its addresses, made now if there is
none."
  (let* ((core (subchannel-core subchannel))
         (addresses (subchannel-addresses subchannel))
         (trunk (or (find-shared-trunk core addresses)
                    (register-trunk (make-shared-trunk
                                     :core core :addresses addresses)))))
    (push subchannel (shared-trunk-owners trunk))
    (setf (subchannel-shared subchannel) trunk)))

(defun stray-p (subchannel)
  "True if the trunk of SUBCHANNEL is for other addresses than its own."
  (not (equalp (subchannel-addresses subchannel) (trunk-addresses (trunk-of subchannel)))))

;;; What owners are told

(defun engaged-owners (trunk)
  "The subchannels that use TRUNK and have asked it to connect."
  (remove-if (lambda (owner) (member (subchannel-link-state owner) '(:idle :shutdown)))
             (owners trunk)))

(defun change-link-states (subchannels state)
  "The links of SUBCHANNELS, all of one trunk, come to STATE. Their watchers hear of that, then, if
their own state is another now, their balancers. What those do comes after all have the new state."
  (dolist (subchannel subchannels) (setf (subchannel-link-state subchannel) state))
  (dolist (subchannel subchannels)
    (tell-watchers subchannel)
    (review-state subchannel)))

(defun tell-watchers (subchannel)
  "The state of SUBCHANNEL's links is another."
  (dolist (watcher (subchannel-watchers subchannel))
    (loop:guarding (:balancer-failed :balancer (subchannel-balancer subchannel))
      (funcall (the function watcher) subchannel))))

(defun change-state (trunk state)
  "The links of TRUNK come to STATE."
  (let ((concerned (if (subchannel-p trunk) (list trunk) (engaged-owners trunk))))
    (setf (trunk-link-state trunk) state)
    (change-link-states concerned state)))

(defun map-cores (function trunk)
  "Call FUNCTION with the core of each channel that uses TRUNK; once for each of its subchannels."
  (declare (type function function))
  (dolist (owner (owners trunk)) (funcall function (subchannel-core owner))))

(defun note-failure (trunk text)
  (setf (trunk-failure trunk) text)
  (map-cores (lambda (core) (setf (core-trouble core) text)) trunk))

(defun note-trunk-event (trunk severity text &rest arguments)
  "As NOTE-SUBCHANNEL-EVENT, of those that use TRUNK."
  (dolist (owner (owners trunk))
    (apply #'note-subchannel-event owner severity text arguments)))

(defun enter-stages (trunk stage)
  "The channels that wait for TRUNK have come to STAGE of getting a connection, see ENTER-STAGE."
  (dolist (owner (engaged-owners trunk)) (enter-stage (subchannel-core owner) stage)))

(defun resolving-wanted-for-p (subchannel)
  "True if no balancer above that of SUBCHANNEL minds that addresses are resolved anew."
  (loop for child = (subchannel-balancer subchannel) then parent
        for parent = (balancer-parent child)
        while (typep parent 'balancer)
        always (resolving-wanted-p parent child)))

(defun ask-resolvers (trunk)
  "The server of TRUNK has gone or cannot be reached: have other addresses asked for."
  (dolist (owner (owners trunk))
    (when (resolving-wanted-for-p owner) (ask-resolver (subchannel-core owner)))))

(defun room-p (subchannel)
  "True if a link of SUBCHANNEL is likely to have a stream."
  (some (lambda (link)
          (let ((http2 (wire:link-http2 link)))
            (< (http2:connection-stream-count http2) (http2:connection-peer-max-streams http2))))
        (trunk-links (trunk-of subchannel))))

(defun serve-owners (trunk)
  "A stream of TRUNK may be free: calls that wait for one may get it, those of each channel that
shares TRUNK first at times."
  (flet ((waits-p (owner) (waiting-p (subchannel-core owner)))
         (serve (owner)
           (let ((core (subchannel-core owner)))
             (funcall (the function (core-on-stream core)) core owner))))
    (cond ((subchannel-p trunk) (when (waits-p trunk) (serve trunk)))
          ((plusp (commons-waiting-count (core-commons (trunk-core trunk))))
           (let ((owners (shared-trunk-owners trunk)))
             (setf (shared-trunk-owners trunk) (append (rest owners) (list (first owners))))
             (dolist (owner owners)
               (when (waits-p owner)
                 (serve owner)
                 (unless (room-p owner) (return)))))))))

(defun impatient-calls-p (trunk)
  "True if calls wait for TRUNK to be connected that do not wait for ready."
  (some (lambda (owner)
          (notevery #'client-call-wait-for-ready (waiting-calls (subchannel-core owner))))
        (owners trunk)))

;;; Whose streams are whose

(define-hot (users :inline t) ((trunk trunk)) hash-table
  "What says which subchannel a stream of TRUNK, a shared one, is of."
  (commons-users (the commons (core-commons (trunk-core trunk)))))

(defun note-user (subchannel stream)
  "STREAM of the trunk that SUBCHANNEL shares is for a call of its channel."
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
  "STREAM of LINK, one of a shared trunk, has ended. Return the subchannel that it was of."
  (let* ((users (users (link-owner link)))
         (subchannel (gethash stream users)))
    (remhash stream users)
    (decf (subchannel-shared-calls subchannel))
    subchannel))

(defun map-own-streams (function subchannel)
  "Call FUNCTION with each stream of a shared trunk that is for a call of SUBCHANNEL's channel."
  (declare (type function function))
  (when (plusp (subchannel-shared-calls subchannel))
    (mapc function (loop for stream being the hash-keys of (users subchannel)
                           using (hash-value user)
                         when (eq user subchannel) collect stream))))
