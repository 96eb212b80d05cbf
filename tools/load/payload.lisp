;;;; Payloads of calls: messages in the form on the wire, with gRPC's prefix of five octets, and
;;;; fields of metadata. Payloads and fields are made once if they are constant, else for each call
;;;; from templates.

(in-package #:clgrpc.load)

(deftype frames ()
  "A vector of messages in their order. Each message is OCTETS, which begin with the prefix of
gRPC."
  'simple-vector)

(defstruct (payload (:copier nil))
  "The messages of calls."
  (frames #() :type frames)             ; the frames if they are constant
  (maker nil :type (or null function))) ; (call-data) returns FRAMES; nil if they are constant

(declaim (sb-ext:freeze-type payload))

(defun frame-message (octets)
  (let ((frame (make-octets (+ 5 (length octets)))))
    (setf (u32be frame 1) (length octets))
    (replace frame octets :start1 5)
    frame))

(defun split-json (text)
  "Return a list of the texts of the elements of TEXT if TEXT is an array in JSON, else a list of
TEXT alone. The elements themselves are not checked."
  (let ((text (string-trim '(#\Space #\Tab #\Newline #\Return) text)))
    (if (not (uiop:string-prefix-p "[" text))
        (list text)
        (let ((texts '()) (depth 0) (quoted nil) (start 1) (i 0))
          (loop while (< i (length text))
                do (let ((char (char text i)))
                     (cond (quoted (case char
                                     (#\\ (incf i))
                                     (#\" (setf quoted nil))))
                           ((char= char #\") (setf quoted t))
                           ((find char "[{") (incf depth))
                           ((find char "]}") (decf depth)))
                     (when (and (not quoted)
                                (or (and (= 1 depth) (char= char #\,))
                                    (and (zerop depth) (char= char #\]))))
                       (let ((element (string-trim '(#\Space #\Tab #\Newline #\Return)
                                                   (subseq text start i))))
                         (unless (and (zerop depth) (null texts) (string= "" element))
                           (push element texts)))
                       (setf start (1+ i)))
                     (incf i)))
          (if (and (zerop depth) (not quoted) (= start (length text)))
              (nreverse texts)
              (list text))))))           ; TEXT is no array; the parser's error gives the reason

(defun json-frames (text type finder)
  "The frames of the messages of TYPE in TEXT, a JSON object or an array of objects."
  (map 'simple-vector
       (lambda (text)
         (frame-message (protobuf:serialize
                         (protobuf:parse-json-message type text :finder finder))))
       (split-json text)))

(defun json-payload (text method finder &key (templates t))
  "The payload of calls of METHOD from TEXT, which is JSON and may have templates if TEMPLATES is
true. FINDER finds types by name."
  (let ((template (if templates (compile-template text) text))
        (type (method:rpc-method-request-type method)))
    (flet ((frames (text)
             (let ((frames (json-frames text type finder)))
               (if (and (zerop (length frames)) (single-request-p method))
                   (vector (frame-message (make-octets 0)))
                   frames))))
      (if (stringp template)
          (make-payload :frames (frames template))
          (make-payload :maker (lambda (data) (frames (expand-template template data))))))))

(defun single-request-p (method)
  (member (method:rpc-method-kind method) '(:unary :server-streaming)))

(defun split-delimited (octets)
  "The messages in OCTETS, each after its length as a varint."
  (let ((messages '()) (at 0))
    (loop while (< at (length octets))
          do (let ((length 0))
               (loop for shift from 0 by 7
                     do (when (or (= at (length octets)) (> shift 35))
                          (fail-template "the data are not messages, each after its length"))
                        (let ((octet (aref octets at)))
                          (incf at)
                          (setf length (logior length (ash (logand octet 127) shift)))
                          (when (< octet 128) (return))))
               (unless (<= (+ at length) (length octets))
                 (fail-template "the data end in the middle of a message"))
               (push (subseq octets at (+ at length)) messages)
               (incf at length)))
    (nreverse messages)))

(defun binary-payload (octets method)
  "The payload of calls of METHOD from OCTETS: one message or, if METHOD takes a stream of requests,
messages, each after its length as a varint."
  (make-payload :frames (map 'simple-vector #'frame-message
                             (if (single-request-p method)
                                 (list octets)
                                 (split-delimited octets)))))

(defun compress-frame (frame)
  "Return the frame with the message of FRAME, which is not compressed, compressed with gzip."
  (multiple-value-bind (octets end) (os:deflate-octets :gzip 6 frame 5 (length frame) 5)
    (unless octets (fail-template "a request cannot be compressed, because memory is exhausted"))
    (let ((compressed (subseq octets 0 end)))
      (setf (aref compressed 0) 1
            (u32be compressed 1) (- end 5))
      compressed)))

(defun compress-payload (payload)
  "PAYLOAD with each message compressed with gzip. Signal TEMPLATE-ERROR if libz is missing."
  (unless (os:open-zlib)
    (fail-template "requests cannot be compressed, because libz is not installed"))
  (flet ((compressed (frames) (map 'simple-vector #'compress-frame frames)))
    (if-let ((maker (payload-maker payload)))
      (make-payload :maker (lambda (data) (compressed (funcall maker data))))
      (make-payload :frames (compressed (payload-frames payload))))))

;;; Metadata

(defun metadata-field (name value)
  "The header field for the metadata NAME and VALUE. If NAME ends in -bin, VALUE, octets or text, is
sent in base64."
  (hpack:string-field name (if (alexandria:ends-with-subseq "-bin" name)
                               (string-right-trim "=" (encode-base64 (binary-value value)))
                               value)))

(defun binary-value (value)
  "The octets of VALUE, octets or text."
  (if (stringp value)
      (sb-ext:string-to-octets value :external-format :utf-8)
      value))

(defun check-template-metadata (metadata)
  "Signal TEMPLATE-ERROR if METADATA, an alist whose values may be templates, cannot be sent
whatever the templates' values are."
  (handler-case
      (status:check-metadata
       (loop for (name . value) in metadata
             for text = (if (consp value)
                            (format nil "~{~A~}" (remove-if-not #'stringp value))
                            value)
             collect (cons name (if (alexandria:ends-with-subseq "-bin" name)
                                    (binary-value text)
                                    text))))
    (misuse (error) (fail-template "~A" (string-right-trim "." (princ-to-string error))))))

(defun compile-metadata (metadata &key (templates t))
  "Return two values for METADATA, an alist. If its values are constant, these are a vector of the
header fields, and nil. If TEMPLATES is true and values have templates, these are nil, and a
function of CALL-DATA that returns such a vector. Signal TEMPLATE-ERROR if METADATA cannot be sent."
  (let ((templates (loop for (name . value) in metadata
                         collect (cons (string-downcase name)
                                       (if (and templates (stringp value))
                                           (compile-template value)
                                           value)))))
    (check-template-metadata templates)
    (flet ((fields (data)
             (coerce (loop for (name . value) in templates
                           collect (metadata-field name (if (consp value)
                                                            (expand-template value data)
                                                            value)))
                     'simple-vector)))
      (if (some (lambda (row) (consp (cdr row))) templates)
          (values nil #'fields)
          (values (fields nil) nil)))))
