;;;; Rules that seeds seldom put to the test, one by one: a node without a server, whose machine
;;;; crashes at once after an answer.

(in-package #:clgrpc.tests.raft-example)

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

(defun fresh-node (&rest terms)
  "A node of term 8, with entries of TERMS in its log."
  (let ((node (platter-node (make-platter :chance (sim:make-chance 1)))))
    (apply #'give-entries node 8 0 0 terms)
    node))

(defun log-length (node)
  (example:last-index (example:node-log node)))

(test a-candidate-with-an-older-log-is-not-elected
  "Of two logs that whose last entry is of a later term is newer, or the longer (Raft, 5.4.1)."
  (let ((node (fresh-node 6 7)) (term 8))
    (flet ((vote (index entry-term)
             (v1:request-vote-response-granted
              (raft:handle-request-vote
               node (v1:make-request-vote-request
                     :term (incf term) :sender "c" :leadership-transfer t
                     :last-log-index index :last-log-term entry-term)))))
      (is-false (vote 5 6))
      (is-false (vote 1 7))
      (is-true (vote 2 7))
      (is-true (vote 1 8)))))

(test a-follower-compares-the-entry-before
  (let ((node (fresh-node 6 6)))
    (is-false (v1:append-entries-response-success (give-entries node 8 2 7 8)))
    (is-false (v1:append-entries-response-success (give-entries node 8 3 6 8)))
    (is (= 2 (log-length node)))
    (is-true (v1:append-entries-response-success (give-entries node 8 2 6 8)))
    (is (= 3 (log-length node)))))

(test a-follower-truncates-what-differs-only
  "A request that was sent before others, and comes after them, takes nothing away."
  (let ((node (fresh-node 7 7 7)))
    (is-true (v1:append-entries-response-success (give-entries node 8 0 0 7)))
    (is (= 3 (log-length node)))
    (is-true (v1:append-entries-response-success (give-entries node 8 1 7 8)))
    (is (= 2 (log-length node)))))

(test a-follower-commits-what-it-knows-to-agree
  "It commits no entry behind those: such an entry may be another leader's."
  (let ((node (fresh-node 6 6 6)))
    (raft:handle-append-entries
     node (v1:make-append-entries-request :term 8 :sender "b" :prev-log-index 1 :prev-log-term 6
                                          :leader-commit 3))
    (is (= 1 (example:node-commit node)))))

(test a-leader-forces-out-what-it-counts-as-its-own
  (let* ((node (leading-node 3))
         (platter (handle-platter (example::node-disk node))))
    (is-true (platter-written platter))
    (example::replicate node)
    (is (equal '() (platter-written platter)))))

(test a-read-waits-for-a-majority
  (let* ((node (leading-node 3)) (future (loop:make-future))
         (progress (first (example::node-progress node))))
    (setf (example::node-round node) 5
          (example::node-reads node) (list (example::make-pending-read future 0 5))
          (example::progress-round progress) 4)
    (example::answer-reads node)
    (is-false (loop:future-done-p future))
    (setf (example::progress-round progress) 5)
    (example::answer-reads node)
    (is-true (loop:future-done-p future))))

(test a-command-that-comes-again-is-not-done-again
  "Nor by a member that has got the store as a snapshot."
  (let ((store (example::make-store)))
    (flet ((value-after (store index)
             (pb:result-value
              (example::apply-command
               store (pb:make-command :kind :append :key "k" :value "a" :session 1 :sequence 1)
               index))))
      (example::apply-command store (pb:make-command :kind :open) 1)
      (is (string= "a" (value-after store 2)))
      (is (string= "a" (value-after store 3)))
      (is (string= "a" (value-after (example::restored-store (example::store-snapshot store))
                                    4))))))

(test half-a-record-is-cut-off
  "What is written after a crash is read, though the crash has left a part of a record."
  (let* ((whole (example::framed (example::vote-record 5 "b")))
         (half (subseq (example::framed (example::vote-record 6 "c")) 0 9))
         (platter (make-platter :chance (sim:make-chance 1)
                                :durable (concatenate 'octets whole half))))
    (let ((node (platter-node platter)))
      (is (= 5 (example:node-term node)))
      (is (equalp whole (example:disk-octets (example::node-disk node))))
      (give-entries node 7 0 0 6 7))
    (let ((node (platter-node platter)))
      (is (= 7 (example:node-term node)))
      (is (= 2 (log-length node))))))
