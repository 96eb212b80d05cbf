;;;; What is sent as one request.

(in-package #:clgrpc.tests.raft)

(defun batches (requests &key (entries 1000) (octets 1000000))
  "REQUESTS as they are sent: a list of lists of the indices of their entries."
  (let ((fifo (make-fifo)))
    (dolist (request requests)
      (enqueue (clgrpc.raft::make-queued-request request (clgrpc.raft::data-octets request) #'list)
               fifo))
    (loop for batch = (clgrpc.raft::take-batch fifo entries octets)
          while batch collect (clgrpc.raft::batch-request batch "G" "A" "B"))))

(defun indices (request)
  (map 'list #'v1:entry-index (v1:append-entries-request-entries request)))

(test requests-that-follow-each-other-are-one
  (let ((batches (batches (list (request 0 1 :commit 0) (request 1 2 :commit 5)
                                (request 3 1 :commit 4)))))
    (is (equal '((1 2 3 4)) (mapcar #'indices batches)))
    (is (= 0 (v1:append-entries-request-prev-log-index (first batches))))
    (is (= 5 (v1:append-entries-request-leader-commit (first batches))) "the highest")))

(test requests-that-do-not-are-not
  (is (equal '((1) (3)) (mapcar #'indices (batches (list (request 0 1) (request 2 1))))) "a gap")
  (is (equal '((1) () (2)) (mapcar #'indices (batches (list (request 0 1) (request 1 0)
                                                            (request 1 1)))))
      "a sign of life stays one")
  (let ((later (request 1 1)))
    (setf (v1:append-entries-request-term later) 2)
    (is (equal '((1) (2)) (mapcar #'indices (batches (list (request 0 1) later)))) "a new term"))
  (let ((other (request 1 1)))
    (setf (v1:append-entries-request-prev-log-term other) 7)
    (is (equal '((1) (2)) (mapcar #'indices (batches (list (request 0 1) other))))
        "another log")))

(test batches-are-bounded
  (let ((requests (loop for i below 6 collect (request i 1 :octets 10))))
    (is (equal '((1 2) (3 4) (5 6)) (mapcar #'indices (batches requests :entries 2))))
    (is (equal '((1 2 3) (4 5 6)) (mapcar #'indices (batches requests :octets 39))))
    (is (equal '((1) (2) (3) (4) (5) (6)) (mapcar #'indices (batches requests :octets 1)))
        "one at least")))
