;;;; Reports of a call, for people and their programs. CALL-STAGES returns the time of each stage
;;;; and the numbers of messages; EXPLAIN-CALL writes these data in one line, for errors. Everything
;;;; is computed on demand, from the data of the transport (wire/stage.lisp).
;;;;
;;;; CALL-STAGES may be called from any thread while the call's loop runs. In that case the values
;;;; may belong to two moments, with events in between.

(in-package #:clgrpc.rpc)

(defun call-stages (call)
  "Return the times that CALL has spent in its stages so far, as a plist. Times are in seconds,
measured at the loop's turns. Stages that were too short to measure are omitted. Stages of a
client's call:
 :RESOLVE, for the look-up of the name;
 :CONNECT, for a connection;
 :HANDSHAKE, of TLS and HTTP/2;
 :BACK-OFF, until the next attempt to connect;
 :RETRY, until its last attempt began, if earlier attempts have failed;
 :QUEUE, for a stream, while the connection had as many as the server allows;
 :WAIT, from the request's headers to the first of the response;
 :RECEIVE, the rest of the response.
Stages of a handler's call:
 :RECEIVE, until the handler may start;
 :QUEUE, for a thread, or its turn on the loop;
 :ANSWER, from the start of the handler to the beginning of its answer;
 :SEND, the rest.
Other entries:
 :TOTAL, from the beginning of CALL to its end, or to now;
 :STAGE, the stage that CALL has reached, or had reached when CALL ended with another status than
   :ok. The stage may also be :SEND if the peer does not receive the data to send; :BEGIN if the
   call's deadline had passed before it waited for anything; :CREDENTIALS if its call credentials
   have not answered yet, or have failed;
 :ATTEMPTS, the number of attempts to connect for which CALL has waited;
 :MESSAGES-SENT and :MESSAGES-RECEIVED, numbers of messages;
 :UNSENT-OCTETS, of messages that the peer has not received;
 :REMAINING, the seconds until the deadline, negative after it;
 :REQUESTS-OPEN, true if the stage is :WAIT and the caller has not ended its requests by CLOSE-SEND.
A call within the image has only :STAGE, with the value :QUEUE or :ANSWER, since reading the clock
would cost more than the rest of the call. From any thread."
  (let ((unsent (call-unsent-octets call)))
    (append (operate stages call)
            (unless (eq :ok (call-status call)) (list :stage (call-stage call)))
            (when (plusp unsent) (list :unsent-octets unsent)))))

;;; The line

(defparameter *client-stage-texts*
  '(:resolve "waiting for the name to be looked up" :connect "waiting for a connection"
    :handshake "waiting for the handshake" :back-off "waiting for the next attempt to connect"
    :answer "waiting for the handler" :begin "before it was sent"
    :credentials "waiting for its call credentials" :queue "waiting for a stream"
    :send "waiting for the server to take the request"
    :wait "waiting for the response" :receive "receiving the response"))

(defparameter *server-stage-texts*
  '(:receive "waiting for the request" :queue "waiting for a thread"
    :answer "waiting for the handler" :send "sending the answer"))

(defconstant +shortest-printed-ns+ 500000)

(defun stage-text (role stage)
  "A text that describes STAGE of a call at the end ROLE, :client or :server; nil if STAGE is nil."
  (getf (ecase role (:client *client-stage-texts*) (:server *server-stage-texts*)) stage))

(defun write-spans (stream plist)
  "Write those stages in PLIST, a value of CALL-STAGES, that are long enough to be of interest."
  (format stream "~{~(~A~) ~,3F s~^, ~}"
          (loop for (name value) on plist by #'cddr
                when (and (floatp value)
                          (not (member name '(:total :remaining)))
                          (>= value (ns-seconds +shortest-printed-ns+)))
                  append (list (substitute #\Space #\- (string name)) value))))

(defun wait-failure-text (call)
  "The last failure of a step for which CALL has waited, such as connecting, as text; nil if no step
has failed, or if the message of CALL's status already contains the failure."
  (let* ((outcome (call-outcome call))
         (text (if outcome (outcome-last-error outcome) (call-last-error call))))
    (and text
         (not (and outcome (search text (outcome-message outcome))))
         text)))

(defun attempt-text (attempt)
  "A short text about ATTEMPT, one of FAILED-ATTEMPTS."
  (destructuring-bind (&key peer status seconds &allow-other-keys) attempt
    (format nil "~:@(~A~)~@[ from ~A~] after ~,3F s"
            (substitute #\_ #\- (string status)) peer seconds)))

(defun attempts-text (call)
  "A text with the failed attempts of CALL, if it was tried more than once, else nil."
  (let* ((ending (call-ending call))
         (failed (failed-attempts call))
         (count (if ending (ending-attempts ending) 0)))
    (when (or (rest failed) (< 1 count))
      (format nil "~D, ~{~A~^, ~}" (max count (length failed)) (mapcar #'attempt-text failed)))))

(defun explain-call (call)
  "Return one line of text about CALL: its duration, its last stage with the failure there, and the
times of its stages. Nil if CALL-STAGES returns nil."
  (when-let ((plist (call-stages call)))
    (destructuring-bind (&key total stage attempts messages-sent messages-received unsent-octets
                           remaining requests-open &allow-other-keys)
        plist
      (let ((spans (with-output-to-string (stream) (write-spans stream plist))))
        (format nil "~@[after ~,3F s~]~:[~;, ~]~@[~A~]~
                     ~:[~; before CLOSE-SEND ended the requests~]~@[ (~A)~]~:[: ~A~;~*~]~
                     ~@[; attempts: ~A~]~@[; attempts to connect: ~D~]~@[; messages sent: ~D~]~
                     ~@[, received: ~D~]~@[; octets not taken: ~D~]~@[; remaining: ~,3F s~]"
                total (and total stage) (stage-text (call-role call) stage) requests-open
                (wait-failure-text call) (string= "" spans) spans (attempts-text call) attempts
                messages-sent
                messages-received unsent-octets
                (and remaining (plusp remaining) remaining))))))

(defun rpc-error-attempts (error)
  "Return FAILED-ATTEMPTS of the call of ERROR, an RPC-ERROR; nil if ERROR has no call. From any
thread."
  (and (rpc-error-call error) (failed-attempts (rpc-error-call error))))

(defun rpc-error-stages (error)
  "Return CALL-STAGES of the call of ERROR, an RPC-ERROR; nil if ERROR has no call. From any
thread."
  (and (rpc-error-call error) (call-stages (rpc-error-call error))))

(defmethod rpc-error-reason ((error rpc-error))
  (and (rpc-error-call error) (explain-call (rpc-error-call error))))
