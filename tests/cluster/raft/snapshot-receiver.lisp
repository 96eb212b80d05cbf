;;;; What came of a snapshot.

(in-package #:clgrpc.tests.raft)

(defun chunk (offset data &rest arguments)
  "A SnapshotChunk with DATA at OFFSET, addressed as HEADER is."
  (apply #'v1:make-snapshot-chunk
         (append arguments (list :group "G" :sender "A" :receiver "B"
                                 :offset offset :data data :crc32c (raft:crc32c data)))))

(defun delivery ()
  "A delivery by no call."
  (clgrpc.raft::make-snapshot-delivery nil))

(defun begun (header &optional before)
  (clgrpc.raft::continue-snapshot-receiver before header (delivery) nil))

(defun take-chunk (snapshot-receiver chunk)
  (clgrpc.raft::check-chunk snapshot-receiver chunk)
  (clgrpc.raft::note-chunk snapshot-receiver chunk))

(test chunks-are-checked
  (let* ((data (some-octets 10))
         (snapshot-receiver (begun (header 20 :octets 20 :crc32c 1))))
    (signals grpc:failed-precondition (take-chunk snapshot-receiver (chunk 1 data)))
    (signals grpc:invalid-argument (take-chunk snapshot-receiver (chunk 0 (make-octets 0))))
    (signals grpc:invalid-argument (take-chunk snapshot-receiver (chunk 0 (some-octets 21))))
    (let ((bad (chunk 0 data)))
      (setf (v1:snapshot-chunk-crc32c bad) 7)
      (signals grpc:data-loss (take-chunk snapshot-receiver bad)))
    (is (zerop (clgrpc.raft::snapshot-receiver-offset snapshot-receiver)))
    (take-chunk snapshot-receiver (chunk 0 data))
    (signals grpc:failed-precondition (take-chunk snapshot-receiver (chunk 0 data)))
    (is (= 10 (clgrpc.raft::snapshot-receiver-offset snapshot-receiver)))
    (is-false (clgrpc.raft::snapshot-receiver-complete-p snapshot-receiver))
    (take-chunk snapshot-receiver (chunk 10 data))
    (is-true (clgrpc.raft::snapshot-receiver-complete-p snapshot-receiver))
    ;; the whole has another check sum
    (signals grpc:data-loss (clgrpc.raft::check-snapshot-receiver snapshot-receiver))))

(test a-snapshot-goes-on-where-it-is-the-same
  (let ((snapshot-receiver (begun (header 20 :octets 20 :crc32c 1))))
    (take-chunk snapshot-receiver (chunk 0 (some-octets 10)))
    (is (= 10 (clgrpc.raft::snapshot-receiver-offset
               (begun (header 20 :octets 20 :crc32c 1 :sender "another") snapshot-receiver))))
    (dolist (other (list (header 20 :octets 20 :crc32c 2) (header 20 :octets 21 :crc32c 1)
                         (header 21 :octets 20 :crc32c 1)))
      (is (zerop (clgrpc.raft::snapshot-receiver-offset (begun other snapshot-receiver)))))))

(test what-was-kept-is-gone-on-with
  "Where the state machine knows it, and nothing of it came to this process."
  (let* ((keepalive (make-instance 'keepalive))
         (header (header 20 :octets 20 :crc32c 1)))
    (flet ((begun (&optional before)
             (let ((snapshot-receiver (clgrpc.raft::continue-snapshot-receiver
                                       before header (delivery) keepalive)))
               (list (clgrpc.raft::snapshot-receiver-offset snapshot-receiver)
                     (clgrpc.raft::snapshot-receiver-crc snapshot-receiver)))))
      (setf (keepalive-header keepalive) header
            (member-chunks keepalive) (list (cons 0 (some-octets 12))))
      (is (equal (list 12 (raft:crc32c (some-octets 12))) (begun)))
      (setf (keepalive-header keepalive) (header 20 :octets 20 :crc32c 2))
      (is (equal '(0 0) (begun)) "another one")
      (dolist (lie '((21 5) (-1 5) (5 nil) (5 -1) (nil nil) (5)))
        (setf (keepalive-lie keepalive) lie)
        (is (equal '(0 0) (begun)) "~S" lie))
      (setf (keepalive-lie keepalive) '(12 5))
      (is (equal '(3 4) (begun (clgrpc.raft::make-snapshot-receiver header nil 3 4)))
          "what came is known"))))
