;;;; What policies have in common that keep a subchannel for each backend (gRFC A61 calls them
;;;; petiole policies): which subchannels there are, what their states come to, when a picker of
;;;; those that are ready is published. A policy is a subclass with a method of LEAF-POLICY-PICKER,
;;;; and MAKE-MEMBER if it has to remember more of a subchannel.
;;;;
;;;; The state is :ready while one is ready; else :connecting while one may become so that has not
;;;; failed; else :transient-failure. A subchannel that has failed counts as failed until it is
;;;; ready again, although it connects again by itself meanwhile (gRFC A62). A backend that is told
;;;; twice is one.
;;;;
;;;; Each step is proportional to the number of backends, so in a large fleet the connecting is
;;;; spread over the turns of the loop, and what has changed in a turn is published once, after it.

(in-package #:clgrpc.balance)

(defconstant +large-leaf-policy+ 64
  "With more members than this, what changes in a turn is published once.")

(defconstant +connections-at-once+ 64
  "How many members of a fleet begin to connect in one turn.")

(defstruct (member-note (:conc-name note-) (:copier nil))
  "What a fleet knows of a subchannel of its own, whose SUBCHANNEL-NOTE it is."
  (failed nil :type boolean)            ; it has failed and not been ready since
  (health nil :type (or null backend-stream))) ; over its server's health, or nil

(defclass leaf-policy (balancer)
  ((members :initform (make-hash-table :test #'equal) :accessor leaf-policy-members
            :documentation "From a backend's key to its subchannel.")
   (to-connect :initform (make-fifo) :reader leaf-policy-to-connect
               :documentation "Members that are to connect in a later turn.")
   (deferred :initform nil :accessor leaf-policy-deferred
             :documentation "True if its state is to be published after this turn.")
   (closed :initform nil :accessor leaf-policy-closed
           :documentation "True once it has been closed.")
   (last-error :initform "no server can be reached" :accessor leaf-policy-last-error
            :documentation "Why the last member failed that did.")
   (health :initform nil :accessor leaf-policy-health
           :documentation "The service that servers are asked whether they serve, or nil."))
  (:documentation "A subchannel for each backend."))

(defgeneric leaf-policy-picker (leaf-policy ready)
  (:documentation "The picker for calls while READY, a simple vector that is not empty, are the
members that are ready."))

(defgeneric make-note (leaf-policy subchannel)
  (:documentation "What LEAF-POLICY is to know of SUBCHANNEL, a new member: a MEMBER-NOTE.")
  (:method ((leaf-policy leaf-policy) subchannel)
    (declare (ignore subchannel))
    (make-member-note)))

(defgeneric configure (leaf-policy config)
  (:documentation "CONFIG is LEAF-POLICY's own from now on; before its backends are updated.")
  (:method ((leaf-policy leaf-policy) config)
    (declare (ignore config))
    nil))

(defgeneric review (leaf-policy)
  (:documentation "Publish what LEAF-POLICY's members' states come to."))

(defgeneric member-idle (leaf-policy subchannel)
  (:documentation "SUBCHANNEL, a member, is idle: connect it, unless that is for calls to do.")
  (:method ((leaf-policy leaf-policy) subchannel)
    (connect subchannel)))

(defun map-members (function leaf-policy)
  (declare (type function function))
  (loop for subchannel being the hash-values of (leaf-policy-members leaf-policy)
        do (funcall function subchannel)))

(defun leaf-policy-loop (balancer)
  "The loop of BALANCER's channel."
  (client:core-loop (balancer-core balancer)))

;;; What a resolver says of backends

(defconstant +most-said-weight+ #xFFFFFFFF
  "The largest weight that a resolver can say, as in gRPC's protocols.")

(defun said-weight (attributes)
  "The weight that a resolver says of a backend with ATTRIBUTES, from 1, or nil."
  (let ((weight (getf attributes :weight)))
    (and (typep weight '(integer 1))
         (min weight +most-said-weight+))))

;;; Members

(defun begin-health-check (leaf-policy subchannel)
  "Have the health of SUBCHANNEL's server checked if LEAF-POLICY is to."
  (when (leaf-policy-health leaf-policy)
    (setf (note-health (subchannel-note subchannel))
          (check-health subchannel (leaf-policy-health leaf-policy)))))

(defun end-health-check (subchannel)
  (let ((backend-stream (shiftf (note-health (subchannel-note subchannel)) nil)))
    (when backend-stream (stop-health-check subchannel backend-stream))))

(defun add-member (leaf-policy backend)
  "Open a subchannel for BACKEND."
  (let ((subchannel (open-subchannel leaf-policy backend)))
    (setf (subchannel-note subchannel) (make-note leaf-policy subchannel)
          (gethash (backend-key backend) (leaf-policy-members leaf-policy)) subchannel)
    (begin-health-check leaf-policy subchannel)
    subchannel))

(defun drop-others (leaf-policy kept)
  "Close the members whose keys are not among KEPT, as those of a hash table."
  (let ((members (leaf-policy-members leaf-policy)))
    (loop for key being the hash-keys of members using (hash-value subchannel)
          unless (gethash key kept)
            collect key into keys
            and collect subchannel into gone
          finally (dolist (key keys) (remhash key members))
                  (client:close-several leaf-policy gone "its address is the servers' no more"))))

(defun update-members (leaf-policy backends)
  "LEAF-POLICY's members are those of BACKENDS from now on, as far as the channel has room for them.
Return those that are new."
  (let ((kept (make-hash-table :test #'equal :size (length backends)))
        (members (leaf-policy-members leaf-policy))
        (new '())
        (left-out nil))
    (when (null backends) (setf (leaf-policy-last-error leaf-policy) "there are no servers"))
    (dolist (backend backends)
      (let ((key (backend-key backend)))
        (unless (gethash key kept)
          (let ((subchannel (gethash key members)))
            (cond (subchannel
                   (setf (subchannel-attributes subchannel) (backend-attributes backend))
                   ;; the same ones, perhaps in another order
                   (client:change-addresses subchannel (backend-addresses backend)))
                  ((client:room-for-subchannel-p (balancer-core leaf-policy))
                   (push (setf subchannel (add-member leaf-policy backend)) new))
                  (t (setf left-out t
                           (leaf-policy-last-error leaf-policy)
                           "the channel may have no more servers (max-subchannels)")))
            (when subchannel (setf (gethash key kept) subchannel))))))
    (cond ((= (hash-table-count members) (hash-table-count kept)) (nreverse new))
          (t (drop-others leaf-policy kept)
             (nreconc new (when left-out (update-members leaf-policy backends)))))))

(defun update-health (leaf-policy)
  "Have the members' servers asked whether they serve, as the channel's service config says now."
  (let ((service (client:health-service (balancer-core leaf-policy))))
    (unless (equal service (shiftf (leaf-policy-health leaf-policy) service))
      (map-members (lambda (subchannel)
                     (end-health-check subchannel)
                     (begin-health-check leaf-policy subchannel))
                   leaf-policy))))

(defun connect-later (leaf-policy)
  "Connect some of the members of LEAF-POLICY that wait for that, and the others in the next turn."
  (loop repeat +connections-at-once+
        for subchannel = (dequeue (leaf-policy-to-connect leaf-policy))
        while subchannel
        do (connect subchannel)         ; if it is idle, not closed
        finally (when (fifo-items (leaf-policy-to-connect leaf-policy))
                  (loop:defer (leaf-policy-loop leaf-policy) #'connect-later leaf-policy))))

(defun connect-all (leaf-policy subchannels)
  "Have SUBCHANNELS connect, not too many in one turn."
  (when subchannels
    (let ((busy (fifo-items (leaf-policy-to-connect leaf-policy))))
      (dolist (subchannel subchannels) (enqueue subchannel (leaf-policy-to-connect leaf-policy)))
      (unless busy (connect-later leaf-policy)))))

(defmethod update-backends ((leaf-policy leaf-policy) backends config)
  (configure leaf-policy config)
  (update-health leaf-policy)
  (connect-all leaf-policy (update-members leaf-policy backends))
  (review leaf-policy))

(defmethod close-balancer ((leaf-policy leaf-policy))
  (setf (leaf-policy-closed leaf-policy) t)
  (clear-fifo (leaf-policy-to-connect leaf-policy)))

;;; States

(defun review-deferred (leaf-policy)
  (setf (leaf-policy-deferred leaf-policy) nil)
  (unless (leaf-policy-closed leaf-policy) (review leaf-policy)))

(defun review-soon (leaf-policy)
  "REVIEW LEAF-POLICY, now if it is small."
  (cond ((leaf-policy-deferred leaf-policy))
        ((<= (hash-table-count (leaf-policy-members leaf-policy)) +large-leaf-policy+)
         (review leaf-policy))
        (t (setf (leaf-policy-deferred leaf-policy) t)
           (loop:defer (leaf-policy-loop leaf-policy) #'review-deferred leaf-policy))))

(defmethod subchannel-changed ((leaf-policy leaf-policy) subchannel)
  (let ((note (subchannel-note subchannel)))
    (when note                          ; else it is being made
      (case (subchannel-state subchannel)
        (:idle (member-idle leaf-policy subchannel))
        (:ready (setf (note-failed note) nil))
        (:transient-failure
         (setf (note-failed note) t
               (leaf-policy-last-error leaf-policy) (last-error-text subchannel))))
      (review-soon leaf-policy))))

(defun ready-members (leaf-policy)
  "The members of LEAF-POLICY that are ready, as a simple vector."
  (let ((ready '()))
    (map-members (lambda (subchannel)
                   (when (eq :ready (subchannel-state subchannel)) (push subchannel ready)))
                 leaf-policy)
    (coerce (nreverse ready) 'simple-vector)))

(defun all-failed-p (leaf-policy)
  (loop for subchannel being the hash-values of (leaf-policy-members leaf-policy)
        always (note-failed (subchannel-note subchannel))))

(defun publish-failure (leaf-policy)
  "Publish that no member of LEAF-POLICY can be used."
  (publish leaf-policy :transient-failure
           (make-failure (leaf-policy-last-error leaf-policy))))

(defmethod review ((leaf-policy leaf-policy))
  (let ((ready (ready-members leaf-policy)))
    (cond ((plusp (length ready))
           (publish leaf-policy :ready (leaf-policy-picker leaf-policy ready)))
          ((all-failed-p leaf-policy) (publish-failure leaf-policy))
          (t (publish leaf-policy :connecting nil)))))

(defmethod client:subchannel-facts ((balancer leaf-policy) subchannel)
  (when (leaf-policy-health balancer)
    (let ((veto (find :health (client:subchannel-vetoes subchannel) :key #'client:veto-name)))
      (list :health (cond ((not (eq :ready (subchannel-link-state subchannel))) :not-connected)
                          (veto (client:veto-state veto))
                          (t :serving))))))

;;; What pickers do alike

(defun first-turn (leaf-policy ready)
  "The index in READY, a vector, that turns begin after, by chance."
  (random (length ready) (balancer-random leaf-policy)))
