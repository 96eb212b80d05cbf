;;;; A balancer with one child, whose policy is that of the service config. When the config names
;;;; another policy, a child of that policy replaces it, without a failed call (gRPC's "graceful
;;;; switch"). The new child becomes ready while the old one serves. The old child serves until the
;;;; new child has published a state other than :connecting, or the old child is not ready itself.
;;;; The channel's core has a switch, and so has each child that a config of another balancer names.

(in-package #:clgrpc.client)

(defclass switch (balancer)
  ((child :initform nil :accessor switch-child
          :documentation "The balancer that serves, or nil before the first update.")
   (policy :initform nil :accessor switch-policy
           :documentation "The policy of the newest child.")
   (state :initform :connecting :accessor switch-state
          :documentation "The state that CHILD has last published.")
   (next :initform nil :accessor switch-next
         :documentation "The balancer that will replace CHILD; nil if no balancer will replace it.")
   (next-state :initform :connecting :accessor switch-next-state
               :documentation "The state that NEXT has last published.")
   (next-picker :initform nil :accessor switch-next-picker
                :documentation "The picker that NEXT has last published."))
  (:documentation "A balancer whose child can change its policy."))

(defun dismiss (balancer)
  "Close BALANCER, a child whose events are ignored now, and its subchannels."
  (loop:guarding (:balancer-failed :balancer balancer) (close-balancer balancer))
  (close-subchannels balancer "its policy has ended"))

(defun promote (switch)
  "Let the next child of SWITCH serve."
  (let ((old (switch-child switch)))
    (setf (switch-child switch) (shiftf (switch-next switch) nil)
          (switch-state switch) (switch-next-state switch))
    (publish switch (switch-state switch) (shiftf (switch-next-picker switch) nil))
    (dismiss old)))

;;; Policies of users

(defmacro define-balancer (name policy (&rest slots) &body class-options)
  "Define the class NAME of balancers with SLOTS and CLASS-OPTIONS as in DEFCLASS. Such a balancer
balances channels whose service config names POLICY, a string such as \"my_policy\", or that are
made with :balance and the keyword of that name, :my-policy. Define methods of UPDATE-BACKENDS and
SUBCHANNEL-CHANGED for the class, and perhaps of EXIT-IDLE and CLOSE-BALANCER. All methods run on
the channel's loop, so they must not wait; an error in a method is logged. The config of
UPDATE-BACKENDS is the policy's own as an alist from strings to values. A new class for a policy
replaces the old one; existing balancers keep their class. Evaluate the definition at top level."
  `(progn
     (defclass ,name (balancer) (,@slots) ,@class-options)
     (config:register-policy ,(intern (substitute #\- #\_ (string-upcase policy)) '#:keyword)
                             '(,policy) ',name 'config:whole-object)
     ',name))

(defun make-child (switch policy)
  "Make the balancer of POLICY for SWITCH; return it."
  (setf (switch-policy switch) policy)
  (make-instance (config:policy-class policy) :parent switch))

(defun begin-switch (switch policy)
  "Make a child of POLICY, the first child or one that will replace the present child."
  (let ((child (make-child switch policy))
        (passed-over (switch-next switch)))
    (cond ((null (switch-child switch))
           (setf (switch-child switch) child
                 (switch-state switch) :connecting))
          (t (setf (switch-next switch) child
                   (switch-next-state switch) :connecting
                   (switch-next-picker switch) nil)))
    (when passed-over (dismiss passed-over))))

(defun newest-child (switch)
  (or (switch-next switch) (switch-child switch)))

(defmethod update-backends ((balancer switch) backends config)
  (let ((policy (config:policy-config-row config)))
    (unless (and (switch-child balancer)
                 (eq (config:policy-class policy)
                     (config:policy-class (switch-policy balancer))))
      (trace-event :channel :policy :target (core-name (balancer-core balancer))
                                    :policy (config:policy-config-name config))
      (begin-switch balancer policy))
    (let ((child (newest-child balancer)))
      (call-guarded balancer child
                    (lambda ()
                      (update-backends child backends (config:policy-config-value config))))
      (when (eq child (switch-next balancer))
        ;; only this call makes the child connect
        (call-guarded balancer child (lambda () (exit-idle child)))
        (unless (eq :ready (switch-state balancer))
          (when (eq child (switch-next balancer)) (promote balancer)))))))

(defmethod child-published ((parent switch) child state picker)
  (cond ((eq child (switch-child parent))
         (setf (switch-state parent) state)
         (if (and (switch-next parent) (not (eq :ready state)))
             (promote parent)
             (publish parent state picker)))
        ((eq child (switch-next parent))
         (setf (switch-next-state parent) state
               (switch-next-picker parent) picker)
         (unless (and (eq :connecting state) (eq :ready (switch-state parent)))
           (promote parent)))))

(defmethod exit-idle ((balancer switch))
  (let ((child (newest-child balancer)))
    ;; nil if the child was closed: publishing a state may have ended it
    (when child (call-guarded balancer child (lambda () (exit-idle child))))))

(defmethod close-balancer ((balancer switch))
  (dolist (child (list (shiftf (switch-child balancer) nil) (shiftf (switch-next balancer) nil)))
    (when child (dismiss child))))
