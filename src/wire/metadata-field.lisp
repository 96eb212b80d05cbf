;;;; Metadata on the wire: the HPACK fields as they arrived. The fields are immutable and decoded on
;;;; demand (gRPC over HTTP/2, "Custom-Metadata"). This file also has the content type, a header
;;;; that both ends send before the metadata.

(in-package #:clgrpc.wire)

(hpack:define-field **content-type** "content-type" "application/grpc")

(defun make-content-type (codec)
  "Make and return the field content-type of messages in CODEC."
  (setf (codec-field codec)
        (hpack:string-field "content-type" (format nil "application/grpc+~A" (codec-name codec)))))

(define-hot (codec-content-type :inline t) ((codec (or null message-codec))) hpack:field
  "Return the field content-type of messages in CODEC or, if CODEC is nil, the field for Protocol
Buffers."
  (cond ((null codec) **content-type**)
        ((codec-field codec))
        (t (make-content-type codec))))

(defun encode-metadata (metadata encoder buffer)
  "Append the fields of METADATA, an alist that CHECK-METADATA has passed, to a header block."
  (loop for (name . value) in metadata
        do (hpack:encode-literal encoder buffer (ascii-octets name)
                                 (if (stringp value)
                                     ;; HTTP/2 allows no blanks at the ends (RFC 9113 8.2.1)
                                     (ascii-octets (string-trim " " value))
                                     (ascii-octets (encode-base64 (coerce value 'octets))))
                                 (if (string= name "authorization") :never :plain))))

(defconstant +encoding-field-octets+ 70
  "The maximum number of octets of the field grpc-encoding in a header list.")

(defun metadata-octets (metadata &optional request)
  "Return the number of octets that METADATA, an alist that CHECK-METADATA has passed, adds to a
header list, as RFC 9113 section 6.5.2 counts them. If REQUEST, a call, is given, add the maximum
number of octets that the fields of ENCODE-ENCODINGS take in a request."
  (+ (if request (hpack:field-size (accepted-encodings-field)) 0)
     (if (and request (compression-of request)) +encoding-field-octets+ 0)
     (loop for (name . value) in metadata
           sum (+ 32 (length name)
                  (if (stringp value) (length value) (ceiling (* 4 (length value)) 3))))))

(define-hot binary-field-p ((field hpack:field)) boolean
  "True if the name of FIELD ends in -bin."
  (let* ((name (hpack:field-name field))
         (start (- (length name) 4)))
    (and (plusp start)
         (= #.(char-code #\n) (aref name (+ start 3)))
         (= #.(char-code #\i) (aref name (+ start 2)))
         (= #.(char-code #\b) (aref name (+ start 1)))
         (= #.(char-code #\-) (aref name start)))))

(defconstant +most-joined-values+ 16
  "The maximum number of binary values in a field, joined by commas.")

(define-hot map-joined ((function function) (octets octets)) null
  "Call FUNCTION with the start and the end of each value in OCTETS; values are separated by commas
and may have blanks around them."
  (let ((start 0))
    (declare (type index start))
    (loop
      (let* ((comma (or (position #.(char-code #\,) octets :start start) (length octets)))
             (from start) (to comma))
        (declare (type index comma from to))
        (loop while (and (< from to) (= 32 (aref octets from))) do (incf from))
        (loop while (and (< from to) (= 32 (aref octets (1- to)))) do (decf to))
        (funcall function from to)
        (when (= comma (length octets)) (return nil))
        (setf start (1+ comma))))))

(defun base64-list-p (octets)
  "True if OCTETS are base64, or at most +MOST-JOINED-VALUES+ values of base64 joined by commas."
  (let ((count 0))
    (map-joined (lambda (start end)
                  (unless (and (<= (incf count) +most-joined-values+)
                               (base64-p octets start end))
                    (return-from base64-list-p nil)))
                octets)
    t))

;;; The memo of a binary field is :unsound if BASE64-LIST-P is false of its value; else :sound or,
;;; once its values have been read, a vector of the values.

(define-hot sound-metadata-p ((fields simple-vector)) boolean
  "True if all binary values of FIELDS, a vector of metadata fields, are base64, and no field has
more than +MOST-JOINED-VALUES+ of them. Each field keeps its result as a memo."
  (loop for field of-type hpack:field across fields
        never (and (binary-field-p field)
                   (eq :unsound (or (hpack:field-memo field)
                                    (setf (hpack:field-memo field)
                                          (if (base64-list-p (hpack:field-value field))
                                              :sound
                                              :unsound)))))))

(defun binary-values (field)
  "Return the decoded values of FIELD, which is binary, or the empty list if it is not sound. FIELD
keeps the values as a memo, so that a repeated field is decoded only once; do not change them."
  (let* ((octets (hpack:field-value field))
         (memo (or (hpack:field-memo field) (if (base64-list-p octets) :sound :unsound))))
    (cond ((simple-vector-p memo) memo)
          ((eq :unsound memo) #())
          (t (let ((values '()))
               (map-joined (lambda (start end)
                             (push (decode-base64 octets :start start :end end) values))
                           octets)
               (setf (hpack:field-memo field) (coerce (nreverse values) 'simple-vector)))))))

(defun field-entries (field)
  "Return the metadata pairs of FIELD. Binary values are decoded; a field may have several values,
joined by commas. A field that is not sound has no pairs, and its call has been ended."
  (let ((name (hpack:field-name-string field)))
    (if (binary-field-p field)
        (loop for octets across (the simple-vector (binary-values field))
              collect (cons name (subseq-octets octets 0 (length (the octets octets)))))
        ;; "it may be stripped" (gRPC over HTTP/2, "ASCII-Value")
        (list (cons name (string-trim '(#\Space #\Tab) (hpack:field-value-string field)))))))

(defun fields-metadata (fields)
  "Return the alist of FIELDS, a simple vector of HPACK fields, in their order."
  (loop for field across (the simple-vector fields)
        nconc (field-entries field)))

(define-hot custom-field-p ((field hpack:field)) boolean
  "True if FIELD is metadata: neither a pseudo-field nor a field that only gRPC itself reads."
  (let ((kind (http2:field-kind-of field)))
    (or (= kind http2:+kind-other+) (= kind http2:+kind-user-agent+)
        (= kind http2:+kind-grpc-previous-rpc-attempts+))))

(define-hot list-custom-fields ((list hpack:field-list) (previous simple-vector)) simple-vector
  "Return a vector of the metadata fields of LIST, or PREVIOUS itself if it holds the same fields.
A peer usually repeats its fields, and then no memory is allocated."
  (let ((count 0) (same t))
    (declare (type fixnum count))
    (hpack:do-fields (field list)
      (when (custom-field-p field)
        (when (or (>= count (length previous)) (not (eq field (svref previous count))))
          (setf same nil))
        (incf count)))
    (if (and same (= count (length previous)))
        previous
        (let ((fields (make-array count)) (at 0))
          (declare (type fixnum at))
          (hpack:do-fields (field list)
            (when (custom-field-p field)
              (setf (svref fields at) field)
              (incf at)))
          fields))))

(defun wire-metadata (call fields)
  "The operation METADATA."
  (declare (ignore call))
  (fields-metadata fields))
