;;;; The policy weighted_target (gRFC A28): calls are distributed by weight among the ready
;;;; children, the targets; the chosen child's picker picks the server. The policy is ready while a
;;;; child is ready, else connecting while one is, else idle while one is, else failed. An idle
;;;; target connects. A target ends when a new config does not name it.

(in-package #:clgrpc.balance)

(defstruct (target-config (:copier nil))
  "A target in the config."
  (name "" :type string :read-only t)   ; the target's own name
  ;; the target's share of the calls, relative to the sum of all weights
  (weight 1 :type (integer 1) :read-only t)
  (child nil :type config:policy-config :read-only t)) ; the target's policy

(defun parse-targets (object path)
  (multiple-value-bind (targets present) (config:object-field object "targets" path)
    (unless present (config:config-error (config:member-path path "targets") "must be given"))
    (loop with path = (config:member-path path "targets")
          for (key . value) in (config:object-members targets)
          for name = (config:key-name key)
          collect (let* ((path (config:member-path path name))
                         (object (config:check-object value path)))
                    (make-target-config
                     :name name
                     :weight (or (config:integer-field object "weight" path :minimum 1)
                                 (config:config-error (config:member-path path "weight")
                                                      "must be given, an integer from 1"))
                     :child (child-field object "childPolicy" path)))
            into list
          finally (when (> (reduce #'+ list :key #'target-config-weight) (1- (expt 2 32)))
                    (config:config-error path "must have weights whose sum is at most 2^32 - 1"))
                  (return list))))

(defclass weighted-target (tree)
  ((targets :initform '() :accessor weighted-targets
            :documentation "The TARGET-CONFIGs of the policy's config."))
  (:documentation "The policy weighted_target_experimental."))

(config:register-policy :weighted-target '("weighted_target_experimental")
                        'weighted-target 'parse-targets)

(defmethod update-backends ((balancer weighted-target) backends config)
  (setf (weighted-targets balancer) config
        (tree-busy balancer) t)
  (dolist (target config)
    (let ((name (target-config-name target)))
      (update-backends (ensure-branch balancer name) (branch-backends name backends)
                       (target-config-child target))))
  (setf (tree-busy balancer) nil)
  (choose balancer)
  (cut-others balancer (mapcar #'target-config-name config)))

(defun shares-picker (pickers weights random-state)
  "A picker that uses one of PICKERS, at random in proportion to WEIGHTS."
  (let* ((pickers (coerce pickers 'simple-vector))
         (sums (coerce (loop for weight in weights sum weight into sum collect sum)
                       'simple-vector))
         (total (svref sums (1- (length sums)))))
    (new-picker (lambda (call)
                  (let ((number (random total random-state)))
                    (pick-by (svref pickers (position-if (lambda (sum) (< number sum)) sums))
                             call)))
                (format nil "by weight, of ~D" (length pickers))
                :choosy t)))

(defun pick-by (picker call)
  "The pick of PICKER, of a child, for CALL."
  (if (picker-p picker)
      (funcall (the function (picker-function picker)) call)
      picker))

(defmethod choose ((tree weighted-target))
  (flet ((of-state (state)
           (loop for target in (weighted-targets tree)
                 for branch = (find-branch tree (target-config-name target))
                 when (eq state (branch-state branch))
                   collect (branch-picker branch) into pickers
                   and collect (target-config-weight target) into weights
                 finally (return (values pickers weights)))))
    (cond ((null (weighted-targets tree))
           (publish tree :transient-failure (make-failure "the list of targets is empty")))
          (t (dolist (state '(:ready :connecting :idle :transient-failure))
               (multiple-value-bind (pickers weights) (of-state state)
                 (when pickers
                   (return (publish tree state
                                    (if (eq :connecting state)
                                        nil
                                        (shares-picker pickers weights
                                                       (balancer-random tree))))))))))))

(defmethod child-published :after ((parent weighted-target) (child branch) state picker)
  "Connect CHILD if it is idle, since it gets no calls while others are ready."
  (declare (ignore picker))
  (when (eq :idle state) (exit-idle child)))
