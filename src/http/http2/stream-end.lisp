;;;; The ends of streams, by their last frame or a reset, and of connections, which fail (RFC 9113
;;;; section 5.4.1), are closed by their owner, or are lost.
;;;;
;;;; Only FINISH-STREAM removes a stream from the table, and only END-CONNECTION finishes a
;;;; connection; each releases the memory of the stream or the connection and calls the owner once.

(in-package #:clgrpc.http2)

;;; Streams

(define-hot store-segment ((segment segment)) null
  "Return the octets of SEGMENT to the store, because they have been sent or will never be sent."
  (when (segment-storable segment)
    (give-octets-back (shiftf (segment-octets segment) (load-time-value (make-octets 0)))))
  nil)

(define-hot note-queued ((stream stream) (count fixnum)) null
  "Note that the queue of STREAM has grown by COUNT octets; a negative COUNT means that it has
shrunk."
  (let ((connection (stream-connection stream)))
    (incf (stream-queued-octets stream) count)
    (incf (counters-queued-octets (connection-counters connection)) count)
    nil))

(define-hot (drop-queue :inline t) ((stream stream)) null
  (let ((queued (stream-queued-octets stream)))
    (when (plusp queued)
      (note-queued stream (- queued))
      (loop for segment = (stream-queue-head stream) then (segment-next segment)
            while segment do (store-segment segment))
      (setf (stream-queue-head stream) nil
            (stream-queue-tail stream) nil))
    (setf (stream-trailers-function stream) nil)))

(define-hot leave-ring ((connection connection) (stream stream)) null
  "Remove STREAM from the ring of writers."
  (let ((before (stream-ring-before stream))
        (next (stream-ring-next stream)))
    (if before
        (setf (stream-ring-next before) next)
        (setf (connection-ring-head connection) next))
    (if next
        (setf (stream-ring-before next) before)
        (setf (connection-ring-tail connection) before))
    (setf (stream-ring-next stream) nil
          (stream-ring-before stream) nil)
    (clear-stream-flag stream +in-ring+))
  nil)

(define-hot return-to-connection ((connection connection) (count (unsigned-byte 31))) null
  "Note that COUNT received octets no longer occupy the connection's window. When the number of such
octets reaches half of the window, a WINDOW_UPDATE is due."
  (let ((unreturned (+ (connection-unreturned connection) count)))
    (setf (connection-unreturned connection) unreturned)
    (when (<= (ash (connection-connection-window connection) -1) unreturned)
      (unless (connection-closed-p connection)
        (output-buffer connection)))
    nil))

(define-hot finish-stream ((stream stream)) null
  "Remove STREAM, whose state is closed or reset, from the table and notify the owner, once."
  (unless (stream-flag-p stream +finished+)
    (let ((connection (stream-connection stream))
          (unconsumed (- (stream-unconsumed stream) (stream-credited stream))))
      (set-stream-flag stream +finished+)
      (remove-stream connection stream)
      (drop-queue stream)
      ;; it leaves the ring now: the streams before it may wait long for the connection's window
      (when (stream-flag-p stream +in-ring+) (leave-ring connection stream))
      (when (eq stream (connection-opening connection))
        (setf (connection-opening connection) nil))
      (setf (stream-unconsumed stream) 0
            (stream-credited stream) 0)
      (unless (zerop unconsumed)
        (return-to-connection connection unconsumed))
      (funcall (sink-on-stream-closed (connection-sink connection)) stream)
      (recycle-stream stream)))
  nil)

(define-hot note-early-end ((stream stream)) null
  "Note that STREAM is about to be reset, or lost. The stream has failed, unless the server has
ended its side, because the rest of the client's side does not matter after that."
  (let ((connection (stream-connection stream)))
    (when (if (connection-server-p connection)
              (stream-sendable-p stream)
              (stream-receivable-p stream))
      (incf (counters-streams-failed (connection-counters connection))))
    nil))

(define-hot reset-finished-stream ((stream stream) (state state) (code error-code) (source keyword))
    null
  "End STREAM in STATE and notify the owner of the reason; CODE and SOURCE are as for ON-RESET."
  (note-early-end stream)
  (setf (stream-state stream) state)
  (funcall (sink-on-reset (connection-sink (stream-connection stream))) stream code source)
  (finish-stream stream))

;;; Connections

(defun finish-all-streams (connection code)
  (map-streams (lambda (stream) (reset-finished-stream stream +closed+ code :connection))
               connection))

(defun end-connection (connection code text)
  "Finish CONNECTION without a frame to the peer: end its streams and notify the owner."
  (setf (connection-phase connection) +finished-connection+
        (connection-error-text connection) text
        (connection-settings-deadline connection) 0
        (connection-preface-deadline connection) 0
        (connection-partial-block connection) nil)
  (finish-all-streams connection code)
  (leave-pool connection)
  (funcall (sink-on-close (connection-sink connection)) connection code text)
  nil)

(defun last-peer-stream-id (connection)
  (if (connection-server-p connection) (max 0 (connection-highest-id connection)) 0))

(defun lower-goaway (connection last-stream-id)
  "Return LAST-STREAM-ID, or a lower identifier from an earlier GOAWAY (6.8), and record it as
sent."
  (let ((before (connection-goaway-sent connection)))
    (setf (connection-goaway-sent connection)
          (if (= before +no-goaway+) last-stream-id (min before last-stream-id)))))

(defun fail-connection (connection code text)
  "End CONNECTION with GOAWAY of CODE and TEXT (5.4.1). Do nothing if CONNECTION is finished."
  (unless (connection-closed-p connection)
    (discard-open-block connection)
    (emit-goaway connection (lower-goaway connection (last-peer-stream-id connection)) code
                 (ascii-octets text))
    (end-connection connection code text))
  nil)

(defun close-connection (connection error-code text)
  "End CONNECTION for a reason of the owner. Write GOAWAY with ERROR-CODE and TEXT (ASCII), call
ON-RESET with :CONNECTION for every remaining stream, then call ON-CLOSE. Do nothing if CONNECTION
is finished."
  (fail-connection connection error-code (coerce text 'simple-string)))
