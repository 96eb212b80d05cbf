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

(define-hot (compresses-p :inline t) ((call call) compress) boolean
  "True if messages of CALL may be compressed; COMPRESS as for SEND."
  (and compress
       (let ((compression (compression-of call)))
         (and compression (compression-outgoing compression) t))))

(define-hot (packs-p :inline t) ((call call)) boolean
  "True if CALL's peer may compress, so that what arrives is PACKED."
  (let ((compression (compression-of call)))
    (and compression (compression-incoming compression) t)))

;;; What users ask for

(defun wire-compression (call)
  "The operation COMPRESSION."
  (let* ((compression (compression-of call))
         (encoding (and compression (compression-outgoing compression))))
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
  (and (compresses-p call compress)
       (or (eq compress t)
           (<= (options-compress-minimum-octets options) size))))

(defun compress-encoded (call octets end compress options)
  "Compress a message of CALL, OCTETS up to END with its prefix. Return it compressed or, if it is
shorter uncompressed and COMPRESS, as for SEND, is not t, as it is."
  (let* ((encoding (compression-outgoing (compression-of call)))
         (parcel (compress-octets encoding (options-compression-level options) octets end)))
    (cond ((and parcel (or (eq compress t) (< (parcel-end parcel) end)))
           (give-octets-back octets)
           parcel)
          (t (when parcel (give-octets-back (parcel-taken parcel)))
             (make-parcel octets end)))))

(defun uncompressed (call encoded)
  "ENCODED, of ENCODE-MESSAGE for CALL, as fresh octets that are not compressed. It stays as it is.
If libz has no memory, end CALL and return nil."
  (multiple-value-bind (outcome octets length)
      (os:inflate-octets (encoding-name (compression-outgoing (compression-of call)))
                         (parcel-octets encoded) +prefix-octets+ (parcel-end encoded)
                         (parcel-plain encoded))
    (ecase outcome
      (:ok (let ((plain (make-octets (+ +prefix-octets+ length))))
             (setf (u32be plain 1) length)
             (copy-octets octets 0 length plain +prefix-octets+)
             (give-octets-back octets)
             plain))
      (:no-memory (abort-as call :no-memory)
       nil))))

(defun encode-encodings (call encoder buffer)
  "Append what CALL's compression says to its first header block."
  (let ((compression (compression-of call)))
    (when compression
      (let ((encoding (compression-outgoing compression)))
        (when encoding (hpack:encode-field encoder buffer (encoding-field encoding) :index))))))
