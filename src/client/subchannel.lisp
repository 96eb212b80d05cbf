;;;; A subchannel: one address, and the connection to it when there is one. It connects when a call
;;;; needs it, waits between failed attempts as the gRPC connection back-off document says, and
;;;; holds the calls that wait for a connection or, past the peer's limit of streams, for a stream.
;;;; Everything here runs on the channel's loop.
;;;;
;;;; States, as in gRPC's connectivity document: :idle → :connecting → :ready → :idle when the
;;;; connection ends; :connecting → :transient-failure → (back-off) → :idle or, with calls waiting,
;;;; :connecting; :shutdown for good.

(in-package #:clgrpc.client)

(defun waiting-calls (subchannel)
  "The calls that wait for a stream of SUBCHANNEL, oldest first."
  (fifo-items (subchannel-waiting subchannel)))

(defun enqueue-waiting (subchannel call)
  (unless (eq :ready (subchannel-state subchannel)) (begin-waiting subchannel call))
  (trace-event :channel :call-waits :target (target-text subchannel)
               :method (rpc:call-path call) :state (subchannel-state subchannel)
               :before (length (waiting-calls subchannel)))
  (enqueue call (subchannel-waiting subchannel)))

(defun target-text (subchannel)
  (loop:target-text (subchannel-target subchannel)))

(defun subchannel-now (subchannel)
  (loop:event-loop-now (subchannel-loop subchannel)))

(defun enter-stage (subchannel stage)
  "SUBCHANNEL has come to STAGE of getting a connection, or to :queue, having one."
  (wire:enter-stage (subchannel-clock subchannel) stage (subchannel-now subchannel)))

(defun begin-waiting (subchannel call)
  "CALL waits from now on for SUBCHANNEL to have a connection."
  (let ((parts (wire:ensure-wire-parts call)))
    (unless (wire:wire-parts-wait parts)
      (setf (wire:wire-parts-wait parts)
            (wire:read-clock-for-call (subchannel-clock subchannel) (subchannel-now subchannel))))))

(defun stop-waiting (call)
  "CALL has a stream, or has ended."
  (let* ((parts (wire:call-wire-parts call))
         (wait (and parts (wire:wire-parts-wait parts)))
         (subchannel (client-call-subchannel call)))
    (when wait
      (wire:stop-waiting (subchannel-clock subchannel) wait (subchannel-now subchannel)))))

(defun client-trouble (call)
  "The operation TROUBLE."
  (let ((subchannel (client-call-subchannel call)))
    (case (rpc:call-stage call)
      ((:resolve :connect :handshake :back-off) (subchannel-failure subchannel))
      (:queue
       (let ((link (subchannel-link subchannel)))
         (and link
              (format nil "all ~D that ~A allows are open"
                      (http2:connection-peer-max-streams (wire:link-http2 link))
                      (wire:link-peer link))))))))

(defun change-state (subchannel state)
  (trace-event :connectivity-state :state-changed :target (target-text subchannel)
               :from (subchannel-state subchannel) :to state)
  (setf (subchannel-state subchannel) state)
  (sb-thread:with-mutex ((subchannel-lock subchannel))
    (sb-thread:condition-broadcast (subchannel-changed subchannel)))
  (when (subchannel-dropped subchannel) (end-if-unused subchannel)))

;;; Connecting

(defun connect (subchannel)
  "Begin an attempt to connect, unless one runs."
  (when (eq :idle (subchannel-state subchannel))
    (dolist (call (waiting-calls subchannel)) (begin-waiting subchannel call))
    (change-state subchannel :connecting)
    (enter-stage subchannel :resolve)
    (loop:look-up (subchannel-loop subchannel) (subchannel-target subchannel)
                  (seconds-ns (options-connect-timeout-seconds (subchannel-options subchannel)))
                  (let ((began (subchannel-now subchannel)))
                    (lambda (addresses condition)
                      (if condition
                          (connect-failed subchannel condition)
                          (connect-addresses subchannel addresses began)))))))

(defun connect-addresses (subchannel addresses began)
  "Connect SUBCHANNEL to one of ADDRESSES; the attempt BEGAN before they were looked up."
  (enter-stage subchannel :connect)
  (loop:connect-addresses
   (subchannel-loop subchannel) (target-text subchannel) addresses
   (max 0 (- (+ began (seconds-ns (options-connect-timeout-seconds
                                   (subchannel-options subchannel))))
             (subchannel-now subchannel)))
   (lambda (transport condition)
     (if transport
         (connected subchannel transport)
         (connect-failed subchannel condition)))
   :on-progress (lambda (event &rest plist) (connect-progress subchannel event plist))))

(defun connect-progress (subchannel event plist)
  "What CONNECT-ADDRESSES says on its way: EVENT is :attempt or :attempt-failed."
  (when (tracing-p :subchannel)
    (apply #'log-event :trace event :tracer :subchannel :target (target-text subchannel) plist))
  (when (eq event :attempt-failed)
    (setf (subchannel-failure subchannel) (getf plist :reason))))

(defun connected (subchannel transport)
  (cond ((eq :connecting (subchannel-state subchannel))
         (setf (subchannel-accepted subchannel) :unknown)
         (enter-stage subchannel :handshake)
         (trace-event :subchannel :connected :target (target-text subchannel)
                                             :peer (loop:transport-peer transport))
         (handler-case
             (let ((secured (secure-transport subchannel transport)))
               (setf (subchannel-link subchannel)
                     (wire:open-link subchannel (subchannel-loop subchannel) secured :client
                                    **client-sink** (subchannel-options subchannel)
                                    (subchannel-pool subchannel)
                                    :keepalive-ns (subchannel-keepalive-ns subchannel))))
           (clgrpc-error (error)
             (loop:close-transport transport)
             (connect-failed subchannel error))))
        (t (loop:close-transport transport))))

(defun secure-transport (subchannel transport)
  "TRANSPORT, with TLS if SUBCHANNEL has credentials."
  (let ((credentials (subchannel-credentials subchannel)))
    (if credentials
        (loop:make-tls-transport (subchannel-loop subchannel) transport credentials :client
                                 :server-name (loop:target-host (subchannel-target subchannel)))
        transport)))

(defun greeted (subchannel link)
  "The peer's SETTINGS have come over LINK; with the first of them we are connected and know how
many streams it allows."
  (when (and (eq link (subchannel-link subchannel)) (eq :connecting (subchannel-state subchannel)))
    (setf (subchannel-failure subchannel) nil)
    (enter-stage subchannel :queue)
    (trace-event :handshaker :settings-received
                 :role :client :peer (wire:link-peer link)
                 :max-concurrent-streams (http2:connection-peer-max-streams
                                          (wire:link-http2 link)))
    (change-state subchannel :ready))
  (start-waiting subchannel))

(defun connect-failed (subchannel condition)
  (when (eq :connecting (subchannel-state subchannel))
    (back-off subchannel (string-right-trim "." (princ-to-string condition)))))

(defun back-off (subchannel text)
  "SUBCHANNEL, which has no connection because of TEXT, is to make its next attempt after a while."
  (setf (subchannel-failure subchannel) text)
  (change-state subchannel :transient-failure)
  (fail-waiting subchannel)
  (enter-stage subchannel :back-off)
  (let ((timer (make-timer #'backoff-over subchannel))
        (seconds (next-backoff subchannel)))
    (trace-event :subchannel :back-off :target (target-text subchannel) :seconds seconds)
    (log-event :info :connect-failed :target (target-text subchannel) :again-in-seconds seconds
                                     :reason (subchannel-failure subchannel))
    (setf (subchannel-timer subchannel) timer)
    (schedule-timer (loop:event-loop-wheel (subchannel-loop subchannel)) timer
                    (+ (loop:read-clock (subchannel-loop subchannel)) (seconds-ns seconds)))))

(defun next-backoff (subchannel)
  "The seconds until the next attempt; each failure makes it longer."
  (let* ((options (subchannel-options subchannel))
         (base (if (zerop (subchannel-backoff-seconds subchannel))
                   (options-backoff-initial-seconds options)
                   (min (* (subchannel-backoff-seconds subchannel) (options-backoff-factor options))
                        (options-backoff-maximum-seconds options))))
         (jitter (* base (options-backoff-jitter options))))
    (setf (subchannel-backoff-seconds subchannel) base)
    (max 0.001d0
         (+ base (- (random (+ 1d-9 (* 2 jitter))
                            (loop:event-loop-random (subchannel-loop subchannel)))
                    jitter)))))

(defun backoff-over (subchannel)
  (setf (subchannel-timer subchannel) nil)
  (when (eq :transient-failure (subchannel-state subchannel))
    (change-state subchannel :idle)
    (when (waiting-calls subchannel) (connect subchannel))))

(defun fail-waiting (subchannel)
  "End the waiting calls that do not wait for a better time."
  (let ((waiting (clear-fifo (subchannel-waiting subchannel))))
    (dolist (call waiting)
      (cond ((call-status call))
            ((client-call-wait-for-ready call) (enqueue-waiting subchannel call))
            (t (end-client-call call :unavailable (subchannel-failure subchannel)
                                :ended-by :transport :sent nil))))))

;;; Calls

(define-hot submit ((subchannel subchannel) (call client-call) request) t
  "Start CALL, with its only REQUEST unless that is nil, on a stream as soon as there is one."
  (let* ((link (subchannel-link subchannel))
         (stream (and link
                      (eq :ready (subchannel-state subchannel))
                      (null (waiting-calls subchannel))
                      (next-stream link))))
    (cond (stream (start-on-stream call link stream request))
          (t (when request
               (setf (client-call-request call) (wire:encode-message call request nil)))
             (submit-later subchannel call)))))

(defun submit-later (subchannel call)
  "There is no stream for CALL now."
  (ecase (subchannel-state subchannel)
    (:ready (enqueue-waiting subchannel call) (start-waiting subchannel))
    (:idle (enqueue-waiting subchannel call) (connect subchannel))
    (:connecting (enqueue-waiting subchannel call))
    (:transient-failure
     (if (client-call-wait-for-ready call)
         (enqueue-waiting subchannel call)
         (end-client-call call :unavailable (subchannel-failure subchannel)
                          :ended-by :transport :sent nil)))
    (:shutdown (end-client-call call :unavailable "the channel is closed" :ended-by :local
                                                                          :sent nil))))

(defun start-waiting (subchannel)
  "Open streams for waiting calls while there are streams to be had."
  (let ((link (subchannel-link subchannel)))
    (when (and link (eq :ready (subchannel-state subchannel)))
      (loop while (waiting-calls subchannel)
            do (let* ((call (first (waiting-calls subchannel)))
                      (stream (if (call-status call)
                                  nil
                                  (or (next-stream link) (return)))))
                 (dequeue (subchannel-waiting subchannel))
                 (when stream
                   (stop-waiting call)
                   (start-on-stream call link stream nil))))
      (when (wire:link-draining link) (leave-link subchannel link)))))

(defun next-stream (link)
  "A new stream of LINK, or nil if it has none now; if it has used up its identifiers, mark it so
that it is left."
  (let ((http2 (wire:link-http2 link)))
    (or (http2:open-stream http2)
        (progn
          (when (and (http2:connection-ready-p http2)
                     (< (http2:connection-stream-count http2)
                        (http2:connection-peer-max-streams http2)))
            (setf (wire:link-draining link) t))
          nil))))

(defun leave-link (subchannel link &optional (text "the server is going away"))
  "Use LINK, which its peer, or we, are about to close because of TEXT, for no more calls."
  (trace-event :subchannel :connection-left :target (target-text subchannel)
                                            :peer (wire:link-peer link) :reason text)
  (when (eq link (subchannel-link subchannel))
    (setf (subchannel-link subchannel) nil)
    (push link (subchannel-leaving subchannel))
    (go-on-without subchannel link text))
  (when (zerop (wire:link-calls link)) (wire:close-link link text)))

(defun useful-p (subchannel link)
  "True if LINK, which has worked, had a call, other than such as the peer's GOAWAY says it has not
seen, or lasted as long as the first wait between attempts."
  (let ((http2 (wire:link-http2 link)))
    (or (and (plusp (http2:counters-streams-opened (http2:connection-counters http2)))
             (/= 0 (http2:connection-goaway-received http2)))
        (>= (- (subchannel-now subchannel) (wire:link-born-ns link))
            (seconds-ns (options-backoff-initial-seconds (subchannel-options subchannel)))))))

(defun go-on-without (subchannel link text)
  "SUBCHANNEL was connected by LINK, and is not any more because of TEXT. It connects anew when a
call needs that. A server that greets and goes, again and again, before any call has begun is no
better than one that does not listen: from the second time in a row the next attempt waits."
  (cond ((useful-p subchannel link)
         (setf (subchannel-backoff-seconds subchannel) 0
               (subchannel-useless subchannel) 0
               (subchannel-proven subchannel) t))
        (t (setf (subchannel-useless subchannel) (min 2 (1+ (subchannel-useless subchannel))))))
  (cond ((< (subchannel-useless subchannel) 2)
         (change-state subchannel :idle)
         (when (waiting-calls subchannel) (connect subchannel)))
        (t (back-off subchannel (format nil "~A takes connections and ends them: ~A"
                                        (subchannel-name subchannel) text)))))

(defconstant +longest-keepalive-ns+ (* 1000000000 +ns-per-second+))

(defun ping-less (subchannel)
  "A server finds that SUBCHANNEL's links ask too often whether it is alive (gRFC A8)."
  (setf (subchannel-keepalive-ns subchannel)
        (min +longest-keepalive-ns+ (* 2 (subchannel-keepalive-ns subchannel)))))

(defmethod wire:link-due ((subchannel subchannel) link event)
  (setf (wire:link-draining link) t)
  (ecase event
    (:idle (leave-link subchannel link "no calls for a while"))
    (:age (leave-link subchannel link "the connection is old"))
    (:grace (wire:abandon-link link :unavailable "the connection is too old"))))

(defmethod wire:link-ended ((subchannel subchannel) link)
  (trace-event :subchannel :connection-ended
               :target (target-text subchannel)
               :peer (wire:link-peer link) :reason (wire:link-failure link))
  (setf (subchannel-leaving subchannel) (delete link (subchannel-leaving subchannel)))
  (when (eq link (subchannel-link subchannel))
    (setf (subchannel-link subchannel) nil)
    (case (subchannel-state subchannel)
      (:shutdown)
      (:connecting (greeting-failed subchannel link))
      (t (go-on-without subchannel link (wire:link-failure link)))))
  (when (subchannel-dropped subchannel) (end-if-unused subchannel)))

(defun greeting-failed (subchannel link)
  "LINK, which we were connecting to, has ended before the peer's SETTINGS came. If the connection
before it worked, that is what a restart looks like: a server that closes its listener leaves those
to be reset whom the kernel had accepted, while its successor listens. So another attempt is made at
once, before calls fail for it."
  (cond ((shiftf (subchannel-proven subchannel) nil)
         (setf (subchannel-failure subchannel) (wire:link-failure link))
         (change-state subchannel :idle)
         (connect subchannel))
        (t (connect-failed subchannel
                           (format nil "Cannot connect to ~A: ~A~:[ (perhaps it wants TLS)~;~]"
                                   (subchannel-name subchannel)
                                   (wire:link-failure link)
                                   (or (subchannel-credentials subchannel)
                                       ;; what it speaks is known
                                       (search "the peer speaks" (wire:link-failure link))))))))

(defun shut-down (subchannel)
  "End SUBCHANNEL and every call on it."
  (change-state subchannel :shutdown)
  (when (subchannel-timer subchannel)
    (cancel-timer (loop:event-loop-wheel (subchannel-loop subchannel))
                  (subchannel-timer subchannel)))
  (dolist (call (clear-fifo (subchannel-waiting subchannel)))
    (end-client-call-as call :channel-closed :ended-by :local :sent nil))
  (let ((link (shiftf (subchannel-link subchannel) nil)))
    (dolist (link (append (and link (list link)) (shiftf (subchannel-leaving subchannel) '())))
      (multiple-value-call #'wire:abandon-link link (rpc:verdict :channel-closed)))))
