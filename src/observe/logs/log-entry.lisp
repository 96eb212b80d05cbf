;;;; Entries of the binary log (gRFC A16), as messages of grpc/binlog/v1/binarylog.proto: the
;;;; metadata that are omitted, the limits of metadata and messages, addresses. Without I/O or
;;;; state.

(in-package #:clgrpc.logs)

(defparameter *unlogged-names*
  '("lb-token" "content-encoding" "content-type" "user-agent" "te")
  "Names of metadata that are not logged because they are not the user's, in addition to those that
begin with a colon or with grpc-.")

(defun logged-name-p (name)
  (or (string= name "grpc-trace-bin")
      (not (or (member name *unlogged-names* :test #'string=)
               (uiop:string-prefix-p ":" name)
               (uiop:string-prefix-p "grpc-" name)))))

(defun value-octets (value)
  "VALUE of metadata, a text or octets, as octets."
  (if (stringp value) (string-octets value) value))

(defun log-metadata (metadata limit)
  "Two values: METADATA, an alist, as a message with its first entries, at most LIMIT octets of
names and values; and true if some were omitted. Entries of grpc-trace-bin are included, but not
counted (gRFC A16)."
  (let ((left limit) (entries '()) (truncated nil))
    (loop for (name . value) in metadata
          do (when (logged-name-p name)
               (let* ((octets (value-octets value))
                      (size (+ (length name) (length octets)))
                      (free (string= name "grpc-trace-bin")))
                 (cond ((or free (and (not truncated) (<= size left)))
                        (unless free (decf left size))
                        (push (binlog:make-metadata-entry :key name :value octets) entries))
                       (t (setf truncated t))))))
    (values (binlog:make-metadata :entry (nreverse entries)) truncated)))

(defun log-message (octets start end limit)
  "Two values: the message in OCTETS from START to END, of which at most LIMIT octets are kept; and
true if some are omitted."
  (let ((size (- end start)))
    (values (binlog:make-message :length size
                                 :data (subseq octets start (+ start (min limit size))))
            (< limit size))))

(defun log-address (text)
  "TEXT, a call's peer, as an address."
  (let ((colon (position #\: text :from-end t)))
    (flet ((port () (parse-integer text :start (1+ colon) :junk-allowed t)))
      (cond ((uiop:string-prefix-p "unix:" text)
             (binlog:make-address :type :type-unix :address (subseq text 5)))
            ((or (null colon) (null (port)))
             (binlog:make-address :type :type-unknown :address text))
            ((char= #\[ (char text 0))
             ;; without the scope
             (let ((end (or (position #\% text) (position #\] text))))
               (binlog:make-address :type :type-ipv6 :address (subseq text 1 end)
                                    :ip-port (port))))
            (t (binlog:make-address :type :type-ipv4 :address (subseq text 0 colon)
                                    :ip-port (port)))))))

(defun ns-timestamp (ns)
  "NS since 1970 as a timestamp."
  (multiple-value-bind (seconds nanos) (floor ns +ns-per-second+)
    (google.protobuf:make-timestamp :seconds seconds :nanos nanos)))

(defun ns-duration (ns)
  (multiple-value-bind (seconds nanos) (truncate ns +ns-per-second+)
    (google.protobuf:make-duration :seconds seconds :nanos nanos)))

;;; Compressed messages

(defstruct (dense (:copier nil))
  "An entry whose message is compressed, as it was received."
  (head nil :type octets :read-only t)  ; the entry without its message
  (octets nil :type octets :read-only t) ; the message, or its beginning
  (cut nil :type boolean :read-only t)  ; OCTETS are only the beginning
  (encoding nil :type keyword :read-only t) ; the compression of OCTETS
  (limit 0 :type index :read-only t)    ; how many octets of the message are logged
  (told 0 :type index :read-only t))    ; the message's length, as the peer says, or 0

(declaim (sb-ext:freeze-type dense))

(define-printer (dense dense)
  "~D octets of ~(~A~)" (length (dense-octets dense)) (dense-encoding dense))

(defun expand (dense)
  "Return the octets of the log entry that DENSE holds, with its message decompressed if that is
possible."
  (multiple-value-bind (outcome octets count)
      (encoding:expand-beginning (dense-encoding dense) (dense-octets dense) 0
                                 (length (dense-octets dense)) (dense-limit dense))
    (multiple-value-bind (message truncated)
        (if (and octets
                 (or (member outcome '(:ok :too-long))
                     (and (eq :truncated outcome) (dense-cut dense))))
            (values (binlog:make-message
                     :length (if (eq :ok outcome) count (max (1+ count) (dense-told dense)))
                     :data (subseq-octets octets 0 count))
                    (not (eq :ok outcome)))
            ;; the octets are not a compressed message
            (log-message (dense-octets dense) 0 (length (dense-octets dense)) (dense-limit dense)))
      (when octets (give-octets-back octets))
      ;; octets appended to an encoded entry are part of it
      (concatenate 'octets (dense-head dense)
                   (protobuf:serialize
                    (binlog:make-grpc-log-entry :message message :payload-truncated truncated))))))
