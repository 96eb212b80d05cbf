;;;; From a request's headers to a call (gRPC over HTTP/2, "Requests"), and the server's sink: the
;;;; functions that the http2 core calls, on the loop. A request whose content type is not gRPC's is
;;;; a plain one (plain.lisp). Without a handler for such a request, the answer is 415 as soon as
;;;; the request is complete.

(in-package #:clgrpc.server)

(define-hot content-type-meaning ((field hpack:field))
    (values (or symbol encoding:message-codec) boolean)
  "The kind of a request with the content type FIELD: :grpc in Protocol Buffers, a codec of gRPC's
messages, or :plain. FIELD keeps its kind as a memo, unless a codec that is registered later may
change the kind; in that case the second value is true."
  (let ((memo (hpack:field-memo field)))
    (if memo
        (values memo nil)
        (multiple-value-bind (meaning passing) (find-meaning (hpack:field-value-string field))
          (unless passing (setf (hpack:field-memo field) meaning))
          (values meaning (and passing t))))))

(defun find-meaning (value)
  "The meaning of the content type VALUE, as CONTENT-TYPE-MEANING returns it. The second value is
true if VALUE names a codec that does not exist, but may be registered later."
  (let* ((base "application/grpc")
         (end (or (position #\; value) (length value)))
         (type (string-right-trim " " (subseq value 0 end))))
    (cond ((not (and (>= (length type) (length base))
                     (string-equal base type :end2 (length base))))
           :plain)
          ((= (length type) (length base)) (if (= end (length type)) :grpc :plain))
          ((char/= #\+ (char type (length base))) :plain)
          ((string-equal "proto" (subseq type (1+ (length base)))) :grpc)
          (t (multiple-value-bind (codec passing)
                 (encoding:find-codec (subseq type (1+ (length base))))
               (values (or codec :plain) passing))))))

(define-hot octets-are ((octets octets) (text simple-base-string)) boolean
  "True if OCTETS are TEXT in ASCII."
  (and (= (length octets) (length text))
       (loop for octet across octets
             for char across text
             always (= octet (char-code char)))))

(defun list-target (list)
  "The :path of LIST, the headers of a request."
  (hpack:field-value-string (hpack:find-field list ":path")))

(defun take-request-codec (request)
  "Replace the route of REQUEST by the route of its method in the codec that the content type names.
Reject the request if the method's messages are raw or already have a codec."
  (let* ((codec (request-codec request))
         (route (request-route request))
         (method (and route (route-method route))))
    (cond ((or (null method) (eq codec (method:rpc-method-codec method))))
          ((or (method:rpc-method-codec method)
               (protobuf:raw-type-p (method:rpc-method-request-type method)))
           (setf (request-rejection request)
                 (list :unimplemented (format nil "~A has no messages in ~A"
                                              (method:rpc-method-path method)
                                              (encoding:codec-name codec)))))
          (t (setf (request-route request) (route-in-codec route codec))))))

(define-hot read-request ((request request) (table route-table) (list hpack:field-list)) null
  "Fill REQUEST, which has its metadata, from the fields of LIST."
  (setf (request-table request) table
        (request-route request) nil
        (request-timeout request) nil
        (request-plain request) :content-type
        (request-codec request) nil
        (request-passing request) nil
        (request-claim request) nil
        (request-incoming request) nil
        (request-accepted request) '()
        (request-rejection request) '())
  (let ((post t))
    (hpack:do-fields (field list)
      (let ((kind (http2:field-kind-of field)))
        (cond ((= kind http2:+kind-path+)
               (setf (request-route request) (route-of table field)))
              ((= kind http2:+kind-content-type+)
               (multiple-value-bind (meaning passing) (content-type-meaning field)
                 (when passing (setf (request-passing request) t))
                 (cond ((eq :grpc meaning) (setf (request-plain request) nil))
                       ((symbolp meaning) (setf (request-plain request) :content-type))
                       (t (setf (request-plain request) nil
                                (request-codec request) meaning)))))
              ((= kind http2:+kind-method+)
               (setf post (octets-are (hpack:field-value field)
                                      #.(coerce "POST" 'simple-base-string))))
              ((= kind http2:+kind-grpc-timeout+)
               (or (setf (request-timeout request) (status:parse-timeout (hpack:field-value field)))
                   (setf (request-rejection request) '(:internal "malformed grpc-timeout"))))
              ((= kind http2:+kind-grpc-encoding+)
               ;; the first unknown encoding decides: by HPACK a peer can repeat such a field at the
               ;; cost of one octet, while the text that rejects it is long
               (unless (eq :unknown (request-incoming request)) (read-encoding request field)))
              ((= kind http2:+kind-grpc-accept-encoding+)
               (setf (request-accepted request) (wire:accepted-encodings field))))))
    (when (request-codec request) (take-request-codec request))
    (cond ((request-plain request))
          ((not post) (setf (request-plain request) :method))
          ((hpack:field-list-overflow-p list)
           (setf (request-rejection request) '(:resource-exhausted "header list too large")))
          ((request-rejection request))
          ((null (request-route request)))
          ((null (route-method (request-route request)))
           (setf (request-rejection request) (multiple-value-list
                                             (rpc:verdict :unknown-method (list-target list)))))
          ((not (wire:sound-metadata-p (request-fields request)))
           (setf (request-rejection request)
                 '(:internal
                   "metadata whose name ends in -bin is not base64, or has too many values")))
          ((eql 0 (request-timeout request))
           (setf (request-rejection request)
                 (multiple-value-list (rpc:verdict :came-too-late))))))
  nil)

(defconstant +free-metadata-octets+ 512
  "The maximum number of octets of metadata that are not charged separately, because the charge of
the call's stream includes them.")
(define-hot read-fields ((request request) (list hpack:field-list) (link server-link)) null
  "Note in REQUEST its metadata, from LIST, and the octets that its call on LINK is charged with."
  (multiple-value-bind (fields octets) (wire:list-fields list link)
    (setf (request-fields request) fields
          (request-charge request) (if (<= octets +free-metadata-octets+) 0 octets)))
  nil)

(defun claim-from-list (request claimers list)
  "Ask CLAIMERS for their claim of the request with the header LIST, and note it in REQUEST."
  (let ((http-method "") (target nil) (fields '()))
    (hpack:do-fields (field list)
      (let ((kind (http2:field-kind-of field)))
        (cond ((= kind http2:+kind-method+) (setf http-method (hpack:field-value-string field)))
              ((= kind http2:+kind-path+) (setf target (hpack:field-value-string field))))
        (push field fields)))
    ;; a path has only ASCII (RFC 3986); over HTTP/1.1 any other target is refused
    (when (and (not (hpack:field-list-overflow-p list)) (typep target 'simple-base-string))
      (setf (request-claim request)
            (claim-request claimers http-method target (coerce (nreverse fields) 'vector))))))

(defun expects-p (list)
  "True if a client that has sent the headers LIST waits for the status 100 before it sends the
body."
  (let ((field (hpack:find-field list "expect")))
    (and field (string-equal "100-continue" (hpack:field-value-string field)))))

(define-hot request-of ((server-loop server-loop) (list hpack:field-list) (link server-link))
            request
  "The REQUEST with the data of LIST, the headers of a request on LINK. If the peer repeats a header
block, the memo of LIST is the REQUEST."
  (let ((memo (hpack:field-list-memo list)))
    (if (and (request-p memo) (eq (request-table memo) (server-loop-routes server-loop)))
        memo
        (let ((request (if (hpack:field-list-repeated-p list) (make-request)
                           (server-loop-request server-loop))))
          (read-fields request list link)
          (read-request request (server-loop-routes server-loop) list)
          (when (request-plain request)
            (setf (request-expects request) (expects-p list))
            (when (server-loop-claimers server-loop)
              (claim-from-list request (server-loop-claimers server-loop) list)))
          ;; a compression or a codec that is unknown now may be registered later
          (unless (or (eq :unknown (request-incoming request)) (request-passing request))
            (setf (hpack:field-list-memo list) request))
          request))))

(define-hot (begin-server-call :inline t)
            ((stream http2:stream) (link server-link) (server-loop server-loop)
             (request request)
             (route (or null server-route)))
    server-call
  "Make the call on STREAM of LINK that REQUEST begins, by ROUTE. Count the call as
under way and, unless it is a plain request, as begun; set its compression, and return it."
  (count-call link server-loop)
  (let* ((now (loop:event-loop-now (server-link-loop link)))
         (method (and route (route-method route)))
         (timeout (request-timeout request))
         (call (make-server-call
                :rpc-method method :endpoint server-loop
                :link link :stream stream :route route :born-ns now
                :operations (if (and method (member (rpc-method-kind method)
                                                    '(:client-streaming :bidi)))
                                **stream-operations**
                                **request-operations**)
                :deadline (if timeout (status:deadline-in timeout now) 0)
                :fields (request-fields request)
                :accepted (request-accepted request))))
    (declare (type (unsigned-byte 62) now))
    (setf (http2:stream-user stream) call
          (server-link-stream-ns link) now)
    (unless (request-plain request) (note-call-begun server-loop now))
    (when (or (request-incoming request) (server-loop-encoding server-loop))
      (begin-compression call (request-incoming request) (server-loop-encoding server-loop)))
    call))

(defun list-authority (list)
  "The :authority in LIST, the headers of a request, or else the host; nil without either."
  (let ((field (or (hpack:find-field list ":authority") (hpack:find-field list "host"))))
    (and field (hpack:field-value-string field))))

(defun list-method (list)
  "The :method of LIST, the headers of a request."
  (hpack:field-value-string (hpack:find-field list ":method")))

(defun list-octets (list)
  "The octets of memory that a plain request made from LIST occupies: the strings in lists, and the
fields."
  (* 2 (+ (hpack:field-list-octets list) (* hpack:+field-octets+ (hpack:field-list-count list)))))

(define-hot room-for-call-p
            ((server-loop server-loop) (link server-link) (call server-call) (charge index)) boolean
  "Charge LINK with CHARGE octets for the header list of CALL. If the octets exceed a limit, end
CALL and return false."
  (or (zerop charge)
      (wire:hold call charge t)
      (progn (complain server-loop :max-held-octets (link-peer-name link))
             nil)))

(define-hot (tell-of-call :inline t)
            ((call server-call) (server-loop server-loop) (list hpack:field-list))
    null
  "Notify the observer of SERVER-LOOP that CALL has begun with the header LIST."
  (rpc:observe call-begun (server-loop-observer server-loop) call)
  (rpc:observe request-begun (server-loop-observer server-loop) call (list-authority list))
  (rpc:observe headers-received (server-loop-observer server-loop) call)
  nil)

(define-hot begin-served-call ((stream http2:stream) (list hpack:field-list) (link server-link)
                               (server-loop server-loop) (request request))
    null
  "Begin the gRPC call on STREAM of LINK. REQUEST has the data of the call's header LIST."
  (let* ((route (request-route request))
         (call (begin-server-call stream link server-loop request route)))
    (tell-of-call call server-loop list)
    (cond ((request-rejection request)
           (destructuring-bind (status text) (request-rejection request)
             (server-finish call status text nil '())))
          ((refuse-call-p server-loop link call))
          ((not (room-for-call-p server-loop link call (request-charge request))))
          (t (wire:start-deadline call)
             (when (and route (eq :bidi (rpc-method-kind (the rpc-method (route-method route)))))
               (start-call call)))))
  nil)

(defun begin-plain-on-stream (stream list link server-loop request)
  "Begin the plain request on STREAM of LINK. REQUEST has the data of its header LIST."
  (let* ((answer (request-claim request))
         (plain (if answer
                    (exchange:refused-http2-request stream **exchange-sink**
                                                    (server-loop-options server-loop)
                                                    (list-method list) answer)
                    (read-plain-request server-loop stream list (request-plain request))))
         (route (exchange:http-request-route plain))
         (call (begin-server-call stream link server-loop request route)))
    (join-exchange call plain)
    (tell-of-call call server-loop list)
    (unless (or (refuse-call-p server-loop link call)
                (not (room-for-call-p server-loop link call (list-octets list))))
      (wire:start-deadline call))))

(define-hot begin-claimed-on-stream ((stream http2:stream) (list hpack:field-list)
                                     (link server-link) (server-loop server-loop) (request request))
    null
  "Begin the call of another protocol on STREAM of LINK. REQUEST has the claim of its header LIST."
  (let* ((claim (the claim (request-claim request)))
         (now (loop:event-loop-now (server-link-loop link)))
         (call (make-claimed-call claim link server-loop now)))
    (count-call link server-loop)
    (note-call-begun server-loop now)
    (setf (server-call-stream call) stream
          (http2:stream-user stream) call
          (server-link-stream-ns link) now)
    (begin-claimed call
                   (exchange:claimed-http2-request stream **exchange-sink**
                                                   (server-loop-options server-loop)
                                                   (claim-http-method claim) claim)
                   claim)
    (tell-of-call call server-loop list)
    (cond ((rejected-at-once-p claim) (reject-claimed call claim))
          ((refuse-call-p server-loop link call))
          ((not (room-for-call-p server-loop link call (request-charge request))))
          ((claim-rejection claim))     ; the rejection is sent once the body has come
          (t (start-claimed call claim))))
  nil)

(defun invite-body (stream)
  "Send the status 100 on STREAM, whose client waits for that (RFC 9110 section 10.1.1), unless its
request has been answered."
  (let ((call (http2:stream-user stream)))
    (when (and call (null (call-status call)) (http2:stream-sendable-p stream))
      (http2:send-continue stream))))

(define-hot server-headers ((stream http2:stream) (list hpack:field-list) (ended boolean)) null
  "The sink's on-headers."
  (let* ((link (http2:connection-user (http2:stream-connection stream)))
         (server-loop (server-link-owner (the server-link link)))
         (request (request-of (the server-loop server-loop) list link)))
    (cond ((null (request-plain request)) (begin-served-call stream list link server-loop request))
          ((claim-p (request-claim request))
           (begin-claimed-on-stream stream list link server-loop request))
          (t (begin-plain-on-stream stream list link server-loop request)))
    (cond (ended (end-of-request (the server-call (http2:stream-user stream))))
          ((and (request-plain request) (request-expects request)) (invite-body stream))))
  nil)

(define-hot receive-other ((call server-call) (octets octets) (start index) (end index)
                           (ended boolean))
    null
  "Handle a part of the body of CALL, of another protocol, and return the window for that part."
  (flet ((receive (call octets start end)
           (exchange:receive-body (call-http-request call) octets start end)))
    (if (call-claim call)
        (receive-claimed call octets start end ended)
        (wire:receive-data call octets start end #'receive)))
  nil)

(define-hot server-data ((stream http2:stream) (octets octets) (start index) (end index)
                         (ended boolean))
    null
  "The sink's on-data."
  (let ((call (http2:stream-user stream)))
    (cond (call
           (if (call-http-request (the server-call call))
               (receive-other call octets start end ended)
               (wire:receive-data call octets start end))
           (when ended (end-of-request call)))
          (t (http2:consume-data stream (- end start))))
    nil))

(defun server-trailers (stream list)
  "The sink's on-trailers: trailers of a request mean nothing, but they end its stream."
  (declare (ignore list))
  (let ((call (http2:stream-user stream)))
    (when call (end-of-request call))))

(defun server-reset (stream error-code source)
  "The sink's on-reset: the peer, or the end of the connection, has cancelled the call."
  (let ((call (http2:stream-user stream)))
    (when (and call (not (call-status call)))
      (lose-call call (format nil "~A from ~(~A~)" (http2:error-code-name error-code) source)))))

(define-hot (release-stream-charge :inline t) ((link server-link) (stream http2:stream)) null
  "Release the charge of STREAM, which is closed, from LINK."
  (let ((charge (http2:stream-charge stream)))
    (unless (zerop charge)
      (setf (http2:stream-charge stream) 0)
      (charge-own (server-link-account link) (- charge))))
  nil)

(defun server-stream-closed (stream)
  "The sink's on-stream-closed: the last function that the core calls for STREAM."
  (let ((call (http2:stream-user stream)))
    (when call
      (let ((link (server-call-link call)))
        (setf (server-call-stream call) nil)
        (release-stream-charge link stream)
        (look-at-held-up link)
        (retire-call call link)
        (http2:release-stream stream)
        (let ((plain (call-http-request call)))
          (when plain (exchange:leave-stream plain))
          (unless (and plain (null (call-claim call))) ; a plain request is not a call
            (count-end (server-link-owner link) call)))
        (when (and (zerop (server-link-calls link)) (server-link-draining link))
          (wire:close-link link "drained"))))))

(defun server-writable (stream)
  "The sink's on-writable."
  (let ((call (http2:stream-user stream)))
    (when call (wire:tell-writable call))))

(define-load-time-global **server-sink**
    (wire:link-sink :on-headers #'server-headers
                    :on-data #'server-data :on-trailers #'server-trailers
                    :on-reset #'server-reset :on-writable #'server-writable
                    :on-stream-closed #'server-stream-closed
                    :on-settings #'link-ready :on-ping-ack #'server-ping-ack))
