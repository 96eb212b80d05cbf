;;;; What is measured.

(in-package #:clgrpc.tests.raft)

(defun points (metrics name)
  "Of the instrument NAME among METRICS lists of the values of attributes, and the count or value."
  (sort (loop for point in (metrics:family-points
                            (find name (metrics:collect metrics) :key #'metrics:family-name
                                                                 :test #'string=))
              collect (append (mapcar #'cdr (metrics:point-attributes point))
                              (list (or (metrics:point-value point) (metrics:point-count point)))))
        #'string< :key #'prin1-to-string))

(test what-is-sent-is-counted
  (let ((metrics (grpc:make-metrics)))
    (with-member (peer (make-instance 'member) :metrics metrics)
      (raft:request-vote peer (vote 2))
      (raft:append-entries peer (request 0 3 :octets 100))
      (dotimes (i 5)
        (raft:pipeline-entries peer (request (+ 3 i) 1 :octets 10) #'list))
      (is-true (raft:flush-pipeline peer))
      (raft:install-snapshot peer (header 20 :term 2) (some-octets 1000))
      (flet ((known (key) (getf (raft:peer-statistics peer) key)))
        (is (eq :ready (known :state)))
        (is (<= 4 (known :messages) 8))
        (is (equal '(0 0 0 0) (mapcar #'known '(:failures :queued-entries :queued-octets
                                                :under-way))))
        (is (= 8 (known :entries)))
        (is (= 1350 (known :octets)))
        (is (= 1 (known :streams)))
        (is (< 0 (known :latency) 5))))
    (is (equal '(("B" 8)) (points metrics "clgrpc.raft.entries")))
    (is (equal '(("B" "append-entries" "OK" 1) ("B" "install-snapshot" "OK" 1)
                 ("B" "request-vote" "OK" 1))
               (remove "pipeline-entries" (points metrics "clgrpc.raft.messages")
                       :key #'second :test #'string=)))
    (is (equal '(("B" "append-entries" 300) ("B" "install-snapshot" 1000)
                 ("B" "pipeline-entries" 50))
               (points metrics "clgrpc.raft.sent")))
    (is (equal '(("B" 0)) (points metrics "clgrpc.raft.queued_entries")))
    (is (equal '(("B" 0)) (points metrics "clgrpc.raft.queued_octets")))
    (is (cl:member '("B" "append-entries" 1) (points metrics "clgrpc.raft.latency")
                   :test #'equal))
    ;; two peers have the same instruments, and failures are counted by their status
    (with-member (peer "nothing" :metrics metrics)
      (signals grpc:unimplemented (raft:request-vote peer (vote 2)))
      (is (= 1 (getf (raft:peer-statistics peer) :failures))))
    (is (cl:member '("B" "request-vote" "UNIMPLEMENTED" 1) (points metrics "clgrpc.raft.messages")
                   :test #'equal))))
