;;;; Elections (Raft, 5.2 and 5.4.1), with PreVote (dissertation, 9.6) and the leader's lease on
;;;; followers (4.2.3): one that has heard from a leader helps nobody else to be one.

(in-package #:clgrpc.examples.raft)

(defun put-off-election (node)
  "NODE waits for a leader from now on."
  (let ((least (timing-ns node :election)))
    (setf (node-deadline-ns node) (+ (now node) least (random least (node-random node))))))

(defun leader-alive-p (node)
  "True if NODE leads, or has heard from a leader since any election could begin."
  (or (eq :leader (node-role node))
      (and (node-heard-ns node)
           (< (- (now node) (node-heard-ns node)) (timing-ns node :election)))))

(defun end-waiting (node)
  "NODE leads no longer: clients that wait for it are told so."
  (flet ((give-up (future status text)
           (loop:reject-future future (grpc:make-rpc-error status :message text))))
    (maphash (lambda (index proposal)
               (declare (ignore index))
               (give-up (proposal-future proposal) :aborted "perhaps it will be done"))
             (node-waiting node))
    (clrhash (node-waiting node))
    (dolist (proposal (shiftf (node-proposals node) '()))
      (give-up (proposal-future proposal) :unavailable "it was not begun"))
    (dolist (read (shiftf (node-reads node) '()))
      (give-up (pending-read-future read) :unavailable "it leads no longer"))))

(defun follow (node term)
  "NODE is a follower in TERM, which is its own or later."
  (when (> term (node-term node))
    (set-term node term nil)
    (setf (node-leader node) nil))
  (unless (eq :follower (node-role node))
    (when (eq :leader (node-role node)) (setf (node-leader node) nil))
    (setf (node-role node) :follower)
    (end-waiting node)
    (put-off-election node)))

;;; As a candidate

(defun vote-request (node term told)
  (let ((log (node-log node)))
    (v1:make-request-vote-request :term term :last-log-index (last-index log)
                                  :last-log-term (last-term log) :leadership-transfer told)))

(defun ask-for-votes (node question term told)
  "Functions that ask all other members by QUESTION for their votes in TERM."
  (let ((request (vote-request node term told)) (role (node-role node)))
    (loop for peer in (node-peers node)
          collect (let ((peer peer))
                    (lambda ()
                      (funcall question peer request
                               :then (lambda (response error)
                                       (unless error
                                         (tell node (lambda ()
                                                      (count-vote node role term response
                                                                  (raft:peer-name peer))))))))))))

(defun count-vote (node role term response name)
  "NAME has answered RESPONSE to NODE, which was ROLE when it asked for a vote in TERM."
  (cond ((and (> (v1:request-vote-response-term response) (node-term node))
              (not (v1:request-vote-response-granted response)))
         (follow node (v1:request-vote-response-term response)))
        ((and (v1:request-vote-response-granted response)
              (eq role (node-role node))
              (= term (if (eq :candidate role) (node-term node) (1+ (node-term node)))))
         (pushnew name (node-votes node) :test #'string=))))

(defun begin-election (node)
  "NODE asks whether it would be elected; return functions that ask. If the leader has told it to,
it is a candidate at once."
  (put-off-election node)
  (setf (node-leader node) nil
        (node-votes node) (list (node-name node)))
  (cond ((shiftf (node-told node) nil) (stand node t))
        (t (setf (node-role node) :pre-candidate)
           (ask-for-votes node #'raft:pre-vote (1+ (node-term node)) nil))))

(defun stand (node told)
  "NODE is a candidate, TOLD by the leader or not; return functions that ask for votes."
  (setf (node-role node) :candidate
        (node-votes node) (list (node-name node)))
  (set-term node (1+ (node-term node)) (node-name node))
  (ask-for-votes node #'raft:request-vote (node-term node) told))

(defun lead (node)
  "NODE is elected. An entry of its own term is the first that it may commit by counting (5.4.2)."
  (let ((next (1+ (last-index (node-log node)))))
    (setf (node-role node) :leader
          (node-leader node) (node-name node)
          (node-progress node) (loop for peer in (node-peers node)
                                     collect (make-progress peer next (now node))))
    (observe node :leads)
    (append-entry node (v1:make-entry :index next :term (node-term node) :kind 1))))

(defun hold-election (node)
  "Do what the time, or votes, have come for; return functions that ask for votes."
  (let ((elected (majority-p node (length (node-votes node)))))
    (case (node-role node)
      (:pre-candidate (when elected (return-from hold-election (stand node nil))))
      (:candidate (when elected (lead node))))
    (when (and (not (eq :leader (node-role node)))
               (or (node-told node) (<= (node-deadline-ns node) (now node))))
      (begin-election node))))

;;; As a voter

(defun good-candidate-p (node request)
  "True if the log of the candidate of REQUEST is not older than that of NODE (5.4.1)."
  (let ((term (v1:request-vote-request-last-log-term request))
        (own (last-term (node-log node))))
    (or (> term own)
        (and (= term own)
             (>= (v1:request-vote-request-last-log-index request)
                 (last-index (node-log node)))))))

(defun vote-response (node granted)
  (v1:make-request-vote-response :term (node-term node) :granted (and granted t)))

(defmethod raft:handle-pre-vote ((node node) request &key)
  (with-disk (node)
    (vote-response node (and (> (v1:request-vote-request-term request) (node-term node))
                             (not (leader-alive-p node))
                             (good-candidate-p node request)))))

(defmethod raft:handle-request-vote ((node node) request &key)
  (with-disk (node)
    (let ((term (v1:request-vote-request-term request))
          (candidate (v1:request-vote-request-sender request)))
      (cond ((and (leader-alive-p node)
                  (not (v1:request-vote-request-leadership-transfer request)))
             (vote-response node nil))
            (t (when (> term (node-term node)) (follow node term))
               (let ((granted (and (= term (node-term node))
                                   (member (node-vote node) (list nil candidate) :test #'equal)
                                   (good-candidate-p node request))))
                 (when granted
                   (put-off-election node)
                   (unless (node-vote node) (set-term node term candidate)))
                 (sync-journal node)
                 (vote-response node granted)))))))

(defmethod raft:handle-timeout-now ((node node) request &key)
  (with-disk (node)
    (when (and (= (v1:timeout-now-request-term request) (node-term node))
               (eq :follower (node-role node)))
      (setf (node-told node) t)
      (ring node))
    (v1:make-timeout-now-response :term (node-term node))))
