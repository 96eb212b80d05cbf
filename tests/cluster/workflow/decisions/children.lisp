;;;; Workflows that start others: one by one as decisions, and by nodes and workers.

(in-package #:clgrpc.tests.workflow)

(define-step "t-double" (task) (format nil "~A~:*~A" (task-text task)))
(define-step "t-join" (task) (format nil "~{~A~^+~}" (mapcar #'octets-string (task-results task))))
(define-step "t-spread" (task)
  (values nil (list `(:children ,(loop for word in (uiop:split-string (task-text task))
                                       collect `(("t-double") :input ,word))))))
(define-workflow doubling "t-double")

(defun ended-child (place status &key (text "") (origin 0))
  "The end of the child at PLACE of the first step of the workflow w."
  (workflow::make-child-end
   place origin (pb:make-child-result :id (format nil "w.1.~D" place) :status status :reason "so"
                                      :result (string-octets text))))

(defun parent-state (step &key (limits (limits)))
  "The state of the workflow w, which begins with STEP, once its two children have begun."
  (let ((state (workflow::draft-state (begun (list step "after") :limits limits))))
    (becomes state 1000 (workflow::note-children-begun 2))
    state))

(test a-step-forks-and-joins
  (let* ((draft (begun '((:parallel ("a") ("b" "c")) "after")))
         (state (workflow::draft-state draft))
         (step (step-at state 0)))
    (is (eq :starting (status-at state 0)))
    (is (equal '("by" "index/due/start")
               (list "by" (if (find "start" (uiop:split-string (second (workflow::state-keys
                                                                        "" state))
                                                               :separator "/")
                                    :test #'string=)
                              "index/due/start"
                              ""))))
    ;; the state does not have what they do
    (is (assoc "children/1" (workflow::draft-payloads draft) :test #'string=))
    (is (zerop (length (pb:children-children (pb:step-children (pb:step-state-step step))))))
    (is (equal '(:child-started) (kinds-of (becomes state 1000 (workflow::note-children-begun 1)))))
    (is (eq :starting (status-at state 0)))
    ;; the first may end before the second has begun
    (is (not (workflow::joined-by-p state 1 (list (ended-child 0 :completed)))))
    (let ((draft (becomes state 1100 (workflow::note-child-ends
                                      1 (list (ended-child 0 :completed :text "A")) '()))))
      (is (equal '(:child-ended) (kinds-of draft)))
      (is (equal '("child/1/0") (mapcar #'car (workflow::draft-payloads draft)))))
    (becomes state 1200 (workflow::note-children-begun 1))
    (is (eq :joining (status-at state 0)))
    (is (equal (list (first (workflow::state-keys "" state))) (workflow::state-keys "" state)))
    ;; its end again changes nothing, and neither does that of no child
    (dolist (place '(0 2))
      (is (null (becomes state 1300 (workflow::note-child-ends
                                     1 (list (ended-child place :failed)) '())))))
    (is (null (becomes state 1300 (workflow::note-child-ends
                                   2 (list (ended-child 1 :failed)) '()))))
    (let* ((ends (list (ended-child 1 :completed :text "B")))
           (former (list (cons 0 (workflow::child-end-result
                                   (ended-child 0 :completed :text "A")))))
           (joined (workflow::joined-by-p state 1 ends))
           (draft (becomes state 1400 (workflow::note-child-ends 1 ends former))))
      (is-true joined)
      (is (equal '(:child-ended :step-done) (kinds-of draft)))
      (is (equal '("A" "B")
                 (mapcar (lambda (result) (octets-string (pb:child-result-result result)))
                         (child-results (cdr (first (workflow::draft-small draft)))))))
      (is (equal '(("data/w/child/1/" . "data/w/child/10")) (workflow::draft-removals draft))))
    (is (equal '(:done :ready) (loop for i below 2 collect (status-at state i))))
    (is (string= "out/1" (workflow::input-key state)))))

(test a-child-that-fails-fails-the-step
  "By default; told to report, the step is done all the same."
  (dolist (status '(:failed :cancelled))
    (let ((state (parent-state '(:parallel ("a") ("b")))))
      (becomes state 2000 (workflow::note-child-ends
                           1 (list (ended-child 1 status)) '()))
      (is (eq :failed (pb:workflow-state-status state)))
      (is (search "w.1.1 has" (pb:workflow-state-reason state)))
      (is (search ": so" (pb:workflow-state-reason state)))))
  (let ((state (parent-state '(:children ((("a")) (("b"))) :failures :report)))
        (ends (list (ended-child 0 :failed) (ended-child 1 :cancelled))))
    (becomes state 2000 (workflow::note-child-ends 1 ends '()))
    (is (eq :running (pb:workflow-state-status state)))
    (is (eq :ready (status-at state 1)))))

(test the-end-of-a-parent-is-the-children-s
  (flet ((errands (step)
           (let ((state (parent-state step)))
             (let ((draft (becomes state 2000 (workflow::cancel-state "enough"))))
               (workflow::end-errands draft)))))
    (is (equal '(("cancel" . "1 2 0")) (errands '(:parallel ("a") ("b")))))
    (is (null (errands '(:children ((("a")) (("b"))) :abandon t)))))
  (let* ((parent (pb:make-parent :id "w" :step 1 :index 0 :depth 1))
         (state (workflow::draft-state
                 (workflow::finish-draft
                  (workflow::begin-workflow
                   (pb:make-start-request :id "w.1.0" :steps (workflow::steps-of '("a")))
                   1000 (limits) :parent parent)))))
    (is (null (becomes state 2000 (workflow::cancel-child "w" 2 0))))
    (is (null (becomes state 2000 (workflow::cancel-child "v" 1 0))))
    (let ((draft (becomes state 2000 (workflow::cancel-child "w" 1 0))))
      (is (eq :cancelled (pb:workflow-state-status state)))
      (is (protobuf:message= parent (protobuf:parse-message
                                     'pb:parent (cdr (assoc "end" (workflow::end-errands draft)
                                                            :test #'string=))))))
    (is (null (becomes state 2000 (workflow::cancel-child "w" 1 0))))))

(test children-have-limits
  "As many as there may be are taken, and one more is not."
  (flet ((start (count &rest limits)
           (begun `((:parallel ,@(loop repeat count collect '("a"))))
                  :limits (apply #'limits limits)))
         (nested (depth)
           (let ((steps '("a")))
             (loop repeat depth do (setf steps `((:parallel ,steps))))
             steps)))
    (finishes (start 100))
    (signals too-large (start 101))
    (finishes (start 3 :max-children 3))
    (signals too-large (start 4 :max-children 3))
    (finishes (begun (nested 8)))
    (signals too-large (begun (nested 9)))
    (signals invalid-request (start 0))
    (signals invalid-request (begun '((:parallel ()))))
    ;; PARENT.1.0 has four octets more
    (finishes (begun '((:parallel ("a"))) :id (make-string 124 :initial-element #\w)))
    (signals too-large (begun '((:parallel ("a"))) :id (make-string 125 :initial-element #\w))))
  (let ((state (parent-state '(:parallel ("a") ("b")) :limits (limits :max-payload-octets 100))))
    (becomes state 2000 (workflow::note-child-ends
                         1
                         (list (ended-child 0 :completed
                                            :text (make-string 100 :initial-element #\a)))
                         '())
             :limits (limits :max-payload-octets 100))
    (is (search "too large together" (pb:workflow-state-reason state)))))

(test parallel-steps-by-nodes-and-workers
  "Branches, children of children, and those that a task decides on bring their results in order."
  (with-memory-node (node)
    (with-worker-of (worker node :kinds '("t-double" "t-join" "t-spread") :concurrency 2)
      (start-workflow node "w" '((:parallel ("t-double") ("t-double" "t-double")) "t-join")
                      :input "a")
      (start-workflow node "nested" '((:parallel ((:parallel ("t-double") ("t-double")) "t-join")
                                                 ("t-double"))
                                      "t-join")
                      :input "b")
      (start-workflow node "spread" '("t-spread" "t-join") :input "1 2 3 4 5")
      (start-workflow node "named" '((:child doubling :input "x") "t-join"))
      (flet ((result (id)
               (multiple-value-bind (status result reason) (await-workflow node id)
                 (list status (octets-string result) reason))))
        (is (equal '(:completed "aa+aaaa" "") (result "w")))
        (is (equal '(:completed "bb+bb+bb" "") (result "nested")))
        (is (equal '(:completed "11+22+33+44+55" "") (result "spread")))
        (is (equal '(:completed "xx" "") (result "named"))))
      (let ((child (state-of node "w.1.0")))
        (is (string= "w" (pb:parent-id (pb:workflow-state-parent child))))
        (is (string= "doubling" (pb:workflow-state-type (state-of node "named.1.0")))))
      ;; nothing is left to be done
      (eventually (null (errands-left node))))))

(defun errands-left (node)
  "Keys of what is due at NODE that are no timers."
  (loop for entry in (etcd:fetch-entries (workflow::node-etcd node)
                                         :prefix (workflow::node-key node "index/due" "")
                                         :keys-only t)
        when (= 4 (length (workflow::key-parts (workflow::node-key node "index/due" "")
                                               (etcd:entry-key entry))))
          collect (etcd:entry-key entry)))

(test children-are-cancelled-with-their-parent
  "And children of children; those that are to be abandoned go on."
  (with-memory-node (node)
    (flet ((status (id) (pb:workflow-state-status (state-of node id)))
           (there-p (id) (handler-case (state-of node id) (workflow-not-found () nil))))
      (start-workflow node "w" '((:parallel ((:parallel ((:signal "x")))) ((:signal "x")))))
      (start-workflow node "v" '((:children ((((:signal "x")))) :abandon t)))
      (eventually (and (there-p "w.1.0.1.0") (there-p "w.1.1")
                       (there-p "v.1.0")))
      (cancel-workflow node "w" :reason "enough")
      (cancel-workflow node "v")
      (eventually (equal '(:cancelled :cancelled :cancelled)
                         (mapcar #'status '("w.1.0" "w.1.1" "w.1.0.1.0"))))
      (eventually (null (errands-left node)))
      (is (eq :running (status "v.1.0"))))))

(test a-child-whose-id-is-taken-fails-the-step
  (with-memory-node (node)
    (start-workflow node "w.1.1" '((:signal "x")))
    (start-workflow node "w" '((:parallel ((:signal "x")) ((:signal "x")))))
    (is (eq :failed (await-workflow node "w")))
    (is (search "another workflow has the id w.1.1" (pb:workflow-state-reason (state-of node "w"))))
    (is (eq :running (pb:workflow-state-status (state-of node "w.1.1"))))))

(test a-long-reason-is-kept-as-others-are
  "Why children cannot be begun is kept up to the octets of any reason."
  (let ((text (make-string 1500 :initial-element #\x)))
    (with-memory-node (node)
      (with-replaced (('workflow::check-child-inputs
                       (fn (_function &rest _arguments)
                         (workflow::refuse :invalid-request "~A" text))))
        (start-workflow node "w" '((:parallel ((:signal "x")))))
        (is (eq :failed (await-workflow node "w")))
        (is (search text (pb:workflow-state-reason (state-of node "w"))))))))

(test many-children-in-several-transactions
  "100 children, whose beginnings take several transactions, all begin and join, whose inputs and
results are a transaction's."
  (with-memory-node (node)
    (with-worker-of (worker node :kinds (list (cons "size" (lambda (task)
                                                             (princ-to-string
                                                              (length (task-input task)))))
                                              "t-join")
                                 :concurrency 4)
      (start-workflow node "w" (list (cons :parallel (loop repeat 100 collect '("size"))) "t-join")
                      :input (make-octets 50000))
      (multiple-value-bind (status result reason) (await-workflow node "w")
        (is (eq :completed status) "~A" reason)
        (is (string= (format nil "~{~A~^+~}" (loop repeat 100 collect 50000))
                     (octets-string result))))
      ;; 100 copies of what is larger are too many
      (start-workflow node "large" (list (cons :parallel (loop repeat 100 collect '("size"))))
                      :input (make-octets 100001))
      (is (eq :failed (await-workflow node "large")))
      (is (search "child-inputs: 10000000 at most" (pb:workflow-state-reason
                                                    (state-of node "large")))))))

(test ends-of-many-children-at-once
  "However many children of one step end before that is reported, their parent goes on."
  (with-memory-node (node)
    (start-workflow node "w" (list (list :children (loop repeat 100 collect '(((:signal "x"))))
                                         :failures :report)
                                   "a"))
    (flet ((step-state () (elt (pb:workflow-state-steps (state-of node "w")) 0))
           (cancel (from to)
             (loop for place from from below to
                   do (cancel-workflow node (workflow::child-id "w" 1 place)))))
      (eventually (eq :joining (pb:step-state-status (step-state))))
      ;; the node's own jobs leave their errands where they are meanwhile
      (with-replaced (('workflow::handle-errands (constantly '())))
        (cancel 0 70)
        (workflow::tell-parents
         node (loop for shard below workflow::+shards+
                    append (remove-if #'stringp
                                      (workflow::due-page node shard nil
                                                          (workflow::node-now node))))))
      (is (= 70 (count :cancelled (pb:step-state-children (step-state))
                       :key #'pb:child-state-status)))
      (cancel 70 100)
      (eventually (eq :done (pb:step-state-status (step-state)))))))

(test what-is-of-a-former-workflow-is-known
  "An id is used again: the end of a former child, and the end of the former parent, change nothing
of the new ones; and an ended child of before makes room."
  (let ((state (parent-state '(:parallel ("a") ("b")))))
    (is (null (becomes state 2000 (workflow::note-child-ends
                                   1 (list (ended-child 0 :failed :origin 7)) '())))))
  (let ((state (workflow::draft-state
                (workflow::finish-draft
                 (workflow::begin-workflow
                  (pb:make-start-request :id "w.1.0" :steps (workflow::steps-of '("a")))
                  1000 (limits)
                  :parent (pb:make-parent :id "w" :step 1 :index 0 :depth 1 :origin 9))))))
    (is (null (becomes state 2000 (workflow::cancel-child "w" 1 8))))
    (is-true (becomes state 2000 (workflow::cancel-child "w" 1 9))))
  (with-memory-node (node)
    (with-worker-of (worker node :kinds '("t-double" "t-join"))
      (dotimes (i 2)
        (start-workflow node "w" '((:parallel ("t-double")) "t-join") :input "a")
        (is (eq :completed (await-workflow node "w")))
        (is-true (delete-workflow node "w"))
        (is (eq :completed (await-workflow node "w.1.0")))))))
