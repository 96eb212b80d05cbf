;;;; `testee transcode`: a server of the web lab's services (proto/lab/web/v1/lab.proto) over gRPC,
;;;; gRPC-Web, Connect and REST on one port, for scenarios that look at responses. Every handler
;;;; reports the request that it got. From the environment: LAB_ORIGIN, whose pages may call;
;;;; LAB_CERT and LAB_KEY, PEM files for TLS.

(in-package #:clgrpc.testee)

(defclass web-echo (lab:echo-service) ()
  (:documentation "All methods answer with their name and their request as it was bound."))
(defclass web-errors (lab:error-service) () (:documentation "Calls end as the request asks."))
(defclass web-streams (lab:stream-service) ()
  (:documentation "Streams that count, collect and chat."))
(defclass web-bodies (lab:body-service) ()
  (:documentation "A service that receives and sends bodies that are not JSON."))
(defclass web-metadata (lab:meta-service) ()
  (:documentation "Reports the received metadata and deadline, and whether sleepers were
cancelled."))
(defclass web-perf (lab:perf-service) () (:documentation "Answers its request."))

;;; Echoes

(defun lab-reply (name request)
  (if (eql 0 (search "Answer" name))
      (lab:make-reply :method name :request request :list (lab:msg-tags request) :amount 42)
      (lab:make-reply :method name :request request)))

(defmacro define-echoes (&rest names)
  "Define the methods of WEB-ECHO that are called NAMES, symbols of their package."
  `(progn
     ,@(loop for name in names
             collect `(defmethod ,name ((service web-echo) request &key)
                        (lab-reply (method:rpc-method-name (method:stub-method ',name))
                                   request)))))

(define-echoes echo:get echo:single echo:shelf echo:book echo:file echo:tree echo:two echo:deep
  echo:typed echo:typed-enum echo:typed-bytes echo:wild echo:rest echo:snake echo:archive echo:peek
  echo:move-file echo:tally echo:create echo:create-in echo:no-body echo:replace echo:update
  echo:remove echo:body-tags echo:body-nesteds echo:body-text echo:body-wrapper
  echo:body-structure echo:answer-message echo:answer-list echo:answer-text echo:answer-amount
  echo:many echo:head echo:report echo:precedence-variable echo:precedence-literal
  echo:precedence-deep echo:precedence-post echo:ambiguous-left echo:ambiguous-right echo:unbound)

;;; Errors

(defun lab-details (number)
  "The error details of the case NUMBER of a request: 1 is one detail, 2 is two details, 3 is an Any
of an unknown type. Return nil for other numbers."
  (let ((reason (google.rpc:make-error-info :reason "LAB" :domain "lab.example"
                                            :metadata '(("k" . "v")))))
    (case number
      (1 (list reason))
      (2 (list reason (google.rpc:make-bad-request
                       :field-violations
                       (list (google.rpc:make-bad-request.field-violation
                              :field "name" :description "bad")))))
      (3 (list (google.protobuf:make-any
                :type-url "type.googleapis.com/lab.web.v1.NotKnownToAnyone"
                :value (octets-of 8 1)))))))

(defun lab-status (code)
  "The status for FAIL that CODE, an integer, means."
  (if (< 16 code) code (grpc:code-status code)))

(defmethod lab-errors-methods:fail ((service web-errors) request &key call)
  (when (lab:fail-request-metadata request)
    (grpc:send-metadata call '(("x-fail" . "early")))
    (setf (grpc:call-trailers call) '(("x-fail-trailer" . "late"))))
  (when (lab:fail-request-crash request) (error "The lab's handler crashes."))
  (if (zerop (lab:fail-request-code request))
      (google.protobuf:make-empty)
      (grpc:fail (lab-status (lab:fail-request-code request))
                 (lab:fail-request-message request)
                 :details (lab-details (lab:fail-request-details request)))))

;;; Streams

(defun count-up (call request)
  "Send the answers that REQUEST, a CountRequest, asks for."
  (let ((fail-after (lab:count-request-fail-after request))
        (filler (make-string (max 0 (lab:count-request-size request)) :initial-element #\x)))
    (grpc:send-metadata call '(("x-answer" . "first")))
    (setf (grpc:call-trailers call) '(("x-answer-trailer" . "last")))
    (loop for index from 1 to (lab:count-request-count request)
          do (when (and (plusp fail-after) (> index fail-after)) (return))
             (when (> index 1) (pause-ms (lab:count-request-delay-ms request)))
             (grpc:send call (lab:make-count-reply :index index :filler filler)))
    (when (plusp fail-after) (grpc:fail :aborted "enough"))))

(defmethod lab-streams-methods:count ((service web-streams) request &key call)
  (count-up call request))

(defmethod lab-streams-methods:count-names ((service web-streams) request &key call)
  (count-up call request))

(defmethod lab-streams-methods:collect ((service web-streams) stream &key)
  (let ((names '()))
    (grpc:do-messages (message stream) (push (lab:msg-name message) names))
    (lab:make-collect-reply :count (length names) :names (nreverse names))))

(defmethod lab-streams-methods:chat ((service web-streams) stream &key call)
  (grpc:do-messages (message stream) (grpc:send call (lab-reply "Chat" message))))

;;; Bodies

(defun upload-reply (name types datas)
  "The part NAME of messages with TYPES and DATAS, lists."
  (let ((all (apply #'concatenate 'octets datas)))
    (lab:make-upload-reply :name name :content-type (or (find "" types :test-not #'string=) "")
                           :size (length all) :messages (length datas)
                           :sha256 (format nil "~(~{~2,'0X~}~)"
                                           (coerce (os:sha256-digest all) 'list)))))

(defun body-parts (body)
  (values (if body (google.api:http-body-content-type body) "")
          (if body (google.api:http-body-data body) (make-octets 0))))

(defmethod lab-bodies-methods:upload ((service web-bodies) request &key)
  (multiple-value-bind (type data) (body-parts (lab:upload-request-file request))
    (upload-reply (lab:upload-request-name request) (list type) (list data))))

(defmethod lab-bodies-methods:upload-raw ((service web-bodies) request &key)
  (multiple-value-bind (type data) (body-parts request)
    (upload-reply "" (list type) (list data))))

(defmethod lab-bodies-methods:upload-stream ((service web-bodies) stream &key)
  (let ((name "") (types '()) (datas '()))
    (grpc:do-messages (request stream)
      (when (string= "" name) (setf name (lab:upload-request-name request)))
      (multiple-value-bind (type data) (body-parts (lab:upload-request-file request))
        (push type types)
        (push data datas)))
    (upload-reply name (nreverse types) (nreverse datas))))

(defun download-data (request)
  (let* ((name (string-octets (lab:download-request-name request)))
         (data (make-octets (max (length name) (lab:download-request-size request)))))
    (fill data (char-code #\d))
    (replace data name)))

(defmethod lab-bodies-methods:download ((service web-bodies) request &key)
  (google.api:make-http-body :content-type (lab:download-request-content-type request)
                             :data (download-data request)))

(defmethod lab-bodies-methods:download-stream ((service web-bodies) request &key call)
  (let* ((data (download-data request))
         (chunks (max 1 (lab:download-request-chunks request)))
         (share (floor (length data) chunks)))
    (loop for i from 0 below chunks
          for start = (* i share)
          for end = (if (= i (1- chunks)) (length data) (+ start share))
          do (grpc:send call (google.api:make-http-body
                              :content-type (if (zerop i)
                                                (lab:download-request-content-type request)
                                                "")
                              :data (subseq data start end))))))

(defmethod lab-bodies-methods:echo-body ((service web-bodies) request &key)
  request)

;;; Metadata and cancellation

(defun pairs-metadata (pairs)
  "PAIRS, texts KEY=VALUE, as an alist."
  (loop for pair across pairs
        for equals = (position #\= pair)
        when equals
          collect (let ((key (string-downcase (subseq pair 0 equals)))
                        (value (subseq pair (1+ equals))))
                    (cons key (if (binary-key-p key) (decode-base64 value) value)))))

(defun shown-metadata (call)
  "The reported metadata of CALL, in which the values of each key are joined."
  (let ((shown '()))
    (loop for (key . value) in (grpc:call-metadata call)
          when (or (eql 0 (search "x-" key)) (string= "authorization" key))
            do (let ((text (if (stringp value) value (encode-base64 value :padding t)))
                     (entry (assoc key shown :test #'string=)))
                 (if entry
                     (setf (cdr entry) (format nil "~A,~A" (cdr entry) text))
                     (push (cons key text) shown))))
    (nreverse shown)))

(defmethod lab-meta-methods:meta ((service web-metadata) request &key call)
  (when (plusp (length (lab:meta-request-send request)))
    (grpc:send-metadata call (pairs-metadata (lab:meta-request-send request))))
  (setf (grpc:call-trailers call) (pairs-metadata (lab:meta-request-send-trailer request)))
  (let ((seconds (grpc:time-remaining call)))
    (lab:make-meta-reply :metadata (shown-metadata call)
                         :timeout-ms (if seconds (max 0 (round (* 1000 seconds))) 0)
                         :has-deadline (if seconds 1 0))))

(defstruct (sleepers (:copier nil))
  "The counts of the calls that slept under one key."
  (begun 0 :type (unsigned-byte 62))    ; calls that have begun
  (finished 0 :type (unsigned-byte 62)) ; calls that were handled to the end
  (cancelled 0 :type (unsigned-byte 62))) ; how many calls had lost their caller

(sb-ext:defglobal **sleepers** (make-hash-table :test 'equal :synchronized t))

(defun sleepers-of (key)
  (sb-ext:with-locked-hash-table (**sleepers**)
    (or (gethash key **sleepers**) (setf (gethash key **sleepers**) (make-sleepers)))))

(defun sleep-in-steps (call request step)
  "Wait as long as REQUEST, a SleepRequest, asks for, and call STEP every 50 ms with the
milliseconds that have passed; count whether CALL was cancelled meanwhile."
  (let ((sleepers (sleepers-of (lab:sleep-request-key request)))
        (end (lab:sleep-request-ms request)))
    (incf (sleepers-begun sleepers))
    (loop with gone = 0
          while (< gone end)
          do (let ((pause (min 50 (- end gone))))
               (pause-ms pause)
               (incf gone pause)
               (when (grpc:call-status call)
                 (incf (sleepers-cancelled sleepers))
                 (grpc:fail :cancelled "the caller has gone"))
               (funcall step gone)))
    (incf (sleepers-finished sleepers))))

(defmethod lab-meta-methods:sleep ((service web-metadata) request &key call)
  (sleep-in-steps call request (constantly nil))
  (lab:make-sleep-reply :slept-ms (lab:sleep-request-ms request)))

(defmethod lab-meta-methods:drip ((service web-metadata) request &key call)
  (sleep-in-steps call request
                  (lambda (gone) (grpc:send call (lab:make-sleep-reply :slept-ms gone)))))

(defmethod lab-meta-methods:seen ((service web-metadata) request &key)
  (let ((sleepers (sleepers-of (lab:seen-request-key request))))
    (lab:make-seen-reply :begun (sleepers-begun sleepers) :finished (sleepers-finished sleepers)
                         :cancelled (sleepers-cancelled sleepers))))

(defmethod lab-perf-methods:unary ((service web-perf) request &key)
  request)

;;; The server

(defun lab-credentials ()
  (let ((certificate (sb-ext:posix-getenv "LAB_CERT")) (key (sb-ext:posix-getenv "LAB_KEY")))
    (and certificate key (grpc:tls-credentials :certificate certificate :key key))))

(defun lab-services ()
  "The lab's services."
  (mapcar #'make-instance
          '(web-echo web-errors web-streams web-bodies web-metadata web-perf)))

(defun serve-lab (input output)
  "Print the address on OUTPUT, and serve the lab's services until the process is asked to end."
  (declare (ignore input))
  (let ((server (grpc:start-server
                 (lab-services)
                 :protocols '(:grpc :grpc-web :connect :rest)
                 :origins (list (or (sb-ext:posix-getenv "LAB_ORIGIN") "http://app.example"))
                 :credentials (lab-credentials))))
    (program:call-with-ending
     (lambda (ending)
       (unwind-protect
            (progn
              (write-sequence (ascii-octets (format nil "LISTENING ~A~%"
                                                    (grpc:server-address server)))
                              output)
              (finish-output output)
              (program:await-end ending))
         (grpc:stop-server server)))))
  0)
