;;;; Snapshots that come in. What came of one is known by its identity (last index and term,
;;;; length, CRC-32C) with the CRC-32C of that part: a leader that comes back goes on behind it. A
;;;; process that was restarted asks the state machine what it has kept (KEPT-SNAPSHOT).
;;;;
;;;; There is one receipt at a time, and no more than one thread in the state machine's methods for
;;;; snapshots. A stream that begins takes the place of one under way, which ends then: so a leader
;;;; that lost its connection need not wait until we notice. A stream that is refused takes no
;;;; place. Once the snapshot is installed, or could not be, the receipt is forgotten: a leader that
;;;; has lost the last response begins anew, and the state machine says that it has it.
;;;;
;;;; A chunk must begin where the one before has ended and have its check sum; then the state
;;;; machine gets it. The end is reached with the last octet, and if all have the check sum of the
;;;; header.

(in-package #:clgrpc.raft)

(defstruct (delivery (:constructor make-delivery (call)) (:copier nil))
  "A stream that brings a snapshot."
  (call nil :read-only t)               ; the stream
  (since-ns nil :type (or null nanoseconds))) ; when it began to wait for a part; nil if it does not

(defstruct (receipt (:constructor make-receipt (header delivery offset crc)) (:copier nil))
  "What came of a snapshot."
  (header nil :read-only t)             ; the SnapshotHeader
  (delivery nil :read-only t)           ; that brings it
  (offset 0 :type (unsigned-byte 64))   ; how many octets came and are kept
  (crc 0 :type crc))                    ; of these

(declaim (sb-ext:freeze-type delivery receipt))

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

(defun kept-octets (state header)
  "How many octets STATE has kept of the snapshot of HEADER from an earlier process, and their
CRC-32C."
  (multiple-value-bind (octets crc) (kept-snapshot state header)
    (if (and (typep octets '(integer 1)) (typep crc 'crc)
             (<= octets (v1:snapshot-header-octets header)))
        (values octets crc)
        (values 0 0))))

(defun continue-receipt (receipt header delivery state)
  "A receipt to receive the snapshot of HEADER into by DELIVERY, given RECEIPT, of the one before,
or nil, and the state machine."
  (multiple-value-call #'make-receipt header delivery
    (if (and receipt (equal (snapshot-identity header)
                            (snapshot-identity (receipt-header receipt))))
        (values (receipt-offset receipt) (receipt-crc receipt))
        (kept-octets state header))))

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

(defun note-chunk (receipt chunk)
  "The data of CHUNK, which CHECK-CHUNK has found right, are kept."
  (let ((length (length (v1:snapshot-chunk-data chunk))))
    (sb-sys:without-interrupts
      (setf (receipt-crc receipt) (join-crc32c (receipt-crc receipt)
                                               (v1:snapshot-chunk-crc32c chunk) length))
      (incf (receipt-offset receipt) length))))

(defun receipt-complete-p (receipt)
  (= (receipt-offset receipt) (v1:snapshot-header-octets (receipt-header receipt))))

(defun check-receipt (receipt)
  "Signal an RPC-ERROR if what has come is not what the header of RECEIPT says."
  (unless (= (receipt-crc receipt) (v1:snapshot-header-crc32c (receipt-header receipt)))
    (refuse :data-loss "the snapshot has another check sum than its header")))
