;;;; Balancers, which decide which server gets a call (gRPC's document "Load Balancing"). A balancer
;;;; gets the channel's backends and the states of its subchannels, on the channel's loop, and
;;;; publishes a state and a picker by PUBLISH. A balancer makes its subchannels by OPEN-SUBCHANNEL,
;;;; connects them by CONNECT and closes them by CLOSE-SUBCHANNEL (subchannel.lisp).
;;;;
;;;; Balancers are a tree: each has a parent, which is the channel's core or another balancer, and
;;;; publishes to its parent. A balancer that has children makes them with itself as :PARENT, passes
;;;; them the backends, and combines their states and pickers in CHILD-PUBLISHED.
;;;;
;;;; A picker is immutable, except for data that only picking uses. A picker is one of
;;;;
;;;;   nil            calls wait for another picker; an idle channel connects
;;;;   a FAILURE      calls end with it, except wait-for-ready calls, which wait
;;;;   a subchannel   it gets every call, without a function call
;;;;   a PICKER       its function returns one of the three above for each call. Calls that wait
;;;;                  delay the calls after them, unless the picker is CHOOSY: then each call waits
;;;;                  alone

(in-package #:clgrpc.client)

(defstruct (failure (:constructor %make-failure (text status drop))
                    (:copier nil))
  "The pick for a call that gets no server."
  (text "" :type string :read-only t)   ; the message of the calls' status
  (status :unavailable :type keyword :read-only t) ; the status with which calls end
  (drop nil :type boolean :read-only t)) ; true: even calls that wait for ready end

(declaim (sb-ext:freeze-type failure))

(defun make-failure (text &optional (status :unavailable) drop)
  "Return a pick for calls that end with TEXT and STATUS, a keyword, :unavailable by default. A call
that waits for ready continues to wait, unless DROP is true: then it also ends at once, and is not
retried. A STATUS that only applications may give, such as :not-found, becomes :internal (gRFC A54).
Signal MISUSE if STATUS is not a status. From any thread."
  (multiple-value-bind (status text) (status:control-status status text)
    (%make-failure text status drop)))

(defstruct (picker (:constructor new-picker
                       (function text &key choosy (eager choosy) again waiting))
                   (:copier nil))
  "A function that picks a subchannel, a FAILURE, or nil to wait, for each call."
  (function nil :type function :read-only t) ; a function of the call; on the loop
  (text "" :type string :read-only t)   ; the picker's description, for people
  (choosy nil :type boolean :read-only t) ; a pick is for one call: others need not wait
  (eager nil :type boolean :read-only t) ; new calls do not wait for earlier ones
  ;; a function of a subchannel that was picked for a call, which waits for it, and of the call: it
  ;; returns the new pick, or nil to keep the old one
  (again nil :type (or null function) :read-only t)
  ;; of a QUEUED-ATTEMPT that has begun to wait: nil, or a FAILURE with which it has left its queue
  (waiting nil :type (or null function) :read-only t))

(declaim (sb-ext:freeze-type picker))

(defun make-picker (function text &key choosy)
  "Return a picker for PUBLISH. FUNCTION is called with each call, and returns a subchannel that is
ready, a failure from MAKE-FAILURE, or nil, so that the call waits for another picker. TEXT
describes the picker for people. Calls that wait delay the calls after them, unless CHOOSY is true,
which means that a pick is for one call only. FUNCTION runs on the channel's loop, so it must not
wait; a call for which it signals an error ends with :internal. FUNCTION can inspect the call by
CALL-RPC-METHOD and similar functions. From any thread."
  (declare (type function function))
  (new-picker (lambda (call)
                (handler-case (funcall function call)
                  (error (error)
                    (log-condition :error :picker-failed error :picker text)
                    (make-failure (format nil "the balancer's picker failed: ~A"
                                          (bounded-text error))
                                  :internal))))
              text :choosy choosy))

(document-functions
  new-picker "As MAKE-PICKER, for a FUNCTION that signals no errors.")

(define-printer (failure failure)
  "~(~A~): ~A" (failure-status failure) (failure-text failure))

(define-printer (picker picker)
  "~A" (picker-text picker))

(defgeneric parent-core (parent)
  (:documentation "The CORE of the channel of PARENT, a balancer's parent."))

(defclass balancer ()
  ((parent :initarg :parent :reader balancer-parent
           :documentation "The CORE or balancer to which the balancer publishes.")
   (core :accessor balancer-core
         :documentation "The CORE of the balancer's channel."))
  (:documentation "An instance of a balancing policy, for one channel. A class that a user defines
has methods of UPDATE-BACKENDS and SUBCHANNEL-CHANGED, which call PUBLISH."))

(defmethod initialize-instance :after ((balancer balancer) &key parent)
  (setf (balancer-core balancer) (parent-core parent)))

(defmethod parent-core ((parent balancer))
  (balancer-core parent))

(document-functions
  balancer-parent "The CORE or balancer to which BALANCER publishes."
  balancer-core "The CORE of BALANCER's channel.")

;;; Events for balancers

(defgeneric update-backends (balancer backends config)
  (:documentation "Make BACKENDS, a list of BACKEND that may be empty, the servers of BALANCER; some
of them may be the same as before. CONFIG is the policy's config in force, as its parser has
returned it. Called when BALANCER has been made, and whenever BACKENDS or CONFIG changes. On the
channel's loop."))

(defgeneric subchannel-changed (balancer subchannel)
  (:documentation "Handle a change of the state of SUBCHANNEL, a subchannel of BALANCER. On the
channel's loop."))

(defgeneric exit-idle (balancer)
  (:documentation "Connect BALANCER if it has published :idle, since a call needs a connection. On
the channel's loop.")
  (:method ((balancer balancer)) nil))

(defgeneric close-balancer (balancer)
  (:documentation "Clean up after BALANCER, which is no longer needed. BALANCER's subchannels are
closed after this, and the states that it publishes are ignored. On the channel's loop.")
  (:method ((balancer balancer)) nil))

;;; Events from balancers

(defgeneric child-published (parent child state picker)
  (:documentation "Handle the STATE and PICKER that CHILD, a balancer made by PARENT, has
published."))

(defgeneric subchannel-opened (ancestor subchannel)
  (:documentation "Note that a balancer below ANCESTOR has opened SUBCHANNEL.")
  (:method (ancestor subchannel)
    (declare (ignore ancestor subchannel))
    nil))

(defgeneric subchannel-closed (ancestor subchannel)
  (:documentation "Note that a balancer below ANCESTOR has closed SUBCHANNEL.")
  (:method (ancestor subchannel)
    (declare (ignore ancestor subchannel))
    nil))

(defgeneric resolving-wanted-p (ancestor child)
  (:documentation "True if the channel resolves again when CHILD of ANCESTOR, or a balancer below
it, has lost a server or cannot reach one.")
  (:method (ancestor child)
    (declare (ignore ancestor child))
    t))

(defun publish (balancer state picker)
  "Publish to BALANCER's parent its STATE, one of :idle, :connecting, :ready and :transient-failure,
and its PICKER: nil, so that calls wait; a subchannel, which gets all calls; a picker from
MAKE-PICKER; or a failure from MAKE-FAILURE. On the channel's loop."
  (child-published (balancer-parent balancer) balancer state picker))

(defun call-guarded (publisher balancer function)
  "Call FUNCTION, which calls a method for BALANCER; users may have defined the method. An error in
FUNCTION is logged, and PUBLISHER, a balancer, publishes a failure, since otherwise calls might wait
for ever."
  (when-let ((error (nth-value 1 (loop:guarding (:balancer-failed :balancer balancer)
                                   (funcall (the function function))))))
    (publish publisher :transient-failure
             (make-failure (format nil "the balancer failed: ~A" (bounded-text error))
                           :internal))))

(defun map-ancestors (function balancer)
  "Call FUNCTION with each balancer above BALANCER, the nearest first."
  (declare (type function function))
  (loop for parent = (balancer-parent balancer) then (balancer-parent parent)
        while (typep parent 'balancer)
        do (funcall function parent)))
