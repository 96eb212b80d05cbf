;;;; Streams of a connection: the table that finds them, the pool from which they come and to which
;;;; they return, and the identifiers that the peer has used (RFC 9113 sections 5.1 and 5.1.1).
;;;;
;;;; The table is a vector of chains; it exists from the first stream on and doubles when the chains
;;;; grow. Consecutive identifiers are in different chains. A client chooses its identifiers, so a
;;;; seed determines the chains for each run of 1,024 identifiers (STREAM-SLOT).

(in-package #:clgrpc.http2)

(define-hot (stream-slot :inline t) ((connection connection) (table simple-vector) (id stream-id))
    index
  "Return the index of the chain of the stream ID in TABLE, a table of CONNECTION."
  (let* ((number (ash id -1))
         (run (ldb (byte 64 0) (* (logior 1 (connection-seed connection)) (ash number -10))))
         (mixed (ldb (byte 64 0) (* #x9E3779B97F4A7C15 (logxor run (ash run -29))))))
    (declare (type (unsigned-byte 64) run mixed))
    (logand (logxor number (ash mixed -34)) (1- (length table)))))

(define-hot (find-stream :inline t) ((connection connection) (id stream-id)) (or null stream)
  "Return the stream ID if it exists and is not finished, else NIL."
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
  "Call FUNCTION with each unfinished stream of CONNECTION whose identifier is greater than ABOVE,
oldest first. FUNCTION may end streams; streams that it has ended are skipped."
  (let ((ids '()))
    (loop for chain across (connection-table connection)
          do (loop for stream = chain then (stream-next stream)
                   while stream
                   when (> (stream-id stream) above)
                     do (push (stream-id stream) ids)))
    ;; the object of a stream that has ended may now belong to another connection
    (dolist (id (sort ids #'<))
      (let ((stream (find-stream connection id)))
        (when stream (funcall function stream))))
    nil))

;;; Making streams and using them again

(defconstant +pool-streams+ 512)

(define-hot (take-stream :inline t) ((connection connection) (id stream-id)) stream
  "Enter a fresh stream ID, in the state idle, into the table, and return it."
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
    (incf (counters-streams-opened (connection-counters connection)))
    (earn-updates (connection-counters connection))
    (insert-stream connection stream)
    stream))

(define-hot recycle-stream ((stream stream)) null
  "Put STREAM into the pool if both the owner and this connection have finished with it. Streams of
a finished connection are not put into the pool, because they would keep the connection from the
collector."
  (let* ((connection (stream-connection stream))
         (pool (connection-pool connection)))
    (when (and (= (logior +finished+ +released+)
                  (logand (stream-flags stream)
                          (logior +finished+ +released+ +update-due+)))
               (not (eq stream (connection-current connection)))
               (not (connection-closed-p connection))
               (< (pool-stream-count pool) +pool-streams+))
      (unless (pool-keeps-users pool) (setf (stream-user stream) nil))
      (setf (stream-flags stream) 0
            (stream-unreturned stream) 0
            (stream-charge stream) 0
            (stream-octets-out stream) 0
            (stream-octets-in stream) 0
            (stream-content-left stream) +no-content-length+
            (stream-next stream) (pool-streams pool)
            (pool-streams pool) stream)
      (incf (pool-stream-count pool)))
    nil))

(defun leave-pool (connection)
  "Remove the streams that belonged to CONNECTION from the pool, so that they do not keep it."
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
  "Declare that the caller keeps no reference to STREAM, which may be used again when it is closed.
Call this at most once, at any time; it is safe not to call it."
  (set-stream-flag stream +released+)
  (recycle-stream stream))

;;; Identifiers

(define-hot (note-highest-id :inline t) ((connection connection) (id stream-id)) null
  "Note that the peer opens ID, which is above all earlier identifiers. Identifiers that it has
skipped are closed without having been open (5.1.1)."
  (let ((next (+ 2 (connection-highest-id connection))))
    (when (< next id)
      (setf (connection-skipped-low connection) (logand next #x7FFFFFFF)
            (connection-skipped-high connection) (- id 2)))
    (setf (connection-highest-id connection) id)
    nil))
