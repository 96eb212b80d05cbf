;;;; What policies have in common that keep a subchannel for each backend (gRFC A61 calls them
;;;; petiole policies): which subchannels there are, what their states come to, when a picker of
;;;; those that are ready is published. A policy is a subclass with a method of FLEET-PICKER, and
;;;; MAKE-MEMBER if it has to remember more of a subchannel.
;;;;
;;;; The state is :ready while one is ready; else :connecting while one may become so that has not
;;;; failed; else :transient-failure. A subchannel that has failed counts as failed until it is
;;;; ready again, although it connects anew by itself meanwhile (gRFC A62). A backend that is told
;;;; twice is one.
;;;;
;;;; Each step is proportional to the number of backends, so in a large fleet the connecting is
;;;; spread over the turns of the loop, and what has changed in a turn is published once, after it.

(in-package #:clgrpc.balance)

(defconstant +large-fleet+ 64
  "With more members than this, what changes in a turn is published once.")

(defconstant +connections-at-once+ 64
  "How many members of a fleet begin to connect in one turn.")

(defstruct (member-note (:conc-name note-) (:copier nil))
  "What a fleet knows of a subchannel of its own, whose SUBCHANNEL-NOTE it is."
  (failed nil :type boolean)            ; it has failed and not been ready since
  (health nil :type (or null vigil)))   ; over its server's health, or nil

(defclass fleet (balancer)
  ((members :initform (make-hash-table :test #'equal) :accessor fleet-members
            :documentation "From a backend's key to its subchannel.")
   (to-connect :initform (make-fifo) :reader fleet-to-connect
               :documentation "Members that are to connect in a later turn.")
   (deferred :initform nil :accessor fleet-deferred
             :documentation "True if its state is to be published after this turn.")
   (closed :initform nil :accessor fleet-closed
           :documentation "True once it has been closed.")
   (trouble :initform "no server can be reached" :accessor fleet-trouble
            :documentation "Why the last member failed that did.")
   (health :initform nil :accessor fleet-health
           :documentation "The service that servers are asked whether they serve, or nil."))
  (:documentation "A subchannel for each backend."))

(defgeneric fleet-picker (fleet ready)
  (:documentation "The picker for calls while READY, a simple vector that is not empty, are the
members that are ready."))

(defgeneric make-note (fleet subchannel)
  (:documentation "What FLEET is to know of SUBCHANNEL, a new member: a MEMBER-NOTE.")
  (:method ((fleet fleet) subchannel)
    (declare (ignore subchannel))
    (make-member-note)))

(defgeneric configure (fleet config)
  (:documentation "CONFIG is FLEET's own from now on; before its backends are updated.")
  (:method ((fleet fleet) config)
    (declare (ignore config))
    nil))

(defgeneric review (fleet)
  (:documentation "Publish what FLEET's members' states come to."))

(defgeneric member-idle (fleet subchannel)
  (:documentation "SUBCHANNEL, a member, is idle: connect it, unless that is for calls to do.")
  (:method ((fleet fleet) subchannel)
    (connect subchannel)))

(defun map-members (function fleet)
  (declare (type function function))
  (loop for subchannel being the hash-values of (fleet-members fleet)
        do (funcall function subchannel)))

(defun fleet-loop (balancer)
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

(defun begin-health-check (fleet subchannel)
  "Have the health of SUBCHANNEL's server checked if FLEET is to."
  (when (fleet-health fleet)
    (setf (note-health (subchannel-note subchannel))
          (check-health subchannel (fleet-health fleet)))))

(defun end-health-check (subchannel)
  (let ((vigil (shiftf (note-health (subchannel-note subchannel)) nil)))
    (when vigil (stop-health-check subchannel vigil))))

(defun add-member (fleet backend)
  "Open a subchannel for BACKEND."
  (let ((subchannel (open-subchannel fleet backend)))
    (setf (subchannel-note subchannel) (make-note fleet subchannel)
          (gethash (backend-key backend) (fleet-members fleet)) subchannel)
    (begin-health-check fleet subchannel)
    subchannel))

(defun drop-others (fleet kept)
  "Close the members whose keys are not among KEPT, as those of a hash table."
  (let ((members (fleet-members fleet)))
    (loop for key being the hash-keys of members using (hash-value subchannel)
          unless (gethash key kept)
            collect key into keys
            and collect subchannel into gone
          finally (dolist (key keys) (remhash key members))
                  (client:close-several fleet gone "its address is the servers' no more"))))

(defun update-members (fleet backends)
  "FLEET's members are those of BACKENDS from now on, as far as the channel has room for them.
Return those that are new."
  (let ((kept (make-hash-table :test #'equal :size (length backends)))
        (members (fleet-members fleet))
        (new '())
        (left-out nil))
    (when (null backends) (setf (fleet-trouble fleet) "there are no servers"))
    (dolist (backend backends)
      (let ((key (backend-key backend)))
        (unless (gethash key kept)
          (let ((subchannel (gethash key members)))
            (cond (subchannel
                   (setf (subchannel-attributes subchannel) (backend-attributes backend))
                   ;; the same ones, perhaps in another order
                   (client:change-addresses subchannel (backend-addresses backend)))
                  ((client:room-for-subchannel-p (balancer-core fleet))
                   (push (setf subchannel (add-member fleet backend)) new))
                  (t (setf left-out t
                           (fleet-trouble fleet)
                           "the channel may have no more servers (max-subchannels)")))
            (when subchannel (setf (gethash key kept) subchannel))))))
    (cond ((= (hash-table-count members) (hash-table-count kept)) (nreverse new))
          (t (drop-others fleet kept)
             (nreconc new (when left-out (update-members fleet backends)))))))

(defun update-health (fleet)
  "Have the members' servers asked whether they serve, as the channel's service config says now."
  (let ((service (client:health-service (balancer-core fleet))))
    (unless (equal service (shiftf (fleet-health fleet) service))
      (map-members (lambda (subchannel)
                     (end-health-check subchannel)
                     (begin-health-check fleet subchannel))
                   fleet))))

(defun connect-later (fleet)
  "Connect some of the members of FLEET that wait for that, and the others in the next turn."
  (loop repeat +connections-at-once+
        for subchannel = (dequeue (fleet-to-connect fleet))
        while subchannel
        do (connect subchannel)         ; if it is idle, not closed
        finally (when (fifo-items (fleet-to-connect fleet))
                  (loop:defer (fleet-loop fleet) #'connect-later fleet))))

(defun connect-all (fleet subchannels)
  "Have SUBCHANNELS connect, not too many in one turn."
  (when subchannels
    (let ((busy (fifo-items (fleet-to-connect fleet))))
      (dolist (subchannel subchannels) (enqueue subchannel (fleet-to-connect fleet)))
      (unless busy (connect-later fleet)))))

(defmethod update-backends ((fleet fleet) backends config)
  (configure fleet config)
  (update-health fleet)
  (connect-all fleet (update-members fleet backends))
  (review fleet))

(defmethod close-balancer ((fleet fleet))
  (setf (fleet-closed fleet) t)
  (clear-fifo (fleet-to-connect fleet)))

;;; States

(defun review-deferred (fleet)
  (setf (fleet-deferred fleet) nil)
  (unless (fleet-closed fleet) (review fleet)))

(defun review-soon (fleet)
  "REVIEW FLEET, now if it is small."
  (cond ((fleet-deferred fleet))
        ((<= (hash-table-count (fleet-members fleet)) +large-fleet+) (review fleet))
        (t (setf (fleet-deferred fleet) t)
           (loop:defer (fleet-loop fleet) #'review-deferred fleet))))

(defmethod subchannel-changed ((fleet fleet) subchannel)
  (let ((note (subchannel-note subchannel)))
    (when note                          ; else it is being made
      (case (subchannel-state subchannel)
        (:idle (member-idle fleet subchannel))
        (:ready (setf (note-failed note) nil))
        (:transient-failure
         (setf (note-failed note) t
               (fleet-trouble fleet) (trouble-text subchannel))))
      (review-soon fleet))))

(defun ready-members (fleet)
  "The members of FLEET that are ready, as a simple vector."
  (let ((ready '()))
    (map-members (lambda (subchannel)
                   (when (eq :ready (subchannel-state subchannel)) (push subchannel ready)))
                 fleet)
    (coerce (nreverse ready) 'simple-vector)))

(defun all-failed-p (fleet)
  (loop for subchannel being the hash-values of (fleet-members fleet)
        always (note-failed (subchannel-note subchannel))))

(defun publish-failure (fleet)
  "Publish that no member of FLEET can be used."
  (publish fleet :transient-failure
           (make-failure (fleet-trouble fleet))))

(defmethod review ((fleet fleet))
  (let ((ready (ready-members fleet)))
    (cond ((plusp (length ready)) (publish fleet :ready (fleet-picker fleet ready)))
          ((all-failed-p fleet) (publish-failure fleet))
          (t (publish fleet :connecting nil)))))

(defmethod client:subchannel-facts ((balancer fleet) subchannel)
  (when (fleet-health balancer)
    (let ((veto (find :health (client:subchannel-vetoes subchannel) :key #'client:veto-name)))
      (list :health (cond ((not (eq :ready (subchannel-link-state subchannel))) :not-connected)
                          (veto (client:veto-state veto))
                          (t :serving))))))

;;; What pickers do alike

(defun first-turn (fleet ready)
  "The index in READY, a vector, that turns begin after, by chance."
  (random (length ready) (balancer-random fleet)))
