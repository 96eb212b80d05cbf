;;;; Balancers: what decides which server has a call (gRPC's document "Load Balancing"). A balancer
;;;; hears of the channel's backends and of its subchannels' states, on the channel's loop, and
;;;; publishes the channel's state and a picker by one store (PUBLISH of core.lisp). It makes its
;;;; subchannels by OPEN-SUBCHANNEL, has them connect by CONNECT and gives them up by
;;;; CLOSE-SUBCHANNEL (subchannel.lisp).
;;;;
;;;; A picker is immutable but for what only picking changes. It is one of
;;;;
;;;;   nil            calls wait for another picker
;;;;   a FAILURE      calls end with it, and those that wait for ready wait
;;;;   a subchannel   it has every call: nothing is called for that
;;;;   a PICKER       its function returns one of the three above for each call

(in-package #:clgrpc.client)

(defstruct (failure (:constructor make-failure (text &optional (status :unavailable)))
                    (:copier nil))
  "What a picker gives that has no server for a call."
  (text "" :type string :read-only t)   ; what calls are told
  (status :unavailable :type keyword :read-only t)) ; that they end with

(declaim (sb-ext:freeze-type failure))

(defstruct (picker (:constructor make-picker (function text)) (:copier nil))
  "What picks a subchannel, a FAILURE or nil, which is to wait, for each call."
  (function nil :type function :read-only t) ; of the call; on the loop
  (text "" :type string :read-only t))  ; what it does, for people

(declaim (sb-ext:freeze-type picker))

(defmethod print-object ((failure failure) stream)
  (print-unreadable-object (failure stream :type t)
    (format stream "~(~A~): ~A" (failure-status failure) (failure-text failure))))

(defmethod print-object ((picker picker) stream)
  (print-unreadable-object (picker stream :type t)
    (write-string (picker-text picker) stream)))

(defclass balancer ()
  ((core :initarg :core :reader balancer-core
         :documentation "The CORE of the channel that it balances."))
  (:documentation "A policy at work in one channel."))

(defgeneric update-backends (balancer backends)
  (:documentation "The channel's servers are BACKENDS, a list that may be empty; some of them may be
the same as before."))

(defgeneric subchannel-changed (balancer subchannel)
  (:documentation "SUBCHANNEL, one of BALANCER's, has another state."))

(defgeneric exit-idle (balancer)
  (:documentation "The channel, which was idle, is to connect: a call needs it.")
  (:method ((balancer balancer)) nil))

;;; Policies by name

(defglobal **policies** '())            ; an alist from keyword to the name of a class

(defun register-policy (name class)
  "Have the policy NAME, a keyword, be that of CLASS, a subclass of BALANCER. From any thread."
  (sb-ext:atomic-update **policies**
                        (lambda (policies)
                          (append (remove name policies :key #'car) (list (cons name class)))))
  name)

(defun find-policy (name)
  "The class of the policy NAME. Signal MISUSE if there is none."
  (or (cdr (assoc name **policies**))
      (misuse "There is no policy ~S to balance by; there are ~{~S~^, ~}." name
              (mapcar #'car **policies**))))
