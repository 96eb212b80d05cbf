;;;; What balancers have in common that have several children, each called by a name of the config:
;;;; weighted_target and priority. A child is a branch: a switch, and what it has published last.
;;;; One that the config names no more ends with that config's update (gRFC A115): else a resolver
;;;; that gives new names each time would have the channel collect connections. One that the config
;;;; names and that is not needed now is kept for a while, so that it finds its connections when it
;;;; is needed again (gRFC A56: 15 minutes).
;;;;
;;;; Which backend is of which child its attribute :path says, a list of names: the first is the
;;;; child's, the rest is the path there. A backend without one is of every child.

(in-package #:clgrpc.balance)

(defconstant +retention-ns+ (* 15 60 1000000000))

(defclass branch (switch)
  ((name :initarg :name :reader branch-name
         :documentation "What the config calls it.")
   (state :initform :connecting :accessor branch-state
          :documentation "What it has published last.")
   (picker :initform nil :accessor branch-picker
           :documentation "What it has published last.")
   (timer :initform nil :accessor branch-timer
          :documentation "While it is not needed: of its end."))
  (:documentation "A child with a name."))

(defclass tree (balancer)
  ((branches :initform (make-hash-table :test #'equal) :reader tree-branches
             :documentation "From a name to the BRANCH.")
   (busy :initform nil :accessor tree-busy
         :documentation "True while children are told of an update: what they publish is looked at
after it."))
  (:documentation "A balancer with children that have names."))

(defgeneric choose (tree)
  (:documentation "Publish what the states of TREE's children come to."))

(defmethod child-published ((parent tree) (child branch) state picker)
  (setf (branch-state child) state
        (branch-picker child) picker)
  (unless (tree-busy parent) (choose parent)))

(defun find-branch (tree name)
  (gethash name (tree-branches tree)))

(defun ensure-branch (tree name)
  "The branch of TREE called NAME, needed from now on; true as second value if it is new."
  (let ((branch (find-branch tree name)))
    (cond (branch
           (stop-timer tree (shiftf (branch-timer branch) nil))
           (values branch nil))
          (t (values (setf (gethash name (tree-branches tree))
                           (make-instance 'branch :parent tree :name name))
                     t)))))

(defun cut (tree branch)
  "BRANCH of TREE ends."
  (stop-timer tree (shiftf (branch-timer branch) nil))
  (remhash (branch-name branch) (tree-branches tree))
  (close-balancer branch))

(defun cut-others (tree names)
  "Those branches of TREE end that are not called by one of NAMES; after TREE has published what
the others come to."
  (loop for branch being the hash-values of (tree-branches tree)
        unless (member (branch-name branch) names :test #'string=)
          collect branch into others
        finally (dolist (branch others) (cut tree branch))))

(defun retire (tree branch)
  "BRANCH of TREE is not needed now: it ends after a while, unless it is by then."
  (unless (branch-timer branch)
    (setf (branch-timer branch)
          (start-timer tree +retention-ns+ (lambda (tree) (cut tree branch))))))

(defun branch-backends (name backends)
  "Those of BACKENDS that are of the child NAME, as it sees them."
  (loop for backend in backends
        for (first . rest) = (getf (backend-attributes backend) :path)
        when (or (null first) (string= name first))
          collect (if first (client:backend-with backend :path rest) backend)))

(defmethod exit-idle ((balancer tree))
  (loop for branch being the hash-values of (tree-branches balancer)
        unless (branch-timer branch)
          do (exit-idle branch)))

(defmethod close-balancer ((balancer tree))
  (dolist (branch (alexandria:hash-table-values (tree-branches balancer)))
    (cut balancer branch)))

(defmethod client:balancer-facts ((balancer tree))
  (list :children
        (loop for branch being the hash-values of (tree-branches balancer)
              collect (append (client:balancer-facts branch)
                              (list :name (branch-name branch) :state (branch-state branch))))))
