;;;; Channels, the objects on which stubs are called, over any transport. A channel may be used from
;;;; any thread.
(in-package #:clgrpc.calling)

(defgeneric channel-state (channel)
  (:documentation "The connectivity of CHANNEL: :idle, :connecting, :ready, :transient-failure or
:shutdown. From any thread."))

(defgeneric on-state-change (channel function)
  (:documentation "Call FUNCTION with the state of CHANNEL, a keyword of CHANNEL-STATE, now and
after each change, in order; :shutdown is the last state. FUNCTION runs on CHANNEL's loop or, for a
channel within the image, in the thread that calls this or closes CHANNEL, so it must not wait. An
error in FUNCTION is logged. While FUNCTION refers to CHANNEL, CHANNEL does not count as dropped, so
it is not closed automatically. Return CHANNEL. From any thread."))

(defun tell-state (function state)
  "Call FUNCTION, an argument of ON-STATE-CHANGE, with STATE."
  (loop:guarding (:state-function-error :state state)
    (funcall (the function function) state)))

(defgeneric channel-addresses (channel)
  (:documentation "Return the present state of CHANNEL's servers: a list of plists, one for each:
 :ADDRESS, a text; several addresses of one server are separated by commas;
 :STATE, as CHANNEL-STATE;
 :CONNECTIONS, how many connections are ready;
 :CALLS, how many attempts of calls are under way;
 :PICKS, for how many attempts the server was picked;
 :FAILURES, how many of these ended with another status than :ok and :cancelled;
 :FAILED-CONNECTS, how many attempts to connect have failed;
 :LAST-ERROR, if it exists, a text with the reason why the server is not ready;
 :NEXT-ATTEMPT, if there is one, the seconds until the next attempt to connect;
 :SHARED-BY, how many channels use the server's connections, if this channel shares them (calls and
   picks are this channel's own);
 :ATTRIBUTES, from the resolver, if there are any;
 the entries that the policy adds.
The second value is a plist of the channel:
 :TARGET and :STATE;
 :POLICY, its name as in a service config;
 :PICKER, a text that describes which servers get calls;
 :RETRY-TOKENS, how many tokens retryThrottling has left, once an attempt has failed;
 :WAITING, how many calls wait for a connection or a stream;
 the entries that the policy adds, and :CHILDREN, such plists for the policies below it.
A channel within the image has no addresses. These data are meant for people, and may be extended.
From any thread.")
  (:method ((channel channel))
    (values '() (list :target (channel-target channel) :state (channel-state channel)))))

(defgeneric close-channel (channel)
  (:documentation "End CHANNEL: its open calls end with :cancelled, its connection is closed in
order. Closing again does nothing. Saving the image closes all channels. A channel that its user
drops without closing it is closed, with a warning in the log, some time after its calls have ended
and the garbage collector has found it. Signal MISUSE if CHANNEL is not a channel. From any thread,
but not from a callback.")
  (:method (channel)
    (misuse "~S is not a channel, such as the value of MAKE-CHANNEL." channel)))

(defgeneric ensure-connected (channel &key timeout)
  (:documentation "Connect CHANNEL if it is not connected, and wait until it is ready, at most
TIMEOUT seconds, 10 by default. Return CHANNEL. Signal :unavailable with the reason if an attempt
fails, and :deadline-exceeded when TIMEOUT has passed. While CHANNEL is in :transient-failure, wait
for the next attempt, which begins when its back-off ends. From any thread but a loop's."))

(defgeneric wait-for-state-change (channel state &key timeout)
  (:documentation "Wait until the state of CHANNEL is not STATE, at most TIMEOUT seconds, 10 by
default. Return the new state, or NIL if the state is still STATE after TIMEOUT. The state may have
changed more than once. From any thread but a loop's."))

(defgeneric reset-back-off (channel)
  (:documentation "End the back-off of CHANNEL: resolve its target and connect to its servers at
once, and begin later back-offs with the shortest wait. Use RESET-BACK-OFF when the network works
again. Return CHANNEL. From any thread."))
