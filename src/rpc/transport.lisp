;;;; The contract between calls and the transports that carry them. A transport (HTTP/2 on a
;;;; connection, the in-process channel) gives each end of its calls an OPERATIONS structure. The
;;;; table below declares every operation: name, lambda list, the thread on which it is called,
;;;; which end has it, its default, its meaning. The structure, OPERATE, the documentation and the
;;;; checks of DEFINE-TRANSPORT-END are made from the table.

(in-package #:clgrpc.rpc)

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defstruct (contract-row (:copier nil))
    "One operation of the contract."
    (name nil :type symbol)             ; the name of the operation
    (lambda-list '() :type list)        ; the lambda list of required parameters, the call first
    (thread :any :type (member :any :loop :receiver)) ; the thread on which the operation is called
    (end nil :type (member nil :client :server)) ; the end that has it; nil for both
    ;; a form for the default function; nil without a default
    (default nil)
    (text "" :type string))             ; what the operation does

  (defvar *contract* '() "The CONTRACT-ROWs, in the order of the table.")

  (defun find-contract-row (name)
    "The row of the operation NAME, a symbol of any package."
    (or (find name *contract* :key #'contract-row-name :test #'string=)
        (error "~S is not an operation of calls." name)))

  (defun parse-contract-row (form)
    (destructuring-bind (name lambda-list (&key (thread :any) end default) text) form
      (make-contract-row :name name :lambda-list lambda-list :thread thread :end end
                         :default default :text text)))

  (defun operation-reader (name)
    "The reader of the slot of OPERATIONS for the operation NAME."
    (intern (format nil "OPERATIONS-~A" name) '#:clgrpc.rpc)))

(defun not-for-clients (call &rest arguments)
  "The function that clients' calls have for operations of handlers' calls only."
  (declare (ignore arguments))
  (misuse "Only handlers' calls can do this; ~A is a client's." call))

(defun not-for-handlers (call &rest arguments)
  "The function that handlers' calls have for operations of clients' calls only."
  (declare (ignore arguments))
  (misuse "Only clients' calls can do this; ~A is a handler's." call))

(defun not-carried (call &rest arguments)
  "The function for an operation that a transport lacks."
  (declare (ignore arguments))
  (misuse "The transport of ~A cannot do this." call))

(defun nothing (call &rest arguments)
  "The function for an operation that does nothing and returns nil."
  (declare (ignore call arguments))
  nil)

(defun no-octets (call)
  (declare (ignore call))
  0)

(defun no-traffic (call)
  (declare (ignore call))
  (values 0 0 0))

(defun no-repeats (call)
  (declare (ignore call))
  (values 0 0 0 0))

(defun no-limit (call)
  (declare (ignore call))
  most-positive-fixnum)

(defun no-compression (call)
  "The operation COMPRESSION of a transport that compresses nothing."
  (declare (ignore call))
  :identity)

(defun decoded-item (call item start end)
  "The operation DECODE of a transport that queues only decoded messages."
  (declare (ignore call start end))
  item)

(defmacro define-operations (documentation &body rows)
  "Declare the contract. A row is (NAME LAMBDA-LIST (&key THREAD END DEFAULT) TEXT). THREAD is :any,
:loop (the call's) or :receiver (the one thread that receives on the call). END is the only end that
has the operation. DEFAULT is a form for the function of transports that do not give one."
  (let ((parsed (mapcar #'parse-contract-row rows)))
    `(progn
       (eval-when (:compile-toplevel :load-toplevel :execute)
         (setf *contract* (mapcar #'parse-contract-row ',rows)))
       (defstruct (operations (:constructor make-operations) (:copier nil))
         ,documentation
         (client-p nil :type boolean)   ; which end's
         ,@(loop for row in parsed
                 collect `(,(contract-row-name row) ,(or (contract-row-default row) '#'not-carried)
                           :type function)))
       (declaim (sb-ext:freeze-type operations))
       (document-functions
         ,@(loop for row in parsed
                 collect (operation-reader (contract-row-name row))
                 collect (contract-row-text row))))))

(define-operations
    "The operations of one end of a transport for its calls: a function for each row of the
contract."
  ;; for users
  (send (call message wait-p compress) ()
    "Send MESSAGE, with COMPRESS as in SEND; return true if it was accepted. Without room, wait for
it if WAIT-P is true, else return false.")
  (close-send (call) (:end :client)
    "Half-close: no more messages follow.")
  (send-metadata (call metadata) (:end :server)
    "Send METADATA, an alist, as the headers of the answer.")
  (receive (call) (:thread :receiver :default #'receive-queued)
    "Wait for the next message and return it; nil after the last. See RECEIVE.")
  (each (call function) (:thread :receiver :default #'receive-each)
    "Call FUNCTION with each message until the last. See CALL-WITH-MESSAGES.")
  (look (call) (:default #'call-status)
    "The status of the call, nil while it runs. The operation may itself find that the call has
ended.")
  (reply (call message) (:end :server)
    "Send MESSAGE, the only answer, and end the call with :ok. Return false if another such answer
is on its way.")
  (finish (call status message details trailers) (:end :server)
    "End the call with STATUS, its text MESSAGE, DETAILS (octets or nil) and the alist TRAILERS.")
  (after (call seconds function) ()
    "Call FUNCTION without arguments after SECONDS, unless the call has ended by then.")
  (change-encoding (call name) (:default #'not-carried)
    "Compress messages sent from now on by NAME, a value of CALL-COMPRESSION, if the peer accepts
it. Signal MISUSE if it is too late.")
  (leave (call) (:default #'leave-call)
    "End the call if it runs, since its user has left it.")
  (await-metadata (call) (:default #'await-fields)
    "Wait until the peer's headers have arrived.")
  (metadata (call fields) ()
    "The alist of FIELDS, a vector of the peer's metadata in the form of the transport.")
  (compression (call) (:default #'no-compression)
    "The compression of messages that are sent, a keyword of CALL-COMPRESSION.")
  (received-compressed (call) (:default #'nothing)
    "True if the last decoded message was received compressed.")
  ;; on the call's loop
  (abort (call status text ended-by) (:thread :loop)
    "End the call from this side at once, with STATUS and TEXT; ENDED-BY is as for
RPC-ERROR-ENDED-BY.")
  (post (call function) ()
    "Run FUNCTION on the call's loop, at once if this thread runs the loop. Return false if the loop
has stopped.")
  (schedule (call) (:thread :loop)
    "Run the callbacks that are due, soon.")
  (callback-returned (call) (:default #'nothing)
    "A callback that had lost the loop has returned.")
  (room (call) (:thread :loop)
    "The octets that may be sent without waiting.")
  (write-head (call) (:thread :loop :end :server :default #'not-carried)
    "Write the header block with which the answer begins.")
  (deliver (call octets start end) (:thread :loop :default #'not-carried)
    "A message has arrived: OCTETS from START to END, valid only during the operation.")
  (half-close (call) (:thread :loop :default #'nothing)
    "The peer's last message has been delivered.")
  (decode (call item start end) (:thread :receiver :default #'decoded-item)
    "The message in ITEM of the queue: octets from START to END, or an object of the transport's
own.")
  (taken (call octets) (:thread :receiver)
    "The user has taken messages that were charged with OCTETS.")
  (note-long-message (call octets) (:default #'nothing)
    "A long message, of OCTETS, is about to be encoded.")
  ;; parts that are made when they are first needed
  (new-parts (call) (:default #'new-parts)
    "New PARTS, of the transport's own kind.")
  (new-inbound (call) (:default #'new-inbound)
    "A new INBOUND, of the transport's own kind.")
  (new-outbound (call) (:default #'new-outbound)
    "A new OUTBOUND, of the transport's own kind.")
  (new-callbacks (call) (:default #'new-callbacks)
    "New CALLBACKS, of the transport's own kind.")
  (new-own-options (call) (:default #'new-own-options)
    "New OWN-OPTIONS, of the transport's own kind.")
  ;; how a thread waits
  (drive (call ready-p) (:default #'nothing)
    "Run the loop, if this thread may, until (READY-P CALL) is true or the call has ended. Return
true then; false if this thread may not run the loop, or only for a part of that time.")
  (park (call ready-p) (:default #'park)
    "Sleep until (READY-P CALL) is true or the call has ended; return the last value of READY-P.")
  ;; data of the call
  (now (call) ()
    "The time now, in nanoseconds, by the clock of the call's deadline.")
  (peer (call) ()
    "The peer's address, a string, or nil before the call has a peer.")
  (security (call) (:default #'nothing)
    "The TLS data of the connection; nil without TLS, or without a connection.")
  (observer (call) (:default #'nothing)
    "The OBSERVER of the call's channel or server; nil if it has none.")
  (traffic (call) (:thread :loop :default #'no-traffic)
    "Return how many octets of messages the call has sent and received, as reported to its observer;
for a client's call on the wire, in its present attempt. A third value is the time when the call
began, by its loop's clock if it is on the wire.")
  (told-size (call) (:thread :loop :default #'nothing)
    "While an observer is called for a message: the message's octets on the wire if it is
compressed, or t if that number is not known yet; nil if the message is not compressed.")
  (receive-limit (call) (:default #'no-limit)
    "The maximum length, in octets, of a message for the call.")
  (repeats (call) (:thread :loop :end :client :default #'no-repeats)
    "Four values for a call that has just ended: its numbers of retries, of hedges, and of attempts
repeated because their server had not seen them; and the nanoseconds in which no attempt ran.")
  (elapsed-ns (call) (:thread :loop :default #'no-octets)
    "The duration, in nanoseconds, of the call, which has just ended and has an observer.")
  (protocol (call) (:end :server :default #'nothing)
    "The protocol by which the call has come over the network, a keyword such as :grpc or :connect;
nil for a call within the image and for a plain request.")
  (server (call) (:end :server :default #'nothing)
    "The server of the call, or nil for a service object without a server.")
  (particulars (call) (:default #'nothing)
    "A plist for the trace of the beginning of the call, besides its method.")
  (stage (call) (:thread :loop :default #'nothing)
    "The stage that the call, which runs, has reached: one of the keywords of CALL-STAGES, or nil.")
  (stages (call) (:default #'nothing)
    "The plist of CALL-STAGES, without :STAGE and :UNSENT-OCTETS.")
  (last-error (call) (:thread :loop :default #'nothing)
    "The last failure of the step that the call waits for, such as connecting, as text, or nil.")
  (unsent-octets (call) (:thread :loop :default #'no-octets)
    "The octets from the user that the peer has not received.")
  (crowded (call) (:default #'nothing)
    "True if octets of the call's connection wait for its peer to receive them.")
  (other-end (call) (:default #'nothing)
    "The call at the other end, if that is in this image.")
  ;; futures, which CALL-ASYNC returns
  (future-p (call) (:end :client)
    "True if the call is its own future.")
  (reply-of-future (call) (:end :client)
    "The reply of a future that has ended with :ok, or the RPC-ERROR if the reply is invalid.")
  (reserve-of-future (call) (:end :client)
    "The reserve whose threads run the future's completions, or nil if it is closed."))

(document-functions
  operations-client-p "True of the operations of clients' calls.")

;;; The ends of transports

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defun end-operations (name end given)
    "The arguments of MAKE-OPERATIONS for NAME, an END of a transport with the operations GIVEN, a
plist."
    (loop for (key) on given by #'cddr
          do (find-contract-row key))
    (list* :client-p (eq end :client)
           (loop for row in *contract*
                 for operation = (contract-row-name row)
                 for key = (intern (string operation) '#:keyword)
                 for function = (getf given key)
                 for foreign = (and (contract-row-end row) (not (eq end (contract-row-end row))))
                 do (when (and foreign function)
                      (error "~S: the ~(~A~) end has no operation ~S." name end operation))
                    (unless (or foreign function (contract-row-default row))
                      (error "~S lacks the operation ~S ~S: ~A" name operation
                             (contract-row-lambda-list row) (contract-row-text row)))
                 append (cond (foreign
                               (list key (if (eq end :client)
                                             '#'not-for-clients
                                             '#'not-for-handlers)))
                              (function (list key function)))))))

(defun takes-p (function count)
  "True if FUNCTION accepts COUNT arguments, or its lambda list is not known."
  (let ((lambda-list (sb-kernel:%fun-lambda-list function)))
    (multiple-value-bind (keywords required optional rest)
        (sb-int:parse-lambda-list (if (listp lambda-list) lambda-list '(&rest unknown))
                                  :silent t)
      (declare (ignore keywords))
      (and (<= (length required) count)
           (or rest (<= count (+ (length required) (length optional))))))))

(defun checked-operations (operations)
  "Return OPERATIONS. Signal an error unless each function accepts the arguments in the contract."
  (dolist (row *contract* operations)
    (let ((function (funcall (operation-reader (contract-row-name row)) operations)))
      (unless (takes-p function (length (contract-row-lambda-list row)))
        (error "~S, the operation ~S of a transport, does not take ~S." function
               (contract-row-name row) (contract-row-lambda-list row))))))

(defmacro define-transport-end (name (end &key like) &body operations)
  "Define the global NAME: the OPERATIONS of the END, :client or :server, of a transport's calls. If
END is nil, these operations are only a base for other ends, which name them by :LIKE NAME.
OPERATIONS is a plist from operation to a form for its function. A missing operation is taken from
LIKE, the name of another end, or else is the default. Signal an error at compile time for an
operation that the contract does not have, and for a missing operation without a default. Signal an
error at load time if a function does not accept the arguments of its operation."
  (let ((all (append operations (and like (get like 'operations)))))
    `(progn
       (eval-when (:compile-toplevel :load-toplevel :execute)
         (setf (get ',name 'operations) ',all))
       (sb-ext:define-load-time-global ,name
           ,(and end `(checked-operations (make-operations ,@(end-operations name end all))))))))

(defun contract-table ()
  "The contract, a list of lists of texts: operation, thread, end, default, meaning."
  (flet ((lower (object) (format nil "`~(~A~)`" object)))
    (loop for row in *contract*
          collect (list (lower (cons (contract-row-name row) (contract-row-lambda-list row)))
                        (ecase (contract-row-thread row)
                          (:any "any")
                          (:loop "the call's loop")
                          (:receiver "that receives"))
                        (case (contract-row-end row)
                          (:client "clients'")
                          (:server "handlers'")
                          (t "both"))
                        (let ((default (contract-row-default row)))
                          (if default (lower (second default)) "none"))
                        (substitute #\Space #\Newline (contract-row-text row))))))
