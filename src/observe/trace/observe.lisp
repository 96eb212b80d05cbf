;;;; The spans of calls, as specified by gRFC A72.
;;;;
;;;;   Sent.<service>.<method> a client's call, with all of its attempts Attempt.<service>.<method>
;;;;     one attempt: the server gets its context Recv.<service>.<method> the call at the server
;;;;
;;;; A client's call finds its parent on the thread of its stub (CALL-MADE); everything else happens
;;;; on its loop. On the wire the interceptors of attempts report each attempt before its headers
;;;; are sent and when it has ended. Within the image observers report attempts, and the server
;;;; finds its parent in the client's end of the call. A call that is not recorded has no spans; its
;;;; context is still sent.
;;;;
;;;; Messages are events of the attempt's span, or of the server's, numbered from 0. On a hedged
;;;; call, sent messages count for the newest attempt.

(in-package #:clgrpc.trace)

(defun span-title (kind call)
  "The name of a span of CALL: KIND, \"Sent\", \"Attempt\" or \"Recv\", and the method, or \"other\"
if the method is unknown."
  (let* ((path (call-path call))
         (title (concatenate '(simple-array character (*)) kind (or path ".other"))))
    (dotimes (i (length title) title)
      (when (char= #\/ (schar title i)) (setf (schar title i) #\.)))))

(defun status-name (status)
  "STATUS, a keyword, as gRPC's documents spell it."
  (substitute #\_ #\- (string-upcase status)))

(defun put-call-status (span status text)
  "Give SPAN, whose call or attempt has ended with STATUS, a keyword, and TEXT, its status."
  (if (eq :ok status)
      (put-status span :ok)
      (put-status span :error (if (and text (plusp (length text)))
                                  (concatenate 'string (status-name status) ": " text)
                                  (status-name status)))))

(defun put-semantic-attributes (span call)
  "Give CALL's span the attributes that OpenTelemetry's conventions for gRPC require at its
beginning."
  (let* ((path (call-path call))
         (slash (and path (position #\/ path :start 1)))
         (peer (rpc:call-peer call))
         (colon (and peer (position #\: peer :from-end t)))
         (port (and colon (parse-integer peer :start (1+ colon) :junk-allowed t))))
    (put-attribute span "rpc.system" "grpc")
    (when slash
      (put-attribute span "rpc.service" (subseq path 1 slash))
      (put-attribute span "rpc.method" (subseq path (1+ slash))))
    (when peer
      (put-attribute span "network.peer.address" (if port (subseq peer 0 colon) peer))
      (when port (put-attribute span "network.peer.port" port)))))

(defun outcome-text (call)
  (nth-value 1 (rpc:final-status call)))

;;; A client's call

(defun note-parent (call)
  "Note the current span of this thread as the parent of CALL, a client's call that is made here."
  (let ((parent (current-context)))
    (when parent (setf (call-value call 'record) parent))))

(defun begin-client-record (tracing queue call)
  "Begin the record of CALL, a client's call."
  (let ((record (begin-record tracing queue (known-record call) nil)))
    (setf (call-value call 'record) record)
    (when (sampled-p record)
      (begin-record-span record (span-title "Sent" call) :client))))

(defun end-record-span (call)
  "End the span of CALL, which has ended."
  (let ((record (known-record call)))
    (when (and (record-p record) (record-span record))
      (when (tracing-semantic (record-tracing record))
        (put-attribute (record-span record) "rpc.grpc.status_code"
                       (status:status-code (call-status call)))
        (when (rpc:client-p call) (put-semantic-attributes (record-span record) call)))
      (put-call-status (record-span record) (call-status call) (outcome-text call))
      (finish-span (record-tracing record) (record-queue record) (record-span record)))))

;;; Attempts

(defun note-delays (record call attempt-span)
  "Record the events for which CALL, whose first attempt begins on the wire, had to wait."
  (when (client:waited-p call)
    (when (getf (rpc:call-stages call) :resolve)
      (add-event (record-span record) "Delayed name resolution complete" '()))
    (add-event attempt-span "Delayed LB pick complete" '())))

(defun begin-attempt-span (record call key number transparent)
  "Begin the span of the attempt of CALL that comes after NUMBER others, store it under KEY, and
return it."
  (let ((span (begin-span (record-tracing record) (record-queue record)
                          (span-title "Attempt" call) :internal (child-context record)
                          (record-context record))))
    (put-attribute span "previous-rpc-attempts" number)
    (put-attribute span "transparent-retry" transparent)
    (push (cons key span) (record-tries record))
    (incf (record-attempts record))
    span))

(defun end-attempt-span (record entry status text)
  "End the span of ENTRY, one of RECORD's tries, whose attempt has ended with STATUS and TEXT."
  (setf (record-tries record) (remove entry (record-tries record) :count 1))
  (put-call-status (cdr entry) status text)
  (finish-span (record-tracing record) (record-queue record) (cdr entry)))

(defun trace-attempt (attempt)
  "The interceptor of attempts on the wire."
  (let* ((call (attempt:attempt-call attempt))
         (record (call-record call)))
    (when (record-p record)
      (let ((id (record-id record)))
        (when (record-span record)
          (let* ((first (zerop (record-attempts record)))
                 (span (begin-attempt-span record call attempt (attempt:attempt-number attempt)
                                           (eq :transparent (attempt:attempt-kind attempt))))
                 (entry (first (record-tries record))))
            (when first (note-delays record call span))
            (setf id (context-id (span-context span)))
            (attempt:on-attempt-end
             attempt
             (lambda ()
               (end-attempt-span record entry (attempt:attempt-status attempt)
                                 (attempt:attempt-message attempt))))))
        (attempt:put-attempt-metadata
         attempt
         (inject (tracing-propagators (record-tracing record))
                 (attempt:attempt-request-metadata attempt)
                 (record-high record) (record-low record) id
                 (and (record-span record) t) (record-state record)
                 (record-baggage record)))))))

(defun begin-inner-attempt (call peer stream)
  "Begin the span of an attempt of CALL within the image, if CALL is recorded."
  (declare (ignore stream))
  (let ((record (call-record call)))
    (when (and (record-p record) (record-span record))
      (begin-attempt-span record call peer (record-attempts record) nil))))

(defun end-inner-attempt (call peer status stream sent received ns)
  "End the span of CALL's oldest attempt to PEER within the image, which has ended with STATUS."
  (declare (ignore stream sent received ns))
  (let* ((record (call-record call))
         (entry (and (record-p record)
                     (find peer (record-tries record) :key #'car :test #'equal :from-end t))))
    (when entry
      (end-attempt-span record entry (or status :cancelled)
                        (and (eq status (call-status call)) (outcome-text call))))))

;;; A server's call

(defun inner-parent (call)
  "The context that CALL, a server's within the image, has from its client; or nil."
  (let* ((other (operate other-end call))
         (record (and other
                      (call-record (attempt:attempt-of other)))))
    (cond ((not (record-p record)) record)
          ((record-tries record) (span-context (cdr (first (record-tries record)))))
          (t (record-context record)))))

(defun note-server-record (call record sampled)
  "Note RECORD as the record of CALL, a server's call. If SAMPLED is true, the record gets a span."
  (setf (call-value call 'record) record)
  (when sampled
    (let ((span (begin-record-span record (span-title "Recv" call) :server))
          (protocol (operate protocol call)))
      (when (tracing-semantic (record-tracing record)) (put-semantic-attributes span call))
      ;; as in metrics, only other protocols are named: the spans of gRPC's calls are those of gRFC
      ;; A72
      (unless (member protocol '(:grpc nil))
        (put-attribute span "clgrpc.protocol" (string-downcase protocol))))))

(define-hot received-context ((tracing tracing) (queue queue) (call call)) (or null trace-context)
  "The context in the metadata of CALL, a server's call on QUEUE's loop; nil without one."
  (let ((fields (rpc:call-fields call)))
    (unless (eq fields (queue-bare-fields queue))
      (or (extract (tracing-propagators tracing) fields)
          (progn (when (queue-loop queue) (setf (queue-bare-fields queue) fields))
                 nil)))))

(define-hot begin-server-record ((tracing tracing) (queue queue) (call call)) null
  "Begin the record of CALL, a server's call. On the wire a call that is not sampled gets no
record."
  (let* ((inner (null (queue-loop queue)))
         (told (received-context tracing queue call))
         (parent (if (and told (not (and inner (bare-p told))))
                     told
                     (or (and inner (inner-parent call)) told))))
    (if (or parent inner (= +no-bound+ (tracing-bound tracing)))
        (let* ((record (begin-record tracing queue parent nil))
               (sampled (sampled-p record)))
          (when (or sampled inner) (note-server-record call record sampled)))
        (let ((low (next-id (seeded-ids queue) nil)))
          (when (< (ash low -1) (tracing-bound tracing))
            ;; LOW is allocated only in this case
            (locally (declare (sb-ext:muffle-conditions sb-ext:compiler-note))
              (note-server-record call (begin-record tracing queue nil low) t))))))
  nil)

(define-hot (quiet-p :inline t) ((call call)) boolean
  "True if CALL, a server's, has no span."
  (let ((method (rpc:call-rpc-method call)))
    (and method (method:rpc-method-quiet (the method:rpc-method method)))))

(defun unrecorded-record (tracing call)
  "A record for CALL, a server's call on the wire that TRACING does not record, made when its
context is requested. From any thread."
  (let* ((queue (tracing-shared tracing))
         (parent (extract (tracing-propagators tracing) (rpc:call-fields call)))
         (low (id-beyond (next-id (queue-ids queue) t) (tracing-bound tracing))))
    (begin-record tracing queue parent low)))

;;; Messages

(defun message-span (record)
  "The span to which messages of RECORD's call are added as events."
  (let ((entry (first (record-tries record))))
    (if entry (cdr entry) (record-span record))))

(defun add-message-event (span inbound number octets plain)
  "Add an event to SPAN: a message of OCTETS, its NUMBERth, was received if INBOUND, else sent.
PLAIN is the value of TOLD-SIZE for the message."
  (flet ((event (compressed &rest sizes)
           (add-event span
                      (cond ((not compressed) (if inbound "Inbound message" "Outbound message"))
                            (inbound "Inbound compressed message")
                            (t "Outbound message compressed"))
                      (acons "sequence-number" number sizes))))
    (case plain
      ((nil) (event nil (cons "message-size" octets)))
      ;; the message's length is unknown until it is decompressed, perhaps after the span has ended
      ((t) (event t (cons "message-size-compressed" octets)))
      (t (event nil (cons "message-size" plain) (cons "message-size-compressed" octets))))))

(define-hot note-sent ((call call) (octets index)) t
  "Record that a message of CALL was sent."
  (let ((record (known-record call)))
    (when (and (record-p record) (record-span record))
      (let ((span (message-span record)))
        (add-message-event span nil (1- (incf (span-sent span))) octets
                           (operate told-size call))))))

(define-hot note-received ((call call) (octets index)) t
  (let ((record (known-record call)))
    (when (and (record-p record) (record-span record))
      (let ((span (message-span record)))
        (add-message-event span t (1- (incf (span-received span))) octets
                           (operate told-size call))))))

;;; The observers

(defun client-observer (tracing queue)
  "The observer for channels whose calls are on QUEUE's loop."
  (let ((inner (null (queue-loop queue))))
    (rpc:make-observer :trusted t
     :call-made #'note-parent
     :call-begun (lambda (call) (begin-client-record tracing queue call))
     :attempt-begun (and inner #'begin-inner-attempt)
     :attempt-ended (and inner #'end-inner-attempt)
     :message-sent #'note-sent
     :message-received #'note-received
     :call-ended #'end-record-span)))

(defun server-observer (tracing queue)
  "The observer of a server's loop, QUEUE's."
  (rpc:make-observer :trusted t
   :late (and (queue-loop queue) (lambda (call) (unrecorded-record tracing call)))
   :call-begun (lambda (call)
                 (unless (quiet-p call) (begin-server-record tracing queue call)))
   :message-sent #'note-sent
   :message-received #'note-received
   :call-ended #'end-record-span))

(defmethod rpc:check-observer ((source tracing)) source)

(defmethod rpc:observer-for ((source tracing) &key role target loop)
  (declare (ignore target))
  (renew-offset source)
  (let ((queue (queue-for source loop)))
    (ecase role
      (:client (client-observer source queue))
      (:server (server-observer source queue)))))

(defmethod attempt:observer-interceptors ((source tracing))
  (list #'trace-attempt))

;;; Making it

(define-keyword-function make-tracing
    (&rest options &key (sampler '(:parent-based :always-on))
                     (propagators '(:tracecontext)) on-batch
                     semantic-conventions
     &allow-other-keys)
  "Return tracing, for :observer of START-SERVER, MAKE-CHANNEL and SERVER-CHANNEL, alone or in a
list of observers. Calls of such servers and channels get spans as in gRFC A72, which wait for an
exporter, and carry trace contexts. SAMPLER determines which traces are recorded: :always-on;
:always-off; (:trace-id-ratio RATIO) with a ratio from 0 to 1; or (:parent-based ROOT &key
remote-parent-sampled remote-parent-not-sampled local-parent-sampled local-parent-not-sampled), all
of these samplers, which follows the parent's decision or, without a parent, that of ROOT. SAMPLER
may also be a function of the parent (a context or nil) and the 16 octets of the trace id, called on
the call's loop. If the function signals an error, the error is logged, and the trace is not
recorded. PROPAGATORS are the forms in which contexts are sent; the first form that a call has is
read: :tracecontext (traceparent and tracestate of W3C Trace Context) and :grpc-trace-bin. With
:baggage in the list, WITH-BAGGAGE's entries are sent and read (W3C Baggage). ON-BATCH is a function
without arguments that is called, on the loop, when :batch-spans spans wait; it must not wait. With
SEMANTIC-CONVENTIONS spans of calls also have the attributes of OpenTelemetry's conventions for
gRPC, by which OpenTelemetry's backends group spans: rpc.system, rpc.service, rpc.method,
rpc.grpc.status_code, network.peer.address and network.peer.port. All other OPTIONS are rows of the
options table as keywords. Signal MISUSE for a wrong argument. From any thread."
  (let* ((limits (apply #'make-tracing-options
                        (loop for (name value) on options by #'cddr
                              unless (member name '(:sampler :propagators :on-batch
                                                    :semantic-conventions))
                                append (list name value))))
         (tracing (%make-tracing :limits limits :sampler (find-sampler sampler)
                                 :bound (root-bound sampler)
                                 :propagators (check-propagators propagators)
                                 :on-batch (check-on-batch on-batch)
                                 :semantic (and semantic-conventions t)
                                 :offset-ns (clock-offset))))
    (setf (tracing-shared tracing) (new-queue tracing nil)
          loop:**carrier** #'carry
          **log-context** #'current-ids
          rpc:**call-ids** #'call-ids
          **tracing** tracing)))

(defun check-propagators (propagators)
  (unless (and (listp propagators)
               (subsetp propagators '(:tracecontext :grpc-trace-bin :baggage)))
    (misuse "Propagators are a list of :tracecontext, :grpc-trace-bin and :baggage, not ~S."
            propagators))
  propagators)
