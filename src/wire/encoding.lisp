;;;; The choice of the messages to compress in a call (gRPC's document "Compression"). A
;;;; call has a COMPRESSION among its parts if it compresses or its peer announces compression.
;;;; Most calls have no COMPRESSION, and then no code of this file runs.
;;;;
;;;; A message of ours is compressed if the user of the channel, server or call has chosen an
;;;; encoding, the peer has not announced that it cannot read this encoding, the message is long
;;;; enough to benefit from compression, and its SEND allows compression. The header grpc-encoding
;;;; is sent with the first headers, so the encoding is final from then on.
;;;;
;;;; The thread that encodes a message compresses it, and the thread that decodes one decompresses
;;;; it, with the baton lent. A received message waits in its compressed form, so that no more
;;;; octets are held for a peer than it has sent.

(in-package #:clgrpc.wire)

(define-hot (compression-of :inline t) ((call call)) (or null compression)
  "Return the COMPRESSION of CALL, or nil if it has none."
  (let ((parts (call-wire-parts call)))
    (and parts (wire-parts-compression parts))))

(defun ensure-compression (call)
  "Return the COMPRESSION of CALL, which is made if CALL has none."
  (let ((parts (ensure-wire-parts call)))
    (or (wire-parts-compression parts)
        (setf (wire-parts-compression parts) (make-compression)))))

(define-hot (outgoing-encoding :inline t) ((call call)) (or null encoding)
  "Return the encoding of the messages that CALL sends, or nil if it does not compress them. Use
SETF only before the first message."
  (let ((compression (compression-of call)))
    (and compression (compression-outgoing compression))))

(defun (setf outgoing-encoding) (encoding call)
  (setf (compression-outgoing (ensure-compression call)) encoding))

(defun (setf incoming-encoding) (encoding call)
  "Allow CALL's peer to send messages compressed by ENCODING; nil allows no compression."
  (setf (compression-incoming (ensure-compression call)) encoding))

(defun inflation-failure (call)
  "Return the outcome of OS:INFLATE-OCTETS, such as :too-long, for the message of CALL's peer that
could not be decompressed, or nil if all messages could be."
  (let ((compression (compression-of call)))
    (and compression (compression-failure compression))))

(defun failed-inflation (call outcome limit)
  "Note OUTCOME as the INFLATION-FAILURE of CALL; return the status and the text with which CALL
ends."
  (setf (compression-failure (ensure-compression call)) outcome)
  (inflation-problem outcome limit))

(defun inflate-message (call encoding octets limit)
  "Decompress OCTETS, a message of CALL compressed by ENCODING. Return two values: the octets that
begin with the message, to be returned to the store later, and the length of the message. If the
message is damaged or longer than LIMIT, return three values: nil, and the status and the text with
which CALL ends."
  (multiple-value-bind (outcome result length)
      (expand-octets encoding octets 0 (length octets) limit)
    (if (eq :ok outcome)
        (values result length)
        (multiple-value-call #'values nil (failed-inflation call outcome limit)))))

(define-hot (packs-p :inline t) ((call call)) boolean
  "True if CALL's peer may compress messages; then all messages that arrive become byte buffers."
  (let ((compression (compression-of call)))
    (and compression (compression-incoming compression) t)))

;;; Operations for users

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
  "True if a message of SIZE octets should be compressed. COMPRESS is as for SEND."
  (and compress
       (outgoing-encoding call)
       (or (eq compress t)
           (<= (options-compress-minimum-octets options) size))))

(defun compress-encoded (call octets end compress options)
  "Compress a message of CALL, OCTETS up to END with its prefix. Return the compressed message, or
the original if the original is shorter and COMPRESS, as for SEND, is not t."
  (let* ((encoding (outgoing-encoding call))
         (byte-buffer (compress-octets encoding (options-compression-level options) octets end)))
    (cond ((and byte-buffer (or (eq compress t) (< (byte-buffer-end byte-buffer) end)))
           (give-octets-back octets)
           byte-buffer)
          (t (when byte-buffer (give-octets-back (byte-buffer-taken byte-buffer)))
             (make-byte-buffer octets end)))))

(defun uncompressed (call encoded)
  "Return ENCODED, a message that ENCODE-MESSAGE returned for CALL, without compression: fresh
octets, or ENCODED itself. ENCODED is not changed. If libz has no memory, end CALL and return nil."
  (if (and (typep encoded 'byte-buffer) (byte-buffer-plain encoded))
      (multiple-value-bind (outcome octets length)
          (expand-octets (outgoing-encoding call) (byte-buffer-octets encoded) +prefix-octets+
                         (byte-buffer-end encoded) (byte-buffer-plain encoded))
        (ecase outcome
          (:ok (let ((plain (make-octets (+ +prefix-octets+ length))))
                 (setf (u32be plain 1) length)
                 (copy-octets octets 0 length plain +prefix-octets+)
                 (give-octets-back octets)
                 plain))
          ;; the two functions of a user's encoding may not match
          ((:no-memory :corrupt :truncated :too-long)
           (abort-as call :no-memory)
           nil)))
      encoded))

(define-hot (encode-encodings :inline t) ((call call) encoder buffer compressed) null
  "Append to CALL's first header block the encodings that this end can read and, if COMPRESSED is
true, the encoding of its messages. A server adds these fields only if CALL has a COMPRESSION."
  (let ((compression (compression-of call)))
    (when (or compression (client-p call))
      (hpack:encode-field encoder buffer (accepted-encodings-field) :index))
    (when (and compression compressed (compression-outgoing compression))
      (hpack:encode-field encoder buffer
                          (grpc-encoding-field (compression-outgoing compression))
                          :index)))
  nil)
