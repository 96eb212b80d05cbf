;;;; The command `cluster-node`: a member of a cluster as a process, until SIGTERM or SIGINT, or
;;;; until another process takes its name.

(in-package #:clgrpc.tools)

(defconstant +superseded-code+ 3
  "The exit code of a node whose name another has taken: it is not to be started again by itself.")

(defun parse-label (string)
  "The label, a cons of name and value, that STRING, NAME=VALUE, says."
  (let ((equals (position #\= string)))
    (unless (and equals (plusp equals)) (refuse "NAME=VALUE is wanted, not ~S" string))
    (cons (subseq string 0 equals) (subseq string (1+ equals)))))

(defun parse-store (string)
  "STRING, which names a store."
  (handler-case (etcd:close-etcd (cluster:open-store string))
    (misuse (condition) (refuse "~A" (string-right-trim "." (princ-to-string condition)))))
  string)

(defun note-loss (condition stop)
  "Say that the node is no member, by CONDITION; if another has its name, call STOP."
  (format t "no member: ~A~%" (shown (princ-to-string condition)))
  (finish-output)
  (when (typep condition 'cluster:superseded) (funcall stop)))

(defun note-join (node)
  (format t "member ~A of ~A, generation ~D~%" (cluster:node-name node)
          (cluster:node-cluster node) (cluster:node-generation node))
  (finish-output))

(defun call-with-node (function name drain arguments)
  "Call FUNCTION with the node NAME, started with ARGUMENTS, and stop it within DRAIN seconds."
  (let ((node (handler-case (apply #'cluster:start-node name arguments)
                (misuse (condition) (refuse "~A" condition)))))
    (unwind-protect (funcall function node)
      (cluster:stop-node node :drain drain))))

(defun be-member (node metrics-url prepare)
  "Say that NODE is a member, and where its metrics are; return when the process is told to end, or
another has its name. PREPARE is as for AWAIT-ENDING-SIGNAL."
  (let ((end nil))
    (await-ending-signal
     (lambda ()
       (format t "~{listening on ~A~%~}~@[metrics at ~A~%~]"
               (grpc:server-addresses (cluster:node-server node)) metrics-url)
       (note-join node)
       (when (superseded-p node) (funcall end)))
     nil
     (lambda (function)
       (setf end function)
       (funcall prepare function)))))

(defun superseded-p (node) (eq :superseded (cluster:node-state node)))

(define-command "cluster-node"
    (()
     ((name "NAME" #'identity nil "What the node is called; no other of its cluster is.")
      (listen "ADDRESSES" (addresses-parser 0) "127.0.0.1:0"
              "Where to listen, as `serve` has it; port 0 picks a free one.")
      (store "STORE" #'parse-store nil
             "Where the cluster's state is: etcd:HOST:PORT, of several members with commas
between.")
      (cluster "NAME" #'identity "default" "Which cluster.")
      (advertise "ADDRESS" (address-parser 1) nil
                 "Where others reach the node, if that is not where it listens.")
      ((label "--label") "NAME=VALUE" #'parse-label '()
       "What else it says of itself, such as zone=a; may be given several times.")
      (lease-seconds "N" (integer-parser 2 3600) 10
                     "How long it stays a member if it dies or is cut off.")
      (if-taken "CHOICE" (choice-parser :take-over :refuse) :take-over
                "What to do if there is a member of its name: take-over, or refuse to start.")
      (require-identity "[true|false]" #'parse-boolean nil
                        "Have nobody join through this node without a certificate for his name.")
      (drain "SECONDS" #'parse-seconds 10 "How long calls may go on when it is told to end.")
      (metrics "ADDRESSES" (addresses-parser 0) nil
               "Tell Prometheus of metrics, at /metrics, and others of health, at /healthz, where
      these are, over HTTP. Whoever reaches ADDRESSES may look.")
      (log-level "LEVEL" (choice-parser :debug :info :warning :error :none) :warning
                 "What is logged, to the standard error.")
      (log-format "FORMAT" (choice-parser :text :json) :text
                  "How: a line of text, or of JSON, for each event.")
      server-tls))
    "Be a node of a cluster: serve clgrpc.cluster.v1.Cluster, health and reflection, and be a member
until SIGTERM or SIGINT. Prints `listening on ADDRESS` when it is one. With --client-ca those who
join through it have to be whom their certificates say. Exits with 0 when it was told to end, with 1
if it could not start, with 3 if another process has taken its name. See doc/cluster.md."
  (unless name (refuse "--name is missing"))
  (unless store (refuse "--store is missing"))
  (tune-collector)
  (setf *log-function* (log-writer :level log-level :format log-format))
  (let* ((counted (and metrics (grpc:make-metrics)))
         (health (make-instance 'grpc:health-service))
         (stop (lambda ())) (superseded nil))
    (call-with-pages
     metrics nil counted nil health
     (lambda (metrics-url console-url)
       (declare (ignore console-url))
       (call-with-node
        (lambda (node)
          (be-member node metrics-url (lambda (end) (setf stop end)))
          (setf superseded (superseded-p node)))
        name drain
        (list :store store :cluster cluster :listen listen :address advertise :labels label
              :lease-seconds lease-seconds :if-taken if-taken
              :identity-required require-identity :metrics counted
              :credentials (server-credentials tls-cert tls-key tls-other client-ca)
              :services (cons health (grpc:reflection-services))
              :on-loss (lambda (condition) (note-loss condition stop))))))
    (if superseded +superseded-code+ 0)))
