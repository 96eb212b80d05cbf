;;;; The attempts of a call: the first and those that follow it or run in parallel. An attempt
;;;; begins on a stream, is answered or fails, and ends. The machine of attempt/retry.lisp decides
;;;; the next step, and performs it by **RETRY-OPERATIONS**.
;;;;
;;;; 1. SUBMIT finds a stream, or makes the call wait for one (core.lisp). SUBMIT begins an attempt,
;;;;    which is the user of the stream. The call continues with the oldest attempt under way: its
;;;;    stream is the call's.
;;;; 2. The first attempt whose answer begins commits the call: its stream is the call's from then
;;;;    on, and the streams of the other attempts are reset.
;;;; 3. If an attempt fails before the answer begins, the machine decides: the call continues with
;;;;    another attempt, now or later, or ends. All attempts have the call's deadline.
;;;; 4. When a stream is closed its attempt is over, and observers and interceptors are notified of
;;;;    the attempt's end.
;;;;
;;;; A call without a policy has no RETRIES until one of its attempts has failed, so the possibility
;;;; of a retry costs nothing. The channel's own calls (internal-call.lisp) are neither retried nor
;;;; intercepted. All these functions run on the call's loop.

(in-package #:clgrpc.client)

(defun find-policy-of (call)
  "Two values: the retry or hedging policy that the service config in force has for CALL, and the
number of attempts that it allows; nil if the config has no policy for CALL."
  (and (not (internal-call-p call))
       (find-retry-policy (method-config-of call) (wire-call-options call))))

(defun ensure-retries (call)
  "The RETRIES of CALL, made now if needed."
  (or (call-retries call)
      (multiple-value-bind (policy limit) (find-policy-of call)
        (let ((stream (client-call-stream call)))
          (setf (client-parts-retries (ensure-client-parts call))
                (make-client-retries policy (or limit 1)
                                     (and stream (list (http2:stream-user stream)))))))))

(defun throttle-of (call)
  "The throttle of CALL's channel under the service config in force; nil if the config has no
throttling."
  (let ((core (client-call-core call)))
    (setf (core-throttle core)
          (current-throttle (core-throttle core) (core-config core)))))

(defun plain-p (call)
  "True if CALL has neither a policy nor other attempts: one failure ends the call."
  (and (null (call-retries call))
       (null (core-methods (client-call-core call)))))

;;; Performing the decisions of attempt/retry.lisp

(defun resend-after (call)
  "Begin another attempt of CALL as soon as the stream of the failed one is closed."
  (loop:defer (wire-call-loop call) #'submit-again call))

(defun reset-times (call)
  "If CALL, which continues, has no stream now, forget the times of its waits and stages so far."
  (unless (client-call-stream call)
    (setf (client-parts-wait (ensure-client-parts call)) nil)
    (wire:reset-marks call)))

(defun submit-again (call)
  "Begin another attempt of CALL, unless another one has been answered or CALL has ended."
  (when (wanted-p call)
    (guarding-call (call) (submit call nil))))

(defun await-attempt (call delay-ns)
  "Wait DELAY-NS for the next attempt of CALL, unless CALL ends earlier."
  (cancel-retry call)
  (if (zerop delay-ns)
      (loop:defer (wire-call-loop call) #'begin-undelayed call)
      (let* ((core (client-call-core call))
             (timer (make-timer #'begin-due call)))
        (setf (client-retries-timer (call-retries call)) timer
              (gethash call (core-retrying core)) t)
        (loop:start-timer (core-loop core) timer (time-after delay-ns (core-now core))))))

(defun begin-undelayed (call)
  "Do what BEGIN-DUE does, unless CALL meanwhile waits for a later time."
  (unless (client-retries-timer (call-retries call)) (begin-due call)))

(define-load-time-global **retry-operations**
    (attempt:make-retry-operations
     :retries #'ensure-retries :throttle #'throttle-of
     :now (lambda (call) (core-now (client-call-core call)))
     :chance (lambda (call) (loop:event-loop-random (wire-call-loop call)))
     :sendable (lambda (call) (and (not (internal-call-p call)) (repeatable-p call)))
     :keep #'keep-request :go-on #'reset-times :await #'await-attempt :cancel #'cancel-retry
     :begin (lambda (call) (submit call nil)) :resend #'resend-after :fail #'end-with-failure))

(defun begin-due (call)
  "Report to the state machine that the next attempt of CALL is due."
  (cancel-retry call)
  (unless (call-status call)
    (guarding-call (call)
      (attempt:tell-due **retry-operations** call))))

;;; The view of an attempt for its interceptors (attempt/attempt-view.lisp)

(defun interceptor-failure (call error)
  "The failure of an attempt of CALL, in which an interceptor has signalled ERROR."
  (let ((trailers (status:rpc-error-trailers error)))
    (make-client-failure (status:rpc-error-status error) (or (rpc-error-message error) "")
                         :how (list :details (status:rpc-error-details-octets error)
                                    :ended-by :local :sent (and (rpc:failed-attempts call) t))
                         :pushback (parse-pushback (cdr (assoc "grpc-retry-pushback-ms" trailers
                                                               :test #'string=)))
                         :trailers (metadata-fields trailers))))

(defun intercept (attempt link)
  "Call the interceptors, if there are some, for ATTEMPT on LINK. Return the attempt's failure if
the interceptors make it fail, or if its headers cannot be sent."
  (let ((call (attempt-call attempt))
        (number (attempt-number attempt)))
    (multiple-value-bind (view error)
        (if (internal-call-p call)
            (values nil nil)
            (attempt:view-attempt call number (call-retries call) (client-link-peer link)
                                  (rpc:outgoing-metadata call)
                                  (core-attempt-interceptors (client-call-core call))))
      (setf (attempt-view attempt) view)
      (if error
          (interceptor-failure call error)
          (unfit-headers call link number (attempt-metadata attempt))))))

(defun attempt-metadata (attempt)
  "The metadata that ATTEMPT sends, an alist."
  (if-let ((view (attempt-view attempt)))
    (attempt:attempt-request-metadata view)
    (rpc:outgoing-metadata (attempt-call attempt))))

(defun end-view (attempt call own status)
  "Report to interceptors that ATTEMPT of CALL has ended with STATUS. OWN is true if CALL continued
with ATTEMPT."
  (let ((view (shiftf (attempt-view attempt) nil))
        (cause (attempt-cause attempt)))
    (cond ((null view))
          (own (attempt:close-attempt view (or status :cancelled) :call call))
          (cause (attempt:close-attempt view status
                                        :message (client-failure-message cause)
                                        :trailer-fields (client-failure-trailers cause)))
          (t (attempt:close-attempt view status)))))

;;; An attempt begins

(define-hot (tell-attempt-begun :inline t) ((call client-call) (link link) (stream http2:stream))
    null
  "Report to the observer that an attempt of CALL has STREAM of LINK."
  (rpc:observe attempt-begun (client-observer call)
               call (client-link-peer link) (http2:stream-id stream))
  nil)

(define-hot (go-on-with :inline t) ((call client-call) (link link) (stream http2:stream)) null
  "Let CALL continue with the attempt on STREAM of LINK."
  (setf (client-call-link call) link
        (client-call-stream call) stream)
  nil)

(defun change-over (call stream)
  "Let CALL continue with another attempt, the one on STREAM. Wake a sender that waited because the
previous attempt's stream was full, since STREAM may have room."
  (go-on-with call (stream-link stream) stream)
  (wire:tell-writable call))

(define-hot (new-attempt :inline t) ((call client-call) (stream http2:stream)) attempt
  (let ((attempt (stream-attempt stream))
        (retries (call-retries call)))
    (setf (attempt-call attempt) call)
    (cond (retries
           (setf (attempt-number attempt) (attempt:take-number retries)
                 (attempt-began-ns attempt) (core-now (client-call-core call)))
           (attempt:add-attempt retries attempt))
          (t (setf (attempt-number attempt) 0
                   (attempt-began-ns attempt) (client-call-born-ns call))))
    attempt))

(defun refuse-long-request (call request)
  "End CALL and return true if a message is longer than CALL's limit. The message checked is the
only one, REQUEST, or, if REQUEST is nil, the longest that CALL has to send. By now the limit of the
service config is known."
  (let ((limit (values (call-limits call)))
        (size (longest-outgoing call (or request (client-call-request call)))))
    (when (> size limit)
      (multiple-value-bind (status text) (rpc:verdict :too-long-to-send size limit)
        (end-client-call call status text :ended-by :local :sent nil))
      t)))

(define-hot begin-attempt ((call client-call) (link link) (stream http2:stream) request) null
  "Begin an attempt of CALL on STREAM of LINK. Send CALL's headers and only REQUEST or, if that is
nil, the messages that CALL has sent before and those that wait for a stream."
  (let ((own (null (client-call-stream call)))
        (core (client-call-core call))
        (attempt (new-attempt call stream)))
    (when own (setf (client-call-link call) link))
    (begin-on-link link)
    (tell-attempt-begun call link stream)
    (when request (setf (client-call-request call) request))
    ;; CALL has no stream yet while interceptors run, because they may send on it or end it
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
  "Send the headers of ATTEMPT and the messages of its call. OWN is true if the call continues with
ATTEMPT."
  (let ((call (the client-call (attempt-call attempt)))
        (stream (attempt-stream attempt)))
    (when own (wire:mark-call call :headers))
    (write-head call stream (attempt-number attempt) (attempt-metadata attempt))
    (when own (rpc:observe headers-sent (core-observer (client-call-core call)) call))
    (cond ((null (client-call-request call))
           (write-replay call stream)
           (cond ((call-status call))   ; no memory was left for its messages
                 (own (write-outbox call))
                 ((wire:marked-p call :closed) (half-close-stream stream))))
          (own (write-request call))
          (t (write-again call stream (encoded-request call) t))))
  nil)

(defun follow-policy (call)
  "Begin to keep messages, and to hedge, under CALL's policy, if it has one. The first attempt of
CALL has a stream, on which nothing was sent, and the channel's service config has method configs."
  (when-let ((policy (and (null (call-retries call)) (find-policy-of call))))
    (unless (client-call-request call)
      (begin-replay call (options-replay-octets (wire-call-options call))))
    (when (config:hedging-policy-p policy)
      (attempt:tell-begun **retry-operations** call))))

(define-hot submit ((call client-call) request) t
  "Begin an attempt of CALL once its credentials have returned metadata and it has a stream. REQUEST
is CALL's only request, or nil."
  (let* ((parts (call-client-parts call))
         (identity (and parts (client-parts-identity parts))))
    (cond ((not (and identity (not (shiftf (caller-identity-asked identity) nil))))
           (submit-now call request))
          ;; an answer that comes after the end of the loop would reach no one
          ((eq :shutdown (core-state (client-call-core call)))
           (rpc:abort-as call :channel-closed))
          (t (ask-identity call identity request #'submit-identified)))))

(defun submit-identified (call request error)
  "Continue the attempt of CALL, which is running, after CALL's credentials have answered. REQUEST
is CALL's only request, or nil. If ERROR, an RPC-ERROR, is given, the attempt fails: at once if a
service config is in force, else when the attempt gets a stream, since the config that arrives may
have a policy for the failure."
  (cond ((null error) (submit-now call request))
        ((core-config (client-call-core call))
         (fail-unbegun call (interceptor-failure call error)))
        (t (let ((identity (client-parts-identity (ensure-client-parts call))))
             (setf (rpc:outgoing-metadata call) (caller-identity-metadata identity)
                   (caller-identity-failure identity) (interceptor-failure call error)))
           (submit-now call request))))

(define-hot submit-now ((call client-call) request) t
  "Begin an attempt of CALL as soon as it has a stream. REQUEST is CALL's only request, or nil."
  (multiple-value-bind (stream link picked) (find-stream (client-call-core call) call)
    (cond (stream (begin-attempt call link stream request))
          (t (when request
               (setf (client-call-request call) (wire:encode-message call request nil)))
             (wait-for-stream (client-call-core call) call picked #'take-stream)))))

(defun take-stream (call stream link failure)
  "Begin the attempt of CALL, which has waited for a stream, on STREAM of LINK. If STREAM is nil,
the attempt fails with FAILURE."
  (if stream
      (begin-attempt call link stream nil)
      (fail-unbegun call failure)))

;;; An attempt fails

(defun record-failure (call number link failure)
  "Record FAILURE of an attempt of CALL, for FAILED-ATTEMPTS to return. NUMBER other attempts came
before this one. The attempt was on LINK or, if LINK is nil, had no stream."
  (rpc:note-failed-attempt call number (and link (client-link-peer link))
                           (client-failure-status failure) (client-failure-message failure)
                           (ns-seconds (since call (client-call-born-ns call)))))

(defun follow-failure (call attempt number link failure)
  "Perform the decision that follows FAILURE of CALL's ATTEMPT on LINK; CALL runs. ATTEMPT and LINK
are nil if the attempt had no stream. NUMBER other attempts came before it. Forget ATTEMPT, which
CALL no longer uses."
  (guarding-call (call)
    (record-failure call number link failure)
    (attempt:tell-failed **retry-operations** call attempt number failure
                         (and link (client-link-draining link) (client-link-born-ns link)))))

(defun fail-attempt (attempt failure)
  "Let the call of ATTEMPT, which has failed with FAILURE, continue without ATTEMPT. The call runs
and is not committed."
  (let* ((call (attempt-call attempt))
         (link (stream-link (attempt-stream attempt)))
         (number (attempt-number attempt))
         (retries (ensure-retries call)))
    (setf (attempt-cause attempt) failure
          ;; removed now: another attempt of CALL may soon use the structure ATTEMPT and its stream
          (client-retries-running retries) (remove attempt (client-retries-running retries)))
    (when (eq (attempt-stream attempt) (client-call-stream call))
      (if-let ((other (first (client-retries-running retries))))
        (change-over call (attempt-stream other))
        (setf (client-call-stream call) nil)))
    (reset-attempt attempt)
    (unless (call-status call) (follow-failure call attempt number link failure))))

(defun fail-unbegun (call failure)
  "Handle FAILURE of an attempt that gets no stream; its CALL runs."
  (if (plain-p call)
      (end-with-failure call failure)
      (let* ((retries (call-retries call))
             (began-ns (if retries
                           (client-retries-since-ns retries)
                           (client-call-born-ns call))))
        (tell-lost-attempt call (client-failure-status failure) began-ns)
        (follow-failure call nil (attempt:take-number (ensure-retries call)) nil failure))))

;;; An attempt is answered

(defun tell-overtaken (call attempt)
  "Note which attempts of CALL were overtaken, because they began before ATTEMPT, which is answered
first."
  (dolist (other (client-retries-running (call-retries call)))
    (when (< (attempt-began-ns other) (attempt-began-ns attempt))
      (note-overtaken call (attempt-subchannel other)))))

(defun commit (call attempt)
  "Let CALL, which has RETRIES, continue with ATTEMPT alone, because its answer begins."
  (let ((stream (attempt-stream attempt)))
    (tell-overtaken call attempt)
    (unless (eq stream (client-call-stream call))
      (trace-event :call :attempt-committed :method (rpc:call-path call)
                   :peer (client-link-peer (stream-link stream)) :stream (http2:stream-id stream))
      (change-over call stream))
    (cancel-retry call)
    (leave-places call)
    (mapc #'reset-attempt (attempt:commit (call-retries call) attempt))))

(define-hot committed-call ((stream http2:stream)) (or null client-call)
  "The call for which an answer begins on STREAM; the attempt on STREAM is its only one from now on.
Return nil if no call waits for the answer."
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
  "Report to observer and listener that ATTEMPT of CALL is over with STATUS. OWN is true if CALL
continued with ATTEMPT."
  (let* ((stream (attempt-stream attempt))
         (link (stream-link stream)))
    (rpc:observe attempt-ended (client-observer call)
                 call (client-link-peer link) status (http2:stream-id stream)
                 (http2:stream-octets-out stream) (http2:stream-octets-in stream)
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
  "Detach STREAM, which is closed, from its call. Return the link of STREAM, or nil if STREAM had no
call."
  (let* ((attempt (http2:stream-user stream))
         (call (and attempt (attempt-call attempt)))
         (own (and call (eq stream (client-call-stream call)))))
    (when call
      (when own
        (setf (client-call-stream call) nil)
        (wire:release-call call))
      (let ((cause (attempt-cause attempt)))
        (tell-attempt-ended attempt call own
                            (cond (own (call-status call))
                                  (cause (client-failure-status cause))
                                  (t :cancelled))))
      (setf (attempt-call attempt) nil
            (attempt-cause attempt) nil)
      (stream-link stream))))
