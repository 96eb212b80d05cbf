;;;; A cluster from a seed: a store that stops, is killed, loses its data or is cut off; nodes that
;;;; stop, are killed or are cut off; a channel to the cluster's name. What is checked:
;;;;
;;;; - Once faults are over for long enough, each node that runs is a member, all of them and the
;;;;   store agree on who is, and the channel's calls succeed.
;;;; - The generations of a name only grow while the store has its data.
;;;; - The changes that a node was told, one after the other, make the members that it knows.
;;;; - Whoever is a member serves; who has left or was killed is none when its lease is over.
;;;; - Nothing is logged as an error, no task ends by one, and nothing is left in the end.

(in-package #:clgrpc.tests.simulation)

(defconstant +quiet-seconds+ 40 "After so long without faults all is well again.")

(defstruct (site (:copier nil))
  "A host that runs a node."
  (name "" :type string)                ; of both
  (host nil)                            ; its host
  (etcd nil)                            ; the client of its node, while that runs or starts
  (node nil)                            ; or nil
  (lease-seconds 2)                     ; of the node
  (address nil)                         ; that it tells others, if not where it listens
  (told (make-hash-table :test 'equal)) ; from a name to the member that changes have made
  (joined '()))                         ; generations that it has had, the last one first

(defstruct (fleet (:include lab) (:copier nil))
  "All that a seed says."
  (sites '())
  (client nil)                          ; the host of the channel
  (channel nil)                         ; to the cluster's name
  (answers 0))                          ; how many of its calls have succeeded

(defmethod print-object ((site site) stream)
  (print-unreadable-object (site stream :type t)
    (format stream "~A ~A" (site-name site) (site-node site))))

;;; Hosts

(defun forget-generations (fleet)
  "The data of the store of FLEET are lost, and so are the generations that were given."
  (dolist (site (fleet-sites fleet)) (setf (site-joined site) '())))

(defun note-join (site node)
  "NODE of SITE has become a member."
  (let ((generation (cluster:node-generation node)))
    (sim:note "~A is a member, generation ~D" (site-name site) generation)
    (when (and (site-joined site) (<= generation (first (site-joined site))))
      (complain "~A joins as ~D after ~S" (site-name site) generation (site-joined site)))
    (push generation (site-joined site))))

(defun note-changes (site changes)
  "The node of SITE was told CHANGES."
  (dolist (change changes)
    (let* ((member (cluster:change-member change)) (name (cluster:member-name member))
           (known (gethash name (site-told site))))
      (flet ((wrong () (sim:note "~A was told ~S where it knows ~S" (site-name site) change known)
               (setf (gethash :wrong (site-told site)) t)))
        (ecase (cluster:change-kind change)
          (:joined (when known (wrong))
           (setf (gethash name (site-told site)) member))
          (:updated (unless known (wrong))
           (setf (gethash name (site-told site)) member))
          ((:left :lost) (unless known (wrong))
           (remhash name (site-told site))))))))

(defun start-site (site etcd)
  "Start the node of SITE, whose client is ETCD, once its store can be reached, unless it is to end
before."
  (loop while (eq etcd (site-etcd site))
        do (clrhash (site-told site))
           (handler-case
               (return (cluster:start-node
                        (site-name site)
                        :store etcd :cluster "c" :listen (format nil "~A:50051" (site-name site))
                        :lease-seconds (site-lease-seconds site)
                        :address (site-address site)
                        :on-join (lambda (node) (note-join site node))
                        :on-change (lambda (changes) (note-changes site changes))))
             ((or etcd:etcd-error cluster:cluster-error) () (sim:wait-for 1/2)))))

(defun boot-site (site)
  (let* ((etcd (etcd:make-etcd "store:2379" :timeout 2))
         (task (progn
                 (setf (site-etcd site) etcd)
                 (sim:start-task (format nil "start ~A" (site-name site))
                                 (lambda () (setf (site-node site) (start-site site etcd)))))))
    (lambda (drain)
      (setf (site-etcd site) nil)
      (when (null drain) (etcd:close-etcd etcd))
      ;; its server may listen already
      (sim:wait-until (lambda () (sim:task-done-p task)))
      (let ((node (shiftf (site-node site) nil)))
        (when node (cluster:stop-node node :drain (or drain 0))))
      (etcd:close-etcd etcd))))

(defun ask-members (fleet)
  "Ask a node, whichever the channel reaches, and count that it has answered."
  (handler-case
      (progn (clgrpc.cluster.v1.cluster:members
              (fleet-channel fleet) (clgrpc.cluster.v1:make-members-request :stale t) :timeout 2)
             (incf (fleet-answers fleet)))
    (status:rpc-error () nil)))

(defun boot-client (fleet)
  (let ((channel (grpc:make-channel "etcd://store:2379/c" :balance :round-robin)))
    (setf (fleet-channel fleet) channel)
    channel))

;;; Faults

(defun choose-fault (fleet)
  "Let something go wrong now."
  (let* ((chance (lab-chance fleet)) (store (lab-store fleet)) (client (fleet-client fleet))
         (host (site-host (sim:pick chance (fleet-sites fleet)))))
    (ecase (sim:pick chance '(:store :store :store :cut-off :killed :killed :stopped :stopped
                              :apart :cut))
      (:store (choose-store-fault fleet (mapcar #'site-host (fleet-sites fleet))))
      (:cut-off (part-for-a-while fleet store host))
      (:apart (part-for-a-while fleet client host))
      (:cut (sim:cut store host))
      (:killed (sim:restart-host host :down (sim:pick chance '(1/100 1 5))))
      (:stopped (sim:restart-host host :down (sim:pick chance '(1/100 1 5)) :drain 2)))))

;;; What is checked

(defun told-members (site)
  "The members that the changes have made, by name."
  (sort (loop for member being the hash-values of (site-told site) using (hash-key name)
              unless (eq :wrong name) collect member)
        #'string< :key #'cluster:member-name))

(defun trouble-of (fleet)
  "What is not yet as it should be when there are no faults, or nil."
  (let ((names (mapcar #'site-name (fleet-sites fleet))))
    (or (dolist (site (fleet-sites fleet))
          (let ((node (site-node site)))
            (cond ((null node) (return (format nil "~A does not run" (site-name site))))
                  ((not (eq :member (cluster:node-state node)))
                   (return (format nil "~A is ~A" (site-name site) node)))
                  ((not (equal names (mapcar #'cluster:member-name (cluster:node-members node))))
                   (return (format nil "~A knows ~S" (site-name site)
                                   (cluster:node-members node))))
                  ((not (equalp (told-members site) (cluster:node-members node)))
                   (return (format nil "~A was told of ~S and knows ~S" (site-name site)
                                   (told-members site) (cluster:node-members node))))
                  ((not (= (cluster:node-generation node)
                           (cluster:member-generation
                            (cluster:find-member node (site-name site)))))
                   (return (format nil "~A knows itself as another" (site-name site)))))))
        (let ((members (mapcar (lambda (site)
                                 (cluster:node-members (site-node site)))
                               (fleet-sites fleet))))
          (unless (every (lambda (other) (equalp other (first members))) members)
            "they do not agree")))))

(defun check-all (fleet)
  "See that all is well, since there were no faults for long."
  (let ((trouble nil))
    (unless (sim:wait-until (lambda () (null (setf trouble (trouble-of fleet))))
                            :timeout +quiet-seconds+)
      (complain "~A" trouble))
    (dolist (site (fleet-sites fleet))
      (when (gethash :wrong (site-told site)) (complain "~A was told wrong" (site-name site))))
    (sim:on-host ((fleet-client fleet))
      (let ((before (fleet-answers fleet)))
        (loop repeat 20
              until (< before (fleet-answers fleet))
              do (ask-members fleet)
                 (sim:wait-for 1/2))
        (when (= before (fleet-answers fleet)) (complain "the channel reaches no node"))
        (etcd:with-etcd (etcd "store:2379")
          (unless (equalp (cluster:fetch-members etcd "c")
                          (cluster:node-members (site-node (first (fleet-sites fleet)))))
            (complain "the store has other members"))
          (let ((endpoints (discovery:list-endpoints "c" :etcd etcd)))
            (unless (= (length (fleet-sites fleet)) (length endpoints))
              (complain "there are the endpoints ~S" endpoints))))))))

(defun finish-fleet (fleet)
  "End all, and see that nothing is left."
  (sim:stop-host (fleet-client fleet))
  (dolist (site (fleet-sites fleet)) (sim:stop-host (site-host site) :drain 1))
  (let ((store (memory::engine-store (lab-engine fleet))))
    ;; leases of those that were killed
    (unless (zerop (hash-table-count (memory::store-leases store))) (sim:wait-for 10))
    (let ((left (memory::range-items (memory::newest store) (string-octets "c/")
                                     (string-octets "c0"))))
      (when left (complain "~D entries are left" (length left)))))
  (finish-lab fleet))

;;; Seeds

(defun prepare (fleet)
  "Add the hosts of FLEET."
  (let ((chance (lab-chance fleet)))
    (add-store fleet)
    (setf (fleet-sites fleet)
          (loop for name in (subseq '("a" "b" "c" "d") 0 (sim:between chance 2 4))
                collect (make-site :name name :lease-seconds (sim:between chance 2 6)
                                   ;; one that is looked up
                                   :address (and (sim:chance-p chance 3)
                                                 (format nil "~A:50051" name)))))
    (dolist (site (fleet-sites fleet))
      (let ((site site))
        (setf (site-host site) (sim:add-host (site-name site) (lambda () (boot-site site))))))
    (setf (fleet-client fleet) (sim:add-host "client" (lambda () (boot-client fleet))))))

(defun run-cluster (simulation)
  "Run what the seed of SIMULATION says and check it: signal WRONG-CLUSTER or SIM:SIMULATION-HANG."
  (let ((fleet (make-fleet :simulation simulation
                           :chance (sim:make-chance (- (sim:simulation-seed simulation)))
                           :on-loss #'forget-generations)))
    (prepare fleet)
    (loop repeat 2
          do (loop repeat (sim:between (lab-chance fleet) 1 5)
                   do (sim:wait-for (/ (sim:between (lab-chance fleet) 1 6000) 1000))
                      (choose-fault fleet)
                      (sim:on-host ((fleet-client fleet)) (ask-members fleet)))
             ;; the longest that one lasts
             (sim:wait-for 25)
             (check-all fleet))
    (finish-fleet fleet)))

(test (seeds-of-clusters :suite :clgrpc.simulation.seeds)
  "Clusters, each from a seed; scripts/simulate --cluster runs more."
  (let ((count (support:at-length 30 120)))
    (is (= count (apply #'sim:run-seeds 'run-cluster :count count *options*)))))
