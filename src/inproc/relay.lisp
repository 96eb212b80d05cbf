;;;; Calls within the image under a service config or with interceptors of attempts, and what all
;;;; of them share that may be tried more than once (gRFC A6; calling/retry.lisp and
;;;; calling/attempt.lisp have what is alike for all transports).
;;;;
;;;; A channel with either is of a class of its own, so other channels know nothing of all this. For
;;;; each method config, and for methods that have none, it has a PLAN with an inner channel, whose
;;;; limits are those of the method. A call whose plan has a policy, or whose attempts are
;;;; intercepted, leads to a RELAY in place of the handler: it makes the attempts, which are calls
;;;; on the inner channel, and passes on what one of them brings. So the call itself is like any
;;;; other: its deadline, which the attempts have, too, cancellation, callbacks and futures are
;;;; those of all calls within the image.
;;;;
;;;; There are two kinds of relays. One makes an attempt after the other, on the thread that it runs
;;;; on, which is its client's if that waits (retry.lisp): for calls with a retry policy whose
;;;; requests are at hand. The other, in the reactive style, is for calls whose requests come one by
;;;; one, and for hedging (reactive.lisp).

(in-package #:clgrpc.inproc)

(defstruct (plan (:copier nil))
  "How calls under a method config are made."
  (config nil :type (or null config:method-config) :read-only t) ; which it follows, or nil
  (policy nil :type (or null calling:policy) :read-only t) ; nil if calls are made once
  (channel nil :type inproc-channel :read-only t) ; of the attempts, or of calls without a policy
  ;; for reactive relays, unless calls have none:
  (outer-channel nil :type (or null inproc-channel) :read-only t) ; whose calls lead to them
  (attempts nil :type (or null inproc-channel) :read-only t)) ; of their attempts

(defclass configured-inproc-channel (inproc-channel)
  ((config :initarg :config :reader channel-config) ; the service config, or nil
   ;; see MAKE-CHANNEL
   (attempt-interceptors :initarg :attempt-interceptors :reader channel-attempt-interceptors)
   (options :initarg :options :reader channel-retry-options) ; that say how often a call is tried
   (throttle :initarg :throttle :reader channel-throttle) ; or nil
   ;; of requests kept for attempts
   (octet-budget :initform (make-octet-budget) :reader channel-octet-budget)
   (plans :initarg :plans :reader channel-plans) ; from the METHOD-CONFIGs of CONFIG, and nil
   ;; whose calls lead to relays that wait
   (outer-channel :initarg :outer-channel :reader channel-outer-channel))
  (:documentation "An in-process channel with a service config, or interceptors of attempts."))

(defclass intercepted-configured-inproc-channel (calling:interception configured-inproc-channel) ()
  (:documentation "As CONFIGURED-INPROC-CHANNEL, with interceptors of calls."))

(defstruct (relay (:copier nil))
  "What makes the attempts of a call."
  (channel nil :type configured-inproc-channel :read-only t) ; that the call was made on
  (plan nil :type plan :read-only t)    ; of its method
  (fields nil :type simple-vector :read-only t) ; the metadata of the call
  (request nil)                         ; the request, or a list or vector of requests
  (began-ns 0 :type nanoseconds :read-only t) ; when the call did
  (retries nil :type calling:retries :read-only t) ; which decides what follows an attempt
  (call nil :type (or null call))       ; the handler's end of the call, once it has begun
  (attempt nil :type (or null call)))   ; the client's end of the last that was begun or has failed

(defun relay-call-pair (relay) (call-call-pair (relay-call relay)))

(defun relay-client (relay) (call-pair-client (relay-call-pair relay)))

(defun relay-policy (relay) (plan-policy (relay-plan relay)))

(defun relay-throttle (relay) (channel-throttle (relay-channel relay)))

(defun new-retries (channel plan)
  "The RETRIES of a call on CHANNEL that has PLAN."
  (let ((policy (plan-policy plan)))
    (calling:make-retries policy
                          (if policy
                              (calling:policy-limit policy (channel-retry-options channel))
                              1))))

;;; An attempt begins, and is over

(defun interceptors-of (channel method)
  "The interceptors of attempts that CHANNEL has for METHOD."
  (rpc:interceptors-for (channel-attempt-interceptors channel) method))

(defun view-attempt (relay number)
  "As CALLING:VIEW-ATTEMPT, for the attempt of RELAY that NUMBER others came before."
  (let ((client (relay-client relay))
        (interceptors (channel-attempt-interceptors (relay-channel relay))))
    (if interceptors
        (calling:view-attempt client number (relay-retries relay) (rpc:call-peer client)
                              (rpc:operate metadata client (relay-fields relay))
                              interceptors)
        (values nil nil))))

(defun attempt-fields (relay number view)
  "The metadata of the attempt of RELAY that NUMBER others came before, and of which interceptors
know VIEW or nil."
  (let ((fields (if view
                    (status:metadata-entries (calling:attempt-request-metadata view))
                    (relay-fields relay))))
    (if (zerop number)
        fields
        (concatenate 'simple-vector fields
                     (list (cons "grpc-previous-rpc-attempts" (princ-to-string number)))))))

(defun begin-attempt (relay number channel)
  "The call pair of the attempt of RELAY that NUMBER others came before, a call on CHANNEL whose
handler has not begun. If interceptors have it fail it has ended."
  (let* ((call (relay-call relay))
         (method (call-rpc-method call))
         (deadline (call-deadline call))
         (inproc-core (channel-inproc-core channel))
         (client (relay-client relay))
         (observer (inproc-observer client))
         (callee (callee-of inproc-core)))
    (multiple-value-bind (view error) (if callee (view-attempt relay number) (values nil nil))
      ;; before the handler's end begins, which may want to know whose attempt it is
      (rpc:observe attempt-begun observer client (inproc-core-target inproc-core) 0)
      (let ((call-pair (if error
                           (failed-call-pair inproc-core method deadline error)
                           (call-pair-to inproc-core callee (and callee (route-to callee method))
                                         method deadline
                                         (attempt-fields relay number view)
                                         (and observer (rpc:values-of-attempt client))))))
        (when view (setf (calling:own-view (call-pair-client call-pair)) view))
        (setf (relay-attempt relay) (call-pair-client call-pair))
        (when observer (begin-call-counts call-pair))
        call-pair))))

(defun end-attempt (relay attempt)
  "ATTEMPT, the client's end of one of RELAY, is over: end it if it runs still."
  (unless (call-status attempt) (rpc:cancel attempt))
  (multiple-value-bind (sent received) (traffic attempt)
    (rpc:observe attempt-ended (inproc-observer (relay-client relay))
                 (relay-client relay) (rpc:call-peer attempt) (call-status attempt) 0
                 sent received (elapsed-ns attempt)))
  (let ((view (calling:take-view attempt)))
    (when view (calling:close-own-view view attempt (call-status attempt)))))

(defun pass-metadata (relay)
  "Give the client of RELAY's call the headers that its attempt has got, if any."
  (let ((fields (call-fields (relay-attempt relay)))
        (client (relay-client relay)))
    (when (and fields (null (call-fields client)))
      (setf (call-fields client) fields)
      (rpc:notify client))))

;;; What comes after one

(defun failure-of (attempt)
  "How ATTEMPT, which has ended, has failed."
  (let ((outcome (rpc:call-outcome attempt)))
    (calling:make-attempt-failure (call-status attempt)
                                  (if outcome (rpc:outcome-message outcome) "")
                                  :pushback (calling:metadata-pushback
                                             (rpc:call-trailers attempt)))))

(defun record-failure (relay number failure)
  "The last attempt of RELAY, which NUMBER others came before, has failed with FAILURE. If there
might have been others, its user can ask for that later."
  (when (relay-policy relay)
    (let ((attempt (relay-attempt relay)))
      (rpc:note-failed-attempt (relay-client relay) number (rpc:call-peer attempt)
                               (calling:attempt-failure-status failure)
                               (calling:attempt-failure-message failure)
                               (/ (- (call-now attempt) (relay-began-ns relay)) 1d9)))))

(defun fail-late (relay number)
  "The last attempt of RELAY, which NUMBER others came before and whose answer had begun, has
failed: the throttle counts that."
  (let ((failure (failure-of (relay-attempt relay))))
    (record-failure relay number failure)
    (calling:count-late-failure (relay-retries relay) failure (relay-throttle relay))))

(defun relay-loop (relay)
  "The loop of the timers of RELAY; nil if its channel is closed, and so the call has ended."
  (let ((client-loop (ensure-client-loop (call-inproc-core (relay-call relay)))))
    (and client-loop (calling:client-loop-loop client-loop))))

(defun decide (relay attempt number &key (sendable t))
  "What follows ATTEMPT, of RELAY's attempts, which NUMBER others came before and which has failed,
and was looked at last: a decision of calling/retry.lisp. SENDABLE is true if all requests are
kept."
  (let ((failure (failure-of (relay-attempt relay))))
    (record-failure relay number failure)
    (calling:attempt-failed (relay-retries relay) attempt number failure
                            (call-now (relay-attempt relay))
                            ;; at worst two threads that draw at the same time get the same
                            (lambda () (loop:event-loop-random (relay-loop relay)))
                            :throttle (relay-throttle relay)
                            :sendable sendable
                            :keep (lambda () (and sendable (relay-loop relay) t)))))

;;; How the call ends

(defun fail-relay (relay error)
  "End RELAY's call with ERROR, which says that a request cannot be sent."
  (let ((how (list (status:rpc-error-status error) :message (status:rpc-error-message error)
                   :ended-by :local)))
    (end-call-pair (relay-call-pair relay) how how nil)))

(defun end-relay (relay answer)
  "End RELAY's call as its last attempt has ended, with ANSWER if that is an answer."
  (let* ((call-pair (relay-call-pair relay))
         (server (relay-call relay))
         (attempt (relay-attempt relay))
         (throttle (relay-throttle relay)))
    (pass-metadata relay)
    (rpc:add-trailers server (rpc:call-trailers attempt))
    (cond ((not (eq :ok (call-status attempt)))
           (let* ((error (rpc:call-condition attempt))
                  (how (list :message (status:rpc-error-message error)
                             :details (status:rpc-error-details-octets error))))
             (end-call-pair call-pair
                            (list* (call-status attempt)
                                   :ended-by (status:rpc-error-ended-by error)
                                   :sent (status:rpc-error-sent-p error) how)
                            (list* (call-status attempt) :ended-by :local how)
                            t)))
          (t (when throttle (calling:count-success throttle))
             (if (rpc:answers-once-p server)
                 (answer call-pair answer)
                 (end-well call-pair))))))
