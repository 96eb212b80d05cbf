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
  (front nil :type (or null inproc-channel) :read-only t) ; whose calls lead to them
  (attempts nil :type (or null inproc-channel) :read-only t)) ; of their attempts

(defclass configured-inproc-channel (inproc-channel)
  ((config :initarg :config :reader channel-config) ; the service config, or nil
   ;; see MAKE-CHANNEL
   (attempt-interceptors :initarg :attempt-interceptors :reader channel-attempt-interceptors)
   (options :initarg :options :reader channel-retry-options) ; that say how often a call is tried
   (throttle :initarg :throttle :reader channel-throttle) ; or nil
   (ledger :initform (make-ledger) :reader channel-ledger) ; of requests kept for attempts
   (plans :initarg :plans :reader channel-plans) ; from the METHOD-CONFIGs of CONFIG, and nil
   (front :initarg :front :reader channel-front)) ; whose calls lead to relays that wait
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
  (call nil :type (or null call))       ; the handler's end of the call, once it has begun
  (attempt nil :type (or null call))    ; the client's end of the last that was begun or has failed
  (count 0 :type index)                 ; of attempts that were begun
  (waits 0 :type index))                ; as RETRY-DELAY-NS takes it

(defun relay-line (relay) (call-line (relay-call relay)))

(defun relay-client (relay) (line-client (relay-line relay)))

(defun relay-policy (relay) (plan-policy (relay-plan relay)))

(defun relay-limit (relay)
  "How many attempts RELAY may make."
  (let ((policy (relay-policy relay)))
    (if policy
        (calling:policy-limit policy (channel-retry-options (relay-channel relay)))
        1)))

;;; An attempt begins, and is over

(defun interceptors-of (channel method)
  "The interceptors of attempts that CHANNEL has for METHOD."
  (rpc:interceptors-for (channel-attempt-interceptors channel) method))

(defun next-kind (relay)
  "Why the next attempt of RELAY is made, as ATTEMPT-KIND has it."
  (cond ((zerop (relay-count relay)) :first)
        ((calling:hedging-policy-p (relay-policy relay)) :hedge)
        (t :retry)))

(defun view-next (relay)
  "Call the interceptors for the next attempt of RELAY. Return what they know of it, nil if there
are none, and the error that it fails with if they have it fail."
  (let* ((client (relay-client relay))
         (interceptors (interceptors-of (relay-channel relay) (call-rpc-method client))))
    (if interceptors
        (let ((view (calling:make-attempt client (relay-count relay) (next-kind relay)
                                          (rpc:call-peer client)
                                          (rpc:operate metadata client (relay-fields relay)))))
          (values view (calling:intercept-attempt view interceptors)))
        (values nil nil))))

(defun next-attempt-fields (relay view)
  "The metadata of the next attempt of RELAY, of which interceptors know VIEW or nil."
  (let ((fields (if view
                    (status:metadata-entries (calling:attempt-request-metadata view))
                    (relay-fields relay))))
    (if (zerop (relay-count relay))
        fields
        (concatenate 'simple-vector fields
                     (list (cons "grpc-previous-rpc-attempts"
                                 (princ-to-string (relay-count relay))))))))

(defun begin-attempt (relay channel)
  "The line of the next attempt of RELAY, a call on CHANNEL whose handler has not begun. If
interceptors have it fail it has ended."
  (let* ((call (relay-call relay))
         (method (call-rpc-method call))
         (deadline (call-deadline call))
         (site (channel-site channel))
         (client (relay-client relay))
         (observer (inproc-observer client))
         (host (host-of site)))
    (multiple-value-bind (view error) (if host (view-next relay) (values nil nil))
      ;; before the handler's end begins, which may want to know whose attempt it is
      (rpc:observe attempt-begun observer client (site-target site) 0)
      (let ((line (if error
                      (failed-line site method deadline error)
                      (line-to site host (and host (route-to host method)) method deadline
                               (next-attempt-fields relay view)
                               (and observer (rpc:values-of-attempt client))))))
        (when view (setf (calling:own-view (line-client line)) view))
        (note-begun relay line)))))

(defun note-begun (relay line)
  "An attempt of RELAY begins, with LINE, which is returned."
  (incf (relay-count relay))
  (setf (relay-attempt relay) (line-client line))
  (when (inproc-observer (relay-client relay)) (begin-passage line))
  line)

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

(defun pushback (attempt)
  "What the trailers of ATTEMPT, which has ended, ask for, as PARSE-PUSHBACK has it, or nil."
  (calling:metadata-pushback (rpc:call-trailers attempt)))

(defun note-failure (relay number)
  "The last attempt of RELAY has failed, which NUMBER others came before: if there might have been
others, its user can ask for that later, and it is counted."
  (when (relay-policy relay) (record-failure relay number)))

(defun record-failure (relay number)
  "See NOTE-FAILURE."
  (let* ((attempt (relay-attempt relay))
         (throttle (channel-throttle (relay-channel relay)))
         (outcome (rpc:call-outcome attempt)))
    (rpc:note-failed-attempt (relay-client relay) number
                             (rpc:call-peer attempt) (call-status attempt)
                             (if outcome (rpc:outcome-message outcome) "")
                             (/ (- (call-now attempt) (relay-began-ns relay)) 1d9))
    (calling:count-failure throttle (relay-policy relay) (call-status attempt) (pushback attempt))))

(defun again-p (relay)
  "True if a retry policy has another attempt follow the last one of RELAY, which has failed."
  (let ((attempt (relay-attempt relay)))
    (and (null (call-fields attempt))   ; else an answer had begun
         (calling:retry-after-p (relay-policy relay) (call-status attempt) (pushback attempt)
                                (relay-count relay) (relay-limit relay)
                                (channel-throttle (relay-channel relay))))))

(defun next-wait-ns (relay)
  "How long a retry policy has RELAY wait before the next attempt."
  (let ((pushback (pushback (relay-attempt relay)))
        (client-loop (ensure-client-loop (call-site (relay-call relay)))))
    (cond (pushback (setf (relay-waits relay) 0) pushback)
          ((null client-loop) 0)        ; the channel is closed, and so the call has ended
          ;; at worst two threads that draw at the same time get the same
          (t (prog1 (calling:retry-delay-ns (relay-policy relay) (relay-waits relay)
                                            (loop:event-loop-random
                                             (calling:client-loop-loop client-loop)))
               (incf (relay-waits relay)))))))

;;; How the call ends

(defun fail-relay (relay error)
  "End RELAY's call with ERROR, which says that a request cannot be sent."
  (let ((how (list (status:rpc-error-status error) :message (status:rpc-error-message error)
                   :ended-by :local)))
    (end-line (relay-line relay) how how nil)))

(defun end-relay (relay answer)
  "End RELAY's call as its last attempt has ended, with ANSWER if that is an answer."
  (let* ((line (relay-line relay))
         (server (relay-call relay))
         (attempt (relay-attempt relay))
         (throttle (channel-throttle (relay-channel relay))))
    (pass-metadata relay)
    (rpc:add-trailers server (rpc:call-trailers attempt))
    (cond ((not (eq :ok (call-status attempt)))
           (let* ((error (rpc:call-condition attempt))
                  (how (list :message (status:rpc-error-message error)
                             :details (status:rpc-error-details-octets error))))
             (end-line line
                       (list* (call-status attempt)
                              :ended-by (status:rpc-error-ended-by error)
                              :sent (status:rpc-error-sent-p error) how)
                       (list* (call-status attempt) :ended-by :local how)
                       t)))
          (t (when throttle (calling:count-success throttle))
             (if (rpc:answers-once-p server)
                 (answer line answer)
                 (end-well line))))))
