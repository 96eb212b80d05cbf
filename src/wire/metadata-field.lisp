;;;; Metadata on the wire: the HPACK fields as they arrived. They are immutable and decoded on
;;;; demand (gRPC over HTTP/2, "Custom-Metadata").

(in-package #:clgrpc.wire)

(defun encode-metadata (metadata encoder buffer)
  "Append the fields of METADATA, an alist that CHECK-METADATA has passed, to a header block."
  (loop for (name . value) in metadata
        do (hpack:encode-literal encoder buffer (ascii-octets name)
                                 (if (stringp value)
                                     ;; HTTP/2 allows no blanks at the ends (RFC 9113 8.2.1)
                                     (ascii-octets (string-trim " " value))
                                     (ascii-octets (encode-base64 (coerce value 'octets)
                                                                  :padding nil)))
                                 (if (string= name "authorization") :never :plain))))

(defun metadata-octets (metadata)
  "How many octets METADATA, an alist that CHECK-METADATA has passed, adds to a header list, as RFC
9113 section 6.5.2 counts."
  (loop for (name . value) in metadata
        sum (+ 32 (length name)
               (if (stringp value) (length value) (ceiling (* 4 (length value)) 3)))))

(define-hot binary-field-p ((field hpack:field)) boolean
  "True if the name of FIELD ends in -bin."
  (let* ((name (hpack:field-name field))
         (start (- (length name) 4)))
    (and (plusp start)
         (= #.(char-code #\n) (aref name (+ start 3)))
         (= #.(char-code #\i) (aref name (+ start 2)))
         (= #.(char-code #\b) (aref name (+ start 1)))
         (= #.(char-code #\-) (aref name start)))))

(defun base64-list-p (octets)
  "True if OCTETS are base64, or several such joined by commas."
  (declare (type octets octets))
  (loop with length = (length octets)
        for start = 0 then (1+ comma)
        for comma = (or (position #.(char-code #\,) octets :start start) length)
        for from = (or (position 32 octets :start start :end comma :test #'/=) comma)
        for to = (position 32 octets :start from :end comma :test #'/= :from-end t)
        always (base64-p octets from (if to (1+ to) from))
        while (< comma length)))

(define-hot sound-metadata-p ((fields simple-vector)) boolean
  "True if all binary values of FIELDS, a vector of metadata fields, are base64. Each field
remembers whether it is."
  (loop for field of-type hpack:field across fields
        always (or (not (binary-field-p field))
                   (eq :sound (or (hpack:field-memo field)
                                  (setf (hpack:field-memo field)
                                        (if (base64-list-p (hpack:field-value field))
                                            :sound
                                            :unsound)))))))

(defun field-entries (field)
  "Return the metadata pairs of FIELD. Binary values are decoded; several may come joined by commas.
A value that is not base64 is left out; the call has been ended because of it."
  (let ((name (hpack:field-name-string field))
        (value (hpack:field-value-string field)))
    (if (binary-name-p name)
        (loop for start = 0 then (1+ comma)
              for comma = (position #\, value :start start)
              for text = (string-trim " " (subseq value start comma))
              for octets = (handler-case (decode-base64 text) (invalid-base64 () nil))
              when octets collect (cons name octets)
              while comma)
        (list (cons name value)))))

(defun fields-metadata (fields)
  "Return the alist of FIELDS, a simple vector of HPACK fields, in their order."
  (loop for field across (the simple-vector fields)
        nconc (field-entries field)))

(define-hot custom-field-p ((field hpack:field)) boolean
  "True if FIELD is metadata and neither a pseudo-field nor one that only gRPC itself reads."
  (let ((kind (http2:field-kind-of field)))
    (or (= kind http2:+kind-other+) (= kind http2:+kind-user-agent+)
        (= kind http2:+kind-grpc-previous-rpc-attempts+))))

(define-hot list-custom-fields ((list hpack:field-list) (previous simple-vector)) simple-vector
  "Return a vector of the metadata fields of LIST, or PREVIOUS itself if it holds the same fields.
A peer mostly repeats its fields, so a steady state allocates nothing."
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
