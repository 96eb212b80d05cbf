;;;; Workflows from a seed: nodes, workers and a user, found by discovery, on a store that stops, is
;;;; killed or is cut off, and keeps its data; all of them stop, are killed or are cut off. What is
;;;; checked:
;;;;
;;;; - Each workflow that was acknowledged completes, with the result of its steps in their order,
;;;;   each counted once; also those that start children and join them, or begin again.
;;;; - A schedule starts one workflow at each of its times, and passes over none.
;;;; - A watch of all workflows tells each change of each once, in order.
;;;; - Nothing is logged as an error, no task ends by one, and nothing is left in the end.

(in-package #:clgrpc.tests.simulation)

(defstruct (shop (:include lab) (:copier nil))
  "All that a seed says."
  (nodes '())                           ; hosts
  (workers '())                         ; hosts
  (user nil)                            ; a host
  (channel nil)                         ; the user's, to the nodes
  (wanted 0)                            ; how many workflows are to be started
  (started 0)                           ; how many were, which was acknowledged
  (completed 0)                         ; how many have, as far as a watch tells
  (told (make-hash-table :test 'equal)) ; from id to the number of the last change that was told
  (wrong nil)                           ; a text: what was told wrong
  (watcher nil))

(defparameter *nodes* "etcd://store:2379/shop" "Where channels find the nodes.")

;;; Hosts

(defun boot-shop-node (name)
  "Serve workflows at the host NAME."
  (let* ((etcd (etcd:make-etcd "store:2379" :timeout 2))
         (service (workflow:make-workflow-service etcd))
         (server (grpc:start-server service :listen (format nil "~A:50051" name))))
    (discovery:register server "shop" :etcd etcd :lease-seconds 3)
    (lambda (drain)
      (unless drain (etcd:close-etcd etcd))
      (grpc:stop-server server :drain (or drain 0))
      (workflow:close-workflow-service service)
      (etcd:close-etcd etcd))))

(defun do-step (task)
  "The result of a step: what it was given, and its kind."
  (sim:wait-for 1/10)
  (format nil "~A~A" (workflow:task-text task) (workflow:task-kind task)))

(defun join-steps (task)
  "The result of a step that children come before: what they have brought."
  (format nil "~{~A~^+~}" (mapcar #'octets-string (workflow:task-results task))))

(defun begin-again (task)
  "What a step returns for its workflow to begin again, twice."
  (let ((text (workflow:task-text task)))
    (workflow:continue-as-new (if (< (length text) 2) '("again") '("a" "b"))
                              :input (format nil "~Ax" text))))

(defun boot-worker (chance)
  "Do steps."
  (let* ((channel (grpc:make-channel *nodes* :balance :round-robin))
         (worker (workflow:start-worker channel :kinds '(("a" . do-step) ("b" . do-step)
                                                       ("join" . join-steps)
                                                       ("again" . begin-again))
                                               :concurrency (sim:between chance 1 3)
                                               :session-seconds 3)))
    (lambda (drain)
      (workflow:stop-worker worker :drain (or drain 0))
      (grpc:close-channel channel))))

(defun note-told (shop change)
  "CHANGE was told by the watch of all workflows."
  (let* ((id (clgrpc.workflow.v1:change-id change))
         (number (clgrpc.workflow.v1:change-number change))
         (before (gethash id (shop-told shop) 0)))
    (unless (or (string= "" id) (= number (1+ before)))
      (setf (shop-wrong shop) (format nil "~A's change ~D follows ~D" id number before)))
    (setf (gethash id (shop-told shop)) number)))

(defun shop-id (number)
  (format nil "w~D" number))

(defun order (number)
  "The steps of the workflow NUMBER, and its result."
  (ecase (mod number 3)
    (0 (values '("a" "b" "a") "xaba"))
    (1 (values '("a" (:parallel ("b") ("a" "b")) "join") "xab+xaab"))
    (2 (values '("again") "xxxab"))))

(defmacro until-acknowledged (&body body)
  "Evaluate BODY, which asks for something that may be asked for twice, until that is answered."
  `(loop
     (handler-case (return (progn ,@body))
       (workflow:workflow-error () (sim:wait-for 1/4)))))

(defun start-orders (shop)
  "Create a schedule, and start the workflows of SHOP, one after the other, each until that is
acknowledged."
  (until-acknowledged
    (workflow:create-schedule (shop-channel shop) "tick" '("a") :every 2 :overlap :allow
                                                                :catch-up 100 :call-timeout 3))
  (loop while (< (shop-started shop) (shop-wanted shop))
        do (until-acknowledged
             (workflow:start-workflow (shop-channel shop) (shop-id (shop-started shop))
                                      (order (shop-started shop)) :input "x" :call-timeout 3))
           (incf (shop-started shop))
           (sim:wait-for (/ (sim:between (lab-chance shop) 1 1500) 1000))))

;;; Faults

(defun choose-shop-fault (shop)
  "Let something go wrong now."
  (let* ((chance (lab-chance shop)) (store (lab-store shop))
         (node (sim:pick chance (shop-nodes shop))) (worker (sim:pick chance (shop-workers shop)))
         (down (sim:pick chance '(1/100 1 5))))
    (ecase (sim:pick chance '(:store :store :cut-off :apart :node-killed :node-stopped
                              :worker-killed :worker-stopped))
      (:store (choose-store-fault shop (shop-nodes shop) :kinds '(:killed :stopped :cut :early)))
      (:cut-off (part-for-a-while shop store node))
      (:apart (part-for-a-while shop worker node))
      (:node-killed (sim:restart-host node :down down))
      (:node-stopped (sim:restart-host node :down down :drain 2))
      (:worker-killed (sim:restart-host worker :down down))
      (:worker-stopped (sim:restart-host worker :down down :drain 2)))))

;;; What is checked

(defun outcome-of (shop number)
  "The status of a workflow, and its result."
  (handler-case
      (let ((reply (workflow:workflow-state (shop-channel shop) (shop-id number) :result t
                                                                                 :timeout 3)))
        (values (clgrpc.workflow.v1:workflow-state-status
                 (clgrpc.workflow.v1:get-workflow-state-reply-state reply))
                (octets-string (clgrpc.workflow.v1:get-workflow-state-reply-result reply))
                (clgrpc.workflow.v1:workflow-state-version
                 (clgrpc.workflow.v1:get-workflow-state-reply-state reply))))
    (workflow:workflow-error () :unknown)))

(defun check-schedule (shop)
  "See that the schedule has started a workflow at each of its times."
  (let ((channel (shop-channel shop)) (ids '()))
    (until-acknowledged (workflow:pause-schedule channel "tick" :timeout 3))
    (let* ((state (until-acknowledged (workflow:schedule-state channel "tick" :timeout 3)))
           (started (clgrpc.workflow.v1:schedule-state-started state))
           (first (floor (clgrpc.workflow.v1:schedule-state-created-unix-ms state) 2000))
           (last (floor (clgrpc.workflow.v1:schedule-state-last-unix-ms state) 2000)))
      (until-acknowledged
        (setf ids '())
        (workflow:map-workflows (lambda (summary)
                                  (let ((id (clgrpc.workflow.v1:workflow-summary-id summary)))
                                    (when (search "tick." id) (pushnew id ids :test #'string=))))
                                channel :timeout 3))
      (unless (= started (length ids) (- last first))
        (complain "~D times have passed, ~D workflows were started, ~D are there" (- last first)
                  started (length ids))))))

(defun check-orders (shop)
  "See that all workflows complete, as they should, and that all of that is told."
  (unless (sim:wait-until (lambda () (= (shop-started shop) (shop-wanted shop))) :timeout 60)
    (complain "only ~D workflows could be started" (shop-started shop)))
  (dotimes (number (shop-wanted shop))
    (loop repeat 120
          until (member (outcome-of shop number) '(:completed :failed))
          do (sim:wait-for 1))
    (multiple-value-bind (status result version) (outcome-of shop number)
      (unless (and (eq :completed status) (string= (nth-value 1 (order number)) result))
        (complain "~A is ~(~A~) with ~S" (shop-id number) status result))
      (unless (sim:wait-until (lambda ()
                                (eql version (gethash (shop-id number) (shop-told shop))))
                              :timeout 60)
        (complain "of the ~D changes of ~A, ~D were told" version (shop-id number)
                  (gethash (shop-id number) (shop-told shop))))))
  (when (shop-wrong shop) (complain "~A" (shop-wrong shop))))

;;; Seeds

(defun prepare-shop (shop)
  "Add the hosts of SHOP, and have the user begin."
  (let ((chance (lab-chance shop)))
    (add-store shop)
    (setf (shop-nodes shop) (loop for name in '("n1" "n2" "n3")
                                  repeat (sim:between chance 1 3)
                                  collect (let ((name name))
                                            (sim:add-host name (lambda () (boot-shop-node name)))))
          (shop-workers shop) (loop for name in '("k1" "k2")
                                    repeat (sim:between chance 1 2)
                                    collect (sim:add-host name (lambda () (boot-worker chance))))
          (shop-wanted shop) (sim:between chance 1 8)
          (shop-user shop) (sim:add-host "user"))
    (sim:on-host ((shop-user shop))
      (setf (shop-channel shop) (grpc:make-channel *nodes* :balance :round-robin)
            (shop-watcher shop) (workflow:watch-workflow (lambda (change) (note-told shop change))
                                                        (shop-channel shop) nil :timeout 60))
      (sim:start-task "orders" (lambda () (start-orders shop)) :host (shop-user shop)))))

(defun run-workflows (simulation)
  "Run what the seed of SIMULATION says and check it: signal WRONG-CLUSTER or SIM:SIMULATION-HANG."
  (let ((shop (make-shop :simulation simulation
                         :chance (sim:make-chance (- (sim:simulation-seed simulation))))))
    (prepare-shop shop)
    (loop repeat (sim:between (lab-chance shop) 1 6)
          do (sim:wait-for (/ (sim:between (lab-chance shop) 1 4000) 1000))
             (choose-shop-fault shop))
    (sim:wait-for 25)
    (sim:on-host ((shop-user shop))
      (check-orders shop)
      (check-schedule shop)
      (workflow:end-watching (shop-watcher shop))
      (grpc:close-channel (shop-channel shop)))
    (dolist (host (append (shop-workers shop) (shop-nodes shop))) (sim:stop-host host :drain 1))
    (finish-lab shop)))

(test (seeds-of-workflows :suite :clgrpc.simulation.seeds)
  "Shops, each from a seed; scripts/simulate --workflow runs more."
  (let ((count (support:at-length 15 60)))
    (is (= count (apply #'sim:run-seeds 'run-workflows :count count *options*)))))

(test seeds-say-everything
  "What happens to a cluster, and to workflows, depends on the seed alone: their traces are the same
when they run again."
  (dolist (scenario '(run-cluster run-workflows))
    (flet ((digests ()
             (let ((digests '()))
               (apply #'sim:run-seeds scenario
                      :count 3
                      :on-seed (fn (_seed simulation)
                                 (push (sim:simulation-digest simulation) digests))
                      *options*)
               digests)))
      (is (equal (digests) (digests))))))
