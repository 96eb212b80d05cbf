;;;; HTTP/1.1 at a server (RFC 9112): the work of a connection, from the octets of requests to the
;;;; octets of their answers. The connection's owner gives a SINK, whose functions are called for
;;;; the events of requests.
;;;;
;;;; A connection has one request at a time. Pipelined octets after the request wait until it is
;;;; answered; meanwhile nothing more is read, so a peer can make us keep at most the octets of one
;;;; read. After an error, and after an answer that comes before the end of its request, the
;;;; beginning of the next request is unknown, so the connection ends with that answer.
;;;;
;;;; Phases: :idle → :head → :body → :answer → :idle, or :over. A timer of each connection checks
;;;; the phase at the earliest time at which a time-out may be due; a request that ends before that
;;;; sets no timer.

(in-package #:clgrpc.exchange)

(defstruct (http-loop (:copier nil))
  "The shared data of the connections on one loop that speak HTTP/1.1."
  (router nil :type router :read-only t) ; the router that finds handlers
  (sink nil :type sink :read-only t)    ; the sink of the owner of the connections
  (options nil :type options :read-only t) ; the options of the owner of the connections
  ;; the last lines of heads: the date in the present second, and an empty line
  (date-lines (make-octets 0) :type octets)
  (date-due-ns 0 :type nanoseconds))    ; when the date must be renewed

(defstruct (http1-connection (:conc-name state-)
                             (:constructor make-http1-connection (owner http socket parser))
                             (:copier nil))
  "A connection that speaks HTTP/1.1."
  (owner nil :read-only t)              ; the owner's object for the connection
  (http nil :type http-loop :read-only t) ; the shared data
  (socket nil :type loop:connection :read-only t) ; the loop's
  (parser nil :type http1:parser :read-only t) ; the parser of its requests
  (phase :head :type (member :idle :head :body :answer :over)) ; see above
  (since-ns 0 :type nanoseconds)        ; the time when the phase began
  (message nil :type (or null http1:message)) ; the head of the request under way
  (request nil :type (or null http1-request)) ; the request at hand, until it has been answered
  (prompt nil :type (or null plain-answer)) ; the request's answer, if PROMPT-ANSWER gave it
  (answered 0 :type index)              ; how many requests have been taken
  (last nil :type boolean)              ; the connection ends with the answer to come
  (waits nil :type boolean)             ; input waits until the answer has been given
  (paused nil :type boolean)            ; the owner has paused the body
  (sent-ns 0 :type nanoseconds)         ; when the peer last took output
  (timer nil :type (or null timer))     ; see STATE-DUE
  (timer-ns 0 :type nanoseconds))       ; when the timer is due

(document-functions
  state-request "The request under way on a connection that speaks HTTP/1.1, or nil if there is
none.")

(defstruct (http1-request (:include http-request) (:copier nil))
  "A request over HTTP/1.1."
  (connection nil :type http1-connection) ; the connection on which the request has come
  (chunked nil :type boolean)           ; claimed, and its answer has no length
  (begun nil :type boolean))            ; claimed, and the head of its answer has been written

(declaim (sb-ext:freeze-type http-loop http1-connection http1-request))

(define-printer (state http1-connection)
  "~A, ~(~A~)" (loop:connection-peer (state-socket state)) (state-phase state))

(defconstant +http1-octets+ 1024
  "The memory in octets of a connection that speaks HTTP/1.1 and has no request.")

(define-hot (state-options :inline t) ((state http1-connection)) options
  (http-loop-options (state-http state)))

(define-hot (state-sink :inline t) ((state http1-connection)) sink
  (http-loop-sink (state-http state)))

(define-hot (state-loop :inline t) ((state http1-connection)) loop:event-loop
  (loop:connection-loop (state-socket state)))

(define-hot (state-now :inline t) ((state http1-connection)) nanoseconds
  (loop:event-loop-now (state-loop state)))

(defun close-state (state text)
  "Ask the owner of STATE to end it in order, because of TEXT."
  (funcall (sink-close (state-sink state)) (state-owner state) text))

(defun expel-state (state text)
  "Ask the owner of STATE to end it at once, because of TEXT."
  (funcall (sink-expel (state-sink state)) (state-owner state) text))

(define-hot (measure-state :inline t) ((state http1-connection)) null
  "Note that the memory of STATE may have changed."
  (funcall (sink-measure (state-sink state)) (state-owner state))
  nil)

(define-hot (enter-phase :inline t) ((state http1-connection) (phase symbol)) null
  (setf (state-phase state) phase
        (state-since-ns state) (state-now state))
  nil)

(define-hot (state-output :inline t) ((state http1-connection)) buffer
  "The buffer for the output to STATE's peer."
  (loop:connection-output (state-socket state)))

;;; Time-outs

(defun phase-seconds (options phase)
  "The time limit of the PHASE of a connection, by OPTIONS."
  (ecase phase
    (:idle (options-http1-idle-seconds options))
    (:head (options-http1-head-timeout-seconds options))
    (:body (options-http1-body-timeout-seconds options))
    ((:answer :over) (options-http1-send-timeout-seconds options))))

(defun phase-due-ns (state)
  "The time of the next check of STATE, unless its phase changes before."
  (+ (state-since-ns state) (seconds-ns (phase-seconds (state-options state) (state-phase state)))))

(defun look-again (state due-ns)
  "Schedule a check of STATE at DUE-NS."
  (setf (state-timer-ns state) due-ns)
  (loop:start-timer (state-loop state) (state-timer state) due-ns))

(defun await-due (state)
  "Start STATE's timer for the time at which its phase exceeds its limit, unless the timer is due
before."
  (let ((due (phase-due-ns state)))
    (when (or (not (timer-pending-p (state-timer state))) (< due (state-timer-ns state)))
      (look-again state due))))

(defun state-due (state)
  "End the phase of STATE if it takes too long. This is the function of STATE's timer."
  (let* ((now (state-now state))
         (timeout (seconds-ns (options-http1-send-timeout-seconds (state-options state)))))
    (cond ((not (eq :open (loop:connection-state (state-socket state)))))
          ((plusp (loop:connection-unsent (state-socket state)))
           (if (<= (+ (state-sent-ns state) timeout) now)
               (expel-state state "the peer does not receive its answers")
               (look-again state (+ (state-sent-ns state) timeout))))
          ((or (member (state-phase state) '(:answer :over)) (state-paused state))
           (look-again state (+ now timeout)))
          ((and (state-last state) (eq :head (state-phase state))) (end-http1 state "drained"))
          ((< now (phase-due-ns state)) (look-again state (phase-due-ns state)))
          ((eq :idle (state-phase state)) (close-state state "no request for long"))
          (t (refuse state 408 "the request takes too long")))))

;;; The head of an answer

(defconstant +date-look-ns+ 20000000
  "The time in nanoseconds for which a loop uses the same date.")

(defun look-at-date (http now)
  "Update the DATE-LINES of HTTP to the date at NOW, the time of its loop."
  (let ((date (current-date-text)))
    (setf (http-loop-date-due-ns http) (+ now +date-look-ns+)
          (http-loop-date-lines http) (http1:last-head-octets (and date `(("date" . ,date)))))))

(define-hot (date-lines :inline t) ((state http1-connection)) octets
  "The last lines of the head of an answer: the date, and an empty line."
  (let ((http (state-http state)) (now (state-now state)))
    (when (<= (http-loop-date-due-ns http) now) (look-at-date http now))
    (http-loop-date-lines http)))

(define-hot (stays-p :inline t) ((state http1-connection)) boolean
  "True if the connection of STATE remains open after the present answer."
  (and (eq :answer (state-phase state))
       (not (state-last state))
       (http1:message-persistent-p (state-message state))))

(define-hot write-http1-head ((state http1-connection) (answer plain-answer) (body t)) null
  (let ((head (plain-answer-head answer)))
    (cond ((and head (stays-p state)
                (plusp (http1:message-minor (the http1:message (state-message state)))))
           (append-octets (state-output state) head)
           (append-octets (state-output state) (date-lines state)))
          (t (write-new-head state answer body))))
  nil)

(defun connection-option (state)
  "Return the value of the header connection in an answer of STATE, or nil if the answer has no such
header. If the value is \"close\", the connection ends with the answer (RFC 9112 section 9.6)."
  (cond ((not (stays-p state))
         (setf (state-last state) t)
         "close")
        ((zerop (http1:message-minor (state-message state))) "keep-alive")))

(defun write-new-head (state answer body)
  "Do what WRITE-ANSWER-HEAD does, for an answer whose head has not been made yet, or was made with
another value of the header connection."
  (let ((headers (plain-answer-headers answer))
        (date (current-date-text)))
    (http1:write-response-head
     (state-output state) (plain-answer-http-status answer)
     (if (and date (null (find-header "date" headers)))
         (acons "date" date headers)
         headers)
     body
     :connection (connection-option state))))

;;; Answers

(defun end-request-answer (state whole)
  "Note that the answer to STATE's request has been written. WHOLE is false if the answer was cut
off."
  (let ((request (shiftf (state-request state) nil)))
    (when (shiftf (state-paused state) nil)
      (loop:start-reading (state-socket state)))
    (funcall (sink-done (state-sink state)) request)
    (end-answer state whole)))

(define-hot end-answer ((state http1-connection) (whole boolean)) null
  "Continue after an answer of STATE has been written. WHOLE is false if it was cut off."
  (let ((stays (and whole (stays-p state))))
    (cond (stays
           (http1:next-message (state-parser state))
           ;; nil if the message is too long to keep
           (setf (state-message state) (http1:parser-message (state-parser state)))
           (enter-phase state :idle)
           (when (shiftf (state-waits state) nil)
             (loop:start-reading (state-socket state))))
          (whole (end-http1 state "the connection ends with an answer"))
          (t (enter-phase state :over)
             (expel-state state "an answer was cut off"))))
  nil)

(define-hot write-answer ((state http1-connection) (answer plain-answer)) null
  "Write ANSWER completely, without its body if the response can have none."
  (let* ((body (plain-answer-body answer))
         (http-status (plain-answer-http-status answer))
         (message (the http1:message (state-message state))))
    ;; the answer to a HEAD describes the body that a GET would get
    (write-http1-head state answer (if (http1:bodiless-p "GET" http-status) nil (length body)))
    (unless (http1:bodiless-p (http1:message-http-method message) http-status)
      (append-octets (state-output state) body)))
  nil)

(defun answer-over-http1 (request answer)
  "The responder's ANSWER."
  (let ((state (http1-request-connection request)))
    (write-answer state answer)
    (end-request-answer state t)))

(defun chunked-answer-p (state)
  "True if the answer to STATE's request, which the handler returns in parts, is sent in chunks of
HTTP."
  (plusp (http1:message-minor (state-message state))))

(defun begin-over-http1 (request answer)
  "The responder's BEGIN. HTTP/1.0 has no chunks; there the end of the connection ends a body
without a length."
  (let ((state (http1-request-connection request)))
    (unless (chunked-answer-p state) (setf (state-last state) t))
    (write-http1-head state answer
                      (and (chunked-answer-p state)
                           (not (http1:bodiless-p "GET" (plain-answer-http-status answer)))
                           :chunked))))

(defun chunk-over-http1 (request octets)
  "The responder's CHUNK."
  (let* ((state (http1-request-connection request))
         (output (state-output state)))
    (cond ((ended-by-head-p request))
          ((chunked-answer-p state) (http1:write-chunk output octets 0 (length octets)))
          (t (append-octets output octets)))))

(defun end-over-http1 (request whole)
  "The responder's END."
  (let ((state (http1-request-connection request)))
    (when (and whole (chunked-answer-p state) (not (ended-by-head-p request)))
      (http1:write-last-chunk (state-output state)))
    (end-request-answer state whole)))

(defun unsent-over-http1 (request)
  "The responder's UNSENT."
  (loop:connection-unsent (state-socket (http1-request-connection request))))

;;; The answer to a request that is claimed

(define-hot head-over-http1 ((request http1-request) (head answer-head) (more list) length) null
  "The responder's HEAD. In HTTP/1.0 the end of the connection ends a body of unknown length."
  (let* ((state (http1-request-connection request))
         (output (state-output state))
         (chunked (and (null length) (chunked-answer-p state))))
    (setf (http1-request-chunked request)
          (and chunked (not (http1:bodiless-p (http-request-method request)
                                              (answer-head-http-status head))))
          (http1-request-begun request) t)
    (unless (or length chunked) (setf (state-last state) t))
    (append-octets output (answer-head-lines head))
    (http1:append-framed-fields output more
                                (cond ((http1:bodiless-p "GET" (answer-head-http-status head)) nil)
                                      (chunked :chunked)
                                      (t length))
                                (connection-option state))
    (append-octets output (date-lines state)))
  nil)

(define-hot part-over-http1 ((request http1-request) (octets octets) (start index) (end index)
                             (storable boolean) (last boolean))
    null
  "The responder's PART."
  (let* ((state (http1-request-connection request))
         (output (state-output state)))
    (cond ((= start end))
          ((http1:bodiless-p (http-request-method request) 200))
          ((http1-request-chunked request) (http1:write-chunk output octets start end))
          (t (append-octets output octets :start start :end end)))
    (when storable (give-octets-back octets))
    (when last
      (when (http1-request-chunked request) (http1:write-last-chunk output))
      (end-request-answer state t)))
  nil)

(defun pause-http1 (request)
  "The responder's PAUSE."
  (setf (state-paused (http1-request-connection request)) t))

(defun resume-http1 (request)
  "The responder's RESUME."
  (let ((state (http1-request-connection request)))
    (when (and (eq request (state-request state)) (shiftf (state-paused state) nil))
      (setf (state-since-ns state) (state-now state))
      (loop:start-reading (state-socket state)))))

(defun renew-body-time (request)
  "Restart the time limit of the body of REQUEST, a claimed request over HTTP/1.1, after a complete
message of a stream. Only a body in chunks gets more time, because a stream may take long, but each
of its messages may not. On the loop."
  (let ((state (http1-request-connection request)))
    (unless (integerp (http1:message-body (state-message state)))
      (setf (state-since-ns state) (state-now state)))))

(define-load-time-global **http1-responder**
    (make-responder :answer #'answer-over-http1 :begin #'begin-over-http1 :chunk #'chunk-over-http1
                    :end #'end-over-http1 :unsent #'unsent-over-http1
                    :head #'head-over-http1 :part #'part-over-http1
                    :pause #'pause-http1 :resume #'resume-http1))

;;; Errors

(defun refuse (state http-status text)
  "Answer the request of STATE's peer, which is faulty or late, with HTTP-STATUS and TEXT, and end
the connection."
  (let ((request (state-request state)))
    (setf (state-last state) t)
    (cond ((null request) (write-refusal state http-status text))
          ((http-request-claimed request) (refuse-claimed state http-status text))
          (t (answer request (text-answer http-status text))))))

(defun write-refusal (state http-status text)
  "Write the answer HTTP-STATUS with TEXT, the last answer on STATE."
  (let ((body (ascii-octets text)))
    (write-http1-head state (text-answer http-status text) (length body))
    (append-octets (state-output state) body)
    (end-http1 state text)))

(defun refuse-claimed (state http-status text)
  "Do what REFUSE does, for a claimed request that is still being received, and whose owner has lost
it. An answer that has begun is cut off."
  (let ((request (shiftf (state-request state) nil)))
    (funcall (sink-lost (state-sink state)) request text)
    (funcall (sink-done (state-sink state)) request)
    (cond ((http1-request-begun request)
           (enter-phase state :over)
           (expel-state state text))
          (t (write-refusal state http-status text)))))

(defun end-http1 (state text)
  "End STATE's connection because of TEXT, when its output has been sent."
  (enter-phase state :over)
  (close-state state text))

;;; Requests

(defun learn-head (message router)
  "A new KNOWN-HEAD for the request with the head MESSAGE to a server with ROUTER."
  (let* ((target (http1:message-target message))
         (http-method (http1:message-http-method message))
         (claim (and (router-claim router)
                     (funcall (router-claim router) http-method target
                              (http1:message-fields message))))
         (entry (and (null claim) (target-entry router target)))
         (handler (and entry (router-entry-handler entry))))
    (if claim
        (let ((refusal (and (plain-answer-p claim) claim)))
          (make-known-head message router (if refusal nil claim) nil nil (null refusal) refusal))
        (make-known-head message router
                         (find-route router http-method target)
                         (and handler (string= "GET" http-method)
                              (eql 0 (http1:message-body message))
                              (http-handler-prompt handler))
                         (target-query target)
                         nil nil))))

(define-hot known-head-of ((message http1:message) (router router)) known-head
  "The KNOWN-HEAD for the request with the head MESSAGE; for repeated heads MESSAGE caches it."
  (let ((known (http1:message-memo message)))
    (if (and (known-head-p known) (eq router (known-head-router known))
             (= (known-head-epoch known) (router-epoch router)))
        known
        (setf (http1:message-memo message) (learn-head message router)))))

(defun read-http1-request (state known)
  "Return the request on STATE with the head KNOWN, a known head."
  (let* ((message (known-head-message known))
         (http (state-http state))
         (request (make-http1-request :responder **http1-responder** :connection state
                                      :sink (http-loop-sink http) :options (http-loop-options http)
                                      :method (http1:message-http-method message)
                                      :target (http1:message-target message)
                                      :source known
                                      :claimed (known-head-claimed known)
                                      :route (known-head-route known))))
    (cond ((known-head-route known))
          ((known-head-refusal known)
           (setf (http-request-refusal request) (known-head-refusal known)))
          (t (note-refusal (http-loop-router http) request)))
    request))

(define-hot prompt-answer ((state http1-connection) (known known-head)) (or null plain-answer)
  "Return the answer to the request with the head KNOWN if it has a prompt handler and no observer
must see the request, else nil."
  (let ((prompt (known-head-prompt known)))
    (if (and prompt (funcall (sink-prompt-p (state-sink state)) (state-owner state)))
        (values (funcall prompt (known-head-query known)))
        nil)))

(define-hot begin-request ((state http1-connection)) null
  "Handle the head of a request, which has been received."
  (let* ((options (state-options state))
         (message (the http1:message (http1:parser-message (state-parser state)))))
    (setf (state-message state) message)
    (enter-phase state :body)
    (when (<= (the index (options-max-http1-requests options)) (incf (state-answered state)))
      (setf (state-last state) t))
    (if (< (the index (options-max-http1-target-octets options))
           (length (http1:message-target message)))
        (refuse state 414 (format nil "the target is longer than ~D octets"
                                  (options-max-http1-target-octets options)))
        (let ((known (known-head-of message (http-loop-router (state-http state)))))
          (unless (setf (state-prompt state) (prompt-answer state known))
            (begin-exchange state known)))))
  nil)

(defun begin-exchange (state known)
  "Begin the exchange for a request that has a handler and whose head was received; KNOWN is its
known head."
  (let* ((message (known-head-message known))
         (body (http1:message-body message))
         (limit (options-max-fallback-body-octets (state-options state)))
         (request (setf (state-request state) (read-http1-request state known))))
    (cond ((not (funcall (sink-begun (state-sink state)) (state-owner state) request)))
          ((eql 0 body))                ; it is whole
          ((null (http-request-route request)) (refuse-unrouted request))
          ((and (integerp body) (< limit body) (not (http-request-claimed request)))
           (refuse-body request limit))
          ((http1:message-expects-p message)
           (http1:write-response-head (state-output state) 100 '() nil)))))

(define-hot end-request ((state http1-connection)) null
  (let ((prompt (shiftf (state-prompt state) nil)))
    (enter-phase state :answer)
    (cond (prompt (write-answer state prompt)
                  (end-answer state t))
          (t (funcall (sink-whole (state-sink state)) (state-request state)))))
  nil)

(define-hot take-body ((state http1-connection) (octets octets) (start index) (end index)) null
  "Handle OCTETS from START to END, a part of the body of STATE's request."
  (let ((request (state-request state))
        (length (http1:message-body (the http1:message (state-message state)))))
    (cond ((http-request-claimed request)
           (incf (http-request-fill request) (- end start))
           (funcall (the function (sink-body (state-sink state))) request octets start end
                    (eql (http-request-fill request) length)))
          (t (receive-body request octets start end))))
  nil)

(define-hot take-event ((state http1-connection) (event symbol) (octets octets)) null
  "Handle EVENT, which STATE's parser has found in OCTETS."
  (let ((parser (state-parser state)))
    (ecase event
      (:head (begin-request state))
      (:body (take-body state octets (http1:parser-body-start parser)
                        (http1:parser-body-end parser)))
      (:end (end-request state))))
  nil)

(defun note-begun-head (state)
  "Note that all input has been processed. If STATE's peer has begun a request, start the time limit
of its head."
  (let ((began (http1:parser-begun-p (state-parser state))))
    (case (state-phase state)
      (:idle (when began
               (enter-phase state :head)
               (await-due state)))
      (:body (await-due state)))))

(defconstant +events-per-look+ 64
  "The number of parts of a request, such as chunks, after which the clock is read again.")

(define-hot read-requests ((state http1-connection) (octets octets) (start index) (end index))
    (values index boolean)
  "Process OCTETS from START to END, until a request ends that is not answered at once, or the turn
has no more time. Return two values: the position reached, and true if more octets could be
processed."
  (let ((at start) (events 0))
    (declare (type index at events))
    (loop
      (case (state-phase state)
        (:over (return (values end nil)))
        (:answer
         (when (= at end) (return (values at nil)))
         (setf (state-waits state) t)
         (loop:stop-reading (state-socket state))
         (return (values at t))))
      (when (and (state-paused state) (< at end))
        (loop:stop-reading (state-socket state))
        (return (values at t)))
      ;; the end of a body needs no octet after the last one, so it is processed even if no octet is
      ;; left
      (multiple-value-bind (next event) (http1:parse (state-parser state) octets at end)
        (setf at next)
        (unless event
          (note-begun-head state)
          (when (state-paused state) (loop:stop-reading (state-socket state)))
          (return (values at nil)))
        (take-event state event octets)
        (when (and (or (eq :end event) (zerop (mod (incf events) +events-per-look+)))
                   (< at end)
                   (loop:turn-long-p (state-loop state)))
          (return (values at t)))))))

(define-hot http1-input ((socket loop:connection) (octets octets) (start index) (end index))
    (values index boolean)
  "The handler's INPUT."
  (let ((state (the http1-connection (loop:connection-user socket))))
    (multiple-value-prog1
        (handler-case (read-requests state octets start end)
          (http1:http1-error (error)
            (refuse state (http1:http1-error-status error) (http1:http1-error-text error))
            (values end nil)))
      (measure-state state))))

;;; The connection

(define-hot http1-fill ((socket loop:connection)) null
  "The handler's FILL. Note the time, because the peer accepts output. If a request is claimed, let
its owner write more."
  (let ((state (the http1-connection (loop:connection-user socket))))
    (setf (state-sent-ns state) (state-now state))
    (measure-state state)
    (let ((request (state-request state)))
      (when (and request (http-request-claimed request))
        (funcall (the function (sink-writable (state-sink state))) request)))
    nil))

(defun http1-closed (socket reason)
  "The handler's CLOSED."
  (let* ((state (loop:connection-user socket))
         (request (shiftf (state-request state) nil)))
    (loop:stop-timer (state-loop state) (state-timer state))
    (enter-phase state :over)
    (when request
      (funcall (sink-lost (state-sink state)) request "the connection has ended")
      (funcall (sink-done (state-sink state)) request))
    (funcall (sink-closed (state-sink state)) (state-owner state) reason)))

(define-load-time-global **http1-handler**
    (loop:make-handler :input #'http1-input :fill #'http1-fill :closed #'http1-closed))

(defun begin-http1 (owner http socket since-ns)
  "Make SOCKET, on which only the first octets have been received, a connection that speaks HTTP/1.1
and was begun at SINCE-NS. Return the HTTP1-CONNECTION. HTTP is an HTTP-LOOP. OWNER is the argument
of the sink's functions."
  (let* ((options (http-loop-options http))
         (state (make-http1-connection
                 owner http socket
                 (http1:make-parser :server
                                    :max-head-octets (options-max-http1-head-octets options)
                                    :max-fields (options-max-http1-fields options)))))
    (setf (loop:connection-user socket) state
          (loop:connection-handler socket) **http1-handler**
          (state-timer state) (loop:make-lasting-timer (state-loop state) #'state-due state)
          (state-since-ns state) since-ns
          (state-sent-ns state) (state-now state))
    (await-due state)
    state))

(defun http1-connection-octets (state)
  "Return the approximate number of octets of memory that STATE keeps."
  (let ((message (state-message state)))
    (+ +http1-octets+
       (http1:parser-octets (state-parser state))
       ;; counted twice, since the request's headers are made from the fields
       (if message (* 2 (http1:message-octets message)) 0))))

(defconstant +drain-head-ns+ 1000000000
  "The maximum time, in nanoseconds, that the rest of a request's head may take when its connection
drains.")

(defun drain-http1 (state)
  "Make the answer under way on STATE the last answer. If STATE has no request, end it now, or after
+DRAIN-HEAD-NS+ if a part of a head has been received."
  (setf (state-last state) t)
  (case (state-phase state)
    (:idle (end-http1 state "drained"))
    (:head (if (http1:parser-begun-p (state-parser state))
               (look-again state (+ (state-now state) +drain-head-ns+))
               (end-http1 state "drained")))))
