;;;; Rules that seeds seldom put to the test, one by one: a node without a server, whose machine
;;;; crashes at once after an answer.

(in-package #:clgrpc.tests.raft-example)
(in-suite :clgrpc.raft-example)

(defun platter-node (platter)
  "The node a of the group a, b, c, with what is on PLATTER; and its disk."
  (let ((handle (make-instance 'handle :platter platter :crash #'list)))
    (values (example:make-node "a" '("a" "b" "c") handle) handle)))

(defun after-crash (platter handle)
  "The node that comes back when the machine with HANDLE to PLATTER has crashed, with what was
forced out."
  (setf (platter-written platter) '())
  (crash-platter handle)
  (platter-node platter))

(defun vote-for (node candidate term)
  "True if NODE votes for CANDIDATE in TERM."
  (v1:request-vote-response-granted
   (raft:handle-request-vote node (v1:make-request-vote-request :term term :sender candidate))))

(defun give-entries (node term previous previous-term &rest terms)
  "Give NODE entries of TERMS behind PREVIOUS, as the leader b of TERM; its response."
  (raft:handle-append-entries
   node (v1:make-append-entries-request
         :term term :sender "b" :prev-log-index previous :prev-log-term previous-term
         :entries (loop for index from (1+ previous)
                        for entry-term in terms
                        collect (v1:make-entry :index index :term entry-term :kind 1)))))

(test what-was-answered-is-on-the-disk
  "A vote, a term and entries, each with a crash after the answer."
  (let ((platter (make-platter :chance (sim:make-chance 1))))
    (multiple-value-bind (node handle) (platter-node platter)
      (is-true (vote-for node "b" 5))
      (let ((node (after-crash platter handle)))
        (is (= 5 (example:node-term node)))
        (is-false (vote-for node "c" 5))
        (is-true (vote-for node "b" 5)))))
  (let ((platter (make-platter :chance (sim:make-chance 1))))
    (multiple-value-bind (node handle) (platter-node platter)
      (is (= 7 (v1:append-entries-response-term (give-entries node 7 3 6))))
      (let ((node (after-crash platter handle)))
        (is (= 7 (example:node-term node)))
        (is-false (v1:append-entries-response-success (give-entries node 6 0 0 6)))))
    (multiple-value-bind (node handle) (platter-node platter)
      (is-true (v1:append-entries-response-success (give-entries node 7 0 0 6 7)))
      (is (= 2 (example:last-index (example:node-log (after-crash platter handle))))))))

(test a-candidate-votes-for-itself-before-it-asks
  (let ((platter (make-platter :chance (sim:make-chance 1))))
    (multiple-value-bind (node handle) (platter-node platter)
      (setf (example::node-told node) t)
      (example::make-turn node)
      (is (eq :candidate (example:node-role node)))
      (let ((node (after-crash platter handle)))
        (is (= 1 (example:node-term node)))
        (is-false (vote-for node "b" 1))))))

(defun leading-node (&rest terms)
  "A node that leads term 9, with entries of TERMS in its log, and one of its own term."
  (let ((node (platter-node (make-platter :chance (sim:make-chance 1)))))
    (apply #'give-entries node 8 0 0 terms)
    (setf (example:node-role node) :candidate)
    (example::set-term node 9 "a")
    (example::lead node)
    (setf (example::node-progress node)
          (loop for nil in '("b" "c") collect (example::make-progress nil 1 0)))
    node))

(test a-leader-counts-only-entries-of-its-own-term
  "Those before one of its own term that a majority has are committed with it (Raft, 5.4.2)."
  (let ((node (leading-node 3 4)))
    (flet ((commit-with (match)
             (setf (example::progress-match (first (example::node-progress node))) match)
             (example::advance-commit node)
             (example:node-commit node)))
      (is (= 0 (commit-with 1)))
      (is (= 0 (commit-with 2)))
      (is (= 3 (commit-with 3))))))

(test a-snapshot-keeps-what-agrees-with-it
  (flet ((indices-left (index term)
           (let ((log (example:node-log (leading-node 3 4))))
             (example::move-base log index term (make-octets 0))
             (is (= index (example:log-base-index log)))
             (- (example:last-index log) index))))
    (is (= 1 (indices-left 2 4)))
    (is (= 0 (indices-left 2 5)) "another entry was there")
    (is (= 0 (indices-left 7 5)) "it is further")))
