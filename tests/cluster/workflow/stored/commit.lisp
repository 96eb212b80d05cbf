;;;; Commits: which transactions go together, and that none is any other's; tasks that can be
;;;; claimed, as a node knows them.

(in-package #:clgrpc.tests.workflow)

(defun commit-of (ids &key (octets 10) (operations 1) (when '()))
  "A commit about the workflows IDS."
  (workflow::make-commit ids (list :when when
                                   :then (loop for i below operations
                                               collect (list :put (format nil "~A/~D" ids i) "x")))
                         octets))

(defun batches (&rest commits)
  "The places of COMMITS, which queue, in the requests that they go into."
  (let ((group (workflow::make-commit-group)))
    (dolist (commit commits) (base:enqueue commit (workflow::commit-group-queue group)))
    (loop for taken = (workflow::take-commits group)
          while taken
          collect (loop for commit in taken collect (position commit commits)))))

(test transactions-go-together
  (is (equal '((0 1 2)) (batches (commit-of '("a")) (commit-of '()) (commit-of '("b" "c")))))
  ;; those of one workflow follow each other, and others do not wait for them
  (is (equal '((0 2) (1) (3)) (batches (commit-of '("a")) (commit-of '("a" "b")) (commit-of '("c"))
                                       (commit-of '("b")))))
  ;; what is large goes alone
  (is (equal '((0 2) (1)) (batches (commit-of '("a")) (commit-of '("b") :octets 600000)
                                     (commit-of '("c")))))
  (is (equal '((0) (1)) (batches (commit-of '("a") :operations 100) (commit-of '("b")))))
  (is (equal '((0 1) (2)) (batches (commit-of '("a") :octets 400000)
                                   (commit-of '("b") :octets 400000)
                                   (commit-of '("c") :octets 400000))))
  (is (equal '(32 1) (mapcar #'length (apply #'batches
                                             (loop repeat 33 collect (commit-of '())))))))

(test transactions-together-are-each-their-own
  "One whose comparison does not hold, or that the store refuses, spoils no other."
  (with-memory-node (node)
    (flet ((outcomes (commits)
             (workflow::settle-commits (workflow::node-etcd node) commits)
             (loop for commit in commits
                   collect (handler-case
                               (values (clgrpc.loop:await (workflow::commit-future commit)))
                             ((or etcd:invalid-request etcd:lease-not-found) () :refused)))))
      (is (equal '(t nil t)
                 (outcomes (list (commit-of '("a")) (commit-of '("b") :when '((:present "none")))
                                 (commit-of '("c"))))))
      (is (equal '(t :refused t)
                 (outcomes (list (commit-of '("d")) (commit-of '("e") :operations 129)
                                 (commit-of '("f"))))))
      ;; a session is moved to a lease that has ended meanwhile
      (is (equal '(t :refused t)
                 (outcomes (list (commit-of '("g"))
                                 (workflow::make-commit
                                  '() (list :then (list (list :put "x" "" :lease 12345))) 0)
                                 (commit-of '("h"))))))
      (is (equal '(1 0 1 1 0 1)
                 (loop for id in '("a" "b" "c" "d" "e" "f")
                       collect (etcd:count-entries (workflow::node-etcd node)
                                                   :prefix (format nil "(~A)/" id))))))))

(test a-full-store-refuses-no-reads
  "Reads and removals are done though a transaction beside them finds the store full."
  (let* ((engine (memory:make-engine :max-octets 5000)) (etcd (memory:connect engine)))
    (unwind-protect
         (flet ((commit (&rest operations) (workflow::make-commit '() (list :then operations) 10)))
           (etcd:put etcd "there" "old")
           (etcd:put etcd "left" "x")
           (let ((commits (list (commit (list :get "there"))
                                (commit (list :put "new" (make-string 6000 :initial-element #\x)))
                                (commit (list :remove "left")))))
             (workflow::settle-commits etcd commits)
             (is (equal '(t :full t)
                        (loop for commit in commits
                              collect (handler-case
                                          (values (loop:await (workflow::commit-future commit)))
                                        (etcd:space-exceeded () :full)))))
             (is (null (etcd:fetch etcd "left")))))
      (etcd:close-etcd etcd)
      (memory:close-engine engine))))

(test stale-reads-go-together
  "Each gets what is at its keys, in their order, however many there are in all."
  (with-memory-node (node)
    (let ((etcd (workflow::node-etcd node)))
      (dotimes (i 150) (etcd:put etcd (format nil "k~D" i) (format nil "v~D" i)))
      (flet ((texts (entries)
               (loop for entry in entries
                     collect (and entry (base:octets-string (etcd:entry-value entry)))))
             (read-of (&rest numbers)
               (workflow::make-commit
                '() (list :then (loop for i in numbers
                                      collect (list :get (format nil "k~D" i) :stale t)))
                0)))
        (is (equal '("v3" nil "v1") (texts (workflow::read-stale node '("k3" "k200" "k1")))))
        (is (null (workflow::read-stale node '())))
        (let ((reads (append (list (read-of 7 500) (read-of))
                               (loop for i below 30
                                     collect (apply #'read-of (loop for k below 5
                                                                      collect (+ k (* 5 i))))))))
          (workflow::settle-stale-reads etcd reads)
          (is (equal (list* '("v7" nil) '()
                            (loop for i below 30
                                  collect (loop for k below 5
                                                collect (format nil "v~D" (+ k (* 5 i))))))
                     (loop for read in reads
                           collect (texts (nth-value 1 (clgrpc.loop:await
                                                        (workflow::commit-future read))))))))))))

(test what-a-stale-read-refuses-is-looked-at-again
  "A state that was read before it has changed neither refuses what is right nor is put over what
has come."
  (with-memory-node (node)
    (workflow:start-workflow node "w" '((:signal "go") (:signal "on")))
    (let ((early (workflow::fetch-entry node "w")))
      (workflow:signal-workflow node "w" "go" "x" :signal-id "1")
      (with-replaced (('workflow::read-stale
                       (fn (_function &rest _arguments) (list early))))
        (flet ((change (decision)
                 (workflow::forget-states node)
                 (workflow::change-workflow node "w" decision)))
          ;; refused by what was: the first signal had not come
          (is (= 3 (pb:workflow-state-version
                    (workflow::draft-state
                     (change (lambda (draft)
                               (if (= 1 (pb:workflow-state-version
                                         (workflow::draft-state draft)))
                                   (workflow::refuse :claim-lost "not yet")
                                   (workflow::cancel-state draft "over"))))))))
          ;; what was says that it runs, and is not put
          (signals workflow:workflow-closed
            (change (lambda (draft) (workflow::note-signal draft "on" "" 0))))
          (is (eq :cancelled (pb:workflow-state-status
                              (workflow::entry-state (workflow::fetch-entry node "w"))))))))))

(test a-node-knows-what-can-be-claimed
  "What is newer counts, whatever is told first."
  (let* ((node (node-with-task-queue)) (list (workflow::node-ready-list node)))
    (flet ((known (kind count) (workflow::known-ready node kind count)))
      (is (equal '(() nil) (multiple-value-list (known "a" 5))) "nothing is known without a watch")
      (setf (workflow::ready-list-watched list) t)
      (is (equal '(() t) (multiple-value-list (known "a" 5))))
      (workflow::add-ready list "a" 3 "w1" 10)
      (workflow::add-ready list "a" 3 "w2" 11)
      (workflow::add-ready list "b" 4 "w3" 12)
      (is (equal '("w1" "w2") (known "a" 5)))
      (is (equal '("w1") (known "a" 1)))
      (workflow::remove-ready list "w1" 10)
      (is (equal '("w1") (known "a" 1)) "that is what made it")
      (workflow::remove-ready list "w1" 11)
      (workflow::add-ready list "a" 3 "w1" 14)
      (workflow::remove-ready list "w1" 13)
      (is (equal '("w2" "w1") (known "a" 5)) "it came again, later than it went")
      (workflow::remove-ready list "w3" 20)
      (is (= 1 (hash-table-count (workflow::ready-list-kinds list))) "nothing is left of a kind"))))

(test claims-that-find-nothing-ask-nobody
  "A claim that waits, of a session that the node knows, makes no request to the store."
  (with-memory-node (node)
    (let ((session (open-a-session node)) (requests 0))
      (eventually (workflow::ready-list-watched (workflow::node-ready-list node)))
      (with-replaced (('workflow::fetch-ready
                       (lambda (function &rest arguments)
                         (incf requests)
                         (apply function arguments))))
        (is (null (claim node session '("a") :wait 0.1)))
        (is (zerop requests))
        (is (null (claim node session '("a"))))
        (is (= 1 requests) "one that does not wait asks the store")))))

(test tasks-that-can-be-claimed-have-a-revision
  "Only a later change removes or replaces one; a list that is full says that it lacks some."
  (let ((list (workflow::make-ready-list)))
    (flet ((add (id revision &optional (kind "k")) (workflow::add-ready list kind 0 id revision))
           (kinds () (sort (alexandria:hash-table-keys (workflow::ready-list-kinds list))
                           #'string<))
           (count-of () (hash-table-count (workflow::ready-list-tasks list))))
      (add "w" 5)
      (is (null (workflow::remove-ready list "w" 5)))
      (add "w" 5 "other")
      (is (equal '("k") (kinds)))
      (add "w" 6 "other")
      (add "v" 6)
      (is (equal '("k" "other") (kinds)))
      (is-true (workflow::remove-ready list "w" 7))
      (is-true (workflow::remove-ready list "none" 7))
      (is (equal '("k") (kinds)))
      (loop for i from (count-of) below workflow::+most-ready+
            do (add (princ-to-string i) 1))
      (is (null (workflow::ready-list-partial list)))
      (add "more" 9)
      (is-true (workflow::ready-list-partial list))
      (is (= workflow::+most-ready+ (count-of)))
      (is (null (support:lockless (workflow::ready-list-lock list)
                                  `(workflow::add-ready ,list "k" 0 "w" 1)
                                  `(workflow::remove-ready ,list "w" 1)
                                  `(workflow::end-ready-list ,list)))))))
