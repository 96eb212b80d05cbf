;;;; A group from a seed: three or five nodes and their clients, faults, and then quiet, in which
;;;; the group must come to work again, with the same store everywhere.

(in-package #:clgrpc.tests.raft-example)

(define-condition wrong-group (error)
  ((text :initarg :text :reader wrong-group-text)) ; what is not as it should be
  (:report (lambda (condition stream) (write-string (wrong-group-text condition) stream))))

(defparameter *options* '(:latency (1/10000 4/1000) :losses 5)
  "What the simulations of groups are made with.")

(defstruct (site (:copier nil))
  "A host that runs a node."
  (name "" :type string)                ; of both
  (host nil)                            ; its host
  (platter nil)                         ; its disk
  (handle nil)                          ; the disk as its process has it
  (node nil)                            ; of its process
  (rate 10)                             ; tenths of a second that its clock makes of one
  (offset-ns 0))                        ; what its clock is ahead

(defstruct (group (:copier nil))
  "All that a seed says."
  (chance nil)
  (witness (make-witness))              ; of the invariants
  (sites '())
  (clients '())                         ; hosts
  (home nil)                            ; the host of the body
  (most-entries 0)                      ; that a log keeps
  (request-entries 0)                   ; in a request
  (timing '())                          ; of its nodes
  (history '())                         ; (key . operation), the last first
  (stopping nil)                        ; clients are to end
  (values 0))                           ; how many have been written

(defmethod print-object ((site site) stream)
  (print-unreadable-object (site stream :type t)
    (format stream "~A" (site-node site))))

(defun addresses (group)
  (loop for site in (group-sites group)
        collect (cons (site-name site) (format nil "~A:7000" (site-name site)))))

;;; Nodes

(defun site-time (site)
  "The time by the clock of SITE, which is not that of the others."
  (+ (floor (* (site-rate site) (sim:simulation-now sim:*simulation*)) 10)
     (site-offset-ns site)))

(defun change-clock (site rate ahead-ns)
  "The clock of SITE makes RATE tenths of a second of one from now on, and goes ahead by AHEAD-NS."
  (let ((time (site-time site)))
    (setf (site-rate site) rate)
    (incf (site-offset-ns site) (+ ahead-ns (- time (site-time site))))))

(defun check-ending (group site)
  "See that the node of SITE was ended by nothing but its disk, or in order."
  (let* ((node (site-node site)) (ended (and node (example::node-ended node))))
    (unless (or (member ended '(nil :stopped)) (typep ended 'disk-gone))
      (complain (group-witness group) "~A has broken: ~A" (site-name site) ended))))

(defun boot-site (group site)
  (check-ending group site)
  (let* ((handle (make-instance 'handle
                                :platter (site-platter site)
                                :crash (lambda ()
                                         (sim:restart-host
                                          (site-host site)
                                          :down (sim:pick (group-chance group)
                                                          '(1/1000 1/100 1/2))))))
         (node (example:make-node
                (site-name site) (mapcar #'site-name (group-sites group)) handle
                :most-entries (group-most-entries group)
                :request-entries (group-request-entries group) :timing (group-timing group)
                :clock (lambda () (site-time site))
                :observer (lambda (node event &rest arguments)
                            (watch-node (group-witness group) node event arguments))))
         (server (grpc:start-server (example:node-services node)
                                    :listen (format nil "~A:7000" (site-name site)))))
    (setf (site-handle site) handle
          (site-node site) node)
    (example:start-node node (addresses group))
    (list (lambda (drain)
            (unless drain (crash-platter handle))
            (example:stop-node node))
          server)))

;;; Clients

(defparameter *keys* '("x" "y" "z"))

(defparameter *kinds* '(:read :read :read :put :append :append :compare-and-set :delete)
  "What clients do, as often as it stands here.")

(defun do-operation (group client key kind)
  "Have CLIENT do KIND to KEY; the operation, or nil if it was a read without an answer."
  (let ((operation (make-operation :kind kind :called (sim:now)
                                   :value (if (member kind '(:read :delete))
                                              ""
                                              (format nil "~D." (incf (group-values group)))))))
    (handler-case
        (if (eq :read kind)
            (setf (operation-seen operation) (example:fetch client key :timeout 2))
            (multiple-value-bind (value changed)
                (example:change client kind key (operation-value operation) :timeout 2)
              (setf (operation-seen operation) value
                    (operation-changed operation) (and changed t))))
      (example:gave-up () (return-from do-operation (if (eq :read kind) nil operation))))
    (setf (operation-returned operation) (sim:now))
    operation))

(defun run-client (group kinds)
  "Be a client of GROUP that does KINDS, until GROUP is stopping."
  (let* ((chance (group-chance group))
         (client (example:make-client (addresses group)
                                      :attempt-seconds (sim:pick chance '(1/20 1/20 1/2)))))
    (loop until (group-stopping group)
          do (let* ((key (sim:pick chance *keys*))
                    (operation (do-operation group client key (sim:pick chance kinds))))
               (when operation (push (cons key operation) (group-history group)))
               ;; a session with a command of unknown fate is not used again
               (unless (and operation (operation-returned operation))
                 (setf (example::client-session client) nil))
               (sim:wait-for (/ (sim:between chance 1 (sim:pick chance '(5 50 300))) 1000))))
    (example:close-client client)))

(defun add-client (group name kinds)
  (let ((done nil))
    (push (lambda () done)
          (group-clients group))
    (sim:add-host name (lambda ()
                         (sim:start-task name (lambda ()
                                                (run-client group kinds)
                                                (setf done t)))
                         '()))))

;;; Faults

(defun part-for-a-while (group host others)
  "Let nothing through between HOST and OTHERS for at most two seconds."
  (dolist (other others)
    (let ((other other))
      (sim:partition host other)
      (sim:at (/ (sim:between (group-chance group) 10 2000) 1000)
              (lambda () (sim:heal host other))))))

(defun find-leader (group)
  "A site whose node leads, or believes so; or nil."
  (find-if (lambda (site)
             (and (sim:host-up (site-host site))
                  (eq :leader (example:node-role (site-node site)))))
           (group-sites group)))

(defun hand-over (group)
  "Have a leader, if there is one, give its place to another."
  (let ((leader (find-leader group))
        (next (sim:pick (group-chance group) (group-sites group))))
    (when (and leader (not (eq leader next)))
      (sim:start-task "hand over"
                      (lambda ()
                        (handler-case (example:hand-over (site-node leader) (site-name next))
                          (error () nil)))
                      :host (site-host leader)))))

(defun choose-fault (group)
  "Let something go wrong now."
  (let* ((chance (group-chance group))
         (site (or (and (sim:chance-p chance 2) (find-leader group))
                   (sim:pick chance (group-sites group))))
         (host (site-host site))
         (others (remove host (mapcar #'site-host (group-sites group)))))
    (ecase (sim:pick chance '(:killed :killed :killed :all-killed :stopped :cut-off :cut-off :apart
                              :one-way :cut :slow :clock :hand-over))
      (:killed (sim:restart-host host :down (sim:pick chance '(1/100 1/2 2))))
      (:all-killed (dolist (site (group-sites group))
                     (sim:restart-host (site-host site) :down (sim:pick chance '(1/100 1/2)))))
      (:stopped (sim:restart-host host :down 1/2 :drain 1/2))
      (:cut-off (part-for-a-while group host others))
      (:apart (part-for-a-while group host (list (sim:pick chance others))))
      (:one-way (part-for-a-while group host (rest others)))
      (:cut (dolist (other others) (sim:cut host other)))
      (:slow (sim:slow host (sim:between chance 2000 20000))
       (sim:at 1 (lambda () (sim:slow host nil))))
      (:clock (change-clock site (sim:between chance 6 15) (sim:between chance 0 400000000)))
      (:hand-over (hand-over group)))))

;;; What is checked

(defun fail-group (control &rest arguments)
  (error 'wrong-group :text (apply #'format nil control arguments)))

(defun check-witness (group)
  (let ((complaint (witness-complaint (group-witness group))))
    (when complaint (fail-group "~A" complaint))))

(defun pass-time (group seconds)
  "Let SECONDS pass, unless an invariant is broken before: fail then."
  (sim:wait-until (lambda () (witness-complaint (group-witness group))) :timeout seconds)
  (check-witness group))

(defun agree-p (group)
  "True if all nodes have the same, and one of them leads."
  (let ((nodes (mapcar #'site-node (group-sites group))))
    (and (every (lambda (site) (sim:host-up (site-host site))) (group-sites group))
         (= 1 (count :leader nodes :key #'example:node-role))
         (apply #'= (mapcar #'example:node-commit nodes))
         (apply #'= (mapcar #'example::node-applied nodes))
         (apply #'= (mapcar (lambda (node) (example:last-index (example:node-log node))) nodes)))))

(defun check-history (group)
  (dolist (key *keys*)
    (let ((operations (loop for (name . operation) in (group-history group)
                            when (string= key name) collect operation)))
      (unless (linearizable-p operations)
        (fail-group "What clients saw of ~A did not happen in any order:~%~{~S~%~}" key
                    (sort (copy-list operations) #'< :key #'operation-called))))))

(defun check-quiet (group)
  "See that the group works, now that nothing goes wrong."
  (dolist (site (group-sites group))
    (change-clock site 10 0)
    (setf (platter-rarity (site-platter site)) 0))
  (setf (group-stopping group) t)
  (unless (sim:wait-until (lambda () (or (witness-complaint (group-witness group))
                                         (and (every #'funcall (group-clients group))
                                              (agree-p group))))
                          :timeout 30)
    (fail-group "The group does not come to rest: ~{~S~^ ~}" (group-sites group)))
  (check-witness group)
  (let ((client (example:make-client (addresses group))))
    (example:change client :put "end" "well" :timeout 10)
    (unless (string= "well" (example:fetch client "end" :timeout 10))
      (fail-group "The group does not store"))
    (example:close-client client))
  (check-history group))

;;; Seeds

(defun prepare (group)
  (let ((chance (group-chance group)))
    (setf (group-most-entries group) (sim:pick chance '(4 10 30 1000))
          (group-request-entries group) (sim:pick chance '(1 2 100))
          ;; one that abdicates late must answer nothing old meanwhile
          (group-timing group) (list* :abdication (sim:pick chance '(3/10 2)) example::*timing*)
          (group-sites group)
          (loop for name in (subseq '("a" "b" "c" "d" "e") 0 (sim:pick chance '(3 3 3 5)))
                collect (make-site :name name
                                   :rate (sim:between chance 8 12)
                                   :platter (make-platter
                                             :chance chance
                                             :rarity (sim:pick chance '(0 30 100 400))))))
    (dolist (site (group-sites group))
      (let ((site site))
        (setf (site-host site) (sim:add-host (site-name site) (lambda () '()))
              (sim::host-boot (site-host site)) (lambda () (boot-site group site)))
        (sim:restart-host (site-host site) :down 1/1000)))
    (add-client group "client-1" *kinds*)
    (add-client group "client-2" *kinds*)
    ;; one that stays with a leader that answers it
    (add-client group "reader" '(:read))))

(defun run-group (simulation)
  "Run what the seed of SIMULATION says and check it: signal WRONG-GROUP or SIM:SIMULATION-HANG."
  (let ((group (make-group :chance (sim:make-chance (- (sim:simulation-seed simulation))))))
    (prepare group)
    (pass-time group 1/2)
    (loop repeat (sim:between (group-chance group) 2 8)
          do (pass-time group (/ (sim:between (group-chance group) 1 900) 1000))
             (choose-fault group))
    (pass-time group 2)
    (check-quiet group)
    (dolist (site (group-sites group))
      (sim:stop-host (site-host site) :drain 1)
      (check-ending group site))
    (check-witness group)))

(test (seeds-of-groups :suite :clgrpc.raft-example.seeds)
  "Groups, each from a seed; scripts/simulate --raft runs more."
  (let ((count (support:at-length 30 120)))
    (is (= count (apply #'sim:run-seeds 'run-group :count count *options*)))))
