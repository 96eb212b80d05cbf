;;;; The common code of balancers with several children, each with a name in the config:
;;;; weighted_target and priority. A child is a branch: a switch, and the state and picker that it
;;;; has last published. A branch that a new config does not name ends when that config arrives
;;;; (gRFC A115); otherwise a resolver that returns new names each time would make the channel
;;;; accumulate connections. A branch that is not needed now is kept for 15 minutes, with its
;;;; connections (gRFC A56).
;;;;
;;;; The attribute :path of a backend, a list of names, selects its child: the first name is the
;;;; child's, the others are the path below that child. A backend without a :path belongs to every
;;;; child.

(in-package #:clgrpc.balance)

(defconstant +retention-ns+ (* 15 60 1000000000))

(defclass branch (switch)
  ((name :initarg :name :reader branch-name
         :documentation "The name of the child in the config.")
   (state :initform :connecting :accessor branch-state
          :documentation "The state that the child has last published.")
   (picker :initform nil :accessor branch-picker
           :documentation "The picker that the child has last published.")
   (timer :initform nil :accessor branch-timer
          :documentation "The timer that ends the child while the child is not needed."))
  (:documentation "A child with a name."))

(defclass tree (balancer)
  ((branches :initform (make-hash-table :test #'equal) :reader tree-branches
             :documentation "From a name to the BRANCH.")
   (busy :initform nil :accessor tree-busy
         :documentation "True during an update of children: their states are combined after the
update."))
  (:documentation "A balancer with children that have names."))

(defgeneric choose (tree)
  (:documentation "Publish the state of TREE that follows from the states of its children."))

(defmethod child-published ((parent tree) (child branch) state picker)
  (setf (branch-state child) state
        (branch-picker child) picker)
  (unless (tree-busy parent) (choose parent)))

(defun find-branch (tree name)
  (gethash name (tree-branches tree)))

(defun ensure-branch (tree name)
  "The branch of TREE called NAME, needed from now on. The second value is true if it is new."
  (let ((branch (find-branch tree name)))
    (cond (branch
           (stop-policy-timer tree (shiftf (branch-timer branch) nil))
           (values branch nil))
          (t (values (setf (gethash name (tree-branches tree))
                           (make-instance 'branch :parent tree :name name))
                     t)))))

(defun cut (tree branch)
  "End BRANCH of TREE."
  (stop-policy-timer tree (shiftf (branch-timer branch) nil))
  (remhash (branch-name branch) (tree-branches tree))
  (close-balancer branch))

(defun cut-others (tree names)
  "End the branches of TREE whose names are not among NAMES. TREE has already published the state of
the other branches."
  (loop for branch being the hash-values of (tree-branches tree)
        unless (member (branch-name branch) names :test #'string=)
          collect branch into others
        finally (dolist (branch others) (cut tree branch))))

(defun retire (tree branch)
  "End BRANCH of TREE, which is not needed now, after +RETENTION-NS+, unless it is needed again."
  (unless (branch-timer branch)
    (setf (branch-timer branch)
          (start-policy-timer tree +retention-ns+ (lambda (tree) (cut tree branch))))))

(defun branch-backends (name backends)
  "The BACKENDS of the child NAME, with the rest of their paths."
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
