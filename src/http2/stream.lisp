;;;; Streams of a connection: finding, making, ending them, and the two ways to fail, of a stream
;;;; and of a connection (RFC 9113 sections 5.1, 5.1.1, 5.4).
;;;;
;;;; The table is a vector of chains; it exists from the first stream on and doubles when the chains
;;;; grow. Consecutive identifiers have chains of their own, but clients choose theirs, so which
;;;; chains a run of 1,024 of them has depends on a seed (STREAM-SLOT). Of streams that are gone,
;;;; only this is known: identifiers up to HIGHEST-ID are closed; the newest gap below it was never
;;;; opened; and those that we reset, the RESET-COUNT highest, stand in RESETS in order: their late
;;;; frames are no error. When one is forgotten, all up to it count as reset.

(in-package #:clgrpc.http2)

(define-hot (stream-slot :inline t) ((connection connection) (table simple-vector) (id stream-id))
    index
  "Where the chain of the stream ID begins in TABLE, one of CONNECTION."
  (let* ((number (ash id -1))
         (run (ldb (byte 64 0) (* (logior 1 (connection-seed connection)) (ash number -10))))
         (mixed (ldb (byte 64 0) (* #x9E3779B97F4A7C15 (logxor run (ash run -29))))))
    (declare (type (unsigned-byte 64) run mixed))
    (logand (logxor number (ash mixed -34)) (1- (length table)))))

(define-hot (find-stream :inline t) ((connection connection) (id stream-id)) (or null stream)
  "The stream ID that is not finished, or NIL."
  (let ((table (connection-table connection)))
    (if (zerop (length table))
        nil
        (loop for stream of-type (or null stream)
                = (svref table (stream-slot connection table id))
                then (stream-next stream)
              while stream
              when (= id (stream-id stream)) return stream))))

(define-hot grow-table ((connection connection)) simple-vector
  (let* ((old (connection-table connection))
         (new (make-array (max 2 (* 2 (length old))) :initial-element nil)))
    (loop for chain across old
          do (loop for stream of-type (or null stream) = chain then next
                   while stream
                   for next = (stream-next stream)
                   for slot = (stream-slot connection new (stream-id stream))
                   do (setf (stream-next stream) (svref new slot)
                            (svref new slot) stream)))
    (setf (connection-table connection) new)))

(define-hot (insert-stream :inline t) ((connection connection) (stream stream)) null
  (let ((table (connection-table connection)))
    (when (<= (length table) (connection-stream-count connection))
      (setf table (grow-table connection)))
    (let ((slot (stream-slot connection table (stream-id stream))))
      (setf (stream-next stream) (svref table slot)
            (svref table slot) stream)
      (incf (connection-stream-count connection)))
    nil))

(define-hot (remove-stream :inline t) ((connection connection) (stream stream)) null
  (let* ((table (connection-table connection))
         (slot (stream-slot connection table (stream-id stream)))
         (chain (svref table slot)))
    (if (eq chain stream)
        (setf (svref table slot) (stream-next stream))
        (loop for before of-type stream = chain then (stream-next before)
              until (eq stream (stream-next before))
              finally (setf (stream-next before) (stream-next stream))))
    (setf (stream-next stream) nil)
    (decf (connection-stream-count connection))
    nil))

(defun map-streams (function connection &optional (above 0))
  "Call FUNCTION with each stream of CONNECTION that is not finished and whose identifier is ABOVE
the one given, oldest first. It may end streams."
  (let ((streams '()))
    (loop for chain across (connection-table connection)
          do (loop for stream = chain then (stream-next stream)
                   while stream
                   when (> (stream-id stream) above)
                     do (push stream streams)))
    (mapc function (sort streams #'< :key #'stream-id))
    nil))

;;; Making and using again

(defconstant +pool-streams+ 256)

(define-hot (take-stream :inline t) ((connection connection) (id stream-id)) stream
  "A fresh stream ID in state idle, in the table."
  (let* ((pool (connection-pool connection))
         (pooled (pool-streams pool))
         (stream (cond (pooled
                        (setf (pool-streams pool) (stream-next pooled))
                        (decf (pool-stream-count pool))
                        (setf (stream-connection pooled) connection
                              (stream-id pooled) id
                              (stream-flags pooled) 0
                              (stream-state pooled) +idle+)
                        pooled)
                       (t (%make-stream connection id)))))
    (setf (stream-send-window stream) (connection-peer-stream-window connection)
          (stream-receive-window stream) (connection-stream-window connection))
    (incf (accounting-streams-opened (connection-accounting connection)))
    (earn-updates (connection-accounting connection))
    (insert-stream connection stream)
    stream))

(define-hot recycle-stream ((stream stream)) null
  "Put STREAM into the pool if neither the owner nor we hold it any more. Those of a connection that
is finished would keep it."
  (let* ((connection (stream-connection stream))
         (pool (connection-pool connection)))
    (when (and (= (logior +finished+ +released+)
                  (logand (stream-flags stream)
                          (logior +finished+ +released+ +in-ring+ +update-due+)))
               (not (eq stream (connection-current connection)))
               (not (connection-closed-p connection))
               (< (pool-stream-count pool) +pool-streams+))
      (setf (stream-user stream) nil
            (stream-flags stream) 0
            (stream-unreturned stream) 0
            (stream-content-left stream) +no-content-length+
            (stream-next stream) (pool-streams pool)
            (pool-streams pool) stream)
      (incf (pool-stream-count pool)))
    nil))

(defun leave-pool (connection)
  "Take the streams that were CONNECTION's out of the pool, so that nothing keeps it."
  (let* ((pool (connection-pool connection))
         (stream (shiftf (pool-streams pool) nil)))
    (setf (pool-stream-count pool) 0)
    (loop while stream
          do (let ((next (stream-next stream)))
               (unless (eq connection (stream-connection stream))
                 (setf (stream-next stream) (pool-streams pool)
                       (pool-streams pool) stream)
                 (incf (pool-stream-count pool)))
               (setf stream next)))))

(define-hot release-stream ((stream stream)) null
  "Tell that the caller keeps no reference to STREAM, which may be used again once it is closed. To
be called at most once, in or after ON-STREAM-CLOSED or before; never calling it is safe."
  (set-stream-flag stream +released+)
  (recycle-stream stream))

;;; Identifiers without a stream

(defconstant +most-resets+ 1024
  "So many streams that we reset are known one by one.")

(define-hot reset-place ((connection connection) (id stream-id)) index
  "How many of the streams that we reset, and know, are below ID."
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
  "True if ID is among the streams that we reset, and know."
  (let ((place (reset-place connection id)))
    (and (< place (connection-reset-count connection))
         (= id (aref (connection-resets connection) place)))))

(define-hot grow-resets ((connection connection)) null
  (let* ((old (connection-resets connection))
         (new (make-array (max 16 (* 2 (length old))) :element-type '(unsigned-byte 32))))
    (setf (connection-resets connection) (replace new old))
    nil))

(define-hot forget-reset ((connection connection) (place index)) index
  "Forget the lowest of the streams that we reset to make room for one at PLACE. Return the place
that this has then."
  (let ((resets (connection-resets connection)))
    (setf (connection-reset-forgotten connection) (logand (aref resets 0) #x7FFFFFFF))
    (replace resets resets :start1 0 :start2 1 :end2 (connection-reset-count connection))
    (decf (connection-reset-count connection))
    (1- place)))

(define-hot remember-reset ((connection connection) (id stream-id)) null
  "Remember that we reset the stream ID, of which the peer may not know yet."
  (earn-updates (connection-accounting connection))
  (unless (or (<= id (connection-reset-forgotten connection))
              (reset-known-p connection id))
    (let ((place (reset-place connection id)))
      (when (= (connection-reset-count connection) (length (connection-resets connection)))
        (cond ((< (connection-reset-count connection) +most-resets+) (grow-resets connection))
              ((zerop place)            ; it is the lowest itself
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
  "True if our GOAWAY told the client that the stream ID will not be processed (6.8)."
  (and (connection-server-p connection)
       (< +no-goaway+ (connection-goaway-sent connection) id)))

(define-hot absent-state ((connection connection) (id stream-id)) state
  "The state of the stream ID that is not in the table."
  (cond ((or (evenp id) (> id (connection-highest-id connection))) +idle+)
        ((ignored-id-p connection id) +reset+)
        ((<= id (connection-reset-forgotten connection)) +reset+)
        ((reset-known-p connection id) +reset+)
        (t +closed+)))

(define-hot (note-highest-id :inline t) ((connection connection) (id stream-id)) null
  "The peer opens ID, above all before it; those it left out are closed without having been open
(5.1.1)."
  (let ((next (+ 2 (connection-highest-id connection))))
    (when (< next id)
      (setf (connection-skipped-low connection) (logand next #x7FFFFFFF)
            (connection-skipped-high connection) (- id 2)))
    (setf (connection-highest-id connection) id)
    nil))

(define-hot skipped-id-p ((connection connection) (id stream-id)) boolean
  (<= (max 1 (connection-skipped-low connection)) id (connection-skipped-high connection)))

;;; Ending

(define-hot store-segment ((segment segment)) null
  "The octets of SEGMENT are sent, or will not be."
  (when (segment-storable segment)
    (give-octets-back (shiftf (segment-octets segment) (load-time-value (make-octets 0)))))
  nil)

(define-hot note-queued ((stream stream) (count fixnum)) null
  "The queue of STREAM has grown by COUNT octets, or become shorter."
  (let ((connection (stream-connection stream)))
    (incf (stream-queued-octets stream) count)
    (incf (accounting-queued-octets (connection-accounting connection)) count)
    (incf (pool-queued-octets (connection-pool connection)) count)
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

(define-hot finish-stream ((stream stream)) null
  "Take STREAM, whose state is closed or reset, out of the table and tell the owner; once."
  (unless (stream-flag-p stream +finished+)
    (let ((connection (stream-connection stream))
          (unconsumed (- (stream-unconsumed stream) (stream-credited stream))))
      (set-stream-flag stream +finished+)
      (remove-stream connection stream)
      (drop-queue stream)
      (when (eq stream (connection-opening connection))
        (setf (connection-opening connection) nil))
      (setf (stream-unconsumed stream) 0
            (stream-credited stream) 0)
      (unless (zerop unconsumed)
        (return-to-connection connection unconsumed))
      (funcall (sink-on-stream-closed (connection-sink connection)) stream)
      (recycle-stream stream)))
  nil)

(define-hot reset-finished-stream ((stream stream) (state state) (code error-code) (source keyword))
    null
  "End STREAM in STATE and tell the owner why: CODE and SOURCE as ON-RESET has them."
  (setf (stream-state stream) state)
  (funcall (sink-on-reset (connection-sink (stream-connection stream))) stream code source)
  (finish-stream stream))

(define-hot reset-absent ((connection connection) (id stream-id) (code error-code)
                          (text simple-string))
    null
  "Answer a frame on the stream ID, which the owner never saw or has forgotten, with RST_STREAM."
  (setf (connection-error-text connection) text)
  (remember-reset connection id)
  (emit-reset connection id code))

(define-hot fail-stream ((stream stream) (code error-code) (text simple-string))
    null
  "The peer made the stream error CODE on STREAM (5.4.2): reset it and tell the owner."
  (let ((connection (stream-connection stream)))
    (unless (stream-flag-p stream +finished+)
      (reset-absent connection (stream-id stream) code text)
      (unless (connection-closed-p connection) ; the reset may have been one answer too many
        (reset-finished-stream stream +reset+ code :local)))))

(define-hot reset-stream ((stream stream) (error-code error-code)) null
  "End STREAM now with RST_STREAM of ERROR-CODE, dropping what is queued; ON-STREAM-CLOSED is
called before this returns, ON-RESET is not. Does nothing if the stream is closed already. RFC 9113
section 6.4."
  (let ((connection (stream-connection stream))
        (id (stream-id stream)))
    (cond ((stream-flag-p stream +finished+))
          ((= +idle+ (stream-state stream)) ; unknown to the peer: ID can be used again
           (setf (stream-state stream) +closed+)
           (decf (connection-highest-id connection) 2)
           (finish-stream stream))
          (t
           (remember-reset connection id)
           (setf (stream-state stream) +reset+)
           (incf (accounting-resets-sent (connection-accounting connection)))
           (emit-frame (connection rst-stream 0 id) error-code)
           (finish-stream stream)))
    nil))

(defun finish-all-streams (connection code)
  (map-streams (lambda (stream)
                 (unless (stream-flag-p stream +finished+)
                   (reset-finished-stream stream +closed+ code :connection)))
               connection))

(defun discard-open-block (connection)
  "Take back a header block of ours that was begun and not ended."
  (let ((output (connection-output connection)))
    (when (and output (<= 0 (connection-open-mark connection)))
      (setf (buffer-end output) (+ (buffer-start output) (connection-open-mark connection))
            (connection-open-mark connection) -1))))

(defun end-connection (connection code text)
  "Finish CONNECTION without a word to the peer: end its streams and tell the owner."
  (setf (connection-phase connection) +finished-connection+
        (connection-error-text connection) text
        (connection-settings-deadline connection) 0
        (connection-preface-deadline connection) 0
        (connection-block-buffer connection) nil)
  (finish-all-streams connection code)
  (leave-pool connection)
  (funcall (sink-on-close (connection-sink connection)) connection code text)
  nil)

(defun last-peer-stream-id (connection)
  (if (connection-server-p connection) (max 0 (connection-highest-id connection)) 0))

(defun lower-goaway (connection last-stream-id)
  "Return, and remember as sent, LAST-STREAM-ID, or a lower one if that was sent before (6.8)."
  (let ((before (connection-goaway-sent connection)))
    (setf (connection-goaway-sent connection)
          (if (= before +no-goaway+) last-stream-id (min before last-stream-id)))))

(defun fail-connection (connection code text)
  "End CONNECTION with GOAWAY of CODE and TEXT (5.4.1). Does nothing if it is finished."
  (unless (connection-closed-p connection)
    (discard-open-block connection)
    (emit-goaway connection (lower-goaway connection (last-peer-stream-id connection)) code
                 (ascii-octets text))
    (end-connection connection code text))
  nil)

(defun close-connection (connection error-code text)
  "End CONNECTION for a reason of the owner's: GOAWAY with ERROR-CODE and TEXT (ASCII) is written,
every stream left gets ON-RESET with :CONNECTION, then ON-CLOSE is called. Does nothing if it is
finished."
  (fail-connection connection error-code (coerce text 'simple-string)))
