;;;; The responses to a call (gRPC over HTTP/2, "Responses"; status mapping of the gRPC documents):
;;;; the functions that a link calls for the frames of its streams. A single reply is decoded on the
;;;; thread where it arrived, unless it is long. Long replies, and messages of streams, are decoded
;;;; by the thread that receives them.

(in-package #:clgrpc.client)

(defglobal **unsound-metadata**
    "the server's metadata has a name that ends in -bin and a value that is not base64")

(defun client-headers (stream list ended)
  "The sink's on-headers. If the server repeats a header block of a valid response, the memo of LIST
is that response's metadata."
  (let ((memo (hpack:field-list-memo list)))
    (if (and (simple-vector-p memo) (not ended))
        (begin-answer stream list memo)
        (let ((problem (if (simple-vector-p memo) nil (response-problem list))))
          (cond (problem (destructuring-bind (status text) problem
                           (refuse-answer stream list status text)))
                ;; the only headers of an ended stream count as trailers
                (ended (take-only-trailers stream list))
                (t (begin-answer stream list nil)))))))

(defun begin-answer (stream list memo)
  "Begin the answer on STREAM with LIST, the headers of a valid response. The metadata of the answer
are MEMO unless that is nil."
  (let ((call (committed-call stream)))
    (when (and call (not (call-status call)))
      (forget-request call)
      (wire:mark-call call :answer)
      (setf (call-fields call) (or memo (response-fields call list)))
      (rpc:observe headers-received (core-observer (client-call-core call)) call)
      (if (or memo (wire:sound-metadata-p (call-fields call)))
          (notify call)
          (client-abort call :internal **unsound-metadata** :peer)))))

(defun tried-call (stream)
  "The call whose attempt is on STREAM, if the call runs; else nil."
  (let* ((attempt (http2:stream-user stream))
         (call (and attempt (attempt-call attempt))))
    (and call (not (call-status call)) call)))

(defun fail-stream (stream failure)
  "Handle FAILURE of STREAM, a running call's, on which no frames except trailers have arrived."
  (let ((call (stream-call stream)))
    (cond ((and call (plain-p call) (not (eq :server (client-failure-reach failure))))
           (forget-request call)
           (end-with-failure call failure))
          (t (fail-attempt (http2:stream-user stream) failure)))))

(defun refuse-answer (stream list status text)
  "Let the attempt on STREAM fail with STATUS and TEXT, since the header LIST does not begin a
response."
  (when-let ((call (tried-call stream)))
    (rpc:observe headers-received (core-observer (client-call-core call)) call)
    (fail-stream stream (make-client-failure status text :how '(:ended-by :peer)
                                             :pushback (list-pushback list)))))

(defun take-only-trailers (stream list)
  "End the attempt on STREAM, on which only the trailers LIST were received."
  (when-let ((call (tried-call stream)))
    (rpc:observe headers-received (core-observer (client-call-core call)) call)
    (let ((failure (if (eq :ok (hpack:field-list-memo list)) nil (trailers-failure list))))
      (cond (failure
             (note-accepted-encodings (stream-link stream) list)
             (fail-stream stream failure))
            ((committed-call stream)
             (forget-request call)
             (end-with-trailers call list))))))

(defun response-fields (call list)
  "The metadata of the valid response that begins with LIST."
  (let ((fields (values (wire:list-fields list (client-call-link call)))))
    (unless (or (note-encodings call list) (not (wire:sound-metadata-p fields)))
      (setf (hpack:field-list-memo list) fields))
    fields))

(defun response-problem (list)
  "Nil if the header LIST begins a gRPC response, else (status text)."
  (let ((http-status (hpack:find-field list ":status"))
        (content-type (hpack:find-field list "content-type")))
    (cond ((hpack:field-list-overflow-p list)
           '(:resource-exhausted "the response's header list is too large"))
          ((hpack:find-field list "grpc-status") nil)
          ((string/= "200" (hpack:field-value-string http-status))
           (let ((code (hpack:field-value-string http-status)))
             (list (http-status-status (parse-integer code :junk-allowed t))
                   (format nil "HTTP status ~A instead of a gRPC response" code))))
          ((not (and content-type
                     (alexandria:starts-with-subseq "application/grpc"
                                                    (hpack:field-value-string content-type))))
           (list :unknown (format nil "content-type ~:[missing~;~:*~A~] instead of application/grpc"
                                  (and content-type
                                       (quoted-octets (hpack:field-value content-type))))))
          ((encoding-problem list)))))

(define-hot client-data ((stream http2:stream) (octets octets) (start index) (end index)
                         (ended boolean))
    null
  "The sink's on-data."
  (let ((call (stream-call stream)))
    (cond (call
           (wire:receive-data call octets start end)
           (when (and ended (not (call-status call)))
             (client-abort call :internal "the server ended the stream without a status" :peer)))
          (t (http2:consume-data stream (- end start))))
    nil))

(define-hot deliver-response ((call client-call) (octets octets) (start index) (end index)) null
  "The operation DELIVER of methods with one response. The caller's thread decodes a long reply."
  (if (client-call-reply call)
      (rpc:abort-as call (rpc:violation call 2 nil))
      (let ((item (values (wire:take-single call octets start end))))
        (if (status:failure-p item)
            (end-client-call call (status:rpc-error-status item) (rpc-error-message item)
                             :ended-by :local :cause (status:rpc-error-cause item))
            (setf (client-call-reply call) item))))
  nil)

(defun client-trailers (stream list)
  "The sink's on-trailers."
  (let ((call (stream-call stream)))
    (when (and call (not (call-status call))) (end-with-trailers call list))))

(defun end-with-trailers (call list)
  "End CALL with the status in the trailers LIST. If the same block came before and has only the
status :ok, the memo of LIST is :ok."
  (if (eq :ok (hpack:field-list-memo list))
      (end-well call)
      (read-trailers call list)))

(defun fail-late (call failure)
  "End CALL, whose answer has begun, with FAILURE."
  (unless (plain-p call)
    (attempt:tell-failed-late **retry-operations** call failure))
  (end-with-failure call failure))

(defun read-trailers (call list)
  "End CALL with LIST, its trailers."
  (multiple-value-bind (failure fields) (trailers-failure list)
    (note-accepted-encodings (client-call-link call) list)
    (cond (failure (fail-late call failure))
          (t (when (plusp (length fields))
               (setf (rpc:trailer-fields call) fields))
             (if (wire:sound-metadata-p fields)
                 (end-well call)
                 (end-client-call call :internal **unsound-metadata**))))))

(defun trailers-failure (list)
  "Two values: the failure in LIST, the trailers of a call, or nil if the call has succeeded; and
the metadata in LIST."
  (let ((fields (values (wire:list-fields list nil))))
    (multiple-value-bind (code text details) (trailers-status list)
      (cond ((null code)
             (make-client-failure :unknown "the response has no valid grpc-status"
                                  :trailers fields))
            ((plusp code)
             (make-client-failure (status:code-status code) (or text "")
                                  :how (and details (list :details details))
                                  :pushback (list-pushback list)
                                  :trailers fields))
            (t (unless (or text details (plusp (length fields)))
                 (setf (hpack:field-list-memo list) :ok))
               (values nil fields))))))

(defun list-pushback (list)
  "The pushback in grpc-retry-pushback-ms of LIST, a value of PARSE-PUSHBACK; nil if LIST has none."
  (let ((field (hpack:find-field list "grpc-retry-pushback-ms")))
    (parse-pushback (and field (hpack:field-value-string field)))))

(defun end-well (call)
  "End CALL, which the server has ended with :ok: with :ok if the number of messages is right, else
with the verdict on that number."
  (let ((violation (rpc:violation call (if (client-call-reply call) 1 0)
                                  (wire:wire-call-partial call))))
    (cond (violation (end-client-call-as call violation))
          (t (when (and (eq :client-streaming (rpc-method-kind (call-rpc-method call)))
                        (not (unattended-p call)))
               ;; where RECEIVE looks
               (charge-account (client-link-account (client-call-link call))
                               (rpc:push-incoming call (shiftf (client-call-reply call) nil) 0)))
             (end-client-call call :ok "")))))

(defun client-reset (stream error-code source)
  "The sink's on-reset."
  (when-let ((call (tried-call stream)))
    (let ((failure (reset-failure (stream-link stream) error-code source)))
      (cond ((and (eq stream (client-call-stream call))
                  (wire:marked-p call :answer))
             (fail-late call failure))
            (t (fail-stream stream failure))))))

(defun reset-failure (link error-code source)
  "The failure of an attempt whose stream on LINK was reset. ERROR-CODE and SOURCE are arguments of
the sink's on-reset."
  (let ((cause (format nil "~A from ~(~A~)" (http2:error-code-name error-code) source))
        (text (http2:connection-error-text (client-link-http2 link)))
        (refused (= error-code http2:+refused-stream+)))
    (flet ((failure (status message ended-by cause &key (sent t) (reach :handler))
             (make-client-failure status message :reach reach
                                  :how (list :ended-by ended-by :cause cause
                                             :sent sent))))
      (ecase source
        (:peer (failure (error-code-status error-code) "the server has reset the stream"
                        :transport cause
                        :sent (not refused) :reach (if refused :server :handler)))
        (:local (if (= error-code http2:+enhance-your-calm+)
                    (failure :resource-exhausted "the response's header list is too large"
                             :local cause)
                    (failure :internal (format nil "the server broke the HTTP/2 protocol: ~A" text)
                             :transport cause)))
        (:goaway (failure :unavailable
                          (format nil "the server is going away~@[: ~A~]" (client-link-goaway link))
                          :transport cause :sent nil :reach :server))
        (:connection
         (failure :unavailable
                  (or (client-link-failure link) (format nil "the connection was lost: ~A" text))
                  :transport (or (client-link-goaway link) cause)
                  :sent (not refused) :reach (if refused :server :handler)))))))

(defun client-stream-closed (stream)
  "The sink's on-stream-closed."
  (when-let ((link (leave-stream stream)))
    (let ((subchannel (the subchannel
                           (shiftf (attempt-subchannel (stream-attempt stream)) nil))))
      (http2:release-stream stream)
      (decf (client-link-calls link))
      (when (zerop (decf (subchannel-open-calls subchannel))) (look-after-last subchannel))
      (if (client-link-draining link)
          (drain-link (client-link-owner link) link)
          (serve-owners (client-link-owner link))))))

(defun client-goaway (http2 last-stream-id error-code debug)
  "The sink's on-goaway: the link gets no more calls; its calls under way may finish."
  (declare (ignore last-stream-id))
  (let* ((link (http2:connection-user http2)))
    (setf (client-link-draining link) t)
    (unless (client-link-goaway-code link)
      (setf (client-link-goaway-code link) (http2:error-code-name error-code)))
    ;; only the first GOAWAY with a reason counts; before it a graceful one may have come
    (when (and (/= error-code http2:+no-error+) (null (client-link-goaway link)))
      (setf (client-link-goaway link)
            (format nil "GOAWAY ~A~:[ ~A~;~]" (http2:error-code-name error-code)
                    (zerop (length debug)) (quoted-octets debug)))
      (log-event :warning :goaway :link link :code (http2:error-code-name error-code)
                                  :debug (quoted-octets debug))
      (when (and (= error-code http2:+enhance-your-calm+)
                 (equalp debug (load-time-value (ascii-octets "too_many_pings"))))
        (ping-less (client-link-owner link) link)))
    (drain-link (client-link-owner link) link)))

(defun client-settings (http2)
  "The sink's on-settings: the peer's limit of streams may have grown."
  (when-let ((link (http2:connection-user http2)))
    (handle-settings (client-link-owner link) link)
    (serve-owners (client-link-owner link))))

(defun client-writable (stream)
  "The sink's on-writable: a call has room to send if the attempt with which it continues has room."
  (let ((call (stream-call stream)))
    (when call (wire:tell-writable call))))

(define-load-time-global **client-sink**
    (wire:link-sink :on-headers #'client-headers
                    :on-data #'client-data :on-trailers #'client-trailers
                    :on-reset #'client-reset :on-writable #'client-writable
                    :on-stream-closed #'client-stream-closed :on-goaway #'client-goaway
                    :on-settings #'client-settings))

(defun new-core (&rest arguments)
  "As MAKE-CORE, with the functions of this client for its links, subchannels and calls."
  (apply #'make-core :sink **client-sink** :sender #'send-on-attempts :on-stream #'serve-waiting
         arguments))
