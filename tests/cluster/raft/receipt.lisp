;;;; What came of a snapshot.

(in-package #:clgrpc.tests.raft)
(in-suite :clgrpc.raft)

(defun chunk (offset data &rest arguments)
  (apply #'v1:make-snapshot-chunk :offset offset :data data :crc32c (raft:crc32c data) arguments))

(defun begun (header &optional before)
  (clgrpc.raft::continue-receipt before header nil nil))

(defun take-chunk (receipt chunk)
  (clgrpc.raft::check-chunk receipt chunk)
  (clgrpc.raft::note-chunk receipt chunk))

(test chunks-are-checked
  (let* ((data (some-octets 10))
         (receipt (begun (header 20 :octets 20 :crc32c 1))))
    (signals grpc:failed-precondition (take-chunk receipt (chunk 1 data)))
    (signals grpc:invalid-argument (take-chunk receipt (chunk 0 (make-octets 0))))
    (signals grpc:invalid-argument (take-chunk receipt (chunk 0 (some-octets 21))))
    (let ((bad (chunk 0 data)))
      (setf (v1:snapshot-chunk-crc32c bad) 7)
      (signals grpc:data-loss (take-chunk receipt bad)))
    (is (zerop (clgrpc.raft::receipt-offset receipt)))
    (take-chunk receipt (chunk 0 data))
    (signals grpc:failed-precondition (take-chunk receipt (chunk 0 data)))
    (is (= 10 (clgrpc.raft::receipt-offset receipt)))
    (is-false (clgrpc.raft::receipt-complete-p receipt))
    (take-chunk receipt (chunk 10 data))
    (is-true (clgrpc.raft::receipt-complete-p receipt))
    ;; the whole has another check sum
    (signals grpc:data-loss (clgrpc.raft::check-receipt receipt))))

(test a-snapshot-goes-on-where-it-is-the-same
  (let ((receipt (begun (header 20 :octets 20 :crc32c 1))))
    (take-chunk receipt (chunk 0 (some-octets 10)))
    (is (= 10 (clgrpc.raft::receipt-offset
               (begun (header 20 :octets 20 :crc32c 1 :leader "another") receipt))))
    (dolist (other (list (header 20 :octets 20 :crc32c 2) (header 20 :octets 21 :crc32c 1)
                         (header 21 :octets 20 :crc32c 1)))
      (is (zerop (clgrpc.raft::receipt-offset (begun other receipt)))))))

(test what-was-kept-is-gone-on-with
  "Where the state machine knows it, and nothing of it came to this process."
  (let* ((keeper (make-instance 'keeper))
         (header (header 20 :octets 20 :crc32c 1)))
    (flet ((begun (&optional before)
             (let ((receipt (clgrpc.raft::continue-receipt before header nil keeper)))
               (list (clgrpc.raft::receipt-offset receipt) (clgrpc.raft::receipt-crc receipt)))))
      (setf (keeper-header keeper) header
            (member-chunks keeper) (list (cons 0 (some-octets 12))))
      (is (equal (list 12 (raft:crc32c (some-octets 12))) (begun)))
      (setf (keeper-header keeper) (header 20 :octets 20 :crc32c 2))
      (is (equal '(0 0) (begun)) "another one")
      (dolist (lie '((21 5) (-1 5) (5 nil) (5 -1) (nil nil) (5)))
        (setf (keeper-lie keeper) lie)
        (is (equal '(0 0) (begun)) "~S" lie))
      (setf (keeper-lie keeper) '(12 5))
      (is (equal '(3 4) (begun (clgrpc.raft::make-receipt header nil 3 4))) "what came is known"))))
