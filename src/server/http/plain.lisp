;;;; Plain requests: requests of HTTP that are no calls of gRPC's. The handlers of HTTP that
;;;; START-SERVER was given, or its :FALLBACK, answer them (site.lisp). Where there is none a plain
;;;; request is answered with an error once it is whole. Each is a server-call that has the
;;;; HTTP-REQUEST that it is. So handlers of HTTP run as those of calls do, and the limits and the
;;;; end of the server apply to them; but they do not count as calls.
;;;;
;;;; What differs between HTTP/2 and HTTP/1.1 is the CARRIER: how an answer is written. HTTP/2's is
;;;; here, that of HTTP/1.1 in http1.lisp.
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
(define-load-time-global **not-found** (text-answer 404 "there is nothing here"))

;;; The carrier of HTTP/2

(defun write-plain-head (call stream answer length)
  "Write the headers of ANSWER on STREAM, whose body has LENGTH, nil if that is not known; return
true if they end it."
  (let* ((http-status (plain-answer-http-status answer))
         (bodiless (bodiless-p call http-status))
         (ends (or bodiless (eql 0 length))))
    (multiple-value-bind (encoder buffer) (http2:begin-headers stream)
      (flet ((write-field (name value)
               (hpack:encode-literal encoder buffer (ascii-octets name) (ascii-octets value)
                                     :plain)))
        (write-field ":status" (format nil "~D" http-status))
        (loop for (name . value) in (plain-answer-headers answer)
              do (write-field name value))
        (unless (or bodiless (null length))
          (write-field "content-length" (format nil "~D" length))))
      (http2:end-headers stream ends))
    ends))

(defun end-http2-answer (call stream)
  "The answer of CALL, whose stream was STREAM, is whole."
  ;; as a call that ended well earns its connection a reset; a refusal earns nothing
  (when (and (answered-p call) (eq :ok (call-status call)))
    (http2:note-call-served (http2:stream-connection stream)))
  ;; the rest of the request is of no interest (RFC 9113 8.1)
  (unless (or (call-half-closed call)
              (null (wire-call-stream call))
              (not (http2:stream-queue-empty-p stream)))
    (http2:reset-stream stream http2:+no-error+)))

(defun answer-over-http2 (call answer)
  (let ((stream (wire-call-stream call))
        (body (plain-answer-body answer)))
    (when stream
      (unless (write-plain-head call stream answer (length body))
        (http2:send-data stream body 0 (length body) t))
      (end-http2-answer call stream))))

(defun begin-over-http2 (call answer)
  (let ((stream (wire-call-stream call)))
    (when stream
      (write-plain-head call stream answer nil))))

(defun chunk-over-http2 (call octets)
  (let ((stream (wire-call-stream call)))
    (unless (or (null stream) (ended-by-head-p call))
      (http2:send-data stream octets 0 (length octets) nil))))

(defun end-over-http2 (call whole)
  (let ((stream (wire-call-stream call)))
    (cond ((null stream))
          ((not whole) (http2:reset-stream stream http2:+internal-error+))
          (t (unless (ended-by-head-p call)
               (http2:send-data stream (make-octets 0) 0 0 t))
             (end-http2-answer call stream)))))

(defun ended-by-head-p (call)
  "True if the answer of CALL, which is sent in chunks, has no body, so that its head has ended it."
  (let ((answer (http-request-answer (call-http-request call))))
    (bodiless-p call (plain-answer-http-status answer))))

(defun unsent-over-http2 (call)
  (let ((stream (wire-call-stream call)))
    (if stream (http2:stream-queued-octets stream) 0)))

(define-load-time-global **http2-carrier**
    (make-carrier :answer #'answer-over-http2 :begin #'begin-over-http2 :chunk #'chunk-over-http2
                  :end #'end-over-http2 :unsent #'unsent-over-http2))

;;; The request

(defun read-plain-request (list refusal)
  "The plain request with the header LIST. REFUSAL is its answer if there is nobody to answer it."
  (let ((request (make-http-request :carrier **http2-carrier** :refusal refusal)))
    (hpack:do-fields (field list)
      (let ((kind (http2:field-kind-of field))
            (value (hpack:field-value-string field)))
        (cond ((= kind http2:+kind-method+) (setf (http-request-method request) value))
              ((= kind http2:+kind-path+) (setf (http-request-target request) value)))
        (let ((entry (field-entry field)))
          (when entry (push entry (http-request-source request))))))
    (setf (http-request-source request) (nreverse (http-request-source request)))
    request))

(defun answered-p (call)
  "True if CALL's server has a handler for it, or a fallback."
  (and (server-call-route call) t))

(defun refuse-body (call limit)
  "The body of CALL's request is longer than LIMIT."
  (answer-plainly call (text-answer 413 (format nil "the body is longer than ~D octets ~
                                                     (max-fallback-body-octets)" limit))))

(defun make-body-room (call request count limit)
  "Make room for COUNT octets more in the body of CALL's REQUEST, which may have LIMIT in all.
Return false if CALL may not have so much memory and so has been ended."
  (let* ((body (http-request-body request))
         (need (+ (http-request-fill request) count))
         (length (min limit (max need (* 2 (length body)) 1024))))
    (or (<= need (length body))
        (when (wire:hold call (- length (length body)))
          (setf (http-request-body request)
                (replace (make-octets length) body :end2 (http-request-fill request)))
          t))))

(defun receive-plain-body (call octets start end)
  "Keep OCTETS from START to END, of the body of the plain request CALL."
  (let ((request (call-http-request call))
        (limit (options-max-fallback-body-octets (wire:wire-call-options call)))
        (count (- end start)))
    (cond ((or (call-status call) (not (answered-p call))))
          ((< limit (+ (http-request-fill request) count)) (refuse-body call limit))
          ((make-body-room call request count limit)
           (replace (http-request-body request) octets
                    :start1 (http-request-fill request) :start2 start :end2 end)
           (incf (http-request-fill request) count)))))

(defun receive-plain-data (call octets start end)
  "As RECEIVE-PLAIN-BODY, of the payload of a DATA frame, for which window is given back."
  (receive-plain-body call octets start end)
  (wire:give-window call (- end start)))

(defun end-plain-request (call)
  "The plain request CALL is whole. The half-close starts the handler, if there is one."
  (setf (call-half-closed call) t)
  (let ((request (call-http-request call)))
    (cond ((call-status call))
          ((answered-p call)
           (when (< (http-request-fill request) (length (http-request-body request)))
             (setf (http-request-body request)
                   (subseq-octets (http-request-body request) 0 (http-request-fill request))))
           (setf (server-call-request call) request))
          (t (answer-plainly call (http-request-refusal request))))))

(defun begin-plain-call (call request)
  "CALL is the plain REQUEST."
  (setf (http-request-call request) call
        (detour-http-request (ensure-detour call)) request))

;;; Routes

(defun plain-method (name &optional quiet)
  "The method of calls that NAME, a string, answers, QUIET or not. Its types are of no meaning, but
a method has some."
  (let ((none (protobuf:intern-message-type "google.protobuf.Empty")))
    (method:make-rpc-method :name name :path name :kind :unary :quiet quiet
                             :request-type none :response-type none)))

(define-load-time-global **fallback-method** (plain-method "the fallback"))

(defun plain-route (server method execution answer)
  "The route of plain requests of SERVER that have METHOD. ANSWER, a function of an HTTP-REQUEST,
returns what HANDLER-ANSWER does."
  (make-server-route
   :server server :method method :execution execution
   :binding (method:make-binding :class (class-of server)
                                  :function (lambda (server request call)
                                              (declare (ignore server call))
                                              (funcall (the function answer) request)))))

(defun fallback-route (server function execution)
  "The route of the plain requests of SERVER, which FUNCTION answers, run as EXECUTION says."
  (plain-route server **fallback-method** execution
               (lambda (request)
                 (handler-answer
                  request
                  (multiple-value-list
                   (funcall function (http-request-method request) (http-request-target request)
                            (http-request-headers request) (http-request-body request)))))))

(defun handler-route (server handler execution)
  "The route to HANDLER, an HTTP-HANDLER of SERVER, run as EXECUTION says unless HANDLER does."
  (let ((function (http-handler-function handler)))
    (plain-route server (plain-method (http-handler-path handler) (http-handler-quiet handler))
                 (execution-of (or (http-handler-execution handler) execution) nil)
                 (lambda (request)
                   (handler-answer request (multiple-value-list (funcall function request)))))))

(defun make-server-site (server handlers fallback execution)
  "The SITE of SERVER with HANDLERS, a list of HTTP-HANDLERs, and FALLBACK, a function or nil; nil
if there is neither. EXECUTION is what START-SERVER was given."
  (let ((site (make-site))
        (execution (execution-of (if (listp execution) :auto execution) nil)))
    (dolist (handler handlers)
      (unless (http-handler-p handler)
        (misuse "~S is no handler of HTTP: give what HTTP-HANDLER returns; a function that answers ~
                 all requests is for :fallback." handler))
      (add-entry site (make-site-entry handler (handler-route server handler execution))))
    (when fallback
      (setf (site-fallback site) (fallback-route server fallback execution)))
    (and (or handlers fallback) site)))

(defun wrong-method (handler)
  "The answer to a request with a method that HANDLER does not have."
  (make-plain-answer 405 `(("allow" . ,(format nil "~{~A~^, ~}" (http-handler-methods handler)))
                           ("content-type" . "text/plain"))
                     (ascii-octets "not with this method")))

(defun target-entry (site target)
  "The entry of SITE, or nil, for TARGET, of which no more is looked at than matters."
  (when site
    (let* ((enough (min (length target) (1+ (site-longest site))))
           (query (position #\? target :end enough)))
      (find-entry site (subseq target 0 (or query enough))))))

(defun look-up-route (site http-method target)
  "The route of SITE for a plain request with HTTP-METHOD for TARGET, or nil."
  (let ((entry (target-entry site target)))
    (cond ((null site) nil)
          ((null entry) (site-fallback site))
          ((member http-method (http-handler-methods (site-entry-handler entry)) :test #'string=)
           (site-entry-route entry)))))

(defun note-refusal (site request)
  "Note in REQUEST, for which SITE has no route, what it is answered with, unless that is known."
  (let ((entry (target-entry site (http-request-target request))))
    (cond ((null site))
          (entry (setf (http-request-refusal request) (wrong-method (site-entry-handler entry))))
          ((not (eq **not-grpc** (http-request-refusal request)))
           (setf (http-request-refusal request) **not-found**)))))

(defun find-plain-route (site request)
  "The route of SITE, or nil, for REQUEST. Without one, note in REQUEST what it is answered with."
  (or (look-up-route site (http-request-method request) (http-request-target request))
      (progn (note-refusal site request) nil)))

;;; The answer

(defun bodiless-p (call http-status)
  "True if the answer to CALL with HTTP-STATUS has no body (RFC 9110 section 6.4.1)."
  (or (= http-status 204)
      (= http-status 304)
      (string= "HEAD" (http-request-method (call-http-request call)))))
