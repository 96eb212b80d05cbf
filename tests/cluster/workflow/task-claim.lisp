;;;; Claims that wait at the task queue of a node, without a store: who is found first, and what it
;;;; costs.

(in-package #:clgrpc.tests.workflow)

(defun node-with-task-queue ()
  (make-instance 'workflow-service :root "" :limits (workflow::make-limits)))

(defun park (node &rest kinds)
  "A claim for KINDS that waits at NODE."
  (let ((waiting (workflow::make-waiting :kinds kinds)))
    (workflow::park-claim node waiting
                          (workflow::arrivals-now (workflow::node-task-queue node) kinds))
    waiting))

(defun woken (node kind)
  "Who is woken for a task of KIND, or nil."
  (workflow::note-ready node kind "id")
  (base:dequeue (workflow::task-queue-retries (workflow::node-task-queue node))))

(test the-first-claim-of-a-kind-is-woken
  (let* ((node (node-with-task-queue)) (task-queue (workflow::node-task-queue node))
         (first (park node "a" "b")) (second (park node "b")) (third (park node "b" "c" "a"))
         (fourth (park node "c")))
    (is (= 4 (workflow::task-queue-parked task-queue)))
    (is (null (woken node "d")))
    (is (eq first (woken node "b")))
    (is (= 3 (workflow::task-queue-parked task-queue)))
    (is (eq third (woken node "a")) "the first waits for nothing any more")
    (is (null (woken node "a")))
    (is-true (workflow::end-waiting task-queue second))
    (is (not (workflow::end-waiting task-queue second)) "once")
    (is (null (woken node "b")) "it has left")
    (workflow::retry-all-claims node)
    (is (eq fourth (base:dequeue (workflow::task-queue-retries task-queue))))
    (is (zerop (workflow::task-queue-parked task-queue)))
    (is (zerop (hash-table-count (workflow::task-queue-queues task-queue)))
        "nothing is left of the kinds")))

(test a-claim-that-fails-wakes-the-next
  (let ((node (node-with-task-queue)) (tried '()))
    (let ((claims (list (park node "a") (park node "a"))))
      (workflow::note-ready node "a" "id")
      (with-logged (events)
        (with-replaced (('workflow::try-waiting (lambda (function node waiting)
                                                  (declare (ignore function node))
                                                  (push waiting tried)
                                                  (error "broken"))))
          (workflow::run-claimer node :claimer))
        (is (equal claims (reverse tried)))
        (is (equal '((:error :workflow-claim-error) (:error :workflow-claim-error))
                   (mapcar (lambda (event) (subseq event 0 2)) (events)))))
      (is (equal '(:claimer) (workflow::task-queue-idle (workflow::node-task-queue node)))))))

(test candidates-are-found-beyond-those-of-other-claims
  (let ((node (node-with-task-queue)) (ids (loop for i below 60 collect (princ-to-string i))))
    (with-replaced (('workflow::find-ready
                     (fn (_function _node _kind most _ask) (subseq ids 0 (min most (length ids))))))
      (is (null (set-exclusive-or ids (loop for found = (workflow::candidates node '("a") 1 nil)
                                            while found append found)
                                  :test #'string=))))))

(test too-many-claims-do-not-wait
  (let ((node (make-instance 'workflow-service
                             :root "" :limits (workflow::make-limits :max-waiting-claims 2))))
    (park node "a")
    (let ((second (park node "b")))
      (signals backlog-full (park node "a"))
      (workflow::end-waiting (workflow::node-task-queue node) second)
      (is-true (park node "a")))))

(defun cost-of-claims (count)
  "The nanoseconds of this thread and the octets that it takes to park COUNT claims, of which half
are woken, from the last kind on, and half end, the last first."
  (let* ((node (node-with-task-queue)) (task-queue (workflow::node-task-queue node)) (claims '())
         (octets (sb-ext:get-bytes-consed)) (since (base:thread-time-ns)))
    (dotimes (i count) (push (park node (format nil "~D" (floor i 2))) claims))
    (loop for i from (1- (floor count 2)) downto 0
          do (workflow::note-ready node (princ-to-string i) "id"))
    (dolist (claim claims) (workflow::end-waiting task-queue claim))
    (loop while (base:dequeue (workflow::task-queue-retries task-queue)))
    (is (zerop (workflow::task-queue-parked task-queue)))
    (values (- (base:thread-time-ns) since) (- (sb-ext:get-bytes-consed) octets))))

(defun least-cost-of-claims (count)
  "As COST-OF-CLAIMS, the least of three."
  (loop repeat 3
        for (ns octets) = (multiple-value-list (cost-of-claims count))
        minimize ns into least-ns
        minimize octets into least-octets
        finally (return (values least-ns least-octets))))

(test a-claim-costs-the-same-however-many-wait
  "With eight times as many all takes eight times as long, not 64 times."
  (multiple-value-bind (few few-octets) (least-cost-of-claims 1000)
    (multiple-value-bind (many many-octets) (least-cost-of-claims 8000)
      (is (< many (* 24 few)) "~D and ~D ns" few many)
      (is (< many-octets (* 16 few-octets)) "~D and ~D octets" few-octets many-octets))))

(defun cost-of-kinds (count)
  "The nanoseconds of this thread that it takes to refuse a claim of COUNT kinds."
  (let ((node (node-with-task-queue))
        (request (pb:make-claim-request
                  :session "1" :kinds (loop for i below count collect (format nil "~D" i)))))
    (let ((since (base:thread-time-ns)))
      (signals too-large (workflow::ask #'methods:claim node request 60))
      (- (base:thread-time-ns) since))))

(test too-many-kinds-are-refused-unseen
  "A claim of 30,000 kinds, 150 KB, costs little; to see which are the same would take 5 s, and a
message has room for a million."
  (flet ((least (count) (loop repeat 3 minimize (cost-of-kinds count))))
    (let ((few (least 1000)) (many (least 30000)))
      (is (< many (+ 200000000 (* 30 few))) "~D and ~D ns" few many))))
