;;;; A balancer that has one child, of the policy that a service config says, and changes it for one
;;;; of another policy without a failed call (gRPC's "graceful switch"): the new child gets ready
;;;; beside the old one, which serves until the new one has published another state than
;;;; :connecting, or is itself not ready. The channel's core has one, and so has every balancer
;;;; whose children a config names.

(in-package #:clgrpc.client)

(defclass switch (balancer)
  ((child :initform nil :accessor switch-child
          :documentation "The balancer that serves, or nil before the first update.")
   (policy :initform nil :accessor switch-policy
           :documentation "The policy of the newest child.")
   (state :initform :connecting :accessor switch-state
          :documentation "What CHILD has published last.")
   (next :initform nil :accessor switch-next
         :documentation "The balancer that is to follow CHILD, or nil.")
   (next-state :initform :connecting :accessor switch-next-state
               :documentation "What NEXT has published last.")
   (next-picker :initform nil :accessor switch-next-picker
                :documentation "What NEXT has published last."))
  (:documentation "A child whose policy can be changed."))

(defun dismiss (balancer)
  "BALANCER, a child that nobody hears any more, is not needed any more."
  (loop:guarding (:balancer-failed :balancer balancer) (close-balancer balancer))
  (close-subchannels balancer "its policy has ended"))

(defun promote (switch)
  "The next child of SWITCH serves from now on."
  (let ((old (switch-child switch)))
    (setf (switch-child switch) (shiftf (switch-next switch) nil)
          (switch-state switch) (switch-next-state switch))
    (publish switch (switch-state switch) (shiftf (switch-next-picker switch) nil))
    (dismiss old)))

;;; Policies of users

(defmacro define-balancer (name policy (&rest slots) &body class-options)
  "Define the class NAME of balancers with SLOTS and CLASS-OPTIONS as DEFCLASS has them, and have it
balance channels whose service config names POLICY, a string such as \"my_policy\", or that are made
with :balance and the keyword of that name, :my-policy. It has methods of UPDATE-BACKENDS and
SUBCHANNEL-CHANGED, and may have others of EXIT-IDLE and CLOSE-BALANCER. All run on the channel's
loop, so they must not wait; an error in one is logged. UPDATE-BACKENDS is given the policy's own
config as an alist from strings to values. A policy that has the name already gets another class;
balancers that there are keep theirs."
  `(progn
     (defclass ,name (balancer) (,@slots) ,@class-options)
     (config:register-policy ,(intern (substitute #\- #\_ (string-upcase policy)) '#:keyword)
                             '(,policy) ',name 'config:whole-object)
     ',name))

(defun call-guarded (switch balancer function)
  "Call FUNCTION, a method of BALANCER's, which may be a user's. If it signals an error, which is
logged, SWITCH has failed."
  (let ((error (nth-value 1 (loop:guarding (:balancer-failed :balancer balancer)
                              (funcall (the function function))))))
    (when error
      (publish switch :transient-failure
               (make-failure (format nil "the balancer failed: ~A" error) :internal)))))

(defun make-child (switch policy)
  (setf (switch-policy switch) policy)
  (make-instance (config:policy-class policy) :parent switch))

(defun begin-switch (switch policy)
  "Make a child of POLICY that is to follow, or the first one."
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
        ;; nobody else would ask it to connect
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
    (call-guarded balancer child (lambda () (exit-idle child)))))

(defmethod close-balancer ((balancer switch))
  (dolist (child (list (shiftf (switch-child balancer) nil) (shiftf (switch-next balancer) nil)))
    (when child (dismiss child))))
