;;;; What became of a call, for people and their programs: CALL-STAGES, where its time went and how
;;;; much of it got across, and EXPLAIN-CALL, the line that errors say it in. Everything is computed
;;;; when somebody asks, from what stage.lisp keeps.
;;;;
;;;; A call that runs may be asked from any thread while its loop goes on: what is told then may be
;;;; of two moments, never wrong by more than what happens between them.

(in-package #:clgrpc.rpc)

(defun call-stages (call)
  "Where the time of CALL went, or has gone so far, as a plist; times are in
seconds, those of the loop's turns.
:TOTAL from its beginning to its end, or to now.
:STAGE what it is at, or was at when it ended otherwise than :ok: one of the stages.
Stages of a client's call: :RESOLVE (the name was looked up), :CONNECT, :HANDSHAKE (of TLS and
HTTP/2), :BACK-OFF (until the next attempt to connect), :QUEUE (for a stream of the connection, past
the server's limit), :WAIT (from the request's headers to the first of the response), :RECEIVE (the
rest of the response). :SEND as :STAGE means that the peer does not take what there is to send.
Stages of a handler's call: :RECEIVE (until the handler may start), :QUEUE (for a thread, or its
turn on the loop), :ANSWER (from the start of the handler to the first of its answer), :SEND (the
rest).
Stages that took no time that can be told are left out.
:ATTEMPTS to connect that CALL has waited for; :MESSAGES-SENT and :MESSAGES-RECEIVED; :UNSENT-OCTETS
of messages that the peer has not taken; :REMAINING until the deadline, negative past it. A call
within the image, which would pay more for the clock than for all else, has its :STAGE only, :QUEUE
or :ANSWER. From any thread."
  (operate stages call))

(defgeneric call-began-ns (call)
  (:documentation "When the handler of CALL, a server's, began to run, a time, or nil."))

(defun wire-unsent-octets (call)
  "The operation UNSENT-OCTETS."
  (let ((extra (call-extra call))
        (stream (wire-call-stream call)))
    (+ (if extra (+ (extra-unsent-octets extra) (extra-outbox-octets extra)) 0)
       (if stream (http2:stream-queued-octets stream) 0))))

(defun stuck-p (call)
  "True if CALL, which has sent its headers, has more to send than its peer takes."
  (let ((stream (wire-call-stream call)))
    (and stream (plusp (http2:stream-queued-octets stream)))))

(defun wire-stage (call)
  "The operation STAGE."
  (let ((marks (wire-call-marks call)))
    (if (client-p call)
        (cond ((not (marked-p marks +headers+))
               (let ((clock (endpoint-clock (wire-call-endpoint call))))
                 (if clock (wait-clock-stage clock) :queue)))
              ((stuck-p call) :send)
              ((marked-p marks +answer+) :receive)
              (t :wait))
        (cond ((not (marked-p marks +due+)) :receive)
              ((null (call-began-ns call)) :queue)
              ((or (stuck-p call) (marked-p marks +headers+)) :send)
              (t :answer)))))

;;; The plist

(defun call-waits (call)
  "What CALL, a client's, waited for before it had a stream: totals as in a WAIT-CLOCK, and the
attempts to connect, or nil."
  (let* ((extra (call-extra call))
         (wait (and extra (extra-wait extra))))
    (cond ((null wait) nil)
          ((wait-clock-done wait)
           (values (wait-clock-totals wait) (wait-clock-attempts wait)))
          (t (clock-difference (endpoint-clock (wire-call-endpoint call)) wait
                               (operate now call))))))

(defun client-spans (call total)
  "The stages of CALL, a client's, so far: a list of (stage . ns), oldest first."
  (let* ((marks (wire-call-marks call))
         (headers (mark-ns marks +headers+))
         (answer (mark-ns marks +answer+))
         (waits (call-waits call))
         (named (if waits
                    (loop for stage in *waiting-stages*
                          for ns across waits
                          unless (eq stage :queue) collect (cons stage ns))
                    '())))
    (append named
            (list (cons :queue (- (or headers total) (reduce #'+ named :key #'cdr))))
            (when headers (list (cons :wait (- (or answer total) headers))))
            (when answer (list (cons :receive (- total answer)))))))

(defun server-spans (call total)
  "As CLIENT-SPANS, of a handler's CALL."
  (let* ((marks (wire-call-marks call))
         (due (mark-ns marks +due+))
         (headers (mark-ns marks +headers+))
         (began-ns (call-began-ns call))
         (began (and began-ns (min total (- began-ns (wire-call-born-ns call)))))
         (answered (and headers (min total headers))))
    (append (list (cons :receive (or due total)))
            (when due (list (cons :queue (- (or began total) due))))
            (when began (list (cons :answer (- (or answered total) began))))
            (when (and began answered) (list (cons :send (- total answered)))))))

(defun messages-sent (call)
  (if (sends-one-p call)
      (if (if (client-p call)
              (marked-p (wire-call-marks call) +headers+)
              (eq :ok (call-status call)))
          1
          0)
      (ash (wire-call-speech call) (- (integer-length (1- +spoken-message+))))))

(defun messages-received (call)
  (let ((extra (call-extra call))
        (client (client-p call))
        (kind (rpc-method-kind (call-rpc-method call))))
    (cond ((not (or (eq kind :unary) (eq kind (if client :client-streaming :server-streaming))))
           (if extra (extra-arrived extra) 0))
          ((if client (eq :ok (call-status call)) (marked-p (wire-call-marks call) +due+)) 1)
          (t 0))))

(defconstant +shortest-told-ns+ 1000
  "Stages shorter than that are of one turn of the loop.")

(defun wire-stages (call)
  "The operation STAGES."
  (let* ((outcome (call-outcome call))
         (status (call-status call))
         (born (wire-call-born-ns call))
         (total (cond ((mark-ns (wire-call-marks call) +end+))
                      ((zerop born) 0)  ; its loop has not begun it yet
                      (t (max 0 (- (operate now call) born)))))
         (unsent (if outcome (outcome-unsent outcome) (call-unsent-octets call))))
    (append
     (list :total (ns-seconds total))
     (unless (eq :ok status)
       (list :stage (if outcome (outcome-stage outcome) (call-stage call))))
     (loop for (stage . ns) in (if (client-p call)
                                   (client-spans call total)
                                   (server-spans call total))
           when (>= ns +shortest-told-ns+)
             append (list stage (ns-seconds ns)))
     (let ((attempts (nth-value 1 (call-waits call))))
       (when (and attempts (plusp attempts)) (list :attempts attempts)))
     (when (call-rpc-method call)
       (list :messages-sent (messages-sent call) :messages-received (messages-received call)))
     (when (plusp unsent) (list :unsent-octets unsent))
     (when (plusp (call-deadline call))
       (list :remaining (ns-seconds (- (call-deadline call) (+ born total))))))))

;;; The line

(defparameter *client-stage-texts*
  '(:resolve "waiting for the name to be looked up" :connect "waiting for a connection"
    :handshake "waiting for the handshake" :back-off "waiting for the next attempt to connect"
    :answer "waiting for the handler"
    :queue "waiting for a stream" :send "waiting for the server to take the request"
    :wait "waiting for the response" :receive "receiving the response"))

(defparameter *server-stage-texts*
  '(:receive "waiting for the request" :queue "waiting for a thread"
    :answer "waiting for the handler" :send "sending the answer"))

(defconstant +shortest-printed-ns+ 500000)

(defun stage-text (role stage)
  "What a call at STAGE does, for the end that is ROLE, :client or :server; nil without STAGE."
  (getf (ecase role (:client *client-stage-texts*) (:server *server-stage-texts*)) stage))

(defun write-spans (stream plist)
  "Write the stages of PLIST, as CALL-STAGES returns it, that are not too short to matter."
  (format stream "~{~(~A~) ~,3F s~^, ~}"
          (loop for (name value) on plist by #'cddr
                when (and (floatp value)
                          (not (member name '(:total :remaining)))
                          (>= value (ns-seconds +shortest-printed-ns+)))
                  append (list (substitute #\Space #\- (string name)) value))))

(defun trouble-text (call)
  "What had gone wrong with what CALL waited for, unless the message of its status says so."
  (let* ((outcome (call-outcome call))
         (trouble (if outcome (outcome-trouble outcome) (call-trouble call))))
    (and trouble
         (not (and outcome (search trouble (outcome-message outcome))))
         trouble)))

(defun explain-call (call)
  "What became of CALL in one line: how long it took, what it was at and what had gone wrong with
that, where the time went; or nil if it keeps no account."
  (let ((plist (call-stages call)))
    (when plist
      (destructuring-bind (&key total stage attempts messages-sent messages-received unsent-octets
                             remaining &allow-other-keys)
          plist
        (let ((spans (with-output-to-string (stream) (write-spans stream plist))))
          (format nil "~@[after ~,3F s~]~:[~;, ~]~@[~A~]~@[ (~A)~]~:[: ~A~;~*~]~
                       ~@[; attempts to connect: ~D~]~@[; messages sent: ~D~]~@[, received: ~D~]~
                       ~@[; octets not taken: ~D~]~@[; remaining: ~,3F s~]"
                  total (and total stage) (stage-text (call-role call) stage)
                  (trouble-text call) (string= "" spans) spans attempts messages-sent
                  messages-received unsent-octets
                  (and remaining (plusp remaining) remaining)))))))

(defun rpc-error-stages (error)
  "What CALL-STAGES says of the call that ERROR, an RPC-ERROR, is about; nil if there was none. From
any thread."
  (and (rpc-error-call error) (call-stages (rpc-error-call error))))

(defun rpc-error-reason (error)
  "What became of the call that ERROR, an RPC-ERROR, is about, as a line of text: how long it took,
what it was waiting for, what had gone wrong with that, where the time went; nil if there was none.
ERROR's report ends with it. From any thread."
  (and (rpc-error-call error) (explain-call (rpc-error-call error))))
