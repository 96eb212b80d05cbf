;;;; The policy priority (gRFC A56): children in order of priority. The first child that is ready or
;;;; idle serves. A lower child is made only when those above it have failed, or have not become
;;;; ready within 10 seconds of their first try. When a higher child is ready again it serves at
;;;; once; the lower children, which are then not needed, are kept for a while. A child with
;;;; ignoreReresolutionRequests does not cause a new resolution when it loses servers (gRFC A37).

(in-package #:clgrpc.balance)

(defconstant +failover-ns+ (* 10 1000000000))

(defstruct (priorities (:copier nil))
  "The config of priority."
  (order '() :type list :read-only t)   ; the names of the children, the highest first
  (children '() :type list :read-only t) ; an alist from a name to a POLICY-CONFIG
  (content '() :type list :read-only t)) ; names of children with ignoreReresolutionRequests

(defun parse-priorities (object path)
  (let* ((children-path (config:member-path path "children"))
         (content '())
         (children (loop for (key . value) in (config:object-members
                                               (config:object-field object "children" path))
                         for name = (config:key-name key)
                         for child-path = (config:member-path children-path name)
                         for child = (config:check-object value child-path)
                         do (when (config:boolean-field child "ignoreReresolutionRequests"
                                                        child-path)
                              (push name content))
                         collect (cons name (child-field child "config" child-path))))
         (order (config:list-field object "priorities" path))
         (order-path (config:member-path path "priorities")))
    (loop for (name . rest) on order
          for number from 0
          for name-path = (config:element-path order-path number)
          do (unless (and (stringp name) (assoc name children :test #'string=))
               (config:config-error name-path "must be the name of one of the children"))
             (when (member name rest :test #'equal)
               (config:config-error name-path "~A occurs twice" name)))
    (make-priorities :order order :children children :content content)))

(defclass priority (tree)
  ((priorities :accessor priorities
               :documentation "Its config.")
   (backends :initform '() :accessor priority-backends
             :documentation "The backends of the policy's last update.")
   (failing :initform (make-hash-table :test #'eq) :reader priority-failing
            :documentation "A table of the branches that have some time to become ready: from a
            branch to the timer of that time, or to T once the time is over."))
  (:documentation "The policy priority_experimental."))

(config:register-policy :priority '("priority_experimental") 'priority 'parse-priorities)

(defun give-time (tree branch)
  "Give BRANCH time to become ready."
  (setf (gethash branch (priority-failing tree))
        (start-policy-timer tree +failover-ns+
                            (lambda (tree)
                              (setf (gethash branch (priority-failing tree)) t)
                              (choose tree)))))

(defun end-time (tree branch &optional over)
  "Stop the timer within which BRANCH must connect; OVER is true if that time has passed."
  (let ((timer (gethash branch (priority-failing tree))))
    (when (typep timer 'timer) (stop-policy-timer tree timer)))
  (if over
      (setf (gethash branch (priority-failing tree)) t)
      (remhash branch (priority-failing tree))))

(defun update-branch (tree branch)
  (let ((name (branch-name branch)))
    (update-backends branch (branch-backends name (priority-backends tree))
                     (cdr (assoc name (priorities-children (priorities tree))
                                 :test #'string=)))))

(defmethod update-backends ((balancer priority) backends config)
  (setf (priorities balancer) config
        (priority-backends balancer) backends
        (tree-busy balancer) t)
  (dolist (branch (alexandria:hash-table-values (tree-branches balancer)))
    (if (member (branch-name branch) (priorities-order config) :test #'string=)
        (update-branch balancer branch)
        (end-time balancer branch)))
  (setf (tree-busy balancer) nil)
  (choose balancer)
  (cut-others balancer (priorities-order config)))

(defmethod child-published :before ((parent priority) (child branch) state picker)
  (declare (ignore picker))
  (case state
    ((:ready :idle) (end-time parent child))
    (:transient-failure (end-time parent child t))
    ;; a child that was ready or idle has 10 seconds again
    (:connecting (when (member (branch-state child) '(:ready :idle)) (give-time parent child)))))

(defun begin-branch (tree name)
  "The branch of TREE called NAME. If it does not exist yet, make and begin it."
  (multiple-value-bind (branch new) (ensure-branch tree name)
    (when (and (eq :connecting (branch-state branch))
               (null (gethash branch (priority-failing tree))))
      (give-time tree branch))
    (when new
      (setf (tree-busy tree) t)
      (update-branch tree branch)
      (exit-idle branch)
      (setf (tree-busy tree) nil))
    branch))

(defun retire-below (tree branch)
  "Retire the branches below BRANCH, which are not needed now."
  (dolist (name (rest (member (branch-name branch) (priorities-order (priorities tree))
                              :test #'string=)))
    (when-let ((other (find-branch tree name)))
      (end-time tree other)
      (retire tree other))))

(defun serve-by (tree branch)
  "Publish the state and the picker of BRANCH as those of TREE."
  (publish tree (branch-state branch) (branch-picker branch)))

(defun trying-p (tree branch)
  "True while BRANCH has time left to become ready."
  (and (eq :connecting (branch-state branch))
       (typep (gethash branch (priority-failing tree)) 'timer)))

(defmethod choose ((tree priority))
  (let ((last nil))
    (dolist (name (priorities-order (priorities tree)))
      (let ((branch (begin-branch tree name)))
        (cond ((member (branch-state branch) '(:ready :idle))
               (retire-below tree branch)
               (return-from choose (serve-by tree branch)))
              ((trying-p tree branch)
               (return-from choose (serve-by tree branch))))
        (setf last branch)))
    ;; no child serves: take the first that still connects, else the last
    (if-let ((branch (or (loop for name in (priorities-order (priorities tree))
                               for branch = (find-branch tree name)
                               when (eq :connecting (branch-state branch)) return branch)
                         last)))
      (serve-by tree branch)
      (publish tree :transient-failure (make-failure "the list of priorities is empty")))))

(defmethod resolving-wanted-p ((ancestor priority) (child branch))
  (not (member (branch-name child) (priorities-content (priorities ancestor))
               :test #'string=)))

(defmethod close-balancer :before ((balancer priority))
  (dolist (branch (alexandria:hash-table-values (tree-branches balancer)))
    (end-time balancer branch)))
