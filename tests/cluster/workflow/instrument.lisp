;;;; What a node counts, and under which names.

(in-package #:clgrpc.tests.workflow)

(test steps-are-counted-by-kind
  "A task by its own kind, any other step by what it waits for."
  (let ((draft (begun '("a" (:wait 1) (:until 5000000) (:signal "go") (:parallel ("b"))))))
    (is (equal '("a" "(time)" "(time)" "(signal)" "(children)" "(none)")
               (loop for number from 1 to 6 collect (workflow::step-kind draft number))))))

(test figures-of-the-store-are-of-the-last-node
  "The nodes of a namespace read the same store; the newest node gives its counts."
  (with-memory-node (one :namespace "a")
    (with-memory-node (two :namespace "a")
      (with-memory-node (three :namespace "b")
        (is (equal (list (list three "b") (list two "a"))
                   (workflow::store-counts
                    (workflow::make-instruments :nodes (list three two one)) #'identity)))))))

(test a-change-that-met-another-is-counted
  (let ((metrics (metrics:make-metrics)))
    (with-memory-node (node :metrics metrics :namespace "a")
      (flet ((changes (outcome) (metric metrics "clgrpc.workflow.changes" "a" outcome)))
        (start-workflow node "w" '("a"))
        (let ((draft (workflow::decide node (workflow::see-state node "w")
                                       (lambda (draft) (workflow::cancel-state draft "enough"))))
              (before (changes "made")))
          (is-true (workflow::put-draft node draft))
          (is (= (1+ before) (changes "made")))
          (is (null (changes "met_another")))
          (is-false (workflow::put-draft node draft))
          (is (= (1+ before) (changes "made")))
          (is (eql 1 (changes "met_another"))))))))
