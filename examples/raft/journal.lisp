;;;; The journal: what a node keeps on its disk, as records one after the other. Each has its length
;;;; and CRC-32C before it. What a crash has left of a record that was being written is cut off; the
;;;; node had not answered anything that stood on it. A disk that changes what was forced out is not
;;;; noticed by this.

(in-package #:clgrpc.examples.raft)

(defun framed (record)
  "The octets that stand for RECORD on a disk."
  (let* ((octets (grpc:serialize record)) (length (length octets))
         (frame (make-octets (+ 8 length))))
    (setf (word-32 frame 0) length
          (word-32 frame 4) (raft:crc32c octets))
    (replace frame octets :start1 8)))

(defun word-32 (octets at)
  (loop for i below 4 sum (ash (aref octets (+ at i)) (* 8 i))))

(defun (setf word-32) (value octets at)
  (dotimes (i 4 value)
    (setf (aref octets (+ at i)) (ldb (byte 8 (* 8 i)) value))))

(defun next-record (octets at)
  "The record of OCTETS that begins AT, and where the next does; nil if none is whole."
  (when (<= (+ at 8) (length octets))
    (let ((end (+ at 8 (word-32 octets at))))
      (when (<= end (length octets))
        (let ((payload (subseq octets (+ at 8) end)))
          (when (= (raft:crc32c payload) (word-32 octets (+ at 4)))
            (values (grpc:parse-message 'pb:record payload) end)))))))

(defun entry-record (entry)
  (pb:make-record :entry (pb:make-log-entry :index (v1:entry-index entry)
                                            :term (v1:entry-term entry)
                                            :kind (v1:entry-kind entry)
                                            :data (v1:entry-data entry))))

(defun vote-record (term candidate)
  (pb:make-record :vote (pb:make-vote :term term :candidate (or candidate ""))))

(defun journal-octets (log term candidate)
  "All that a journal must have for a node with LOG that votes for CANDIDATE, or nobody, in TERM."
  (apply #'concatenate 'octets
         (framed (vote-record term candidate))
         (framed (pb:make-record :snapshot (pb:make-snapshot :index (log-base-index log)
                                                             :term (log-base-term log)
                                                             :data (log-snapshot log))))
         (map 'list (lambda (entry) (framed (entry-record entry))) (log-entries log))))

(defun replay-record (log record)
  "Do to LOG what RECORD says, unless it is a vote: return that."
  (multiple-value-bind (value kind) (pb:record-of record)
    (ecase kind
      (:vote value)
      (:entry (add-entry log (v1:make-entry :index (pb:log-entry-index value)
                                            :term (pb:log-entry-term value)
                                            :kind (pb:log-entry-kind value)
                                            :data (pb:log-entry-data value)))
       nil)
      (:truncated-from (drop-entries log value) nil)
      (:snapshot (move-base log (pb:snapshot-index value) (pb:snapshot-term value)
                            (pb:snapshot-data value))
       nil))))

(defun read-journal (disk)
  "The log on DISK, the term, and the candidate that has the vote in it or nil. What is not whole at
its end is cut off."
  (let ((octets (disk-octets disk)) (at 0) (log (make-log)) (term 0) (candidate nil))
    (loop (multiple-value-bind (record end) (next-record octets at)
            (unless record (return))
            (let ((vote (replay-record log record)))
              (when vote
                (setf term (pb:vote-term vote)
                      candidate (and (string/= "" (pb:vote-candidate vote))
                                     (pb:vote-candidate vote)))))
            (setf at end)))
    (when (< at (length octets)) (replace-disk disk (subseq octets 0 at)))
    (values log term candidate)))
