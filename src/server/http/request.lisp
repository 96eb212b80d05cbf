;;;; What is known of a request before it is a call: what its headers said. A request that is not
;;;; gRPC's is a plain one (plain.lisp), an HTTP-REQUEST; that is what handlers of HTTP get.

(in-package #:clgrpc.server)

(defstruct (plain-answer (:constructor make-plain-answer (http-status headers body &optional head))
                         (:copier nil))
  "The answer to a plain request."
  (http-status 200 :type (integer 200 599) :read-only t) ; as in RFC 9110
  (headers '() :type list :read-only t) ; an alist, checked, without content-length
  (body (make-octets 0) :type octets :read-only t) ; empty for none
  ;; of one that is given again and again: its head over HTTP/1.1 up to date, the last field
  (head nil :type (or null octets) :read-only t))

(defstruct (carrier (:copier nil))
  "How plain requests are answered over one version of HTTP. All functions run on the call's loop,
but UNSENT on any thread."
  (answer nil :type function :read-only t) ; (call answer): the whole answer
  (begin nil :type function :read-only t) ; (call answer): the head of an answer in chunks
  (chunk nil :type function :read-only t) ; (call octets): more of its body
  (end nil :type function :read-only t) ; (call whole): its end; it is cut off unless WHOLE
  (unsent nil :type function :read-only t)) ; (call): how many octets of it have not left

(defstruct (known-head (:constructor make-known-head (message site route prompt query))
                       (:copier nil))
  "What is known of a request over HTTP/1.1 from its head alone. A peer that repeats the head has
this found in the memo of MESSAGE. The connection's."
  (message nil :type http1:message :read-only t) ; which the head is
  (headers :unread :type (or list (eql :unread))) ; as HTTP-REQUEST-HEADERS has them
  (site nil :type (or null site) :read-only t) ; whose routes they were
  (route nil :type (or null server-route) :read-only t) ; by which a handler is called
  (prompt nil :type (or null function) :read-only t) ; that answers, see PROMPT-HANDLER
  (query nil :type (or null string) :read-only t)) ; which that is called with

(defstruct (http-request (:copier nil))
  "A request that is no call: see HTTP-HANDLER."
  (carrier nil :type carrier)           ; of its version of HTTP
  (method "" :type string)              ; "GET"
  (target "" :type string)              ; the path, with the query, as it came
  (source '() :type (or list known-head)) ; its headers, an alist, or who knows them
  (body (make-octets 0) :type octets)   ; what has come of it, up to FILL
  (fill 0 :type index)                  ; how much of it that is
  (call nil)                            ; that it is
  (refusal nil :type (or null plain-answer)) ; the answer if nobody else answers
  (answer nil :type (or null plain-answer)) ; the handler's, whole or only its head
  ;; of an answer in chunks: whether its head has been written
  (sending nil :type (member nil :posted :begun)))

(declaim (sb-ext:freeze-type plain-answer carrier known-head http-request))

(defmethod print-object ((carrier carrier) stream)
  (print-unreadable-object (carrier stream :type t :identity t)))

(defmethod print-object ((request http-request) stream)
  (print-unreadable-object (request stream :type t)
    ;; without the query, which may have a secret
    (format stream "~A ~A~@[, answered with ~D~]" (http-request-method request)
            (http-request-path request)
            (let ((answer (http-request-answer request)))
              (and answer (plain-answer-http-status answer))))))

(defun begun-p (request)
  "True if the head of REQUEST's answer, which is sent in chunks, has been written. On the loop."
  (eq :begun (http-request-sending request)))

(document-functions
  http-request-p "True of the requests that the functions of HTTP handlers get."
  http-request-method "The method of REQUEST, a string such as \"GET\"."
  http-request-target "The path of REQUEST and its query, as they came, a string."
  http-request-body "The body of REQUEST, octets; none is an empty vector. Only while its handler
runs, or before it is answered.")

(defun field-entry (field)
  "FIELD as an entry of a request's headers, or nil for what the request line says. The name of
:authority is \"host\"."
  (let ((name (hpack:field-name-string field))
        (value (hpack:field-value-string field)))
    (cond ((string= ":authority" name) (cons "host" value))
          ((char= #\: (char name 0)) nil)
          (t (cons name value)))))

(defun known-headers (known)
  "The headers of KNOWN, a known head, made when they are first asked for."
  (let ((headers (known-head-headers known)))
    (if (listp headers)
        headers
        (setf (known-head-headers known)
              (map 'list #'field-entry (http1:message-fields (known-head-message known)))))))

(defun http-request-headers (request)
  "The headers of REQUEST, an alist from names in lower case to strings, in their order."
  (let ((source (http-request-source request)))
    (if (listp source)
        source
        (known-headers source))))

(defun query-start (target)
  (or (position #\? target) (length target)))

(defun target-query (target)
  "What follows the question mark in TARGET, or nil."
  (let ((start (query-start target)))
    (and (< start (length target)) (subseq target (1+ start)))))

(defun http-request-path (request)
  "The path of REQUEST, without its query, as it came: nothing in it is decoded. A string."
  (let ((target (http-request-target request)))
    (subseq target 0 (query-start target))))

(defun http-request-query (request)
  "The query of REQUEST, what follows the question mark in its target, as it came, a string; nil
without one."
  (target-query (http-request-target request)))

(defun http-request-header (request name)
  "The value of the first header of REQUEST whose name is NAME, a string in lower case, or nil."
  (cdr (assoc name (http-request-headers request) :test #'string=)))

(define-hot escaped-octet ((text simple-string) (at index) (end index)) (or null octet)
  "The octet that the escape %XX at AT in TEXT, which goes to END, stands for; nil if it is none."
  (and (<= (+ at 3) end)
       (let ((high (digit-char-p (char text (1+ at)) 16))
             (low (digit-char-p (char text (+ at 2)) 16)))
         (and high low (logior (ash high 4) low)))))

(define-hot query-octets ((text simple-string) (start index) (end index)) (or null octets)
  "What TEXT, a query, says from START to END, with its %XX and + decoded; nil if it cannot be."
  (let ((octets (make-octets (- end start))) (fill 0) (at start))
    (declare (type index fill at))
    (loop
      (when (= at end) (return (subseq octets 0 fill)))
      (let* ((character (char text at))
             (octet (case character
                      (#\+ 32)
                      (#\% (escaped-octet text at end))
                      (t (char-code character)))))
        (unless (typep octet 'octet) (return nil))
        (setf (aref octets fill) octet)
        (incf fill)
        (incf at (if (char= #\% character) 3 1))))))

(defun decoded-query (text start end)
  "What TEXT, a query, says from START to END, decoded as UTF-8; as it is if that is not possible."
  (let ((octets (query-octets text start end)))
    (or (and octets (ignore-errors (octets-string octets)))
        (subseq text start end))))

(defun decodes-as-p (query start end name)
  (string= name (decoded-query query start end)))

(define-hot (escape-p :inline t) ((character character)) boolean
  (or (char= #\% character) (char= #\+ character)))

(define-hot (parameter-named-p :inline t) ((query simple-string) (start index) (end index)
                                           (name simple-string))
    boolean
  "True if NAME is what QUERY says from START to END. Most parameters are somebody else's, and some
are there to cost us time: one is only decoded if it may well be that."
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
  "As QUERY-PARAMETER."
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
  "The decoded value of the first parameter of QUERY, a string or nil, that is called NAME; nil if
there is none."
  (when query
    (let ((query (coerce query 'simple-string)) (name (coerce name '(simple-array character (*)))))
      ;; compiled for each, since a peer may have a long query read by a few octets
      (etypecase query
        (simple-base-string (find-parameter query name))
        ((simple-array character (*)) (find-parameter query name))))))

(defun http-request-parameter (request name)
  "The decoded value of the first parameter of REQUEST's query that is called NAME, a string, as
with \"/events?token=a%20b\" and \"token\"; nil if there is none."
  (query-parameter (http-request-query request) name))

(defun http-request-peer (request)
  "The address of the peer that sent REQUEST, as a string."
  (rpc:call-peer (http-request-call request)))

(defun http-request-secure-p (request)
  "True if REQUEST has come over TLS."
  (and (rpc:call-security (http-request-call request)) t))

(defstruct (request (:copier nil))
  "What the headers of a request said, on its way to a call."
  (table nil :type (or null route-table)) ; by whose routes
  (fields #() :type simple-vector)      ; the metadata, as WIRE:LIST-CUSTOM-FIELDS has it
  (charge 0 :type index)                ; octets that the call is charged with for them
  (route nil :type (or null server-route)) ; where the path leads; NIL without a path
  (timeout nil :type (or null (unsigned-byte 62))) ; nanoseconds
  (incoming nil :type (or symbol wire:encoding)) ; as BEGIN-COMPRESSION has it
  (accepted '() :type list)             ; the encodings that the client can read
  (plain nil :type boolean)             ; its content type is not gRPC's
  (refusal nil :type (or null plain-answer)) ; for a plain request: the answer without a fallback
  (rejection '() :type list))           ; why it cannot become a call: a status and a text

(declaim (sb-ext:freeze-type request))
