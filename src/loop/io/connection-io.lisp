;;;; Connections: reading and output. A turn reads a ready connection once, into the loop's
;;;; input area. Octets that the owner leaves, such as half a frame, are kept in a buffer of the
;;;; connection. A few such octets are copied in front of the next octets; if there are many, the
;;;; next octets are read into their buffer instead. If the owner has done enough for a turn
;;;; (POSTPONED), it gets the octets that it has left before more are read. Output is collected in a
;;;; buffer borrowed from the loop and sent with one call at the end of the turn; the connection
;;;; keeps the buffer only while a part of the output is unsent.
;;;;
;;;; When a write fails, the peer may have sent octets that give the reason, such as an answer and
;;;; GOAWAY. These octets can still be read: a handler with a function BROKEN gets them before its
;;;; connection is aborted. A server's answers to such octets would not arrive, so its handler needs
;;;; no BROKEN.

(in-package #:clgrpc.loop)

(defconstant +read-octets+ 131072
  "The number of octets that one read requests. With half of this number, a long message takes a
fifth more time, because each read costs a turn of the loop, and leaves half a frame, which is
copied twice.")
(defconstant +copied-leftover-octets+ 32768
  "The maximum length in octets of a leftover that is copied in front of the next octets. The octets
that follow a longer leftover are read into the leftover's buffer.")
(defconstant +flush-octets+ 65536
  "If the output of a connection has this number of octets, it is sent before the turn ends.")
(defconstant +fill-rounds+ 8
  "The maximum number of times that FILL may add output in one flush, before other connections are
flushed.")

;;; Making

(defun make-connection (loop byte-channel handler &key user account
                                                (max-unsent-octets (options-max-unsent-octets
                                                                    **default-options**)))
  "Return a connection on LOOP that owns BYTE-CHANNEL, which must be connected, and calls the
functions of HANDLER. USER is an object that belongs to the owner. ACCOUNT, if given, is charged
with the memory that the connection keeps. While more than MAX-UNSENT-OCTETS of its output are
unsent, the connection is not read. If BYTE-CHANNEL cannot be watched, close it and signal
SOCKET-ERROR. Call this on LOOP."
  (declare (type event-loop loop) (type byte-channel byte-channel) (type handler handler))
  (let* ((connection (%make-connection :loop loop :byte-channel byte-channel :handler handler
                                       :user user
                                       :account account :max-unsent max-unsent-octets))
         (result (add-source connection (byte-channel-descriptor byte-channel))))
    (when (os:failed-p result)
      (close-byte-channel byte-channel)
      (error 'socket-error :operation "watch the connection to" :reason (os:errno-text result)
                           :address (byte-channel-peer byte-channel)))
    (count-byte-channel byte-channel loop)
    connection))

(defun limit-silence (loop byte-channel seconds)
  "Make BYTE-CHANNEL, of LOOP's network, fail when its peer has left octets unacknowledged for
SECONDS. Some networks have no such limit."
  (funcall (network-limit-silence (event-loop-network loop)) (byte-channel-descriptor byte-channel)
           seconds)
  nil)

;;; Output

(define-hot buffer-for-output ((connection connection)) buffer
  (let ((loop (connection-loop connection)))
    (case (connection-state connection)
      ((:open :closing)
       (mark-dirty connection)
       (or (connection-buffer connection)
           (setf (connection-buffer connection) (borrow-buffer loop))))
      (t (discard-buffer loop)))))

(define-hot (connection-output :inline t) ((connection connection)) buffer
  "Return the buffer to which CONNECTION's output must be appended. It is flushed when the turn
ends. The buffer is valid until the handler's FILL or CLOSED is called. Output appended after the
connection is closed is lost. On the loop."
  (let ((buffer (connection-buffer connection)))
    (if (and buffer (connection-dirty connection))
        buffer
        (buffer-for-output connection))))

(define-hot (connection-unsent :inline t) ((connection connection)) index
  "The number of unsent octets of CONNECTION's output. On the loop; on other threads it is
approximate."
  (let ((buffer (connection-buffer connection)))
    (if buffer (buffer-fill buffer) 0)))

(define-hot connection-output-pending-p ((connection connection)) boolean
  "True if CONNECTION has output that has not been sent. On the loop."
  (plusp (connection-unsent connection)))

(defun connection-unread-p (connection)
  "True if the handler of CONNECTION has not consumed all input. On the loop."
  (and (connection-leftover connection) t))

(defun tell-written (connection buffer count)
  "Note for the tracers of HTTP/2 frames that COUNT octets of BUFFER have been written."
  (trace-event :tcp :octets-written :peer (connection-peer connection) :count count
                                    :unsent (- (buffer-fill buffer) count))
  (let ((sent (handler-sent (connection-handler connection)))
        (start (buffer-start buffer)))
    (when (and sent (tracing-p :http :flowctl :http-keepalive))
      (funcall sent connection (buffer-octets buffer) start (+ start count)))))

(define-hot write-output ((connection connection)) (member :sent :blocked :failed)
  "Send the contents of CONNECTION's buffer with one call."
  (let* ((buffer (the buffer (connection-buffer connection)))
         (result (byte-channel-write (connection-byte-channel connection) (buffer-octets buffer)
                                     (buffer-start buffer) (buffer-end buffer))))
    (declare (type fixnum result))
    (when (and (tracing-p :tcp :http :flowctl :http-keepalive) (plusp result))
      (tell-written connection buffer result))
    (when (plusp result) (incf (event-loop-octets-sent (connection-loop connection)) result))
    (cond ((= result (buffer-fill buffer))
           (clear-buffer buffer)
           :sent)
          ((>= result 0)
           (incf (buffer-start buffer) result)
           (setf (connection-blocked connection) t)
           (when (eq :closing (connection-state connection)) (start-linger-timer connection))
           :blocked)
          ((or (= result +wants-write+) (= result +wants-read+))
           (setf (connection-blocked connection) t
                 (connection-write-wants-read connection) (= result +wants-read+))
           :blocked)
          (t (end-output connection result)
             :failed))))

(defun end-output (connection result)
  "Drop the output of CONNECTION, because a write has failed with RESULT. If the handler of
CONNECTION has a function BROKEN, abort CONNECTION when it has been read to the end, or after
+LINGER-NS+; otherwise abort it at once. A byte channel that is broken itself, such as by a wrong
record of TLS, is not read any more."
  (let ((broken (handler-broken (connection-handler connection))))
    (cond ((or (null broken)
               (= result +broken+)
               (connection-stopped connection)
               (not (eq :open (connection-state connection))))
           (abort-connection connection (failure-reason connection result)))
          (t
           (clear-buffer (connection-buffer connection))
           (setf (connection-reason connection) (failure-reason connection result)
                 (connection-broken connection) t
                 (connection-blocked connection) t
                 (connection-throttled connection) nil
                 (connection-readable connection) t)
           (start-linger-timer connection)
           (mark-ready connection)
           (funcall broken connection))))
  nil)

(defun failure-reason (connection result)
  "Return the reason of a failed read or write that returned RESULT: a condition, or a text of the
byte channel."
  (if (= result +broken+)
      (byte-channel-failure (connection-byte-channel connection))
      (errno-condition result "continue the connection to" (connection-peer connection))))

(define-hot send-output ((connection connection)) boolean
  "Send the output while the peer accepts it and the handler's FILL adds more. Return true if FILL
may add more."
  (let ((fill (handler-fill (connection-handler connection))))
    (prog1 (dotimes (round +fill-rounds+ t)
             (let ((before (connection-unsent connection)))
               (funcall fill connection)
               (let ((after (connection-unsent connection)))
                 (unless (or (zerop after) (eq :sent (write-output connection)))
                   (return nil))
                 (when (or (zerop after) (= before after))
                   (release-output connection)
                   (return nil)))))
      (setf (connection-read-unsent connection) 0)
      (wake-throttled connection))))

(define-hot wake-throttled ((connection connection)) null
  "Read CONNECTION again if its unsent output was the only reason not to read it."
  (when (and (connection-throttled connection)
             (<= (connection-unsent connection) (connection-max-unsent connection)))
    (setf (connection-throttled connection) nil)
    (read-soon connection))
  nil)

(define-hot read-soon ((connection connection)) null
  "Mark CONNECTION for the next reading phase if its owner may have octets to read."
  (when (or (connection-readable connection) (connection-postponed connection))
    (mark-ready connection))
  nil)

(define-hot flush-connection ((connection connection)) boolean
  "Send CONNECTION's output now instead of at the end of the turn; octets that the kernel does not
accept remain. Return true if the owner may have more to send at the end of the turn. The handler's
FILL must not call this. On the loop."
  (and (member (connection-state connection) '(:open :closing))
       (not (connection-blocked connection))
       (progn (run-early-functions (connection-loop connection))
              (send-output connection))))

(define-hot flush-and-close ((connection connection)) null
  "Send the output of a dirty CONNECTION and close CONNECTION if it must be closed, as part of the
flush phase."
  (let ((more (flush-connection connection)))
    ;; only now, so that a call of CONNECTION-OUTPUT by FILL does not mark CONNECTION as dirty again
    (setf (connection-dirty connection) nil)
    (when more (mark-dirty connection))
    (when (or (eq :aborting (connection-state connection))
              (and (eq :closing (connection-state connection))
                   (not (connection-output-pending-p connection))))
      (let ((loop (connection-loop connection)))
        (if (slow-work-left-p loop)
            (with-slow-work (loop) (end-flushed connection))
            (mark-dirty connection))))
    (note-kept connection)
    nil))

(defun begin-handshake (connection)
  "Begin the handshake of CONNECTION, a client's over TLS, even if it has no output yet."
  (let ((result (byte-channel-write (connection-byte-channel connection) (make-octets 0) 0 0)))
    (cond ((member result '(0 #.+wants-read+)))
          ;; the reads that continue the handshake send the rest
          ((= result +wants-write+) (setf (connection-read-wants-write connection) t))
          (t (abort-connection connection (failure-reason connection result))))))

;;; Input

(define-hot keep-leftover ((connection connection) (octets octets) (start index) (end index)) null
  "Keep START to END of OCTETS, the loop's input area, for the next read."
  (let ((leftover (connection-leftover connection)))
    (cond ((= start end)
           (when leftover
             (setf (connection-leftover connection) nil)
             (give-buffer-back (connection-loop connection) leftover)))
          (t (let ((buffer (or leftover (borrow-buffer (connection-loop connection)))))
               (clear-buffer buffer)
               (append-octets buffer octets :start start :end end)
               (setf (connection-leftover connection) buffer))))
    nil))

(define-hot call-input ((connection connection) (octets octets) (start index) (end index)) index
  (multiple-value-bind (consumed postponed)
      (funcall (handler-input (connection-handler connection)) connection octets start end)
    (declare (type index consumed))
    (assert (<= start consumed end))
    (setf (connection-postponed connection) (and postponed (< consumed end)))
    consumed))

(defun end-of-input (connection)
  "Handle the end of CONNECTION's input; a half-closed connection is treated as closed."
  (setf (connection-readable connection) nil)
  (case (connection-state connection)
    (:open
     (unless (connection-blocked connection) (send-output connection))
     (unless (eq :aborting (connection-state connection))
       (abort-connection connection (connection-reason connection))))
    (:closing (setf (connection-ended connection) t))
    (:lingering (abort-connection connection nil)))
  nil)

(define-hot take-input ((connection connection) (result fixnum) (room index)) boolean
  "Handle RESULT, which a read with room for ROOM octets returned. Return true if octets were
received."
  (trace-event :tcp :octets-read :peer (connection-peer connection) :result result)
  (cond ((plusp result)
         (incf (event-loop-octets-received (connection-loop connection)) result)
         (when (and (< result room)
                    (not (connection-ended connection))
                    ;; the connection is read until nothing is left
                    (not (connection-broken connection))
                    (not (byte-channel-more (connection-byte-channel connection))))
           (setf (connection-readable connection) nil))
         t)
        ((zerop result) (end-of-input connection) nil)
        ((connection-broken connection) (end-broken connection result) nil)
        ((= result +wants-read+)
         (setf (connection-readable connection)
               (byte-channel-more (connection-byte-channel connection)))
         nil)
        ((= result +wants-write+)
         (setf (connection-readable connection) nil
               (connection-read-wants-write connection) t)
         nil)
        (t (abort-connection connection (failure-reason connection result)) nil)))

(defun end-broken (connection result)
  "Handle RESULT, which a read of CONNECTION returned without octets. CONNECTION is broken: abort it
unless more can be read."
  (cond ((= result +broken+)            ; it may have read the reason
         (abort-connection connection (or (failure-reason connection result)
                                          (connection-reason connection))))
        ((not (and (= result +wants-read+)
                   (byte-channel-more (connection-byte-channel connection))))
         (abort-connection connection (connection-reason connection)))))

(define-hot read-into-area ((connection connection)) null
  "Read into the loop's input area, after a copy of the leftover, and pass all octets to the owner."
  (let* ((loop (connection-loop connection))
         (area (event-loop-input loop))
         (leftover (connection-leftover connection))
         (start (if leftover
                    (copy-octets (buffer-octets leftover) (buffer-start leftover)
                                 (buffer-end leftover) area 0)
                    0))
         (result (byte-channel-read (connection-byte-channel connection) area start
                                    (+ start +read-octets+))))
    (declare (type index start))
    (when (take-input connection result +read-octets+)
      (let* ((end (+ start (the index result)))
             (consumed (call-input connection area 0 end)))
        (keep-leftover connection area consumed end)))
    nil))

(define-hot read-behind-leftover ((connection connection) (leftover buffer)) null
  "Read into the buffer of LEFTOVER, which is long, and pass all its octets to the owner."
  (let* ((octets (ensure-buffer-room leftover +read-octets+))
         (end (buffer-end leftover))
         (result (byte-channel-read (connection-byte-channel connection) octets end
                                    (+ end +read-octets+))))
    (when (take-input connection result +read-octets+)
      (incf (buffer-end leftover) (the index result))
      (setf (buffer-start leftover)
            (call-input connection (buffer-octets leftover) (buffer-start leftover)
                        (buffer-end leftover)))
      (when (and (<= (buffer-fill leftover) +copied-leftover-octets+)
                 (eq leftover (connection-leftover connection)))
        (let ((fill (buffer-fill leftover)))
          (copy-octets (buffer-octets leftover) (buffer-start leftover) (buffer-end leftover)
                       (event-loop-input (connection-loop connection)) 0)
          (setf (connection-leftover connection) nil)
          (give-buffer-back (connection-loop connection) leftover)
          (keep-leftover connection (event-loop-input (connection-loop connection)) 0 fill))))
    nil))

(define-hot go-on-with-leftover ((connection connection) (leftover buffer)) null
  "Pass LEFTOVER, octets that the owner of CONNECTION has postponed, to the owner, and read
nothing."
  (setf (buffer-start leftover)
        (call-input connection (buffer-octets leftover) (buffer-start leftover)
                    (buffer-end leftover)))
  (when (and (zerop (buffer-fill leftover)) (eq leftover (connection-leftover connection)))
    (setf (connection-leftover connection) nil)
    (give-buffer-back (connection-loop connection) leftover))
  nil)

(define-hot discard-input ((connection connection)) null
  "Read and drop the octets that the peer still sends to CONNECTION, which we are closing."
  (let ((result (byte-channel-read (connection-byte-channel connection)
                                   (event-loop-input (connection-loop connection)) 0
                                   +read-octets+)))
    (declare (type fixnum result))
    (when (take-input connection result +read-octets+)
      (incf (connection-discarded connection) result)))
  nil)

(define-hot (answers-nothing-p :inline t) ((connection connection)) boolean
  "True if reading has caused all unsent output of CONNECTION, such as the answer to a PING, and no
other function has added any."
  (= (connection-unsent connection) (connection-read-unsent connection)))

(define-hot read-connection ((connection connection)) null
  "Read CONNECTION once; schedule another read in the next turn if more octets may be readable."
  (let ((answers-nothing (answers-nothing-p connection)))
    (case (connection-state connection)
      (:open
       (cond ((connection-stopped connection)
              (when (connection-broken connection)
                (abort-connection connection (connection-reason connection)))
              (return-from read-connection nil))
             ((and (> (connection-unsent connection) (connection-max-unsent connection))
                   ;; no output can be sent before the handshake is over
                   (not (connection-handshaking-p connection)))
              (if (connection-broken connection) ; the connection's output will never leave
                  (abort-connection connection (connection-reason connection))
                  (setf (connection-throttled connection) t))
              (return-from read-connection nil)))
       (let ((leftover (connection-leftover connection)))
         (cond ((null leftover) (read-into-area connection))
               ((connection-postponed connection) (go-on-with-leftover connection leftover))
               ((> (buffer-fill leftover) +copied-leftover-octets+)
                (read-behind-leftover connection leftover))
               (t (read-into-area connection)))))
      ((:closing :lingering)
       (setf (connection-postponed connection) nil)
       (when (and (<= +most-discarded-octets+ (connection-discarded connection))
                  (not (connection-ended connection)))
         (return-from read-connection nil)) ; the rest stays in the kernel, and slows the peer down
       (discard-input connection)))
    (unless (member (connection-state connection) '(:aborting :closed))
      (read-soon connection))
    (when answers-nothing
      (setf (connection-read-unsent connection) (connection-unsent connection))
      (when (connection-filled connection) (setf (connection-filled connection) nil)))
    (when (connection-write-wants-read connection) (go-on-writing connection))
    ;; output that is sent by the end of the turn does not count
    (when (keeps-input-p connection) (charge-kept connection)))
  nil)

(define-hot write-again ((connection connection)) null
  "Schedule another write of CONNECTION's output, which needed input that has arrived."
  (setf (connection-write-wants-read connection) nil
        (connection-blocked connection) nil)
  (mark-dirty connection))

(define-hot go-on-writing ((connection connection)) null
  "Write the output of CONNECTION, which waited for input, after a read. The read may have ended a
handshake whose octets arrived in an earlier turn; then no further event would cause this write."
  (unless (connection-handshaking-p connection)
    (write-again connection)))

(define-hot note-event ((connection connection) (flags (unsigned-byte 32))) null
  "Note that the poller has reported FLAGS for CONNECTION."
  (when (logtest flags (logior +readable+ +ended+ +failed+))
    (setf (connection-readable connection) t)
    (when (logtest flags (logior +ended+ +failed+))
      (setf (connection-ended connection) t))
    (when (connection-write-wants-read connection) (write-again connection))
    (if (and (logtest flags +failed+)
             (or (connection-stopped connection) (connection-throttled connection)))
        ;; CONNECTION is not read, so no failing read reports the reason
        (abort-connection connection (socket-failure connection))
        (mark-ready connection)))
  (when (logtest flags (logior +writable+ +failed+))
    (when (connection-read-wants-write connection)
      (setf (connection-read-wants-write connection) nil
            (connection-readable connection) t)
      (mark-ready connection))
    (when (and (connection-blocked connection)
               (not (connection-write-wants-read connection))
               (not (connection-broken connection)))
      (setf (connection-blocked connection) nil)
      (mark-dirty connection)))
  nil)

(defun socket-failure (connection)
  "The condition that describes the failure of CONNECTION's socket."
  (let ((errno (funcall (network-failure (event-loop-network (connection-loop connection)))
                        (source-descriptor connection))))
    (failure-reason connection (if (plusp errno) (- errno) (- os:+econnreset+)))))

(defun stop-reading (connection)
  "Stop reading CONNECTION, from the next turn on, until START-READING. On the loop."
  (setf (connection-stopped connection) t)
  nil)

(defun connection-blocked-p (connection)
  "True if the kernel has not accepted all of the last write to CONNECTION. On the loop."
  (connection-blocked connection))

(defun connection-stopped-p (connection)
  "True between STOP-READING and START-READING. On the loop."
  (connection-stopped connection))

(defun start-reading (connection)
  "Undo STOP-READING. The owner first gets the octets that it has not consumed, and then new octets.
On the loop."
  (setf (connection-stopped connection) nil)
  (read-soon connection)
  nil)
