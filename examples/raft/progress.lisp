;;;; What a leader knows of another member, and of reads that wait for others.
;;;;
;;;;     :probe     where the logs agree is not known: one request at a time
;;;;     :stream    entries are sent before those that were sent are answered
;;;;     :snapshot  a snapshot is on its way; signs of life go beside it

(in-package #:clgrpc.examples.raft)

(defstruct (progress (:constructor make-progress (peer next heard-ns)) (:copier nil))
  "What a leader knows of another member."
  (peer nil :read-only t)
  (next 0)                              ; the index of the entry to send next
  (match 0)                             ; up to here the logs agree
  (state :probe)
  (epoch 0)                             ; of answers that count
  (pending 0)                           ; requests of this epoch that are not answered
  (sent-ns 0)                           ; when the last request was sent
  (sent-round 0)                        ; the round of reads that it was of
  (round 0)                             ; the last round in which it has answered
  (heard-ns 0))                         ; when it has answered

(defmethod print-object ((progress progress) stream)
  (print-unreadable-object (progress stream :type t)
    (format stream "~A ~(~A~), next ~D, match ~D" (raft:peer-name (progress-peer progress))
            (progress-state progress) (progress-next progress) (progress-match progress))))

(defstruct (pending-read (:constructor make-pending-read (future index round)) (:copier nil))
  "A read that waits until the node is known to lead, and has applied INDEX."
  (future nil :read-only t)
  (index 0 :read-only t)
  (round 0 :read-only t))
