;;;; DATA that cannot be sent at once: the queue of a stream and the ring of writers.
;;;;
;;;; A stream is in the ring while it has queued octets and room in its own window. Streams in the
;;;; ring take turns: a stream writes one DATA frame and goes to the end of the ring. A stream whose
;;;; window is used up leaves the ring and returns with WINDOW_UPDATE or SETTINGS; a stream that
;;;; ends leaves the ring at once. When the connection's window is used up, all streams keep their
;;;; places. While the ring is not empty no other stream writes.
;;;;
;;;; An empty DATA frame needs no window (RFC 9113 section 6.9.1), so an empty queue never waits:
;;;; END_STREAM is sent with the last octet of a queue, and trailers are written when that octet was
;;;; written.

(in-package #:clgrpc.http2)

(define-hot (stream-queue-empty-p :inline t) ((stream stream)) boolean
  "True if no octets are queued on STREAM, so that all are in the output or have been sent."
  (zerop (stream-queued-octets stream)))

(define-hot enqueue-segment ((stream stream) (octets octets) (start index) (end index)
                             (storable boolean))
    null
  (let ((segment (make-segment octets start end storable))
        (tail (stream-queue-tail stream))
        (count (- end start)))
    (if tail
        (setf (segment-next tail) segment)
        (setf (stream-queue-head stream) segment))
    (setf (stream-queue-tail stream) segment)
    (note-queued stream count)
    nil))

(define-hot write-now ((stream stream) (octets octets) (start index) (end index)
                       (end-stream-p boolean))
    index
  "Write DATA frames of the octets START to END while that is allowed; return the position of the
first octet not written. If END-STREAM-P is true, the frame with the last octet ends the stream,
which may not exist afterwards."
  (let ((connection (stream-connection stream))
        (at start))
    (declare (type index at))
    (loop
      (let ((count (min (- end at) (max 0 (stream-send-window stream))
                        (max 0 (connection-send-window connection)) (largest-data connection))))
        (when (or (zerop count) (not (reserve-data stream count)))
          (return at))
        (multiple-value-bind (to position) (begin-data stream count)
          (copy-octets octets at (+ at count) to position))
        (incf at count)
        (end-data stream count (and end-stream-p (= at end)))
        (when (= at end) (return at))))))

(define-hot send-data ((stream stream) (octets octets) (start index) (end index)
                       (end-stream-p boolean) &optional (storable boolean nil))
    null
  "Send the octets START to END on STREAM, whose headers have been sent. As many octets as the
windows and the output's cap allow are sent at once, and the rest from a queue as the windows open.
OCTETS belong to the connection afterwards. If STORABLE is true, OCTETS were returned by
BORROW-OCTETS, and the connection returns them to the store when they have been sent. If
END-STREAM-P is true, our side ends after OCTETS. ON-WRITABLE is called when the queue has fallen
below half of the option send-budget-octets. Do nothing if the stream was reset or the connection is
finished. Signal MISUSE if the headers are missing or our side has been ended."
  (let ((state (stream-state stream)))
    (unless (>= state +closed+)
      (unless (and (sending-state-p state)
                   (stream-flag-p stream +sent-headers+)
                   (not (stream-flag-p stream +queue-ends+)))
        (misuse "No data can be sent on ~S now." stream))
      (cond ((and (= start end) (zerop (stream-queued-octets stream)))
             (when end-stream-p
               (begin-data stream 0)
               (end-data stream 0 t)))
            (t
             (send-or-queue stream octets start end end-stream-p storable)))))
  nil)

(define-hot send-or-queue ((stream stream) (octets octets) (start index) (end index)
                           (end-stream-p boolean) (storable boolean))
    null
  (let ((at (write-now stream octets start end end-stream-p)))
    (cond ((< at end)
           (enqueue-segment stream octets at end storable)
           (when end-stream-p (set-stream-flag stream +queue-ends+))
           (let ((connection (stream-connection stream)))
             (join-ring connection stream)
             (funcall (sink-on-queued (connection-sink connection)) connection)))
          (t (when storable (give-octets-back octets))
             (when (and end-stream-p (= start end)) ; after a queue
               (set-stream-flag stream +queue-ends+)))))
  nil)

(define-hot send-trailers-later ((stream stream) (function function)) null
  "Call FUNCTION with STREAM when its queue has been written, or at once if the queue is empty.
FUNCTION must send the trailers by BEGIN-HEADERS and END-HEADERS. FUNCTION is not called if the
stream is reset before."
  (if (zerop (stream-queued-octets stream))
      (funcall function stream)
      (setf (stream-trailers-function stream) function))
  nil)

;;; Turns

(define-hot dequeue-octets ((stream stream) (to octets) (position index) (count index)) null
  "Move the first COUNT octets of the queue of STREAM to TO, beginning at POSITION."
  (note-queued stream (- count))
  (loop while (plusp count)
        do (let* ((segment (the segment (stream-queue-head stream)))
                  (start (segment-start segment))
                  (part (min count (- (segment-end segment) start))))
             (declare (type index part))
             (setf position (copy-octets (segment-octets segment) start (+ start part) to position)
                   (segment-start segment) (+ start part))
             (decf count part)
             (when (= (segment-start segment) (segment-end segment))
               (setf (stream-queue-head stream) (segment-next segment))
               (store-segment segment))))
  (unless (stream-queue-head stream) (setf (stream-queue-tail stream) nil))
  nil)

(define-hot write-turn ((connection connection) (stream stream)) null
  "Write one DATA frame of STREAM, which has left the ring, and put it back if there is more."
  (let* ((queued (stream-queued-octets stream))
         (count (min queued (stream-send-window stream) (connection-send-window connection)
                     (largest-data connection)))
         (left (- queued count))
         (ends (and (zerop left) (stream-flag-p stream +queue-ends+)))
         (half (ash (options-send-budget-octets (connection-options connection)) -1)))
    (declare (type index count left))
    (multiple-value-bind (octets position) (begin-data stream count)
      (dequeue-octets stream octets position count))
    (end-data stream count ends)
    (unless ends
      (join-ring connection stream)
      (let ((function (stream-trailers-function stream)))
        (cond ((and function (zerop left))
               (setf (stream-trailers-function stream) nil)
               (funcall function stream))
              ((and (< left half) (<= half queued))
               (funcall (sink-on-writable (connection-sink connection)) stream)))))
    nil))

(define-hot write-due ((connection connection) (limit-octets index)) boolean
  "See WRITE-QUEUED."
  (write-window-updates connection)
  (loop
    (let ((head (connection-ring-head connection)))
      (cond ((or (null head) (connection-closed-p connection))
             (return nil))
            ((not (stream-waiting-p head)) ; then SETTINGS have reduced the stream's window
             (leave-ring connection head))
            ((<= (connection-send-window connection) 0)
             (return nil))
            ((<= limit-octets (output-fill connection))
             (return t))
            (t
             (leave-ring connection head)
             (write-turn connection head))))))

(define-hot (write-queued :inline t) ((connection connection) (limit-octets index)) boolean
  "Append the WINDOW_UPDATEs that are due, then queued DATA, a frame of each waiting stream in
turn, until the output has about LIMIT-OCTETS. Call this before each flush. Return true if more
could be written now."
  (and (or (connection-ring-head connection) (window-updates-due-p connection))
       (write-due connection limit-octets)))
