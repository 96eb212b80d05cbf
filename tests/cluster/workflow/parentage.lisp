;;;; What must hold of parents and children, whatever the cases of interleaving.lisp do.

(in-package #:clgrpc.tests.workflow)

(defun count-told (affair kind)
  "How many events of KIND the watch of AFFAIR was told."
  (loop for change in (affair-told affair)
        sum (count kind (pb:change-events change) :key #'pb:event-kind)))

(defun life-at (affair id revision)
  "The changes of the workflow ID that has begun at REVISION of the store, or nil."
  (find revision (lives-told affair id) :key (lambda (life) (pb:change-revision (first life)))))

(defun life-status (life)
  (pb:change-status (first (last life))))

(defun check-life (affair life)
  "In LIFE, of a workflow, each child begins with the change that tells it, its end is told once, as
it was, and a step that has started children is done when all of them have ended."
  (let ((children (make-hash-table :test 'equal)) ; from ids to (step . life) of those under way
        (id (pb:change-id (first life))))
    (dolist (change life)
      (loop for event across (pb:change-events change)
            for step = (pb:event-step event)
            for text = (pb:event-text event)
            do (case (pb:event-kind event)
                 (:child-started
                  (let ((child (life-at affair text (pb:change-revision change))))
                    (unless child (complain affair "~A has not begun the child ~A" id text))
                    (when (gethash text children) (complain affair "~A begins ~A twice" id text))
                    (setf (gethash text children) (cons step child))))
                 (:child-ended
                  (destructuring-bind (child status) (uiop:split-string text)
                    (let ((known (gethash child children)))
                      (cond ((null known) (complain affair "~A is told too often of ~A" id child))
                            ((string/= status (string-downcase (life-status (cdr known))))
                             (complain affair "~A is told that ~A is ~A" id child status)))
                      (remhash child children))))
                 (:step-done
                  (loop for (other) being the hash-values of children
                        when (= step other)
                          do (complain affair "the step ~D of ~A does not wait" step id))))))))

(defun check-family (affair id)
  (dolist (life (lives-told affair id)) (check-life affair life)))

(defun check-joined (affair task)
  "If the step before TASK has started children, TASK has got what they have brought."
  (let* ((state (state-at affair (pb:task-id task)))
         (place (and state (position (pb:task-step task) (pb:workflow-state-steps state)
                                     :key #'pb:step-state-number)))
         (before (and place (plusp place) (elt (pb:workflow-state-steps state) (1- place)))))
    (when (and before
               (eq :children (pb:step-action-case (pb:step-state-step before)))
               (not (equalp (string-octets "own") (pb:task-input task))))
      (let ((results (child-results (pb:task-input task))))
        (unless (= (length results) (length (pb:step-state-children before)))
          (complain affair "~A has ~D results" (pb:task-id task) (length results)))
        (loop for result in results
              for number from 0
              for id = (workflow::child-id (pb:task-id task) (pb:step-state-number before) number)
              for text = (octets-string (pb:child-result-result result))
              do (unless (and (string= id (pb:child-result-id result))
                              ;; a time alone brings nothing
                              (or (string= "" text) (search id text)
                                  ;; of children of its own
                                  (search ".1.0" text)))
                   (complain affair "~A has brought ~A" id text)))))))
