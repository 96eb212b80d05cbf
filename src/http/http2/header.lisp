;;;; The meaning of header fields to HTTP/2 itself, and the check that a list of them is a
;;;; well-formed message (RFC 9113 sections 8.1 to 8.3). Each field is classified once, and its kind
;;;; is stored in the field object, which the HPACK tables return again. The kind also shows whether
;;;; name and value are allowed. So a repeated field costs one load, and a list is checked by bits
;;;; and comparisons.
;;;;
;;;; Kinds below +KIND-OTHER+ are pseudo-fields, in order of their constants. A malformed message is
;;;; a stream error PROTOCOL_ERROR (section 8.1.1).

(in-package #:clgrpc.http2)

(deftype kind () '(unsigned-byte 7))

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defun kind-documentation (name rows)
    (let ((text (second (assoc name rows))))
      (if text
          (format nil "The kind of a field ~A. See FIELD-KIND-OF." text)
          (format nil "The kind of a field that is ~(~A~). See FIELD-KIND-OF." name)))))

(defmacro define-field-kinds (&body rows)
  "Define from ROWS of the form (name field-name) the constants +KIND-NAME+, numbered from 1, and
NAME-KIND. Rows without a field name are kinds that are not determined by a name. A row may have the
NAME of an earlier row."
  (let ((names (remove-duplicates (mapcar #'first rows) :from-end t))
        (texts (remove nil (mapcar #'second rows))))
    `(progn
       ,@(loop for name in names
               for i from 1
               collect `(defconstant ,(constant-name (format nil "KIND-~A" name)) ,i
                        ,(kind-documentation name rows)))
       (define-hot name-kind ((name octets)) kind
         "The kind of a field by its NAME alone."
         (case (length name)
           ,@(loop for length in (sort (remove-duplicates (mapcar #'length texts)) #'<)
                   collect `(,length
                             (cond ,@(loop for (name text) in rows
                                           when (and text (= length (length text)))
                                             collect `((octets-equal ,(ascii-octets text) name)
                                                       ,(constant-name
                                                         (format nil "KIND-~A" name))))
                                   (t +kind-other+))))
           (t +kind-other+))))))

(define-field-kinds
  (malformed)
  (method ":method")
  (scheme ":scheme")
  (authority ":authority")
  (path ":path")
  (status ":status")
  (other)
  ;; connection-specific: forbidden (8.2.2)
  (malformed "connection")
  (malformed "proxy-connection")
  (malformed "keep-alive")
  (malformed "transfer-encoding")
  (malformed "upgrade")
  (te "te")
  (content-type "content-type")
  (content-length "content-length")
  (host "host")
  (user-agent "user-agent")
  (accept-encoding "accept-encoding")
  (content-encoding "content-encoding")
  (grpc-timeout "grpc-timeout")
  (grpc-encoding "grpc-encoding")
  (grpc-accept-encoding "grpc-accept-encoding")
  (grpc-status "grpc-status")
  (grpc-message "grpc-message")
  (grpc-status-details-bin "grpc-status-details-bin")
  (grpc-previous-rpc-attempts "grpc-previous-rpc-attempts")
  (grpc-retry-pushback-ms "grpc-retry-pushback-ms"))

(define-hot valid-name-p ((name octets)) boolean
  "True if NAME, without a leading colon, has no control characters, blanks, capitals, colons or
octets above 126 (8.2.1)."
  (loop for octet across name
        for i of-type index from 0
        always (and (< 32 octet 127)
                    (not (<= 65 octet 90))
                    (or (/= octet 58) (zerop i)))))

(define-hot valid-value-p ((value octets) (blanks boolean)) boolean
  "True if VALUE has no NUL, CR or LF and, unless BLANKS is true, neither begins nor ends with a
blank (8.2.1)."
  (flet ((blank-p (octet) (or (= octet 32) (= octet 9))))
    (let ((length (length value)))
      (or (zerop length)
          (and (or blanks (not (or (blank-p (aref value 0)) (blank-p (aref value (1- length))))))
               (loop for octet across value
                     never (or (= octet 0) (= octet 10) (= octet 13))))))))

(define-hot valid-status-p ((value octets)) boolean
  "True if VALUE is three digits that represent a status other than 101 (8.6)."
  (and (= 3 (length value))
       (<= 49 (aref value 0) 57)
       (<= 48 (aref value 1) 57)
       (<= 48 (aref value 2) 57)
       (not (octets-equal #.(ascii-octets "101") value))))

(define-hot classify-field ((field hpack:field)) kind
  (let* ((name (hpack:field-name field))
         (value (hpack:field-value field))
         (kind (if (plusp (length name)) (name-kind name) +kind-malformed+)))
    (if (and (valid-name-p name)
             ;; other implementations of gRPC send metadata and messages with blanks at the ends
             (valid-value-p value (or (= kind +kind-other+) (= kind +kind-grpc-message+)))
             (case kind
               (#.+kind-other+ (/= 58 (aref name 0)))
               ((#.+kind-method+ #.+kind-scheme+ #.+kind-path+) (plusp (length value)))
               (#.+kind-status+ (valid-status-p value))
               (#.+kind-te+ (octets-equal #.(ascii-octets "trailers") value))
               (t t)))
        kind
        +kind-malformed+)))

(define-hot (field-kind-of :inline t) ((field hpack:field)) kind
  "Return the kind of FIELD, one of the +KIND-…+ constants; it is determined once and stored in
FIELD. +KIND-MALFORMED+ means that HTTP/2 forbids its name, its value or the field altogether."
  (let ((kind (hpack:field-kind field)))
    (if (zerop kind)
        (setf (hpack:field-kind field) (classify-field field))
        (logand kind #x7F))))

;;; Messages

(deftype content-length ()
  "The value of content-length, -1 if it is missing, or -2 if the message is malformed."
  '(integer -2 #.(1- (expt 10 18))))
(defconstant +no-content-length+ -1)
(defconstant +malformed-message+ -2)

(define-hot parse-content-length ((value octets)) content-length
  (let ((number 0))
    (declare (type (unsigned-byte 60) number))
    (if (<= 1 (length value) 18)
        (loop for octet across value
              do (unless (<= 48 octet 57) (return +malformed-message+))
                 (setf number (+ (* 10 (the (unsigned-byte 57) number)) (- octet 48)))
              finally (return number))
        +malformed-message+)))

(defconstant +host-seen+ (ash 1 (1+ +kind-other+))
  "The bit for a host field in SEEN; see SCAN-FIELDS.")

(defmacro scan-fields ((list seen content-length) &body body)
  "Check the rules for all messages: each pseudo-field occurs at most once and before the others, no
field is malformed, there is at most one content-length. After that evaluate BODY with SEEN, which
has bit K if LIST has a pseudo-field of kind K, and the bit +HOST-SEEN+ if it has a host, and with
CONTENT-LENGTH. A malformed message ends the block named NIL with +MALFORMED-MESSAGE+."
  `(let ((,seen 0) (,content-length +no-content-length+))
     (declare (type (unsigned-byte 9) ,seen) (type content-length ,content-length))
     (loop with fields = (hpack:field-list-fields ,list)
           for i of-type index from 0 below (hpack:field-list-count ,list)
           for field of-type hpack:field = (svref fields i)
           for kind = (field-kind-of field)
           do (cond ((> kind +kind-other+)
                     (setf ,seen (logior ,seen ,(ash 1 +kind-other+)))
                     (cond ((= kind +kind-content-length+)
                            (let ((length (parse-content-length (hpack:field-value field))))
                              (unless (or (= ,content-length +no-content-length+)
                                          (= ,content-length length))
                                (return +malformed-message+))
                              (when (= length +malformed-message+) (return +malformed-message+))
                              (setf ,content-length length)))
                           ((= kind +kind-host+)
                            (setf ,seen (logior ,seen +host-seen+)))))
                    ((= kind +kind-other+)
                     (setf ,seen (logior ,seen ,(ash 1 +kind-other+))))
                    ((or (logtest ,seen (logior ,(ash 1 +kind-other+) (ash 1 (logand 7 kind))))
                         (= kind +kind-malformed+))
                     (return +malformed-message+))
                    (t
                     (setf ,seen (logior ,seen (ash 1 (logand 7 kind))))))
           finally (return (progn ,@body)))))

(defmacro kind-bits (&rest kinds)
  `(logior ,@(loop for kind in kinds
                   collect `(ash 1 ,(constant-name (format nil "KIND-~A" kind))))))

(define-hot check-request ((list hpack:field-list)) content-length
  "Return the content-length of the request LIST, or +MALFORMED-MESSAGE+ (8.3.1, for CONNECT 8.5)."
  (scan-fields (list seen content-length)
    (let ((pseudo (logand seen (1- (kind-bits other)))))
      (when (and (logtest seen +host-seen+) (not (one-host-p list)))
        (return +malformed-message+))
      (if (or (= pseudo (kind-bits method scheme authority path))
              (= pseudo (kind-bits method scheme path)))
          content-length
          (if (and (= pseudo (kind-bits method authority)) (connect-request-p list))
              content-length
              +malformed-message+)))))

(defun one-host-p (list)
  "True if LIST has one host field (RFC 9110 section 7.2), and :authority, if any, has the same
value. At most two host fields are compared, because a peer may send many short fields."
  (let ((authority nil) (host nil))
    (hpack:do-fields (field list)
      (case (field-kind-of field)
        (#.+kind-authority+ (setf authority field))
        (#.+kind-host+ (when host (return-from one-host-p nil))
         (setf host field))))
    (or (null authority)
        (octets-equal (hpack:field-value authority) (hpack:field-value host))
        (string-equal (hpack:field-value-string authority) (hpack:field-value-string host)))))

(define-hot connect-request-p ((list hpack:field-list)) boolean
  (hpack:do-fields (field list)
    (when (= +kind-method+ (field-kind-of field))
      (return-from connect-request-p
        (octets-equal #.(ascii-octets "CONNECT") (hpack:field-value field)))))
  nil)

(define-hot check-response ((list hpack:field-list)) content-length
  "Return the content-length of the response LIST, or +MALFORMED-MESSAGE+ (8.3.2)."
  (scan-fields (list seen content-length)
    (if (= (kind-bits status) (logand seen (1- (kind-bits other))))
        content-length
        +malformed-message+)))

(define-hot check-trailers ((list hpack:field-list)) content-length
  "Return +MALFORMED-MESSAGE+ if LIST cannot be trailers, which have no pseudo-fields (8.1)."
  (scan-fields (list seen content-length)
    (if (zerop (logand seen (1- (kind-bits other))))
        content-length
        +malformed-message+)))

(define-hot response-status ((list hpack:field-list)) (unsigned-byte 10)
  "Return the status of the response LIST, which CHECK-RESPONSE must have accepted. The status is
the first field of such a list."
  (let* ((field (svref (hpack:field-list-fields list) 0))
         (value (hpack:field-value (the hpack:field field))))
    (flet ((digit (i) (- (aref value i) 48)))
      (+ (* 100 (digit 0)) (* 10 (digit 1)) (digit 2)))))
