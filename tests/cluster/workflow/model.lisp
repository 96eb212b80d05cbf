;;;; Schedules: workers that claim, report, report again, report late, die, stall and come back;
;;;; nodes that act on what they read a while ago; clocks that are set; signals; cancellations; in
;;;; any order, from a seed. The store is a table that takes transactions as etcd does. What must
;;;; hold holds after each change, and once all is quiet every workflow has ended, with what was
;;;; acknowledged in it.

(in-package #:clgrpc.tests.workflow)
(in-suite :clgrpc.workflow)

(defstruct (world (:copier nil))
  (store (make-hash-table :test 'equal)) ; keys and values
  (revisions (make-hash-table :test 'equal)) ; of states, by id
  (revision 0)
  (now 1000000)
  (random nil)
  (limits (limits :retention-seconds nil))
  (claims '())                          ; (id fence session kind), all that were ever given out
  (sessions '())                        ; that live
  (next-session 0)
  (acknowledged '())                    ; (id fence . result) of results that were taken
  (readings '())                        ; (id state . revision) that a node has read
  (trouble nil))                        ; the first thing that did not hold

(defun any (world list)
  (and list (elt list (random (length list) (world-random world)))))

(defun chance-p (world percent)
  (< (random 100 (world-random world)) percent))

(defun trouble (world control &rest arguments)
  (unless (world-trouble world)
    (setf (world-trouble world) (apply #'format nil control arguments))))

(defun stored-chunks (world prefix type)
  "The messages of TYPE in the store below PREFIX, in the order of their keys."
  (loop for key in (sort (loop for key being the hash-keys of (world-store world)
                               when (eql 0 (search prefix key)) collect key)
                         #'string<)
        collect (protobuf:parse-message type (gethash key (world-store world)))))

(defun stored-state (world id)
  (let ((octets (gethash (workflow::state-key "" id) (world-store world))))
    (and octets
         (workflow::join-state (protobuf:parse-message 'pb:workflow-state octets)
                               (stored-chunks world (format nil "steps/~A/" id)
                                              'pb:stored-steps)))))

(defun stored-history (world id)
  "The changes of the workflow ID that are in the store."
  (append (loop for chunk in (stored-chunks world (format nil "history/~A/" id)
                                            'pb:stored-changes)
                append (coerce (pb:stored-changes-changes chunk) 'list))
          (coerce (pb:workflow-state-changes (stored-state world id)) 'list)))

(defun stored-payload (world state key)
  (or (workflow::small-payload state key)
      (gethash (workflow::data-key "" (pb:workflow-state-id state) key) (world-store world))))

(defun apply-operations (world operations)
  "Do OPERATIONS. Payloads, histories and steps with keys of their own are put once."
  (let ((store (world-store world)))
    (loop for (verb key value) in operations
          do (ecase verb
               (:put (when (and (gethash key store)
                                (some (lambda (part) (eql 0 (search part key)))
                                      '("data/" "history/" "steps/")))
                       (trouble world "~A is put twice" key))
                (setf (gethash key store) value))
               (:remove (unless (gethash key store) (trouble world "~A is not there" key))
                (remhash key store))))))

(defun keys-of (world id)
  "The keys of the workflow ID that are not its state, steps, history or data."
  (sort (loop for key being the hash-keys of (world-store world)
              when (and (string= id (first (last (uiop:split-string key :separator "/"))))
                        (not (member (first (uiop:split-string key :separator "/"))
                                     '("state" "steps" "history" "data") :test #'string=)))
                collect key)
        #'string<))

(defun check-change (world before draft)
  "What holds between the state BEFORE, or nil, and that of DRAFT."
  (let* ((after (workflow::draft-state draft)) (id (pb:workflow-state-id after)))
    (unless (equal (sort (workflow::state-keys "" after) #'string<) (keys-of world id))
      (trouble world "the keys of ~A are ~S" id (keys-of world id)))
    (unless (protobuf:message= (workflow::told-state after)
                               (workflow::told-state (stored-state world id)))
      (trouble world "the state of ~A is another one in the store" id))
    (when before
      (unless (= (pb:workflow-state-version after) (1+ (pb:workflow-state-version before)))
        (trouble world "~A goes from version ~D to ~D" id (pb:workflow-state-version before)
                 (pb:workflow-state-version after)))
      (unless (workflow::running-p before) (trouble world "~A changes after its end" id))
      (when (< (pb:workflow-state-fence after) (pb:workflow-state-fence before))
        (trouble world "fences of ~A go back" id))
      (loop for step across (pb:workflow-state-steps before)
            for now = (find (pb:step-state-number step) (pb:workflow-state-steps after)
                            :key #'pb:step-state-number)
            do (when (and (eq :done (pb:step-state-status step))
                          (not (protobuf:message= step now)))
                 (trouble world "~A: the step ~D changes after it was done" id
                          (pb:step-state-number step)))))))

(defun commit (world state revision draft)
  "Put DRAFT, made of STATE as it was at REVISION. Return true if that is what it still is."
  (let ((id (pb:workflow-state-id (workflow::draft-state draft))))
    (when (= revision (gethash id (world-revisions world) 0))
      (apply-operations world (workflow::draft-operations "" draft))
      (setf (gethash id (world-revisions world)) (incf (world-revision world)))
      (check-change world state draft)
      t)))

(defun act (world id decision &optional (accepted (constantly nil)) (refused (constantly nil)))
  "A node does DECISION about the workflow ID, sometimes with a state that it read before. ACCEPTED
is called with the draft if it was put, or with nil if there was nothing to be put; REFUSED if what
is so now refuses it."
  (let* ((old (and (chance-p world 15) (assoc id (world-readings world) :test #'string=)))
         (revision (if old (cddr old) (gethash id (world-revisions world) 0)))
         (state (if old (cadr old) (stored-state world id))))
    (when (chance-p world 20)
      (push (list* id (stored-state world id) (gethash id (world-revisions world) 0))
            (world-readings world)))
    (handler-case
        (let ((draft (workflow::draft-of state (world-now world) (world-limits world)
                                         :chance (random 1.0 (world-random world)))))
          (if (funcall decision draft)
              (when (commit world state revision (workflow::finish-draft draft))
                (funcall accepted draft))
              (funcall accepted nil)))
      (workflow-error () (unless old (funcall refused)) nil))))

(defparameter *kinds* '("a" "b" "c"))

(defun some-steps (world)
  (loop repeat (+ 1 (random 5 (world-random world)) (if (chance-p world 10) 45 0))
        collect (let ((kind (any world *kinds*)))
                  (case (random 6 (world-random world))
                    (0 `(:wait ,(/ (random 5000 (world-random world)) 1000)))
                    (1 `(:signal ,(any world '("x" "y"))
                                 ,@(and (chance-p world 20) '(:timeout 30))))
                    (2 `(:task ,kind :attempts 1000 :attempt-timeout 3 :backoff 1/10))
                    (3 `(:task ,kind :attempts 1000 :input "own"))
                    (t `(:task ,kind :attempts 1000 :backoff 1/2))))))

(defun start-one (world id)
  (let ((draft (begun (some-steps world) :id id :now (world-now world)
                                         :limits (world-limits world)
                                         :timeout (and (chance-p world 5) 60))))
    (commit world nil 0 draft)))

(defun claim-one-task (world id)
  (let ((session (any world (world-sessions world))))
    (when session
      (act world id (lambda (draft) (workflow::claim-step draft session *kinds*))
           (lambda (draft)
             (when draft
               (push (list id (pb:workflow-state-fence (workflow::draft-state draft)) session)
                     (world-claims world))))))))

(defun report-one (world)
  "Somebody reports what he was given at some time: for the first time, again, or too late."
  (let ((claim (any world (world-claims world))))
    (when claim
      (destructuring-bind (id fence session) claim
        (declare (ignore session))
        (let ((result (string-octets (format nil "~A by ~D" id fence))))
          (case (random 10 (world-random world))
            (0 (act world id (lambda (draft) (workflow::report-failure draft fence "no" nil))))
            (1 (act world id (lambda (draft) (workflow::give-back draft fence))))
            ;; whatever was answered well is to be there in the end
            (t (act world id
                    (lambda (draft)
                      (workflow::report-result
                       draft fence result
                       (if (zerop (mod fence 16)) (workflow::steps-of '((:task "a" :attempts 1000)))
                           '())))
                    (lambda (draft)
                      (when (and draft (/= fence (pb:workflow-state-fence
                                                  (workflow::draft-old draft))))
                        (trouble world "~A takes ~D, though the claim is over" id fence))
                      (pushnew (list* id fence result) (world-acknowledged world)
                               :test #'equalp))
                    ;; and is answered alike again
                    (lambda ()
                      (when (member (list* id fence result) (world-acknowledged world)
                                    :test #'equalp)
                        (trouble world "~A refuses ~D, which it had taken" id fence)))))))))))

(defun end-one-session (world)
  (let ((session (any world (world-sessions world))))
    (when session
      (setf (world-sessions world) (remove session (world-sessions world) :test #'string=))
      (lose-claims world session))))

(defun lose-claims (world session)
  (dolist (key (loop with prefix = (format nil "claims/~A/" session)
                     for key being the hash-keys of (world-store world)
                     when (eql 0 (search prefix key)) collect key))
    (act world (first (last (uiop:split-string key :separator "/")))
         (lambda (draft) (workflow::lose-claim draft session nil)))))

(defun open-one-session (world)
  (push (format nil "s~D" (incf (world-next-session world))) (world-sessions world)))

(defun do-one-thing (world ids)
  (let ((id (any world ids)))
    (case (random 20 (world-random world))
      ((0 1 2 3 4 5) (claim-one-task world id))
      ((6 7 8 9 10) (report-one world))
      ((11 12) (act world id #'workflow::note-time))
      ((13 14) (incf (world-now world) (random 2000 (world-random world))))
      (15 (let ((key (format nil "signal/~D" (random 1000000000 (world-random world)))))
            (act world id (lambda (draft)
                            (workflow::note-signal draft (any world '("x" "y")) key 0)))))
      (16 (open-one-session world))
      (17 (when (chance-p world 50) (end-one-session world)))
      (18 (when (chance-p world 3)
            (act world id (lambda (draft) (workflow::cancel-state draft "enough")))))
      (19 (when (chance-p world 20)       ; somebody sets the clock
            (setf (world-now world)
                  (max 1000 (+ (world-now world)
                               (- (random 200000 (world-random world)) 100000)))))))))

(defun settle (world ids)
  "All goes well from now on: everything that can end does."
  (dolist (session (copy-list (world-sessions world)))
    (setf (world-sessions world) (remove session (world-sessions world) :test #'string=)))
  (setf (world-readings world) '())
  (loop for key in (loop for key being the hash-keys of (world-store world)
                         when (eql 0 (search "claims/" key)) collect key)
        for (nil session) = (uiop:split-string key :separator "/")
        do (lose-claims world session))
  (open-one-session world)
  (loop repeat 2000
        while (some (lambda (id) (workflow::running-p (stored-state world id))) ids)
        do (incf (world-now world) 1000)
           (dolist (id ids)
             (setf (world-readings world) '())
             (act world id #'workflow::note-time)
             (dolist (name '("x" "y"))
               (let ((step (workflow::state-step (stored-state world id)))
                     (key (format nil "signal/~D" (random 1000000000 (world-random world)))))
                 (when (and step (eq :listening (pb:step-state-status step)))
                   (act world id (lambda (draft) (workflow::note-signal draft name key 0))))))
             (setf (world-claims world) '())
             (claim-one-task world id)
             (loop while (world-claims world)
                   do (report-one world)
                      (let ((step (workflow::state-step (stored-state world id))))
                        (unless (and step (eq :claimed (pb:step-state-status step))) (return)))))))

(defun check-end (world ids)
  "Each workflow has ended, and has what was acknowledged, once."
  (dolist (id ids)
    (let* ((state (stored-state world id))
           (changes (stored-history world id))
           (events (loop for change in changes append (coerce (pb:change-events change) 'list))))
      (unless (equal (mapcar #'pb:change-number changes)
                     (loop for number from 1 to (pb:workflow-state-version state) collect number))
        (trouble world "~A has the changes ~S" id (mapcar #'pb:change-number changes)))
      (when (workflow::running-p state) (trouble world "~A has not ended" id))
      (let ((keys (remove "" (map 'list #'pb:step-state-result-key (pb:workflow-state-steps state))
                          :test #'string=)))
        (unless (= (length keys) (length (remove-duplicates keys :test #'string=)))
          (trouble world "~A: two steps have the same result or signal" id)))
      (loop for (other fence . result) in (world-acknowledged world)
            when (string= id other)
              do (let* ((done (remove-if-not (lambda (event)
                                               (and (eq :step-done (pb:event-kind event))
                                                    (= fence (pb:event-fence event))))
                                             events))
                        (step (and done
                                   (find (pb:event-step (first done))
                                         (pb:workflow-state-steps state)
                                         :key #'pb:step-state-number))))
                   (unless (and (= 1 (length done))
                                (equalp result
                                        (stored-payload world state
                                                        (pb:step-state-result-key step))))
                     (trouble world "~A: the result of ~D is there ~D times" id fence
                              (length done)))))
      (loop for step across (pb:workflow-state-steps state)
            for number = (pb:step-state-number step)
            for done = (count-if (lambda (event)
                                   (and (eq :step-done (pb:event-kind event))
                                        (= number (pb:event-step event))))
                                 events)
            unless (= done (if (eq :done (pb:step-state-status step)) 1 0))
              do (trouble world "~A: the step ~D is done ~D times" id number done)))))

(defun run-schedule (seed &key (things 300))
  "Run a schedule. Return what did not hold, or nil."
  (let* ((world (make-world :random (sb-ext:seed-random-state seed)))
         (ids (loop for i below 3 collect (format nil "w~D" i))))
    (dolist (id ids) (start-one world id))
    (open-one-session world)
    (loop repeat things
          until (world-trouble world)
          do (do-one-thing world ids))
    (unless (world-trouble world) (settle world ids))
    (unless (world-trouble world) (check-end world ids))
    (values (world-trouble world) world)))

(test (schedules :suite :clgrpc.workflow.seeds)
  "Whatever comes in whatever order, each acknowledged result is there once, and all workflows
end."
  (let ((first (random 1000000000 (make-random-state t))) (completed 0) (taken 0)
        (count (support:at-length 200 1000)))
    (loop for seed from first below (+ first count)
          do (multiple-value-bind (trouble world) (run-schedule seed)
               (when trouble
                 (fail "seed ~D: ~A" seed trouble)
                 (return))
               (incf taken (length (world-acknowledged world)))
               (loop for i below 3
                     when (eq :completed (pb:workflow-state-status
                                          (stored-state world (format nil "w~D" i))))
                       do (incf completed))))
    ;; the schedules do something
    (is (< (* 3/2 count) completed) "~D of ~D workflows completed" completed (* 3 count))
    (is (< (* 5/2 count) taken) "~D results" taken)))
