;;;; Balancers: what decides which server has a call (gRPC's document "Load Balancing"). A balancer
;;;; hears of the channel's backends and of its subchannels' states, on the channel's loop, and
;;;; publishes a state and a picker by PUBLISH. It makes its subchannels by OPEN-SUBCHANNEL, has
;;;; them connect by CONNECT and gives them up by CLOSE-SUBCHANNEL (subchannel.lisp).
;;;;
;;;; Balancers are a tree: each has a parent, which is the channel's core or another balancer, and
;;;; publishes to that. A balancer that has children makes them with itself as :PARENT, hands them
;;;; the backends, and decides in CHILD-PUBLISHED what becomes of what they publish.
;;;;
;;;; A picker is immutable but for what only picking changes. It is one of
;;;;
;;;;   nil            calls wait for another picker; an idle channel is to connect
;;;;   a FAILURE      calls end with it, and those that wait for ready wait
;;;;   a subchannel   it has every call: nothing is called for that
;;;;   a PICKER       its function returns one of the three above for each call. Calls that wait
;;;;                  hold up those after them, unless it is CHOOSY: then each waits for itself

(in-package #:clgrpc.client)

(defstruct (failure (:constructor %make-failure (text status drop))
                    (:copier nil))
  "What a picker gives that has no server for a call."
  (text "" :type string :read-only t)   ; what calls are told
  (status :unavailable :type keyword :read-only t) ; that they end with
  (drop nil :type boolean :read-only t)) ; they are to fail: nothing is gained by another attempt

(declaim (sb-ext:freeze-type failure))

(defun make-failure (text &optional (status :unavailable) drop)
  "Return what a picker gives for a call that ends with TEXT and STATUS, a keyword, :unavailable
unless it is given. A call that waits for ready waits on, unless DROP is true: then that, too, ends
at once, and is not made again. A STATUS that only applications give, such as :not-found, becomes
:internal (gRFC A54)."
  (multiple-value-bind (status text) (status:control-status status text)
    (%make-failure text status drop)))

(defstruct (picker (:constructor new-picker
                       (function text &key choosy (eager choosy) again waiting))
                   (:copier nil))
  "What picks a subchannel, a FAILURE or nil, which is to wait, for each call."
  (function nil :type function :read-only t) ; of the call; on the loop
  (text "" :type string :read-only t)   ; what it does, for people
  (choosy nil :type boolean :read-only t) ; what it gives is for that call: others need not wait
  (eager nil :type boolean :read-only t) ; calls are picked for when they come, whatever others wait
  ;; of a subchannel that was picked before for a call, which waits for it, and the call: what is
  ;; picked now; nil: the same
  (again nil :type (or null function) :read-only t)
  ;; of a QUEUED-ATTEMPT that has begun to wait: nil, or a FAILURE with which it has left its queue
  (waiting nil :type (or null function) :read-only t))

(declaim (sb-ext:freeze-type picker))

(defun make-picker (function text &key choosy)
  "Return a picker for PUBLISH: FUNCTION is called with each call, and returns a subchannel that is
ready, what MAKE-FAILURE returns, or nil, so that the call waits for another picker. TEXT says for
people what it does. Calls that wait hold up those after them, unless CHOOSY is true: what FUNCTION
returns is then of interest to that call alone. FUNCTION runs on the channel's loop, so it must not
wait; a call for which it signals an error ends with :internal. The call tells it what its user
gave by RPC-METHOD and the like."
  (declare (type function function))
  (new-picker (lambda (call)
                (handler-case (funcall function call)
                  (error (error)
                    (log-condition :error :picker-failed error :picker text)
                    (make-failure (format nil "the balancer's picker failed: ~A" error)
                                  :internal))))
              text :choosy choosy))

(document-functions
  new-picker "As MAKE-PICKER, for a FUNCTION that signals no errors.")

(defmethod print-object ((failure failure) stream)
  (print-unreadable-object (failure stream :type t)
    (format stream "~(~A~): ~A" (failure-status failure) (failure-text failure))))

(defmethod print-object ((picker picker) stream)
  (print-unreadable-object (picker stream :type t)
    (write-string (picker-text picker) stream)))

(defgeneric parent-core (parent)
  (:documentation "The CORE of the channel that PARENT, of a balancer, is of."))

(defclass balancer ()
  ((parent :initarg :parent :reader balancer-parent
           :documentation "What it publishes to: the channel's CORE or another balancer.")
   (core :accessor balancer-core
         :documentation "The CORE of the channel that it balances."))
  (:documentation "A policy at work in one channel. Each class of a user's has methods of
UPDATE-BACKENDS and SUBCHANNEL-CHANGED, which call PUBLISH."))

(defmethod initialize-instance :after ((balancer balancer) &key parent)
  (setf (balancer-core balancer) (parent-core parent)))

(defmethod parent-core ((parent balancer))
  (balancer-core parent))

(document-functions
  balancer-parent "What BALANCER publishes to: the channel's CORE or another balancer."
  balancer-core "The CORE of the channel that BALANCER balances.")

;;; What a balancer hears

(defgeneric update-backends (balancer backends config)
  (:documentation "The servers that BALANCER has are BACKENDS, a list of BACKEND that may be empty;
some of them may be the same as before. CONFIG is what the policy's parser made of the config that
is in force. Called once BALANCER is made, and whenever one of the two changes."))

(defgeneric subchannel-changed (balancer subchannel)
  (:documentation "SUBCHANNEL, one of BALANCER's, has another state."))

(defgeneric exit-idle (balancer)
  (:documentation "A call needs a connection: BALANCER is to connect, if it has published :idle.")
  (:method ((balancer balancer)) nil))

(defgeneric close-balancer (balancer)
  (:documentation "BALANCER is not needed any more; its subchannels are closed after this, and what
it publishes is not heard.")
  (:method ((balancer balancer)) nil))

;;; What a balancer says

(defgeneric child-published (parent child state picker)
  (:documentation "CHILD, a balancer that PARENT has made, is in STATE and has PICKER."))

(defgeneric subchannel-opened (ancestor subchannel)
  (:documentation "A balancer below ANCESTOR has opened SUBCHANNEL.")
  (:method (ancestor subchannel)
    (declare (ignore ancestor subchannel))
    nil))

(defgeneric subchannel-closed (ancestor subchannel)
  (:documentation "A balancer below ANCESTOR has closed SUBCHANNEL.")
  (:method (ancestor subchannel)
    (declare (ignore ancestor subchannel))
    nil))

(defgeneric resolving-wanted-p (ancestor child)
  (:documentation "True if the channel's resolver is to be asked again when CHILD of ANCESTOR, or a
balancer below it, has lost a server or cannot reach one.")
  (:method (ancestor child)
    (declare (ignore ancestor child))
    t))

(defun publish (balancer state picker)
  "Tell what BALANCER is a child of that BALANCER is in STATE, one of :idle, :connecting, :ready and
:transient-failure, and that calls are picked for by PICKER from now on: nil, so that they wait; a
subchannel, which has them all; what MAKE-PICKER or MAKE-FAILURE returns. On the channel's loop."
  (child-published (balancer-parent balancer) balancer state picker))

(defun map-ancestors (function balancer)
  "Call FUNCTION with each balancer above BALANCER, the nearest first."
  (declare (type function function))
  (loop for parent = (balancer-parent balancer) then (balancer-parent parent)
        while (typep parent 'balancer)
        do (funcall function parent)))
