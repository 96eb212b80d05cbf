;;;; An exchange: a request of HTTP, which its handler gets, and its answer. HTTP/2 and HTTP/1.1
;;;; differ in the RESPONDER, which writes an answer. The SINK has the functions of the owner, a
;;;; server.
;;;;
;;;; The body is collected, as far as the owner accepts it, in a vector that grows as octets arrive;
;;;; the connection is charged for the vector as for messages that wait.

(in-package #:clgrpc.exchange)

(define-load-time-global **not-found** (text-answer 404 "there is nothing here"))

(defstruct (sink (:copier nil))
  "The functions of an owner for its exchanges and for its connections that speak HTTP/1.1. All
functions run on the loop, unless their slot says otherwise."
  ;; (owner request): the head of REQUEST has come over HTTP/1.1. Return true if REQUEST continues;
  ;; false if it has been ended
  (begun nil :type function :read-only t)
  ;; (request count): charge REQUEST for COUNT more octets of its body; the value is as for BEGUN
  (hold nil :type function :read-only t)
  (whole nil :type function :read-only t) ; (request): the whole request has come
  ;; for requests over HTTP/1.1 whose bodies the owner takes in parts:
  ;; (request octets start end last): a part of the body, valid only during the call; LAST is true
  ;; for the last part
  (body nil :type (or null function) :read-only t)
  ;; (request): the peer takes octets of its answer
  (writable nil :type (or null function) :read-only t)
  (finish nil :type function :read-only t) ; (request): its answer can be written
  (head-sent nil :type function :read-only t) ; (request): the head of its answer is about to go out
  (done nil :type function :read-only t) ; (request): its answer, over HTTP/1.1, has been written
  (lost nil :type function :read-only t) ; (request text): its peer has gone, as TEXT says
  (stopping-p nil :type function :read-only t) ; (request): true if the server stops
  (stop nil :type function :read-only t) ; (request): the server ends the answer, which is in chunks
  (over-p nil :type function :read-only t) ; (request): true once it has ended. From any thread
  ;; (request size function): call FUNCTION on the loop, after functions posted before; until then
  ;; SIZE more octets count as waiting. From any thread
  (post nil :type function :read-only t)
  (posted nil :type function :read-only t) ; (request): how many octets wait. From any thread
  (on-end nil :type function :read-only t) ; (request function): call FUNCTION at its end
  (peer nil :type function :read-only t) ; (request): the address of its peer
  (secure-p nil :type function :read-only t) ; (request): true if it has come over TLS
  ;; for connections that speak HTTP/1.1
  (prompt-p nil :type function :read-only t) ; (owner): true if no observer sees requests
  (measure nil :type function :read-only t) ; (owner): its memory may have changed
  (close nil :type function :read-only t) ; (owner text): end the connection in order
  (expel nil :type function :read-only t) ; (owner text): end the connection at once
  (closed nil :type function :read-only t)) ; (socket reason): the connection has ended

(defstruct (responder (:copier nil))
  "The functions that answer requests over one version of HTTP. All functions run on the loop,
except UNSENT, which runs on any thread."
  (answer nil :type function :read-only t) ; (request answer): the whole answer
  (begin nil :type function :read-only t) ; (request answer): the head of an answer in chunks
  (chunk nil :type function :read-only t) ; (request octets): more of its body
  ;; (request whole): the answer's end; the answer is cut off unless WHOLE
  (end nil :type function :read-only t)
  (unsent nil :type function :read-only t) ; (request): how many octets of its answer are unsent
  ;; for requests whose owner writes the answer itself:
  ;; (request head more length): HEAD, an ANSWER-HEAD, with MORE, an alist of strings; the answer's
  ;; body has LENGTH octets, nil if that is not known
  (head nil :type function :read-only t)
  ;; (request octets start end storable last): a part of the body, the last one if LAST. The octets
  ;; belong to the connection afterwards; STORABLE is as for HTTP2:SEND-DATA
  (part nil :type function :read-only t)
  (pause nil :type function :read-only t) ; (request): read no more of its body for now
  (resume nil :type function :read-only t)) ; (request): read its body again

(defstruct (known-head (:constructor make-known-head (message router route prompt query
                                                      claimed refusal))
                       (:copier nil))
  "The data about a request over HTTP/1.1 that depend only on its head. For a repeated head these
data are in the memo of MESSAGE. The data belong to the connection that has read the head."
  (message nil :type http1:message :read-only t) ; the message of which this is the head
  (headers :unread :type (or list (eql :unread))) ; the value of HTTP-REQUEST-HEADERS
  (router nil :type (or null router) :read-only t) ; the router that has found ROUTE
  (route nil :read-only t)              ; the route by which a handler is called, or nil
  ;; the function that answers at once, see PROMPT-HANDLER
  (prompt nil :type (or null function) :read-only t)
  (query nil :type (or null string) :read-only t) ; the query with which PROMPT is called
  (claimed nil :type boolean :read-only t) ; ROUTE is the value of the router's CLAIM
  ;; the answer of CLAIM, if that has refused the request
  (refusal nil :type (or null plain-answer) :read-only t)
  (epoch (router-epoch router) :type fixnum :read-only t)) ; the epoch of ROUTER when it found ROUTE

(defstruct (http-request (:constructor nil) (:copier nil))
  "A request of HTTP: see HTTP-HANDLER."
  (responder nil :type responder)       ; the responder of its version of HTTP
  (sink nil :type sink)                 ; the sink of the request's owner
  (options nil :type options)           ; the options of the request's owner
  (method "" :type string)              ; the method, such as "GET"
  (target "" :type string)              ; the path, with the query, as it came
  (source '() :type (or list known-head)) ; the request's headers, an alist, or their source
  (body (make-octets 0) :type octets)   ; the octets that have come, up to FILL
  (fill 0 :type index)                  ; the number of octets that have come
  (whole nil :type boolean)             ; true once all of the body has come
  (claimed nil :type boolean)           ; the owner takes its body and writes its answer
  (route nil)                           ; the route of its handler, or nil
  (context nil)                         ; the owner's data for the request
  (refusal **not-found** :type plain-answer) ; the answer if the request has no route
  (answer nil :type (or null plain-answer)) ; the handler's answer, or only its head
  ;; of an answer in chunks: whether its head has been written
  (sending nil :type (member nil :posted :begun)))

(declaim (sb-ext:freeze-type sink responder known-head))

(defmethod print-object ((sink sink) stream)
  (print-unreadable-object (sink stream :type t :identity t)))

(defmethod print-object ((responder responder) stream)
  (print-unreadable-object (responder stream :type t :identity t)))

(defmethod print-object ((request http-request) stream)
  (print-unreadable-object (request stream :type t)
    ;; without the query, which may contain a secret
    (format stream "~A ~A~@[, answered with ~D~]" (http-request-method request)
            (http-request-path request)
            (let ((answer (http-request-answer request)))
              (and answer (plain-answer-http-status answer))))))

(defun begun-p (request)
  "True if the head of REQUEST's answer, which is sent in chunks, has been written. On the loop."
  (eq :begun (http-request-sending request)))

(document-functions
  http-request-p "True if the argument is an HTTP request, such as HTTP handlers get."
  http-request-method "The method of REQUEST, a string such as \"GET\"."
  http-request-target "The path of REQUEST and its query, as they were received, a string."
  http-request-body "The body of REQUEST, octets; an empty vector if REQUEST has no body. It is
valid only while the handler runs, or before REQUEST is answered.")

(defun field-entry (field)
  "Return FIELD as an entry of a request's headers, or nil for a field of the request line. The name
of :authority becomes \"host\"."
  (let ((name (hpack:field-name-string field))
        (value (hpack:field-value-string field)))
    (cond ((string= ":authority" name) (cons "host" value))
          ((char= #\: (char name 0)) nil)
          (t (cons name (string-trim '(#\Space #\Tab) value)))))) ; as HTTP/1.1 does

(defun known-headers (known)
  "Return the headers of KNOWN, a known head, which are made when they are first needed."
  (let ((headers (known-head-headers known)))
    (if (listp headers)
        headers
        (setf (known-head-headers known)
              (map 'list #'field-entry (http1:message-fields (known-head-message known)))))))

(defun http-request-headers (request)
  "The headers of REQUEST, an alist from names in lower case to strings, in their order. From any
thread."
  (let ((source (http-request-source request)))
    (if (listp source)
        source
        (known-headers source))))

(defun query-start (target)
  (or (char-position #\? target) (length target)))

(defun target-query (target)
  "Return the part of TARGET after the question mark, or nil if it has none."
  (let ((start (query-start target)))
    (and (< start (length target)) (subseq target (1+ start)))))

(defun http-request-path (request)
  "The path of REQUEST, without its query, a string as it was received, in which nothing is decoded.
From any thread."
  (let ((target (http-request-target request)))
    (subseq target 0 (query-start target))))

(defun http-request-query (request)
  "The query of REQUEST, which is the part of its target after the question mark, as an undecoded
string, or nil if it has no query. From any thread."
  (target-query (http-request-target request)))

(defun http-request-header (request name)
  "The value of the first header of REQUEST whose name is NAME, a string in lower case, or nil if it
has no such header. From any thread."
  (cdr (assoc name (http-request-headers request) :test #'string=)))

(defun decoded-query (text start end)
  "Return TEXT, a query, from START to END, decoded as UTF-8, or undecoded if it is not UTF-8."
  (let ((octets (and (or (not (typep text 'simple-base-string))
                         (char-position #\% text :start start :end end)
                         (char-position #\+ text :start start :end end))
                     (percent-octets text start end :plus t))))
    (or (and octets (ignore-errors (octets-string octets)))
        (subseq text start end))))

(defun decodes-as-p (query start end name)
  (string= name (decoded-query query start end)))

(define-hot (escape-p :inline t) ((character character)) boolean
  (or (char= #\% character) (char= #\+ character)))

(define-hot (parameter-named-p :inline t) ((query simple-string) (start index) (end index)
                                           (name simple-string))
    boolean
  "True if QUERY has NAME from START to END. A name is decoded only if its length allows that it
equals NAME, because most parameters have other names, and a peer may send many parameters in order
to use up our processor time. A character takes at most twelve octets, because its UTF-8 has up to
four octets, and each of these may be escaped."
  (unless (<= (length name) (- end start) (* 12 (the index (length name))))
    (return-from parameter-named-p nil))
  (if (loop for i of-type index from start below end thereis (escape-p (char query i)))
      (and (<= (length name) (- end start))
           (or (zerop (length name))
               (escape-p (char query start))
               (char= (char name 0) (char query start)))
           (decodes-as-p query start end name))
      (and (= (length name) (- end start))
           (loop for i of-type index from start below end
                 for character across name
                 always (char= character (char query i))))))

(define-hot (find-parameter :inline t) ((query simple-string) (name simple-string))
    (or null string)
  "Return what QUERY-PARAMETER returns."
  (let ((start 0))
    (declare (type index start))
    (loop
      (let ((equals nil) (end start))
        (declare (type index end) (type (or null index) equals))
        (loop until (or (= end (length query)) (char= #\& (char query end)))
              do (when (and (null equals) (char= #\= (char query end))) (setf equals end))
                 (incf end))
        (when (parameter-named-p query start (or equals end) name)
          (return (decoded-query query (if equals (1+ equals) end) end)))
        (when (= end (length query)) (return nil))
        (setf start (1+ end))))))

(defun query-parameter (query name)
  "Return the decoded value of the first parameter of QUERY, a string or nil, with the name NAME, or
nil if there is no such parameter."
  (when query
    (let ((query (coerce query 'simple-string)) (name (coerce name '(simple-array character (*)))))
      ;; compiled for each type of string: with a few octets a peer may cause a long query to be
      ;; read
      (etypecase query
        (simple-base-string (find-parameter query name))
        ((simple-array character (*)) (find-parameter query name))))))

(defconstant +parameters-looked-at+ 64
  "The maximum number of parameters that QUERY-VALUES examines. It is limited because a peer can
send thousands of parameters of one or two octets.")

(define-hot query-values ((query (or null simple-string)) (names list)) list
  "Return a list with the decoded value, for each of NAMES, base strings, of the first parameter of
QUERY with that name, or nil if none of the first 64 parameters has the name."
  (let ((values (make-list (length names) :initial-element nil))
        (query (or query "")) (start 0))
    (declare (type simple-string query) (type index start))
    (loop repeat +parameters-looked-at+
          do (let* ((end (or (char-position #\& query :start start) (length query)))
                    (equals (or (char-position #\= query :start start :end end) end)))
               (loop for name of-type simple-base-string in names
                     for value on values
                     when (and (null (first value)) (parameter-named-p query start equals name))
                       do (setf (first value) (decoded-query query (min end (1+ equals)) end)))
               (when (= end (length query)) (return))
               (setf start (1+ end))))
    values))

(defun http-request-parameter (request name)
  "The decoded value of the first parameter of REQUEST's query with the name NAME, a string, as with
\"/events?token=a%20b\" and \"token\"; nil if there is no such parameter. From any thread."
  (query-parameter (http-request-query request) name))

(defun http-request-peer (request)
  "The address of the peer that sent REQUEST, as a string. From any thread."
  (values (funcall (sink-peer (http-request-sink request)) request)))

(defun http-request-secure-p (request)
  "True if REQUEST was received over TLS."
  (values (funcall (sink-secure-p (http-request-sink request)) request)))

;;; Routes

(defun prompt-handler (path prompt &key quiet)
  "Return a handler for START-SERVER's :http whose function PROMPT answers GET and HEAD for PATH, a
string. PROMPT is a function of the query, a string or nil, that returns an answer that FIXED-ANSWER
has made. PROMPT is called on the loop, so it must not wait or fail. A GET over HTTP/1.1 is answered
as soon as it is read, without a call object, unless an observer needs a call. QUIET is as for
HTTP-HANDLER. From any thread."
  (%make-http-handler path (lambda (request) (funcall prompt (http-request-query request)))
                      '("GET" "HEAD") :inline (and quiet t) prompt))

(defun note-refusal (router request)
  "Set the answer to REQUEST, for which ROUTER has no route; ROUTER may be nil. If ROUTER has a
route for another method, the answer reports this."
  (when-let ((entry (target-entry router (http-request-target request))))
    (setf (http-request-refusal request) (wrong-method (router-entry-handler entry)))))

(defun find-request-route (router request)
  "Set the route of REQUEST, if ROUTER has a route for it; ROUTER may be nil."
  (or (setf (http-request-route request)
            (find-route router (http-request-method request) (http-request-target request)))
      (note-refusal router request)))

;;; The body

(defun over-p (request)
  (values (funcall (sink-over-p (http-request-sink request)) request)))

(defun finish (request)
  "Write the answer to REQUEST or, if it is sent in chunks, end it."
  (funcall (sink-finish (http-request-sink request)) request))

(defun answer (request answer)
  "Answer REQUEST with ANSWER, unless it has ended."
  (unless (over-p request)
    (setf (http-request-answer request) answer)
    (finish request)))

(defun refuse-unrouted (request)
  "Answer REQUEST, which has no route, with its refusal. The body of REQUEST may still be
incomplete."
  (answer request (http-request-refusal request)))

(defun refuse-body (request limit)
  "Refuse REQUEST, whose body is longer than LIMIT."
  (answer request (text-answer 413 (format nil "the body is longer than ~D octets ~
                                                (max-fallback-body-octets)" limit))))

(defun make-body-room (request count limit)
  "Make room for COUNT further octets in the body of REQUEST, whose maximum length is LIMIT. Return
false if the memory limit does not allow this, in which case REQUEST has been ended."
  (let* ((body (http-request-body request))
         (need (+ (http-request-fill request) count))
         (length (min limit (max need (* 2 (length body)) 1024))))
    (or (<= need (length body))
        (when (funcall (sink-hold (http-request-sink request)) request (- length (length body)))
          (setf (http-request-body request)
                (replace (make-octets length) body :end2 (http-request-fill request)))
          t))))

(define-hot (write-head :inline t) ((request http-request) (head answer-head) (more list) length)
    null
  "Write HEAD and MORE, the head of the answer to REQUEST, which is claimed; see RESPONDER."
  (funcall (responder-head (http-request-responder request)) request head more length)
  nil)

(define-hot (write-part :inline t) ((request http-request) (octets octets) (start index)
                                    (end index) (storable boolean) (last boolean))
    null
  "Write the octets from START to END of the answer to REQUEST, which is claimed; see RESPONDER."
  (funcall (responder-part (http-request-responder request)) request octets start end storable last)
  nil)

(defun cut-answer-off (request)
  "End the answer to REQUEST, which is claimed, in such a way that the peer sees that it is
incomplete."
  (funcall (responder-end (http-request-responder request)) request nil))

(define-hot (unsent-octets :inline t) ((request http-request)) index
  "The number of unsent octets of the answer to REQUEST. From any thread."
  (values (the index (funcall (responder-unsent (http-request-responder request)) request))))

(defun pause-body (request)
  "Stop reading the body of REQUEST, which is claimed, until RESUME-BODY. On the loop."
  (funcall (responder-pause (http-request-responder request)) request))

(defun resume-body (request)
  "Undo PAUSE-BODY. On the loop."
  (funcall (responder-resume (http-request-responder request)) request))

(defun receive-body (request octets start end)
  "Keep OCTETS from START to END, a part of the body of REQUEST."
  (let ((limit (options-max-fallback-body-octets (http-request-options request)))
        (count (- end start)))
    (cond ((or (over-p request) (null (http-request-route request))))
          ((< limit (+ (http-request-fill request) count)) (refuse-body request limit))
          ((make-body-room request count limit)
           (replace (http-request-body request) octets
                    :start1 (http-request-fill request) :start2 start :end2 end)
           (incf (http-request-fill request) count)))))

(defun end-body (request)
  "Note that all of REQUEST was received, and shorten its body to the received octets."
  (setf (http-request-whole request) t)
  (when (< (http-request-fill request) (length (http-request-body request)))
    (setf (http-request-body request)
          (subseq-octets (http-request-body request) 0 (http-request-fill request)))))

;;; Its answer

(defun answer-of (request values)
  "Return the meaning of VALUES, which a handler of REQUEST has returned: REQUEST if the answer
comes later, T if an answer was begun and must be ended, and otherwise the answer, a PLAIN-ANSWER."
  (cond ((eq request (first values)) request)
        ((plain-answer-p (first values)) (first values))
        ((http-request-sending request) t)
        (t (destructuring-bind (&optional http-status headers body &rest more) values
             (declare (ignore more))
             (check-answer http-status headers body)))))

(defun ended-by-head-p (request)
  "True if the answer to REQUEST, which is sent in chunks, can have no body, so that its head has
ended the answer."
  (http1:bodiless-p (http-request-method request)
                    (plain-answer-http-status (http-request-answer request))))

(defun write-end (request whole otherwise)
  "Write the answer to REQUEST, which has ended, or the end of an answer in chunks. If WHOLE is
false, break off the answer in chunks in such a way that the client notices. OTHERWISE, a function,
returns the answer if REQUEST has none."
  (declare (type function otherwise))
  (let ((responder (http-request-responder request)))
    (if (begun-p request)
        (funcall (responder-end responder) request whole)
        (funcall (responder-answer responder) request
                 (or (http-request-answer request) (funcall otherwise))))))
