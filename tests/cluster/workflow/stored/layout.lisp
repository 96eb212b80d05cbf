;;;; How states are in the store: what is apart comes together again, and does not change there.

(in-package #:clgrpc.tests.workflow)

(defun apart-and-together (state)
  "STATE, after it was in a store."
  (let ((chunks (sort (loop for (verb key octets) in (workflow::chunk-operations "" nil state)
                            collect (progn (is (eq :put verb)) (cons key octets)))
                      #'string< :key #'car)))
    (workflow::join-state
     (protobuf:parse-message 'pb:workflow-state
                             (protobuf:serialize (workflow::state-head state)))
     (loop for (nil . octets) in chunks
           collect (protobuf:parse-message 'pb:stored-steps octets)))))

(defun do-a-step (state text now)
  "Do the task that STATE is at. Return the operations that this is in the store."
  (let ((fence (1+ (pb:workflow-state-fence state))))
    (setf state (workflow::draft-state
                 (decided state now (lambda (draft) (workflow::claim-step draft "s" '("a"))))))
    (let ((draft (decided state now (lambda (draft)
                                      (workflow::report-result draft fence (string-octets text)
                                                               '())))))
      (values (workflow::draft-state draft) (workflow::draft-operations "" draft)))))

(test states-come-apart-and-together
  "At each of its steps a state is in the store as it is; the head has a bounded part of the steps."
  (let ((state (workflow::draft-state
                (begun (loop for i below 100
                             collect (if (zerop (mod i 7))
                                         `(:task "a" :input ,(format nil "own ~D" i))
                                         "a"))))))
    (loop for i below 100
          do (is (<= (length (pb:workflow-state-steps (workflow::state-head state))) 49))
             (let ((joined (apart-and-together state)))
               (is (protobuf:message= (workflow::told-state state) (workflow::told-state joined)))
               (is (= (length (pb:workflow-state-payloads state))
                      (length (pb:workflow-state-payloads joined)))))
             ;; what the next task needs is in the head
             (is-true (workflow::small-payload (workflow::state-head state)
                                               (workflow::input-key state)))
             (setf state (do-a-step state (format nil "result ~D" i) i)))
    (is (eq :completed (pb:workflow-state-status state)))
    (is (protobuf:message= (workflow::told-state state)
                           (workflow::told-state (apart-and-together state))))))

(test a-change-costs-what-it-changes
  "Of 256 steps or of 16, each change puts about as many octets."
  (flet ((octets-put (steps)
           (let ((state (workflow::draft-state (begun (loop repeat steps collect "a")))) (sum 0))
             (loop repeat steps
                   do (multiple-value-bind (now operations) (do-a-step state "done" 1)
                        (setf state now)
                        (incf sum (workflow::transaction-octets operations))))
             (floor sum steps))))
    (let ((few (octets-put 16)) (many (octets-put 256)))
      (is (< many (* 2 few)) "~D octets and ~D" few many)
      (is (< many 2500) "~D octets" many))))

(test the-same-small-payload-is-kept-once
  (let ((state (workflow::draft-state (begun '("a" "a" "a")))))
    (dotimes (i 3) (setf state (do-a-step state "in" 1)))
    (is (equal '("input") (map 'list #'pb:payload-key (pb:workflow-state-payloads state))))
    (is (equal '("input" "input" "input")
               (map 'list #'pb:step-state-result-key (pb:workflow-state-steps state))))
    (is (string= "input" (workflow::result-key state)))
    (is (string= "" (workflow::result-key (workflow::draft-state (begun '("a"))))))))

(test histories-are-whole-however-long
  "What has a key of its own by now and what has not, from any number on."
  (with-memory-node (node)
    (start-workflow node "w" (loop repeat 60 collect '(:signal "x")))
    (dotimes (i 50) (signal-workflow node "w" "x" "payload"))
    (is (= 3 (etcd:count-entries (workflow::node-etcd node)
                                 :prefix (workflow::node-key node "history/w/"))))
    (loop for after from 0 to 51
          do (let ((numbers '()) (revisions '()))
               (workflow::fetch-history node "w" :after after
                                                 :function (lambda (change)
                                                   (push (pb:change-number change) numbers)
                                                   (push (pb:change-revision change) revisions)))
               (is (equal (loop for number from 51 above after collect number) numbers))
               (is (equal revisions (remove-duplicates (sort (copy-list revisions) #'>))))))
    (delete-workflow node "w" :cancel t)
    (is (zerop (etcd:count-entries (workflow::node-etcd node)
                                   :prefix (workflow::node-key node "history/"))))))
