;;;; The service on etcd: what it answers, claims that wait, sessions that end, times, watches.

(in-package #:clgrpc.tests.workflow)

(defvar *parts* '() "Names of functions that test a part of the service each, the last one first.")

(defmacro part (name &body body)
  "Define NAME as a function without arguments that has BODY, which tests a part of the service on
the etcd that THE-SERVICE-ON-ETCD has started for all of them."
  `(progn (defun ,name () ,@body)
          (pushnew ',name *parts*)))

(defvar *namespaces* 0 "How many there were.")

(defun new-namespace ()
  (format nil "n~D" (incf *namespaces*)))

(defun call-with-nodes (count function &rest arguments &key (namespace (new-namespace))
                                                       &allow-other-keys)
  (let ((nodes (loop repeat count
                     collect (apply #'make-workflow-service *etcd* :namespace namespace
                                    arguments))))
    (unwind-protect (apply function nodes)
      (mapc #'close-workflow-service nodes))))

(defmacro with-nodes ((&rest nodes) (&rest arguments) &body body)
  "Evaluate BODY with NODES of a namespace of their own."
  `(call-with-nodes ,(length nodes) (lambda ,nodes (declare (ignorable ,@nodes)) ,@body)
                    ,@arguments))

(defun state-of (node id)
  (pb:get-workflow-state-reply-state (workflow-state node id)))

(defun open-a-session (node &key (seconds 60))
  (pb:open-session-reply-session
   (workflow::ask #'methods:open-session node
                  (pb:make-open-session-request :worker "test" :seconds seconds) 10)))

(defun open-heartbeats (node)
  (methods:heartbeats node :open :timeout +patience+))

(defun send-beat (heartbeats session &optional (held '()))
  "Send a heartbeat of SESSION, which has HELD, Helds, on HEARTBEATS, a stream. Return the ids of
what is lost."
  (workflow::with-workflow-errors
    (rpc:try-send heartbeats (pb:make-heartbeat-request :session session :held held))
    (map 'list #'pb:held-id (pb:heartbeat-reply-lost (rpc:receive heartbeats)))))

(defun beat (node session &optional (held '()))
  "As SEND-BEAT, on a stream of its own at NODE."
  (let ((heartbeats (open-heartbeats node)))
    (unwind-protect (send-beat heartbeats session held)
      (rpc:cancel heartbeats))))

(defun end-of-session (node session)
  "Let SESSION end, as NODE's store does at the end of its lease."
  (etcd:remove-entry (workflow::node-etcd node) (workflow::session-key node session)))

(defun claim (node session kinds &key (wait 0) (count 1))
  "The tasks that SESSION claims, a list."
  (coerce (pb:claim-reply-tasks
           (workflow::ask #'methods:claim node
                          (pb:make-claim-request :session session :kinds kinds :max-tasks count
                                                 :wait-ms (round (* 1000 wait)))
                          (+ wait 10)))
          'list))

(defun report (node task text &key session next-kinds of-any)
  (pb:report-reply-next
   (workflow::ask #'methods:report node
                  (pb:make-report-request :id (pb:task-id task) :fence (pb:task-fence task)
                                          :result (string-octets text)
                                          :session (or session "") :next-kinds next-kinds
                                          :next-of-any of-any)
                  10)))

(part starting-and-asking
  (with-nodes (node) ()
    (let ((server (server:start-server node)))
      (unwind-protect
           (client:with-channel (channel (server:server-address server))
             (is-true (start-workflow channel "w1" '("a" "b") :input "in" :type "letter"))
             (is-false (start-workflow channel "w1" '("a" "b") :input "in" :type "letter"))
             (signals workflow-exists (start-workflow channel "w1" '("a") :input "in"))
             (is-true (start-workflow channel "w-named" 'parcel))
             (is (equal "parcel" (pb:workflow-state-type
                                  (pb:get-workflow-state-reply-state
                                   (workflow-state channel "w-named")))))
             (cancel-workflow channel "w-named")
             (signals workflow-not-found (workflow-state channel "w2"))
             (signals workflow-not-found (cancel-workflow channel "w2"))
             (signals workflow-not-found (signal-workflow channel "w2" "x" nil))
             (with-signalled (condition invalid-request (start-workflow channel "w/3" '("a")))
               (is (null (workflow-error-limit condition)))
               (is (search "has a /" (workflow-error-text condition))))
             (with-signalled (condition too-large
                              (start-workflow channel "w3" '("a") :input (make-octets 1000001)))
               (is (string= "max-payload-octets" (workflow-error-limit condition)))
               (is (= 1000000 (workflow-error-most condition)))
               (is (= 1000001 (workflow-error-actual condition))))
             (is-true (start-workflow channel "w4" '("a") :input (make-octets 1000000)))
             (let ((reply (workflow-state channel "w1" :history t :input t)))
               (is (string= "in" (octets-string (pb:get-workflow-state-reply-input reply))))
               (is (= 1 (length (pb:get-workflow-state-reply-history reply))))
               (is (string= "letter" (pb:workflow-state-type
                                      (pb:get-workflow-state-reply-state reply)))))
             (cancel-workflow channel "w1" :reason "enough")
             (cancel-workflow channel "w1")
             (is (string= "enough" (pb:workflow-state-reason (state-of channel "w1"))))
             (signals workflow-closed (signal-workflow channel "w1" "x" nil))
             (is (equal '(:cancelled "enough")
                        (let ((values (multiple-value-list (await-workflow channel "w1"))))
                          (list (first values) (third values))))))
        (server:stop-server server)))))

(part statuses-without-a-name-are-refused
  "A number that is no status, from a newer client, is an argument that is wrong, not our error."
  (with-nodes (node) ()
    (signals invalid-request
      (workflow::ask #'methods:list node (pb:make-list-request :status 77) 5))))

(part signals-count-once
  (with-nodes (node) ()
    (start-workflow node "w" '((:signal "x") (:signal "x") "a"))
    (dotimes (i 3) (signal-workflow node "w" "x" "one" :signal-id "1"))
    (is (= 1 (pb:workflow-state-current (state-of node "w"))))
    (signal-workflow node "w" "x" "two" :signal-id "2")
    (let ((task (first (claim node (open-a-session node) '("a")))))
      (is (string= "two" (octets-string (pb:task-input task)))))))

(part claims-wait-for-tasks
  "A claim at one node is answered when a task becomes ready by another; without one when its time
is over. It names a session that lives."
  (with-nodes (node other) ()
    (let ((session (open-a-session node)))
      (is (null (claim node session '("a"))))
      (is (null (claim node session '("a") :wait 0.2)))
      (let ((future (calling:call-async #'methods:claim node
                                        (pb:make-claim-request :session session :kinds '("b" "a")
                                                               :wait-ms 20000))))
        (eventually (plusp (workflow::task-queue-parked (workflow::node-task-queue node))))
        (start-workflow other "w" '("a") :input "in")
        (let ((task (elt (pb:claim-reply-tasks (clgrpc.loop:await future :timeout +patience+)) 0)))
          (is (string= "w" (pb:task-id task)))
          (is (plusp (pb:task-fence task)))
          (is (string= "in" (octets-string (pb:task-input task))))))
      ;; whoever has left gets nothing
      (let ((future (calling:call-async #'methods:claim node
                                        (pb:make-claim-request :session session :kinds '("c")
                                                               :wait-ms 20000))))
        (eventually (plusp (workflow::task-queue-parked (workflow::node-task-queue node))))
        (rpc:cancel future)
        (eventually (zerop (workflow::task-queue-parked (workflow::node-task-queue node)))))
      (start-workflow other "w2" '("c"))
      (is (= 1 (length (claim node session '("c")))))
      (signals session-lost (claim node "7b" '("a")))
      (start-workflow node "w3" '("a"))
      (signals session-lost (claim node "7b" '("a")))
      (signals session-lost (claim node "no session" '("a"))))))

(part claims-of-sessions-that-end
  "A claim that waits ends when its session does, at whatever node, and takes no place any more."
  (with-nodes (node other) ()
    (let ((session (open-a-session node)) (another (open-a-session node)))
      (flet ((ask (node session)
               (calling:call-async #'methods:claim node
                                   (pb:make-claim-request :session session :kinds '("a")
                                                          :wait-ms 60000)))
             (parked (node) (workflow::task-queue-parked (workflow::node-task-queue node))))
        (let ((claims (list (ask node session) (ask node session) (ask other session)))
              (kept (ask other another)))
          (eventually (= 4 (+ (parked node) (parked other))))
          (methods:close-session node (pb:make-close-session-request :session session))
          (dolist (claim claims)
            (handler-case (progn (clgrpc.loop:await claim :timeout +patience+) (fail "answered"))
              (clgrpc.status:rpc-error (error)
                (is (typep (workflow::workflow-condition error) 'session-lost)))))
          ;; a node that begins its watch of the index has all claims tried meanwhile
          (eventually (= 0 (parked node)))
          (eventually (= 1 (parked other)))
          (is (zerop
               (hash-table-count (workflow::task-queue-sessions (workflow::node-task-queue node)))))
          (signals session-lost (claim node session '("a") :wait 60))
          (rpc:cancel kept))))))

(defun claim-later (node session kinds)
  "A call that claims a task of KINDS and waits at NODE by now."
  (let* ((task-queue (workflow::node-task-queue node))
         (count (workflow::task-queue-parked task-queue))
         (call (calling:call-async #'methods:claim node
                                   (pb:make-claim-request :session session :kinds kinds
                                                          :wait-ms 60000))))
    (eventually (< count (workflow::task-queue-parked task-queue)))
    call))

(defun ids-claimed (call)
  (map 'list #'pb:task-id (pb:claim-reply-tasks (clgrpc.loop:await call :timeout +patience+))))

(part wake-ups-are-not-lost
  "A claim that is woken for a task and does not take it wakes the next one."
  (with-nodes (node) ()
    (let ((session (open-a-session node)) (dead (open-a-session node))
          (task-queue (workflow::node-task-queue node)))
      ;; the node has looked around, and tries all claims no more
      (start-workflow node "w0" '((:signal "x")))
      (eventually (plusp (workflow::node-running node)))
      ;; nobody waits for its answer any more
      (let ((call (claim-later node session '("a"))))
        (sb-thread:with-mutex ((workflow::task-queue-lock task-queue))
          (let ((other (workflow::take-first task-queue)))
            (workflow::enter-task-queue task-queue (workflow::make-waiting :kinds '("a") :over t))
            (workflow::enter-task-queue task-queue other)))
        (start-workflow node "w1" '("a"))
        (is (equal '("w1") (ids-claimed call))))
      ;; its session has ended
      (let ((first (claim-later node dead '("a"))) (second (claim-later node session '("a"))))
        (methods:close-session node (pb:make-close-session-request :session dead))
        (start-workflow node "w2" '("a"))
        (is (equal '("w2") (ids-claimed second)))
        (signals error (ids-claimed first)))
      ;; it gets a task of another kind, which nobody was told of
      (let ((first (claim-later node session '("b" "a")))
            (second (claim-later node session '("a"))))
        (sb-thread:with-mutex ((workflow::task-queue-lock task-queue))
          (setf (gethash "w4" (workflow::task-queue-taken task-queue)) "a"))
        (start-workflow node "w4" '("a"))
        (start-workflow node "w3" '("b"))
        (is (equal '("w3") (ids-claimed first)))
        (workflow::leave-ids node '("w4") '())
        (is (equal '("w4") (ids-claimed second)))))))

(part claims-do-not-wait-though-there-is-something
  "Two hands do all there is to do, while others begin claims and leave, and sessions end, at two
nodes."
  (with-nodes (node other) ()
    (let ((done (sb-thread:make-semaphore)) (over nil) (count 200)
          (session (open-a-session node)))
      (flet ((work (node)
               (loop until over
                     do (handler-case
                            (dolist (task (claim node session '("a") :wait 60))
                              (loop while (setf task (report node task "" :session session
                                                                        :next-kinds '("a"))))
                              (sb-thread:signal-semaphore done))
                          (workflow-error (condition)
                            (unless over (fail "a claim is refused: ~A" condition))))))
             (disturb (node)
               (loop until over
                     do (let* ((own (open-a-session node))
                               (calls (loop repeat 3 collect (calling:call-async
                                                              #'methods:claim node
                                                              (pb:make-claim-request
                                                               :session own :kinds '("a")
                                                               :wait-ms 2)))))
                          (dolist (call calls) (rpc:cancel call))
                          (methods:close-session
                           node (pb:make-close-session-request :session own))))))
        (let ((threads (loop for (function node) in (list (list #'disturb node)
                                                          (list #'disturb other)
                                                          (list #'work node) (list #'work other))
                             collect (sb-thread:make-thread function :arguments (list node)))))
          (flet ((start (from to)
                   (loop for i from from below to
                         do (start-workflow (if (evenp i) node other) (format nil "w~D" i)
                                            '((:task "a" :attempts 1000))))))
            (unwind-protect
                 (progn
                   (start 0 count)
                   ;; a task that nobody was woken for would wait for a minute
                   (is-true (loop repeat count
                                  always (sb-thread:wait-on-semaphore done
                                                                      :timeout +patience+))))
              (setf over t)
              (mapc #'sb-thread:join-thread (subseq threads 0 2))
              (start count (+ 2 count)) ; so that the hands come to their end
              (mapc #'sb-thread:join-thread threads))))))))

(part claims-look-behind-what-others-are-about-to-take
  (with-nodes (node) ()
    (let ((session (open-a-session node)) (task-queue (workflow::node-task-queue node)))
      (dotimes (i 60)
        (start-workflow node (format nil "w~D" i) '("a")))
      (sb-thread:with-mutex ((workflow::task-queue-lock task-queue))
        (dotimes (i 59)
          (setf (gethash (format nil "w~D" i) (workflow::task-queue-taken task-queue)) "a")))
      (is (equal '("w59") (mapcar #'pb:task-id (claim node session '("a"))))))))

(part claims-fit-into-an-answer
  "Claimed together or, when another node was faster with one of them, one by one."
  (with-nodes (node) ()
    (let ((session (open-a-session node)) (ids (loop for i below 6 collect (format nil "w~D" i))))
      (dolist (id ids) (start-workflow node id '("a") :input (make-octets 900000)))
      (is (= 2 (length (claim node session '("a") :count 6))))
      (let ((tasks (workflow::claim-singly node session '("a") ids)))
        (is (= 2 (length tasks)))
        (is (every (lambda (task) (= 900000 (length (pb:task-input task)))) tasks))))))

(part claims-that-are-the-last-change
  "A workflow that has had as many changes as there may be fails with the claim, which gives no
task."
  (with-nodes (node) (:max-changes 10)
    (let ((session (open-a-session node)))
      (start-workflow node "w" '("a") :input "in")
      ;; it pauses when it was given back four times
      (loop repeat 2 do (signal-workflow node "w" "x" nil))
      (loop repeat 20
            for task = (first (claim node session '("a")))
            while task
            do (is (workflow::running-p (state-of node "w")))
               (methods:report node (pb:make-report-request :id "w" :fence (pb:task-fence task)
                                                            :give-back (pb:make-give-back))))
      (is (eq :failed (pb:workflow-state-status (state-of node "w")))))))

(part claims-of-several-tasks
  "Tasks are given once, however many ask, by which node whatever."
  (with-nodes (node other) ()
    (let ((ids (loop for i below 100 collect (format nil "w~D" i)))
          (session (open-a-session node)) (given '())
          (lock (sb-thread:make-mutex)))
      (dolist (id ids) (start-workflow node id (list (if (oddp (length given)) "a" "b"))))
      (let ((threads
              (loop for i below 4
                    collect (let ((node (if (evenp i) node other)))
                              (in-thread (loop for tasks = (claim node session '("a" "b") :count 5)
                                               while tasks
                                               do (sb-thread:with-mutex (lock)
                                                    (setf given (append (mapcar #'pb:task-id tasks)
                                                                        given)))))))))
        (mapc #'sb-thread:join-thread threads))
      (is (equal (sort (copy-list ids) #'string<) (sort given #'string<))))))

(part reports-and-the-next-step
  (with-nodes (node other) ()
    (let ((session (open-a-session node)))
      (start-workflow node "w" '("a" (:task "b" :input "own") "c") :input "in")
      (let* ((task (first (claim node session '("a"))))
             (next (report node task "A" :session session :next-kinds '("a" "b"))))
        (is (string= "own" (octets-string (pb:task-input next))))
        (is (< (pb:task-fence task) (pb:task-fence next)))
        ;; an answer that is lost: the same again is answered alike, by any node
        (is (protobuf:message= next (report other task "A" :session session
                                                           :next-kinds '("a" "b"))))
        (is (null (report node next "B" :session session :next-kinds '("a" "b"))))
        (let ((task (first (claim other session '("c")))))
          (is (string= "B" (octets-string (pb:task-input task))))
          (is (null (report other task "C" :session session :next-kinds '("a" "b" "c"))))
          (is (null (report other task "C")))))
      (is (equal '(:completed "C")
                 (multiple-value-bind (status result) (await-workflow node "w")
                   (list status (octets-string result)))))
      (is (= 6 (pb:workflow-state-version (state-of node "w")))))))

(part a-report-gets-a-task-of-another-workflow
  (with-nodes (node other) ()
    (let ((session (open-a-session node)))
      (flet ((report-any (task)
               (report node task "A" :session session :next-kinds '("a" "b") :of-any t)))
        (start-workflow node "w1" '("a" "b"))
        (let ((task (first (claim node session '("a")))) (next nil))
          (start-workflow node "w2" '("b") :input "in")
          (is (string= "w1" (pb:task-id (setf next (report-any task))))
              "the next step comes first")
          (is (null (report node next "B" :session session :next-kinds '("c") :of-any t))
              "there is none of these kinds")
          (is (null (report node next "B" :session session :next-kinds '("b") :of-any t))
              "that is the same report again")
          (start-workflow node "w3" '("a"))
          (let* ((third (first (claim node session '("a")))) (second (report-any third)))
            (is (equal '("w2" "in") (list (pb:task-id second)
                                          (octets-string (pb:task-input second)))))
            (is (null (report-any third)) "that is the same report again")
            (is (null (claim node session '("b"))))
            (is (null (report-any second)) "there is no other")))
        ;; the report is refused, which the node learns from the store
        (start-workflow node "w4" '("a"))
        (let ((task (first (claim node session '("a")))))
          (start-workflow node "w5" '("b"))
          (cancel-workflow other "w4")
          (signals workflow-closed (report-any task))
          (is (equal '("w5") (mapcar #'pb:task-id (claim node session '("b"))))))
        ;; the worker has the next step after all, which the node learns from the store
        (start-workflow node "w6" '("a" (:signal "x") "b"))
        (let ((task (first (claim node session '("a")))))
          (start-workflow node "w7" '("b"))
          (signal-workflow other "w6" "x" nil)
          (is (string= "w6" (pb:task-id (report-any task))))
          (is (equal '("w7") (mapcar #'pb:task-id (claim node session '("b"))))))
        ;; the session has ended
        (start-workflow node "w8" '("a"))
        (let ((task (first (claim node session '("a")))))
          (start-workflow node "w9" '("b"))
          (end-of-session node session)
          (is (null (ignore-errors (report-any task))))
          ;; with what the session had
          (is-true (find "w9" (claim node (open-a-session node) '("b") :count 16)
                         :key #'pb:task-id :test #'string=)))))))

(defmacro without-log (&body body)
  "Evaluate BODY, whose threads log nothing."
  `(with-changed (((sb-ext:symbol-global-value 'base:*log-function*) nil)) ,@body))

(part a-report-again-gets-only-its-own-claim
  "The session that has reported may have claimed the next step since, by another call: the same
report again does not give that to a second thread."
  (with-nodes (node) ()
    (let ((session (open-a-session node)))
      (flet ((report-first (task)
               (report node task "A" :session session :next-kinds '("a" "b"))))
        (start-workflow node "w" '("a" (:signal "x") "b"))
        (let ((task (first (claim node session '("a")))))
          (is (null (report-first task)))
          (signal-workflow node "w" "x" nil)
          (is (= 1 (length (claim node session '("b")))))
          (is (null (report-first task))))
        ;; nor when the next step was claimed with it, given back and claimed again
        (start-workflow node "w2" '("a" "b"))
        (let* ((task (first (claim node session '("a")))) (next (report-first task)))
          (is (protobuf:message= next (report-first task)))
          (methods:report node (pb:make-report-request :id "w2" :fence (pb:task-fence next)
                                                       :give-back (pb:make-give-back)))
          (is (null (report-first task)))
          (is (= 1 (length (claim node session '("b")))))
          (is (null (report-first task))))))))

(defclass passing-on (pb:workflow)
  ((node :initarg :node :reader passing-on-node)) ; a workflow service
  (:documentation "A service of the same image that calls the methods of NODE itself."))

(defmethod methods:report ((service passing-on) request &key)
  (methods:report (passing-on-node service) request))

(defmethod methods:claim ((service passing-on) request &key)
  (methods:claim (passing-on-node service) request))

(test handlers-call-the-service
  "A handler that reports a task by a call of the method gets another one with the answer, as by a
call; a claim does not wait then."
  (with-memory-node (node)
    (let ((service (make-instance 'passing-on :node node)) (session (open-a-session node)))
      (start-workflow node "w1" '("a"))
      (start-workflow node "w2" '("a"))
      (eventually (= 2 (length (workflow::known-ready node "a" 2))))
      (let ((task (first (claim service session '("a") :wait 1))))
        (is-true task)
        (let ((next (report service task "A" :session session :next-kinds '("a") :of-any t)))
          (is (equal '("w1" "w2") (sort (list (pb:task-id task) (pb:task-id next)) #'string<)))
          (report service next "A")
          (is (eq :completed (await-workflow node (pb:task-id task))))
          (is (eq :completed (await-workflow node (pb:task-id next))))
          (is (null (claim service session '("a") :wait 1))))))))

(part ids-that-are-free-again
  "A worker of a workflow that is forgotten reports nothing to another one of the same id."
  (with-nodes (node) (:retention-seconds 0)
    (let ((session (open-a-session node)) (old nil))
      (start-workflow node "w" '("a" "b"))
      (setf old (first (claim node session '("a"))))
      (cancel-workflow node "w")
      (eventually (zerop (etcd:count-entries *etcd* :prefix (workflow::node-key node "state" ""))))
      (start-workflow node "w" '("a" "b"))
      (let ((new (first (claim node session '("a")))))
        (signals claim-lost (report node old "old"))
        (is (< (pb:task-fence old) (pb:task-fence new)))
        (is (= (pb:task-fence new) (pb:workflow-state-fence (state-of node "w"))))
        (report node new "new")
        (is (= 1 (pb:workflow-state-current (state-of node "w"))))))))

(part what-cannot-be-changed-holds-up-nobody
  "States that are none, keys that are none of ours, claims of sessions that are gone: others' times
and sessions are looked after all the same."
  (without-log
    (let ((namespace (new-namespace)) (session nil))
      (flet ((put (value &rest parts)
               (etcd:put *etcd* (apply #'workflow::key (workflow::root-of namespace) parts) value)))
        (call-with-nodes 1 (lambda (node)
                             (setf session (open-a-session node))
                             (start-workflow node "claimed" '("a"))
                             (claim node session '("a")))
                         :namespace namespace)
        (dotimes (i 70)
          (let ((id (format nil "bad~D" i)))
            (put (coerce #(255 255 255) 'base:octets) "state" id)
            (put "" "index/due" (workflow::shard-of id) (workflow::time-text i) id)
            (put "" "claims" session id)))
        (put "" "index/due" "what?")
        (put "" "index/due" "0" "what?")
        (put "" "index/due" "0" "later" "w")
        (dotimes (i workflow::+shards+)
          (put (coerce #(255 255 255) 'base:octets) "index/due" (workflow::shard-text i)
               (workflow::time-text 1) "end" "bad")
          (put "" "index/due" (workflow::shard-text i) (workflow::time-text 1) "a" "b" "c"))
        (put "" "index/nodes" "nobody")
        (put "" "date")
        (put "" "index/ready")
        (put (coerce #(255 255 255) 'base:octets) "state" "worse")
        (put "" "index/ready/a/0" (workflow::time-text 1) "worse")
        (etcd:remove-entry *etcd* (workflow::key (workflow::root-of namespace) "index/sessions"
                                                 session))
        (call-with-nodes 1 (lambda (node)
                             (start-workflow node "w" '((:wait 1/10)))
                             (is (eq :completed (await-workflow node "w")))
                             (let ((tasks (claim node (open-a-session node) '("a")
                                                 :wait +patience+ :count 5)))
                               (is (equal '("claimed") (mapcar #'pb:task-id tasks)))))
                         :namespace namespace)))))

(part old-cached-states
  "What a node has seen of a workflow, and others have changed since, refuses nobody."
  (with-nodes (node other) ()
    (eventually (workflow::node-index-watch node)) ; with which it forgets all
    (let ((session (open-a-session node)))
      (start-workflow node "w" '("a" "b"))
      (let ((task (first (claim node session '("a")))))
        (methods:report other (pb:make-report-request :id "w" :fence (pb:task-fence task)
                                                      :give-back (pb:make-give-back)))
        (let ((again (first (claim other session '("a")))))
          (is (= (pb:task-fence task)
                 (pb:workflow-state-fence
                  (workflow::cached-state-state (gethash "w" (workflow::node-recent node))))))
          (is (string= "b" (pb:task-kind (report node again "A" :session session
                                                                :next-kinds '("b")))))))
      (cancel-workflow other "w")
      (signals workflow-closed (signal-workflow node "w" "x" nil)))))

(part sessions-that-end
  "What a worker has claimed that is not heard of goes to others; its report is refused."
  (with-nodes (node other) ()
    (let ((session (open-a-session node :seconds 2)) (second (open-a-session node)))
      (start-workflow node "w" '("a"))
      (let ((task (first (claim node session '("a")))))
        (is (equal '() (claim node second '("a"))))
        (let ((again (first (claim other second '("a") :wait 20))))
          (is (< (pb:task-fence task) (pb:task-fence again)))
          (is (= 1 (pb:task-attempt again)))
          (signals claim-lost (report node task "late"))
          (report node again "done")
          (signals workflow-closed (report node task "late"))
          (report node again "done"))
        (signals session-lost (beat node session))
        (is (eq :completed (await-workflow node "w")))))))

(part sessions-that-end-while-no-node-is-there
  (let ((session nil) (namespace (new-namespace)))
    (call-with-nodes 1 (lambda (node)
                         (setf session (open-a-session node :seconds 2))
                         (start-workflow node "w" '("a"))
                         (claim node session '("a")))
                     :namespace namespace)
    (eventually (zerop (etcd:count-entries
                        *etcd* :prefix (format nil "clgrpc/workflows/~A/index/sessions/"
                                               namespace))))
    (call-with-nodes 1 (lambda (node)
                         (is (= 1 (length (claim node (open-a-session node) '("a") :wait 20)))))
                     :namespace namespace)))

(part heartbeats
  "A heartbeat tells what is lost, and what its worker does not know of goes to others in the end."
  (let ((now (clgrpc.loop:unix-ns)))
    (with-nodes (node) (:clock (lambda () now))
      (let ((session (open-a-session node)))
        (flet ((beat (&rest tasks)
                 (beat node session
                       (loop for task in tasks
                             collect (pb:make-held :id (pb:task-id task)
                                                   :fence (pb:task-fence task))))))
          (start-workflow node "w1" '("a"))
          (start-workflow node "w2" '("a"))
          (let ((tasks (claim node session '("a") :count 2)))
            (is (= 2 (length tasks)))
            (is (null (apply #'beat tasks)))
            (cancel-workflow node (pb:task-id (first tasks)))
            (is (equal (list (pb:task-id (first tasks))) (apply #'beat tasks)))
            ;; young claims may be on their way
            (is (null (beat)))
            (is (null (claim node session '("a"))))
            (incf now (* 61 1000000000))
            (is (null (beat)))
            (let ((again (first (claim node session '("a") :wait 5))))
              (is (string= (pb:task-id (second tasks)) (pb:task-id again)))
              ;; it has the same workflow, and not by the claim that it knows of
              (is (equal (list (pb:task-id again)) (beat (second tasks))))
              (is (null (beat again))))))))))

(part a-heartbeat-may-be-a-call-of-its-own
  "It tells what is lost, as one on a stream does, and takes the session to its node."
  (with-nodes (node) ()
    (let* ((session (open-a-session node)) (opened (workflow::known-revision node session)))
      (flet ((beat (&rest held)
               (map 'list #'pb:held-id
                    (pb:heartbeat-reply-lost
                     (workflow::ask #'methods:heartbeat node
                                    (pb:make-heartbeat-request :session session :held held) 10)))))
        (is (null (beat)))
        (is (< opened (workflow::known-revision node session)))
        (is (equal '("w") (beat (pb:make-held :id "w" :fence 1))))
        (end-of-session node session)
        (signals session-lost (beat))))))

(part claims-that-do-not-wait-ask
  "A claim that does not wait asks the store if its node knows of fewer tasks than it may get."
  (with-nodes (node) ()
    (let ((session (open-a-session node)))
      (start-workflow node "w1" '("a"))
      (start-workflow node "w2" '("a"))
      (workflow::remove-ready (workflow::node-ready-list node) "w2" most-positive-fixnum)
      (is (= 2 (length (claim node session '("a") :count 2)))))))

(part heartbeats-cost-little
  "The first one on a stream is a put, and further ones of a worker without tasks ask etcd nothing,
nor does a claim that waits when there is no task; a worker that had a task is looked at until it
has none."
  (with-nodes (node) ()
    (let ((session (open-a-session node)) (heartbeats (open-heartbeats node)) (asked 0))
      (flet ((asked-by (function)
               (setf asked 0)
               (funcall function)
               asked)
             (revision () (workflow::known-revision node session))
             (beat (&optional held) (send-beat heartbeats session held)))
        ;; the jobs of the node may ask at the same time, on their threads
        (with-replaced (('workflow::note-heartbeat (lambda (function &rest arguments)
                                                     (incf asked)
                                                     (apply function arguments))))
          (unwind-protect
               (let ((opened (revision)))
                 (is (= 1 (asked-by #'beat)))
                 (is (< opened (revision)))
                 (setf opened (revision))
                 (is (null (claim node session '("a") :wait 0.01)))
                 (eventually (plusp (workflow::node-count-seconds node)))
                 (is (= 0 (asked-by (lambda () (dotimes (i 10) (beat))))))
                 (start-workflow node "w" '("a"))
                 (let ((task (first (claim node session '("a") :wait 5))))
                   (is (= 1 (asked-by #'beat)))
                   (report node task "x"))
                 (beat)
                 (is (= 0 (asked-by #'beat)))
                 (is (= opened (revision)) "the key is as it was"))
            (rpc:cancel heartbeats)))))))

(part sessions-are-counted-while-the-watch-begins
  "Looking at which sessions there are forgets what has ended, and none that is being opened."
  (with-nodes (node) ()
    (let ((session (open-a-session node)))
      (workflow::reserve-session node "abc")
      (workflow::note-session node "def")
      (workflow::note-sessions node)
      (is (equal (list session)
                 (alexandria:hash-table-keys (workflow::open-sessions node))))
      (is (= 2 (workflow::node-sessions node))))))

(part sessions-that-are-closed
  (with-nodes (node) ()
    (let ((session (open-a-session node)) (other (open-a-session node)))
      (start-workflow node "w" '((:task "a" :attempts 1)))
      (let ((before (first (claim node session '("a")))))
        (methods:close-session node (pb:make-close-session-request :session session))
        (let ((task (first (claim node other '("a") :wait 5))))
          (is (= 1 (pb:task-attempt task)))
          (is (< (pb:task-fence before) (pb:task-fence task)))))
      (signals session-lost (claim node session '("a"))))))

(part names-that-are-no-sessions
  "They are refused, and get no lease."
  (with-nodes (node) ()
    (dolist (session '("abc" "abc-10" "abc-99999" "-" "12-0" "12-x" "12-10-10"))
      (signals session-lost
        (workflow::ask #'methods:close-session node
                       (pb:make-close-session-request :session session) 5))
      (signals session-lost (beat node session)))
    (is (zerop (hash-table-count (workflow::node-session-leases node))))))

(part times-are-kept-by-whoever-lives
  "What waits for a time goes on when that comes, though the node that began it is gone; a clock
that is set forward or back loses nothing."
  (let ((ahead 0) (namespace (new-namespace)))
    (flet ((set-clock-of (node seconds)
             ;; not more than an hour at once, and it sees each
             (setf ahead (* seconds 1000000000))
             (workflow::node-now node))
           (nodes (function)
             (call-with-nodes 1 function :clock (lambda () (+ (clgrpc.loop:unix-ns) ahead))
                                         :namespace namespace)))
      (nodes (lambda (node)
               (start-workflow node "soon" '((:wait 1/2)))
               (start-workflow node "later" '((:wait 3600)))
               (start-workflow node "late" '((:signal "x")) :timeout 7200)))
      (nodes (lambda (node)
               (is (eq :completed (await-workflow node "soon")))
               (setf ahead (- (* 1800 1000000000)))
               (start-workflow node "back" '((:wait 1/2)))
               (is (eq :completed (await-workflow node "back")))
               (is (workflow::running-p (state-of node "later")))
               (set-clock-of node 1000)
               (set-clock-of node 3601)
               (is (eq :completed (await-workflow node "later")))
               (is (workflow::running-p (state-of node "late")))
               (set-clock-of node 7201)
               (is (eq :failed (await-workflow node "late"))))))))

(part what-has-ended-is-forgotten-by-the-store
  (with-nodes (node) (:retention-seconds 1)
    (start-workflow node "w" '((:signal "x") "a") :input "in")
    (signal-workflow node "w" "x" "payload")
    (cancel-workflow node "w")
    (is-true (wait-until (lambda ()
                           ;; its own, and the date
                           (= 2 (etcd:count-entries *etcd* :prefix (workflow::node-root node))))))
    (is-true (start-workflow node "w" '("a")))))

(part watches-of-workflows
  "All changes are told, each once and in order, though the node goes meanwhile and another comes."
  (with-nodes (one two) ()
    (let* ((server (server:start-server one))
           (address (server:server-address server))
           (channel (client:make-channel address :backoff-maximum-seconds 0.2))
           (seen '()) (all '()) (ended nil) (watcher nil) (watcher-of-all nil))
      (unwind-protect
           (progn
             (start-workflow two "w" (loop repeat 20 collect '(:signal "x")))
             (let ((revision (pb:get-workflow-state-reply-revision (workflow-state two "w"))))
               (setf watcher (watch-workflow (lambda (change)
                                               (push (pb:change-number change) seen))
                                             channel "w" :on-end (lambda (condition)
                                                                   (setf ended (list condition))))
                     watcher-of-all (watch-workflow (lambda (change)
                                                      (push (list (pb:change-id change)
                                                                  (pb:change-number change))
                                                            all))
                                                    channel nil :revision revision)))
             (dotimes (i 10) (signal-workflow two "w" "x" nil))
             (eventually (and (= 11 (length seen)) (= 11 (length all))))
             (server:stop-server server :drain 1)
             (dotimes (i 5) (signal-workflow two "w" "x" nil))
             (start-workflow two "w2" '("a"))
             (setf server (server:start-server two :listen address))
             (dotimes (i 5) (signal-workflow two "w" "x" nil))
             (eventually ended)
             (is (equal '(nil) ended))
             (eventually (= 22 (length all)))
             (is (equal (loop for i from 1 to 21 collect i) (reverse seen)))
             (is (equal (loop for i from 1 to 21 collect (list "w" i))
                        (remove "w2" (reverse all) :key #'first :test #'string=)))
             ;; one that begins when all is over
             (let ((numbers '()) (over nil))
               (workflow:watch-workflow (lambda (change) (push (pb:change-number change) numbers))
                                        channel "w" :after 18
                                                    :on-end (fn (_condition) (setf over t)))
               (eventually over)
               (is (equal '(21 20 19) numbers))))
        (when watcher (end-watching watcher))
        (when watcher-of-all (end-watching watcher-of-all))
        (calling:close-channel channel)
        (server:stop-server server)))))

(part watches-of-what-is-compacted
  (with-nodes (node) ()
    (start-workflow node "w" '((:signal "x") (:signal "x")))
    (let ((revision (pb:get-workflow-state-reply-revision (workflow-state node "w")))
          (ended nil))
      (signal-workflow node "w" "x" nil)
      (etcd:compact *etcd* (pb:get-workflow-state-reply-revision (workflow-state node "w")))
      (watch-workflow (constantly nil) node nil :revision revision
                                                :on-end (lambda (condition) (setf ended condition)))
      (eventually ended)
      (is (typep ended 'changes-compacted))
      ;; that of one workflow comes out of its history
      (let ((numbers '()))
        (let ((watcher (watch-workflow (lambda (change) (push (pb:change-number change) numbers))
                                       node "w")))
          (eventually (= 2 (length numbers)))
          (end-watching watcher))))))

(part watches-of-all-say-where-they-go-on
  "They begin with that, and say it of each change: several may have come at one revision."
  (with-nodes (node) ()
    (let ((session (open-a-session node)))
      (rpc:with-call (call (methods:watch node (pb:make-watch-request)))
        (let ((beginning (rpc:receive call)))
          (is (string= "" (pb:change-id beginning)))
          (is (plusp (pb:change-resume-revision beginning)))
          (start-workflow node "w1" '("a"))
          (start-workflow node "w2" '("a"))
          (claim node session '("a") :count 2)
          (let ((changes (loop repeat 4 collect (rpc:receive call))))
            (is (<= (pb:change-resume-revision beginning) (pb:change-revision (first changes))))
            (is (equal '(1 1 0 1)
                       (loop for change in changes
                             collect (- (pb:change-resume-revision change)
                                        (pb:change-revision change)))))
            (is (= (pb:change-revision (third changes)) (pb:change-revision (fourth changes)))))
          (rpc:cancel call)))
      ;; a workflow that has had fewer changes than are known is another one
      (let ((ended nil))
        (watch-workflow (constantly nil) node "w1" :after 3
                                                   :on-end (lambda (condition)
                                                             (setf ended condition)))
        (eventually ended)
        (is (typep ended 'changes-compacted))))))

(test watches-go-on-within-a-revision
  "What a watch of all has told of a revision it does not tell again, and it loses none of it."
  (let* ((told '())
         (watcher (workflow::make-watcher :function (lambda (change)
                                                      (push (list (pb:change-id change)
                                                                  (pb:change-number change))
                                                            told)))))
    (flet ((come (id number revision resumption)
             (workflow::note-change watcher
                                    (pb:make-change :id id :number number :revision revision
                                                    :resume-revision resumption))
             (workflow::watcher-revision watcher)))
      (is (= 5 (come "" 0 0 5)))
      (is (= 7 (come "a" 1 7 7)))
      (is (= 7 (come "b" 4 7 7)))
      ;; its call is broken off, and it asks for the changes from 7 on
      (is (= 7 (come "" 0 0 7)))
      (is (= 7 (come "a" 1 7 7)))
      (is (= 7 (come "b" 4 7 7)))
      (is (= 8 (come "c" 9 7 8)))
      (is (= 10 (come "a" 2 9 10)))
      ;; a beginning that comes late
      (is (= 10 (come "" 0 0 8)))
      (is (equal '(("a" 1) ("b" 4) ("c" 9) ("a" 2)) (reverse told))))))

(test watches-of-one-go-on-after-compaction
  "Their changes are in the history, so whoever asks again gets them; those of all are lost."
  (flet ((told (type one)
           (type-of (workflow::watch-end-condition (make-condition type :text "") one))))
    (is (eq 'store-unavailable (told 'etcd:compacted t)))
    (is (eq 'changes-compacted (told 'etcd:compacted nil)))
    (is (eq 'changes-compacted (told 'etcd:future-revision nil)))
    (is (eq 'store-unavailable (told 'etcd:unavailable nil)))))

(part watches-whose-function-fails
  "They end by whatever it signals: what its own calls have signalled is not taken for the stream's,
by which changes would be passed by."
  (with-nodes (node) ()
    (start-workflow node "w" '("a"))
    (let ((revision (pb:get-workflow-state-reply-revision (workflow-state node "w"))))
      (dolist (id '("w" nil))
        (dolist (condition (list (make-condition 'simple-error :format-control "by the user")
                                 (make-condition 'support:unprintable)
                                 (make-condition 'store-unavailable :text "by the user")
                                 (make-condition 'clgrpc.status:rpc-error :status :unavailable
                                                                :message "by the user")))
          (let ((ended nil) (calls 0))
            (watch-workflow (fn (_change)
                              (incf calls)
                              (error condition))
                            node id :revision revision
                                    :on-end (lambda (condition) (setf ended condition)))
            (eventually ended)
            (is (eq 'workflow-error (type-of ended)))
            (is (search (if (typep condition 'support:unprintable)
                            "(cannot be printed)"
                            "by the user")
                        (princ-to-string ended)))
            (is (= 1 calls))))))))

(part watches-from-where-the-store-has-not-been
  "It has lost its data, and would tell nothing until it was there again."
  (with-nodes (node) ()
    (start-workflow node "w" '("a"))
    (let ((next (1+ (workflow::store-revision node))) (heard nil) (ended nil))
      (flet ((watch-from (revision)
               (watch-workflow (lambda (change) (setf heard change)) node nil
                               :revision revision
                               :on-end (lambda (condition) (setf ended condition)))))
        (watch-from (+ 1000 next))
        (eventually ended)
        (is (typep ended 'changes-compacted))
        (setf ended nil)
        (let ((watcher (watch-from next)))
          (eventually (plusp (workflow::feed-count (workflow::node-feed node))))
          (start-workflow node "w2" '("a"))
          (eventually heard)
          (is-false ended)
          (end-watching watcher))))))

(part too-many
  "Workflows, claims and watches are refused beyond their limits."
  (with-nodes (node) (:max-running 3 :max-waiting-claims 1 :max-watches 1)
    (dotimes (i 3) (start-workflow node (format nil "w~D" i) '((:signal "x"))))
    (eventually (= 3 (workflow::node-running node)))
    ;; what was begun before is answered alike
    (is-false (start-workflow node "w1" '((:signal "x"))))
    (signals workflow-exists (start-workflow node "w1" '("a")))
    (handler-case (progn (start-workflow node "w" '("a")) (fail "too many"))
      (backlog-full (condition) (is (string= "max-running" (workflow-error-limit condition)))))
    (let ((session (open-a-session node)))
      (flet ((claim-later ()
               (calling:call-async #'methods:claim node
                                   (pb:make-claim-request :session session :kinds '("a")
                                                          :wait-ms 20000))))
        (let ((first (claim-later)))
          (eventually (plusp (workflow::task-queue-parked (workflow::node-task-queue node))))
          (signals backlog-full (claim node session '("a") :wait 1))
          (rpc:cancel first))))
    (let ((watcher (watch-workflow (constantly nil) node "w0")))
      (eventually (plusp (workflow::feed-count (workflow::node-feed node))))
      (let ((ended nil))
        (watch-workflow (constantly nil) node "w1" :on-end (lambda (condition)
                                                             (setf ended condition)))
        (eventually ended)
        (is (typep ended 'backlog-full)))
      (end-watching watcher)))
  (with-nodes (node other) (:max-sessions 2)
    (flet ((too-many-p (node)
             (handler-case (progn (workflow::ask #'methods:open-session node
                                                 (pb:make-open-session-request) 5)
                                  nil)
               (backlog-full (condition)
                 (string= "max-sessions" (workflow-error-limit condition))))))
      (let ((session (progn (open-a-session node) (open-a-session node))))
        (is-true (too-many-p node) "its own count at once")
        (eventually (= 2 (workflow::node-sessions other)))
        (is-true (too-many-p other))
        (methods:close-session other (pb:make-close-session-request :session session))
        (eventually (= 1 (workflow::node-sessions node)))
        (is-false (too-many-p node))
        (is-true (too-many-p node)))))
  (with-nodes (node) ()
    (signals too-large
      (beat node (open-a-session node)
            (loop repeat 10001 collect (pb:make-held :id "w" :fence 1))))))

(part watches-share-one
  "However many watch at a node, etcd has one watch for them; they are told what came before, and
what comes, each once and in order; one peer cannot have them all."
  (with-nodes (node) (:max-watches-per-peer 40)
    (let ((told (make-array 40 :initial-element '())) (watchers '())
          (before (progn (eventually (workflow::node-index-watch node))
                         (watches-of-the-store))))
      (start-workflow node "w" '((:signal "x") (:signal "x") (:signal "x")))
      (signal-workflow node "w" "x" nil)
      (dotimes (i 40)
        (let ((i i))
          (push (watch-workflow (lambda (change) (push (pb:change-number change) (svref told i)))
                                node "w")
                watchers)))
      (eventually (= 40 (workflow::feed-count (workflow::node-feed node))))
      (is (<= (watches-of-the-store) (1+ before)))
      (let ((ended nil))
        (watch-workflow (constantly nil) node "w" :on-end (lambda (condition)
                                                            (setf ended condition)))
        (eventually ended)
        (is (typep ended 'backlog-full))
        (is (equal "max-watches-per-peer" (workflow-error-limit ended))))
      (dotimes (i 2) (signal-workflow node "w" "x" nil))
      (eventually (every (lambda (numbers) (= 4 (length numbers))) told))
      (is (every (lambda (numbers) (equal '(4 3 2 1) numbers)) told))
      (mapc #'end-watching watchers)
      (eventually (zerop (workflow::feed-count (workflow::node-feed node)))))))

(test a-feed-whose-watch-ends-at-once-begins-again
  "The watch of the store may end before the node has it: other watches get a new one."
  (with-memory-node (node)
    (start-workflow node "w" '((:signal "x") (:signal "x")))
    (let ((first t) (numbers '()) (feed (workflow::node-feed node))
          (prefix (workflow::node-key node "state" "")))
      (with-replaced (('etcd:watch
                       (lambda (function &rest arguments)
                         (let ((watch (apply function arguments)) (options (cddr arguments)))
                           (when (and first (equal prefix (getf options :prefix)))
                             (setf first nil)
                             (etcd:cancel-watch watch)
                             (funcall (getf options :on-end)
                                      (make-condition 'etcd:compacted :text "at once")))
                           watch))))
        (let ((watcher (watch-workflow (lambda (change) (push (pb:change-number change) numbers))
                                       node "w")))
          (eventually (let ((watch (workflow::feed-watch feed)))
                        (and (not first) numbers watch
                             (etcd:watch-open-p watch))))
          (signal-workflow node "w" "x" nil)
          (eventually (equal '(2 1) numbers))
          (end-watching watcher))))))

(test watches-that-are-not-read-leave-threads-to-others
  "Watches of all that go on from an early revision may wait for their peers on threads of the
store's client: 32 of them. Others end then, and their peers may ask again."
  (with-memory-node (node)
    (dotimes (i 200)
      (let ((id (format nil "w~D" i)))
        (start-workflow node id '((:signal "x")))
        (cancel-workflow node id :reason (make-string 2000 :initial-element #\x))))
    (let ((server (server:start-server node)) (feed (workflow::node-feed node))
          (refused (list 0)))
      (with-replaced (('workflow::end-subscription (lambda (function &rest arguments)
                                                     (sb-ext:atomic-incf (car refused))
                                                     (apply function arguments))))
        (unwind-protect
             (client:with-channel (channel (server:server-address server)
                                           :stream-window-octets 65535)
               (let ((calls (loop repeat 40
                                  collect (methods:watch channel
                                                         (pb:make-watch-request :revision 1)))))
                 (eventually (and (= 8 (car refused)) (= 32 (workflow::feed-senders feed))))
                 (mapc #'rpc:cancel calls)
                 (eventually (and (zerop (workflow::feed-senders feed))
                                  (zerop (workflow::feed-count feed))))))
          (server:stop-server server :drain 0))))))

(test the-store-is-asked-while-the-index-is-not-watched
  "A node that cannot begin its watch of the index does not believe that it knows all tasks."
  (with-memory-node (node)
    (let ((other (make-instance 'workflow-service
                                :etcd (workflow::node-etcd node) :namespace "other"
                                :root (workflow::root-of "other")
                                :limits (workflow::make-limits))))
      (with-replaced (('etcd:watch
                       (fn (_function &rest _arguments)
                         (error 'etcd:unavailable :text "by the test"))))
        (signals etcd:unavailable (workflow::ensure-index-watch other)))
      (is-false (workflow::ready-list-watched (workflow::node-ready-list other))))))

(test a-sweep-that-fails-is-made-again
  "Whatever a node meets when it looks after the timers of others, it does so again."
  (with-memory-node (node)
    (without-log
      (with-replaced (('workflow::sweep-timers
                       (fn (_function &rest _arguments) (error "by the test"))))
        (is (eql workflow::+sweep-seconds+ (workflow::sweep-workflows-now-and-then node)))))))

(defun watches-of-the-store ()
  "How many watches *ETCD* has."
  (hash-table-count (etcd::multiplex-watches (etcd::multiplex-of *etcd*))))

(part cached-states-of-a-store-that-may-have-gone-back
  "What a node has seen of states it forgets with the watch of the index, which ends with them."
  (with-nodes (node) ()
    (start-workflow node "w" '("a"))
    (is-true (gethash "w" (workflow::node-recent node)))
    (workflow::wake-keeper node
                                (lambda (wakeup) (setf (workflow::wakeup-lost-watch wakeup) t)))
    (eventually (null (gethash "w" (workflow::node-recent node))))))

(defun metric (metrics name &rest values)
  (let ((family (find name (metrics:collect metrics) :key #'metrics:family-name :test #'string=)))
    (loop for point in (metrics:family-points family)
          when (equal values (mapcar #'cdr (metrics:point-attributes point)))
            return (metrics:point-value point))))

(part what-a-node-counts
  (let* ((metrics (metrics:make-metrics))
         (namespace (new-namespace)))
    (flet ((count-of (name &rest values) (apply #'metric metrics name namespace values)))
      (with-nodes (node) (:metrics metrics :namespace namespace)
        (let ((session (open-a-session node)))
          (start-workflow node "w" '("a" (:wait 0)))
          (start-workflow node "w2" '("a"))
          (signals workflow-exists (start-workflow node "w2" '("b")))
          (eventually (eql 2 (count-of "clgrpc.workflow.ready")))
          ;; the two are counted one after the other
          (eventually (eql 2 (count-of "clgrpc.workflow.running")))
          (let ((task (first (claim node session '("a")))))
            (report node task "A"))
          (eventually (eql 1 (count-of "clgrpc.workflow.ready")))
          (is (eql (nth-value 1 (workflow::room-used node))
                   (count-of "clgrpc.workflow.store_limit")))
          (is (eql 2 (count-of "clgrpc.workflow.workflows" "started")))
          (is (eql 1 (count-of "clgrpc.workflow.steps" "step_claimed" "a")))
          (is (eql 1 (count-of "clgrpc.workflow.steps" "step_done" "a")))
          (is (eql 1 (count-of "clgrpc.workflow.refused" "workflow-exists"))))))))

(part nodes-share-metrics
  "Services of two namespaces, and one that is made again, count in one METRICS object, each under
its namespace; a service that is closed is neither asked nor kept by it."
  (let ((metrics (metrics:make-metrics)))
    (with-nodes (a) (:metrics metrics :namespace "shared-a")
      (with-nodes (b) (:metrics metrics :namespace "shared-b")
        (start-workflow a "w" '("a"))
        (start-workflow b "w" '("a"))
        (start-workflow b "w2" '("a"))
        (eventually (and (eql 1 (metric metrics "clgrpc.workflow.ready" "shared-a"))
                         (eql 2 (metric metrics "clgrpc.workflow.ready" "shared-b"))))
        (is (eql 1 (metric metrics "clgrpc.workflow.workflows" "shared-a" "started"))))
      (is (null (metric metrics "clgrpc.workflow.ready" "shared-b"))))
    (with-nodes (a) (:metrics metrics :namespace "shared-a")
      (is (eql 0 (metric metrics "clgrpc.workflow.waiting_claims" "shared-a"))))))

(test the-service-in-memory
  "Some parts, on an engine in memory."
  (let ((engine (memory:make-engine)))
    (unwind-protect
         (let ((*etcd* (memory:connect engine)))
           (unwind-protect
                (mapc #'funcall '(starting-and-asking signals-count-once
                                  statuses-without-a-name-are-refused claims-wait-for-tasks
                                  claims-of-sessions-that-end reports-and-the-next-step
                                  a-report-gets-a-task-of-another-workflow
                                  heartbeats heartbeats-cost-little
                                  names-that-are-no-sessions
                                  a-report-again-gets-only-its-own-claim ids-that-are-free-again
                                  what-cannot-be-changed-holds-up-nobody old-cached-states
                                  wake-ups-are-not-lost claims-fit-into-an-answer
                                  claims-do-not-wait-though-there-is-something
                                  watches-of-all-say-where-they-go-on
                                  watches-of-workflows watches-whose-function-fails
                                  watches-from-where-the-store-has-not-been watches-share-one
                                  workers-do-steps sessions-outlive-their-nodes))
             (etcd:close-etcd *etcd*)))
      (memory:close-engine engine))))

(test the-service-on-etcd
  "All parts, on one etcd."
  (with-store (store)
    (dolist (part (reverse *parts*)) (funcall part))))

(test the-store-stands-still
  "While etcd does not answer, calls end with STORE-UNAVAILABLE and health says so; then all goes
on."
  (let ((health (make-instance 'services:health-service)))
    (with-store (store)
      (etcd:with-etcd (etcd (tests:store-address store) :timeout 1 :backoff-maximum-seconds 0.2)
        (let ((node (make-workflow-service etcd :health health)))
          (unwind-protect
               (flet ((status () (services:health-status health "clgrpc.workflow.v1.Workflow")))
                 (start-workflow node "w" '((:wait 1/10) (:signal "x") (:wait 1/10)))
                 (eventually (eq :serving (status)))
                 (support:signal-program (tests:store-program store) sb-unix:sigstop)
                 (unwind-protect
                      (progn (signals store-unavailable (start-workflow node "w2" '("a")))
                             (eventually (eq :not-serving (status))))
                   (support:signal-program (tests:store-program store) sb-unix:sigcont))
                 (signal-workflow node "w" "x" nil :timeout +patience+)
                 (is (eq :completed (await-workflow node "w")))
                 (eventually (eq :serving (status))))
            (close-workflow-service node)))))))

(test what-does-not-pass-is-not-told-as-passing
  "A store that is full, or forbids what is asked, is told as that; one that may be back is not."
  (let ((engine (memory:make-engine)))
    (unwind-protect
         (let ((*etcd* (memory:connect engine)))
           (unwind-protect
                (with-nodes (node) ()
                  (flet ((start (condition)
                           (with-replaced (('etcd:transact
                                            (fn (_function &rest _arguments)
                                              (error condition :text "as etcd says"))))
                             (handler-case (start-workflow node "w" '("a"))
                               (workflow-error (condition)
                                 (list (type-of condition)
                                       (and (workflow::passing-p condition) t)))))))
                    (is (equal '(store-full nil) (start 'etcd:space-exceeded)))
                    (is (equal '(store-forbids nil) (start 'etcd:access-denied)))
                    (is (equal '(store-unavailable t) (start 'etcd:unavailable)))
                    (is-true (start-workflow node "w" '("a")))))
             (etcd:close-etcd *etcd*)))
      (memory:close-engine engine))))

(test a-service-closes-though-its-store-hangs
  "Long before what it asks for has failed; once the store answers it is none of the nodes."
  (with-store (store)
    (etcd:with-etcd (etcd (tests:store-address store) :timeout 60 :backoff-maximum-seconds 0.2)
      (let ((node (make-workflow-service etcd)) (closed nil))
        (flet ((entries () (etcd:fetch-entries etcd :prefix (workflow::node-key node "index/nodes"
                                                                                ""))))
          (unwind-protect
               (progn
                 (is-true (wait-until #'entries))
                 (support:signal-program (tests:store-program store) sb-unix:sigstop)
                 (unwind-protect
                      (progn
                        ;; it counts every two seconds
                        (eventually (loop::job-running (workflow::node-keeper node)))
                        (is (> 20 (tests:seconds-of (close-workflow-service node))))
                        (setf closed t))
                   (support:signal-program (tests:store-program store) sb-unix:sigcont))
                 (eventually (null (entries))))
            (unless closed (close-workflow-service node))))))))
