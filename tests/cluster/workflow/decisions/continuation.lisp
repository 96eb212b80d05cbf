;;;; Workflows that begin again as their next run.

(in-package #:clgrpc.tests.workflow)

(define-workflow counting "t-count")

(define-step "t-count" (task)
  (let ((number (parse-integer (task-text task))))
    (if (< number 30)
        (continue-as-new 'counting :input (princ-to-string (1+ number)))
        "thirty")))

(defun continuation (steps &rest arguments)
  (apply #'continue-as-new steps arguments))

(defun continued (steps &rest arguments)
  "The state of a workflow of a task, once that was continued with STEPS; and the draft of that."
  (let* ((state (workflow::draft-state (begun '("a" "b") :timeout 100))) (draft nil))
    (becomes state 2000 (workflow::claim-step "s1" '("a")))
    (setf draft (becomes state 3000 (workflow::report-continuation
                                     1 (apply #'continuation steps arguments))))
    (values state draft)))

(test a-workflow-begins-again
  (multiple-value-bind (state draft) (continued '("c" (:task "d" :input "own")) :input "new")
    (is (equal '(:step-done :continued) (kinds-of draft)))
    (is (= 1 (pb:workflow-state-run state)))
    (is (= 3 (pb:workflow-state-version state)))
    (is (= 2 (pb:workflow-state-former-changes state)))
    (is (equal '(:ready :waiting) (loop for i below 2 collect (status-at state i))))
    ;; numbers and fences go on
    (is (equal '(3 4) (map 'list #'pb:step-state-number (pb:workflow-state-steps state))))
    (is (= 1 (pb:workflow-state-fence state)))
    (is (equal '(("1/input" . "new") ("1/in/4" . "own")) (payload-texts draft)))
    (is (string= "1/input" (workflow::input-key state)))
    (is (string= "" (workflow::result-key state)))
    (is (zerop (pb:workflow-state-deadline-unix-ms state)))
    (is (equal '(("data/w/child/" . "data/w/child0") ("data/w/children/" . "data/w/children0")
                 ("data/w/out/" . "data/w/out0") ("data/w/in/" . "data/w/in0"))
               (subseq (workflow::draft-removals draft) 0 4)))
    (is (equal '("history/w/" . "history/w/00000003") (first (last (workflow::draft-removals
                                                                    draft)))))
    ;; the same again is known, something else is refused
    (is (null (becomes state 4000 (workflow::report-continuation
                                   1 (continuation '("c" (:task "d" :input "own")) :input "new")))))
    (signals claim-lost (becomes state 4000 (workflow::report-continuation
                                             1 (continuation '("c")))))
    (signals claim-lost (becomes state 4000 (workflow::report-result 1 (make-octets 0) '())))
    (becomes state 5000 (workflow::claim-step "s1" '("c")))
    (is (= 2 (pb:workflow-state-fence state))))
  (is (= 8000 (pb:workflow-state-deadline-unix-ms (continued '("c") :timeout 5))))
  (signals invalid-request (continued '())))

(test a-continuation-takes-few-operations
  "Of a run of a thousand steps all are removed by one transaction of the store, with those of the
next run."
  (let* ((limits (limits :max-steps 1000))
         (state (workflow::draft-state (begun (loop repeat 1000 collect "a") :limits limits))))
    (loop for i below 990
          do (setf (pb:step-state-status (step-at state i)) :done))
    (setf (pb:workflow-state-current state) 990
          (pb:step-state-status (step-at state 990)) :ready)
    (becomes state 2000 (workflow::claim-step "s1" '("a")) :limits limits)
    (let ((operations (workflow::draft-operations
                       "" (becomes state 3000
                                   (workflow::report-continuation
                                    1 (continuation (loop for i below 90
                                                          collect (list :task "a" :input
                                                                        (make-octets (+ 300 i))))))
                                   :limits limits))))
      (is (<= (length operations) 128))
      (is (find '(:remove-all :prefix "steps/w/00000000-") operations :test #'equal))
      (is (null (find-if (lambda (operation)
                           (and (eq :remove (first operation))
                                (search "steps/" (second operation))))
                         operations))))))

(test a-continuation-counts-its-own-changes
  "A run may have as many changes as the first one."
  (let* ((limits (limits :max-changes 20))
         (state (workflow::draft-state (begun '("a") :limits limits))))
    (loop repeat 30
          do (becomes state 2000 (workflow::claim-step "s1" '("a")) :limits limits)
             (becomes state 2000 (workflow::report-continuation
                                  (pb:workflow-state-fence state) (continuation '("a")))
                      :limits limits))
    (is (eq :running (pb:workflow-state-status state)))
    (is (= 30 (pb:workflow-state-run state)))
    (is (= 61 (pb:workflow-state-version state)))
    (is (= 8 (length (pb:workflow-state-former-reports state))))
    (loop repeat 19 do (becomes state 2000 (workflow::note-signal "x" "key" 0) :limits limits))
    (is (eq :failed (pb:workflow-state-status state)))
    (is (= 80 (pb:workflow-state-version state)))))

(test signals-outlive-a-run
  "One that waits is taken in a later run; those of the last eight runs with signals are known."
  (let ((state (workflow::draft-state (begun '("a")))))
    (flet ((next ()
             (becomes state 2000 (workflow::claim-step "s1" '("a")))
             (becomes state 2000 (workflow::report-continuation
                                  (pb:workflow-state-fence state) (continuation '("a"))))))
      (becomes state 2000 (workflow::note-signal "x" "signal/1" 3))
      (next)
      (is (equalp #(0) (coerce (pb:workflow-state-signal-runs state) 'vector)))
      (next)
      ;; no other run had any
      (is (equalp #(0) (coerce (pb:workflow-state-signal-runs state) 'vector)))
      (becomes state 2000 (workflow::claim-step "s1" '("a")))
      (let ((draft (becomes state 2000 (workflow::report-continuation
                                        (pb:workflow-state-fence state)
                                        (continuation '((:signal "x") "b"))))))
        (is (equal '(:step-done :continued :step-done) (kinds-of draft)))
        (is (string= "signal/1" (workflow::input-key state))))))
  (let ((state (workflow::draft-state (begun '("a")))) (removals '()))
    (loop for run from 0 below 12
          do (becomes state 2000 (workflow::note-signal (if (= run 2) "waits" "x")
                                                        (workflow::run-key run "signal/1") 3))
             (unless (= run 2) (setf (pb:workflow-state-signals state)
                                     (remove "x" (pb:workflow-state-signals state)
                                             :key #'pb:pending-signal-name :test #'string=)))
             (becomes state 2000 (workflow::claim-step "s1" '("a")))
             (let ((draft (becomes state 2000 (workflow::report-continuation
                                               (pb:workflow-state-fence state)
                                               (continuation '("a"))))))
               (setf removals (append (mapcar #'car (workflow::draft-removals draft)) removals))))
    (is (equalp #(2 4 5 6 7 8 9 10 11)
                (coerce (pb:workflow-state-signal-runs state) 'vector)))
    (dolist (gone '("data/w/signal/" "data/w/1/signal/" "data/w/3/signal/"))
      (is (= 1 (count gone removals :test #'string=))))
    (is (null (member "data/w/2/signal/" removals :test #'string=)))))

(test change-numbers-are-in-the-order-of-their-keys
  (let ((texts (mapcar #'workflow::number-text '(1 99 99999999 100000000 4000000000000))))
    (is (equal texts (sort (copy-list texts) #'string<)))))

(test a-workflow-that-lives-for-long
  "30 runs by a worker: each change is told once, and what is of earlier runs is gone."
  (with-memory-node (node :max-changes 10)
    (let ((numbers '()) (continued 0))
      (start-workflow node "w" 'counting :input "0")
      (let ((watcher (watch-workflow (lambda (change)
                                       (push (pb:change-number change) numbers)
                                       (incf continued (count :continued (pb:change-events change)
                                                              :key #'pb:event-kind)))
                                     node "w")))
        (eventually numbers)
        (with-worker-of (worker node :kinds '("t-count") :concurrency 2)
          (multiple-value-bind (status result) (await-workflow node "w")
            (is (eq :completed status))
            (is (string= "thirty" (octets-string result))))
          (eventually (workflow::watcher-ended watcher)))
        (end-watching watcher)
        (is (= 30 continued))
        (is (equal (loop for i from 1 to (length numbers) collect i) (reverse numbers))))
      (let* ((reply (workflow-state node "w" :history t))
             (history (pb:get-workflow-state-reply-history reply)))
        (is (= 30 (pb:workflow-state-run (pb:get-workflow-state-reply-state reply))))
        (is (eq :continued (pb:event-kind (elt (pb:change-events (elt history 0)) 1))))
        (is (<= 2 (length history) 4)))
      ;; the last run's input and result, and nothing else
      (is (= 2 (length (pb:workflow-state-payloads
                        (workflow::cached-state-state (workflow::see-state node "w"))))))
      (is (zerop (etcd:count-entries (workflow::node-etcd node)
                                     :prefix (workflow::node-key node "data" "w" "")))))))

(test a-signal-counts-once-across-runs
  (with-memory-node (node)
    (let ((session (open-a-session node)))
      (start-workflow node "w" '("a"))
      (signal-workflow node "w" "x" "one" :signal-id "1")
      (let ((task (first (claim node session '("a")))))
        (workflow::ask #'methods:report node
                       (pb:make-report-request :id "w" :fence (pb:task-fence task)
                                               :continue-as-new (continuation
                                                                 '((:signal "x") (:signal "x"))))
                       10))
      (is (= 1 (pb:workflow-state-current (state-of node "w"))))
      (signal-workflow node "w" "x" "one" :signal-id "1")
      (is (= 1 (pb:workflow-state-current (state-of node "w"))))
      (signal-workflow node "w" "x" "two" :signal-id "2")
      (is (eq :completed (await-workflow node "w")))
      ;; though it has ended
      (signal-workflow node "w" "x" "one" :signal-id "1"))))
