;;;; Channels: what stubs are called on, whatever carries their calls. A channel may be used from
;;;; any thread.
(in-package #:clgrpc.rpc)

(defclass channel () ()
  (:documentation "What stubs are called on. The client's and the in-process channel are its
subclasses; all may be used from any thread."))

(defgeneric invoke (channel method request &key timeout deadline metadata &allow-other-keys)
  (:documentation "Make the call that a stub stands for. METHOD is an RPC-METHOD; REQUEST and the
values depend on its kind as `DESIGN` lays down: see the documentation of stubs."))

(defgeneric channel-target (channel)
  (:documentation "The target that CHANNEL was made for, a string. From any thread."))

(defgeneric channel-state (channel)
  (:documentation "The connectivity of CHANNEL: :idle, :connecting, :ready, :transient-failure or
:shutdown. From any thread."))

(defgeneric close-channel (channel)
  (:documentation "End CHANNEL: its open calls end with :cancelled, its connection is closed in
order. Closing again does nothing. Saving the image closes all channels. One that is dropped without
being closed is closed some time after a garbage collection has found it, once its calls have ended,
with a warning in the log. From any thread, but not from a callback."))

(defgeneric ensure-connected (channel &key timeout)
  (:documentation "Connect CHANNEL if it is not, and wait until it is ready, TIMEOUT seconds, 10 by
default, at most. Return CHANNEL. Signal :unavailable with the reason if an attempt fails,
:deadline-exceeded if the time is up. From any thread but a loop's."))

(defgeneric wait-for-state-change (channel state &key timeout)
  (:documentation "Wait until the state of CHANNEL is another than STATE, TIMEOUT seconds, 10 by
default, at most; return the new state, or NIL if it is STATE still. The state may have changed more
than once. From any thread but a loop's."))

;;; What call credentials are sent on

(defgeneric channel-secure-p (channel)
  (:documentation "True if nobody on the way can read what CHANNEL sends.")
  (:method ((channel channel)) nil))

(defgeneric channel-plaintext-credentials (channel)
  (:documentation "True if CHANNEL sends call credentials though somebody might read them.")
  (:method ((channel channel)) nil))
