;;;; The binary log (gRFC A16): an entry for each thing that happens to a call, for gRPC's tools. A
;;;; binary log is a source of observers, for servers and channels; they report metadata and
;;;; messages where these are sent and received, so the entries of a call are in the order of the
;;;; events.
;;;;
;;;; The data of a log about a call at one of its ends are in a RECORD, a value on the call whose
;;;; key is the log's own, since a call may have several logs. A call that the filter excludes has
;;;; no record. An entry is serialised where it happens, truncated by the filter's limits, and put
;;;; into a journal, whose thread writes it (entry-file.lisp); so neither a full disk nor a slow
;;;; function of the user delays a call. An entry that finds the journal full is dropped and
;;;; counted.
;;;;
;;;; A compressed message is put into the journal as received. The journal's thread decompresses
;;;; compressed messages, one at a time, and each only as far as it is logged, because it may become
;;;; thousands of times as long. So an attack on loops or on the heap by such messages fails.
;;;;
;;;; If a call is repeated, each message of the client is logged once, when the first attempt sends
;;;; it; of the server's messages only those of the committed attempt are logged.

(in-package #:clgrpc.logs)

(defclass binary-log ()
  ((filter :initarg :filter :reader binary-log-filter) ; a FILTER
   (file :initarg :file :reader binary-log-file) ; an ENTRY-FILE, or nil
   (function :initarg :function :reader binary-log-function) ; a function of an entry, or nil
   ;; the key of its records, which are values of calls
   (key :initform (make-symbol "RECORD") :reader binary-log-key)
   (journal :accessor binary-log-journal) ; a journal of entries: octets or DENSE
   ;; no loss is reported before this time
   (quiet-until-ns :initform 0 :accessor binary-log-quiet-until-ns)
   ;; how many calls were logged, and how many entries were lost; atomic
   (counts :initform (make-array 2 :element-type 'sb-ext:word :initial-element 0)
           :reader binary-log-counts))
  (:documentation "A log with entries for calls of servers and channels: see MAKE-BINARY-LOG."))

(defstruct (record (:copier nil))
  "The logged part of a call at one of its ends."
  (log nil :type binary-log :read-only t) ; the log that has the record
  (limits nil :type limits :read-only t) ; how much is logged
  (client-p nil :type boolean :read-only t) ; true at the client's end
  (id 0 :type (unsigned-byte 64) :read-only t) ; the id of the call in LOG
  (lock (sb-thread:make-mutex :name "clgrpc binary log") :read-only t) ; guards the slots below
  (sequence 0 :type (unsigned-byte 62)) ; how many entries there are
  (authority nil :type (or null string)) ; the authority for which the client has asked
  (answered nil :type boolean)          ; the headers of the answer are logged
  (half-closed nil :type boolean)       ; the end of the client's side is logged
  (peer nil :type boolean)              ; and the peer
  (requested nil :type boolean))        ; true if the client's only message is logged

(declaim (sb-ext:freeze-type record))

(defconstant +quiet-ns+ 10000000000
  "The shortest time between two reports of lost entries, in nanoseconds.")

(defun note-lost (log count why)
  "Count COUNT entries of LOG as lost because of WHY, a text or condition, and log the loss unless
another was logged recently."
  (sb-ext:atomic-incf (aref (the (simple-array sb-ext:word (2)) (binary-log-counts log)) 1) count)
  (note-lost-entries :binary count)
  (let ((now (monotonic-ns)))
    (when (<= (binary-log-quiet-until-ns log) now)
      (setf (binary-log-quiet-until-ns log) (+ now +quiet-ns+))
      ;; a journal's thread logs nothing, since the journal may be that of the process's log
      (let ((*log-function* (sb-ext:symbol-global-value '*log-function*)))
        (log-event :warning :binary-log-failed :reason why :dropped (binary-log-dropped log))))))

(defun write-entries (log entries dropped)
  "Give ENTRIES, the oldest first, to the file and the function of LOG. DROPPED entries were lost
before these. Call this on the journal's thread."
  (let ((file (binary-log-file log)) (function (binary-log-function log)))
    (flet ((note (lost why) (when (plusp lost) (note-lost log lost why))))
      (note dropped "too many entries waited")
      (dolist (entry entries)
        (handler-case
            (let ((octets (if (dense-p entry) (expand entry) entry)))
              (when file (multiple-value-call #'note (add-entry file octets)))
              (when function
                (funcall function (protobuf:parse-message 'binlog:grpc-log-entry octets))))
          (serious-condition (condition) (note 1 condition))))
      (when file (multiple-value-call #'note (write-gathered file))))))

(define-keyword-function make-binary-log
    (&key (filter (or (sb-ext:posix-getenv "GRPC_BINARY_LOG_FILTER") ""))
       file (max-octets 100000000) (kept-files 4) function (limit 10000))
  "Return a binary log (gRFC A16), for :observer of START-SERVER, MAKE-CHANNEL or SERVER-CHANNEL: it
logs headers, messages and trailers of each call that FILTER selects. FILTER is a string in the form
of the variable GRPC_BINARY_LOG_FILTER, its default, such as \"*\" or
\"shop.Orders/*{h;m:256},-shop.Orders/Pay\"; the empty string logs nothing. Of a message at most 8
MB are logged. Entries are written to FILE, a pathname, each after four octets of its length, as
gRPC's tools read them. The log begins a new FILE at once, and whenever FILE would get longer than
MAX-OCTETS; the old file becomes FILE.1, FILE.1 becomes FILE.2, and so on, up to KEPT-FILES old
files. FILE may be a device or a pipe. FUNCTION, or nil, is called with each entry, a
GRPC.BINARYLOG.V1:GRPC-LOG-ENTRY, on a thread of the log. At most LIMIT entries, and 16 MB in all,
wait to be written; further entries are dropped, see BINARY-LOG-DROPPED. Messages and metadata may
be private, so only the owner can read the file. Signal MISUSE for a FILTER that is wrong, and if
FILE cannot be written. From any thread; see CLOSE-BINARY-LOG and ROTATE-BINARY-LOG."
  (unless (stringp filter) (misuse ":filter is a string, not ~S." filter))
  (unless (typep function '(or function symbol))
    (misuse ":function is not a function: ~S." function))
  (loop for (name number least) in `((:limit ,limit 1) (:max-octets ,max-octets 1)
                                     (:kept-files ,kept-files 0))
        unless (typep number `(integer ,least 1000000000000))
          do (misuse "~S is an integer from ~D to 1000000000000, not ~S." name least number))
  (let* ((filter (parse-filter filter))
         (log (make-instance 'binary-log
                             :filter filter :function function
                             :file (and file (open-entry-file file max-octets kept-files)))))
    (setf (binary-log-journal log)
          (open-journal (lambda (entries dropped) (write-entries log entries dropped)) limit))
    log))

(defun close-binary-log (log)
  "Write the waiting entries of LOG, for 5 seconds at most, and close its file. No server or channel
may use LOG afterwards. Closing again does nothing. From any thread but an event loop's."
  (let ((file (binary-log-file log)) (done (sb-thread:make-semaphore)))
    (call-when-written (binary-log-journal log)
                       (lambda (written)
                         (declare (ignore written))
                         (when file (close-entry-file file))
                         (sb-thread:signal-semaphore done)))
    (sb-thread:wait-on-semaphore done :timeout 5)
    nil))

(defun rotate-binary-log (log)
  "Begin a new file of LOG when the waiting entries are written; the old file is kept, as in
MAKE-BINARY-LOG. Call this after a program such as logrotate has renamed the file, or to read its
contents; FLUSH-LOG waits until the new file has begun. From any thread."
  (let ((file (binary-log-file log)))
    (when file
      (call-when-written (binary-log-journal log)
                         (lambda (written)
                           (declare (ignore written))
                           (rotate-entry-file file))))
    nil))

(defun binary-log-dropped (log)
  "Return how many entries of LOG were lost so far, because too many waited or because writing
failed. From any thread."
  (aref (the (simple-array sb-ext:word (2)) (binary-log-counts log)) 1))

(define-printer (log binary-log)
  "~:[~;of ~:*~A, ~]~D dropped"
  (and (binary-log-file log) (entry-file-name (binary-log-file log))) (binary-log-dropped log))

(defconstant +longest-entry+ (expt 2 26)
  "The maximum number of octets of an entry; a file with a longer entry is not accepted as a binary
log.")

(defun read-binary-log (stream)
  "Read the next entry of a binary log from STREAM, which gives octets, and return it, a
GRPC.BINARYLOG.V1:GRPC-LOG-ENTRY; nil at the end. Signal PROTOBUF-ERROR if the octets are not an
entry, MISUSE if STREAM ends within it or is not a stream. Only one thread at a time may read
STREAM."
  (unless (and (streamp stream) (input-stream-p stream))
    (misuse "READ-BINARY-LOG reads one entry from a stream of octets, not from ~S: open the file ~
             with :element-type '(unsigned-byte 8)." stream))
  (let* ((prefix (make-octets 4))
         (read (read-sequence prefix stream)))
    (unless (zerop read)
      (let* ((size (if (= 4 read) (u32be prefix 0) 0))
             (octets (make-octets (min size +longest-entry+))))
        (unless (and (= 4 read) (<= size +longest-entry+) (= size (read-sequence octets stream)))
          (misuse "The binary log ends within an entry, or is not a binary log."))
        (protobuf:parse-message 'binlog:grpc-log-entry octets)))))

;;; Entries

(defun entry-octets (record type payload)
  "An entry of TYPE with PAYLOAD, keywords and values of MAKE-GRPC-LOG-ENTRY, as octets. The caller
must hold RECORD's lock."
  (protobuf:serialize
   (apply #'binlog:make-grpc-log-entry
          :timestamp (ns-timestamp (real-time-ns))
          :call-id (record-id record)
          :sequence-id-within-call (incf (record-sequence record))
          :type type
          :logger (if (record-client-p record) :logger-client :logger-server)
          payload)))

(defun add-log-entry (record type &rest payload)
  "Log an entry of TYPE with PAYLOAD, in the form of ENTRY-OCTETS. The caller must hold RECORD's
lock."
  (add-to-journal (binary-log-journal (record-log record)) (entry-octets record type payload)))

(defun peer-payload (record call)
  "The keywords that describe the peer of CALL; nil after the first time for its record."
  (let ((peer (rpc:call-peer call)))
    (when (and peer (not (shiftf (record-peer record) t)))
      (list :peer (log-address peer)))))

(defun begin-record (log call)
  "The record of CALL, which has begun, in LOG; nil if it is not logged."
  (let* ((method (call-rpc-method call))
         (limits (and method (limits-for (binary-log-filter log)
                                         (method:rpc-method-path method)))))
    (when limits
      (setf (rpc:call-value call (binary-log-key log))
            (make-record :log log :limits limits :client-p (rpc:client-p call)
                         :id (1+ (sb-ext:atomic-incf
                                  (aref (the (simple-array sb-ext:word (2))
                                             (binary-log-counts log))
                                        0))))))))

(defmacro with-record ((record log call) &body body)
  "If LOG has a record of CALL, evaluate BODY with RECORD bound to it and its lock held."
  `(let ((,record (rpc:call-value ,call (binary-log-key ,log))))
     (when ,record
       (sb-thread:with-mutex ((record-lock ,record)) ,@body))))

(defun request-metadata (call)
  "The metadata of CALL's client, an alist; on the client's side without authorization."
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
                             :method-name (method:rpc-method-path (call-rpc-method call))
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
  "Log the headers of CALL's handler, unless the log already has them."
  (unless (shiftf (record-answered record) t)
    (multiple-value-bind (metadata truncated)
        (log-metadata (answer-metadata call) (limits-header (record-limits record)))
      (apply #'add-log-entry record :event-type-server-header
             :server-header (binlog:make-server-header :metadata metadata)
             :payload-truncated truncated
             (if (record-client-p record) (peer-payload record call) '())))))

(defun log-half-close (record)
  "Log that the client sends no more, unless the log has that already."
  (unless (shiftf (record-half-closed record) t)
    (add-log-entry record :event-type-client-half-close)))

;;; Messages

(defconstant +longest-content+ (expt 2 23)
  "The maximum number of octets of a message that are logged, even if a filter allows more.")

(defun log-dense-content (record call type octets start end encoding limit)
  "Log LIMIT octets of a message of CALL, compressed by ENCODING, as an entry of TYPE."
  ;; decompressed these give at least LIMIT octets, unless compression made the message longer
  (let* ((last (min end (+ start 65536 (* 2 limit))))
         (told (operate told-size call))
         (dense (make-dense :head (entry-octets record type '())
                            :octets (subseq-octets octets start last) :cut (< last end)
                            :encoding encoding :limit limit
                            :told (if (integerp told) told 0))))
    (add-to-journal (binary-log-journal (record-log record)) dense
                    (+ (length (dense-head dense)) (length (dense-octets dense))))))

(defun log-content (record call type octets start end encoding)
  (let ((limit (min (limits-message (record-limits record)) +longest-content+))
        (received (eq (record-client-p record) (eq :event-type-server-message type))))
    (if encoding
        (log-dense-content record call type octets start end encoding
                           (if received (min limit (operate receive-limit call)) limit))
        (multiple-value-bind (message truncated) (log-message octets start end limit)
          (add-log-entry record type :message message :payload-truncated truncated)))))

(defun log-client-message (record call octets start end encoding)
  "Log a message of CALL's client. If MESSAGE is the only one, log it once, and log that no more
messages follow."
  (if (member (method:rpc-method-kind (call-rpc-method call)) '(:unary :server-streaming))
      (unless (shiftf (record-requested record) t)
        (log-content record call :event-type-client-message octets start end encoding)
        (log-half-close record))
      (log-content record call :event-type-client-message octets start end encoding)))

(defun log-sent (log call octets start end encoding)
  (with-record (record log call)
    (cond ((record-client-p record)
           (log-client-message record call octets start end encoding))
          (t (log-answer record call)   ; within the image no other event reports headers
             (log-content record call :event-type-server-message octets start end encoding)))))

(defun log-received (log call octets start end encoding)
  (with-record (record log call)
    (cond ((record-client-p record)
           (log-answer record call)
           (log-content record call :event-type-server-message octets start end encoding))
          (t (log-client-message record call octets start end encoding)))))

(defun log-end (log call)
  "CALL has ended."
  (with-record (record log call)
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
  "Log the headers of CALL, which has begun, if CALL is logged."
  (when (begin-record log call)
    (with-record (record log call)
      (setf (record-authority record) (getf (operate particulars call) :authority))
      (log-request record call))))

(defmethod rpc:observer-for ((source binary-log) &key role loop &allow-other-keys)
  (flet ((begin (call) (begin-request source call)))
    (if (filter-empty-p (binary-log-filter source))
        nil
        (apply #'rpc:make-observer
               :content-sent (lambda (call &rest content)
                               (apply #'log-sent source call content))
               :content-received (lambda (call &rest content)
                                   (apply #'log-received source call content))
               :half-closed (lambda (call)
                              (with-record (record source call) (log-half-close record)))
               :call-ended (lambda (call) (log-end source call))
               (cond ((null loop) (list :call-begun #'begin))
                     ((eq :client role)
                      (list :call-begun #'begin
                            :headers-received
                            (lambda (call)
                              (when (rpc:call-fields call)
                                (with-record (record source call) (log-answer record call))))))
                     (t (list :request-begun
                              (lambda (call authority)
                                (when (begin-record source call)
                                  (with-record (record source call)
                                    (setf (record-authority record) authority)
                                    (log-request record call))))
                              :headers-sent
                              (lambda (call)
                                (with-record (record source call) (log-answer record call))))))))))
