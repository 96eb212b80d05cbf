;;;; Who may start, work, read and operate, and what one session may have.

(in-package #:clgrpc.tests.workflow)

(defun call-with-memory-node (function &rest arguments)
  "Call FUNCTION with a node, of ARGUMENTS, whose store is in memory."
  (let* ((engine (memory:make-engine)) (etcd (memory:connect engine)))
    (unwind-protect
         (let ((node (apply #'make-workflow-service etcd arguments)))
           (unwind-protect (funcall function node)
             (close-workflow-service node)))
      (etcd:close-etcd etcd)
      (memory:close-engine engine))))

(defmacro with-memory-node ((node &rest arguments) &body body)
  `(call-with-memory-node (lambda (,node) ,@body) ,@arguments))

(defun call-with-peers (function node)
  "Call FUNCTION with a function that returns a channel to a server of NODE for the certificate of a
name, nil for none."
  (flet ((file (name type)
           (namestring (support:certificate-file (format nil "~A.~A" name type)))))
    (let ((server (server:start-server node :credentials (loop:tls-credentials
                                                          :certificate (file "server" "pem")
                                                          :key (file "server" "key")
                                                          :roots (file "ca" "pem")
                                                          :client-certificates :request)))
          (channels '()))
      (unwind-protect
           (funcall function
                    (lambda (name)
                      (let ((channel (client:make-channel
                                      (server:server-address server)
                                      :credentials
                                      (apply #'loop:tls-credentials :roots (file "ca" "pem")
                                             (and name (list :certificate (file name "pem")
                                                             :key (file name "key")))))))
                        (push channel channels)
                        channel)))
        (mapc #'calling:close-channel channels)
        (server:stop-server server :drain 0)))))

(test peers-have-the-roles-that-they-are-given
  (with-memory-node (node :allow '((:start . "client.test.example")
                                   ((:work "charge") . "spiffe://test.example/worker/*")
                                   (:read . "*")
                                   (:operate . "spiffe://test.example/node/a")))
    (call-with-peers
     (lambda (peer)
       (let ((client (funcall peer "client")) (worker (funcall peer "worker-1"))
             (operator (funcall peer "node-a")) (nobody (funcall peer nil)))
         (is-true (start-workflow client "w" '((:task "charge"))))
         (is (eq :running (pb:workflow-state-status (state-of worker "w"))))
         (signals access-denied (start-workflow worker "v" '((:task "charge"))))
         (signals access-denied (signal-workflow worker "w" "go" "x"))
         (signals access-denied (cancel-workflow client "w"))
         (signals access-denied (cancel-workflow worker "w"))
         (signals access-denied (delete-workflow client "w" :cancel t))
         (signals access-denied (delete-workflow worker "w" :cancel t))
         (signals access-denied (open-a-session client))
         (signals access-denied (workflow-state nobody "w"))
         (signals access-denied (map-workflows #'identity nobody))
         (let ((session (open-a-session worker)))
           (signals access-denied (claim worker session '("ship")))
           (signals access-denied (claim worker session '("charge" "ship")))
           (let ((task (first (claim worker session '("charge")))))
             (signals access-denied (report worker task "paid" :session session
                                                               :next-kinds '("ship")))
             (report worker task "paid")))
         (is (eq :completed (await-workflow client "w" :timeout +patience+)))
         (start-workflow client "x" '((:task "charge")))
         (cancel-workflow operator "x")))
     node)))

(test schedules-have-roles
  "Who may start may have something started at times; who may read sees it; who may operate pauses,
resumes and deletes it."
  (with-memory-node (node :allow '((:start . "client.test.example")
                                   (:work . "spiffe://test.example/worker/*")
                                   (:read . "spiffe://test.example/worker/*")
                                   (:operate . "spiffe://test.example/node/a")))
    (call-with-peers
     (lambda (peer)
       (let ((client (funcall peer "client")) (worker (funcall peer "worker-1"))
             (operator (funcall peer "node-a")) (nobody (funcall peer nil)))
         (flet ((create (channel id) (create-schedule channel id '("charge") :every 3600)))
           (is-true (create client "s"))
           (dolist (other (list worker operator nobody))
             (signals access-denied (create other "t"))))
         (is (string= "s" (pb:schedule-state-id (schedule-state worker "s"))))
         (finishes (map-schedules #'identity worker))
         (dolist (other (list client operator nobody))
           (signals access-denied (schedule-state other "s"))
           (signals access-denied (map-schedules #'identity other)))
         (dolist (other (list client worker nobody))
           (signals access-denied (pause-schedule other "s"))
           (signals access-denied (resume-schedule other "s"))
           (signals access-denied (delete-schedule other "s")))
         (pause-schedule operator "s")
         (resume-schedule operator "s")
         (is-true (delete-schedule operator "s"))))
     node)))

(test children-and-runs-need-no-role-of-their-own
  "A worker, who may start nothing, has its workflow start children and begin again by its reports."
  (with-memory-node (node :allow '((:start . "client.test.example") (:read . "*")
                                   (:work . "spiffe://test.example/worker/*")))
    (call-with-peers
     (lambda (peer)
       (let* ((client (funcall peer "client")) (worker (funcall peer "worker-1"))
              (session (open-a-session worker)))
         (start-workflow client "w" '("a"))
         (workflow::ask #'methods:report worker
                        (pb:make-report-request
                         :id "w" :fence (pb:task-fence (first (claim worker session '("a"))))
                         :continue-as-new (continue-as-new '((:parallel ("a")))))
                        10)
         (is-true (claim worker session '("a") :wait 10))
         (is (string= "w" (pb:parent-id (pb:workflow-state-parent (state-of client "w.2.0")))))))
     node)))

(test a-session-is-its-opener-s
  "Who reads a task's session and fence can neither report it nor end the session."
  (with-memory-node (node :allow '((:start . "client.test.example") (:read . "*")
                                   (:work . "spiffe://test.example/worker/*")))
    (call-with-peers
     (lambda (peer)
       (let* ((client (funcall peer "client")) (worker (funcall peer "worker-1"))
              (forger (funcall peer "worker-2")) (session (open-a-session worker)))
         (start-workflow client "w" '((:task "charge")))
         (let ((task (first (claim worker session '("charge")))))
           (is (string= session (pb:workflow-state-session (state-of forger "w"))))
           (signals access-denied (report forger task "forged"))
           (signals access-denied (report forger task "forged" :session session
                                                               :next-kinds '("charge")))
           (signals access-denied (claim forger session '("charge")))
           (signals access-denied (beat forger session))
           (signals access-denied
             (workflow::ask #'methods:close-session forger
                            (pb:make-close-session-request :session session) 10))
           ;; nor does the node's own worker take what is a peer's
           (signals access-denied (claim node session '("charge")))
           (report worker task "paid"))
         (is (equalp (string-octets "paid")
                     (nth-value 1 (await-workflow client "w" :timeout +patience+))))))
     node)))

(test a-report-is-known-again-by-who-may-work-on-it
  "Who may work on other tasks is not told that a report was recorded, though it is the same."
  (with-memory-node (node :allow '((:start . "client.test.example") (:read . "*")
                                   ((:work "charge") . "spiffe://test.example/worker/1")
                                   ((:work "ship") . "spiffe://test.example/worker/2")))
    (call-with-peers
     (lambda (peer)
       (let* ((client (funcall peer "client")) (worker (funcall peer "worker-1"))
              (stranger (funcall peer "worker-2")) (session (open-a-session worker)))
         (start-workflow client "w" '((:task "charge") (:signal "go")))
         (let ((task (first (claim worker session '("charge")))))
           (report worker task "paid")
           (finishes (report worker task "paid"))
           (signals access-denied (report stranger task "paid"))
           (signals access-denied (report stranger task "stolen")))
         ;; nor of a run before this one
         (start-workflow client "x" '((:task "charge")))
         (let* ((task (first (claim worker session '("charge"))))
                (request (pb:make-report-request
                          :id "x" :fence (pb:task-fence task)
                          :continue-as-new (continue-as-new '((:signal "go"))))))
           (flet ((tell (channel) (workflow::ask #'methods:report channel request 10)))
             (tell worker)
             (finishes (tell worker))
             (signals access-denied (tell stranger))))))
     node)))

(test a-session-has-bounds
  "It lasts so long, and has so many tasks and waiting claims; what is reported makes room."
  (with-memory-node (node :max-session-seconds 30 :max-held 2 :max-waiting-claims-per-session 2)
    (signals too-large (open-a-session node :seconds 31))
    (let ((session (open-a-session node :seconds 30)))
      (dotimes (i 4) (start-workflow node (format nil "w~D" i) '((:task "charge"))))
      (let ((tasks (append (claim node session '("charge")) (claim node session '("charge")))))
        (is (= 2 (length tasks)))
        (signals backlog-full (claim node session '("charge")))
        (report node (first tasks) "paid")
        (is (= 1 (length (claim node session '("charge")))))))
    (let ((session (open-a-session node :seconds 30)))
      (flet ((wait ()
               (calling:call-async #'methods:claim node
                                   (pb:make-claim-request :session session :kinds '("ship")
                                                          :wait-ms 20000)
                                   :timeout 30)))
        (let ((calls (list (wait) (wait))))
          (eventually (= 2 (workflow::task-queue-parked (workflow::node-task-queue node))))
          (signals backlog-full (claim node session '("ship") :wait 1))
          (mapc #'rpc:cancel calls))))))

(test a-worker-that-ends-nothing-leaves-tasks-to-others
  "A worker that has a hundred claims wait, takes tasks and ends none gets those that nobody else
waits for."
  (with-memory-node (node)
    (let ((hoarder (open-a-session node)) (worker (open-a-session node))
          (task-queue (workflow::node-task-queue node)))
      (flet ((wait (session)
               (calling:call-async #'methods:claim node
                                   (pb:make-claim-request :session session :kinds '("charge")
                                                          :wait-ms 50000)
                                   :timeout 60))
             (parked () (workflow::task-queue-parked task-queue)))
        (let ((hoard (loop repeat 100 collect (wait hoarder))) (done 0))
          (flet ((ended () (count-if #'loop:future-done-p hoard)))
            (loop for i below 20
                  for before = (ended)
                  for call = (wait worker)
                  do (eventually (= (- 101 before) (parked)))
                     (start-workflow node (format nil "w~D" i) '((:task "charge")))
                     (eventually (or (loop:future-done-p call) (< before (ended))))
                     (cond ((loop:future-done-p call)
                            (incf done)
                            (report node (elt (pb:claim-reply-tasks (loop:await call)) 0)
                                    "paid"))
                           (t (rpc:cancel call)))))
          (is (<= 18 done) "~D of 20 tasks are done" done)
          (mapc #'rpc:cancel hoard))))))

(test an-identity-has-so-many-waiting-claims
  "However many sessions it has, it leaves room for others."
  (with-memory-node (node :allow '((:work . "*")) :max-waiting-claims-per-identity 2)
    (call-with-peers
     (lambda (peer)
       (let* ((worker (funcall peer "worker-1")) (other (funcall peer "worker-2"))
              (calls (loop repeat 2
                           collect (calling:call-async
                                    #'methods:claim worker
                                    (pb:make-claim-request :session (open-a-session worker)
                                                           :kinds '("ship") :wait-ms 20000)
                                    :timeout 30))))
         (flet ((parked-p (count)
                  (wait-until (lambda ()
                                (= count (workflow::task-queue-parked
                                          (workflow::node-task-queue node)))))))
           (is (parked-p 2))
           (signals backlog-full (claim worker (open-a-session worker) '("ship") :wait 1))
           (is (null (claim other (open-a-session other) '("ship") :wait 0.1)))
           (mapc #'rpc:cancel calls)
           (is (parked-p 0))
           (is (null (claim worker (open-a-session worker) '("ship") :wait 0.1))))))
     node)))

(test an-identity-has-so-many-sessions
  (with-memory-node (node :allow '((:work . "*")) :max-sessions-per-identity 2)
    (call-with-peers
     (lambda (peer)
       (let ((worker (funcall peer "worker-1")) (other (funcall peer "worker-2")))
         (open-a-session worker)
         (open-a-session worker)
         (signals backlog-full (open-a-session worker))
         (is-true (open-a-session other))))
     node)))

(test a-session-that-asks-for-no-time-is-not-too-long
  "It lasts ten seconds, or as long as the node allows if that is less."
  (loop for (most seconds) in '((5 5) (120 10))
        do (with-memory-node (node :max-session-seconds most)
             (is (= seconds (pb:open-session-reply-seconds
                             (workflow::ask #'methods:open-session node
                                            (pb:make-open-session-request :worker "w") 10)))))))
