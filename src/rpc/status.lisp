;;;; Status codes (gRPC "Status codes and their use"), declared once: the table below gives each
;;;; code its keyword, number, condition class and meaning. RPC-ERROR is the root of what ends a
;;;; call badly; handler code ends its call with FAIL. The status message travels percent-encoded
;;;; (gRPC over HTTP/2, "Status-Message").

(in-package #:clgrpc.rpc)

(define-condition rpc-error (clgrpc-error)
  ((status :initarg :status :initform :unknown :reader rpc-error-status)
   (message :initarg :message :initform "" :reader rpc-error-message)
   (details :initarg :details :initform nil :reader rpc-error-raw-details)
   (trailers :initarg :trailers :initform nil :reader rpc-error-trailers)
   (call :initarg :call :initform nil :reader rpc-error-call)
   (peer :initarg :peer :initform nil :reader rpc-error-peer)
   (ended-by :initarg :ended-by :initform :peer :reader rpc-error-ended-by)
   (cause :initarg :cause :initform nil :reader rpc-error-cause)
   (sent :initarg :sent :initform t :reader rpc-error-sent-p))
  (:report report-rpc-error)
  (:documentation "A call ended with a status other than :ok. STATUS is a keyword, MESSAGE the text
that came with it, DETAILS a list of messages or the octets of grpc-status-details-bin, TRAILERS an
alist, CALL the call. ENDED-BY says who ended it: :peer (its status), :local (deadline,
cancellation, limits) or :transport; CAUSE is the frame, code or errno behind it as text, or nil.
SENT is nil if the request certainly never reached the peer's application, so that repeating it is
safe."))

(define-hot (failure-p :inline t) (object) boolean
  "True if OBJECT, a message or what stands in its place, is an RPC-ERROR. Whether it is a message
is known at a glance, whether it is a condition is not."
  (and (not (protobuf:message-p object))
       (typep object 'rpc-error)))

(document-functions
  rpc-error-status "The status of the call that ended badly, a keyword such as :not-found."
  rpc-error-message "The text that came with the status, maybe empty."
  rpc-error-trailers "The trailing metadata of the call, an alist."
  rpc-error-call "The call that ended, or nil."
  rpc-error-peer "The address of the peer, \"127.0.0.1:50051\", or nil if there was none yet."
  rpc-error-ended-by "Who ended the call: :peer (its status), :local (deadline, cancellation, a
limit) or :transport (the connection)."
  rpc-error-cause "The frame, code or errno behind the error, as text, or nil."
  rpc-error-sent-p "True if the request may have reached the peer's application; if false, it is
safe to repeat the call.")

(defconstant +reported-characters+ 4000
  "So much of what a peer says of an error is in the report: all that a server of ours may say.")

(defun report-rpc-error (condition stream)
  "Print CONDITION as one line, whatever the peer has written into its message."
  (with-slots (status message peer ended-by cause sent) condition
    (flet ((visible (text)
             (and text
                  (visible-text (if (stringp text) text (bounded-text text))
                                :limit +reported-characters+))))
      (format stream "~:@(~A~)~@[: ~A~]~@[ (peer ~A)~]~@[; ended by ~(~A~)~]~@[: ~A~]~
                      ~:[; never sent~;~]~@[; ~A~]"
              (substitute #\_ #\- (string status))
              (and (plusp (length message)) (visible message)) peer
              (and (not (eq ended-by :peer)) ended-by) (visible cause) sent
              (rpc-error-reason condition)))))

(defstruct (status-row (:copier nil))
  "A row of the status table."
  (keyword :ok :type keyword)
  (code 0 :type (integer 0 16))
  (condition nil :type symbol)
  (meaning "" :type string))

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
  (:unknown 2 unknown "An error of which nothing more is known.")
  (:invalid-argument 3 invalid-argument "The request is wrong whatever the state of the system.")
  (:deadline-exceeded 4 deadline-exceeded "The deadline passed before the call was done.")
  (:not-found 5 not-found "Something that was asked for does not exist.")
  (:already-exists 6 already-exists "What was to be made exists already.")
  (:permission-denied 7 permission-denied "The caller may not do this.")
  (:resource-exhausted 8 resource-exhausted "A quota, limit or store is used up.")
  (:failed-precondition 9 failed-precondition "The system is not in the state this call needs.")
  (:aborted 10 aborted "A conflict such as a lost transaction; repeat at a higher level.")
  (:out-of-range 11 out-of-range "The request went past the valid range.")
  (:unimplemented 12 unimplemented "The method is not there or not supported.")
  (:internal 13 internal "An invariant of the system is broken.")
  (:unavailable 14 unavailable "The service cannot be reached now; try again with a back-off.")
  (:data-loss 15 data-loss "Data is lost or damaged beyond repair.")
  (:unauthenticated 16 unauthenticated "The caller's credentials are missing or wrong."))

(defun status-row (status)
  (or (find status (the simple-vector **statuses**) :key #'status-row-keyword)
      (misuse "~S is not a status; the statuses are ~{~S~^, ~}." status
              (map 'list #'status-row-keyword **statuses**))))

(defun status-code (status)
  "Return the number, 0 to 16, of the keyword STATUS. Signal MISUSE if it is none."
  (status-row-code (status-row status)))

(defun code-status (code)
  "Return the keyword of the status number CODE; :unknown for a number that gRPC does not define."
  (if (typep code '(integer 0 16))
      (status-row-keyword (svref **statuses** code))
      :unknown))

(defun make-rpc-error (status &rest initargs &key &allow-other-keys)
  "Return a condition of the class that belongs to STATUS; INITARGS as the slots of RPC-ERROR."
  (apply #'make-condition (or (status-row-condition (status-row status)) 'rpc-error)
         :status status initargs))

(defun fail (status message &key details trailers)
  "End the running handler's call with STATUS, a keyword other than :ok, and MESSAGE, a string for
developers, or nil. DETAILS is a list of messages that say more, such as those of the package
GOOGLE.RPC, or octets for grpc-status-details-bin; TRAILERS an alist added to the trailing metadata.
Signal MISUSE for what is none of these."
  (when (eq :ok status)
    (misuse "A handler that succeeds returns; it does not fail with :ok."))
  (unless (typep message '(or null string))
    (misuse "The message of a status is a string, not ~S." message))
  (unless (or (typep details 'octets)
              (and (listp details) (every (lambda (detail) (typep detail 'protobuf:message))
                                           details)))
    (misuse "The details of a status are a list of messages, not ~S." details))
  (error (make-rpc-error status :message message :details details :trailers trailers
                                :ended-by :local)))

;;; HTTP and HTTP/2 codes to status (gRPC "HTTP to gRPC status code mapping"; gRPC over HTTP/2,
;;; "Errors")

(defun http-status-status (http-status)
  "The status that the HTTP-STATUS of a response without grpc-status stands for."
  (case http-status
    (400 :internal) (401 :unauthenticated) (403 :permission-denied) (404 :unimplemented)
    ((429 502 503 504) :unavailable)
    (t :unknown)))

(defun error-code-status (error-code)
  "The status that a stream reset with the HTTP/2 ERROR-CODE stands for."
  (cond ((= error-code http2:+refused-stream+) :unavailable)
        ((= error-code http2:+cancel+) :cancelled)
        ((= error-code http2:+enhance-your-calm+) :resource-exhausted)
        ((= error-code http2:+inadequate-security+) :permission-denied)
        (t :internal)))

;;; Percent-encoding of grpc-message

(define-hot (hex-digit :inline t) ((value (unsigned-byte 4))) octet
  (char-code (schar "0123456789ABCDEF" value)))

(define-hot status-char-octets ((message simple-string) (i index)) (integer 1 12)
  "How many octets of grpc-message the character at I of MESSAGE becomes: each octet of its UTF-8
three, if it does not stand for itself."
  (let ((code (char-code (schar message i))))
    (cond ((>= code #x10000) 12)
          ((>= code #x800) 9)
          ((>= code #x80) 6)
          ((= code #x20) (if (or (= i 0) (= i (1- (length message)))) 3 1))
          ((and (< #x20 code #x7F) (/= code #x25)) 1)
          (t 3))))

(define-hot status-message-end ((message simple-string) (limit index)) (values index index boolean)
  "Where to stop encoding MESSAGE so that there are LIMIT octets at most, how many there are, and
whether that is not all of it, so that an ellipsis is to follow, for which there is room."
  (let ((size 0) (end 0) (end-size 0))
    (declare (type index size end end-size))
    (dotimes (i (length message) (values (length message) size nil))
      (when (<= (+ size 3) limit)
        (setf end i
              end-size size))
      (incf size (status-char-octets message i))
      (when (> size limit)
        (return (values end end-size t))))))

(define-hot write-status-char ((octets octets) (at index) (code (unsigned-byte 21))) index
  "Write the character CODE, percent-encoded, into OCTETS at AT; return the position after it."
  (flet ((write-octet (octet)
           (setf (aref octets at) #x25
                 (aref octets (+ at 1)) (hex-digit (ash octet -4))
                 (aref octets (+ at 2)) (hex-digit (logand octet 15)))
           (incf at 3))
         (later (shift) (logior #x80 (ldb (byte 6 shift) code))))
    ;; UTF-8 has no surrogates
    (when (<= #xD800 code #xDFFF) (setf code #xFFFD))
    (cond ((< code #x80) (write-octet code))
          ((< code #x800) (write-octet (logior #xC0 (ash code -6))))
          ((< code #x10000)
           (write-octet (logior #xE0 (ash code -12)))
           (write-octet (later 6)))
          (t (write-octet (logior #xF0 (ash code -18)))
             (write-octet (later 12))
             (write-octet (later 6))))
    (when (>= code #x80) (write-octet (later 0)))
    at))

(defun encode-status-message (message &optional (limit (ash 1 40)))
  "Return the octets of grpc-message for the string MESSAGE: of its beginning and an ellipsis, if
the whole would be longer than LIMIT octets. Blanks at its ends are encoded as well, since HTTP/2
allows none there (RFC 9113 section 8.2.1)."
  (let ((message (coerce message 'simple-string)))
    (multiple-value-bind (end size cut) (status-message-end message limit)
      (let ((octets (make-octets (if (and cut (plusp end)) (+ size 3) size)))
            (at 0))
        (dotimes (i end)
          (let ((code (char-code (schar message i))))
            (cond ((= 1 (status-char-octets message i))
                   (setf (aref octets at) code)
                   (incf at))
                  (t (setf at (write-status-char octets at code))))))
        (fill octets (char-code #\.) :start at)
        octets))))

(defun decode-status-message (octets)
  "Return the string that grpc-message's OCTETS stand for. Never fails: broken escapes stay as they
are, octets that are not UTF-8 become U+FFFD."
  (let ((buffer (make-buffer :size (length octets)))
        (at 0))
    (loop while (< at (length octets))
          do (let ((value (and (= #x25 (aref octets at)) (hex-pair octets (1+ at)))))
               (append-octet buffer (or value (aref octets at)))
               (incf at (if value 3 1))))
    (handler-case (decode-utf8 (buffer-octets buffer) 0 (buffer-end buffer))
      (invalid-utf8 ()
        (map 'string (lambda (octet) (if (< octet 128) (code-char octet) (code-char #xFFFD)))
             (subseq (buffer-octets buffer) 0 (buffer-end buffer)))))))

(defun hex-pair (octets at)
  (flet ((digit (position)
           (and (< position (length octets)) (digit-char-p (code-char (aref octets position)) 16))))
    (let ((high (digit at)) (low (digit (1+ at))))
      (and high low (+ (* 16 high) low)))))
