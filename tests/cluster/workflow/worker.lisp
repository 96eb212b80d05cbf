;;;; Workers: steps done, failed, added; workers that die, stall and stop.

(in-package #:clgrpc.tests.workflow)

(define-step "t-add" (task) (format nil "~A+~A" (task-text task) (task-name task)))

(define-step "t-second-time" (task)
  (if (= 1 (task-attempt task)) (error "not the first time") (task-text task)))

(define-step "t-more" (task)
  (values (task-text task)
          '((:task "t-add" :name "more") (:wait 0) (:task "t-add" :name "and more"))))

(define-step "t-never" (task) (fail-step "there is no use" :retry nil))

(define-step "t-large" (task) (make-octets 1000001))

(define-step "t-larger" (task) (make-octets 6000000))

(defmacro with-worker-of ((worker node &rest arguments) &body body)
  `(let ((,worker (start-worker ,node ,@arguments)))
     (unwind-protect (progn ,@body)
       (stop-worker ,worker))))

(defun outcome (node id)
  "What the workflow ID came to: its status, its result as text, and why."
  (multiple-value-bind (status result reason) (await-workflow node id :timeout +patience+)
    (list status (and result (octets-string result)) reason)))

(part workers-do-steps
  (with-nodes (node) ()
    (with-worker-of (worker node :kinds '("t-add" "t-second-time" "t-more" "t-never" "t-large"))
      (start-workflow node "w1" '((:task "t-add" :name "a") (:task "t-second-time" :backoff 1/10)
                                  (:task "t-more") (:task "t-add" :name "z"))
                      :input "in")
      (is (equal '(:completed "in+a+more+and more+z" "") (outcome node "w1")))
      (start-workflow node "w2" '("t-never" "t-add"))
      (destructuring-bind (status result reason) (outcome node "w2")
        (declare (ignore result))
        (is (eq :failed status))
        (is (search "there is no use" reason)))
      (start-workflow node "w3" '("t-large"))
      (is (search "max-payload-octets" (third (outcome node "w3"))))
      (is (= 1 (pb:step-state-attempts (elt (pb:workflow-state-steps (state-of node "w3")) 0)))))
    (signals misuse (start-worker node :kinds '("t-none")))
    (signals misuse (start-worker node))))

(test a-step-s-error-that-cannot-be-printed
  "It fails the attempt as any other, and the worker is not held up by it."
  (with-memory-node (node)
    (with-worker-of (worker node :kinds `(("odd" . ,(lambda (task)
                                                      (if (= 1 (task-attempt task))
                                                          (error 'support:unprintable)
                                                          "done")))
                                          ("worse" . ,(fn (_task) (error 'support:unprintable)))))
      (start-workflow node "w1" '((:task "odd" :backoff 1/10)))
      (is (equal '(:completed "done" "") (outcome node "w1")))
      (start-workflow node "w2" '((:task "worse" :attempts 1)))
      (destructuring-bind (status result reason) (outcome node "w2")
        (declare (ignore result))
        (is (eq :failed status))
        (is (search "unprintable: (cannot be printed)" reason))))))

(part results-that-no-call-takes
  "What is too large for a call fails for good, as what is too large for a workflow."
  (with-nodes (node) ()
    (let ((server (server:start-server node)))
      (unwind-protect
           (client:with-channel (channel (server:server-address server))
             (with-worker-of (worker channel :kinds '("t-larger"))
               (start-workflow channel "w" '("t-larger"))
               (is (eq :failed (first (outcome channel "w"))))
               (is (= 1 (pb:step-state-attempts
                         (elt (pb:workflow-state-steps (state-of channel "w")) 0))))))
        (server:stop-server server)))))

(part workers-stop
  "A worker that stops ends what it does, and gives back what it does not."
  (with-nodes (node) ()
    (let ((go (sb-thread:make-semaphore)) (begun (sb-thread:make-semaphore)))
      (flet ((slow (task)
               (sb-thread:signal-semaphore begun)
               (sb-thread:wait-on-semaphore go)
               (task-id task)))
        (start-workflow node "w1" '("slow" "slow"))
        (let ((worker (start-worker node :kinds `(("slow" . ,#'slow)))))
          (sb-thread:wait-on-semaphore begun)
          (is (= 1 (length (worker-running worker))))
          (sb-thread:signal-semaphore go)
          (sb-thread:wait-on-semaphore begun)
          ;; the task ends while the worker is being stopped
          (in-thread
            (wait-until (lambda () (not (worker-open-p worker))))
            (sb-thread:signal-semaphore go))
          (is-true (stop-worker worker))
          (is-false (worker-open-p worker)))
        (is (equal '(:completed "w1" "") (outcome node "w1")))
        ;; what does not end in time is done by others, and recorded once
        (start-workflow node "w2" '((:task "slow" :attempts 1)))
        (let* ((refused nil)
               (worker (start-worker node :kinds `(("slow" . ,#'slow))
                                          :on-refused (lambda (task condition)
                                                        (setf refused (list (task-held-p task)
                                                                            condition))))))
          (sb-thread:wait-on-semaphore begun)
          (is-false (stop-worker worker :drain 0))
          (with-worker-of (other node :kinds `(("slow" . ,(constantly "other"))))
            (is (equal '(:completed "other" "") (outcome node "w2"))))
          (sb-thread:signal-semaphore go)
          (eventually refused)
          (is-false (first refused))
          (is (typep (second refused) '(or claim-lost workflow-closed)))
          (loop:end-background (workflow::worker-background worker)))))))

(part steps-are-recorded-once
  "Fifty workflows of five steps through two nodes, with workers that stall beyond their session,
die with what they have claimed, and report late: every step is recorded once, and all complete."
  (with-nodes (node other) ()
    (let ((ids (loop for i below 50 collect (format nil "w~D" i)))
          (stalled '()) (random (make-random-state t)))
      (dolist (id ids)
        (start-workflow node id (loop for i from 1 to 5
                                      collect `(:task ,(format nil "k~D" i) :attempts 100
                                                      :backoff 1/100))
                        :input id))
      (flet ((count-up (task)
               (if (zerop (random 20 random))
                   (error "by chance")
                   (format nil "~A.~A" (task-text task) (task-name task)))))
        ;; some claim and are not heard of again, until they report
        (let ((session (open-a-session other :seconds 2)))
          (setf stalled (claim other session '("k1") :count 8)))
        (is (plusp (length stalled)))
        (let ((kinds (loop for i from 1 to 5 collect (cons (format nil "k~D" i) #'count-up))))
          (with-worker-of (one node :kinds kinds :session-seconds 2)
            (with-worker-of (two other :kinds kinds :session-seconds 2)
              (dolist (id ids)
                (is (equal (list :completed (format nil "~A.k1.k2.k3.k4.k5" id) "")
                           (outcome node id)))))))
        (dolist (task stalled)
          (signals workflow-error (report node task "late")))
        (dolist (id ids)
          (let ((events (loop for change across (pb:get-workflow-state-reply-history
                                                 (workflow-state node id :history t))
                              append (coerce (pb:change-events change) 'list))))
            (is (equal '(1 2 3 4 5)
                       (loop for event in events
                             when (eq :step-done (pb:event-kind event))
                               collect (pb:event-step event))))))))))

(part steps-are-spans-of-the-trace-that-began-them
  (let ((tracing (trace:make-tracing :sampler :always-on)) (seen nil))
    (with-nodes (node) ()
      (let ((server (server:start-server node :observer tracing)))
        (unwind-protect
             (client:with-channel (channel (server:server-address server) :observer tracing)
               (with-worker-of (worker channel
                                       :kinds `(("traced" . ,(fn (_task)
                                                               (setf seen (trace:trace-id
                                                                           (trace:current-trace)))
                                                               nil))))
                 (let ((began nil))
                   (trace:with-span ("order" :tracing tracing)
                     (setf began (trace:trace-id (trace:current-trace)))
                     (start-workflow channel "w" '("traced")))
                   (is (eq :completed (await-workflow channel "w")))
                   (is (string= began seen)))))
          (server:stop-server server))))))

(test a-full-store-is-told-as-full
  "Once etcd takes nothing more a user is told so at once, and a worker repeats its report until
there is room: no attempt is lost by that."
  (with-store (store)
    (etcd:with-etcd (etcd (tests:store-address store))
      (let ((node (make-workflow-service etcd)) (refusals '()) (lock (sb-thread:make-mutex))
            (begun (sb-thread:make-semaphore)) (full (sb-thread:make-semaphore)))
        (flet ((hold (task)
                 (declare (ignore task))
                 (sb-thread:signal-semaphore begun)
                 (sb-thread:wait-on-semaphore full :timeout +patience+)
                 "done"))
          (with-replaced (('workflow::count-refusal
                           (lambda (function node condition)
                             (sb-thread:with-mutex (lock) (push condition refusals))
                             (funcall function node condition))))
            (unwind-protect
                 (with-worker-of (worker node :kinds `(("hold" . ,#'hold)) :session-seconds 60)
                   (start-workflow node "w" '((:task "hold" :attempts 1)))
                   (is-true (sb-thread:wait-on-semaphore begun :timeout +patience+))
                   (client:with-channel (channel (tests:store-address store))
                     (etcdserverpb.maintenance:alarm
                      channel (etcdserverpb:make-alarm-request :action :activate :alarm :nospace)
                      :timeout +patience+))
                   (signals store-full (start-workflow node "w2" '("hold")))
                   (sb-thread:signal-semaphore full)
                   (eventually (<= 3 (count 'store-full refusals :key #'type-of)))
                   (is (eq :running (pb:workflow-state-status (state-of node "w"))))
                   (is-true (etcd:disarm etcd))
                   (is (equal '(:completed "done" "") (outcome node "w"))))
              (close-workflow-service node))))))))

(test too-much-to-do-is-not-too-long
  "A node that has too much to do uses the status of a message that is too long. The former passes."
  (flet ((condition-of (text)
           (workflow::workflow-condition
            (clgrpc.status:make-rpc-error :resource-exhausted :message text))))
    (loop for (name . arguments) in '((:too-long-to-send 5 4) (:too-long-received 5 4) (:no-room 5)
                                      (:no-room-for-answer) (:no-room-in-heap 5)
                                      (:connection-holds-too-much) (:all-hold-too-much)
                                      (:no-room-for-calls) (:too-many-calls) (:too-many-handlers)
                                      (:queue-full) (:no-thread-in-time) (:no-memory))
          for (status text) = (multiple-value-list (apply #'rpc:verdict name arguments))
          for condition = (condition-of text)
          for long = (and (member name '(:too-long-to-send :too-long-received)) t)
          do (is (eq :resource-exhausted status))
             (is (eq long (and (workflow::too-large-p condition) t)))
             (is (eq (not long) (and (workflow::passing-p condition) t))))
    (dolist (text '("grpc: received message larger than max (6000004 vs. 4194304)"
                    "SERVER: Received message larger than max (6000004 vs. 4194304)"
                    "trying to send message larger than max (6000004 vs. 4194304)"
                    "gRPC message exceeds maximum size 4194304: 6000004"))
      (is-true (workflow::too-large-p (condition-of text)))
      (is-false (workflow::passing-p (condition-of text))))))

(defmacro with-refusals ((name texts) &body body)
  "Evaluate BODY, in which the function NAME refuses its first calls with :resource-exhausted and
each of TEXTS."
  (alexandria:with-gensyms (left lock)
    `(let ((,left ,texts) (,lock (sb-thread:make-mutex)))
       (with-replaced ((',name
                        (lambda (function &rest arguments)
                          (let ((text (sb-thread:with-mutex (,lock) (pop ,left))))
                            (if text
                                (clgrpc.status:fail :resource-exhausted text)
                                (apply function arguments))))))
         ,@body))))

(test a-node-with-too-much-to-do-loses-no-result
  "What a worker has done is reported until the node has room for the report; a watch goes on, too."
  (with-memory-node (node)
    (with-refusals (workflow::report-outcome '("the server's queue of calls is full"
                                               "no thread was free in time"))
      (with-refusals (workflow::begin-watch '("the server has too many calls (max-calls)"))
        (with-worker-of (worker node :kinds `(("once" . ,(constantly "done"))))
          (start-workflow node "w" '((:task "once" :attempts 1)))
          (is (equal '(:completed "done" "") (outcome node "w"))))))))

(test a-worker-outlives-an-error-of-its-channel
  "An interceptor that fails as its session is opened costs it a pause; one that fails as that is
closed leaves nothing of the worker."
  (with-memory-node (node)
    (let ((server (server:start-server node)) (failed '()) (background nil))
      (flet ((fail-once (method request options next)
               (declare (ignore method))
               (let ((type (find request '(pb:open-session-request pb:close-session-request)
                                 :test #'typep)))
                 (when (and type (not (member type failed)))
                   (push type failed)
                   (error 'support:unprintable)))
               (funcall next request options)))
        (unwind-protect
             (client:with-channel (channel (server:server-address server)
                                           :interceptors (list #'fail-once))
               (with-worker-of (worker channel :kinds `(("a" . ,(constantly "done"))))
                 (setf background (workflow::worker-background worker))
                 (start-workflow node "w" '("a"))
                 (is (equal '(:completed "done" "") (outcome node "w"))))
               (is (= 2 (length failed)))
               ;; it takes no more jobs
               (is-true (loop:job-ended (loop:add-job background #'list))))
          (server:stop-server server))))))

(test claims-that-fail-are-logged
  "The worker claims again."
  (let ((failures 2))
    (flet ((fail-once (function &rest arguments)
             (if (minusp (decf failures))
                 (apply function arguments)
                 (error (if (plusp failures)
                            (make-condition 'too-large :text "too much")
                            (make-condition 'simple-error :format-control "broken"))))))
      (with-memory-node (node)
        (with-logged (logged :workflow-claim-refused :workflow-worker-error)
          (with-replaced (('workflow::claim-one #'fail-once))
            (with-worker-of (worker node :kinds `(("a" . ,(constantly "done"))) :name "w")
              (start-workflow node "w" '("a"))
              (is (equal '(:completed "done" "") (outcome node "w")))))
          (is (equal `((:warning :workflow-claim-refused :worker "w" :condition
                        ,(princ-to-string (make-condition 'too-large :text "too much")))
                       (:error :workflow-worker-error :worker "w" :condition "broken"))
                     (logged))))))))

(defun keeps-p (node session)
  "True if NODE keeps SESSION, since heartbeats come there."
  (sb-thread:with-mutex ((workflow::node-lock node))
    (let ((record (workflow::find-record node session)))
      (and record (workflow::session-record-stream record) t))))

(part sessions-outlive-their-nodes
  "A worker's heartbeats stay at one node of several. When that closes the worker goes to another one
in the same session, and its task stays its own."
  (with-nodes (node other) ()
    (let* ((nodes (list node other)) (servers (mapcar #'server:start-server nodes))
           (gate (sb-thread:make-semaphore)) (begun (sb-thread:make-semaphore)))
      (flet ((hold (task)
               (declare (ignore task))
               (sb-thread:signal-semaphore begun)
               (sb-thread:wait-on-semaphore gate :timeout +patience+)
               "done")
             (keeper (session) (find-if (lambda (node) (keeps-p node session)) nodes)))
        (unwind-protect
             (client:with-channel (channel (format nil "ipv4:~{~A~^,~}"
                                                   (mapcar #'server:server-address servers))
                                           :balance :round-robin)
               (with-worker-of (worker channel :kinds `(("hold" . ,#'hold)) :session-seconds 60)
                 (start-workflow other "w" '((:task "hold" :attempts 1)))
                 (is-true (sb-thread:wait-on-semaphore begun :timeout +patience+))
                 (let* ((session (workflow::worker-session worker)) (first nil))
                   (eventually (setf first (keeper session)))
                   (dotimes (i 3)
                     (loop:wake-job (workflow::worker-heart worker)))
                   (is (eq first (keeper session)))
                   (server:stop-server (elt servers (position first nodes)) :drain 1)
                   (is-true (wait-until (lambda ()
                                          (loop:wake-job (workflow::worker-heart worker))
                                          (and (not (eq first (keeper session)))
                                               (keeper session)))))
                   (is (eq session (workflow::worker-session worker)))
                   (sb-thread:signal-semaphore gate)
                   (is (equal '(:completed "done" "")
                              (outcome (find first nodes :test-not #'eq) "w"))))))
          (dolist (server servers) (server:stop-server server :drain 0)))))))
