;;;; Snapshots that come in. The received part is identified by the snapshot (last index and term,
;;;; length, CRC-32C) and the CRC-32C of that part: a leader that connects again continues after it.
;;;; A restarted process asks the state machine for the part that it has kept (KEPT-SNAPSHOT).
;;;;
;;;; A member has one snapshot receiver at a time, and at most one thread in the state machine's
;;;; methods for snapshots. A new stream replaces the stream under way, which ends: so a leader that
;;;; has lost its connection need not wait until we notice the loss. A stream that is refused does
;;;; not replace another stream. When the snapshot is installed, or could not be, the receiver is
;;;; forgotten. A leader that has lost the last response begins again, and the state machine answers
;;;; that it has the snapshot.
;;;;
;;;; A chunk must begin where the previous one has ended, and match its check sum; then it is passed
;;;; to the state machine. The snapshot is complete with the last octet, provided that all octets
;;;; match the check sum of the header.

(in-package #:clgrpc.raft)

(defstruct (snapshot-delivery (:constructor make-snapshot-delivery (call)) (:copier nil))
  "A stream that transfers a snapshot."
  (call nil :read-only t)               ; the stream
  ;; when the stream began to wait for a part; nil if it does not wait
  (since-ns nil :type (or null nanoseconds)))

(defstruct (snapshot-receiver (:constructor make-snapshot-receiver
                               (header snapshot-delivery offset crc)) (:copier nil))
  "The received part of a snapshot."
  (header nil :read-only t)             ; the SnapshotHeader
  (snapshot-delivery nil :read-only t)  ; the delivery that brings the snapshot
  (offset 0 :type (unsigned-byte 64))   ; how many octets came and are kept
  (crc 0 :type crc))                    ; the CRC-32C of these octets

(declaim (sb-ext:freeze-type snapshot-delivery snapshot-receiver))

(define-printer (snapshot-receiver snapshot-receiver)
  "~:D of ~:D octets, up to entry ~D" (snapshot-receiver-offset snapshot-receiver)
  (v1:snapshot-header-octets (snapshot-receiver-header snapshot-receiver))
  (v1:snapshot-header-last-included-index (snapshot-receiver-header snapshot-receiver)))

(defun snapshot-identity (header)
  (list (v1:snapshot-header-last-included-index header)
        (v1:snapshot-header-last-included-term header)
        (v1:snapshot-header-octets header)
        (v1:snapshot-header-crc32c header)))

(defun kept-octets (state header call)
  "Two values: the number of octets of HEADER's snapshot, which CALL sends, that STATE has kept from
an earlier process; and their CRC-32C."
  (multiple-value-bind (octets crc) (kept-snapshot state header :call call)
    (if (and (typep octets '(integer 1)) (typep crc 'crc)
             (<= octets (v1:snapshot-header-octets header)))
        (values octets crc)
        (values 0 0))))

(defun continue-snapshot-receiver (snapshot-receiver header snapshot-delivery state)
  "A snapshot receiver for the snapshot of HEADER, sent by SNAPSHOT-DELIVERY. The new receiver
continues after the octets of SNAPSHOT-RECEIVER, the previous one or nil, or after the part that the
state machine has kept."
  (multiple-value-call #'make-snapshot-receiver header snapshot-delivery
    (if (and snapshot-receiver (equal (snapshot-identity header)
                                      (snapshot-identity
                                       (snapshot-receiver-header snapshot-receiver))))
        (values (snapshot-receiver-offset snapshot-receiver)
                (snapshot-receiver-crc snapshot-receiver))
        (kept-octets state header (snapshot-delivery-call snapshot-delivery)))))

(defun check-chunk (snapshot-receiver chunk)
  "Signal an RPC-ERROR unless CHUNK, a SnapshotChunk, is the next one of SNAPSHOT-RECEIVER."
  (let* ((header (snapshot-receiver-header snapshot-receiver))
         (data (v1:snapshot-chunk-data chunk))
         (offset (v1:snapshot-chunk-offset chunk)))
    (cond ((/= offset (snapshot-receiver-offset snapshot-receiver))
           (refuse :failed-precondition "a chunk begins at ~D, not at ~D" offset
                   (snapshot-receiver-offset snapshot-receiver)))
          ((zerop (length data))
           (refuse :invalid-argument "a chunk has no data"))
          ((> (+ offset (length data)) (v1:snapshot-header-octets header))
           (refuse :invalid-argument "the chunks have more than the ~D octets of the header"
                   (v1:snapshot-header-octets header)))
          ((/= (v1:snapshot-chunk-crc32c chunk) (crc32c data))
           (refuse :data-loss "the chunk at ~D does not match its check sum" offset)))))

(defun note-chunk (snapshot-receiver chunk)
  "Note that the data of CHUNK, which has passed CHECK-CHUNK, are kept."
  (let ((length (length (v1:snapshot-chunk-data chunk))))
    (sb-sys:without-interrupts
      (setf (snapshot-receiver-crc snapshot-receiver)
            (join-crc32c (snapshot-receiver-crc snapshot-receiver)
                         (v1:snapshot-chunk-crc32c chunk) length))
      (incf (snapshot-receiver-offset snapshot-receiver) length))))

(defun snapshot-receiver-complete-p (snapshot-receiver)
  (= (snapshot-receiver-offset snapshot-receiver)
     (v1:snapshot-header-octets (snapshot-receiver-header snapshot-receiver))))

(defun check-snapshot-receiver (snapshot-receiver)
  "Signal an RPC-ERROR if the received octets do not match the header of SNAPSHOT-RECEIVER."
  (unless (= (snapshot-receiver-crc snapshot-receiver)
             (v1:snapshot-header-crc32c (snapshot-receiver-header snapshot-receiver)))
    (refuse :data-loss "the snapshot has another check sum than its header")))
