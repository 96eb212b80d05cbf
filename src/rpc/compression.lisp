;;;; Compression of messages (gRPC's document "Compression"): the encodings there are, their names
;;;; in grpc-encoding and grpc-accept-encoding, and octets to octets with each. Which messages of a
;;;; call are compressed is for encoding.lisp.
;;;;
;;;; libz is opened when the first channel is made, to know what may be offered to servers, or when
;;;; a server first needs it; where there is none, `identity` is all that is spoken.

(in-package #:clgrpc.rpc)

(defstruct (encoding (:constructor make-encoding (name field)) (:copier nil))
  "A way to compress messages: NAME for users, FIELD for the peer."
  (name :gzip :type os:zlib-format)
  (field nil :type hpack:field))

(declaim (sb-ext:freeze-type encoding))

(defmethod print-object ((encoding encoding) stream)
  (print-unreadable-object (encoding stream :type t)
    (format stream "~(~A~)" (encoding-name encoding))))

(declaim (type list **encodings**))
(sb-ext:define-load-time-global **encodings**
    (list (make-encoding :gzip (hpack:string-field "grpc-encoding" "gzip"))
          (make-encoding :deflate (hpack:string-field "grpc-encoding" "deflate"))))

(defglobal **accept-all** (hpack:string-field "grpc-accept-encoding" "gzip,deflate"))
(defglobal **accept-identity** (hpack:string-field "grpc-accept-encoding" "identity"))

(defun accepted-encodings-field ()
  "The grpc-accept-encoding that says what we can read."
  (if (os:open-zlib) **accept-all** **accept-identity**))

(defun find-encoding (name)
  "The encoding that a user means by NAME: :gzip or :deflate; nil for :identity, or nil. Signal
MISUSE for anything else, and if libz is not there."
  (case name
    ((nil :identity) nil)
    ((:gzip :deflate)
     (multiple-value-bind (open reason) (os:open-zlib)
       (unless open (misuse "There is no compression here: ~A." reason)))
     (find name **encodings** :key #'encoding-name))
    (t (misuse "~S is no compression; there are :gzip, :deflate and :identity." name))))

(defun value-text (value)
  "VALUE, the octets of a field's, as a string; a peer may send any octets."
  (map 'string #'code-char value))

(defun encoding-of-text (text)
  (find text **encodings**
        :key (lambda (encoding) (hpack:field-value-string (encoding-field encoding)))
        :test #'string=))

(defun parse-encoding (value)
  "The encoding that VALUE, octets of grpc-encoding, names; nil for identity, :unknown for one we
cannot read."
  (let ((text (value-text value)))
    (cond ((string= text "identity") nil)
          ((and (os:open-zlib) (encoding-of-text text)))
          (t :unknown))))

(defun parse-accepted-encodings (value)
  "Those of our encodings that VALUE, octets of grpc-accept-encoding, lists."
  (loop with text = (value-text value)
        for start = 0 then (1+ comma)
        for comma = (position #\, text :start start)
        for encoding = (encoding-of-text (string-trim '(#\Space #\Tab) (subseq text start comma)))
        when encoding collect encoding
        while comma))

(defun unknown-encoding-text (value)
  "What to say of VALUE, octets of a grpc-encoding that is :unknown."
  (format nil "grpc-encoding ~S is not supported; supported are ~:[~;gzip, deflate and ~]identity"
          (value-text value) (os:open-zlib)))

;;; Octets to octets

(define-hot compress-octets ((encoding encoding) (level (integer 1 9)) (octets octets) (end index))
    (or null parcel)
  "Compress a message, OCTETS up to END with its prefix. Return the compressed one with its own
prefix, nil if there is no memory for that. From any thread."
  (multiple-value-bind (result result-end)
      (os:deflate-octets (encoding-name encoding) level octets +prefix-octets+ end +prefix-octets+)
    (when result
      (setf (aref result 0) 1
            (u32be result 1) (- result-end +prefix-octets+))
      (make-parcel result result-end))))

(defun inflation-problem (outcome limit)
  "The status and the text for the OUTCOME of OS:INFLATE-OCTETS when that is not :ok."
  (ecase outcome
    (:too-long (values :resource-exhausted
                       (format nil "compressed message of more than ~D octets received, limit ~:*~D"
                               limit)))
    (:corrupt (values :internal "compressed message is corrupt"))
    (:truncated (values :internal "compressed message is cut short"))
    (:no-memory (values :resource-exhausted "no memory to decompress a message"))))

;;; Messages of a call whose peer may compress wait in a wrapping that says whether they are

(defstruct (packed (:constructor make-packed (parcel compressed)) (:copier nil))
  "PARCEL is a message as it came; COMPRESSED says how to read it."
  (parcel nil :type parcel)
  (compressed nil :type boolean))

(declaim (sb-ext:freeze-type packed))

(defstruct (compression (:copier nil))
  "The compression of a call. OUTGOING: ours; INCOMING: that of those messages of the peer that are
compressed; ARRIVING: whether the one being delivered is; RECEIVED: whether the one decoded last
was."
  (outgoing nil :type (or null encoding))
  (incoming nil :type (or null encoding))
  (arriving nil :type boolean)          ; the loop's
  (received nil :type boolean))         ; the receiving thread's

(declaim (sb-ext:freeze-type compression))
