;;;; What balancers have in common that have several children, each called by a name of the config:
;;;; weighted_target and priority. A child is a branch: a switch, what it has published last, and
;;;; the time that it is kept for when the config does not name it any more, so that one that comes
;;;; back finds its connections (gRFC A56: 15 minutes).
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
          :documentation "While it is not in use: of its end."))
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
  "The branch of TREE called NAME, in use from now on; true as second value if it is new."
  (let ((branch (find-branch tree name)))
    (cond (branch
           (stop-timer tree (shiftf (branch-timer branch) nil))
           (values branch nil))
          (t (values (setf (gethash name (tree-branches tree))
                           (make-instance 'branch :parent tree :name name))
                     t)))))

(defun cut (tree branch)
  "BRANCH of TREE is not needed any more."
  (stop-timer tree (shiftf (branch-timer branch) nil))
  (remhash (branch-name branch) (tree-branches tree))
  (close-balancer branch))

(defun retire (tree branch)
  "BRANCH of TREE is not in use: it ends after a while, unless it is by then."
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
