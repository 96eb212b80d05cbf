;;;; Asking DNS servers one question. A query is sent to the servers in turn over UDP, each time
;;;; from a new port and with a new id (RFC 5452): three times, or once to each server if there are
;;;; more. If an answer is truncated, the query is sent to its server over TCP. A message without
;;;; the query's id and question is ignored; the kernel drops messages from other addresses. The
;;;; owner is called exactly once, on the loop.
;;;;
;;;; A fifth of a query's time is for the first try, and the other tries share the rest: if the
;;;; query may take five seconds, a lost datagram costs one. If a server cannot be reached, refuses
;;;; or fails, the next server is asked at once.

(in-package #:clgrpc.dns)

(defconstant +tries+ 3
  "The number of times that a query is sent. If there are more servers than this number, the query
is sent once to each server.")

(defstruct (query (:constructor %make-query) (:copier nil))
  "A question under way."
  (loop nil :type loop:event-loop :read-only t) ; the query's loop
  ;; the addresses of the servers; the server to ask next is first
  (servers '() :type list)
  (tries 0 :type (integer 0 64))        ; the number left
  (name (make-octets 1) :type octets :read-only t) ; the name in question
  (type 0 :type (unsigned-byte 16) :read-only t)   ; the type of records
  (function nil :type function :read-only t)       ; (outcome data): see ASK
  (end-ns 0 :type nanoseconds :read-only t)        ; the time limit
  (attempt 0 :type index)               ; the number of the try under way
  (id 0 :type (unsigned-byte 16))       ; the id of the message sent last
  (extended t :type boolean)            ; true until a server has rejected the record OPT
  (timer nil :type (or null timer))     ; when the timer rings, the try has failed
  ;; the socket of the try under way, if that is over UDP
  (udp-socket nil :type (or null loop:udp-socket))
  (connection nil :type (or null loop:connection)) ; the connection of the try, if that is over TCP
  (outcome :no-answer :type outcome)    ; the outcome of the last try
  (text "" :type string)                ; why the last try has failed
  (done nil :type boolean))             ; FUNCTION has been called

(declaim (sb-ext:freeze-type query))

(define-printer (query query)
  "~A ~A" (name-text (query-name query)) (type-text (query-type query)))

(defun ask (loop servers name type timeout-ns function)
  "Ask SERVERS, addresses in the kernel's form, for the records of TYPE of NAME, octets. FUNCTION is
called on LOOP exactly once, within TIMEOUT-NS nanoseconds. Its arguments are an OUTCOME and either
the data of the records, in the answer's order, or the reason of the failure, as text. Call ASK on
LOOP; FUNCTION may be called before ASK returns. Return the query, for use with GIVE-UP."
  (let ((query (%make-query :loop loop :servers servers :name name :type type :function function
                            :tries (min 64 (max +tries+ (length servers)))
                            :end-ns (+ (loop:event-loop-now loop) timeout-ns)
                            :text (format nil "no answer from the DNS server ~A"
                                          (os:address-text (first servers))))))
    (setf (query-timer query) (make-timer #'next-try query))
    (next-try query)
    query))

(defun give-up (query timeout-ns)
  "Limit the rest of QUERY to TIMEOUT-NS nanoseconds; after this time its outcome is :no-answer.
Call this on the loop of QUERY."
  (unless (query-done query)
    (setf (query-tries query) 0)
    (set-limit query timeout-ns)))

;;; Tries

(defun set-limit (query ns)
  "Limit the current step of QUERY to NS nanoseconds, or to the rest of QUERY's time if that is
less."
  (let ((loop (query-loop query)))
    (loop:start-timer loop (query-timer query)
                      (min (query-end-ns query) (+ (loop:event-loop-now loop) ns)))))

(defun time-left (query)
  (- (query-end-ns query) (loop:event-loop-now (query-loop query))))

(defun leave-try (query)
  "End the present try of QUERY; no further answer to that try is expected."
  (let ((udp-socket (shiftf (query-udp-socket query) nil))
        (connection (shiftf (query-connection query) nil)))
    (incf (query-attempt query))
    (loop:stop-timer (query-loop query) (query-timer query))
    (when udp-socket (loop:close-udp-socket udp-socket))
    (when connection (loop:close-connection connection :abort t))))

(defun finish (query outcome data)
  (unless (query-done query)
    (setf (query-done query) t)
    (leave-try query)
    (trace-event :dns-resolver :answer :name (name-text (query-name query))
                 :type (type-text (query-type query)) :outcome outcome)
    (loop:guarding (:resolver-error :query query)
      (funcall (query-function query) outcome data))))

(defun try-failed (query outcome text)
  "Handle OUTCOME and TEXT, the result of the present try, which has failed. Make another try, if
any remain."
  (setf (query-outcome query) outcome
        (query-text query) text)
  (next-try query))

(defun server-failed (query outcome text)
  "Do what TRY-FAILED does, for a server that has answered. If QUERY has only this server, do not
ask it again."
  (when (null (rest (query-servers query))) (setf (query-tries query) 0))
  (try-failed query outcome text))

(defun next-try (query)
  "Ask the next server, unless no server is left to ask."
  (leave-try query)
  (if (or (zerop (query-tries query)) (>= 0 (time-left query)))
      (finish query (query-outcome query) (query-text query))
      (let* ((loop (query-loop query))
             (servers (query-servers query))
             (first (= (query-tries query) (max +tries+ (length servers)))))
        (decf (query-tries query))
        (setf (query-servers query) (append (rest servers) (list (first servers))))
        (set-limit query (if first
                             (floor (time-left query) 5)
                             (floor (time-left query) (1+ (query-tries query)))))
        (multiple-value-bind (udp-socket failure)
            (loop:open-udp-socket loop (first servers)
                                  (lambda (octets end) (receive-answer query octets 0 end :udp))
                                  (lambda (failure) (udp-socket-failed query failure)))
          (cond (udp-socket
                 (setf (query-udp-socket query) udp-socket)
                 (loop:send-datagram udp-socket (next-message query)))
                (t (udp-socket-failed query failure)))))))

(defun asked-server (query)
  "The address of the server to which QUERY was sent last."
  (first (last (query-servers query))))

(defun udp-socket-failed (query failure)
  (setf (query-udp-socket query) nil)
  (unless (query-done query)
    (try-failed query :unreachable (server-text query failure))))

(defun server-text (query failure)
  (format nil "~A (the DNS server ~A)" failure (os:address-text (asked-server query))))

(defun next-message (query)
  "The octets of a message with QUERY's question and a new id, which the answer must repeat."
  (setf (query-id query) (random 65536 (loop:event-loop-random (query-loop query))))
  (encode-query (query-id query) (query-name query) (query-type query)
                :extended (query-extended query)))

;;; Answers

(defun answers-query-p (query message)
  "True if MESSAGE answers QUERY. A message without a question may answer it too, because a server
that does not understand a query does not repeat the question."
  (let ((question (message-question message)))
    (and (message-response-p message)
         (= (query-id query) (message-id message))
         (if question
             (and (= +in+ (question-class question))
                  (= (query-type query) (question-type question))
                  (equalp (query-name query) (question-name question)))
             (= 1 (message-code message))))))

(defun receive-answer (query octets start end carrier)
  "Handle OCTETS from START to END, which have arrived over CARRIER, :udp or :tcp; any host may have
sent them."
  (let ((message (handler-case (parse-message octets start end)
                   (malformed-message (error)
                     (trace-event :dns-resolver :bad-answer :reason (princ-to-string error))
                     nil))))
    (cond ((query-done query))
          ((not (and message (answers-query-p query message)))
           (when (eq :tcp carrier)
             (try-failed query :server-failed
                         (server-text query "the answer is not for the question"))))
          ;; the records of a truncated message are not read, so it would look like an answer
          ;; without records
          ((message-truncated-p message)
           (if (eq :udp carrier)
               (ask-over-tcp query)
               (server-failed query :server-failed
                              (server-text query "the answer over TCP is truncated"))))
          ((and (query-extended query) (member (message-code message) '(1 4)))
           ;; the server may be older than RFC 6891
           (setf (query-extended query) nil
                 (query-servers query) (cons (asked-server query) (butlast (query-servers query))))
           (incf (query-tries query))
           (next-try query))
          (t (multiple-value-bind (outcome data)
                 (message-outcome message (query-name query) (query-type query))
               (case outcome
                 ((:server-failed :refused) (server-failed query outcome data))
                 (t (finish query outcome data))))))))

;;; TCP (RFC 7766): each message after its length, two octets

(defun take-input (connection octets start end)
  "The handler of answers over TCP."
  (let ((query (loop:connection-user connection)))
    (cond ((< (- end start) 2) start)
          ((< (- end start 2) (u16be octets start)) start)
          (t (receive-answer query octets (+ start 2) (+ start 2 (u16be octets start)) :tcp)
             end))))

(defun input-ended (connection reason)
  "Handle the end of CONNECTION before an answer was received."
  (let ((query (loop:connection-user connection)))
    (when (eq connection (query-connection query))
      (setf (query-connection query) nil)
      (try-failed query :unreachable
                  (server-text query
                               (if reason
                                   (princ-to-string reason)
                                   "the server closed the connection"))))))

(sb-ext:define-load-time-global **handler**
    (loop:make-handler :input #'take-input :closed #'input-ended)
  "The handler of connections to servers.")

(defun ask-over-tcp (query)
  "Ask the server of QUERY over TCP, which allows an answer of any length. The time limit is the
time that QUERY has left."
  (leave-try query)
  (set-limit query (time-left query))
  (let ((attempt (query-attempt query)))
    (flet ((connected (byte-channel condition)
             (let ((current (and (not (query-done query)) (= attempt (query-attempt query)))))
               (cond ((and byte-channel current) (send-over query byte-channel))
                     (byte-channel (loop:close-byte-channel byte-channel))
                     (current
                      (try-failed query :unreachable
                                  (server-text query (loop:socket-error-reason condition))))))))
      (loop:connect-addresses (query-loop query) "the DNS server" (list (asked-server query))
                              (time-left query) #'connected))))

(defun send-over (query byte-channel)
  "Send QUERY over BYTE-CHANNEL, which is connected."
  (handler-case
      (let ((connection (loop:make-connection (query-loop query) byte-channel **handler**
                                              :user query))
            (message (next-message query))
            (length (make-octets 2)))
        (setf (query-connection query) connection
              (u16be length 0) (length message))
        (append-octets (loop:connection-output connection) length)
        (append-octets (loop:connection-output connection) message))
    (loop:socket-error (error)
      (try-failed query :unreachable (server-text query (loop:socket-error-reason error))))))
