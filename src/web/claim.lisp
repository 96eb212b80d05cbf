;;;; The data in the head of a request for a protocol that claims it, and the functions in which
;;;; protocols differ. A claim is made once for a head that a peer repeats.

(in-package #:clgrpc.web)

(defstruct (web-protocol-handler (:include server:protocol-handler) (:copier nil))
  "The functions of one protocol for one form of its requests: see MAKE-PROTOCOL-HANDLER."
  ;; (call encoded): write a message of a streamed answer, whose head is written. On the loop
  (part nil :type function :read-only t))

(declaim (sb-ext:freeze-type web-protocol-handler))

(defstruct (web-claim (:include server:claim (handler nil :type web-protocol-handler :read-only t))
                      (:copier nil))
  "The contents of the head of a request."
  (codec nil :type codec :read-only t)  ; the codec of the messages of request and answer
  (heads nil :type heads :read-only t)  ; how its answer begins
  ;; the headers for pages of the request's origin, an alist; nil without a permitted origin
  (cors '() :type list :read-only t)
  (text nil :type boolean :read-only t)) ; true if the bodies are base64

(define-hot (call-web-claim :inline t) ((call server:server-call)) web-claim
  "The claim of CALL."
  (server:call-claim call))

;;; Reading a head

(define-hot header-named ((fields simple-vector) (name octets)) (or null hpack:field)
  "As HEADER, with NAME as octets."
  (loop for field of-type hpack:field across fields
        when (octets-equal name (hpack:field-name field)) do (return field)))

(defun header (fields name)
  "The first of FIELDS, a vector of HPACK's, whose name is NAME, a string in lower case; nil if
FIELDS have no such field. A constant NAME is made into octets when the call is compiled."
  (header-named fields (ascii-octets name)))

(define-compiler-macro header (&whole form fields name)
  (if (stringp name)
      `(header-named ,fields (load-time-value (ascii-octets ,name) t))
      form))

(defun field-text (field)
  "The value of FIELD, or nil for nil."
  (and field (hpack:field-value-string field)))

(defun header-value (fields name)
  "The value of the header NAME of FIELDS, a string; nil if FIELDS have no such header. See HEADER."
  (field-text (header fields name)))

(define-compiler-macro header-value (fields name)
  `(field-text (header ,fields ,name)))

(defun parse-header (field function)
  "The result of FUNCTION, which is never nil, for the value of FIELD, a header. FIELD caches the
result, so a repeated header is read once. Always use the same function for the same header."
  (or (hpack:field-memo field)
      (setf (hpack:field-memo field) (funcall function (hpack:field-value-string field)))))

(defconstant +media-type-characters+ 128
  "The maximum number of characters of a content type that are examined.")

(defun media-type (value)
  "VALUE, a content-type, without its parameters, in lower case."
  (let* ((end (min (length value) +media-type-characters+))
         (end (or (char-position #\; value :end end) end)))
    (string-downcase (string-trim '(#\Space #\Tab) (subseq value 0 end)))))

(defun names-by-length (names)
  "NAMES, strings, as octets in a vector of lists, by their length."
  (let ((table (make-array (1+ (reduce #'max names :key #'length)) :initial-element '())))
    (dolist (name names table)
      (push (ascii-octets name) (svref table (length name))))))

(declaim (type simple-vector **protocol-headers**))
(define-load-time-global **protocol-headers**
    (names-by-length
     '("host" "te" "content-type" "content-length" "content-encoding" "accept" "accept-encoding"
       "grpc-timeout" "grpc-encoding" "grpc-accept-encoding" "connect-protocol-version"
       "connect-timeout-ms" "connect-content-encoding" "connect-accept-encoding" "x-grpc-web"
       "expect"))
  "Headers of requests that do not become metadata.")

(define-hot metadata-field-p ((field hpack:field)) boolean
  "True if FIELD is metadata."
  (let* ((name (hpack:field-name field)) (length (length name)))
    (not (or (zerop length)
             (= #.(char-code #\:) (aref name 0))
             (and (< length (length **protocol-headers**))
                  (loop for known of-type octets in (svref **protocol-headers** length)
                          thereis (octets-equal known name)))))))

(define-hot metadata-fields ((fields simple-vector)) simple-vector
  "The fields of FIELDS that are metadata."
  (let ((metadata (make-array (loop for field across fields count (metadata-field-p field))))
        (at 0))
    (declare (type index at))
    (loop for field across fields
          when (metadata-field-p field)
            do (setf (svref metadata at) field)
               (incf at))
    metadata))

(defconstant +coding-octets+ 32
  "The maximum length, in octets, of the name of a content coding that we know.")

(defun content-coding (octets)
  "The name by which we know the content coding OCTETS (RFC 9110 section 8.4.1), octets."
  (if (< +coding-octets+ (length octets))
      octets
      (let ((name (string-downcase (map 'string #'code-char octets))))
        (if (string= "x-gzip" name)
            (ascii-octets "gzip")
            (map 'octets #'char-code name)))))

(defun common-encoding-p (encoding)
  "True if the protocols other than gRPC accept ENCODING, or :unknown. The other protocols do not
accept users' encodings, because some messages are decompressed on the loop here, and a user's
function must not delay the loop."
  (and (typep encoding 'encoding:encoding)
       (member (encoding:encoding-name encoding) '(:gzip :deflate))
       t))

(defun head-encoding (fields name)
  "The encoding of messages in the header NAME of FIELDS, nil for none. The second value is a
rejection if we cannot read the encoding."
  (let* ((field (header fields name))
         (value (and field (hpack:field-value field)))
         (encoding (and field
                        (wire:parse-encoding (if (string= "content-encoding" name)
                                                 (content-coding value)
                                                 value)))))
    (if (and encoding (not (common-encoding-p encoding)))
        (values nil (list :unimplemented
                          (format nil "~A ~A is not supported; supported are gzip, deflate and ~
                                       identity"
                                  name (quoted-octets (hpack:field-value field)))))
        encoding)))

(defun head-accepted (fields name incoming)
  "The encodings that the client can read, from the header NAME of FIELDS; without that header,
INCOMING, the encoding that the client uses, if any."
  (let ((field (header fields name)))
    (cond (field (remove-if-not #'common-encoding-p (wire:accepted-encodings field)))
          (incoming (list incoming))
          (t '()))))

(defun metadata-rejection (fields)
  "The reason why a call cannot have FIELDS as its metadata; nil if it can."
  (unless (wire:sound-metadata-p fields)
    '(:invalid-argument
      "metadata whose name ends in -bin is not base64, or has too many values")))

(defun grpc-timeout (fields)
  "Two values: the nanoseconds in the grpc-timeout of FIELDS, nil if it is missing or malformed; and
the reason for a rejection, nil if it is not rejected."
  (let ((field (header fields "grpc-timeout")))
    (if (null field)
        nil
        (let ((timeout (status:parse-timeout (hpack:field-value field))))
          (values timeout
                  (cond ((null timeout) '(:internal "malformed grpc-timeout"))
                        ((zerop timeout)
                         (multiple-value-list (rpc:verdict :came-too-late)))))))))

;;; Routes

(defun find-method-descriptor (method)
  "The descriptor of METHOD, an RPC-METHOD; nil if it is not known."
  (or (method:rpc-method-descriptor method)
      (let ((service (protobuf:find-descriptor (method:rpc-method-service-name method))))
        (and service
             (find (method:rpc-method-name method) (protobuf:service-descriptor-methods service)
                   :key #'protobuf:descriptor-name :test #'string=)))))

(defconstant +longest-path+ 1024
  "The maximum number of characters of a method's path.")

(defun find-web-route (table target &optional (end (length target)))
  "The route of TABLE for the path in TARGET, a string, which ends at END; or nil. Methods
with codecs of their own are only called by gRPC."
  (let ((route (and (<= end +longest-path+)
                    (gethash (if (= end (length target)) target (subseq target 0 end))
                             (serving:route-table-routes table)))))
    (and route
         (null (method:rpc-method-codec (server:route-method route)))
         route)))

(defun http2-refusal (route fields)
  "If both sides of ROUTE's method send streams, the answer that refuses a request with FIELDS over
HTTP/1.1; else nil."
  (and (eq :bidi (method:rpc-method-kind (server:route-method route)))
       (null (header fields ":method"))
       (exchange:text-answer 505 "streams in both directions need HTTP/2")))
