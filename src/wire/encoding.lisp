;;;; Which messages of a call are compressed (gRPC's document "Compression"). A call has a
;;;; COMPRESSION among its parts if it compresses or its peer says that it does; without one, which
;;;; is the common case, nothing here runs.
;;;;
;;;; A message of ours is compressed if the user of the channel, server or call wants it, the peer
;;;; has not said that it cannot read that, the message is long enough to gain by it, and no SEND
;;;; says otherwise. The header grpc-encoding goes out with the first headers, so the encoding is
;;;; settled by then.
;;;;
;;;; The thread that encodes a message compresses it, and the thread that decodes one decompresses
;;;; it, with the baton lent. A received message waits in its compressed form, so that what is held
;;;; for a peer is no more than what the peer has sent.

(in-package #:clgrpc.wire)

(define-hot (compression-of :inline t) ((call call)) (or null compression)
  "The COMPRESSION of CALL, or nil if it has none."
  (let ((parts (call-wire-parts call)))
    (and parts (wire-parts-compression parts))))

(defun ensure-compression (call)
  "The COMPRESSION of CALL, which has one from now on."
  (let ((parts (ensure-wire-parts call)))
    (or (wire-parts-compression parts)
        (setf (wire-parts-compression parts) (make-compression)))))

(define-hot (outgoing-encoding :inline t) ((call call)) (or null encoding)
  "How messages that CALL sends may be compressed, or nil. SETFable before they are."
  (let ((compression (compression-of call)))
    (and compression (compression-outgoing compression))))

(defun (setf outgoing-encoding) (encoding call)
  (setf (compression-outgoing (ensure-compression call)) encoding))

(defun (setf incoming-encoding) (encoding call)
  "CALL's peer may send messages that ENCODING has compressed; none if that is nil."
  (setf (compression-incoming (ensure-compression call)) encoding))

(define-hot (packs-p :inline t) ((call call)) boolean
  "True if CALL's peer may compress, so that what arrives is PACKED."
  (let ((compression (compression-of call)))
    (and compression (compression-incoming compression) t)))

;;; What users ask for

(defun wire-compression (call)
  "The operation COMPRESSION."
  (let ((encoding (outgoing-encoding call)))
    (if encoding (encoding-name encoding) :identity)))

(defun wire-received-compressed (call)
  "The operation RECEIVED-COMPRESSED."
  (let ((compression (compression-of call)))
    (and compression (compression-received compression))))

(defun wire-told-size (call)
  "The operation TOLD-SIZE."
  (let ((compression (compression-of call)))
    (and compression (compression-told compression))))

;;; Sending

(define-hot wants-compression-p ((call call) compress (size index) (options options)) boolean
  "True if a message of SIZE octets is to be compressed. COMPRESS as for SEND."
  (and compress
       (outgoing-encoding call)
       (or (eq compress t)
           (<= (options-compress-minimum-octets options) size))))

(defun compress-encoded (call octets end compress options)
  "Compress a message of CALL, OCTETS up to END with its prefix. Return it compressed or, if it is
shorter uncompressed and COMPRESS, as for SEND, is not t, as it is."
  (let* ((encoding (outgoing-encoding call))
         (parcel (compress-octets encoding (options-compression-level options) octets end)))
    (cond ((and parcel (or (eq compress t) (< (parcel-end parcel) end)))
           (give-octets-back octets)
           parcel)
          (t (when parcel (give-octets-back (parcel-taken parcel)))
             (make-parcel octets end)))))

(defun uncompressed (call encoded)
  "ENCODED, of ENCODE-MESSAGE for CALL, as octets that are not compressed: fresh ones, or itself.
ENCODED stays as it is. If libz has no memory, end CALL and return nil."
  (if (and (typep encoded 'parcel) (parcel-plain encoded))
      (multiple-value-bind (outcome octets length)
          (expand-octets (outgoing-encoding call) (parcel-octets encoded) +prefix-octets+
                         (parcel-end encoded) (parcel-plain encoded))
        (ecase outcome
          (:ok (let ((plain (make-octets (+ +prefix-octets+ length))))
                 (setf (u32be plain 1) length)
                 (copy-octets octets 0 length plain +prefix-octets+)
                 (give-octets-back octets)
                 plain))
          ((:no-memory :corrupt :truncated :too-long) ; a user's functions may not fit each other
           (abort-as call :no-memory)
           nil)))
      encoded))

(define-hot (encode-encodings :inline t) ((call call) encoder buffer compressed) null
  "Append to CALL's first header block which encodings we can read and, if COMPRESSED is true, by
which our messages may be compressed. A server does so if CALL has a COMPRESSION."
  (let ((compression (compression-of call)))
    (when (or compression (client-p call))
      (hpack:encode-field encoder buffer (accepted-encodings-field) :index))
    (when (and compression compressed (compression-outgoing compression))
      (hpack:encode-field encoder buffer
                          (grpc-encoding-field (compression-outgoing compression))
                          :index)))
  nil)

(defun encodings-octets (call)
  "How much ENCODE-ENCODINGS adds to a header list of CALL, a client's, at most, as RFC 9113 section
6.5.2 counts."
  (+ (hpack:field-size (accepted-encodings-field))
     (if (compression-of call) 70 0)))
