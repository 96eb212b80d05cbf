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

(test errands-of-other-programs-are-left-alone
  "No node puts such values or ids. None of them keeps a workflow of the same id from
its changes, and none is logged."
  (with-idle-node (node 1000000)
    (let ((stuck '()) (parent (pb:make-parent :id "p" :step 1)))
      (flet ((put (value &rest parts)
               (etcd:put (workflow::node-etcd node)
                         (apply #'workflow::node-key node "index/due" (workflow::shard-text 0)
                                (workflow::time-text 1) parts)
                         value))
             (items ()
               (remove-if #'stringp (workflow::due-page node 0 nil (workflow::node-now node)))))
        (with-replaced (('workflow::note-stuck
                         (fn (_function _node id _condition) (push id stuck))))
          (put (coerce #(255 255) 'base:octets) "end" "w1")
          (put "" "end" "w2")
          (put (protobuf:serialize (pb:make-parent :id "a/b" :step 1)) "end" "w3")
          (put "" "cancel" "w4")
          (put "1 1" "cancel" "w5")
          (put "1 -1 1" "cancel" "w6")
          (put "1 1001 1" "cancel" "w7")
          (put "1 1 1 1" "cancel" "w8")
          (put (coerce #(255) 'base:octets) "cancel" "w9")
          (put "" "start" (string #\Rubout))
          (put "" (string #\Rubout))
          (put "" "start" "")
          (put "" "other" "w10")
          (is (null (items)))
          (workflow::handle-due node)
          (is (null stuck))
          (put (protobuf:serialize parent) "end" "w11")
          (put "1 1000 7" "cancel" "w12")
          (is (equal '((1 1000 7) ()) (mapcar #'workflow::errand-numbers (items))))
          (is (protobuf:message= parent (workflow::errand-parent (second (items))))))))))

(test shards-of-timers
  "A shard is due at once when a node gets it, later by the earliest of its times, and has one job at
a time; the jobs sleep until the first of these times, but no longer than a second."
  (let ((now 1000000))
    (with-idle-node (node 1000000 :clock (lambda () (* now 1000000)))
      (flet ((taken () (workflow::take-shard node))
             (due (shard ms) (workflow::note-due node shard ms))
             (seconds () (workflow::sleep-seconds node)))
        (is (= 1 (seconds)))
        (workflow::own-shards node '(3 5))
        (is (= 0 (seconds)))
        (is (equal '(3 5 nil) (list (taken) (taken) (taken))))
        (due 3 now)
        (due 4 now)
        (is (null (taken)) "one has a job, the other is another node's")
        (is (= 1 (seconds)))
        (workflow::leave-shard node 3)
        (is (eql 3 (taken)))
        (mapc (lambda (shard) (workflow::leave-shard node shard)) '(3 5))
        (due 3 (+ now 500))
        (due 3 (+ now 900))
        (is (= 1/2 (seconds)))
        (due 5 (+ now 200))
        (is (= 1/5 (seconds)))
        (is (equal '(nil 5) (loop for ms in '(199 1) do (incf now ms) collect (taken))))
        (workflow::own-shards node '(5))
        (incf now 1000)
        (is (null (taken)) "the time of a shard goes with it")
        (is (null (support:lockless (workflow::timer-queue-lock (workflow::node-timer-queue node))
                                    `(workflow::note-due ,node 5 0)
                                    `(workflow::own-shards ,node ())
                                    `(workflow::take-shard ,node)
                                    `(workflow::leave-shard ,node 5)
                                    `(workflow::sleep-seconds ,node))))))))
