;;;; The reasons for which this side ends a call although its user has not asked for it. Each reason
;;;; is a VERDICT: a name with the status and the text that both ends of every transport use. Rules
;;;; that are the same on all transports are here as well: the test for a passed deadline
;;;; (OVERDUE-P), the error of a peer that has ended its side after a wrong number of messages
;;;; (VIOLATION), the trailers of an answer (ADD-TRAILERS).

(in-package #:clgrpc.rpc)

(defstruct (verdict-row (:copier nil))
  "A row of the table of verdicts."
  (name nil :type keyword)              ; the name by which code refers to the verdict
  (status nil :type keyword)            ; the status with which the call ends
  (text "" :type string))               ; the text, a format control if there are arguments

(defglobal **verdicts** (vector))

(defmacro define-verdicts (&body rows)
  "Define the table of ROWS, each (name status text)."
  `(setf **verdicts**
         (vector ,@(loop for (name status text) in rows
                         collect `(make-verdict-row :name ,name :status ,status :text ,text)))))

(define-verdicts
  ;; time, and callers that leave
  (:deadline-passed :deadline-exceeded "the deadline passed")
  (:came-too-late :deadline-exceeded "the deadline passed before the call came")
  (:caller-lost-interest :cancelled "the caller has lost interest")
  (:caller-interrupted :cancelled "the caller was interrupted")
  (:caller-gone :cancelled "the caller has cancelled or gone")
  (:channel-closed :cancelled "the channel was closed")
  (:server-stopping :unavailable "the server is stopping")
  ;; invalid requests and responses
  (:unknown-method :unimplemented "unknown service or method ~A")
  (:no-request :unimplemented "no request message")
  (:second-request :unimplemented "more than one request message")
  (:unfinished-request :internal "the request ends within a message")
  (:no-response :unimplemented "the server sent no response message")
  (:second-response :unimplemented "more than one response message")
  (:unfinished-response :internal "the response ends within a message")
  (:not-to-be-compressed :internal "compressed message, but the headers name no compression")
  (:unknown-flag :internal "invalid compressed flag ~D")
  ;; limits
  (:too-long-to-send :resource-exhausted
   "message of ~D octets to send, limit ~D (max-send-octets or service config)")
  (:too-long-received :resource-exhausted
   "message of ~D octets received, limit ~D (max-receive-octets or service config)")
  (:no-room :resource-exhausted "no room for a message of ~D octets (room-wait-seconds)")
  (:no-room-for-answer :resource-exhausted "no room for another long answer (room-wait-seconds)")
  (:no-room-in-heap :resource-exhausted "no room in the heap for a message of ~D octets")
  (:connection-holds-too-much :resource-exhausted
   "the connection holds too much memory (max-held-octets)")
  (:all-hold-too-much :resource-exhausted
   "all connections hold too much memory (max-total-held-octets)")
  (:waits-for-its-caller :resource-exhausted
   "the handler would wait for its own caller, which does not wait for it")
  (:no-room-for-calls :resource-exhausted "live objects nearly fill the server's heap")
  (:too-many-calls :resource-exhausted "the server has too many calls (max-calls)")
  (:too-many-handlers :resource-exhausted
   "the connection has too many handlers (max-running-handlers)")
  (:queue-full :resource-exhausted "the server's queue of calls is full")
  (:no-thread-in-time :resource-exhausted "no thread was free in time (reserve-wait-seconds)")
  ;; user code
  (:handler-error :internal "error in handler")
  (:callback-error :internal "error in a callback or generator of this call: ~A")
  (:no-memory :resource-exhausted "no memory left for this call")
  (:interceptor-error :internal "error in an interceptor of attempts")
  (:callback-left :internal "callback left by a non-local exit"))

(defun verdict (name &rest arguments)
  "The status and the text of the verdict NAME, a keyword. ARGUMENTS are the arguments of the
verdict's text, a format control. A peer may have sent a string among them. Only the first 120
characters of a string are shown, because escaping a long string takes time, and with HPACK the peer
can repeat such a string at the cost of one octet."
  (let ((row (or (find name (the simple-vector **verdicts**) :key #'verdict-row-name)
                 (misuse "~S is not a verdict." name))))
    (values (verdict-row-status row)
            (if arguments
                (apply #'format nil (verdict-row-text row)
                       (loop for argument in arguments
                             collect (if (stringp argument)
                                         (printable-text argument :limit 120)
                                         argument)))
                (verdict-row-text row)))))

(defun abort-as (call reason &rest arguments)
  "End CALL from this side at once with REASON: the name of a verdict, with ARGUMENTS, or an
RPC-ERROR of its user's code. On its loop."
  (multiple-value-bind (status text)
      (if (typep reason 'rpc-error)
          (values (rpc-error-status reason) (rpc-error-message reason))
          (apply #'verdict reason arguments))
    (operate abort call status text :local)))

(defun verdict-error (name arguments &rest initargs)
  "The RPC-ERROR of a call that this side ends by the verdict NAME with ARGUMENTS; INITARGS are as
for MAKE-RPC-ERROR."
  (multiple-value-bind (status text) (apply #'verdict name arguments)
    (apply #'make-rpc-error status :message text :ended-by :local initargs)))

;;; Rules

(define-hot (overdue-p :inline t) ((call call)) boolean
  "True if the deadline of CALL has passed, even if its timer has not run yet. From any thread."
  (let ((deadline (call-deadline call)))
    (and (plusp deadline)
         (<= deadline (the nanoseconds (operate now call))))))

(define-hot (answers-once-p :inline t) ((call call)) boolean
  "True if the handler of CALL gives one answer."
  (and (member (rpc-method-kind (the rpc-method (call-rpc-method call)))
               '(:unary :client-streaming))
       t))

(define-hot (takes-one-p :inline t) ((call call)) boolean
  "True if the handler of CALL gets one request."
  (and (member (rpc-method-kind (the rpc-method (call-rpc-method call)))
               '(:unary :server-streaming))
       t))

(define-hot (violation :inline t) ((call call) (count index) unfinished) symbol
  "The verdict on the messages of CALL's peer, which has ended its side after COUNT messages, or nil
if the number is right. UNFINISHED is true if another message had begun."
  (let ((client-p (client-p call)))
    (cond (unfinished (if client-p :unfinished-response :unfinished-request))
          ((not (if client-p (answers-once-p call) (takes-one-p call))) nil)
          ((zerop count) (if client-p :no-response :no-request))
          ((< 1 count) (if client-p :second-response :second-request)))))

(defun add-trailers (call trailers)
  "Add TRAILERS after the handler's own trailers to those that CALL, a running handler's, will
send."
  (when trailers
    (let ((ending (ensure-ending call)))
      (setf (ending-trailers ending) (append (ending-trailers ending) trailers)))))
