;;;; HTTP/1.1 at a server (RFC 9112), a dialect of its links (wire/link.lisp). A server speaks it if
;;;; it has somebody to answer plain requests (site.lisp). Each request is a plain one, as over
;;;; HTTP/2; what is here reads it and writes its answer.
;;;;
;;;; A connection has one request at a time. What comes behind it, pipelined, waits until it is
;;;; answered; meanwhile nothing more is read, so a peer makes us keep one read at most. After
;;;; an error, and after an answer that comes before its request is whole, where the next request
;;;; begins cannot be known: the connection ends with that answer.
;;;;
;;;; Phases:  :idle → :head → :body → :answer → :idle, or :over. One timer for each connection looks
;;;; at the phase when the earliest time-out of it may be due; a request that takes no longer than
;;;; that costs no timer.

(in-package #:clgrpc.server)

(defstruct (http1-state (:conc-name state-) (:constructor make-http1-state (link parser))
                        (:copier nil))
  "What is kept of a connection that speaks HTTP/1.1."
  (link nil :type server-link :read-only t) ; the connection
  (parser nil :type http1:parser :read-only t) ; of its requests
  (phase :head :type (member :idle :head :body :answer :over)) ; see above
  (since-ns 0 :type nanoseconds)        ; when the phase began
  (message nil :type (or null http1:message)) ; the head of the request under way
  (call nil :type (or null server-call)) ; that it is, until it has been answered
  (prompt nil :type (or null plain-answer)) ; its answer, if that was there at once
  (answered 0 :type index)              ; how many requests have been taken
  (last nil :type boolean)              ; the connection ends with the answer to come
  (waits nil :type boolean)             ; input waits until that has been given
  (sent-ns 0 :type nanoseconds)         ; when output last left
  (timer nil :type (or null timer))     ; see STATE-DUE
  (timer-ns 0 :type nanoseconds))       ; when it comes due

(declaim (sb-ext:freeze-type http1-state))

(defmethod print-object ((state http1-state) stream)
  (print-unreadable-object (state stream :type t)
    (format stream "~A, ~(~A~)" (wire:link-peer (state-link state)) (state-phase state))))

(defun speaks-http1-p (hub)
  "True if connections of HUB may speak HTTP/1.1."
  (and (hub-site hub) (options-http1 (hub-options hub))))

(defconstant +http1-octets+ 1024
  "The memory of a connection that speaks HTTP/1.1 and has no request.")

(define-hot (state-now :inline t) ((state http1-state)) nanoseconds
  (loop:event-loop-now (link-loop (state-link state))))

(define-hot (enter-phase :inline t) ((state http1-state) (phase symbol)) null
  (setf (state-phase state) phase
        (state-since-ns state) (state-now state))
  nil)

(define-hot (state-output :inline t) ((state http1-state)) buffer
  "The buffer for what is sent to STATE's peer."
  (loop:connection-output (the loop:connection (wire:link-socket (state-link state)))))

;;; Time-outs

(defun phase-seconds (options phase)
  "How long the PHASE of a connection may take, as OPTIONS say."
  (ecase phase
    (:idle (options-http1-idle-seconds options))
    (:head (options-http1-head-timeout-seconds options))
    (:body (options-http1-body-timeout-seconds options))
    ((:answer :over) (options-http1-send-timeout-seconds options))))

(defun phase-due-ns (state)
  "When STATE is to be looked at, unless its phase changes before."
  (let ((options (hub-options (link-owner (state-link state)))))
    (+ (state-since-ns state) (seconds-ns (phase-seconds options (state-phase state))))))

(defun look-again (state due-ns)
  "Have STATE looked at when DUE-NS has come."
  (setf (state-timer-ns state) due-ns)
  (schedule-timer (loop:event-loop-wheel (link-loop (state-link state))) (state-timer state)
                  due-ns))

(defun await-due (state)
  "See to it that STATE is looked at when its phase may have taken too long."
  (let ((due (phase-due-ns state)))
    (when (or (not (timer-pending-p (state-timer state))) (< due (state-timer-ns state)))
      (look-again state due))))

(defun state-due (state)
  "The function of STATE's timer: end what takes too long."
  (let* ((now (state-now state))
         (link (state-link state))
         (patience (seconds-ns (options-http1-send-timeout-seconds
                                (hub-options (link-owner link))))))
    (cond ((wire:link-failure link))
          ((plusp (loop:connection-unsent (wire:link-socket link)))
           (if (<= (+ (state-sent-ns state) patience) now)
               (wire:expel-link link "the peer does not take its answers")
               (look-again state (+ (state-sent-ns state) patience))))
          ((member (state-phase state) '(:answer :over)) (look-again state (+ now patience)))
          ((< now (phase-due-ns state)) (look-again state (phase-due-ns state)))
          ((eq :idle (state-phase state)) (wire:close-link link "no request for long"))
          (t (refuse state 408 "the request takes too long")))))

;;; The head of an answer

(sb-ext:define-load-time-global **date** (cons 0 ""))
(declaim (type cons **date**))

(defun date-text (unix-seconds)
  "UNIX-SECONDS as HTTP writes a date (RFC 9110 section 5.6.7)."
  (multiple-value-bind (second minute hour date month year day)
      (decode-universal-time (+ unix-seconds #.(encode-universal-time 0 0 0 1 1 1970 0)) 0)
    (format nil "~A, ~2,'0D ~A ~D ~2,'0D:~2,'0D:~2,'0D GMT"
            (nth day '("Mon" "Tue" "Wed" "Thu" "Fri" "Sat" "Sun"))
            date
            (nth (1- month) '("Jan" "Feb" "Mar" "Apr" "May" "Jun" "Jul" "Aug" "Sep" "Oct" "Nov"
                              "Dec"))
            year hour minute second)))

(defun current-date ()
  "The date now as HTTP writes it, or nil where there is none."
  (let ((now (loop:unix-seconds)) (last **date**))
    (cond ((null now) nil)
          ((eql now (car last)) (cdr last))
          (t (cdr (setf **date** (cons now (date-text now))))))))

(defconstant +date-look-ns+ 20000000
  "How long a loop takes the date to be the same.")

(defun look-at-date (hub now)
  "Have the DATE-LINES of HUB say the date at NOW, the time of its loop."
  (let ((date (current-date)))
    (setf (hub-date-due-ns hub) (+ now +date-look-ns+)
          (hub-date-lines hub) (http1:last-head-octets (and date `(("date" . ,date)))))))

(define-hot (date-lines :inline t) ((state http1-state)) octets
  "The last lines of the head of an answer: the date, and an empty line."
  (let ((hub (link-owner (state-link state))) (now (state-now state)))
    (declare (type hub hub))
    (when (<= (hub-date-due-ns hub) now) (look-at-date hub now))
    (hub-date-lines hub)))

(define-hot (stays-p :inline t) ((state http1-state)) boolean
  "True if STATE goes on after the answer that is given now."
  (and (eq :answer (state-phase state))
       (not (state-last state))
       (http1:message-persistent-p (state-message state))))

(define-hot write-http1-head ((state http1-state) (answer plain-answer) (body t)) null
  "Write the head of ANSWER, whose body is BODY, as WRITE-RESPONSE-HEAD has it."
  (let ((head (plain-answer-head answer)))
    (cond ((and head (stays-p state)
                (plusp (http1:message-minor (the http1:message (state-message state)))))
           (append-octets (state-output state) head)
           (append-octets (state-output state) (date-lines state)))
          (t (write-new-head state answer body))))
  nil)

(defun write-new-head (state answer body)
  "As WRITE-ANSWER-HEAD, of an answer whose head is not there yet, or not with what it is to say of
the connection."
  (let ((headers (plain-answer-headers answer))
        (date (current-date)))
    (http1:write-response-head
     (state-output state) (plain-answer-http-status answer)
     (if (and date (null (find-header "date" headers)))
         (acons "date" date headers)
         headers)
     body
     :connection (cond ((not (stays-p state)) "close")
                       ((zerop (http1:message-minor (state-message state))) "keep-alive")))))

;;; Answers

(defun end-call-answer (state call whole)
  "The answer to CALL, STATE's, has been written; WHOLE is false if it was cut off."
  (setf (state-call state) nil)
  (retire-call call (state-link state))
  (end-answer state whole))

(define-hot end-answer ((state http1-state) (whole boolean)) null
  "An answer of STATE has been written; WHOLE is false if it was cut off."
  (let ((stays (and whole (stays-p state)))
        (link (state-link state)))
    (cond (stays
           (http1:next-message (state-parser state))
           ;; nil if it is too long to be kept
           (setf (state-message state) (http1:parser-message (state-parser state)))
           (enter-phase state :idle)
           (when (shiftf (state-waits state) nil)
             (loop:start-reading (wire:link-socket link))))
          (whole (end-http1 state "the connection ends with an answer"))
          (t (enter-phase state :over)
             (wire:expel-link link "an answer was cut off"))))
  nil)

(defun call-http1-state (call)
  "The STATE that CALL, a request over HTTP/1.1, is of."
  (server-link-speech (wire-call-link call)))

(defun asks-for-head-p (message)
  (string= "HEAD" (http1:message-http-method message)))

(define-hot write-answer ((state http1-state) (answer plain-answer)) null
  "Write ANSWER, whole, but for its body if it can have none."
  (let* ((body (plain-answer-body answer))
         (http-status (plain-answer-http-status answer))
         (none (or (= 204 http-status) (= 304 http-status))))
    (write-http1-head state answer (if none nil (length body)))
    (unless (or none (asks-for-head-p (state-message state)))
      (append-octets (state-output state) body)))
  nil)

(defun answer-over-http1 (call answer)
  "The carrier's ANSWER."
  (let ((state (call-http1-state call)))
    (write-answer state answer)
    (end-call-answer state call t)))

(defun chunked-answer-p (call)
  "True if the answer to CALL, in chunks of the handler's, is so on the line, too."
  (plusp (http1:message-minor (state-message (call-http1-state call)))))

(defun begin-over-http1 (call answer)
  "The carrier's BEGIN. HTTP/1.0 has no chunks: such a body ends with the connection."
  (let* ((state (call-http1-state call)))
    (unless (chunked-answer-p call) (setf (state-last state) t))
    (write-http1-head state answer
                       (and (chunked-answer-p call)
                            (not (member (plain-answer-http-status answer) '(204 304)))
                            :chunked))))

(defun chunk-over-http1 (call octets)
  "The carrier's CHUNK."
  (let ((output (state-output (call-http1-state call))))
    (cond ((ended-by-head-p call))
          ((chunked-answer-p call) (http1:write-chunk output octets 0 (length octets)))
          (t (append-octets output octets)))))

(defun end-over-http1 (call whole)
  "The carrier's END."
  (let ((state (call-http1-state call)))
    (when (and whole (chunked-answer-p call) (not (ended-by-head-p call)))
      (http1:write-last-chunk (state-output state)))
    (end-call-answer state call whole)))

(defun unsent-over-http1 (call)
  "The carrier's UNSENT."
  (let ((link (wire-call-link call)))
    (if link (loop:connection-unsent (wire:link-socket link)) 0)))

(define-load-time-global **http1-carrier**
    (make-carrier :answer #'answer-over-http1 :begin #'begin-over-http1 :chunk #'chunk-over-http1
                  :end #'end-over-http1 :unsent #'unsent-over-http1))

;;; Errors

(defun refuse (state http-status text)
  "Answer what STATE's peer sends with HTTP-STATUS and TEXT, and end the connection."
  (setf (state-last state) t)
  (if (state-call state)
      (answer-plainly (state-call state) (text-answer http-status text))
      (let ((body (ascii-octets text)))
        (write-http1-head state (text-answer http-status text) (length body))
        (append-octets (state-output state) body)
        (end-http1 state text))))

(defun end-http1 (state text)
  "End STATE's connection when its output has left, because of TEXT."
  (enter-phase state :over)
  (wire:close-link (state-link state) text))

;;; Requests

(defun learn-head (message site)
  "What is known of the request whose head is MESSAGE, of a server with SITE."
  (let* ((target (http1:message-target message))
         (http-method (http1:message-http-method message))
         (entry (target-entry site target))
         (handler (and entry (site-entry-handler entry))))
    (make-known-head message site
                     (look-up-route site http-method target)
                     (and handler (string= "GET" http-method) (eql 0 (http1:message-body message))
                          (http-handler-prompt handler))
                     (target-query target))))

(define-hot known-head-of ((message http1:message) (site (or null site))) known-head
  "What is known of the request whose head is MESSAGE, which may be repeated and so remembers it."
  (let ((known (http1:message-memo message)))
    (if (and (known-head-p known) (eq site (known-head-site known)))
        known
        (setf (http1:message-memo message) (learn-head message site)))))

(defun read-http1-request (known)
  "The plain request that KNOWN, a known head, is of."
  (let ((message (known-head-message known)))
    (make-http-request :carrier **http1-carrier**
                       :method (http1:message-http-method message)
                       :target (http1:message-target message)
                       :source known
                       :refusal **not-found**)))

(defun make-http1-call (state known)
  "Make the call that the request is whose head is KNOWN."
  (let* ((link (state-link state))
         (hub (link-owner link))
         (request (read-http1-request known))
         (route (or (known-head-route known)
                    (progn (note-refusal (hub-site hub) request) nil)))
         (call (make-server-call :rpc-method (and route (route-method route)) :endpoint hub
                                 :link link :route route :fields #()
                                 :born-ns (loop:event-loop-now (link-loop link))
                                 :operations **request-operations**)))
    (count-call link hub)
    (begin-plain-call call request)
    (rpc:observe call-begun (wire:endpoint-observer hub) call)
    (rpc:observe headers-received (wire:endpoint-observer hub) call)
    call))

(define-hot prompt-answer ((state http1-state) (known known-head)) (or null plain-answer)
  "The answer to the request whose head is KNOWN, if it has a prompt handler, and nobody is to be
told of it; else nil."
  (let* ((prompt (known-head-prompt known))
         (link (state-link state))
         (hub (link-owner link)))
    (declare (type hub hub))
    (if (and prompt
             (null (wire:endpoint-observer hub))
             (not (tracing-p :call :server))
             (not (output-waits-p link)))
        (values (funcall prompt (known-head-query known)))
        nil)))

(define-hot begin-request ((state http1-state)) null
  "The head of a request has come."
  (let* ((hub (link-owner (state-link state)))
         (options (hub-options (the hub hub)))
         (message (the http1:message (http1:parser-message (state-parser state)))))
    (setf (state-message state) message)
    (enter-phase state :body)
    (when (<= (the index (options-max-http1-requests options)) (incf (state-answered state)))
      (setf (state-last state) t))
    (if (< (the index (options-max-http1-target-octets options))
           (length (http1:message-target message)))
        (refuse state 414 (format nil "the target is longer than ~D octets"
                                  (options-max-http1-target-octets options)))
        (let ((known (known-head-of message (hub-site hub))))
          (unless (setf (state-prompt state) (prompt-answer state known))
            (begin-http1-call state known)))))
  nil)

(defun begin-http1-call (state known)
  "The head of a request has come that is to be a call; KNOWN is what is known of it."
  (let* ((link (state-link state))
         (hub (link-owner link))
         (message (known-head-message known))
         (body (http1:message-body message))
         (limit (options-max-fallback-body-octets (hub-options hub)))
         (call (make-http1-call state known)))
    (setf (state-call state) call)
    (cond ((refuse-call-p hub link call))
          ((eql 0 body))                ; it is whole
          ((not (answered-p call))
           (answer-plainly call (http-request-refusal (call-http-request call))))
          ((and (integerp body) (< limit body)) (refuse-body call limit))
          ((http1:message-expects-p message)
           (http1:write-response-head (state-output state) 100 '() nil)))))

(define-hot end-request ((state http1-state)) null
  "The request is whole."
  (let ((prompt (shiftf (state-prompt state) nil)))
    (enter-phase state :answer)
    (cond (prompt (write-answer state prompt)
                  (end-answer state t))
          (t (end-of-request (the server-call (state-call state))))))
  nil)

(define-hot take-event ((state http1-state) (event symbol) (octets octets)) null
  "Take what STATE's parser has found in OCTETS."
  (let ((parser (state-parser state)))
    (ecase event
      (:head (begin-request state))
      (:body (receive-plain-body (state-call state) octets (http1:parser-body-start parser)
                                 (http1:parser-body-end parser)))
      (:end (end-request state))))
  nil)

(defun note-begun-head (state)
  "All of the input has been taken. If STATE's peer has begun a request, see to the time it takes."
  (let ((began (http1:parser-begun-p (state-parser state))))
    (case (state-phase state)
      (:idle (when began
               (enter-phase state :head)
               (await-due state)))
      (:body (await-due state)))))

(defconstant +events-per-look+ 64
  "After so many parts of a request, such as chunks, we look what time it is.")

(define-hot read-requests ((state http1-state) (octets octets) (start index) (end index))
    (values index boolean)
  "Take OCTETS from START to END, up to the end of a request that is not answered at once, or of the
time that a turn has for them. Return where that is, and true if there is more."
  (let ((at start) (events 0))
    (declare (type index at events))
    (loop
      (case (state-phase state)
        (:over (return (values end nil)))
        (:answer
         (when (= at end) (return (values at nil)))
         (setf (state-waits state) t)
         (loop:stop-reading (wire:link-socket (state-link state)))
         (return (values at t))))
      (multiple-value-bind (next event) (http1:parse (state-parser state) octets at end)
        (setf at next)
        (unless event
          (note-begun-head state)
          (return (values at nil)))
        (take-event state event octets)
        (when (and (or (eq :end event) (zerop (mod (incf events) +events-per-look+)))
                   (< at end)
                   (wire:read-enough-p (state-link state)))
          (return (values at t)))))))

(define-hot http1-input ((socket loop:connection) (octets octets) (start index) (end index))
    (values index boolean)
  "The handler's INPUT."
  (let ((state (server-link-speech (the server-link (loop:connection-user socket)))))
    (multiple-value-prog1
        (handler-case (read-requests state octets start end)
          (http1:http1-error (error)
            (refuse state (http1:http1-error-status error) (http1:http1-error-text error))
            (values end nil)))
      (wire:measure-link (state-link state)))))

;;; The connection

(defun opens-http1-p (octets start end)
  "True if OCTETS begin with text, which is a request or should be one; but \"PRI \" begins HTTP/2.
:MORE if that cannot be told yet."
  (let ((count (min 4 (- end start))))
    (cond ((null (mismatch #.(ascii-octets "PRI ") octets :end1 count :start2 start
                                                          :end2 (+ start count)))
           (if (< count 4) :more nil))
          ((or (<= 32 (aref octets start) 126) (member (aref octets start) '(9 10 13))) t))))

(defun begin-http1 (link)
  "The dialect's BEGIN."
  (let* ((options (hub-options (link-owner link)))
         (state (make-http1-state link (http1:make-parser
                                :server
                                :max-head-octets (options-max-http1-head-octets options)
                                :max-fields (options-max-http1-fields options)))))
    (setf (state-timer state)
          (loop:make-lasting-timer (link-loop (state-link state)) #'state-due state)
          (state-since-ns state) (wire:link-born-ns link)
          (state-sent-ns state) (state-now state)
          (server-link-speech link) state)
    (await-due state)))

(define-hot http1-fill ((socket loop:connection)) null
  "The handler's FILL: the peer takes output."
  (let ((state (server-link-speech (the server-link (loop:connection-user socket)))))
    (setf (state-sent-ns state) (state-now state))
    (wire:measure-link (state-link state))
    nil))

(defun http1-closed (socket reason)
  "The handler's CLOSED."
  (let* ((link (loop:connection-user socket))
         (state (server-link-speech link))
         (call (state-call state)))
    (cancel-timer (loop:event-loop-wheel (link-loop link)) (state-timer state))
    (enter-phase state :over)
    (when call
      (setf (state-call state) nil)
      (lose-call call "the connection has ended")
      (retire-call call link))
    (wire:link-closed socket reason)))

(defun http1-octets (link)
  "The dialect's OCTETS."
  (let* ((state (server-link-speech link))
         (message (and state (state-message state))))
    (+ +http1-octets+
       (if state (http1:parser-octets (state-parser state)) 0)
       (if message
           ;; its strings, and the headers of the request, which are made of the fields
           (+ (* 8 (length (http1:message-target message)))
              (* 2 (wire:fields-octets (http1:message-fields message))))
           0))))

(defun drain-http1 (link)
  "The dialect's DRAIN: the answer under way is the last."
  (let ((state (server-link-speech link)))
    (setf (state-last state) t)
    (case (state-phase state)
      (:idle (end-http1 state "drained"))
      (:head (unless (http1:parser-begun-p (state-parser state)) (end-http1 state "drained")))
      (:answer (end-open-response (state-call state))))))

(defun abandon-http1 (link status text)
  "The dialect's ABANDON."
  (let ((call (state-call (server-link-speech link))))
    (when call (operate abort call status text :local))))

(define-load-time-global **http1**
    (wire:make-dialect
     :begin #'begin-http1
     :handler (loop:make-handler :input #'http1-input :fill #'http1-fill :closed #'http1-closed)
     :octets #'http1-octets :drain #'drain-http1 :abandon #'abandon-http1))
