;;;; Streams that we reset (RFC 9113 sections 5.1, 5.4.2 and 6.4), and the state of identifiers
;;;; whose streams do not exist any more.
;;;;
;;;; Identifiers up to HIGHEST-ID are closed. Identifiers in the newest gap below HIGHEST-ID were
;;;; never opened. The streams that we reset are recorded one by one in RESETS, the RESET-COUNT
;;;; highest of them, in order: the peer may not know of the reset yet, so its late frames are not
;;;; errors. When the lowest one is dropped from RESETS, all identifiers up to it count as reset.

(in-package #:clgrpc.http2)

(defconstant +most-resets+ 1024
  "The maximum number of streams reset by us that are recorded one by one.")

(define-hot reset-place ((connection connection) (id stream-id)) index
  "Return the number of recorded streams, reset by us, whose identifiers are below ID."
  (let ((resets (connection-resets connection))
        (low 0)
        (high (connection-reset-count connection)))
    (declare (type index low high))
    (loop while (< low high)
          do (let ((middle (ash (+ low high) -1)))
               (if (< (aref resets middle) id)
                   (setf low (1+ middle))
                   (setf high middle))))
    low))

(define-hot (reset-known-p :inline t) ((connection connection) (id stream-id)) boolean
  "True if ID is among the recorded streams that we reset."
  (let ((place (reset-place connection id)))
    (and (< place (connection-reset-count connection))
         (= id (aref (connection-resets connection) place)))))

(define-hot grow-resets ((connection connection)) null
  (let* ((old (connection-resets connection))
         (new (make-array (max 16 (* 2 (length old))) :element-type '(unsigned-byte 32))))
    (setf (connection-resets connection) (replace new old))
    nil))

(define-hot forget-reset ((connection connection) (place index)) index
  "Drop the stream with the lowest number from the record of streams that we reset, to make room for
a new stream at PLACE. Return the new stream's place, which is one lower now."
  (let ((resets (connection-resets connection)))
    (setf (connection-reset-forgotten connection) (logand (aref resets 0) #x7FFFFFFF))
    (replace resets resets :start1 0 :start2 1 :end2 (connection-reset-count connection))
    (decf (connection-reset-count connection))
    (1- place)))

(define-hot remember-reset ((connection connection) (id stream-id)) null
  "Record that we reset the stream ID; the peer may not know this yet."
  (earn-updates (connection-counters connection))
  (unless (or (<= id (connection-reset-forgotten connection))
              (reset-known-p connection id))
    (let ((place (reset-place connection id)))
      (when (= (connection-reset-count connection) (length (connection-resets connection)))
        (cond ((< (connection-reset-count connection) +most-resets+) (grow-resets connection))
              ((zerop place)            ; the new stream is the lowest itself
               (setf (connection-reset-forgotten connection) id)
               (return-from remember-reset nil))
              (t (setf place (forget-reset connection place)))))
      (let ((resets (connection-resets connection))
            (count (connection-reset-count connection)))
        (replace resets resets :start1 (1+ place) :start2 place :end2 count)
        (setf (aref resets place) id
              (connection-reset-count connection) (1+ count)))
      nil)))

(define-hot (ignored-id-p :inline t) ((connection connection) (id stream-id)) boolean
  "True if the stream ID is above the last stream of our GOAWAY, so that it is not processed (6.8)."
  (and (connection-server-p connection)
       (< +no-goaway+ (connection-goaway-sent connection) id)))

(define-hot absent-state ((connection connection) (id stream-id)) state
  (cond ((or (evenp id) (> id (connection-highest-id connection))) +idle+)
        ((ignored-id-p connection id) +reset+)
        ((<= id (connection-reset-forgotten connection)) +reset+)
        ((reset-known-p connection id) +reset+)
        (t +closed+)))

(define-hot skipped-id-p ((connection connection) (id stream-id)) boolean
  "True if ID is in the newest gap that the client left, so that the stream was never opened."
  (<= (max 1 (connection-skipped-low connection)) id (connection-skipped-high connection)))

;;; Resetting

(define-hot emit-reset ((connection connection) (id stream-id) (code error-code)) null
  (note-control-frame connection)
  (unless (connection-closed-p connection)
    (charge-reset connection))
  (unless (connection-closed-p connection)
    (emit-frame (connection rst-stream 0 id) code))
  nil)

(define-hot reset-absent ((connection connection) (id stream-id) (code error-code)
                          (text simple-string))
    null
  "Answer a frame on the stream ID, which the owner never got or has forgotten, with RST_STREAM."
  (setf (connection-error-text connection) text)
  (remember-reset connection id)
  (emit-reset connection id code))

(define-hot fail-stream ((stream stream) (code error-code) (text simple-string))
    null
  "Reset STREAM, on which the peer has caused the stream error CODE (5.4.2), and notify the owner."
  (let ((connection (stream-connection stream)))
    (unless (stream-flag-p stream +finished+)
      (reset-absent connection (stream-id stream) code text)
      (unless (connection-closed-p connection) ; it may have been one answer too many
        (reset-finished-stream stream +reset+ code :local)))))

(define-hot reset-stream ((stream stream) (error-code error-code)) null
  "End STREAM now with RST_STREAM of ERROR-CODE, and drop its queued octets; ON-STREAM-CLOSED is
called before this returns, ON-RESET is not. Do nothing if the stream is closed already. Source: RFC
9113 section 6.4."
  (let ((connection (stream-connection stream))
        (id (stream-id stream)))
    (cond ((stream-flag-p stream +finished+))
          ((= +idle+ (stream-state stream)) ; the peer has not seen ID, so it can be used again
           (setf (stream-state stream) +closed+)
           (decf (connection-highest-id connection) 2)
           (incf (counters-streams-failed (connection-counters connection)))
           (finish-stream stream))
          (t
           (remember-reset connection id)
           (note-early-end stream)
           (setf (stream-state stream) +reset+)
           (emit-frame (connection rst-stream 0 id) error-code)
           (finish-stream stream)))
    nil))
