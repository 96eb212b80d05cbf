;;;; Snapshots that come in. What came of one is known by its identity (last index and term,
;;;; length, CRC-32C) for as long as the process lives, with the CRC-32C of that part: a leader
;;;; that comes back goes on behind it. After a restart it begins at 0.
;;;;
;;;; There is one receipt at a time. A stream that begins takes the place of one under way, whose
;;;; next chunk is then refused: so a leader that lost its connection need not wait until we
;;;; notice. It only waits for the chunk that the state machine is keeping.
;;;;
;;;; A chunk must begin where the one before has ended and have its check sum; then the state
;;;; machine gets it. The end is reached with the last octet, and if all have the check sum of the
;;;; header.

(in-package #:clgrpc.raft)

(defstruct (receipt (:constructor make-receipt (header)) (:copier nil))
  "What came of a snapshot."
  (header nil :read-only t)             ; the SnapshotHeader
  (offset 0 :type (unsigned-byte 64))   ; how many octets came and are kept
  (crc 0 :type crc)                     ; of these
  (busy nil :type boolean))             ; the state machine is keeping a chunk

(declaim (sb-ext:freeze-type receipt))

(defmethod print-object ((receipt receipt) stream)
  (print-unreadable-object (receipt stream :type t)
    (format stream "~:D of ~:D octets, up to entry ~D" (receipt-offset receipt)
            (v1:snapshot-header-octets (receipt-header receipt))
            (v1:snapshot-header-last-included-index (receipt-header receipt)))))

(defun snapshot-identity (header)
  (list (v1:snapshot-header-last-included-index header)
        (v1:snapshot-header-last-included-term header)
        (v1:snapshot-header-octets header)
        (v1:snapshot-header-crc32c header)))

(defun continue-receipt (receipt header)
  "A receipt to receive the snapshot of HEADER into, given RECEIPT, of the one before, or nil."
  (let ((new (make-receipt header)))
    (when (and receipt (equal (snapshot-identity header)
                              (snapshot-identity (receipt-header receipt))))
      (setf (receipt-offset new) (receipt-offset receipt)
            (receipt-crc new) (receipt-crc receipt)))
    new))

(defun check-chunk (receipt chunk)
  "Signal an RPC-ERROR unless CHUNK, a SnapshotChunk, is what RECEIPT goes on with."
  (let* ((header (receipt-header receipt))
         (data (v1:snapshot-chunk-data chunk))
         (offset (v1:snapshot-chunk-offset chunk)))
    (cond ((/= offset (receipt-offset receipt))
           (refuse :failed-precondition "a chunk begins at ~D, not at ~D" offset
                        (receipt-offset receipt)))
          ((zerop (length data))
           (refuse :invalid-argument "a chunk has no data"))
          ((> (+ offset (length data)) (v1:snapshot-header-octets header))
           (refuse :invalid-argument "the chunks have more than the ~D octets of the header"
                        (v1:snapshot-header-octets header)))
          ((/= (v1:snapshot-chunk-crc32c chunk) (crc32c data))
           (refuse :data-loss "the chunk at ~D has another check sum than it says" offset)))))

(defun note-chunk (receipt data)
  "DATA, of a chunk, are kept."
  (setf (receipt-crc receipt) (crc32c data :crc (receipt-crc receipt)))
  (incf (receipt-offset receipt) (length data)))

(defun receipt-complete-p (receipt)
  (= (receipt-offset receipt) (v1:snapshot-header-octets (receipt-header receipt))))

(defun check-receipt (receipt)
  "Signal an RPC-ERROR if what has come is not what the header of RECEIPT says; forget it then."
  (let ((wanted (v1:snapshot-header-crc32c (receipt-header receipt))))
    (unless (= wanted (receipt-crc receipt))
      (setf (receipt-offset receipt) 0
            (receipt-crc receipt) 0)
      (refuse :data-loss "the snapshot has another check sum than its header"))))
