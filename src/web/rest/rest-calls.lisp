;;;; How calls by REST go over HTTP, as protocol handlers of clgrpc.web. A body is one message, and
;;;; the values in the path and the query are added when it is decoded; or it has the messages of a
;;;; stream, which must be complete. An answer is one body with a length, or a stream in the form
;;;; that the client accepts.
;;;;
;;;; An answer in JSON is encoded after an envelope of five octets, which is dropped; but in an
;;;; array the last of these octets becomes the bracket or comma before the answer. A
;;;; google.api.HttpBody is encoded after its type, whose length comes first in two octets, since
;;;; the head contains the type.

(in-package #:clgrpc.rest)

(defstruct (rest-claim (:include web:web-claim) (:copier nil))
  "The data of the head of a request."
  (rule nil :type route :read-only t)   ; the route by which the claim calls
  (match nil :type match :read-only t)  ; the match of the path
  (query nil :type (or null string) :read-only t) ; the query as it came
  (content-type nil :type (or null string) :read-only t) ; the type of its body
  ;; how a stream of answers is sent, or nil if there is one answer, or a stream of raw answers
  (form nil :type (member nil :array :lines :events) :read-only t))

(declaim (inline call-rest-claim))
(defun call-rest-claim (call)
  (the rest-claim (web:call-web-claim call)))

;;; Messages

(defun claim-parameters (claim)
  "The QUERY-PARAMETERS of CLAIM. Signal REQUEST-ERROR if the parameters are wrong."
  (query-parameters (rest-claim-rule claim) (rest-claim-query claim)))

(defun call-parameters (call claim)
  "The parameters of CALL, which CLAIM describes: the parameters that CALL keeps, or else
CLAIM-PARAMETERS."
  (multiple-value-bind (parameters kept) (rpc:call-value call 'parameters)
    (if kept parameters (claim-parameters claim))))

(defconstant +parameter-octets+ 128
  "The approximate memory of a parameter in addition to its text.")

(defun keep-parameters (call claim)
  "Read the parameters of CLAIM once for all messages of CALL's body. CALL keeps the parameters and
is charged for them, since other calls may have the same CLAIM. Signal REQUEST-ERROR if the
parameters are wrong."
  (let ((parameters (claim-parameters claim)))
    (setf (rpc:call-value call 'parameters) parameters)
    (when parameters
      (wire:hold call (+ (* 4 (length (rest-claim-query claim)))
                         (* +parameter-octets+
                            (loop for (nil . texts) in parameters sum (length texts))))))
    parameters))

(defun error-line (condition)
  "The text of CONDITION, a REQUEST-ERROR, in one line."
  (let* ((field (request-error-field condition)) (text (request-error-text condition))
         (line (if field (concatenate 'string field ": " text) text)))
    (if (find #\Newline (the simple-string line)) (remove #\Newline line) line)))

(defun decode-request (call octets start end)
  "The message of CALL whose body, or part of it, is OCTETS from START to END."
  (let ((claim (call-rest-claim call)))
    (handler-case (web:receive-as-text
                   call (- end start)
                   (lambda ()
                     (apply #'bind-message (rest-claim-rule claim) (rest-claim-match claim)
                            (call-parameters call claim) (subseq-octets octets start end)
                            (rest-claim-content-type claim) (web:reading-limits call))))
      (request-error (condition)
        (error 'protobuf:protobuf-error :text (error-line condition))))))

(defconstant +type-octets+ 2 "The octets of the length of the type before a raw answer.")

(defun typed-octets (type octets)
  "OCTETS of a raw answer with their TYPE before them."
  (let* ((type (bounded-type type))
         (all (make-octets (+ +type-octets+ (length type) (length octets)))))
    (setf (u16be all 0) (length type))
    (replace all (ascii-octets type) :start1 +type-octets+)
    (replace all octets :start1 (+ +type-octets+ (length type)))))

(defun bounded-type (type)
  "TYPE, a content type, unless it is too long to be sent."
  (if (< (length type) 1000) type "application/octet-stream"))

(defun encode-answer (call message compress)
  "MESSAGE, an answer of CALL, as WIRE:ENCODE-MESSAGE returns it."
  (let* ((claim (call-rest-claim call))
         (rule (rest-claim-rule claim))
         (form (rest-claim-form claim)))
    (web:send-as-text
     call message
     (lambda ()
       (multiple-value-bind (type octets)
           (multiple-value-call #'message-answer rule (web:as-sent call message))
         (cond ((route-raw-answer rule)
                (wire:encode-octets call (typed-octets type octets) nil))
               ((member form '(:lines :events))
                (wire:encode-octets call (stream-item form octets nil) nil))
               (t (wire:encode-octets call octets (and (null form) compress)))))))))

(sb-ext:define-load-time-global **codec**
    (web:make-codec :name :rest :decode #'decode-request :encode #'encode-answer :text t
                    :preface ""))

;;; Streams of clients

(defun collect-part (call octets start end last)
  "The function RECEIVE for requests whose body has several messages."
  (declare (ignore last))
  (web:collect-body call octets start end))

(defun deliver-parts (call)
  "The function WHOLE for requests whose body has several messages."
  (multiple-value-bind (body end) (web:collected-body call)
    (handler-case (let ((claim (call-rest-claim call)))
                    (body-parts (rest-claim-rule claim) (rest-claim-match claim)
                                (rest-claim-query claim) (keep-parameters call claim) body end))
      (request-error (condition)
        (rpc:abort-as call (status:make-rpc-error
                              :invalid-argument :message (error-line condition) :call call
                              :peer (rpc:call-peer call) :ended-by :local)))
      (:no-error (parts)
        (dolist (part parts)
          (unless (rpc:call-status call)
            (wire:deliver-alone call nil body (car part) (cdr part))))))))

;;; Answers

(defun first-part-p (call encoded)
  "True if ENCODED is the first answer of CALL."
  (= (web:notes-sent (web:call-web-notes call))
     (- (wire:encoded-length encoded) wire:+prefix-octets+)))

(defun raw-type (encoded)
  "Two values: the content type that stands in ENCODED before its raw answer, and the index in its
octets at which the answer begins."
  (let* ((octets (wire:encoded-octets encoded))
         (start (+ wire:+prefix-octets+ +type-octets+))
         (end (+ start (u16be octets wire:+prefix-octets+))))
    (values (octets-ascii octets start end) end)))

(defun write-raw-head (call type headers length)
  (exchange:write-head (server:call-http-request call)
                       (web:other-head (web:web-claim-heads (web:call-web-claim call)) 200 type)
                       (web:answer-headers call headers) length))

(defun write-part (call encoded)
  "The function PART of calls by REST."
  (let ((claim (call-rest-claim call)))
    (cond ((route-raw-answer (rest-claim-rule claim))
           (multiple-value-bind (type start) (raw-type encoded)
             (when (first-part-p call encoded)
               (write-raw-head call type '() nil)
               (web:end-after-head call))
             (when (< start (wire:encoded-length encoded))
               (web:write-encoded call encoded start nil))))
          ((eq :array (rest-claim-form claim))
           (let ((start (1- wire:+prefix-octets+)))
             (setf (aref (wire:encoded-octets encoded) start)
                   (char-code (if (first-part-p call encoded) #\[ #\,)))
             (web:write-encoded call encoded start nil)))
          (t (web:write-encoded call encoded wire:+prefix-octets+ nil)))))

(defun write-no-head (call)
  "The operation WRITE-HEAD of raw streams, whose first message has the type."
  (declare (ignore call)))

(rpc:define-transport-end **raw-request-operations** (:server :like web:**web-request-operations**)
  :write-head #'write-no-head)

(rpc:define-transport-end **raw-stream-operations** (:server :like web:**web-stream-operations**)
  :write-head #'write-no-head)

(defun raw-stream-p (route)
  "True if calls by ROUTE are answered with a stream of google.api.HttpBody."
  (and (route-raw-answer route)
       (protobuf:method-descriptor-server-streaming-p (route-method route))))

(defun await-head (call)
  "The function BEGUN of calls by REST."
  (unless (raw-stream-p (rest-claim-rule (call-rest-claim call))) (web:await-head call)))

(defun operations-of (route)
  (let ((streamed (protobuf:method-descriptor-client-streaming-p (route-method route))))
    (cond ((not (raw-stream-p route))
           (if streamed web:**web-stream-operations** web:**web-request-operations**))
          (streamed **raw-stream-operations**)
          (t **raw-request-operations**))))

(defun status-octets (status text details)
  "The octets of the message that ends a call with STATUS, TEXT and DETAILS, a serialized
google.rpc.Status or nil."
  (status-answer (status:sent-code status details) text details))

(defun http-status-of (call status)
  "The status of HTTP for the answer to CALL, which has ended with STATUS. The status is 413 if the
body is too long, as received or after decompression."
  (if (or (web:notes-too-long (web:call-web-notes call))
          (and (eq :resource-exhausted status)
               (eq :too-long (wire:inflation-failure call))))
      413
      (server:status-http-status status)))

(defun write-status (call status text details headers)
  "Write the error answer of CALL, which has ended with STATUS, TEXT and DETAILS before any of its
answer was written."
  (web:write-bare-error call (http-status-of call status)
                        (status-octets status text details) headers))

(defun write-answer (call encoded headers)
  "Write ENCODED, the only answer of CALL, with HEADERS."
  (if (route-raw-answer (rest-claim-rule (call-rest-claim call)))
      (multiple-value-bind (type start) (raw-type encoded)
        (write-raw-head call type headers (- (wire:encoded-length encoded) start))
        (web:write-encoded call encoded start t))
      (web:write-bare-answer call encoded headers)))

(defun finish-stream (call)
  "Write the end of the stream of answers of CALL."
  (multiple-value-bind (status text details headers) (web:call-end-in-head call)
    (let* ((claim (call-rest-claim call))
           (raw (route-raw-answer (rest-claim-rule claim)))
           (form (rest-claim-form claim))
           (none (zerop (web:notes-sent (web:call-web-notes call))))
           (fresh (web:mark-headers call)) ; true if no head has been written yet
           (good (eq :ok status)))
      (server:note-served call)
      (cond ((and (not good) (if raw none fresh)) (write-status call status text details headers))
            ((and raw good)
             (when none (write-raw-head call "application/octet-stream" '() 0))
             (web:write-octets call (make-octets 0) t))
            (raw (exchange:cut-answer-off (server:call-http-request call)))
            (t
             (when fresh
               (exchange:write-head (server:call-http-request call)
                                    (web:heads-head (web:web-claim-heads claim) nil)
                                    (web:answer-headers call '()) nil))
             (web:write-octets call
                               (if good
                                   (stream-close form none)
                                   (stream-status form (status-octets status text details) none))
                               t))))))

(defun finish-call (call)
  "The function FINISH of calls by REST."
  (if (rpc:answers-once-p call)
      (web:finish-bare call #'write-answer #'write-status)
      (finish-stream call)))

(sb-ext:define-load-time-global **single**
    (web:make-protocol-handler :name :rest :receive #'web:receive-bare :whole #'web:body-whole
                               :begun #'await-head
                               :part #'write-part :finish #'finish-call))

(sb-ext:define-load-time-global **several**
    (web:make-protocol-handler :name :rest :receive #'collect-part :whole #'deliver-parts
                               :begun #'await-head
                               :part #'write-part :finish #'finish-call))
