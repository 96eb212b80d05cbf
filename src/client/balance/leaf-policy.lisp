;;;; The common code of policies that keep a subchannel for each backend (gRFC A61 calls them
;;;; petiole policies): the set of subchannels, the policy's state, and the publication of a picker
;;;; of the ready ones. A policy is a subclass with a method of LEAF-POLICY-PICKER, and of MAKE-NOTE
;;;; if it remembers more data of a subchannel.
;;;;
;;;; The state is :ready while one subchannel is ready; else :connecting while a subchannel that
;;;; does not count as failed may become ready; else :transient-failure. A subchannel that has
;;;; failed counts as failed until it is ready again, although it connects again by itself meanwhile
;;;; (gRFC A62). A backend that the resolver repeats counts once.
;;;;
;;;; The cost of each step is proportional to the number of backends. So in a large fleet connecting
;;;; is spread over the turns of the loop, and all changes of a turn are published together, at its
;;;; end.

(in-package #:clgrpc.balance)

(defconstant +large-leaf-policy+ 64
  "The maximum number of members of a policy that publishes each change at once; with more members,
the changes of a turn are published together.")

(defconstant +connections-at-once+ 64
  "The maximum number of members of a policy that begin to connect in one turn.")

(defstruct (member-note (:conc-name note-) (:copier nil))
  "The data of a leaf policy about one of its subchannels; they are the SUBCHANNEL-NOTE of that
subchannel."
  (failed nil :type boolean) ; true while the subchannel has failed and has not been ready since
  (health nil :type (or null backend-stream))) ; the stream of its server's health, or nil

(defclass leaf-policy (balancer)
  ((members :initform (make-hash-table :test #'equal) :accessor leaf-policy-members
            :documentation "From a backend's key to its subchannel.")
   (to-connect :initform (make-fifo) :reader leaf-policy-to-connect
               :documentation "Members that must connect in a later turn.")
   (deferred :initform nil :accessor leaf-policy-deferred
             :documentation "True if the policy's state must be published after this turn of the
loop.")
   (closed :initform nil :accessor leaf-policy-closed
           :documentation "True once the policy was closed.")
   (last-error :initform "no server can be reached" :accessor leaf-policy-last-error
            :documentation "The reason of the last failure of a member.")
   (health :initform nil :accessor leaf-policy-health
           :documentation "The service whose health is checked at servers; nil if no health is
checked."))
  (:documentation "A balancer with a subchannel for each backend."))

(defgeneric leaf-policy-picker (leaf-policy ready)
  (:documentation "The picker for calls while the ready members are READY, a simple vector that is
not empty."))

(defgeneric make-note (leaf-policy subchannel)
  (:documentation "A MEMBER-NOTE for SUBCHANNEL, a new member of LEAF-POLICY.")
  (:method ((leaf-policy leaf-policy) subchannel)
    (declare (ignore subchannel))
    (make-member-note)))

(defgeneric configure (leaf-policy config)
  (:documentation "Store CONFIG, which belongs to LEAF-POLICY, before LEAF-POLICY's backends are
updated.")
  (:method ((leaf-policy leaf-policy) config)
    (declare (ignore config))
    nil))

(defgeneric review (leaf-policy)
  (:documentation "Publish the state of LEAF-POLICY, which follows from the states of its
members."))

(defgeneric member-idle (leaf-policy subchannel)
  (:documentation "Connect SUBCHANNEL, an idle member; but do nothing in a policy whose members are
connected when a call needs them.")
  (:method ((leaf-policy leaf-policy) subchannel)
    (connect subchannel)))

(defun map-members (function leaf-policy)
  (declare (type function function))
  (loop for subchannel being the hash-values of (leaf-policy-members leaf-policy)
        do (funcall function subchannel)))

(defun leaf-policy-loop (balancer)
  (client:core-loop (balancer-core balancer)))

;;; Weights from the resolver

(defconstant +most-said-weight+ #xFFFFFFFF
  "The largest weight that a resolver can give, as in gRPC's protocols.")

(defun said-weight (attributes)
  "The weight in ATTRIBUTES, a backend's: 1 or more; nil if the weight is missing or invalid."
  (let ((weight (getf attributes :weight)))
    (and (typep weight '(integer 1))
         (min weight +most-said-weight+))))

;;; Members

(defun begin-health-check (leaf-policy subchannel)
  "Check the health of SUBCHANNEL's server if LEAF-POLICY has a health service."
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
  "Close the members whose keys are not in KEPT, a hash table."
  (let ((members (leaf-policy-members leaf-policy)))
    (loop for key being the hash-keys of members using (hash-value subchannel)
          unless (gethash key kept)
            collect key into keys
            and collect subchannel into gone
          finally (dolist (key keys) (remhash key members))
                  (client:close-several leaf-policy gone "no server has its address any longer"))))

(defun update-members (leaf-policy backends)
  "Make BACKENDS the members of LEAF-POLICY, as far as the channel has room for them. Return the new
members."
  (let ((kept (make-hash-table :test #'equal :size (length backends)))
        (members (leaf-policy-members leaf-policy))
        (new '())
        (left-out nil))
    (when (null backends)
      (setf (leaf-policy-last-error leaf-policy) "the list of servers is empty"))
    (dolist (backend backends)
      (let ((key (backend-key backend)))
        (unless (gethash key kept)
          (let ((subchannel (gethash key members)))
            (cond (subchannel
                   (setf (subchannel-attributes subchannel) (backend-attributes backend))
                   ;; the same addresses, perhaps in another order
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
  "Check the health of the members' servers according to the present service config of the channel."
  (let ((service (client:health-service (balancer-core leaf-policy))))
    (unless (equal service (shiftf (leaf-policy-health leaf-policy) service))
      (map-members (lambda (subchannel)
                     (end-health-check subchannel)
                     (begin-health-check leaf-policy subchannel))
                   leaf-policy))))

(defun connect-later (leaf-policy)
  "Connect a few of the members of LEAF-POLICY that wait to be connected, and the others in the next
turn."
  (loop repeat +connections-at-once+
        for subchannel = (dequeue (leaf-policy-to-connect leaf-policy))
        while subchannel
        do (connect subchannel)         ; if SUBCHANNEL is idle, not closed
        finally (when (fifo-items (leaf-policy-to-connect leaf-policy))
                  (loop:defer (leaf-policy-loop leaf-policy) #'connect-later leaf-policy))))

(defun connect-all (leaf-policy subchannels)
  "Connect SUBCHANNELS, at most +CONNECTIONS-AT-ONCE+ in one turn."
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
  "Review LEAF-POLICY at the end of a turn in which its members have changed."
  (setf (leaf-policy-deferred leaf-policy) nil)
  (unless (leaf-policy-closed leaf-policy) (review leaf-policy)))

(defun review-soon (leaf-policy)
  "REVIEW LEAF-POLICY: now if it is small, else at the end of the turn."
  (cond ((leaf-policy-deferred leaf-policy))
        ((<= (hash-table-count (leaf-policy-members leaf-policy)) +large-leaf-policy+)
         (review leaf-policy))
        (t (setf (leaf-policy-deferred leaf-policy) t)
           (loop:defer (leaf-policy-loop leaf-policy) #'review-deferred leaf-policy))))

(defmethod subchannel-changed ((leaf-policy leaf-policy) subchannel)
  (let ((note (subchannel-note subchannel)))
    (when note                          ; SUBCHANNEL has no note yet while it is being made
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

;;; The first turn of pickers

(defun first-turn (leaf-policy ready)
  "A random index in READY, a vector, after which turns begin."
  (random (length ready) (balancer-random leaf-policy)))
