;;;; The binary log (gRFC A16): an entry for each thing that happens to a call, for gRPC's tools. It
;;;; is a source of observers, for servers and channels; they tell of metadata and messages where
;;;; these go out and come in, so the entries of a call are in the order in which things happened.
;;;;
;;;; What is logged of a call at one of its ends is kept in a RECORD, a value on the call. A call
;;;; that the filter leaves out has none. An entry is serialised where it happens, cut as the filter
;;;; says, and put into a journal, whose thread writes it; so a full disk or a slow function of the
;;;; user delays no call. What finds the journal full is dropped and counted.
;;;;
;;;; Of a call that is made again, each message of the client is logged once, when the first attempt
;;;; sends it, and of the server what the attempt that counts brings. A file is a row of entries,
;;;; each behind four octets of its length, the highest first, as grpc-go writes them.

(in-package #:clgrpc.logs)

(defclass binary-log ()
  ((filter :initarg :filter :reader binary-log-filter) ; a FILTER
   (stream :initarg :stream :reader binary-log-stream) ; of octets, or nil
   (function :initarg :function :reader binary-log-function) ; of an entry, or nil
   (journal :accessor binary-log-journal) ; of octets, one vector for each entry
   ;; how many calls were logged, and how many entries were lost; atomic
   (counts :initform (make-array 2 :element-type 'sb-ext:word :initial-element 0)
           :reader binary-log-counts))
  (:documentation "Entries for calls of servers and channels: see MAKE-BINARY-LOG."))

(defstruct (record (:copier nil))
  "What is logged of a call at one of its ends."
  (log nil :type binary-log :read-only t) ; that has it
  (limits nil :type limits :read-only t) ; how much is logged
  (client-p nil :type boolean :read-only t) ; which end this is
  (id 0 :type (unsigned-byte 64) :read-only t) ; of the call in LOG
  (lock (sb-thread:make-mutex :name "clgrpc binary log") :read-only t) ; held to change what follows
  (sequence 0 :type (unsigned-byte 62)) ; how many entries there are
  (authority nil :type (or null string)) ; that the client has asked for
  (answered nil :type boolean)          ; the headers of the answer are logged
  (half-closed nil :type boolean)       ; so is the end of the client's side
  (peer nil :type boolean)              ; and the peer
  (requested nil :type boolean))        ; and the client's only message

(declaim (sb-ext:freeze-type record))

(defun write-entries (log entries dropped)
  "Give ENTRIES, the oldest first, to the sink of LOG. DROPPED were lost before them."
  (let ((stream (binary-log-stream log))
        (function (binary-log-function log))
        (lost dropped))
    (flet ((lose (condition)
             (when (= lost dropped)     ; once for all ENTRIES
               ;; a journal's thread logs nothing, since it may be the log's own
               (let ((*log-function* (sb-ext:symbol-global-value '*log-function*)))
                 (log-event :warning :binary-log-failed :condition condition)))
             (incf lost)))
      (dolist (entry entries)
        (handler-case
            (cond ((functionp entry)    ; somebody waits until all before it is written
                   (when stream (finish-output stream))
                   (funcall entry))
                  (t (when stream (write-entry entry stream))
                     (when function
                       (funcall function (protobuf:parse-message 'binlog:grpc-log-entry entry)))))
          (serious-condition (condition) (lose condition))))
      (when stream
        (handler-case (finish-output stream)
          (serious-condition (condition) (lose condition)))))
    (sb-ext:atomic-incf (aref (the (simple-array sb-ext:word (2)) (binary-log-counts log)) 1)
                        lost)))

(defun write-entry (octets stream)
  "Write the entry OCTETS, behind its length, to STREAM."
  (let ((prefix (make-octets 4)))
    (setf (u32be prefix 0) (length octets))
    (write-sequence prefix stream)
    (write-sequence octets stream)))

(defun make-binary-log (&key (filter (or (sb-ext:posix-getenv "GRPC_BINARY_LOG_FILTER") ""))
                          file function (limit 10000))
  "Return a binary log (gRFC A16), for :observer of START-SERVER, MAKE-CHANNEL or SERVER-CHANNEL: of
each call that FILTER is for, what it sends and receives is logged. FILTER, a string, is as
GRPC_BINARY_LOG_FILTER has it, whose value it is by default, such as \"*\" or
\"shop.Orders/*{h;m:256},-shop.Orders/Pay\"; the empty one logs nothing. Entries are written to
FILE, a pathname, which is replaced, each behind four octets of its length, as gRPC's tools read
them; and FUNCTION, or nil, is called with each, a GRPC.BINARYLOG.V1:GRPC-LOG-ENTRY, on a thread of
the log. At most LIMIT entries wait to be written, and 16 MB of them; further ones are dropped, see
BINARY-LOG-DROPPED. Messages and metadata may hold what nobody else should read: the file is for its
owner alone. Signal MISUSE for a FILTER that is wrong. From any thread; see CLOSE-BINARY-LOG."
  (unless (stringp filter) (misuse ":filter is a string, not ~S." filter))
  (unless (typep function '(or function symbol)) (misuse ":function is no function: ~S." function))
  (unless (typep limit '(integer 1)) (misuse ":limit is a positive integer, not ~S." limit))
  (let* ((filter (parse-filter filter))
         (log (make-instance 'binary-log
                             :filter filter :function function
                             :stream (and file (open-log-file file)))))
    (setf (binary-log-journal log)
          (open-journal (lambda (entries dropped) (write-entries log entries dropped)) limit))
    log))

(defun open-log-file (file)
  "A stream to FILE, new and for its owner alone from the start, that takes octets. Refuse to write
over what is no regular file."
  (let* ((name (sb-ext:native-namestring (merge-pathnames file)))
         (path (string-octets name)))
    (when (os:regular-file-p path)
      (os:remove-file path))
    (let ((descriptor (os:create-file path #o600)))
      (when (os:failed-p descriptor)
        (misuse "Cannot write ~A: ~A" name (os:errno-text descriptor)))
      (sb-sys:make-fd-stream descriptor :output t :buffering :full :file name
                                        :element-type '(unsigned-byte 8)))))

(defun close-binary-log (log)
  "Write what waits to be written of LOG and close its file. Give LOG to nothing that goes on.
Closing again does nothing. From any thread but an event loop's."
  (flush-log)
  (when (binary-log-stream log) (close (binary-log-stream log)))
  nil)

(defun binary-log-dropped (log)
  "How many entries of LOG were lost so far, since too many waited to be written or they could not
be. From any thread."
  (aref (the (simple-array sb-ext:word (2)) (binary-log-counts log)) 1))

(defmethod print-object ((log binary-log) stream)
  (print-unreadable-object (log stream :type t)
    (format stream "~:[~;of ~:*~A, ~]~D dropped"
            (and (binary-log-stream log) (ignore-errors (pathname (binary-log-stream log))))
            (binary-log-dropped log))))

(defconstant +longest-entry+ (expt 2 26)
  "A longer entry is taken for a file that is no binary log.")

(defun read-binary-log (stream)
  "Read the next entry of a binary log from STREAM, which gives octets, and return it, a
GRPC.BINARYLOG.V1:GRPC-LOG-ENTRY; nil at the end. Signal PROTOBUF-ERROR if what is there is none,
MISUSE if STREAM ends within it."
  (let* ((prefix (make-octets 4))
         (read (read-sequence prefix stream)))
    (unless (zerop read)
      (let* ((size (if (= 4 read) (u32be prefix 0) 0))
             (octets (make-octets (min size +longest-entry+))))
        (unless (and (= 4 read) (<= size +longest-entry+) (= size (read-sequence octets stream)))
          (misuse "The binary log ends within an entry, or is none."))
        (protobuf:parse-message 'binlog:grpc-log-entry octets)))))

;;; Entries

(defun add-log-entry (record type &rest payload)
  "Log an entry of TYPE with PAYLOAD, keywords and values of MAKE-GRPC-LOG-ENTRY. RECORD's lock is
held."
  (add-to-journal (binary-log-journal (record-log record))
             (protobuf:serialize
              (apply #'binlog:make-grpc-log-entry
                     :timestamp (ns-timestamp (real-time-ns))
                     :call-id (record-id record)
                     :sequence-id-within-call (incf (record-sequence record))
                     :type type
                     :logger (if (record-client-p record) :logger-client :logger-server)
                     payload))))

(defun peer-payload (record call)
  "The keywords that say who the peer of CALL is, once."
  (let ((peer (rpc:call-peer call)))
    (when (and peer (not (shiftf (record-peer record) t)))
      (list :peer (log-address peer)))))

(defun begin-record (log call)
  "The record of CALL, which has begun, in LOG; nil if it is not logged."
  (let* ((method (call-rpc-method call))
         (limits (and method (limits-for (binary-log-filter log)
                                         (service:rpc-method-path method)))))
    (when limits
      (setf (rpc:call-value call 'record)
            (make-record :log log :limits limits :client-p (rpc:client-p call)
                         :id (1+ (sb-ext:atomic-incf
                                  (aref (the (simple-array sb-ext:word (2))
                                             (binary-log-counts log))
                                        0))))))))

(defmacro with-record ((record call) &body body)
  "Evaluate BODY with RECORD bound to that of CALL and its lock held, if CALL is logged."
  `(let ((,record (rpc:call-value ,call 'record)))
     (when ,record
       (sb-thread:with-mutex ((record-lock ,record)) ,@body))))

(defun request-metadata (call)
  "The metadata of CALL's client, an alist, without what says who calls."
  (let ((other (operate other-end call)))
    (if (rpc:client-p call)
        (remove "authorization"
                (or (rpc:outgoing-metadata call) (and other (rpc:call-metadata other)))
                :key #'car :test #'string=)
        (rpc:call-metadata call))))

(defun log-request (record call)
  "Log the headers of CALL's client."
  (multiple-value-bind (metadata truncated)
      (log-metadata (request-metadata call) (limits-header (record-limits record)))
    (let ((deadline (rpc:call-deadline call)))
      (apply #'add-log-entry record :event-type-client-header
             :client-header (binlog:make-client-header
                             :metadata metadata
                             :method-name (service:rpc-method-path (call-rpc-method call))
                             :authority (or (record-authority record) "")
                             :timeout (and (plusp deadline)
                                           (ns-duration (max 0 (- deadline (operate now call))))))
             :payload-truncated truncated
             (if (record-client-p record) '() (peer-payload record call))))))

(defun answer-metadata (call)
  "The initial metadata of CALL's handler, an alist."
  (if (rpc:client-p call)
      (operate metadata call (or (rpc:call-fields call) #()))
      (rpc:outgoing-metadata call)))

(defun log-answer (record call)
  "Log the headers of CALL's handler, unless they are logged."
  (unless (shiftf (record-answered record) t)
    (multiple-value-bind (metadata truncated)
        (log-metadata (answer-metadata call) (limits-header (record-limits record)))
      (apply #'add-log-entry record :event-type-server-header
             :server-header (binlog:make-server-header :metadata metadata)
             :payload-truncated truncated
             (if (record-client-p record) (peer-payload record call) '())))))

(defun log-half-close (record)
  "Log that the client sends no more, unless that is logged."
  (unless (shiftf (record-half-closed record) t)
    (add-log-entry record :event-type-client-half-close)))

(defun inflated (octets start end encoding)
  "The message that OCTETS from START to END, compressed by ENCODING, are, and where it begins and
ends; the arguments if they cannot be decompressed."
  (multiple-value-bind (outcome result length)
      (if encoding
          (os:inflate-octets encoding octets start end +longest-entry+)
          (values :plain octets end))
    (if (eq :ok outcome)
        (values result 0 length)
        (values octets start end))))

(defun log-content (record type octets start end encoding)
  "Log a message as an entry of TYPE."
  (multiple-value-bind (octets start end) (inflated octets start end encoding)
    (multiple-value-bind (message truncated)
        (log-message octets start end (limits-message (record-limits record)))
      (add-log-entry record type :message message :payload-truncated truncated))))

(defun log-client-message (record call octets start end encoding)
  "Log a message of CALL's client; if it is the only one, once, and that no more will come."
  (if (member (service:rpc-method-kind (call-rpc-method call)) '(:unary :server-streaming))
      (unless (shiftf (record-requested record) t)
        (log-content record :event-type-client-message octets start end encoding)
        (log-half-close record))
      (log-content record :event-type-client-message octets start end encoding)))

(defun log-sent (call octets start end encoding)
  "CALL has sent a message."
  (with-record (record call)
    (cond ((record-client-p record)
           (log-client-message record call octets start end encoding))
          (t (log-answer record call)   ; within the image nothing else tells of headers
             (log-content record :event-type-server-message octets start end encoding)))))

(defun log-received (call octets start end encoding)
  "CALL has received a message."
  (with-record (record call)
    (cond ((record-client-p record)
           (log-answer record call)
           (log-content record :event-type-server-message octets start end encoding))
          (t (log-client-message record call octets start end encoding)))))

(defun log-end (call)
  "CALL has ended."
  (with-record (record call)
    (let* ((status (call-status call))
           (error (if (eq :ok status) nil (rpc:call-condition call)))
           (ended-by (and error (status:rpc-error-ended-by error))))
      (when (and (rpc:client-p call) (plusp (length (rpc:call-fields call))))
        (log-answer record call))
      (if (and (eq :cancelled status)
               (eq ended-by (if (record-client-p record) :local :transport)))
          (add-log-entry record :event-type-cancel)
          (multiple-value-bind (metadata truncated)
              (log-metadata (rpc:call-trailers call) (limits-header (record-limits record)))
            (apply #'add-log-entry record :event-type-server-trailer
                   :trailer (binlog:make-trailer
                             :metadata metadata :status-code (status:status-code status)
                             :status-message (if error (status:rpc-error-message error) "")
                             :status-details (or (and error
                                                      (status:rpc-error-details-octets error))
                                                 (make-octets 0)))
                   :payload-truncated truncated
                   (if (and (record-client-p record) (member ended-by '(nil :peer)))
                       (peer-payload record call)
                       '())))))))

;;; The source of observers

(defmethod rpc:check-observer ((source binary-log)) source)

(defun begin-request (log call)
  "CALL has begun, and its headers are known: log them if it is logged at all."
  (when (begin-record log call)
    (with-record (record call)
      (setf (record-authority record) (getf (operate particulars call) :authority))
      (log-request record call))))

(defmethod rpc:observer-for ((source binary-log) &key role loop &allow-other-keys)
  (flet ((begin (call) (begin-request source call)))
    (if (filter-empty-p (binary-log-filter source))
        nil
        (apply #'rpc:make-observer
               :content-sent #'log-sent
               :content-received #'log-received
               :half-closed (lambda (call) (with-record (record call) (log-half-close record)))
               :call-ended #'log-end
               (cond ((null loop) (list :call-begun #'begin))
                     ((eq :client role)
                      (list :call-begun #'begin
                            :headers-received
                            (lambda (call)
                              (when (rpc:call-fields call)
                                (with-record (record call) (log-answer record call))))))
                     (t (list :request-begun
                              (lambda (call authority)
                                (when (begin-record source call)
                                  (with-record (record call)
                                    (setf (record-authority record) authority)
                                    (log-request record call))))
                              :headers-sent
                              (lambda (call)
                                (with-record (record call) (log-answer record call))))))))))
