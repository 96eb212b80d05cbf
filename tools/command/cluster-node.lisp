;;;; The command `cluster-node`: a member of a cluster as a process, until SIGTERM or SIGINT, or
;;;; until another process takes its name. The node serves workflows, too, and may work on them.

(in-package #:clgrpc.tools)

(defconstant +superseded-code+ 3
  "The exit code of a node whose name another process has taken. A service manager should not start
the node again after this code.")

(defun parse-label (string)
  "The label, a cons of name and value, for STRING, NAME=VALUE."
  (let ((equals (position #\= string)))
    (unless (and equals (plusp equals)) (refuse "NAME=VALUE is expected, not ~S" string))
    (cons (subseq string 0 equals) (subseq string (1+ equals)))))

(defun parse-permission (string)
  "The permission that STRING, ROLE=PATTERN, gives; ROLE may be work:KIND."
  (let* ((equals (position #\= string)) (colon (position #\: string :end equals)))
    (unless (and equals (plusp equals)) (refuse "ROLE=PATTERN is expected, not ~S" string))
    (let ((role (or (find (subseq string 0 (or colon equals)) '(:start :work :read :operate :join)
                          :test #'string-equal)
                    (refuse "~S is not a role: they are start, work, work:KIND, read, operate, join"
                            (subseq string 0 equals)))))
      (handler-case (authority:check-permission
                     (cons (if colon (list role (subseq string (1+ colon) equals)) role)
                           (subseq string (1+ equals))))
        (misuse (condition) (refuse "~A" (string-right-trim "." (princ-to-string condition))))))))

(defun parse-limit (string)
  "The limit of workflows, a list of its name and value, that STRING, NAME=VALUE, gives."
  (let* ((equals (or (position #\= string) (refuse "a limit is NAME=VALUE, not ~S" string)))
         (name (find (subseq string 0 equals) (workflow:limit-names) :test #'string-equal))
         (value (subseq string (1+ equals))))
    (unless name
      (refuse "~S is not a limit; they are ~{~(~A~)~^, ~}" (subseq string 0 equals)
              (workflow:limit-names)))
    (handler-case
        (list name
              (workflow:check-limit name
                                    (and (string/= "none" value)
                                         (parse-decimal value "a number is expected, or none"))))
      (misuse (condition) (refuse "~A" (string-right-trim "." (princ-to-string condition)))))))

(defun parse-store (string)
  "STRING, if it names a store; otherwise signal an error."
  (unless (string= "memory" string)
    (handler-case (etcd:close-etcd (cluster:open-store string))
      (misuse (condition) (refuse "~A" (string-right-trim "." (princ-to-string condition))))))
  string)

;;; Example steps of workflows

(defconstant +longest-sleep-seconds+ 3600 "The maximum number of seconds that the step `sleep`
sleeps.")

(workflow:define-step "echo" (task)
  (workflow:task-input task))

(workflow:define-step "sleep" (task)
  (let ((seconds (handler-case (parse-seconds (workflow:task-text task))
                   (usage-error (error)
                     (workflow:fail-step (princ-to-string error) :retry nil)))))
    (sleep (min seconds +longest-sleep-seconds+))
    (workflow:task-input task)))

(workflow:define-step "fail" (task)
  (workflow:fail-step (format nil "attempt ~D was to fail" (workflow:task-attempt task))))

;;; The store

(defun store-credentials (roots certificate key)
  "The credentials of the connection to etcd, or nil if ROOTS is nil."
  (cond (roots (client-credentials roots certificate key nil))
        ((or certificate key) (refuse "--store-cert and --store-key need --store-ca"))))

(defparameter *password-variable* "CLGRPC_STORE_PASSWORD"
  "The environment variable that contains the password of --store-user.")

(defun first-line (file)
  "The first line of FILE, as text. Refuse a FILE that cannot be read, has more than 64 KB, or whose
first line is empty."
  (let* ((text (read-text-file file :most 65536))
         (line (string-right-trim '(#\Return) (subseq text 0 (position #\Newline text)))))
    (when (string= "" line) (refuse "the first line of ~A is empty" file))
    line))

(defun store-password (user file)
  "The password of USER, in a form that MAKE-ETCD takes: a function that reads FILE each time or, if
FILE is nil, the password in the environment. Return nil if USER is nil."
  (let ((variable (uiop:getenvp *password-variable*)))
    (cond ((null user)
           (when file (refuse "--store-password-file needs --store-user")))
          (file (first-line file)
                (lambda () (first-line file)))
          (variable)
          (t (refuse "--store-user needs --store-password-file, or the variable ~A"
                     *password-variable*)))))

(defun store-options (credentials user password-file metrics tracing)
  "The arguments of MAKE-ETCD other than endpoints."
  (let ((password (store-password user password-file)))
    (append (when credentials (list :credentials credentials))
            (when user (list :user user :password password))
            (when metrics (list :metrics metrics))
            (when tracing (list :observer tracing)))))

(defun refuse-access (name credentials user)
  "Refuse CREDENTIALS and USER for the store NAME if that is in memory."
  (when (and (string= "memory" name) (or credentials user))
    (refuse "the store memory has neither TLS nor users")))

;;; Being a node

(defun call-with-named-store (function name options)
  "Call FUNCTION with the store NAME, a client of etcd with OPTIONS of MAKE-ETCD, and a list of the
services through which other processes reach the store. Only a store in memory has such services:
without them only this process could use that store. A store in memory takes no OPTIONS."
  (let* ((engine (and (string= "memory" name) (memory:make-engine)))
         (store (if engine
                    (memory:connect engine)
                    (apply #'cluster:open-store name options))))
    (unwind-protect (funcall function store (and engine (list engine)))
      (etcd:close-etcd store)
      (when engine (memory:close-engine engine)))))

(defconstant +longest-own-session-seconds+ 120 "The maximum number of seconds that a session of the
node's own worker lasts.")

(defun call-with-workflows (function store namespace limits allow metrics health worker-name
                            seconds)
  "Call FUNCTION with a service of workflows in STORE, and with a worker of its own. LIMITS, a
plist, are the service's; ALLOW, a list of permissions, gives roles to its peers. The worker is
called WORKER-NAME and its sessions last SECONDS; it is nil if WORKER-NAME is nil. FUNCTION stops
the worker."
  (let ((service (apply #'workflow:make-workflow-service store
                        :namespace namespace :allow allow :metrics metrics :health health limits))
        (seconds (min seconds +longest-own-session-seconds+)))
    (unwind-protect
         (funcall function service
                  (and worker-name (workflow:start-worker service :name worker-name
                                                          :kinds '("echo" "sleep" "fail")
                                                          :session-seconds seconds)))
      (workflow:close-workflow-service service))))

(defun note-loss (condition ending)
  "Print that the node is no longer a member, because of CONDITION. If another process has taken the
node's name, end this process by ENDING."
  (format t "no member: ~A~%" (shown (princ-to-string condition)))
  (finish-output)
  (when (typep condition 'cluster:superseded) (program:end ending)))

(defun note-join (node)
  (format t "member ~A of ~A, generation ~D~%" (cluster:node-name node)
          (cluster:node-cluster node) (cluster:node-generation node))
  (finish-output))

(defun superseded-p (node) (eq :superseded (cluster:node-state node)))

(defconstant +disconnecting-seconds+ 1
  "The number of seconds after the drain at which all waits for the store end, so that the node ends
soon even if the store hangs.")

(defun end-node (node worker drain)
  "Stop WORKER, unless it is nil, and then NODE, whose service of workflows WORKER needs. END-NODE
takes DRAIN seconds and little more, even if the store hangs: after that time it sends the store no
more requests."
  (let ((end (+ (monotonic-ns) (seconds-ns drain))))
    (etcd:close-after (cluster:node-store node) (+ drain +disconnecting-seconds+))
    (when worker (workflow:stop-worker worker :drain drain))
    (cluster:stop-node node :drain (max 0 (ns-seconds (- end (monotonic-ns)))))))

(defun reload-function (credentials)
  "A function that reads the files of CREDENTIALS again, or nil if CREDENTIALS is nil."
  (and credentials (lambda () (grpc:reload-credentials credentials))))

(defun run-node (name worker drain lines store-credentials arguments)
  "Run the node NAME, which START-NODE starts with ARGUMENTS, until the process is asked to end or
another process takes the name. After that stop NODE, and WORKER unless it is nil, within DRAIN
seconds. Print LINES once the node is a member. At SIGHUP read the certificates again, including
those of STORE-CREDENTIALS. Return the exit code."
  (program:call-with-ending
   (lambda (ending)
     (setf (program:ending-seconds ending) (+ drain program:+ending-seconds+))
     (let ((node (handler-case (apply #'cluster:start-node name
                                      :on-join #'note-join
                                      :on-loss (lambda (condition)
                                                 (note-loss condition ending))
                                      arguments)
                   (misuse (condition) (refuse "~A" condition)))))
       (unwind-protect
            (progn
              (program:reload-at-hang-up ending (cluster:node-server node)
                                         (reload-function (getf arguments :credentials))
                                         (reload-function store-credentials))
              (program:serve-until-end ending (cluster:node-server node) lines)
              (if (superseded-p node) +superseded-code+ 0))
         (end-node node worker drain))))))

(define-command "cluster-node"
    (()
     ((name "NAME" #'identity nil "The name of the node, unique in its cluster.")
      (listen "ADDRESSES" (addresses-parser 0) "127.0.0.1:0"
              "The address to listen on, as for `serve`; port 0 picks a free one.")
      (store "STORE" #'parse-store nil
             "The store of the cluster's state: etcd:HOST:PORT, with commas between several
      members; or memory, in this process, for trials: its contents are lost when the process
      ends. Other nodes, and all clients, reach it as etcd:ADDRESS, the node's own address;
      memory cannot be used with --tls-cert or --allow.")
      (store-ca "FILE" #'identity nil
                "Speak TLS to etcd, and trust the certificates in FILE (PEM).")
      (store-cert "FILE" #'identity nil
                  "The certificates to show etcd, which knows its users by their common names.")
      (store-key "FILE" #'identity nil "The private key of --store-cert.")
      (store-user "NAME" #'identity nil
                  "Authenticate as this user of etcd. Without --store-ca the password is sent in
      plain text.")
      (store-password-file "FILE" #'identity nil
                           "The password of --store-user is the first line of FILE, which is read
      again whenever etcd asks for it; by default the password is in CLGRPC_STORE_PASSWORD.")
      (cluster "NAME" #'identity "default" "The name of the cluster.")
      (advertise "ADDRESS" (address-parser 1) nil
                 "The address at which others reach the node, if it is not ADDRESS; needed if the
      node listens on 0.0.0.0.")
      ((label "--label") "NAME=VALUE" #'parse-label '()
       "A label of the node, such as zone=a; may be given several times.")
      (lease-seconds "N" (integer-parser 2 3600) 10
                     "The time for which the node remains a member, and its worker keeps its tasks,
      after the node has died or was cut off.")
      (if-taken "CHOICE" (choice-parser :take-over :refuse) :take-over
                "What to do if another member has the name: take its place (take-over), or do not
      start (refuse).")
      ((allow "--allow") "ROLE=PATTERN" #'parse-permission '()
       "Give a role to peers whose certificate has a name that matches the pattern; may be given
      several times. Roles: start (start and signal workflows, create schedules), work (or
      work:KIND), read, operate (cancel and delete workflows, pause and delete schedules), join (be
      a member by a call, without a store of one's own). Patterns: a DNS name, or
      spiffe://DOMAIN/PATH, where * is one label or one segment, and for join {name} is the member's
      name; * alone matches any certificate; anyone also matches peers without one.")
      (namespace "NAME" #'identity "default" "The namespace whose workflows the node serves.")
      ((limits "--limit") "NAME=VALUE" #'parse-limit '()
       "A limit of the node's workflows, such as max-running=100000, retention-seconds=86400,
      retention-octets=500000000, store-quota=8000000000 or max-store-share=0.6; the value none
      means no limit. May be given several times; doc/cluster/workflows.md has all of them.")
      (worker "[true|false]" #'parse-boolean nil
              "Also work on workflows, with steps to try: echo returns its input, sleep returns it
      after the number of seconds that it says, fail fails.")
      (drain "DURATION" #'parse-seconds 10
             "The time for which calls may continue after the signal to end.")
      :console
      :telemetry
      :server-tls))
    "Be a node of a cluster: serve clgrpc.cluster.v1.Cluster, clgrpc.workflow.v1.Workflow, health
and reflection, and be a member until SIGTERM or SIGINT. Prints `listening on ADDRESS` when the node
is a member. With --tls-cert a peer has only the roles that --allow grants; without it, and without
--allow, every peer that can connect has all roles but join, and the log says so at the start. Exits
with 0 at the end, with 1 if it could not start, with 2 if the arguments are wrong, with 3 if
another process has taken its name. At SIGHUP reads its certificates again. Notifies systemd
(Type=notify) when the node is a member. See doc/cluster/cluster.md."
  (unless name (refuse "--name is missing"))
  (unless store (refuse "--store is missing"))
  (tune-collector)
  (program:begin-logging log-level log-format access-log)
  (let* ((counted (and (or otlp metrics console) (grpc:make-metrics)))
         (tracing (program:make-tracing-as-asked trace-sample otlp))
         (access-log (and access-log (grpc:make-access-log :ratio access-log)))
         (health (make-instance 'grpc:health-service))
         (tls (program:server-credentials tls-cert tls-key tls-other client-ca))
         (credentials (store-credentials store-ca store-cert store-key))
         (options (store-options credentials store-user store-password-file counted tracing))
         (exporter nil))
    (refuse-access store credentials store-user)
    (unwind-protect
         (progn
           (setf exporter (program:begin-exporting otlp counted tracing))
           (program:call-with-metrics-page
            metrics tls counted health
            (lambda (metrics-url)
              (console:call-with-console
               console counted tls
               (lambda (console console-url)
                 (call-with-named-store
                  (lambda (store engines)
                    (call-with-workflows
                     (lambda (workflows worker)
                       (when console (workflow-console:show-workflows console workflows))
                       (run-node name worker drain
                                 (append (when metrics-url
                                           (list (format nil "metrics at ~A" metrics-url)))
                                         (when console-url
                                           (list (format nil "console at ~A" console-url)))
                                         (program:telemetry-lines trace-sample otlp))
                                 credentials
                                 (list :store store :cluster cluster :listen listen
                                       :address advertise :labels label
                                       :lease-seconds lease-seconds :if-taken if-taken
                                       :allow allow :metrics counted
                                       :observer (remove nil (list tracing access-log console))
                                       :credentials tls
                                       :services (list* health workflows
                                                        ;; no peer needs a role for these services
                                                        (append (if (or tls allow) '() engines)
                                                                (grpc:reflection-services))))))
                     store namespace (apply #'append limits) allow counted health
                     (and worker name) lease-seconds))
                  store options))))))
      (program:end-exporting exporter))))
