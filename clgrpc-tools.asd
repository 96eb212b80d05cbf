;;;; The command `clgrpc`, and its parts: the load tester and its reports, the profiler.

(defsystem "clgrpc-tools"
  :version "0.1.0"
  :author "The clgrpc developers"
  :license "MIT"
  :description "The command clgrpc."
  :depends-on ("clgrpc/examples" "clgrpc-tools/load" "clgrpc-tools/report" "clgrpc-tools/profile"
               "clgrpc-tools/console" "clgrpc-tools/workflow-console" "clgrpc-etcd/discovery"
               "clgrpc-cluster" "clgrpc-cluster/workflow" "alexandria")
  :pathname "tools/"
  :serial t
  :components ((:file "command/worker-protos") (:file "command/package")
               (:file "command/standard-output") (:file "command/command") (:file "command/input")
               (:file "command/tls")
               (:file "command/interop-payload") (:file "command/serve")
               (:file "command/manual-page") (:file "command/completion")
               (:file "command/client-command") (:file "command/gen")
               (:file "inspect/descriptor-source") (:file "inspect/declaration")
               (:file "command/balancing-options") (:file "inspect/call-command")
               (:file "inspect/api-document") (:file "command/gateway") (:file "inspect/channelz")
               (:file "inspect/exposition") (:file "inspect/top")
               (:file "inspect/binlog") (:file "worker/bench-service") (:file "worker/figures")
               (:file "worker/worker-client") (:file "worker/worker-command")
               (:file "worker/driver") (:file "command/profile") (:file "command/rehearsal")
               (:file "command/compare-command") (:file "command/load-plan") (:file "command/knee")
               (:file "command/load") (:file "command/cluster-node")
               (:file "command/cluster-workflow") (:file "command/cluster-schedule")
               (:file "command/cluster") (:file "command/main"))
  :in-order-to ((test-op (test-op "clgrpc-tests/page" "clgrpc-tests/profile" "clgrpc-tests/load"
                                  "clgrpc-tests/report" "clgrpc-tests/console" "clgrpc-tests/manual"
                                  "clgrpc-tests/tools" "clgrpc-tests/examples"
                                  "clgrpc-tests/interop" "clgrpc-tests/abuse"))))

(defsystem "clgrpc-tools/load"
  :description "The engine of `clgrpc load`: calls at a rate, and what is known of them."
  :depends-on ("clgrpc" "alexandria")
  :pathname "tools/load/"
  :serial t
  :components ((:file "package") (:file "histogram") (:file "run-result") (:file "second")
               (:file "round") (:file "call-schedule") (:file "data-template") (:file "payload")
               (:file "plan") (:file "tally") (:file "load-structure") (:file "load-call")
               (:file "connection-slot") (:file "generator") (:file "termination")
               (:file "load-run")))

(defsystem "clgrpc-tools/report"
  :description "What is said of runs of `clgrpc load`: reports, comparisons, conditions."
  :depends-on ("clgrpc-tools/load" "clgrpc-tools/page" "alexandria")
  :pathname "tools/report/"
  :serial t
  :components ((:file "package") (:file "figure") (:file "report-condition") (:file "ghz")
               (:file "significance") (:file "comparison") (:file "run-json") (:file "run-reader")
               (:file "report-text") (:file "report-page") (:file "report")))

(defsystem "clgrpc-tools/profile"
  :description "Where the time of a process goes: clgrpc profile."
  :depends-on ("clgrpc" "clgrpc-tools/report" "sb-sprof" "alexandria")
  :pathname "tools/profile/"
  :serial t
  :components ((:static-file "../../proto/pprof/profile.proto") (:file "pprof-proto")
               (:file "package") (:file "area") (:file "symbol") (:file "sample")
               (:file "sampled-stack") (:file "kernel-event") (:file "agent")
               (:file "profiled-process") (:file "perf") (:file "profile-run")
               (:file "profile-text") (:file "pprof") (:file "profile-comparison") (:file "flame")
               (:file "profile-page")))

(defsystem "clgrpc-tools/page"
  :description "Reports as web pages, with charts as SVG."
  :depends-on ("clgrpc/base")
  :pathname "tools/page/"
  :serial t
  :components ((:file "package") (:file "figure-text") (:file "markup") (:file "scale")
               (:file "chart") (:static-file "page.css") (:file "page-head")))

(defsystem "clgrpc-tools/manual"
  :description "The manual as a site, from chapters and docstrings."
  :depends-on ("clgrpc" "clgrpc-async" "clgrpc-sim" "clgrpc-etcd" "clgrpc-etcd/discovery"
               "clgrpc-etcd/memory" "clgrpc-cluster" "clgrpc-cluster/workflow"
               "clgrpc-cluster/raft" "clgrpc-tools/page" "cl-ppcre" "sb-introspect" "alexandria")
  :pathname "tools/manual/"
  :serial t
  :components ((:file "package") (:file "docstring") (:file "contents") (:file "export")
               (:file "chapter") (:file "reference") (:static-file "manual.css")
               (:static-file "manual.js") (:file "manual")))

(defsystem "clgrpc-tools/console"
  :description "A page for the browser that shows what the process does now."
  :depends-on ("clgrpc/server" "clgrpc/metrics" "clgrpc/logs" "clgrpc/program" "alexandria")
  :pathname "tools/console/"
  :serial t
  :components ((:file "package") (:file "sample-set") (:file "tail") (:file "update-stream")
               (:file "hour") (:file "console") (:file "update") (:file "access") (:file "viewer")
               (:static-file "page/console.html") (:static-file "page/console.css")
               (:static-file "page/common.js") (:static-file "page/console.js")
               (:file "console-page") (:file "console-option")))

(defsystem "clgrpc-tools/workflow-console"
  :description "A page of the console that shows the workflows of a node."
  :depends-on ("clgrpc-tools/console" "clgrpc-cluster/workflow")
  :pathname "tools/workflow-console/"
  :serial t
  :components ((:file "package") (:static-file "page/workflows.html")
               (:static-file "page/workflows.css") (:static-file "page/workflows.js")
               (:static-file "../console/page/console.css")
               (:static-file "../console/page/common.js") (:file "workflow-page")))

(defsystem "clgrpc-tools/testee"
  :description "The command with test peers: what public suites and benchmarks call and judge."
  :depends-on ("clgrpc-tools" "alexandria")
  :pathname "tools/testee/"
  :serial t
  :components ((:file "protos") (:file "package") (:file "bench") (:file "orca") (:file "interop")
               (:file "offer") (:file "interop-case") (:file "interop-client")
               (:file "bench-client") (:file "connect") (:file "policy-client") (:file "metrics")
               (:file "transcode") (:file "testee") (:file "storm-client")))
