;;;; Attempts of a call, the first and those that follow it or run beside it: how one begins on a
;;;; stream, is answered or fails, and is over. What follows from that is decided by
;;;; calling/retry.lisp, which has it done by **RETRY-OPERATIONS**.
;;;;
;;;; 1. SUBMIT finds a stream, or has the call wait for one (core.lisp). The attempt that it begins
;;;;    is the user of the stream. The call goes on with the oldest attempt under way: the stream of
;;;;    that is the call's.
;;;; 2. The first attempt whose answer begins commits the call: its stream is the call's from then
;;;;    on, and those of the others are reset.
;;;; 3. An attempt that fails before that is left, and what is decided then is carried out: the call
;;;;    goes on with another attempt, now or later, or ends. All of it within its one deadline.
;;;; 4. When a stream is closed its attempt is over, and everybody is told.
;;;;
;;;; A call without policy has no RETRIES until an attempt of it has failed, so it costs nothing
;;;; that it might be tried again. The channel's own calls (internal-call.lisp) are neither made
;;;; again nor intercepted. All of it on the call's loop.

(in-package #:clgrpc.client)

(defun find-policy-of (call)
  "The retry or hedging policy that the service config in force has for CALL, and how many attempts
it allows; or nil."
  (and (not (internal-call-p call))
       (find-retry-policy (method-config-of call) (wire-call-options call))))

(defun ensure-retries (call)
  "The RETRIES of CALL, made now if there are none."
  (or (call-retries call)
      (multiple-value-bind (policy limit) (find-policy-of call)
        (let ((stream (client-call-stream call)))
          (setf (client-parts-retries (ensure-client-parts call))
                (make-client-retries policy (or limit 1)
                                     (and stream (list (http2:stream-user stream)))))))))

(defun throttle-of (call)
  "The throttle of CALL's channel, as the service config in force has it, or nil."
  (let ((core (client-call-core call)))
    (setf (core-throttle core)
          (current-throttle (core-throttle core) (core-config core)))))

(defun plain-p (call)
  "True if CALL has no policy, nor other attempts: one failure ends it."
  (and (null (call-retries call))
       (null (core-methods (client-call-core call)))))

;;; What is decided is carried out: see calling/retry.lisp

(defun resend-after (call)
  "Begin another attempt of CALL as soon as the stream of the one that has failed is closed."
  (loop:defer (wire-call-loop call) #'submit-again call))

(defun ensure-anew (call)
  "CALL, which goes on, is as if it had had no stream if it has none now."
  (unless (client-call-stream call)
    (setf (client-parts-wait (ensure-client-parts call)) nil)
    (wire:reset-marks call)))

(defun submit-again (call)
  (unless (call-status call)
    (guarding-call (call) (submit call nil))))

(defun await-attempt (call delay-ns)
  "The time of the next attempt of CALL comes after DELAY-NS, unless CALL has ended by then."
  (cancel-retry call)
  (if (zerop delay-ns)
      (loop:defer (wire-call-loop call) #'begin-undelayed call)
      (let* ((core (client-call-core call))
             (timer (make-timer #'begin-due call)))
        (setf (client-retries-timer (call-retries call)) timer
              (gethash call (core-retrying core)) t)
        (schedule-timer (loop:event-loop-wheel (core-loop core)) timer
                        (time-after delay-ns (core-now core))))))

(defun begin-undelayed (call)
  "As BEGIN-DUE, unless a later time is awaited by now."
  (unless (client-retries-timer (call-retries call)) (begin-due call)))

(define-load-time-global **retry-operations**
    (calling:make-retry-operations
     :retries #'ensure-retries :throttle #'throttle-of
     :now (lambda (call) (core-now (client-call-core call)))
     :chance (lambda (call) (loop:event-loop-random (wire-call-loop call)))
     :sendable (lambda (call) (and (not (internal-call-p call)) (repeatable-p call)))
     :keep #'keep-request :go-on #'ensure-anew :await #'await-attempt :cancel #'cancel-retry
     :begin (lambda (call) (submit call nil)) :resend #'resend-after :fail #'end-with-failure))

(defun begin-due (call)
  "The time of the next attempt of CALL has come."
  (cancel-retry call)
  (unless (call-status call)
    (guarding-call (call)
      (calling:tell-due **retry-operations** call))))

;;; What interceptors of attempts (calling/attempt-view.lisp) know of one: its view

(defun interceptor-failure (call error)
  "How an attempt of CALL fails since an interceptor has signalled ERROR."
  (let ((trailers (status:rpc-error-trailers error)))
    (make-client-failure (status:rpc-error-status error) (or (rpc-error-message error) "")
                         :how (list :details (status:rpc-error-details-octets error)
                                    :ended-by :local :sent (and (rpc:failed-attempts call) t))
                         :pushback (metadata-pushback trailers)
                         :trailers (metadata-fields trailers))))

(defun intercept (attempt link)
  "Call the interceptors, if there are some, for ATTEMPT on LINK. Return how it fails if they have
it fail, or if it cannot have its headers."
  (let ((call (attempt-call attempt))
        (number (attempt-number attempt)))
    (multiple-value-bind (view error)
        (if (internal-call-p call)
            (values nil nil)
            (calling:view-attempt call number (call-retries call) (wire:link-peer link)
                                  (rpc:outgoing-metadata call)
                                  (core-attempt-interceptors (client-call-core call))))
      (setf (attempt-view attempt) view)
      (if error
          (interceptor-failure call error)
          (unfit-headers call link number (attempt-metadata attempt))))))

(defun attempt-metadata (attempt)
  "The metadata that ATTEMPT sends, an alist."
  (let ((view (attempt-view attempt)))
    (if view
        (calling:attempt-request-metadata view)
        (rpc:outgoing-metadata (attempt-call attempt)))))

(defun end-view (attempt call own status)
  "ATTEMPT of CALL is over with STATUS; OWN is true if that is how CALL went on. Tell interceptors."
  (let ((view (shiftf (attempt-view attempt) nil))
        (cause (attempt-cause attempt)))
    (cond ((null view))
          (own (calling:close-attempt view (or status :cancelled) :call call))
          (cause (calling:close-attempt view status
                                        :message (client-failure-message cause)
                                        :trailer-fields (client-failure-trailers cause)))
          (t (calling:close-attempt view status)))))

;;; An attempt begins

(define-hot (tell-attempt-begun :inline t) ((call client-call) (link link) (stream http2:stream))
    null
  "An attempt of CALL has STREAM of LINK."
  (rpc:observe attempt-begun (client-observer call)
               call (wire:link-peer link) (http2:stream-id stream))
  nil)

(define-hot (go-on-with :inline t) ((call client-call) (link link) (stream http2:stream)) null
  "CALL goes on with the attempt on STREAM of LINK."
  (setf (client-call-link call) link
        (client-call-stream call) stream)
  nil)

(define-hot (new-attempt :inline t) ((call client-call) (stream http2:stream)) attempt
  "The attempt of CALL that begins on STREAM."
  (let ((attempt (stream-attempt stream))
        (retries (call-retries call)))
    (setf (attempt-call attempt) call)
    (cond (retries
           (setf (attempt-number attempt) (calling:take-number retries)
                 (attempt-began-ns attempt) (core-now (client-call-core call)))
           (calling:add-attempt retries attempt))
          (t (setf (attempt-number attempt) 0
                   (attempt-began-ns attempt) (client-call-born-ns call))))
    attempt))

(define-hot begin-attempt ((call client-call) (link link) (stream http2:stream) request) null
  "An attempt of CALL begins on STREAM of LINK: it sends its headers and its only REQUEST, or if
that is nil what CALL has sent before, and what has waited for a stream."
  (let ((own (null (client-call-stream call)))
        (core (client-call-core call))
        (attempt (new-attempt call stream)))
    (when own (setf (client-call-link call) link))
    (wire:begin-on-link link)
    (tell-attempt-begun call link stream)
    (when request (setf (client-call-request call) request))
    ;; what interceptors send on CALL, or that they end it, finds no stream yet
    (let ((failure (if (core-attempt-interceptors core)
                       (intercept attempt link)
                       (unfit-headers call link (attempt-number attempt)
                                      (rpc:outgoing-metadata call)))))
      (cond ((call-status call) (reset-attempt attempt))
            (failure (fail-attempt attempt failure))
            (t (when own (go-on-with call link stream))
               (unless (and own (core-methods core) (refuse-long-request call request))
                 (when (core-methods core) (follow-policy call))
                 (write-attempt attempt own))))))
  nil)

(define-hot write-attempt ((attempt attempt) (own boolean)) null
  "Send the headers of ATTEMPT and what its call has to send; OWN if the call goes on with it."
  (let ((call (the client-call (attempt-call attempt)))
        (stream (attempt-stream attempt)))
    (when own (wire:mark-call call :headers))
    (write-head call stream (attempt-number attempt) (attempt-metadata attempt))
    (when own (rpc:observe headers-sent (core-observer (client-call-core call)) call))
    (cond ((null (client-call-request call))
           (write-replay call stream)
           (cond ((call-status call))   ; there was no memory for it
                 (own (write-outbox call))
                 ((wire:marked-p call :closed) (end-side stream))))
          (own (write-request call))
          (t (write-again call stream (encoded-request call) t))))
  nil)

(defun follow-policy (call)
  "The first attempt of CALL, whose channel's service config says something of methods, has a
stream; nothing has been sent on it."
  (let ((policy (and (null (call-retries call)) (find-policy-of call))))
    (when policy
      (unless (client-call-request call)
        (begin-replay call (options-replay-octets (wire-call-options call))))
      (when (typep policy 'config:hedging-policy)
        (calling:tell-begun **retry-operations** call)))))

(define-hot submit ((call client-call) request) t
  "Begin an attempt of CALL, with its only REQUEST unless that is nil, once its credentials have
said who calls, and there is a stream."
  (let* ((parts (call-client-parts call))
         (identity (and parts (client-parts-identity parts))))
    (if (and identity (not (shiftf (caller-identity-asked identity) nil)))
        (ask-identity call identity request #'submit-identified)
        (submit-now call request))))

(defun submit-identified (call request error)
  "The credentials of CALL, which runs, have answered: its attempt goes on, with its only REQUEST
unless that is nil, or fails with ERROR, an RPC-ERROR: once it has a stream if no service config is
in force yet, since that may say what follows."
  (cond ((null error) (submit-now call request))
        ((core-config (client-call-core call))
         (fail-unbegun call (interceptor-failure call error)))
        (t (let ((identity (client-parts-identity (ensure-client-parts call))))
             (setf (rpc:outgoing-metadata call) (caller-identity-metadata identity)
                   (caller-identity-failure identity) (interceptor-failure call error)))
           (submit-now call request))))

(define-hot submit-now ((call client-call) request) t
  "Begin an attempt of CALL, with its only REQUEST unless that is nil, once there is a stream."
  (multiple-value-bind (stream link picked) (find-stream (client-call-core call) call)
    (cond (stream (begin-attempt call link stream request))
          (t (when request
               (setf (client-call-request call) (wire:encode-message call request nil)))
             (wait-for-stream (client-call-core call) call picked #'take-stream)))))

(defun take-stream (call stream link failure)
  "CALL, which has waited for it, has STREAM of LINK; or none, because of FAILURE."
  (if stream
      (begin-attempt call link stream nil)
      (fail-unbegun call failure)))

;;; An attempt fails

(defun record-failure (call number link failure)
  "CALL's user can ask later how the attempt has failed that NUMBER others came before, on LINK, or
without a stream if that is nil."
  (rpc:note-failed-attempt call number (and link (wire:link-peer link))
                           (client-failure-status failure) (client-failure-message failure)
                           (ns-seconds (since call (client-call-born-ns call)))))

(defun follow-failure (call attempt number link failure)
  "ATTEMPT of CALL, which runs, on LINK, or both nil of one without a stream, has failed with
FAILURE. NUMBER others came before it. It is left already."
  (guarding-call (call)
    (record-failure call number link failure)
    (calling:tell-failed **retry-operations** call attempt number failure
                         (and link (client-link-draining link) (client-link-born-ns link)))))

(defun fail-attempt (attempt failure)
  "ATTEMPT, whose call runs and is not committed, has failed with FAILURE: the call goes on without
it."
  (let* ((call (attempt-call attempt))
         (link (stream-link (attempt-stream attempt)))
         (number (attempt-number attempt))
         (retries (ensure-retries call)))
    (setf (attempt-cause attempt) failure)
    (calling:forget-attempt retries attempt)
    (when (eq (attempt-stream attempt) (client-call-stream call))
      (let ((other (first (client-retries-running retries))))
        (if other
            (go-on-with call (stream-link (attempt-stream other)) (attempt-stream other))
            (setf (client-call-stream call) nil))))
    (reset-attempt attempt)
    (unless (call-status call) (follow-failure call attempt number link failure))))

(defun fail-unbegun (call failure)
  "An attempt of CALL, which runs, has failed with FAILURE: it gets no stream."
  (if (plain-p call)
      (end-with-failure call failure)
      (let* ((retries (call-retries call))
             (began-ns (if retries
                           (client-retries-since-ns retries)
                           (client-call-born-ns call))))
        (tell-lost-attempt call (client-failure-status failure) began-ns)
        (follow-failure call nil (calling:take-number (ensure-retries call)) nil failure))))

;;; An attempt is answered

(defun tell-overtaken (call attempt)
  "ATTEMPT of CALL is answered first: tell of those that began before."
  (dolist (other (client-retries-running (call-retries call)))
    (when (< (attempt-began-ns other) (attempt-began-ns attempt))
      (note-overtaken call (attempt-subchannel other)))))

(defun commit (call attempt)
  "The answer to ATTEMPT of CALL, which has RETRIES, begins: CALL goes on with it alone."
  (let ((stream (attempt-stream attempt)))
    (tell-overtaken call attempt)
    (unless (eq stream (client-call-stream call))
      (trace-event :call :attempt-committed :method (rpc:call-path call)
                   :peer (wire:link-peer (stream-link stream)) :stream (http2:stream-id stream)))
    (go-on-with call (stream-link stream) stream)
    (cancel-retry call)
    (leave-places call)
    (mapc #'reset-attempt (calling:commit (call-retries call) attempt))))

(define-hot committed-call ((stream http2:stream)) (or null client-call)
  "The call that an answer which begins on STREAM is for, from now on its only attempt; nil if
nobody waits for it."
  (let* ((attempt (the (or null attempt) (http2:stream-user stream)))
         (call (and attempt (attempt-call attempt)))
         (retries (and call (call-retries call))))
    (cond ((null retries) call)
          ((member attempt (client-retries-running retries))
           (commit call attempt)
           call))))

;;; An attempt is over

(define-hot tell-attempt-ended ((attempt attempt) (call client-call) (own boolean)
                                (status symbol))
    null
  "ATTEMPT of CALL is over with STATUS; OWN is true if that is how CALL went on."
  (let* ((stream (attempt-stream attempt))
         (link (stream-link stream)))
    (rpc:observe attempt-ended (client-observer call)
                 call (wire:link-peer link) status (http2:stream-id stream)
                 (http2:stream-tally-out stream) (http2:stream-tally-in stream)
                 (since call (attempt-began-ns attempt)))
    (when (attempt-view attempt) (end-view attempt call own status))
    (let* ((subchannel (the subchannel (attempt-subchannel attempt)))
           (listener (subchannel-listener subchannel)))
      (case status
        (:ok)
        ((:cancelled nil) (incf (subchannel-cancellations subchannel)))
        (t (incf (subchannel-failures subchannel))))
      (when listener
        (funcall listener call subchannel status
                 (if own
                     (and status (rpc:trailer-fields call))
                     (let ((cause (attempt-cause attempt)))
                       (if cause (client-failure-trailers cause) #())))))))
  nil)

(defun leave-stream (stream)
  "STREAM, which is closed, is not a call's any more. Return the link it was on, or nil if it was
for no call."
  (let* ((attempt (http2:stream-user stream))
         (call (and attempt (attempt-call attempt)))
         (own (and call (eq stream (client-call-stream call)))))
    (when call
      (when own
        (setf (client-call-stream call) nil)
        (wire:release-call call))
      (when (call-retries call) (calling:forget-attempt (call-retries call) attempt))
      (let ((cause (attempt-cause attempt)))
        (tell-attempt-ended attempt call own
                            (cond (own (call-status call))
                                  (cause (client-failure-status cause))
                                  (t :cancelled))))
      (setf (attempt-call attempt) nil
            (attempt-cause attempt) nil)
      (stream-link stream))))
