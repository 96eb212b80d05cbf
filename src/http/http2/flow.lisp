;;;; Flow control (RFC 9113 sections 5.2 and 6.9): all window arithmetic of both directions.
;;;;
;;;; Receiving: a DATA frame charges its whole payload, padding too, to the connection and to the
;;;; stream. The owner returns the window for content by CONSUME-DATA; this file returns it for
;;;; padding, and for content that can no longer be read (to the connection by RETURN-TO-CONNECTION,
;;;; stream-end.lisp). When half a window can be returned an update is due, and
;;;; WRITE-WINDOW-UPDATES, called at each flush, writes one WINDOW_UPDATE for it. For each stream
;;;;
;;;;   receive-window + unreturned + unconsumed = the full window, as long as the peer may send.
;;;;
;;;; An owner that keeps content of one stream for long can return the connection's window earlier,
;;;; by CREDIT-CONNECTION, so that other streams can continue. For each connection
;;;;
;;;;   receive-window + unreturned + the sum of (unconsumed - credited) = the full window.
;;;;
;;;; Sending: windows never pass 2^31-1 (6.9.1) and may be negative after SETTINGS (6.9.2).

(in-package #:clgrpc.http2)

(defconstant +largest-window+ #x7FFFFFFF)

(define-hot (raise-window :inline t) ((window window) (increment (unsigned-byte 31)))
    (or null window)
  "Return WINDOW raised by INCREMENT, or NIL if that exceeds the largest window."
  (let ((sum (+ window increment)))
    (if (<= sum +largest-window+) sum nil)))

(define-hot (return-to-stream :inline t) ((stream stream) (count (unsigned-byte 31))) null
  "Do what RETURN-TO-CONNECTION does, for the window of STREAM. Do nothing if the peer's side has
ended."
  (when (receiving-state-p (stream-state stream))
    (let ((connection (stream-connection stream))
          (unreturned (+ (stream-unreturned stream) count)))
      (setf (stream-unreturned stream) unreturned)
      (when (and (<= (ash (connection-stream-window connection) -1) unreturned)
                 (not (stream-flag-p stream +update-due+)))
        (set-stream-flag stream +update-due+)
        (setf (stream-due stream) (connection-due connection)
              (connection-due connection) stream)
        (output-buffer connection))))
  nil)

(define-hot consume-data ((stream stream) (count (unsigned-byte 31))) null
  "Note that the owner has read or dropped COUNT octets that ON-DATA delivered on STREAM: the
windows of STREAM and of its connection may grow by COUNT (RFC 9113 section 6.9). When a stream
closes, this is done for all remaining octets, so later calls do nothing. Signal MISUSE if COUNT
exceeds the number of delivered octets."
  (unless (stream-flag-p stream +finished+)
    (let ((left (- (stream-unconsumed stream) count)))
      (when (minusp left)
        (misuse "~D octets of ~S cannot be consumed: it has delivered ~D." count stream
                (stream-unconsumed stream)))
      (setf (stream-unconsumed stream) left)
      (let ((before (min count (stream-credited stream))))
        (decf (stream-credited stream) before)
        (return-to-connection (stream-connection stream) (- count before)))
      (return-to-stream stream count)))
  nil)

(define-hot credit-connection ((stream stream)) null
  "Let the connection's window, but not the stream's, grow by all octets that ON-DATA has delivered
on STREAM. The owner still keeps these octets, but other streams need not wait until it has read
them. The stream's window grows with a later CONSUME-DATA."
  (let ((count (- (stream-unconsumed stream) (stream-credited stream)))) ; 0 once STREAM has ended
    (when (plusp count)
      (setf (stream-credited stream) (stream-unconsumed stream))
      (return-to-connection (stream-connection stream) count)))
  nil)

(define-hot (window-update-due-p :inline t) ((connection connection)) boolean
  "True if a WINDOW_UPDATE of at least half of the whole connection's window is due."
  (and (<= (ash (connection-connection-window connection) -1) (connection-unreturned connection))
       (not (connection-closed-p connection))))

(define-hot (window-updates-due-p :inline t) ((connection connection)) boolean
  "True if WRITE-WINDOW-UPDATES would write a frame."
  (or (window-update-due-p connection)
      (and (connection-due connection) t)))

(define-hot write-window-updates ((connection connection)) null
  "Append the WINDOW_UPDATEs that are due. WRITE-QUEUED appends them as well; an owner that does not
call WRITE-QUEUED before each flush must call this function."
  (when (window-update-due-p connection)
    (let ((unreturned (connection-unreturned connection)))
      (incf (connection-receive-window connection) unreturned)
      (setf (connection-unreturned connection) 0)
      (emit-window-update connection 0 unreturned)))
  (unless (connection-closed-p connection)
    (loop for stream = (connection-due connection)
          while stream
          do (setf (connection-due connection) (stream-due stream)
                   (stream-due stream) nil)
             (clear-stream-flag stream +update-due+)
             (update-stream-window connection stream)))
  nil)

(define-hot update-stream-window ((connection connection) (stream stream)) null
  (if (stream-flag-p stream +finished+)
      (recycle-stream stream)
      (let ((unreturned (stream-unreturned stream)))
        (when (receiving-state-p (stream-state stream))
          (incf (stream-receive-window stream) unreturned)
          (setf (stream-unreturned stream) 0)
          (emit-window-update connection (stream-id stream) unreturned)))))

;;; Sending

(define-hot (stream-waiting-p :inline t) ((stream stream)) boolean
  "True if STREAM has DATA to write and room in its own window."
  (and (plusp (stream-queued-octets stream))
       (plusp (stream-send-window stream))))

(define-hot join-ring ((connection connection) (stream stream)) null
  "Put STREAM at the end of the ring of writers if it belongs in the ring and is not in it."
  (when (and (stream-waiting-p stream)
             (not (stream-flag-p stream +in-ring+)))
    (set-stream-flag stream +in-ring+)
    (let ((tail (connection-ring-tail connection)))
      (if tail
          (setf (stream-ring-next tail) stream)
          (setf (connection-ring-head connection) stream))
      (setf (stream-ring-before stream) tail
            (connection-ring-tail connection) stream)))
  nil)

(define-hot raise-connection-window ((connection connection) (increment (unsigned-byte 31))) null
  "Handle the peer's WINDOW_UPDATE for the connection."
  (let ((window (raise-window (connection-send-window connection) increment)))
    (cond ((null window)
           (fail-connection connection +flow-control-error+ "connection window over 2^31-1"))
          (t
           (setf (connection-send-window connection) window)
           (when (connection-ring-head connection) (output-buffer connection))))
    nil))

(define-hot raise-stream-window ((stream stream) (increment (unsigned-byte 31))) null
  "Handle the peer's WINDOW_UPDATE for STREAM."
  (let ((window (raise-window (stream-send-window stream) increment)))
    (cond ((null window)
           (fail-stream stream +flow-control-error+ "stream window over 2^31-1"))
          (t
           (setf (stream-send-window stream) window)
           (join-ring (stream-connection stream) stream)
           (when (stream-waiting-p stream)
             (output-buffer (stream-connection stream)))))
    nil))

(defun change-initial-window (connection window)
  "Apply WINDOW, the peer's SETTINGS_INITIAL_WINDOW_SIZE: change the window of every stream by the
difference to the old value (6.9.2). For example, a window from which 1000 octets were sent is -900
after SETTINGS change 65535 to 100."
  (let ((difference (- window (connection-peer-stream-window connection))))
    (setf (connection-peer-stream-window connection) window)
    (multiple-value-bind (writers overflow) (shift-send-windows connection difference)
      (if overflow
          (fail-connection connection +flow-control-error+
                           "SETTINGS_INITIAL_WINDOW_SIZE makes a window larger than 2^31-1")
          (dolist (stream (sort writers #'< :key #'stream-id))
            (join-ring connection stream))))))

(define-hot shift-send-windows ((connection connection) (difference (signed-byte 33)))
    (values list boolean)
  "Add DIFFERENCE to the send window of every stream. This must be fast, because a peer may cause it
again and again. Return two values: the streams that belong in the ring of writers and are not in
it, and true if a window is too large."
  (let ((writers '()) (overflow nil))
    (loop for chain across (connection-table connection)
          do (loop for stream of-type (or null stream) = chain then (stream-next stream)
                   while stream
                   do (let ((window (+ (stream-send-window stream) difference)))
                        (if (< +largest-window+ window)
                            (setf overflow t)
                            (setf (stream-send-window stream) window))
                        (when (and (stream-waiting-p stream)
                                   (not (stream-flag-p stream +in-ring+)))
                          (push stream writers)))))
    (values writers overflow)))
