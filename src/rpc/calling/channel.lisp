;;;; Channels: what stubs are called on, whatever transport carries their calls. A channel may be
;;;; used from any thread.
(in-package #:clgrpc.calling)

(defgeneric channel-target (channel)
  (:documentation "The target that CHANNEL was made for, a string. From any thread."))

(defgeneric channel-state (channel)
  (:documentation "The connectivity of CHANNEL: :idle, :connecting, :ready, :transient-failure or
:shutdown. From any thread."))

(defgeneric on-state-change (channel function)
  (:documentation "Call FUNCTION, of one argument, with the state of CHANNEL, as CHANNEL-STATE has
it, now and with each that it comes to, in their order, until :shutdown, which is the last. It runs
on CHANNEL's loop, or, for a channel within the image, in the thread that calls this or closes
CHANNEL: it must not wait. An error in it is logged. A FUNCTION that refers to CHANNEL keeps it from
being closed for having been dropped. Return CHANNEL. From any thread."))

(defun tell-state (function state)
  "Call FUNCTION, of ON-STATE-CHANGE, with STATE."
  (loop:guarding (:state-function-error :state state)
    (funcall (the function function) state)))

(defgeneric channel-addresses (channel)
  (:documentation "What CHANNEL knows of its servers now: a list of plists, one for each, with
:ADDRESS, text, of several addresses of one server with commas between; :STATE, as CHANNEL-STATE;
:CONNECTIONS, how many are ready; :CALLS, how many attempts of calls are under way; :PICKS, how
many attempts it was picked for; :FAILURES, how many of them ended with another status than :ok and
:cancelled; :FAILED-CONNECTS, how often no connection came about. Where there are any, these
follow: :LAST-ERROR, a text that says why it is not ready, :NEXT-ATTEMPT, the seconds until the next
attempt to connect, :SHARED-BY, how many channels use its connections if this one shares them (calls
and picks are its own), :ATTRIBUTES, what a resolver says of it, and what the policy adds. The
second value is a plist of the channel: :TARGET, :STATE, :POLICY, its name as in a service config,
:PICKER, a text that says which servers get calls, :RETRY-TOKENS, how many a retryThrottling has
left once an attempt has failed, :WAITING, how many calls wait for a connection or a stream, and
what the policy adds; :CHILDREN, such plists of the policies below it. A channel within the image
has no addresses. The values are for people, and more of them may be added. From any thread.")
  (:method ((channel channel))
    (values '() (list :target (channel-target channel) :state (channel-state channel)))))

(defgeneric close-channel (channel)
  (:documentation "End CHANNEL: its open calls end with :cancelled, its connection is closed in
order. Closing again does nothing. Saving the image closes all channels. A channel that its user has
dropped without closing it is closed, with a warning in the log, some time after a garbage
collection has found it and its calls have ended. From any thread, but not from a callback."))

(defgeneric ensure-connected (channel &key timeout)
  (:documentation "Connect CHANNEL if it is not, and wait until it is ready, TIMEOUT seconds, 10 by
default, at most. Return CHANNEL. Signal :unavailable with the reason if an attempt fails,
:deadline-exceeded if the time is up. While CHANNEL is in :transient-failure the next attempt is
waited for, which begins when its back-off ends. From any thread but a loop's."))

(defgeneric wait-for-state-change (channel state &key timeout)
  (:documentation "Wait until the state of CHANNEL is not STATE, TIMEOUT seconds, 10 by default, at
most. Return the new state, or NIL if it still is STATE. The state may have changed more than once.
From any thread but a loop's."))

(defgeneric reset-back-off (channel)
  (:documentation "Have CHANNEL try at once what it waits to try again, to resolve its target and to
connect to its servers, and wait after failures as after the first from now on: the network may have
come back. Return CHANNEL. From any thread."))

(defgeneric limit-silence (channel seconds)
  (:documentation "Have CHANNEL ask, while calls are under way, whether a server is there that has
been silent for SECONDS, and give up its connection if it is silent for as long again, even if
:keepalive-seconds and :keepalive-timeout-seconds are longer: the calls there end with :unavailable,
and the next go to other servers. It is for services whose servers bear that, see
MIN-PING-SECONDS; a channel whose server has complained of PINGs goes on as it did. Return
CHANNEL. From any thread.")
  (:method ((channel t) seconds) (declare (ignore seconds)) channel))

;;; What call credentials are sent on

(defgeneric channel-secure-p (channel)
  (:documentation "True if nobody on the way can read what CHANNEL sends. The second value is true
if it sends call credentials though somebody might.")
  (:method ((channel channel)) nil))

;;; Channels

(defclass interception ()
  ((interceptors :initarg :interceptors :reader channel-interceptors) ; the outermost first
   ;; see call-credentials.lisp, or nil
   (call-credentials :initarg :call-credentials :reader channel-call-credentials))
  (:documentation "What a channel with interceptors or call credentials is besides its own kind."))

(defun invoke-intercepted (interceptors method request options invoker)
  "Call INVOKER, a function of a request and a plist of options, through INTERCEPTORS, functions,
for METHOD, REQUEST and OPTIONS."
  (declare (type function invoker))
  (if interceptors
      (funcall (first interceptors) method request options
               (lambda (request options)
                 (invoke-intercepted (rest interceptors) method request options invoker)))
      (funcall invoker request options)))

(document-functions
  channel-interceptors "The interceptors of CHANNEL, as CHECK-INTERCEPTORS takes them."
  channel-call-credentials "The call credentials of CHANNEL's calls, or nil.")

(defmethod invoke :around ((channel interception) method request &rest options)
  (let ((credentials (channel-call-credentials channel)))
    (invoke-intercepted
     (interceptors-for (channel-interceptors channel) method) method request options
     (lambda (request options)
       (apply #'call-next-method channel method request
              (if credentials
                  (list* :call-credentials
                         (let ((own (getf options :call-credentials)))
                           (if own (compose-credentials credentials own) credentials))
                         options)
                  options))))))
