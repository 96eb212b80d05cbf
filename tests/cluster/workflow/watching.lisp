;;;; Watches of workflows: what a change costs, and watches whose threads are unwound.

(in-package #:clgrpc.tests.workflow)

(defun changes-of-two ()
  "Changes of a store by which two workflows have begun, as a watch brings them."
  (let ((told '()))
    (with-idle-node (node 1000000)
      (let ((watch (etcd:watch (workflow::node-etcd node)
                               (fn (changes _revision) (setf told (append told changes)))
                               :prefix (workflow::node-key node "state" ""))))
        (start-workflow node "v" '("a"))
        (start-workflow node "w" '("a"))
        (eventually (= 2 (length told)))
        (etcd:cancel-watch watch)))
    told))

(defun cost-of-telling (changes count)
  "The nanoseconds of this thread that it takes to tell COUNT watches of all workflows of CHANGES,
two of one revision. No watch sends what it is told."
  (let ((feed (workflow::make-feed))
        (subscriptions (loop repeat count collect (workflow::make-subscription nil "" ""))))
    (setf (gethash "" (workflow::feed-subscriptions feed)) subscriptions)
    (let ((since (base:thread-time-ns)))
      (workflow::tell-subscriptions feed changes 5)
      (let ((cost (- (base:thread-time-ns) since)))
        (is (every (lambda (subscription)
                     (equal '(5 6) (mapcar #'pb:change-resume-revision
                                           (base:fifo-items
                                            (workflow::subscription-queue subscription)))))
                   subscriptions))
        cost))))

(test a-change-costs-the-same-for-each-watch
  "With eight times as many watches it takes eight times as long, not 64 times."
  (let ((changes (changes-of-two)))
    (flet ((least (count) (loop repeat 3 minimize (cost-of-telling changes count))))
      (let ((few (least 1500)) (many (least 12000)))
        (is (< many (* 24 few)) "~D and ~D ns" few many)))))

(test many-watches-that-take-nothing-hold-little
  "The more watches there are the fewer changes wait for each, then it ends."
  (let ((feed (workflow::make-feed)) (ended '()))
    (with-replaced (('workflow::send-waiting (constantly nil))
                    ('workflow::end-subscription
                     (fn (_function subscription _condition) (push subscription ended))))
      (loop for (count most) in '((0 1000) (1 1000) (1000 1000) (10000 100) (20000 50))
            for subscription = (workflow::make-subscription nil "" "")
            do (setf (workflow::feed-count feed) count
                     (workflow::subscription-live subscription) t
                     ended '())
               (dotimes (i most)
                 (workflow::queue-change feed subscription (pb:make-change)))
               (is (null ended) "~D wait with ~D watches" most count)
               (workflow::queue-change feed subscription (pb:make-change))
               (is (equal (list subscription) ended))))))

(test watches-of-unwound-threads-end
  "A watch that was not returned ends."
  (with-memory-node (node)
    (let ((watchers '()) (returned '()) (points 0))
      (with-replaced (('workflow::make-watcher
                       (lambda (function &rest arguments)
                         (let ((watcher (apply function arguments)))
                           (push watcher watchers)
                           watcher))))
        (setf points
              (support:interrupt-at-each-call
               '(loop:add-job loop:wake-job workflow::await-watcher loop:await-until)
               (lambda () (push (watch-workflow #'identity node nil) returned))
               (fn (_name)
                 (mapc #'end-watching (shiftf returned '()))
                 ;; they take no more jobs
                 (is (every (lambda (background)
                              (loop:job-ended (loop:add-job background #'list)))
                            (mapcar #'workflow::watcher-background watchers)))))))
      (is (<= 3 points)))))

(test requests-of-unwound-threads-hold-up-no-other
  "A thread is unwound at each call that it makes as it sends transactions of several together: two
that are counted and send nothing would hold up all."
  (with-idle-node (node 1000000)
    (let ((group (workflow::make-commit-group)))
      (setf (workflow::node-commits node) group)
      (flet ((read-one ()
               (workflow::transact node '() :then (list (list :get "none")))))
        (is (<= 4 (support:interrupt-at-each-call
                   '(workflow::send-commits workflow::take-commits workflow::settle-commit
                     workflow::more-to-send-p workflow::await-commit)
                   #'read-one
                   (lambda (name)
                     (is (wait-until (lambda () (zerop (workflow::commit-group-flying group))))
                         "one is left at ~(~A~)" name)
                     (is-true (read-one))))))))))

(defun call-deleting (function id)
  "Call FUNCTION; before a payload of the workflow ID is read, that is deleted."
  (with-replaced (('workflow::fetch-payload
                   (lambda (function node state key)
                     (when (string= id (pb:workflow-state-id state))
                       (workflow:delete-workflow node id))
                     (funcall function node state key))))
    (funcall function)))

(defun call-missing-one (function)
  "Call FUNCTION; the first payload that is read has gone since its state was read."
  (let ((missed nil))
    (with-replaced (('workflow::fetch-payload
                     (lambda (function &rest arguments)
                       (if (shiftf missed t)
                           (apply function arguments)
                           (make-octets 0)))))
      (funcall function))))

(defun do-a-task (node result)
  (report node (first (claim node (open-a-session node) '("a"))) result))

(test a-result-that-is-deleted-is-not-an-empty-one
  "A workflow is deleted after its state was read and before its result is: its user learns that it
has gone, and its parent that it was deleted."
  (with-idle-node (node 1000000)
    (let ((large (make-string 1000 :initial-element #\a)))
      (start-workflow node "w" '("a"))
      (do-a-task node large)
      (flet ((result ()
               (octets-string (pb:get-workflow-state-reply-result
                               (workflow-state node "w" :result t)))))
        (is (equal large (result)))
        ;; of a workflow that has begun again the state is read again
        (is (equal large (call-missing-one #'result))))
      (signals workflow-not-found
        (call-deleting (lambda () (workflow-state node "w" :result t)) "w"))
      (start-workflow node "p" '((:parallel ("a"))))
      (workflow::handle-due node)
      (do-a-task node large)
      (call-deleting (lambda () (workflow::handle-due node)) "p.1.0")
      (let ((state (state-of node "p")))
        (is (eq :failed (pb:workflow-state-status state)))
        (is (search "deleted" (pb:workflow-state-reason state)))))))
