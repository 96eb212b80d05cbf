;;;; Status codes (gRPC "Status codes and their use"): the table below gives each code its keyword,
;;;; number, condition class and meaning. RPC-ERROR is the root of the errors that end calls;
;;;; handler code ends its call with FAIL. The status message is sent percent-encoded (gRPC over
;;;; HTTP/2, "Status-Message").

(in-package #:clgrpc.status)

(define-condition rpc-error (clgrpc-error)
  ((status :initarg :status :initform :unknown :reader rpc-error-status) ; a keyword
   (message :initarg :message :initform "" :reader rpc-error-message) ; the text with the status
   ;; a list of messages, or octets as they came
   (details :initarg :details :initform nil :reader rpc-error-raw-details)
   (trailers :initarg :trailers :initform nil :reader rpc-error-trailers) ; an alist
   (call :initarg :call :initform nil :reader rpc-error-call) ; the call that ended, or nil
   (peer :initarg :peer :initform nil :reader rpc-error-peer) ; the peer's address, or nil
   ;; :peer, :local or :transport
   (ended-by :initarg :ended-by :initform :peer :reader rpc-error-ended-by)
   (cause :initarg :cause :initform nil :reader rpc-error-cause) ; the frame, code or errno, or nil
   ;; nil if the call never reached the peer
   (sent :initarg :sent :initform t :reader rpc-error-sent-p))
  (:report report-rpc-error)
  (:documentation "A call ended with a status other than :ok. STATUS is a keyword, and MESSAGE is
the text sent with it. DETAILS is a list of messages or the octets of grpc-status-details-bin.
TRAILERS is an alist, and CALL is the call. ENDED-BY is the origin of the end: :peer (its status),
:local (deadline, cancellation, limits) or :transport. CAUSE is the frame, code or errno that caused
it, as text; nil if no such cause is known. SENT is nil if the request certainly never reached the
peer's application; then it is safe to repeat the call."))

(define-hot (failure-p :inline t) (object) boolean
  "True if OBJECT is an RPC-ERROR and not a message. The test for a message comes first, since it is
quicker than the test for a condition."
  (and (not (protobuf:message-p object))
       (typep object 'rpc-error)))

(document-functions
  rpc-error-status "The status of the call that failed, a keyword such as :not-found."
  rpc-error-message "The text that was sent with the status; it may be empty."
  rpc-error-trailers "The trailing metadata of the call, an alist."
  rpc-error-call "The call that ended; nil if the error has no call."
  rpc-error-peer "The address of the peer, \"127.0.0.1:50051\", or nil if the call had no peer yet."
  rpc-error-ended-by "The origin of the call's end: :peer (its status), :local (deadline,
cancellation, a limit) or :transport (the connection)."
  rpc-error-cause "The frame, code or errno that caused the error, as text; nil if no such cause is
known."
  rpc-error-sent-p "True if the request may have reached the peer's application; if false, it is
safe to repeat the call.")

(defconstant +reported-characters+ 4000
  "The maximum number of characters of a peer's text in the report of an error; this library's
servers send no longer text.")

(defun report-rpc-error (condition stream)
  "Print CONDITION as one line, with any text of the peer in its message."
  (with-slots (status message peer ended-by cause sent) condition
    (flet ((visible (text)
             (and text
                  (printable-text (if (stringp text) text (bounded-text text))
                                  :limit +reported-characters+))))
      (format stream "~:@(~A~)~@[: ~A~]~@[ (peer ~A)~]~@[; ended by ~(~A~)~]~@[: ~A~]~
                      ~:[; never sent~;~]~@[; ~A~]"
              (substitute #\_ #\- (string status))
              (and (plusp (length message)) (visible message)) peer
              (and (not (eq ended-by :peer)) ended-by) (visible cause) sent
              (rpc-error-reason condition)))))

(defgeneric rpc-error-reason (error)
  (:method ((error t)) nil)
  (:documentation "Return one line of text about the call of ERROR, an RPC-ERROR: its duration, the
step for which the call waited, the failures of that step so far, and the times of its stages. Nil
if ERROR has no call. ERROR's report ends with this line. From any thread."))

(defstruct (status-row (:copier nil))
  "A row of the status table."
  (keyword :ok :type keyword)           ; the status's name in code
  (code 0 :type (integer 0 16))         ; the status's number on the wire
  (condition nil :type symbol)          ; the class of the error, or nil for :ok
  (meaning "" :type string))            ; the status's documentation

(defglobal **statuses** (vector))

(defmacro define-statuses (&body rows)
  "Define the status table and a subclass of RPC-ERROR for each of ROWS: (keyword code condition
meaning)."
  `(progn
     (setf **statuses**
           (vector ,@(loop for (keyword code condition meaning) in rows
                           collect `(make-status-row :keyword ,keyword :code ,code
                                                     :condition ',condition :meaning ,meaning))))
     ,@(loop for (keyword nil condition meaning) in rows
             when condition
               collect `(define-condition ,condition (rpc-error) ()
                          (:default-initargs :status ,keyword)
                          (:documentation ,meaning)))))

(define-statuses
  (:ok 0 nil "The call succeeded.")
  (:cancelled 1 cancelled "The call was cancelled, usually by the caller.")
  (:unknown 2 unknown "An error without further information.")
  (:invalid-argument 3 invalid-argument "The request is wrong in any state of the system.")
  (:deadline-exceeded 4 deadline-exceeded "The deadline passed before the call was done.")
  (:not-found 5 not-found "A requested object does not exist.")
  (:already-exists 6 already-exists "The object to be created exists already.")
  (:permission-denied 7 permission-denied "The caller may not do this.")
  (:resource-exhausted 8 resource-exhausted "A quota, limit or store is used up.")
  (:failed-precondition 9 failed-precondition "The system is not in the state this call needs.")
  (:aborted 10 aborted "A conflict such as a lost transaction; repeat at a higher level.")
  (:out-of-range 11 out-of-range "The request exceeds the valid range.")
  (:unimplemented 12 unimplemented "The method does not exist, or the server does not support it.")
  (:internal 13 internal "An invariant of the system is broken.")
  (:unavailable 14 unavailable "The service cannot be reached now; try again with a back-off.")
  (:data-loss 15 data-loss "Data is lost or damaged beyond repair.")
  (:unauthenticated 16 unauthenticated "The caller's credentials are missing or wrong."))

(defun status-row (status)
  (or (find status (the simple-vector **statuses**) :key #'status-row-keyword)
      (misuse "~S is not a status; the statuses are ~{~S~^, ~}." status
              (map 'list #'status-row-keyword **statuses**))))

(defun status-code (status)
  "Return the number, 0 to 16, of the keyword STATUS. Signal MISUSE if STATUS is not a status. From
any thread."
  (status-row-code (status-row status)))

(defun code-status (code)
  "Return the keyword of the status number CODE; :unknown for a number that gRPC does not define.
From any thread."
  (if (typep code '(integer 0 16))
      (status-row-keyword (svref **statuses** code))
      :unknown))

(defparameter *application-statuses*
  '(:ok :invalid-argument :not-found :already-exists :failed-precondition :aborted :out-of-range
    :data-loss)
  "The statuses that only applications may give to calls.")

(defun control-status (status text)
  "The status and the text with which a call ends if a component between its user and its server,
such as a balancer or call credentials, gives STATUS and TEXT. These are STATUS and TEXT themselves;
but if only applications may use STATUS, the status is :internal, since STATUS would look like the
server's status (gRFC A54). Signal MISUSE if STATUS is not a status."
  (if (member (status-row-keyword (status-row status)) *application-statuses*)
      (values :internal (format nil "~A (only applications may give ~A, so this is a bug)" text
                                (substitute #\_ #\- (string status))))
      (values status text)))

(defun make-rpc-error (status &rest initargs &key &allow-other-keys)
  "Return a condition of the class for the keyword STATUS, with INITARGS for the slots of RPC-ERROR.
Signal MISUSE if STATUS is not a status. From any thread."
  (apply #'make-condition (or (status-row-condition (status-row status)) 'rpc-error)
         :status status initargs))

(deftype unnamed-code ()
  "The numbers of statuses that have no keyword."
  '(integer 17 #x7FFFFFFF))
