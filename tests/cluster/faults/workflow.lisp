;;;; Workflows while nodes, workers, etcd and connections fail. Nodes and workers are processes of a
;;;; saved core, which are killed (SIGKILL) or stopped for longer than their sessions and leases
;;;; last; as a test they are in this image. Each task returns what it was given and a word of its
;;;; own, which it has written to its worker's file before: so the result of a workflow says which
;;;; attempt of each of its steps was recorded, and that each had the recorded result of the step
;;;; before.

(in-package #:clgrpc.tests.faults)

(defconstant +steps+ 5 "Tasks of each workflow; a time follows them.")
(defconstant +node-lease-seconds+ 10 "How long a node stays a member that is not heard of.")
(defconstant +session-seconds+ 10 "How long a worker keeps tasks that is not heard of.")
(defconstant +wrong-seconds+ (* 8 86400)
  "How far a wrong time of day is off: beyond the time limit of a workflow and the retention.")

;;; Nodes and workers

(defun client-of (store)
  "A client of STORE, addresses of etcd or an engine in memory."
  (if (listp store) (etcd:make-etcd store) (memory:connect store)))

;;; Clocks. Those of a process are real ones and what they have jumped: a world's, by which leases
;;; and calls end, and a service's time of day, by which workflows wait.

(sb-ext:defglobal **ahead-ns** (list 0) "How far the clock of this process has jumped.")
(sb-ext:defglobal **days-ahead** (make-hash-table :test 'equal :synchronized t)
  "How many seconds the times of day are ahead, below 0 if they are late, by the names of nodes.")

(defun jumping-world (world)
  "A world as WORLD, the machine, whose clock jumps."
  (loop:make-world :clock (lambda () (+ (car **ahead-ns**) (monotonic-ns)))
                   :make-poller (loop::world-make-poller world)
                   :make-random (loop::world-make-random world)
                   :network (loop::world-network world)))

(defun time-of-day (name)
  "The clock of workflows at the node NAME."
  (lambda ()
    (+ (* base:+ns-per-second+ (gethash name **days-ahead** 0)) (base:real-time-ns))))

(defun follow-jumps (name file)
  "Have the clocks of this process, the part NAME, always be as FILE says."
  (loop
    (with-open-file (stream file :if-does-not-exist nil)
      (let ((seconds (and stream (read stream nil nil)))
            (day-seconds (and stream (read stream nil nil))))
        (when day-seconds
          (setf (car **ahead-ns**) (seconds-ns seconds)
                (gethash name **days-ahead**) day-seconds))))
    (sleep 0.1)))

(defun start-own-node (name store address)
  "Start the member NAME of a cluster, whose state is in STORE, at ADDRESS, which serves workflows.
Return a function that ends it."
  (let* ((etcd (client-of store))
         (service (workflow:make-workflow-service etcd :clock (time-of-day name)))
         (node (cluster:start-node name :store etcd :listen address :services (list service))))
    (lambda ()
      (cluster:stop-node node :drain 0)
      (workflow:close-workflow-service service)
      (etcd:close-etcd etcd))))

(defun doing-work (name out)
  "A function that does a task, and notes on the stream OUT, under the name NAME, that it has."
  (let ((lock (sb-thread:make-mutex)) (count 0) (random (make-random-state t)))
    (lambda (task)
      (let ((word (sb-thread:with-mutex (lock)
                    (let ((word (format nil "~A.~36R.~D" name (sb-posix:getpid) (incf count))))
                      (format out "~A ~A ~A~%" (workflow:task-id task) (workflow:task-name task)
                              word)
                      (finish-output out)
                      word))))
        (sleep (random 0.02 random))
        (format nil "~A ~A:~A" (workflow:task-text task) (workflow:task-name task) word)))))

(defun start-own-worker (name target file)
  "Start a worker that does the tasks of workflows of the nodes at TARGET, and notes in FILE what it
has done. Return a function that ends it."
  (let* ((channel (grpc:make-channel target :balance :round-robin))
         (out (open file :direction :output :if-exists :append :if-does-not-exist :create))
         (worker (workflow:start-worker channel :name name :concurrency 8
                                                :kinds (list (cons "work"
                                                                   (doing-work name out))))))
    (lambda ()
      (workflow:stop-worker worker :drain 0)
      (grpc:close-channel channel)
      (close out))))

(defstruct (part (:copier nil))
  "A node or a worker."
  (name "" :type string)
  (start nil :type list)                ; a function's name and arguments, of those above
  (core nil)                            ; the file of the core in which it is a process, or nil
  (clock "" :type string)               ; the file that says how far its clocks have jumped
  (ahead 0 :type integer)               ; by how many seconds its clock has
  (program nil)                         ; that process
  (ending nil))                         ; of one in this image: the function that ends it

(defun be-part (start clock)
  "Be the process of a part, which STARTs so; CLOCK is the file that says how its clocks jump."
  (setf base:*log-function* nil
        loop:*world* (jumping-world loop:*world*))
  (sb-thread:make-thread #'follow-jumps :name "clocks" :arguments (list (second start) clock))
  (apply (first start) (rest start))
  (format t "listening on ~A~%" (first (last start)))
  (finish-output)
  (loop (sleep 1000)))

(defun end-part (part)
  (when (part-program part) (support:stop-program (shiftf (part-program part) nil)))
  (when (part-ending part) (funcall (shiftf (part-ending part) nil))))

(defun begin-part (part)
  "Start PART; one that is there ends."
  (end-part part)
  (if (part-core part)
      (setf (part-program part)
            (support:start-program
             sb-ext:*runtime-pathname*
             (list "--core" (part-core part) "--noinform" "--dynamic-space-size" "512"
                   "--no-sysinit" "--no-userinit" "--non-interactive" "--eval"
                   (let ((*package* (find-package '#:keyword)))
                     (format nil "(clgrpc.tests.faults:be-part '~S ~S)" (part-start part)
                             (part-clock part))))))
      (setf (part-ending part) (apply (first (part-start part)) (rest (part-start part))))))

;;; A run

(defstruct (flow (:include fault-run) (:copier nil))
  "Workflows under way."
  (count 0 :type integer)               ; how many are to be started
  (folder "" :type string)              ; of the workers' files
  (nodes '() :type list)                ; PARTs
  (workers '() :type list)              ; PARTs
  (channel nil)                         ; to the nodes
  (started (make-hash-table :test 'equal :synchronized t)) ; ids whose start was acknowledged
  (ended (make-hash-table :test 'equal :synchronized t)) ; from ids to the status a watch told
  ;; ids and numbers of changes that a watch of all told
  (told (make-array 1000 :adjustable t :fill-pointer 0)))

(defun flow-id (i) (format nil "w~5,'0D" i))

(defun start-some (flow from to pause)
  "Start the workflows numbered from FROM below TO, each until that is acknowledged, one every PAUSE
seconds, or faster once that has been held up."
  (loop with begin = (monotonic-ns)
        for i from from below to
        until (flow-over flow)
        do (let ((id (flow-id i)) (due (+ begin (seconds-ns (* pause (- i from))))))
             (sleep (max 0 (ns-seconds (- due (monotonic-ns)))))
             (loop until (flow-over flow)
                   do (handler-case
                          (progn
                            (workflow:start-workflow
                             (flow-channel flow) id
                             (append (loop for step from 1 to +steps+
                                           collect (list :task "work"
                                                         :name (princ-to-string step)))
                                     '((:wait 1/10)))
                             :input id :timeout 86400)
                            (setf (gethash id (flow-started flow)) t)
                            (return))
                        (workflow:workflow-error () (sleep 0.2)))))))

(defun note-workflow-change (flow change)
  (let ((id (pb:change-id change)))
    (vector-push-extend (cons id (pb:change-number change)) (flow-told flow))
    (unless (eq :running (pb:change-status change))
      (setf (gethash id (flow-ended flow)) (pb:change-status change)))))

(defun check-told (flow)
  "Complain unless the watch of all workflows was told each change of each once, in order."
  (let ((numbers (make-hash-table :test 'equal)))
    (loop for (id . number) across (flow-told flow)
          do (let ((before (gethash id numbers 0)))
               (unless (= number (1+ before))
                 (complain flow "of ~A the watch was told change ~D after ~D" id number before)
                 (return))
               (setf (gethash id numbers) number)))))

(defun words-done (flow)
  "A table of what the workers' files say was done: ID, step and word, as one string."
  (let ((table (make-hash-table :test 'equal)))
    (dolist (file (directory (format nil "~A*.done" (flow-folder flow))) table)
      (with-open-file (in file)
        (loop for line = (read-line in nil)
              while line
              do (setf (gethash line table) t))))))

(defun check-result (flow id result done)
  "Complain unless RESULT, of the workflow ID, is that of five attempts, one of each step in order,
all of which workers say they made."
  (destructuring-bind (input &rest words) (uiop:split-string result)
    (unless (and (string= input id)
                 (= +steps+ (length words))
                 (loop for word in words
                       for step from 1
                       always (let ((colon (position #\: word)))
                                (and colon
                                     (string= (subseq word 0 colon) (princ-to-string step))
                                     (gethash (format nil "~A ~D ~A" id step
                                                      (subseq word (1+ colon)))
                                              done)))))
      (complain flow "the result of ~A is ~S" id result))))

(defun events-of (reply kind)
  "The events of KIND in the history of REPLY."
  (loop for change across (coerce (pb:get-workflow-state-reply-history reply) 'vector)
        append (loop for event across (coerce (pb:change-events change) 'vector)
                     when (eq kind (pb:event-kind event)) collect event)))

(defun check-workflow (flow id done)
  "Complain unless the workflow ID has ended well, each step done once, with the result of that."
  (let* ((reply (workflow:workflow-state (flow-channel flow) id :history t :result t :timeout 30))
         (state (pb:get-workflow-state-reply-state reply))
         (status (pb:workflow-state-status state)))
    (cond ((not (eq :completed status)) (complain flow "~A is ~(~A~)" id status))
          ((/= 1 (length (events-of reply :ended)))
           (complain flow "~A has ended ~D times" id (length (events-of reply :ended))))
          ((not (equal (loop for step from 1 to (1+ +steps+) collect step)
                       (mapcar #'pb:event-step (events-of reply :step-done))))
           (complain flow "of ~A the steps ~A are done" id
                     (mapcar #'pb:event-step (events-of reply :step-done))))
          (t (check-result flow id
                           (base:octets-string (pb:get-workflow-state-reply-result reply)) done)))
    (let ((told (gethash id (flow-ended flow))))
      (unless (eq told status)
        (complain flow "the watch was told that ~A is ~(~A~), but it is ~(~A~)" id told status)))))

(defun check-flow (flow)
  "All is well again, and all workflows have had time to end: see that they have, as they should."
  (let ((done (words-done flow)) (listed '()))
    (workflow:map-workflows (lambda (summary) (push (pb:workflow-summary-id summary) listed))
                            (flow-channel flow) :timeout 30)
    (unless (= (length listed) (hash-table-count (flow-started flow)))
      (complain flow "~D workflows are listed, ~D were started" (length listed)
                (hash-table-count (flow-started flow))))
    (loop for id being the hash-keys of (flow-started flow)
          while (< (length (flow-complaints flow)) 20)
          do (check-workflow flow id done))
    (check-told flow)))

;;; Members

(defun generation-of (part etcd)
  "The generation of PART, a node, or nil while it is no member."
  (let ((member (find (part-name part) (cluster:fetch-members etcd "default")
                      :key #'cluster:member-name :test #'string=)))
    (and member (cluster:member-generation member))))

(defun check-within (flow seconds predicate control &rest arguments)
  "Complain, by CONTROL and ARGUMENTS, unless PREDICATE is true within SECONDS."
  (let ((begin (monotonic-ns)))
    (unless (shared:wait-until predicate :seconds (+ seconds 20))
      (complain flow "~? for ever" control arguments))
    (let ((took (ns-seconds (- (monotonic-ns) begin))))
      (when (> took seconds) (complain flow "~? for ~,1F s" control arguments took)))))

(defun check-absence (flow part etcd)
  "PART, a node, was killed or stopped just now: complain unless it leaves in time."
  (check-within flow (+ 1 +node-lease-seconds+) (lambda () (null (generation-of part etcd)))
                "~A, which is dead, is a member" (part-name part)))

(defun check-return (flow part etcd before)
  "PART, a node, is back: complain unless it is a member of a higher generation than BEFORE."
  (check-within flow 20 (lambda ()
                          (let ((generation (generation-of part etcd)))
                            (and generation (< before generation))))
                "~A, which is back, is no member" (part-name part)))

;;; What goes wrong with nodes and workers

(defun one-of (flow list)
  (elt list (random (length list) (place-random (flow-place flow)))))

(defun set-clocks (part ahead day-ahead)
  "Have the clock of PART be AHEAD seconds ahead, and its time of day DAY-AHEAD, for it and whoever
starts in its place."
  (setf (part-ahead part) ahead
        (gethash (part-name part) **days-ahead**) day-ahead)
  (let ((new (format nil "~A.new" (part-clock part))))
    (with-open-file (stream new :direction :output :if-exists :supersede)
      (format stream "~D ~D~%" ahead day-ahead))
    (rename-file new (part-clock part))))

(defun kill-part (part)
  (support:kill-program (part-program part)))

(defun seconds-left (part etcd)
  "How many seconds the lease of PART, a node, has left, or nil while it is no member."
  (let ((entry (etcd:fetch etcd (format nil "default/~A" (part-name part)))))
    (and entry (etcd:lease-seconds-left (etcd:lease-by-number etcd (etcd:entry-lease entry))))))

(defun await-own-time (part etcd)
  "Wait until the lease of PART, a node, has no more left than its own time. A new leader of etcd
adds the time of an election to each lease until that is renewed."
  (shared:wait-until (lambda ()
                       (let ((left (seconds-left part etcd)))
                         ;; in whole seconds
                         (and left (< left +node-lease-seconds+))))
                     :seconds 20))

(defun call-with-member-lost (function flow etcd)
  (let* ((node (one-of flow (flow-nodes flow)))
         (generation (or (generation-of node etcd) 0)))
    (check-return flow node etcd 0)
    (await-own-time node etcd)
    (funcall function node)
    (check-return flow node etcd generation)))

(defmacro with-member-lost ((node flow etcd) &body body)
  "Evaluate BODY, which has NODE, a member, leave and come back; see that it is one afterwards."
  `(call-with-member-lost (lambda (,node) ,@body) ,flow ,etcd))

(defun do-part-fault (flow name etcd)
  "Have the fault NAME of *PART-FAULTS* happen; members are read by ETCD."
  (ecase name
    (:node-killed
     (with-member-lost (node flow etcd)
       (kill-part node)
       (check-absence flow node etcd)
       (begin-part node)))
    (:node-stopped
     (with-member-lost (node flow etcd)
       (call-while-stopped (lambda () (check-absence flow node etcd))
                           (list (part-program node)))))
    (:worker-killed
     (let ((worker (one-of flow (flow-workers flow))))
       (kill-part worker)
       (begin-part worker)))
    (:worker-stopped
     (call-while-stopped (lambda () (sleep (+ 3 +session-seconds+)))
                         (list (part-program (one-of flow (flow-workers flow))))))
    (:clock-jumps
     (let ((part (one-of flow (append (flow-nodes flow) (flow-workers flow)))))
       (set-clocks part (+ 60 (part-ahead part)) 0)
       (sleep 1)
       (when (find part (flow-nodes flow)) (check-return flow part etcd 0))))
    (:time-of-day
     (let ((node (one-of flow (flow-nodes flow))))
       (set-clocks node (part-ahead node) (one-of flow (list (- +wrong-seconds+) +wrong-seconds+)))
       (sleep 5)
       (set-clocks node (part-ahead node) 0)))))

;;; All of it

(defun clock-file (folder name)
  (format nil "~A~A.clock" folder name))

(defun begin-flow (place core count)
  "Start nodes and workers in CORE, and COUNT workflows, at PLACE; return the flow."
  (let* ((ports (loop repeat 3 collect (shared:free-port)))
         (target (format nil "ipv4:~{127.0.0.1:~D~^,~}" ports))
         (folder (format nil "~Awork/" (place-folder place)))
         (flow (make-flow :place place :count count :folder folder
                          :channel (grpc:make-channel target :balance :round-robin))))
    (ensure-directories-exist folder)
    (setf (flow-nodes flow)
          (loop for port in ports
                for i from 1
                for name = (format nil "node-~D" i)
                collect (make-part :name name :core core :clock (clock-file folder name)
                                   :start (list 'start-own-node name (place-address place)
                                                (format nil "127.0.0.1:~D" port))))
          (flow-workers flow)
          (loop for i from 1 to 4
                for name = (format nil "worker-~D" i)
                collect (make-part :name name :core core :clock (clock-file folder name)
                                   :start (list 'start-own-worker name target
                                                (format nil "~A~A.done" folder name)))))
    flow))

(defun progress (flow)
  (format nil "~:D of ~:D workflows started, ~:D ended, ~:D changes told"
          (hash-table-count (flow-started flow)) (flow-count flow)
          (hash-table-count (flow-ended flow)) (length (flow-told flow))))

(defun over-p (flow)
  (= (flow-count flow) (hash-table-count (flow-ended flow))))

(defun trouble-flow (flow faults seconds pause longest report)
  "Have FAULTS, names of either table, happen to FLOW until it is over, but no longer than SECONDS."
  (let ((end (+ (monotonic-ns) (seconds-ns seconds))) (place (flow-place flow)))
    (etcd:with-etcd (etcd (own-addresses place) :timeout 30
                          :backoff-maximum-seconds 0.5)
      (loop until (or (over-p flow) (< end (monotonic-ns)) (flow-complaints flow))
            do (let* ((name (one-of flow faults)) (row (find name *faults* :key #'first))
                      (own (find name *process-faults* :key #'first)))
                 (sleep pause)
                 (funcall report (format nil "~A; ~(~A~): ~A" (progress flow) name
                                         (if own (second own) (fourth row))))
                 (if own
                     (do-part-fault flow name etcd)
                     (when (possible-p row place) (funcall (third row) place longest))))))))

(defun begin-starters (flow seconds)
  "Threads that start the workflows of FLOW within about SECONDS."
  (let ((count (flow-count flow)) (threads 4))
    (loop for i below threads
          collect (sb-thread:make-thread #'start-some
                                         :name "starter"
                                         :arguments (list flow (floor (* i count) threads)
                                                          (floor (* (1+ i) count) threads)
                                                          (/ (* threads seconds) count))))))

(defun watch-flow (flow)
  (workflow:watch-workflow (lambda (change) (note-workflow-change flow change))
                           (flow-channel flow) nil :revision 1
                           :on-end (lambda (condition)
                                     (when condition
                                       (complain flow "the watch of all has ended: ~A"
                                                 condition)))))

(defun call-with-parts (function flow)
  "Call FUNCTION while the nodes and workers of FLOW run."
  (unwind-protect
       (progn
         (mapc #'begin-part (flow-nodes flow))
         (dolist (node (flow-nodes flow))
           (when (part-core node) (support:server-address (part-program node))))
         (mapc #'begin-part (flow-workers flow))
         (funcall function))
    (grpc:close-channel (flow-channel flow))
    (mapc #'end-part (flow-workers flow))
    (mapc #'end-part (flow-nodes flow))))

(defun run-flow (flow seconds trouble report)
  "Have the workflows of FLOW done while TROUBLE, a function, makes it for SECONDS; check what came
of them. Return a list of complaints and a text of what was done."
  (call-with-parts
   (lambda ()
     (let ((watcher (watch-flow flow)) (starters (begin-starters flow (* 0.7 seconds))))
       (unwind-protect
            (progn
              (funcall trouble)
              (funcall report (format nil "~A; nothing goes wrong any more" (progress flow)))
              (unless (shared:wait-until (lambda () (or (over-p flow) (flow-complaints flow)))
                                         :seconds (max 120 seconds))
                (complain flow "it does not end: ~A" (progress flow))))
         (setf (flow-over flow) t)
         (mapc #'sb-thread:join-thread starters))
       (unless (flow-complaints flow) (check-flow flow))
       (workflow:end-watching watcher)))
   flow)
  (values (reverse (flow-complaints flow)) (progress flow)))

(defun run-workflows (core &key (count 10000) (members 3) (seconds 400) (pause 2) (longest 10)
                             (faults (fault-names)) (report (constantly nil)))
  "Have COUNT workflows of five steps done by nodes and workers, processes of CORE, a file, or, if
that is nil, in this image, on an etcd of MEMBERS, 1 or 3, while FAULTS happen, for SECONDS at most,
and then without until all have ended. Call REPORT with texts that tell what happens. Return a list
of complaints, texts, and a text of what was done."
  (let ((base:*log-function* nil))
    (with-place (place members)
      (let ((flow (begin-flow place core count)))
        (run-flow flow seconds
                  (lambda () (trouble-flow flow faults seconds pause longest report)) report)))))

(test workflows-in-short
  "Some workflows while etcd and its connections fail; nodes and workers are in this image."
  (shared:need-etcd)
  (multiple-value-bind (complaints summary)
      (run-workflows nil :count 60 :members 1 :seconds 4 :pause 0.2 :longest 1
                         :faults '(:killed :stopped :cut :short))
    (is (null complaints) "~A~{~%~A~}" summary complaints)))

(defun jump-clocks (flow ahead)
  "Have all leases end in the store of FLOW, whose clock the number in AHEAD, a list, changes, again
and again, and the time of day of one node after the other be wrong by days."
  (loop repeat 10
        do (let ((node (one-of flow (flow-nodes flow))))
             (set-clocks node 0 (one-of flow (list (- +wrong-seconds+) 0 +wrong-seconds+)))
             (sleep 0.3)
             (incf (car ahead) (seconds-ns 100))
             (set-clocks node 0 0))))

(defun jump-and-check (flow engine ahead)
  "Do so; complain unless all nodes are members in ENGINE afterwards, each as another than before."
  (let* ((etcd (memory:connect engine))
         (before (loop for node in (flow-nodes flow) collect (or (generation-of node etcd) 0))))
    (jump-clocks flow ahead)
    (loop for node in (flow-nodes flow)
          for generation in before
          do (check-return flow node etcd generation))
    (etcd:close-etcd etcd)))

(test workflows-while-clocks-jump
  "The clock of the store jumps by minutes: all leases and sessions end, again and again, and
workers that know nothing of it report what others do by then. The nodes' times of day jump, too."
  (let* ((ahead (list 0))
         (engine (let ((loop:*world* (loop:make-world
                                      :clock (lambda () (+ (car ahead) (monotonic-ns)))
                                      :network (loop:make-network)))
                       (base:*log-function* nil))
                   (memory:make-engine)))
         (folder (new-folder-name "faults"))
         (flow (begin-flow (make-place :address engine :folder folder) nil 60)))
    (unwind-protect
         (multiple-value-bind (complaints summary)
             (run-flow flow 3 (lambda () (jump-and-check flow engine ahead)) (constantly nil))
           (is (null complaints) "~A~{~%~A~}" summary complaints))
      (memory:close-engine engine)
      (uiop:delete-directory-tree (pathname folder) :validate t :if-does-not-exist :ignore))))

(test what-is-wrong-with-workflows-is-noticed
  (flet ((complaints (function)
           (let ((flow (make-flow :place (make-place))))
             (funcall function flow)
             (length (flow-complaints flow))))
         (result (&rest words) (format nil "w~{ ~A~}" words)))
    (loop for (numbers count) in '(((1 2 3) 0) ((1 3) 1) ((1 2 2) 1) ((2) 1))
          do (is (= count (complaints (lambda (flow)
                                        (dolist (number numbers)
                                          (vector-push-extend (cons "w" number)
                                                              (flow-told flow)))
                                        (check-told flow))))))
    (let ((done (make-hash-table :test 'equal)))
      (loop for step from 1 to 5
            do (setf (gethash (format nil "w ~D a" step) done) t))
      (loop for (result count) in `((,(result "1:a" "2:a" "3:a" "4:a" "5:a") 0)
                                    (,(result "1:a" "2:a" "3:a" "4:a") 1)
                                    (,(result "1:a" "2:a" "2:a" "4:a" "5:a") 1)
                                    (,(result "1:a" "2:a" "3:b" "4:a" "5:a") 1)
                                    ("v 1:a 2:a 3:a 4:a 5:a" 1))
            do (is (= count (complaints (lambda (flow) (check-result flow "w" result done))))
                   "~A" result)))))
