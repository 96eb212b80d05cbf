;;;; Entries of the binary log (gRFC A16), as messages of grpc/binlog/v1/binarylog.proto: what is
;;;; left out of metadata, where it and messages are cut, addresses. Without I/O or state.

(in-package #:clgrpc.logs)

(defparameter *unlogged-names*
  '("lb-token" "content-encoding" "content-type" "user-agent" "te")
  "Names of metadata, beside those that begin with a colon or with grpc-, that are not logged, since
they are no user's.")

(defun logged-name-p (name)
  "True if metadata of NAME is logged."
  (or (string= name "grpc-trace-bin")
      (not (or (member name *unlogged-names* :test #'string=)
               (uiop:string-prefix-p ":" name)
               (uiop:string-prefix-p "grpc-" name)))))

(defun value-octets (value)
  "VALUE of metadata, a text or octets, as octets."
  (if (stringp value) (string-octets value) value))

(defun log-metadata (metadata limit)
  "METADATA, an alist, as a message that has the first of its entries, LIMIT octets of names and
values at most; and true if some were left out. Those of grpc-trace-bin are there, and not counted
(gRFC A16)."
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
  "The message in OCTETS from START to END, of which LIMIT octets are kept; and true if that is not
all of it."
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
  "NS as a duration."
  (multiple-value-bind (seconds nanos) (truncate ns +ns-per-second+)
    (google.protobuf:make-duration :seconds seconds :nanos nanos)))
