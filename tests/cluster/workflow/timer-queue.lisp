;;;; Due keys, as a node reads them from its store.

(in-package #:clgrpc.tests.workflow)

(test pages-of-due-keys-go-on-behind-what-is-no-item
  "A key of another form among them, which another program has put there, hides nothing of what is
due: a page that has it is full, too."
  (with-memory-node (node)
    (let* ((time (+ (workflow::node-now node) 86400000)) ; else the node's own jobs would do it
           (count (+ 1 workflow::+due-page+)))
      (flet ((put (&rest parts)
               (etcd:put (workflow::node-etcd node)
                         (apply #'workflow::node-key node "index/due" (workflow::shard-text 0)
                                (workflow::time-text time) parts)
                         "")))
        (put "a" "b" "c")
        (dotimes (i count) (put (format nil "w~D" i)))
        (is (= count (loop with from = nil
                           for (items nil more)
                             = (multiple-value-list
                                (workflow::due-page node 0 from (1+ time)))
                           sum (length items)
                           while more
                           do (setf from more))))))))

(test times-in-keys-are-as-nodes-write-them
  "Sixteen lower-case hexadecimal digits. Keys of other programs may have anything else."
  (dolist (ms (list 0 1 1700000000000 workflow::+last-ms+))
    (is (eql ms (workflow::text-time (workflow::time-text ms)))))
  (dolist (text '("" "1" "+000000000000001" "-000000000000001" "              ff"
                  "00000000000000FF" "00000000000000001" "000000000000000g"))
    (is (null (workflow::text-time text)) "~S" text)))
