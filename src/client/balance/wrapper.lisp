;;;; The common code of balancers with one child, of any policy, whose state and picker they
;;;; publish; and the reader of a child's policy in configs.

(in-package #:clgrpc.balance)

(defclass wrapper (balancer)
  ((child :accessor wrapper-child
          :documentation "A SWITCH, which has the child."))
  (:documentation "A balancer with one child."))

(defmethod initialize-instance :after ((balancer wrapper) &key)
  (setf (wrapper-child balancer) (make-instance 'switch :parent balancer)))

(defmethod child-published ((parent wrapper) child state picker)
  (declare (ignore child))
  (publish parent state picker))

(defmethod exit-idle ((balancer wrapper))
  (exit-idle (wrapper-child balancer)))

(defmethod close-balancer ((balancer wrapper))
  (close-balancer (wrapper-child balancer)))

(defmethod client:balancer-facts ((balancer wrapper))
  (list :children (list (client:balancer-facts (wrapper-child balancer)))))

(defun child-field (object name path)
  "The POLICY-CONFIG in the field NAME of OBJECT, a list of policies as in loadBalancingConfig."
  (multiple-value-bind (list present) (config:field object name)
    (let ((path (config:member-path path name)))
      (unless present (config:config-error path "must be given"))
      (config:parse-balancing list path))))
