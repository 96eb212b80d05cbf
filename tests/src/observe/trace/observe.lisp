;;;; The spans of calls (gRFC A72), over the wire and within the image: names, parents across three
;;;; services, attempts, messages, statuses, metadata.

(in-package #:clgrpc.tests.trace)

(defun drained (tracing count)
  "COUNT spans of TRACING, once they exist, in the order of their begin."
  (let ((spans '()))
    (wait-until (lambda ()
                  (setf spans (append spans (trace:drain tracing)))
                  (<= count (length spans))))
    (stable-sort spans #'< :key #'trace:span-start-ns)))

(defun named (name spans)
  "The only one of SPANS whose name begins with NAME."
  (let ((found (remove-if-not (lambda (span) (eql 0 (search name (trace:span-name span)))) spans)))
    (is (= 1 (length found)) "~D spans ~A" (length found) name)
    (first found)))

(defun all-named (name spans)
  (remove-if-not (lambda (span) (eql 0 (search name (trace:span-name span)))) spans))

(defun id-of (span) (grpc:span-id (trace:span-context span)))

(defun trace-of (span) (grpc:trace-id (trace:span-context span)))

(defun parent-of (span)
  (and (trace::span-parent span) (grpc:span-id (trace::span-parent span))))

(defun child-p (span parent)
  (and (equal (parent-of span) (id-of parent)) (equal (trace-of span) (trace-of parent))))

(defun attribute (span name) (cdr (assoc name (trace:span-attributes span) :test #'string=)))

(defun moments (span)
  "The events of SPAN without their times: (name . attributes)."
  (mapcar (lambda (event) (cons (trace:event-name event) (trace:event-attributes event)))
          (trace:span-events span)))

(defmacro with-traced ((channel tracing &key (place :wire) tracing-options channel-options
                                          server-options)
                       handlers &body body)
  "Evaluate BODY with CHANNEL to a probe with HANDLERS, over the wire or, if PLACE is :image, within
the image, both traced by TRACING."
  (let ((server (gensym "SERVER")))
    `(let* ((,tracing (grpc:make-tracing ,@tracing-options))
            (,server (start-probe (list ,@handlers)
                                  :listen (if (eq :wire ,place)
                                              "127.0.0.1:0"
                                              (format nil "inproc:~A" (gensym "TRACED")))
                                  :observer ,tracing ,@server-options)))
       (unwind-protect
            (grpc:with-channel (,channel (grpc:server-address ,server)
                                         :observer ,tracing ,@channel-options)
              ,@body)
         (grpc:stop-server ,server :drain 0)))))

(test spans-of-a-unary-call
  (dolist (place '(:wire :image))
    (with-traced (channel tracing :place place) (:ask #'double)
      (is (= 8 (number-of (ask channel (note 4)))))
      (let* ((spans (drained tracing 3))
             (sent (named "Sent." spans)) (attempt (named "Attempt." spans))
             (received (named "Recv." spans))
             (octets (grpc:serialized-size (note 4))))
        (is (= 3 (length spans)))
        (is (string= "Sent.lab.Bench.Ask" (trace:span-name sent)))
        (is (string= "Attempt.lab.Bench.Ask" (trace:span-name attempt)))
        (is (string= "Recv.lab.Bench.Ask" (trace:span-name received)))
        (is (equal '(:client :internal :server)
                   (mapcar #'trace:span-kind (list sent attempt received))))
        (is (null (parent-of sent)))
        (is-true (child-p attempt sent))
        (is-true (child-p received attempt))
        (is (eq (eq :wire place) (and (trace:span-remote-parent-p received) t)))
        (is (equal '(:ok :ok :ok) (mapcar #'trace:span-status spans)))
        (is (eql 0 (attribute attempt "previous-rpc-attempts")))
        (is (null (attribute attempt "transparent-retry")))
        (let ((request `(("sequence-number" . 0) ("message-size" . ,octets))))
          (is (equal request (cdr (assoc "Outbound message" (moments attempt)
                                         :test #'string=))))
          (is (equal request (cdr (assoc "Inbound message" (moments received)
                                         :test #'string=)))))
        (is-true (assoc "Inbound message" (moments attempt) :test #'string=))
        (is-true (assoc "Outbound message" (moments received) :test #'string=))
        (is (loop for span in spans
                  always (and (<= (trace:span-start-ns span) (trace:span-end-ns span))
                              (loop for event in (trace:span-events span)
                                    always (<= (trace:span-start-ns span) (trace:event-ns event)
                                               (trace:span-end-ns span))))))))))

(test messages-of-streams-have-numbers
  (with-traced (channel tracing) (:chat #'echo)
    (is (equal '(1 2 3) (numbers (chat channel (list (note 1) (note 2) (note 3))))))
    (let ((spans (drained tracing 3)))
      (flet ((sequence-of (span event)
               (loop for (name . attributes) in (moments span)
                     when (string= name event)
                       collect (cdr (assoc "sequence-number" attributes :test #'string=)))))
        (dolist (span (list (named "Attempt." spans) (named "Recv." spans)))
          (is (equal '(0 1 2) (sequence-of span "Outbound message")))
          (is (equal '(0 1 2) (sequence-of span "Inbound message"))))))))

(test spans-of-a-saved-image-have-the-date
  "A tracing of before the image was saved has the offset of that process and machine."
  (flet ((dated-p (tracing)
           (grpc:with-span ("work" :tracing tracing :parent nil))
           (< (abs (- (real-time-ns) (trace:span-start-ns (first (last (trace:drain tracing))))))
              (* 3600 +ns-per-second+))))
    (let ((first (grpc:make-tracing :sampler :always-on))
          (last (grpc:make-tracing :sampler :always-on)))
      (dolist (tracing (list first last)) (setf (trace::tracing-offset-ns tracing) 0))
      (mapc #'funcall (intersection sb-ext:*init-hooks* '(trace::renew-offset)))
      (is-false (trace::renew-offset nil) "an image without tracing")
      (is (dated-p last) "the last one has it as soon as the image starts")
      (with-probe (channel :options (list :observer first)) (:ask #'double)
        (is (dated-p first) "other tracings get it with their first server or channel")))))

(test compressed-messages-of-unknown-length
  "Their events have the names of gRFC A72."
  (let ((tracing (grpc:make-tracing :sampler :always-on)))
    (grpc:with-span ("messages" :tracing tracing)
      (dolist (inbound '(t nil))
        (trace::add-message-event (trace::current-span) inbound 0 5 t)))
    (is (equal '("Inbound compressed message" "Outbound message compressed")
               (mapcar #'trace:event-name (trace:span-events (first (trace:drain tracing))))))))

(test compressed-messages-say-so
  "Their events have both sizes, as in grpc-go; for deflate the receiver lacks the larger."
  (dolist (encoding '(:gzip :deflate))
    (with-traced (channel tracing) (:chat #'echo)
      (let ((big (note 2 :body 100000)))
        (is (equal '(1 2) (numbers (chat channel (list (note 1) big) :compression encoding))))
        (let* ((spans (drained tracing 3)) (attempt (named "Attempt." spans)))
          (flet ((events (name span)
                   (loop for (it . attributes) in (moments span)
                         when (string= name it) collect attributes))
                 (size-in (attributes)
                   (cdr (assoc "message-size-compressed" attributes :test #'string=))))
            (destructuring-bind (first second) (events "Outbound message" attempt)
              (is (equal `(("sequence-number" . 0)
                           ("message-size" . ,(grpc:serialized-size (note 1))))
                         first))
              (is (< 0 (size-in second) 100000))
              (is (equal `(("sequence-number" . 1)
                           ("message-size" . ,(grpc:serialized-size big))
                           ("message-size-compressed" . ,(size-in second)))
                         second))
              (is (equal (if (eq :gzip encoding)
                             (list first second)
                             (list first))
                         (events "Inbound message" (named "Recv." spans))))
              (is (equal (if (eq :gzip encoding)
                             '()
                             `((("sequence-number" . 1)
                                ("message-size-compressed" . ,(size-in second)))))
                         (events "Inbound compressed message" (named "Recv." spans)))))))))))

(test statuses-of-calls-are-those-of-spans
  (dolist (place '(:wire :image))
    (with-traced (channel tracing :place place)
        (:ask (handling ()
                (grpc:fail :not-found "no such note")))
      (signals grpc:not-found (ask channel (note 1)))
      (let ((spans (drained tracing 3)))
        (dolist (span spans)
          (is (eq :error (trace:span-status span)))
          (is (string= "NOT_FOUND: no such note" (trace:span-status-text span))))))))

(defun through-services (place)
  "Let a client call a service that calls one that calls another, each with a tracing of its own as
in a process of its own. Return the spans of the client and of the three."
  (let* ((tracings (loop repeat 4 collect (grpc:make-tracing)))
         (channels (list nil)) (servers '()))
    (flet ((channel-for (server tracing)
             (push (grpc:make-channel (grpc:server-address server) :observer tracing)
                   (car channels))
             (first (car channels))))
      (unwind-protect
           (destructuring-bind (client one two three) tracings
             (let (to-one to-two to-three)
               (flet ((start (tracing handler)
                        (first (push (start-probe
                                      (list :ask handler) :observer tracing
                                      :listen (if (eq :wire place)
                                                  "127.0.0.1:0"
                                                  (format nil "inproc:~A" (gensym "SERVICE"))))
                                     servers))))
                 (setf to-three (channel-for (start three #'double) two)
                       to-two (channel-for (start two (handling (note)
                                                        (values (ask to-three note))))
                                           one)
                       to-one (channel-for (start one (handling (note)
                                                        (grpc:with-span ("between")
                                                          (values (ask to-two note)))))
                                           client))
                 (is (= 10 (number-of (ask to-one (note 5)))))
                 (list (drained client 2) (drained one 4) (drained two 3) (drained three 1)))))
        (mapc #'grpc:close-channel (remove nil (car channels)))
        (dolist (server servers) (grpc:stop-server server :drain 0))))))

(test a-trace-goes-through-three-services
  (dolist (place '(:wire :image))
    (destructuring-bind (client one two three) (through-services place)
      (is (equal '(2 4 3 1) (mapcar #'length (list client one two three))))
      (let ((chain (list (named "Sent." client) (named "Attempt." client)
                         (named "Recv." one) (named "between" one)
                         (named "Sent." one) (named "Attempt." one)
                         (named "Recv." two) (named "Sent." two) (named "Attempt." two)
                         (named "Recv." three))))
        (is (null (parent-of (first chain))))
        (loop for (parent child) on chain
              while child do (is-true (child-p child parent) "~A of ~A" child parent))))))

(test a-call-that-is-made-again-has-a-span-for-each-attempt
  (let ((tracing (grpc:make-tracing)) (counter (list 0)))
    (tests::with-raw-server (address :at :end) (tests:refusing 1 counter)
      (grpc:with-channel (channel address :observer tracing)
        (is (= 7 (number-of (ask channel (note 1)))))
        (let* ((spans (drained tracing 3)) (sent (named "Sent." spans))
               (attempts (all-named "Attempt." spans)))
          (is (= 2 (length attempts)))
          (is (loop for attempt in attempts always (child-p attempt sent)))
          (is (string/= (id-of (first attempts)) (id-of (second attempts))))
          (is (equal '(:error :ok) (mapcar #'trace:span-status attempts)))
          (is (equal '(nil t) (mapcar (lambda (span) (attribute span "transparent-retry"))
                                      attempts)))
          (is (eq :ok (trace:span-status sent))))))))

(test each-attempt-has-a-context-of-its-own
  "With a retry policy, the servers' spans are children of different attempts."
  (dolist (place '(:wire :image))
    (let ((count (list 0)))
      (with-traced (channel tracing
                    :place place
                    :channel-options (:service-config
                                      "{\"methodConfig\":[{\"name\":[{}],\"retryPolicy\":{
                                       \"maxAttempts\":3,\"initialBackoff\":\"0.01s\",
                                       \"maxBackoff\":\"0.01s\",\"backoffMultiplier\":1,
                                       \"retryableStatusCodes\":[\"UNAVAILABLE\"]}}]}"))
          (:ask (handling (note)
                  (if (< (sb-ext:atomic-incf (car count)) 2)
                      (grpc:fail :unavailable "not now")
                      note)))
        (is (= 4 (number-of (ask channel (note 4)))))
        (let* ((spans (drained tracing 7))
               (attempts (all-named "Attempt." spans)) (received (all-named "Recv." spans)))
          (is (= 7 (length spans)))
          (is (equal '(0 1 2) (mapcar (lambda (span) (attribute span "previous-rpc-attempts"))
                                      attempts)))
          (is (equal '(:error :error :ok) (mapcar #'trace:span-status attempts)))
          (is (every #'child-p received attempts)))))))

(test hedges-have-a-span-each
  (dolist (place '(:wire :image))
    (let ((count (list 0)))
      (with-traced (channel tracing
                    :place place
                    :channel-options (:service-config
                                      "{\"methodConfig\":[{\"name\":[{}],\"hedgingPolicy\":{
                                       \"maxAttempts\":2,\"hedgingDelay\":\"0.01s\"}}]}"))
          (:ask (lambda (note call)
                  (if (zerop (sb-ext:atomic-incf (car count)))
                      call              ; never answers
                      note)))
        (is (= 4 (number-of (ask channel (note 4)))))
        (let* ((spans (drained tracing 5))
               (attempts (all-named "Attempt." spans)) (sent (named "Sent." spans)))
          (is (= 5 (length spans)))
          (is (= 2 (length attempts)))
          (is (loop for attempt in attempts always (child-p attempt sent)))
          (is (equal '(:error :ok) (mapcar #'trace:span-status attempts)))
          (is (string= "CANCELLED" (trace:span-status-text (first attempts))
                       :end2 (min 9 (length (trace:span-status-text (first attempts))))))
          (is (every #'child-p (all-named "Recv." spans) attempts)))))))

(test waiting-for-a-connection-is-an-event
  (with-traced (channel tracing) (:ask #'double)
    (ask channel (note 1))
    (ask channel (note 1))
    (let ((attempts (all-named "Attempt." (drained tracing 6))))
      (is (equal '(t nil) (mapcar (lambda (span)
                                    (and (assoc "Delayed LB pick complete" (moments span)
                                                :test #'string=)
                                         t))
                                  attempts))))))

;;; Metadata

(defun headers-seen (metadata &rest options)
  "The headers at a server for a call with METADATA, on a channel traced with OPTIONS: an alist."
  (let ((seen nil) (tracing (apply #'grpc:make-tracing options)))
    (with-probe (channel :channel-options (list :observer tracing))
        (:ask (lambda (note call)
                (setf seen (grpc:call-metadata call))
                note))
      (ask channel (note 1) :metadata metadata))
    (values (remove-if-not (lambda (entry)
                             (member (car entry) '("traceparent" "tracestate" "grpc-trace-bin" "x")
                                     :test #'string=))
                           seen)
            tracing)))

(defun header (name headers) (cdr (assoc name headers :test #'string=)))

(test contexts-are-sent-in-the-forms-asked-for
  (multiple-value-bind (headers tracing) (headers-seen '(("x" . "y")))
    (let ((attempt (named "Attempt." (drained tracing 2))))
      (is (equal (list (cons "traceparent" (grpc:traceparent (trace:span-context attempt)))
                       (cons "x" "y"))
                 headers))))
  (multiple-value-bind (headers tracing) (headers-seen '() :propagators '(:grpc-trace-bin))
    (let ((attempt (named "Attempt." (drained tracing 2))))
      (is (= 1 (length headers)))
      (is (equal (grpc:traceparent (trace:span-context attempt))
                 (grpc:traceparent (trace::read-trace-bin (header "grpc-trace-bin" headers)))))))
  (let ((headers (headers-seen '() :propagators '(:tracecontext :grpc-trace-bin))))
    (is (equal (header "traceparent" headers)
               (grpc:traceparent (trace::read-trace-bin (header "grpc-trace-bin" headers))))))
  ;; a header of the user's is replaced
  (let ((headers (headers-seen '(("traceparent" . "mine")))))
    (is (= 1 (length headers)))
    (is (string/= "mine" (header "traceparent" headers)))))

(test a-context-that-is-not-sampled-goes-on
  (multiple-value-bind (headers tracing) (headers-seen '() :sampler :always-off)
    (is (null (trace:drain tracing)))
    (let ((context (grpc:parse-traceparent (header "traceparent" headers))))
      (is-true context)
      (is-false (grpc:trace-sampled-p context)))))

(test a-peer-that-repeats-its-headers-may-send-a-context
  "Calls without a context, with the same headers each, do not hide one that has a context."
  (let ((tracing (grpc:make-tracing :sampler '(:parent-based :always-off)))
        (header (format nil "00-~A-~A-01" *trace* *span*)))
    (with-probe (channel :options (list :observer tracing)) (:ask #'double)
      (loop repeat 3
            do (loop repeat 3 do (ask channel (note 1) :metadata '(("x" . "y"))))
               (ask channel (note 1) :metadata `(("x" . "y") ("traceparent" . ,header)))))
    (is (equal (list *span* *span* *span*) (mapcar #'parent-of (drained tracing 3))))))

(test a-server-notes-nothing-of-a-call-that-is-not-recorded
  "Its context is made when it is requested, is the same for all requests, and is passed on by the
handler's calls; services that decide by the id alone decide alike."
  (let ((ratio 9/10) (parent (grpc:parse-traceparent
                              "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")))
    (dolist (sampler `(:always-off (:trace-id-ratio ,ratio) (:parent-based (:trace-id-ratio 0))
                                   (:parent-based :always-on)))
      (let* ((tracing (grpc:make-tracing :sampler sampler)) (notes '()) (sent '()) (contexts '())
             (metadata (and (equal sampler '(:parent-based :always-on))
                            (list (cons "traceparent" (grpc:traceparent parent)))))
             (inner (start-probe (list :ask (lambda (note call)
                                              (push (header "traceparent" (grpc:call-metadata call))
                                                    sent)
                                              note)))))
        (unwind-protect
             (grpc:with-channel (to-inner (grpc:server-address inner) :observer tracing)
               (with-probe (channel :options (list :observer tracing))
                   (:ask (lambda (note call)
                           (unless (clgrpc.trace::record-p (clgrpc.trace::known-record call))
                             (push (clgrpc.trace::known-record call) notes)
                             (push (grpc:current-trace) contexts)
                             (push (grpc:current-trace) contexts)
                             (ask to-inner note))
                           note))
                 (loop repeat 2000      ; one in ten is not sampled, by chance
                       until contexts
                       do (ask channel (note 1) :metadata metadata))))
          (grpc:stop-server inner :drain 0))
        (is (equal '(nil) notes))
        (is-true (eq (first contexts) (second contexts)))
        (is-false (grpc:trace-sampled-p (first contexts)))
        (is-false (grpc:trace-sampled-p (grpc:parse-traceparent (first sent))))
        (is (equal (grpc:trace-id (first contexts))
                   (grpc:trace-id (grpc:parse-traceparent (first sent)))))
        (when metadata
          (is (equal (grpc:trace-id parent) (grpc:trace-id (first contexts)))))
        (when (equal sampler `(:trace-id-ratio ,ratio))
          (is-false (funcall (clgrpc.trace::find-sampler sampler) nil (first contexts))))))))

(test without-tracing-nothing-is-sent
  (let ((seen :none) (current :unknown))
    (with-probe (channel) (:ask (lambda (note call)
                                  (setf seen (mapcar #'car (grpc:call-metadata call))
                                        current (grpc:current-trace))
                                  note))
      (ask channel (note 1)))
    (is (null current))
    (is (equal '("user-agent") seen))))

(defun span-for-headers (metadata &rest options)
  "Two values: the span of a server traced with OPTIONS for a call with METADATA, or nil; and the
context in its handler."
  (let ((tracing (apply #'grpc:make-tracing options)) (seen nil))
    (with-probe (channel :options (list :observer tracing))
        (:ask (handling (note)
                (setf seen (grpc:current-trace))
                note))
      (ask channel (note 1) :metadata metadata))
    (values (first (trace:drain tracing)) seen)))

(test a-server-finds-its-parent-in-the-metadata
  (let ((header (format nil "00-~A-~A-01" *trace* *span*)))
    (multiple-value-bind (span seen)
        (span-for-headers `(("traceparent" . ,header) ("tracestate" . "foo=1")
                            ("tracestate" . "bar=2")))
      (is (string= *trace* (trace-of span)))
      (is (string= *span* (parent-of span)))
      (is (equal (id-of span) (grpc:span-id seen)))
      (is (equal '(("foo" . "1") ("bar" . "2")) (grpc:trace-state seen))))
    ;; of two forms the first that is there counts
    (is (string= *trace* (trace-of (span-for-headers (list (cons "traceparent" header))
                                                     :propagators '(:grpc-trace-bin
                                                                    :tracecontext)))))
    ;; two headers of one name count as none
    (let ((span (span-for-headers `(("traceparent" . ,header) ("traceparent" . ,header)))))
      (is (string/= *trace* (trace-of span)))
      (is (null (parent-of span))))
    ;; a wrong header begins a new trace, and its tracestate is ignored
    (multiple-value-bind (span seen)
        (span-for-headers '(("traceparent" . "00-1-2-3") ("tracestate" . "foo=1")))
      (is (null (parent-of span)))
      (is (null (grpc:trace-state seen))))
    (multiple-value-bind (span seen)
        (span-for-headers `(("traceparent" . ,(format nil "00-~A-~A-00" *trace* *span*))))
      (is (null span))
      (is (string= *trace* (grpc:trace-id seen)))
      (is-false (grpc:trace-sampled-p seen)))))

(test the-span-of-a-call-by-another-protocol-says-which
  (let ((tracing (grpc:make-tracing)))
    (with-probe (channel :server server :options (list :observer tracing :protocols '(:connect)))
        (:ask #'double)
      (ask channel (note 4))
      (clgrpc.tests.server::answers
       server (format nil "POST /lab.Bench/Ask HTTP/1.1|host: a|content-type: application/json|~
                           content-length: 2|connection: close||{}"))
      (is (equal '(() (("clgrpc.protocol" . "connect")))
                 (sort (mapcar #'trace:span-attributes (drained tracing 2)) #'< :key #'length))))))

(test semantic-attributes-if-they-are-asked-for
  "Spans of calls have the attributes by which OpenTelemetry's backends group, else none."
  (loop
    for (wanted place peer port) in '((t :wire "127.0.0.1" t) (nil :wire) (t :image "inproc:"))
    do (with-traced (channel tracing :place place
                                     :tracing-options (:semantic-conventions wanted))
           (:ask #'double)
         (ask channel (note 4))
         (let ((spans (drained tracing 3)))
           (dolist (span (list (named "Recv." spans) (named "Sent." spans)))
             (loop for (name value) in '(("rpc.system" "grpc") ("rpc.service" "lab.Bench")
                                         ("rpc.method" "Ask") ("rpc.grpc.status_code" 0))
                   do (is (equal (and wanted value) (attribute span name)) "~A is ~S" name
                          (attribute span name)))
             (let ((address (attribute span "network.peer.address")))
               (is (eql (and wanted 0) (and address (search peer address)))))
             (is (eq port (and (attribute span "network.peer.port") t))))))))

(test a-sampler-that-fails-loses-no-call
  (dolist (end '(:server :client))
    (check-failing-function end (lambda (function)
                                  (grpc:make-tracing :sampler (list :parent-based function))))
    (check-failing-function end (lambda (function) (grpc:make-tracing :sampler function)))))
