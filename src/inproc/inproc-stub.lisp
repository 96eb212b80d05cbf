;;;; The calls of stubs on an in-process channel.
;;;;
;;;; A unary call whose handler runs on the caller's thread creates two copies and two objects. Such
;;;; a call gets a CALL-PAIR only in rare cases, for which it is checked when the handler has
;;;; returned: the handler has set metadata or trailers, will answer later, or the call has ended in
;;;; another way.

(in-package #:clgrpc.inproc)

(defun call-fields-of (channel method deadline metadata call-credentials)
  (metadata-entries
   (append (status:check-metadata metadata)
           (when call-credentials
             (credentials:credentials-metadata
              channel call-credentials method
              :remaining (lambda ()
                           (and (plusp deadline)
                                (/ (- deadline (inproc-core-now (channel-inproc-core channel)))
                                   +ns-per-second+))))))))

(defun arrive (call-pair)
  "Give the call of CALL-PAIR, whose credentials have answered, to the callee to which its channel
now leads. Return true if the call's handler can begin."
  (let* ((client (call-pair-client call-pair))
         (inproc-core (call-inproc-core client))
         (callee (callee-of inproc-core))
         (route (and callee (route-to callee (call-rpc-method client)))))
    (cond ((null callee)
           (end-unsent call-pair :unavailable :message (absence-text inproc-core)
                                              :ended-by :transport)
           nil)
          ((take-call callee call-pair route)
           (when (observed-p inproc-core callee)
             (note-arrival call-pair)
             (tell-arrived call-pair))
           (cond (route (enlist call-pair))
                 (t (multiple-value-call #'end-by-server call-pair
                      (rpc:verdict :unknown-method (rpc:call-path client)))))
           (null (call-pair-claim call-pair))))))

(defun begin-asked (call-pair take metadata error)
  "Begin the handler of CALL-PAIR, whose call has waited for its credentials, since the credentials
have answered with METADATA or ERROR. Before that call TAKE, a function or nil, with all metadata of
the call."
  (let ((server (call-pair-server call-pair)))
    (cond ((call-pair-claim call-pair)) ; the call has ended
          (error (end-unsent call-pair (status:rpc-error-status error)
                             :message (status:rpc-error-message error) :ended-by :local))
          (t (setf (call-fields server)
                   (concatenate 'simple-vector (call-fields server) (metadata-entries metadata)))
             (when take (funcall (the function take) (call-fields server)))
             (when (or (not (to-come-p call-pair)) (arrive call-pair))
               (begin-now-elsewhere call-pair :asking))))))

(defun await-credentials (call-pair)
  "Keep all threads from beginning the handler of CALL-PAIR before ASK-CREDENTIALS."
  (compare-and-swap (call-pair-phase call-pair) :waiting :asking))

(defun ask-credentials (call-pair channel credentials take)
  "Let the handler of CALL-PAIR begin when CREDENTIALS have answered. The call is on CHANNEL, and
its client does not wait; for TAKE see BEGIN-ASKED. Functions among CREDENTIALS are called here; if
one fails, signal its error."
  (let ((client (call-pair-client call-pair)) (called nil) (failure nil))
    (unless (call-status client)
      (open-mailboxes call-pair)
      (register call-pair)
      (let ((leave (credentials:ask-credentials
                    credentials channel (call-rpc-method client) (method:channel-target channel)
                    (lambda (function)
                      (setf called t)
                      (funcall (the function function))
                      t)
                    (lambda (metadata error)
                      (setf failure error)
                      (begin-asked call-pair take metadata error)))))
        (when leave (rpc:on-end client leave))
        (when (and called failure) (error failure))))))

(defmethod method:invoke ((channel inproc-channel) method request &rest options
                       &key timeout deadline metadata wait-for-ready async call-credentials
                         compression authority max-send-octets max-receive-octets values)
  (declare (ignore wait-for-ready) (dynamic-extent options))
  (when (or options (not (typep method 'rpc-method)))
    (calling:check-call-options method options)
    (encoding:check-compression compression))
  (when (method:rpc-method-codec method)
    (misuse "~A, whose method has a codec, is not for calls within the image." method))
  (let* ((inproc-core (channel-inproc-core channel))
         (deadline (if (or options *call*)
                       (calling:absolute-deadline timeout deadline
                                                  (if (or timeout deadline)
                                                      (inproc-core-now inproc-core) 0))
                       0))
         (asked (and async call-credentials))
         (fields (if (or metadata call-credentials)
                     (call-fields-of channel method deadline metadata
                                     (if asked nil call-credentials))
                     (load-time-value (vector)))))
    (unless (inproc-core-open inproc-core) (misuse "~A is closed." channel))
    (if (and (eq :unary (rpc-method-kind method))
             (eq :caller (inproc-core-execution inproc-core))
             (null async)
             (not (or authority max-send-octets max-receive-octets)))
        (multiple-value-bind (reply call)
                             (call-unary inproc-core method request deadline fields values)
          (if (eq :ok (call-status call))
              (values reply call)
              (calling:fail-or-retry call channel method request (copy-list options))))
        (invoke-call-pair channel inproc-core method request deadline fields asked
                          (copy-list options)))))

(define-hot call-unary
            ((inproc-core inproc-core) (method rpc-method) request (deadline status:deadline) fields
             values)
    (values t inproc-call)
  "Run METHOD's handler on this thread. Return two values: the call's answer, if there is one, and
the client's call, which has VALUES."
  (let* ((callee (callee-of inproc-core))
         (route (and callee (route-to callee method))))
    (if (and route
             (null values)
             (not (observed-p inproc-core callee))
             (<= (protobuf:measure (method:rpc-method-request-type method)
                                   (rpc:only-request method request))
                 (min (options-max-receive-octets (callee-options callee))
                      (options-max-send-octets (inproc-core-options inproc-core))))
             (not (and (plusp deadline) (<= deadline (inproc-core-now inproc-core)))))
        (call-handler-here inproc-core callee route method (inproc-core-copy inproc-core request)
                           deadline fields)
        (with-call-pair (call-pair (call-pair-to inproc-core callee route method deadline fields
                                                 (and values (list :values values))))
          (send-only-request call-pair request)
          (await-reply call-pair)))))

(define-hot (answer-in-room :inline t) ((callee callee) (route inproc-route) request
                                        (call inproc-call))
    t
  "Call the handler of ROUTE through its interceptors; return the answer. If answers of ROUTE have
been long lately, wait first until there is room for one more answer and its copy."
  (let ((octets (route-long-octets route)))
    (if (zerop octets)
        (serving:answer-of route request call)
        (rpc:call-with-room call (* 2 octets) (callee-options callee)
                            (lambda () (serving:answer-of route request call)) :answer t))))

(defun copy-answer (inproc-core callee route call answer size)
  "As INPROC-CORE-COPY, for an ANSWER of SIZE octets that is long, or whose ROUTE has given long
answers lately."
  (cond ((<= size rpc:+long-octets+)
         (serving:note-answer route)
         (inproc-core-copy inproc-core answer))
        (t (serving:note-answer route size)
           (copy-in-room inproc-core call answer size (callee-options callee)))))

(define-hot call-handler-here
            ((inproc-core inproc-core) (callee callee) (route inproc-route) (method rpc-method)
             request (deadline status:deadline) fields)
    (values t inproc-call)
  "Call the handler of ROUTE with REQUEST, a message that no other code uses. Return the same values
as CALL-UNARY."
  (let* ((call (make-server-end method deadline fields inproc-core nil))
         (tally (callee-tally callee))
         (type (method:rpc-method-response-type method))
         (limit (min (options-max-send-octets (callee-options callee))
                     (options-max-receive-octets (inproc-core-options inproc-core))))
         (reply nil)
         (returned nil)
         (condition nil)
         (open nil))                    ; the call is counted as begun, not as ended
    (declare (type index limit))
    (with-undoing ((progn (count-begun tally)
                          (setf open t))
                   (when open
                     (rpc:abort-as (call-pair-client (call-call-pair call)) :caller-interrupted)))
      (setf condition
            (with-others-code (call)
              (setf returned (answer-in-room callee route request call))
              (unless (eq returned call)
                (let ((size (protobuf:measure type returned)))
                  (when (<= size limit)
                    (setf reply (if (and (<= size rpc:+long-octets+)
                                         (zerop (route-long-octets route)))
                                    (inproc-core-copy inproc-core returned)
                                    (copy-answer inproc-core callee route call returned
                                                 size))))))))
      (cond ((and reply
                  (null condition)
                  (null (inproc-call-call-pair call))
                  (null (inproc-call-parts call))
                  (not (rpc:overdue-p call)))
             (uninterrupted             ; a call that has a status counts as ended
               (setf (call-status call) :ok)
               (count-ended tally)
               (setf open nil)
               (note-settled callee))
             (values reply (make-client-end method deadline :ok inproc-core nil)))
            (t (multiple-value-prog1 (await-outcome call returned condition)
                 (setf open nil)))))))

(defun await-outcome (call returned condition)
  "Answer or end CALL, a unary call, whose handler has RETURNED a value or ended with CONDITION, and
wait for the call's end. Return the same values as CALL-UNARY."
  (let ((call-pair (call-call-pair call)))
    (look call)
    (conclude call-pair returned condition)
    (await-reply call-pair)))

(defun await-reply (call-pair)
  "Wait for the end of the call of CALL-PAIR. Return the call's reply, if there is one, and the
client's call."
  (let ((client (call-pair-client call-pair)))
    (when (eq :waiting (call-pair-phase call-pair))
      (begin-for-receiver call-pair))
    (rpc:wait-for-call client #'rpc:call-status)
    (values (call-pair-reply call-pair) client)))

;;; Calls with a call pair

(defun call-pair-to (inproc-core callee route method deadline fields options)
  "Make a call pair to ROUTE of CALLEE for a call with OPTIONS of its stub, as for
RPC:BEGIN-OWN-OPTIONS. If CALLEE or ROUTE is missing, the call of the call pair has ended with the
corresponding status."
  (if route
      (let ((call-pair (open-call-pair inproc-core callee route method deadline fields options)))
        (look (call-pair-server call-pair))
        call-pair)
      (let ((call-pair (idle-call-pair inproc-core callee method deadline fields)))
        (apply #'rpc:begin-own-options (call-pair-client call-pair) options)
        (if callee (end-unknown call-pair) (end-absent call-pair))
        call-pair)))

(defun idle-call-pair (inproc-core callee method deadline fields)
  "A call pair with both ends, to no handler. The call of the pair is about to end."
  (let ((call-pair (make-call-pair callee nil nil)))
    (setf (call-pair-client call-pair) (make-client-end method deadline nil inproc-core call-pair)
          (call-pair-server call-pair)
          (make-server-end method deadline fields inproc-core call-pair)
          (call-pair-phase call-pair) :over
          (call-pair-claim call-pair) t)
    call-pair))

(defun failed-call-pair (inproc-core method deadline error)
  "A call pair whose call has ended with ERROR at its client's end, before it reached a server."
  (let* ((call-pair (idle-call-pair inproc-core nil method deadline #()))
         (client (call-pair-client call-pair)))
    (setf (rpc:trailer-fields client)
          (metadata-entries (status:rpc-error-trailers error))
          (call-status (call-pair-server call-pair)) :cancelled)
    (rpc:end-call client (status:rpc-error-status error)
                  :message (status:rpc-error-message error)
                  :details (status:rpc-error-details-octets error) :ended-by :local :sent nil)
    call-pair))

(defun end-unknown (call-pair)
  "End the call of CALL-PAIR, for which its callee has no route."
  (let ((tally (callee-tally (call-pair-callee call-pair))))
    (count-begun tally)
    (tell-begin call-pair)
    (multiple-value-bind (status text)
        (rpc:verdict :unknown-method (rpc:call-path (call-pair-client call-pair)))
      (rpc:end-call (call-pair-server call-pair) status :message text :ended-by :local)
      (rpc:end-call (call-pair-client call-pair) status :message text)
      (tell-attempt-ended (call-pair-client call-pair)))
    (count-ended tally)))

(defun end-absent (call-pair)
  "End the call of CALL-PAIR, which has no callee, for its client."
  (let ((client (call-pair-client call-pair)))
    (tell-begin call-pair)
    (rpc:end-call client :unavailable :message (absence-text (call-inproc-core client))
                                      :ended-by :transport :sent nil)
    (tell-attempt-ended client)
    (setf (call-status (call-pair-server call-pair)) :cancelled)))

(defun send-only-request (call-pair request)
  "Give the handler of CALL-PAIR its only REQUEST. If an error or another non-local exit leaves this
function, the call has ended."
  (let ((client (call-pair-client call-pair))
        (passed nil))
    (unless (call-status client)
      (with-undoing (nil (unless passed (operate leave client)))
        (handler-case
            (setf (call-pair-request call-pair)
                  (pass client (rpc:only-request (rpc:call-rpc-method client) request))
                  passed t)
          (status:rpc-error (error)
            ;; a request that the server refuses has ended the call; for a request above the
            ;; caller's own limit, signal the caller's error
            (if (call-status client) (setf passed t) (error error))))))))

(defun invoke-call-pair (channel inproc-core method request deadline fields asked options)
  "INVOKE for all but the plainest calls. ASKED are the call credentials to ask, or nil."
  (let* ((kind (rpc-method-kind method))
         (generator (and (member kind '(:client-streaming :bidi))
                         (not (eq request :open))
                         (calling:request-generator request)))
         (callee (callee-of inproc-core))
         (route (and callee (route-to callee method))))
    (with-call-pair (call-pair (call-pair-to inproc-core
                                             (if (and asked route) (asking-callee callee) callee)
                                             route method deadline fields options))
      (setf (call-pair-unattended call-pair) (and (getf options :async) t))
      (when (to-come-p call-pair)
        (await-credentials call-pair)
        (when (and (callee-observer callee) (null (call-counts-of (call-pair-client call-pair))))
          (begin-call-counts call-pair)))
      (multiple-value-prog1
          (begin-kind call-pair kind channel method request generator options)
        (when asked (ask-credentials call-pair channel asked nil))))))

(defun begin-kind (call-pair kind channel method request generator options)
  "Begin the call of CALL-PAIR, of KIND; GENERATOR, if it is not nil, returns its requests. Return
the values of INVOKE."
  (let* ((client (call-pair-client call-pair))
         (inproc-core (call-inproc-core client))
         (async (call-pair-unattended call-pair)))
    (ecase kind
      (:unary
       (send-only-request call-pair request)
       (cond (async (begin-elsewhere call-pair) client)
             (t (finish-blocking call-pair channel method request options))))
      (:server-streaming
       (send-only-request call-pair request)
       (if (eq :threads (inproc-core-execution inproc-core))
           (begin-elsewhere call-pair)
           (look-after call-pair))
       client)
      (:client-streaming
       (cond ((null generator)
              (setf (call-pair-queued-reply call-pair) t)
              (look-after call-pair)
              client)
             (async
              (setf (call-pair-source call-pair) generator)
              (begin-elsewhere call-pair)
              client)
             (t (if (eq :caller (inproc-core-execution inproc-core))
                    (setf (call-pair-source call-pair) generator
                          (call-pair-consumer call-pair) (this-context nil))
                    (progn
                      ;; the code that makes the requests may wait for the handler
                      (when (functionp request) (begin-elsewhere call-pair))
                      (calling:send-requests client generator)))
                (finish-blocking call-pair channel method request options))))
      (:bidi
       (setf (call-pair-source call-pair) generator)
       (if (eq :threads (inproc-core-execution inproc-core))
           (begin-elsewhere call-pair)
           (look-after call-pair))
       client))))

(defun finish-blocking (call-pair channel method request options)
  "Wait for the reply of CALL-PAIR's call, and return it and the call."
  (multiple-value-bind (reply client) (await-reply call-pair)
    (cond ((eq :ok (call-status client)) (values reply client))
          ((functionp request) (error (rpc:call-condition client)))
          (t (calling:fail-or-retry client channel method request options)))))

;;; Futures

(loop:define-completions (call inproc-call) (call-pair-completions (call-call-pair call)))
