;;;; Many machines: membership, Raft's messages, durable workflows. All stand on clgrpc-etcd.

(defsystem "clgrpc-cluster"
  :version "0.1.0"
  :author "The clgrpc developers"
  :license "MIT"
  :description "Nodes that know of each other through a store with leases."
  :depends-on ("clgrpc-etcd" "clgrpc-etcd/memory" "clgrpc-etcd/discovery" "clgrpc/server"
               "clgrpc/services" "clgrpc/metrics" "clgrpc-cluster/authority" "alexandria")
  :pathname "cluster/membership/"
  :serial t
  :components ((:static-file "../../proto/cluster/membership.proto") (:file "membership-proto")
               (:file "package") (:file "cluster-condition") (:file "cluster-member")
               (:file "membership-decision") (:file "view") (:file "named-store")
               (:file "membership") (:file "informer") (:file "cluster-service") (:file "follow")
               (:file "membership-meter") (:file "membership-node"))
  :in-order-to ((test-op (test-op "clgrpc-tests/raft" "clgrpc-tests/workflow"
                                  "clgrpc-tests/cluster" "clgrpc-tests/faults"))))

(defsystem "clgrpc-cluster/authority"
  :description "Who may do what at the services of a cluster, by certificates."
  :depends-on ("clgrpc/rpc" "alexandria")
  :pathname "cluster/authority/"
  :serial t
  :components ((:file "package") (:file "identity") (:file "pattern") (:file "role")))

(defsystem "clgrpc-cluster/raft"
  :description "Raft's messages between the members of a group."
  :depends-on ("clgrpc/client" "clgrpc/balance" "clgrpc/server" "clgrpc/metrics"
               "clgrpc-cluster/authority" "alexandria")
  :pathname "cluster/raft/"
  :serial t
  :components ((:static-file "../../proto/cluster/raft.proto") (:file "raft-proto")
               (:file "package") (:file "crc32c") (:file "state") (:file "request-address")
               (:file "snapshot-receiver") (:file "local-member") (:file "raft-service")
               (:file "snapshot-service") (:file "raft-meter") (:file "batch") (:file "raft-peer")
               (:file "unary-call") (:file "pipeline") (:file "snapshot")))

(defsystem "clgrpc-cluster/workflow"
  :description "Durable workflows on etcd: the service, its clients and workers."
  :depends-on ("clgrpc-etcd" "clgrpc/server" "clgrpc/inproc" "clgrpc/services" "clgrpc/metrics"
               "clgrpc/trace" "clgrpc/balance" "clgrpc-cluster/authority" "alexandria" "sb-md5")
  :pathname "cluster/workflow/"
  :serial t
  :components ((:static-file "../../proto/cluster/workflow.proto") (:file "workflow-proto")
               (:file "package") (:file "workflow-condition") (:file "limit") (:file "stored/key")
               (:file "decisions/definition") (:file "decisions/step-check")
               (:file "decisions/draft") (:file "stored/layout") (:file "decisions/decision")
               (:file "decisions/children") (:file "decisions/continuation") (:file "schedules/cron")
               (:file "schedules/workflow-schedule") (:file "stored/index") (:file "date")
               (:file "workflow-node") (:file "stored/store-usage") (:file "instrument")
               (:file "stored/commit") (:file "ready") (:file "stored/change") (:file "task-claim")
               (:file "stored/bulk") (:file "session-lease") (:file "session") (:file "errand")
               (:file "schedules/scheduler") (:file "timer-queue") (:file "stored/search")
               (:file "stored/retention") (:file "keeper") (:file "watching")
               (:file "workflow-method") (:file "schedules/schedule-method") (:file "group-router")
               (:file "workflow-client") (:file "schedules/schedule-client") (:file "worker-task")
               (:file "worker")))

(defsystem "clgrpc-cluster/raft-example"
  :description "An example of Raft on clgrpc-cluster/raft: a replicated store."
  :depends-on ("clgrpc-cluster/raft" "clgrpc" "sb-posix")
  :pathname "examples/raft/"
  :serial t
  :components ((:static-file "../../proto/examples/raft.proto") (:file "proto") (:file "package")
               (:file "disk") (:file "log") (:file "journal") (:file "store") (:file "progress")
               (:file "node") (:file "election") (:file "replication") (:file "follower")
               (:file "key-value") (:file "driver") (:file "client") (:file "demonstration")))
