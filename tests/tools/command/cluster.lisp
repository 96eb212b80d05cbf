;;;; `cluster-node` as a process and `cluster` in this one, on a store in memory that the first node
;;;; has and the others reach.

(in-package #:clgrpc.tests.tools)

(defmacro with-cluster-node ((program address name store &rest arguments) &body body)
  "Run BODY while the node NAME, on STORE, listens at ADDRESS."
  `(support:with-server-program (,program ,address (support:clgrpc-program)
                                          "cluster-node" "--name" ,name "--store" ,store
                                          "--lease-seconds" "2" ,@arguments)
     (declare (ignorable ,address))
     ,@body))

(defun shown-names (address)
  "The names in the table of members that the node at ADDRESS tells."
  (multiple-value-bind (code output) (run-line "cluster" "members" address)
    (is (= 0 code) "~A" output)
    (loop for line in (rest (uiop:split-string output :separator '(#\Newline)))
          unless (string= "" line)
            collect (subseq line 0 (position #\Space line)))))

(defun await-shown (address &rest names)
  "Wait until the members that the node at ADDRESS tells are NAMES."
  (loop with end = (+ (get-universal-time) (support:patient-seconds 20))
        for shown = (shown-names address)
        until (or (equal names shown) (< end (get-universal-time)))
        do (sleep 0.05)
        finally (return (equal names shown))))

(test nodes-are-programs
  "Nodes join, are seen and watched, are killed and lost, and end with the code that says why."
  (with-cluster-node (ada address "ada" "memory" "--worker")
    (let ((store (format nil "etcd:~A" address)))
      (is (equal '("ada") (shown-names address)))
      (with-cluster-node (grace other "grace" store "--label" "zone=b")
        (is (equal '("ada" "grace") (shown-names other)))
        (support:signal-program grace sb-unix:sigkill)
        (is-true (await-shown address "ada")))
      ;; what became of her, from the beginning on
      (multiple-value-bind (code output)
          (run-line "cluster" "watch" address "--revision" "1" "--count" "3" "--json")
        (is (= 0 code))
        (is (= 3 (count #\Newline output)))
        (loop with at = 0
              for text in '("CHANGE_KIND_JOINED" "\"zone\":\"b\"" "CHANGE_KIND_LOST")
              do (setf at (search text output :start2 (or at 0)))
                 (is-true at "~A is not in ~A" text output)))
      ;; another takes a name over, and the former ends
      (with-cluster-node (first first-address "hedy" store)
        (with-cluster-node (second second-address "hedy" store)
          (is (equal 3 (support:program-exit-code first)))
          (multiple-value-bind (code lines)
              (support:run-to-end (support:clgrpc-program)
                                  (list "cluster-node" "--name" "hedy" "--store" store
                                        "--if-taken" "refuse"))
            (is (eql 1 code) "~{~A~%~}" lines))
          (support:terminate-program second)
          (is (equal 0 (support:program-exit-code second))))
        (is-true (await-shown address "ada")))
      ;; workflows, which ada works on
      (is (= 0 (run-line "call" address "clgrpc.workflow.v1.Workflow/Start" "-d"
                         "{\"id\": \"w1\", \"steps\": [{\"task\": \"echo\"}]}")))
      (eventually (search "w1" (nth-value 1 (run-line "cluster" "workflows" address
                                                      "--status" "completed"))))
      (is (search "\"COMPLETED\"" (nth-value 1 (run-line "cluster" "workflows" address
                                                         "--json"))))
      ;; with its worker and its store
      (is (eql 0 (support:terminate-program ada))))))

(test nodes-that-serve-are-those-that-a-rolling-restart-restarts
  "The script of examples/production understands what the program prints of a node. It stops where a
node does not come back, as here, where its command restarts nothing."
  (with-cluster-node (ada address "ada" "memory")
    (multiple-value-bind (output error-output code)
        (uiop:run-program (list "env" (format nil "CLGRPC=~A" (support:clgrpc-program))
                                "WAIT_SECONDS=1"
                                (support:root-file "examples/production/rolling-restart")
                                address "true")
                          :output '(:string :stripped t) :error-output '(:string :stripped t)
                          :ignore-error-status t)
      (is (equal '(1 "restarting ada" "ada has not come back") (list code output error-output))))))

;;; Under a service manager

(defun call-with-managed-node (function certificate key)
  "Call FUNCTION with a node that a service manager runs, with files for its CERTIFICATE and KEY,
its address, and a function that checks that the next notice has the lines that are its arguments."
  (support:call-with-service-manager
   nil
   (lambda (path next)
     (support:with-program (node "/usr/bin/env" (format nil "NOTIFY_SOCKET=~A" path)
                                 (support:clgrpc-program) "cluster-node" "--name" "ada"
                                 "--store" "memory" "--drain" "5"
                                 "--tls-cert" certificate "--tls-key" key)
       (funcall function node (support:server-address node)
                (lambda (&rest lines)
                  (is (null (set-difference lines (funcall next) :test #'string=)))))))))

(test a-service-manager-hears-of-a-node
  "When it is a member, of SIGHUP, at which it reads its certificates again, and of its end, which
may take as long as its drain and ten seconds."
  (uiop:with-temporary-file (:pathname certificate)
    (uiop:with-temporary-file (:pathname key)
      (flet ((install (name) (support:install-certificate name certificate key))
             (code (address)
               (run-line "call" address "grpc.health.v1.Health/Check" "--tls-ca"
                         (support:certificate-file "ca.pem"))))
        (install "server")
        (call-with-managed-node
         (lambda (node address check)
           (funcall check "READY=1" (format nil "STATUS=listening on ~A" address))
           (is (= 0 (code address)))
           (install "stranger")
           (support:signal-program node sb-unix:sighup)
           (funcall check "RELOADING=1")
           (funcall check "READY=1")
           (is (= 78 (code address)))   ; unavailable
           (is (eql 0 (support:terminate-program node)))
           (funcall check "STOPPING=1" "EXTEND_TIMEOUT_USEC=15000000"))
         (uiop:native-namestring certificate) (uiop:native-namestring key))))))

(test workflows-by-the-command-line
  "They are started, signalled, cancelled and shown; what is wrong ends with 1, or 2 where no node
is asked."
  (with-cluster-node (ada address "ada" "memory" "--worker")
    (flet ((said (code what &rest arguments)
             (multiple-value-bind (actual output)
                 (apply #'run-line "cluster" what address arguments)
               (is (= code actual) "~A ~S: ~A" what arguments output)
               output))
           (awaited (status id)
             (wait-until (lambda ()
                           (search (format nil "\"status\": \"~A\"" status)
                                   (nth-value 1 (run-line "cluster" "show" address id
                                                          "--json")))))))
      (let ((request (format nil "{\"type\": \"trial\", \"steps\": [~A, ~A]}"
                             "{\"signal\": \"go\"}" "{\"task\": \"echo\"}")))
        (is (search "w1 started" (said 0 "start" "w1" "--request" request)))
        (is (search "was started before" (said 0 "start" "w1" "--request" request))))
      (said 0 "signal" "w1" "go" "--input" "hello")
      (is-true (awaited "COMPLETED" "w1"))
      (let ((output (said 0 "show" "w1")))
        (dolist (text '("trial" "completed" "echo" "step-claimed" "signalled"))
          (is (search text output) "~A is not in ~A" text output)))
      (is (search "w2 started" (said 0 "start" "w2" "--task" "sleep" "--task" "echo"
                                     "--input" "3600")))
      (said 1 "start" "w2" "--task" "echo")
      (said 0 "cancel" "w2" "--reason" "no more")
      (is-true (awaited "CANCELLED" "w2"))
      (is (search "no more" (said 0 "show" "w2")))
      (said 1 "show" "nobody")
      (said 1 "signal" "w2" "go")
      (is (search "w2" (said 0 "workflows" "--status" "cancelled" "--started-from" "1h")))
      (is (not (search "w2" (said 0 "workflows" "--type" "trial"))))
      (is (search "w1" (said 0 "workflows" "--type" "trial" "--ended-from"
                             "2026-01-01T00:00:00Z")))
      (is (not (search "w1" (said 0 "workflows" "--started-before" "2026-01-01T00:00:00+01:00"))))
      (is (search "w3 started" (said 0 "start" "w3" "--task" "sleep" "--input" "3600")))
      (said 1 "delete" "w3")
      (is (search "w3 deleted" (said 0 "delete" "w3" "--cancel")))
      (is (search "w3 was not there" (said 0 "delete" "w3")))
      (dolist (wrong '(("show") ("start" "w") ("signal" "w") ("delete")
                       ("workflows" "--started-from" "yesterday")
                       ("workflows" "--started-from" "2026-13-01T00:00:00Z")
                       ("start" "w" "--task" "echo" "--request" "{}")
                       ("start" "w" "--request" "{")))
        (apply #'said 2 wrong)))))

(test limits-by-the-command-line
  "What a node's --limit says, given several times, is a limit of its workflows."
  (with-cluster-node (ada address "ada" "memory" "--worker" "--limit" "max-running=1"
                          "--limit" "max-steps=2" "--limit" "retention-seconds=none")
    (flet ((start (id &rest tasks)
             (multiple-value-bind (code output errors)
                 (apply #'run-line "cluster" "start" address id "--input" "3600"
                        (loop for task in tasks collect "--task" collect task))
               (list code (concatenate 'string output errors)))))
      (destructuring-bind (code said) (start "w0" "sleep" "echo" "echo")
        (is (= 1 code))
        (is (search "too many steps" said) "~A" said))
      (destructuring-bind (code said) (start "w1" "sleep" "echo")
        (is (= 0 code) "~A" said))
      ;; what runs is counted now and then
      (is-true (wait-until (let ((i 1))
                             (lambda ()
                               (search "too many workflows"
                                       (second (start (format nil "w~D" (incf i)) "sleep"))))))))))

(test values-of-a-node-s-options
  "What each means, or why it is refused."
  (loop for (function . rows)
          in '((tools::parse-label
                ("zone=a" ("zone" . "a")) ("zone=" ("zone" . "")) ("a=b=c" ("a" . "b=c"))
                ("=a" "NAME=VALUE is expected, not \"=a\"")
                ("zone" "NAME=VALUE is expected, not \"zone\""))
               (tools::parse-permission
                ("start=a.example" (:start . "a.example")) ("READ=*" (:read . "*"))
                ("work:mail=anyone" ((:work "mail") . "anyone"))
                ("operate=spiffe://a/b:c" (:operate . "spiffe://a/b:c"))
                ("=*" "ROLE=PATTERN is expected, not \"=*\"")
                ("read" "ROLE=PATTERN is expected, not \"read\"")
                ("write=*" "\"write\" is not a role: they are start, work")
                ("read:mail=*" "") ("read=" ""))
               (tools::parse-limit
                ("max-running=5" (:max-running 5)) ("MAX-RUNNING=5" (:max-running 5))
                ("retention-seconds=none" (:retention-seconds nil))
                ("max-store-share=0.5" (:max-store-share 1/2))
                ("max-running" "a limit is NAME=VALUE, not \"max-running\"")
                ("max-walking=5" "\"max-walking\" is not a limit; they are ")
                ("max-running=x" "a number is expected, or none") ("max-running=-1" ""))
               (tools::parse-store
                ("memory" "memory") ("etcd:127.0.0.1:1" "etcd:127.0.0.1:1") ("disk" "")))
        do (loop for (text expected) in rows
                 do (multiple-value-bind (value refusal)
                        (handler-case (funcall function text)
                          (tools::usage-error (condition) (values nil (princ-to-string condition))))
                      (if (and (stringp expected) (not (equal text expected)))
                          (is (and refusal (search expected refusal)) "~A ~S: ~S ~S" function text
                              value refusal)
                          (is (equal expected value) "~A ~S: ~S ~S" function text value
                              refusal))))))

(test schedules-by-the-command-line
  (with-cluster-node (ada address "ada" "memory" "--worker")
    (flet ((said (code what &rest arguments)
             (multiple-value-bind (actual output)
                 (apply #'run-line "cluster" what address arguments)
               (is (= code actual) "~A ~S: ~A" what arguments output)
               output)))
      (is (search "s created" (said 0 "create-schedule" "s" "--every" "1s" "--task" "echo")))
      (is (search "created before" (said 0 "create-schedule" "s" "--every" "1s" "--task" "echo")))
      (said 1 "create-schedule" "s" "--every" "2s" "--task" "echo")
      (is (search "night created" (said 0 "create-schedule" "night" "--cron" "0 3 * * *" "--task"
                                        "echo" "--overlap" "allow" "--catch-up" "3")))
      (eventually (search "s.2" (said 0 "workflows")))
      (let ((output (said 0 "schedules")))
        (dolist (text '("each 1 s" "0 3 * * *" "03:00:00.000Z"))
          (is (search text output) "~A is not in ~A" text output)))
      (is (search "\"task\": \"echo\"" (said 0 "schedule" "night" "--json")))
      (let ((lines (remove "" (uiop:split-string (said 0 "schedules" "--json")
                                                 :separator '(#\Newline))
                           :test #'string=)))
        (is (equal '("night" "s")
                   (loop for line in lines
                         collect (cdr (assoc "id" (base:parse-json line) :test #'string=))))))
      (said 0 "pause-schedule" "night")
      (is (search "paused" (said 0 "schedule" "night")))
      (said 0 "resume-schedule" "night")
      (is (search "03:00:00.000Z" (said 0 "schedule" "night")))
      (is (search "s deleted" (said 0 "delete-schedule" "s")))
      (is (search "s was not there" (said 0 "delete-schedule" "s")))
      (said 1 "pause-schedule" "s")
      (dolist (wrong '(("create-schedule" "t" "--task" "echo") ("schedule") ("pause-schedule")
                       ("create-schedule" "t" "--every" "1s")
                       ("create-schedule" "t" "--every" "1s" "--cron" "* * * * *" "--task" "echo")))
        (apply #'said 2 wrong))
      (said 1 "create-schedule" "t" "--cron" "0 0 30 2 *" "--task" "echo"))))

(defun shown-generation (address name)
  "The generation of the member NAME that the node at ADDRESS tells, or nil."
  (loop for line in (uiop:split-string (nth-value 1 (run-line "cluster" "members" address))
                                       :separator '(#\Newline))
        when (uiop:string-prefix-p (concatenate 'string name " ") line)
          return (parse-integer line :start (length name) :junk-allowed t)))

(test stalled-nodes-are-other-nodes
  "A node that was stopped for longer than its lease is lost meanwhile, and comes back as another
generation."
  (with-cluster-node (ada address "ada" "memory")
    (with-cluster-node (grace other "grace" (format nil "etcd:~A" address))
      (let ((generation (shown-generation address "grace")))
        (is-true generation)
        (support:signal-program grace sb-unix:sigstop)
        (is-true (await-shown address "ada"))
        (support:signal-program grace sb-unix:sigcont)
        (is-true (await-shown address "ada" "grace"))
        (is (< generation (shown-generation address "grace")))))))

(defun end-while-store-hangs (&rest arguments)
  "Have a node of ARGUMENTS, which may drain for three seconds, get SIGTERM while its store does not
answer. Return its exit code and how many seconds it took to end."
  (with-cluster-node (ada address "ada" "memory")
    (support:call-with-program
     (lambda (grace)
       (support:server-address grace)
       (is-true (await-shown address "ada" "grace"))
       (support:signal-program ada sb-unix:sigstop)
       (let ((begin (base:monotonic-ns)))
         (values (support:terminate-program grace)
                 (base:ns-seconds (- (base:monotonic-ns) begin)))))
     (support:clgrpc-program)
     (list* "cluster-node" "--name" "grace" "--store" (format nil "etcd:~A" address)
            "--drain" "3" arguments))))

(test nodes-end-though-their-store-hangs
  "SIGTERM ends a node, with a worker and without, though its store does not answer: within what it
may drain and two seconds."
  (dolist (arguments '(() ("--worker")))
    (multiple-value-bind (code seconds) (apply #'end-while-store-hangs arguments)
      (is (eql 0 code))
      (is (< seconds (support:patient-seconds 5)) "~A: ~,1F s" arguments seconds))))

(test nodes-tell-a-collector
  "Metrics and the spans of calls, of the node's server and of its client of etcd, as `serve` does."
  (let* ((counter (make-instance 'span-counter))
         (collector (grpc:start-server counter :listen "127.0.0.1:0"))
         (target (grpc:server-address collector)))
    (unwind-protect
         (with-cluster-node (ada address "ada" "memory")
           (with-cluster-node (grace other "grace" (format nil "etcd:~A" address)
                               "--otlp" target "--access-log" "--metrics" "127.0.0.1:0")
             (is (search "metrics at http://127.0.0.1:" (support:program-line grace)))
             (is (string= "recording 1.0 of the traces that begin here"
                          (support:program-line grace)))
             (is (string= (format nil "exporting metrics and spans to ~A" target)
                          (support:program-line grace)))
             (is (equal '("ada" "grace") (shown-names other)))
             (is-true (loop repeat 1000
                            thereis (search "method=/clgrpc.cluster.v1.Cluster/Members"
                                            (support:program-line grace))))
             (is (= 0 (support:terminate-program grace)))
             ;; Members, and what it has asked etcd for before and in it
             (is (< 2 (counted-spans counter)))))
      (grpc:stop-server collector :drain 0))))

(test nodes-are-users-of-etcd
  "A node has the rights of a user, whose password is in a file or in the environment."
  (with-store (store)
    (let* ((store (format nil "etcd:~A" (store-address store)))
           (file (format nil "/tmp/clgrpc-password-~36R" (random (expt 36 8)
                                                               (make-random-state t))))
           (arguments (list "cluster-node" "--name" "ada" "--store" store
                            "--listen" "127.0.0.1:0")))
      (flet ((write-password (password)
               (with-open-file (stream file :direction :output :if-exists :supersede)
                 (write-line password stream)))
             (ends (&rest more)
               (multiple-value-list (support:run-to-end (support:clgrpc-program)
                                                        (append arguments more)))))
        (etcd:add-user *etcd* "root" "one")
        (etcd:add-role *etcd* "root")
        (etcd:grant-role *etcd* "root" "root")
        (etcd:enable-authentication *etcd*)
        (unwind-protect
             (progn
               (write-password "one")
               (with-cluster-node (ada address "ada" store
                                       "--store-user" "root" "--store-password-file" file)
                 (is (equal '("ada") (shown-names address))))
               (support:with-server-program (ada address "/usr/bin/env" "CLGRPC_STORE_PASSWORD=one"
                                                 (support:clgrpc-program) "cluster-node"
                                                 "--name" "ada" "--store" store
                                                 "--store-user" "root")
                 (is (equal '("ada") (shown-names address))))
               (write-password "another")
               (destructuring-bind (code lines)
                   (ends "--store-user" "root" "--store-password-file" file)
                 (is (eql 1 code) "~{~A~%~}" lines))
               (is (eql 1 (first (ends))))
               (write-password "")
               (is (eql 2 (first (ends "--store-user" "root" "--store-password-file" file)))))
          (uiop:delete-file-if-exists file))))))

(defclass evil-cluster (clgrpc.cluster.v1:cluster) ())

(defmethod clgrpc.cluster.v1.cluster:watch ((service evil-cluster) request &key call)
  (declare (ignore request))
  (grpc:send call (clgrpc.cluster.v1:make-watch-response
                   :revision 1
                   :changes (list (clgrpc.cluster.v1:make-change
                                   :kind :change-kind-joined
                                   :member (clgrpc.cluster.v1:make-member
                                            :name *evil* :address *evil*
                                            :labels (list (cons *evil* *evil*))))))))

(test what-a-node-tells-does-not-reach-the-terminal
  "A change that is watched is one line without control characters, whatever its member is called."
  (let ((server (grpc:start-server (make-instance 'evil-cluster) :listen "127.0.0.1:0")))
    (unwind-protect
         (multiple-value-bind (code output)
             (run-line "cluster" "watch" (grpc:server-address server)
                       "--revision" "1" "--count" "1")
           (is (= 0 code))
           (is-true (harmless-p output 1) "~S" output))
      (grpc:stop-server server :drain 0))))

(test what-cluster-commands-refuse
  (flet ((refused-p (&rest arguments) (= 2 (apply #'run-line arguments))))
    (is-true (refused-p "cluster-node" "--name" "a"))
    (is-true (refused-p "cluster-node" "--store" "memory"))
    (is-true (refused-p "cluster-node" "--name" "a" "--store" "127.0.0.1:2379"))
    (is-true (refused-p "cluster-node" "--name" "a/b" "--store" "memory"))
    (is-true (refused-p "cluster-node" "--name" "a" "--store" "memory" "--label" "zone"))
    (is-true (refused-p "cluster-node" "--name" "a" "--store" "memory" "--lease-seconds" "1"))
    (dolist (limit '("max-running" "max-walking=1" "max-running=-1" "max-running=many"
                     "max-running=none" "max-store-share=2"))
      (is-true (refused-p "cluster-node" "--name" "a" "--store" "memory" "--limit" limit)
               "~A" limit))
    (is-true (refused-p "cluster-node" "--name" "a" "--store" "memory" "--trace-sample" "2"))
    (is-true (refused-p "cluster-node" "--name" "a" "--store" "memory" "--listen" "0.0.0.0:0"))
    (is-true (refused-p "cluster-node" "--name" "a" "--store" "etcd:127.0.0.1:1"
                        "--store-user" "root"))
    (is-true (refused-p "cluster-node" "--name" "a" "--store" "etcd:127.0.0.1:1"
                        "--store-password-file" "/dev/null"))
    (is-true (refused-p "cluster-node" "--name" "a" "--store" "etcd:127.0.0.1:1"
                        "--store-user" "root" "--store-password-file" "/nonexistent"))
    (is-true (refused-p "cluster-node" "--name" "a" "--store" "memory"
                        "--store-user" "root" "--store-password-file" "/proc/self/comm"))
    (is-true (refused-p "cluster" "nodes" "127.0.0.1:1"))
    (is-true (refused-p "cluster" "members"))
    (is (= 1 (run-line "cluster" "members" "127.0.0.1:1" "--timeout" "1")))
    (is (= 1 (run-line "cluster" "watch" "127.0.0.1:1" "--timeout" "0.3")))))

(test arguments-of-workflow-commands
  "An ID where one is named, a name for a signal, and either tasks or a request for a start."
  (loop for (what complaint . arguments)
          in '((:workflows nil) (:watch nil) (:show "ID" nil) (:show nil "w")
               (:signal "name of the signal" "w") (:signal nil "w" "go")
               (:start "--task or with --request" "w") (:start nil "w" nil ("a"))
               (:start nil "w" nil nil "{}") (:start "--task or with --request" "w" nil ("a") "{}")
               (:create-schedule nil "w" nil ("a")) (:create-schedule "--request" "w"))
        do (destructuring-bind (&optional id name tasks request) arguments
             (handler-case (clgrpc.tools::check-workflow-arguments what id name tasks request)
               (error (error) (is (search (or complaint "nothing") (princ-to-string error))))
               (:no-error (&rest values)
                 (declare (ignore values))
                 (is (null complaint) "~S ~S" what arguments))))))
