;;;; Plain requests: requests of HTTP that no dialect takes, and so are no calls. The :FALLBACK of
;;;; START-SERVER answers them. Without one, a plain request is answered with an error once it is
;;;; whole. Each is a server-call in a dialect of its own. So the fallback runs as handlers do, and
;;;; the limits and the end of the server apply to it; but it does not count as a call.
;;;;
;;;; The body is collected up to the option max-fallback-body-octets, in a vector that grows as it
;;;; comes, and charged to the connection like messages that wait.

(in-package #:clgrpc.server)

(defun text-answer (http-status text)
  "The answer HTTP-STATUS with a short TEXT."
  (make-plain-answer http-status '(("content-type" . "text/plain")) (ascii-octets text)))

(define-load-time-global **not-grpc**
    (text-answer
     415 "This is a gRPC server: requests are POSTs, content-type application/grpc."))
(define-load-time-global **not-post** (text-answer 405 "gRPC requests use POST"))

;;; The request

(defun field-entry (field)
  "FIELD as an entry of a fallback's headers, or nil for what the request line says."
  (let ((name (hpack:field-name-string field))
        (value (hpack:field-value-string field)))
    (cond ((string= ":authority" name) (cons "host" value))
          ((char= #\: (char name 0)) nil)
          (t (cons name value)))))

(defun read-plain-request (list refusal)
  "The plain request with the header LIST. REFUSAL is its answer if there is no fallback."
  (let ((request (make-plain-request :refusal refusal)))
    (hpack:do-fields (field list)
      (let ((kind (http2:field-kind-of field))
            (value (hpack:field-value-string field)))
        (cond ((= kind http2:+kind-method+) (setf (plain-request-http-method request) value))
              ((= kind http2:+kind-path+) (setf (plain-request-path request) value)))
        (let ((entry (field-entry field)))
          (when entry (push entry (plain-request-headers request))))))
    (setf (plain-request-headers request) (nreverse (plain-request-headers request)))
    request))

(defun fallback-p (call)
  "True if CALL's server has a fallback."
  (and (server-call-route call) t))

(defun refuse-body (call limit)
  "The body of CALL's request is longer than LIMIT."
  (answer-plainly call (text-answer 413 (format nil "the body is longer than ~D octets ~
                                                     (max-fallback-body-octets)" limit))))

(defun make-body-room (call request count limit)
  "Make room for COUNT octets more in the body of CALL's REQUEST, which may have LIMIT in all.
Return false if CALL may not have so much memory and so has been ended."
  (let* ((body (plain-request-body request))
         (need (+ (plain-request-fill request) count))
         (length (min limit (max need (* 2 (length body)) 1024))))
    (or (<= need (length body))
        (when (wire:hold call (- length (length body)))
          (setf (plain-request-body request)
                (replace (make-octets length) body :end2 (plain-request-fill request)))
          t))))

(defun receive-plain-body (call octets start end)
  "The dialect's RECEIVE."
  (let ((request (wire:call-dialect-state call))
        (limit (options-max-fallback-body-octets (wire:wire-call-options call)))
        (count (- end start)))
    (cond ((or (call-status call) (not (fallback-p call))))
          ((< limit (+ (plain-request-fill request) count)) (refuse-body call limit))
          ((make-body-room call request count limit)
           (replace (plain-request-body request) octets
                    :start1 (plain-request-fill request) :start2 start :end2 end)
           (incf (plain-request-fill request) count)))))

(defun end-plain-request (call)
  "The dialect's END: the request is whole. The half-close starts the fallback, if there is one."
  (let ((request (wire:call-dialect-state call)))
    (cond ((call-status call))
          ((fallback-p call) (setf (server-call-request call) request))
          (t (answer-plainly call (plain-request-refusal request))))))

;;; The fallback

(defun name-char-p (char)
  "True if CHAR may be in the name of a header in lower case (RFC 9110 section 5.6.2)."
  (or (char<= #\a char #\z) (char<= #\0 char #\9) (find char "!#$%&'*+-.^_`|~")))

(defun check-header (entry)
  "ENTRY of a fallback's headers as it is sent; nil for a header that only we may set."
  (unless (and (consp entry) (stringp (car entry)) (stringp (cdr entry)))
    (error "Headers are an alist from strings to strings; ~S is no entry of one." entry))
  (let ((name (string-downcase (car entry)))
        (value (string-trim '(#\Space #\Tab) (cdr entry))))
    (unless (and (plusp (length name)) (every #'name-char-p name))
      (error "~S is no name of a header." (car entry)))
    (unless (every (lambda (char) (char<= #\Space char #\~)) value)
      (error "The value of the header ~A must be printable ASCII, not ~S." name value))
    (if (member name '("connection" "content-length" "keep-alive" "proxy-connection" "te"
                       "transfer-encoding" "upgrade")
                :test #'string=)
        nil
        (cons name value))))

(defun check-answer (http-status headers body)
  "The PLAIN-ANSWER that the values of a fallback stand for. Signal an error if they are none."
  (unless (typep http-status '(integer 200 599))
    (error "The fallback has returned ~S, which is no HTTP status from 200 to 599." http-status))
  (let ((headers (remove nil (mapcar #'check-header headers))))
    (if (and (stringp body) (null (assoc "content-type" headers :test #'string=)))
        (check-answer http-status (acons "content-type" "text/plain; charset=utf-8" headers) body)
        (make-plain-answer http-status headers
                           (typecase body
                             (null (make-octets 0))
                             (string (string-octets body))
                             ((vector octet) (coerce body 'octets))
                             (t (error "The body of an answer is a string or octets, not ~S."
                                       body)))))))

(defun call-fallback (function request)
  "What FUNCTION, a fallback, answers to REQUEST, a PLAIN-ANSWER."
  (let ((body (subseq-octets (plain-request-body request) 0 (plain-request-fill request))))
    (multiple-value-bind (http-status headers body)
        (funcall function (plain-request-http-method request) (plain-request-path request)
                 (plain-request-headers request) body)
      (check-answer http-status headers body))))

(define-load-time-global **fallback-method**
    ;; its types are of no meaning, but a method has some
    (let ((none (protobuf:intern-message-type "google.protobuf.Empty")))
      (service:make-rpc-method :name "fallback" :path "the fallback" :kind :unary
                           :request-type none :response-type none)))

(defun fallback-route (server function execution)
  "The route of the plain requests of SERVER, which FUNCTION answers, run as EXECUTION says."
  (make-server-route
   :server server :method **fallback-method**
   :execution (execution-of (if (listp execution) :auto execution) nil)
   :binding (service:make-binding :class (class-of server)
                              :function (lambda (server request call)
                                          (declare (ignore server call))
                                          (call-fallback function request)))))

;;; The answer

(defun answer-plainly (call answer)
  "End CALL, a plain one, with ANSWER. On the loop."
  (unless (call-status call)
    (setf (plain-request-answer (wire:call-dialect-state call)) answer)
    (server-finish call :ok "" nil '())))

(defun plain-end (call)
  "The answer with which CALL, which has ended, ends."
  (let ((request (wire:call-dialect-state call))
        (outcome (rpc:call-outcome call)))
    (or (plain-request-answer request)
        (check-answer (wire:status-http-status (call-status call)) '()
                      (if outcome (rpc:outcome-message outcome) "")))))

(defun bodiless-p (call http-status)
  "True if the answer to CALL with HTTP-STATUS has no body (RFC 9110 section 6.4.1)."
  (or (= http-status 204)
      (= http-status 304)
      (string= "HEAD" (plain-request-http-method (wire:call-dialect-state call)))))

(defun write-plain-head (call stream answer)
  "Write the headers of ANSWER on STREAM; true if they end it."
  (let* ((body (plain-answer-body answer))
         (http-status (plain-answer-http-status answer))
         (ends (or (bodiless-p call http-status) (zerop (length body)))))
    (multiple-value-bind (encoder buffer) (http2:begin-headers stream)
      (flet ((write-field (name value)
               (hpack:encode-literal encoder buffer (ascii-octets name) (ascii-octets value)
                                     :plain)))
        (write-field ":status" (format nil "~D" http-status))
        (loop for (name . value) in (plain-answer-headers answer)
              do (write-field name value))
        (unless (bodiless-p call http-status)
          (write-field "content-length" (format nil "~D" (length body)))))
      (http2:end-headers stream ends))
    ends))

(defun write-plain-end (call)
  "The dialect's WRITE-END."
  (let ((stream (wire-call-stream call))
        (answer (plain-end call)))
    (wire:mark-call call wire:+headers+)
    ;; as a call that ended well earns its connection a reset; a refusal earns nothing
    (when (and (fallback-p call) (eq :ok (call-status call)))
      (http2:note-call-served (http2:stream-connection stream)))
    (unless (write-plain-head call stream answer)
      (let ((body (plain-answer-body answer)))
        (http2:send-data stream body 0 (length body) t)))
    ;; the answer is whole, so the rest of the request is of no interest (RFC 9113 8.1)
    (unless (or (call-half-closed call)
                (null (wire-call-stream call))
                (not (http2:stream-queue-empty-p stream)))
      (http2:reset-stream stream http2:+no-error+))))

(defun reply-plainly (call value)
  "The dialect's REPLY: VALUE is the PLAIN-ANSWER of the fallback."
  (answer-plainly call value))

(define-load-time-global **plain**
    (wire:make-dialect :name 'plain :receive #'receive-plain-body :end #'end-plain-request
                       :reply #'reply-plainly :write-end #'write-plain-end))
