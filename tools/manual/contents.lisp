;;;; The order of the manual: chapters for three readers, and subjects of the reference. The tests
;;;; report a chapter or an exported name that is in neither.

(in-package #:clgrpc.manual)

(defstruct (chapter-list (:copier nil) (:constructor make-chapter-list (title lead paths)))
  "Chapters for one reader."
  (title "" :type string)
  (lead "" :type string)                ; the readers for whom the part is
  (paths '() :type list))               ; paths of files below doc/, in the order of reading

(defstruct (subject (:copier nil) (:constructor make-subject (file title packages chapters)))
  "A page of the reference."
  (file "" :type string)                ; the page's name, without .html
  (title "" :type string)
  ;; names of the home packages of the names that the page lists
  (packages '() :type list)
  (chapters '() :type list))            ; paths below doc/ of chapters on it, in order

(defparameter *parts*
  (list
   (make-chapter-list "First service" "In this order; the first four are enough to begin with."
              '("guides/first-service.md" "calls.md" "servers.md" "errors.md" "deadlines.md"
                "protobuf.md" "interceptors.md" "call-credentials.md" "topics.md"
                "in-process.md" "web.md"
                "guides/cookbook.md"
                "guides/coming-from.md"))
   (make-chapter-list "In production" "For programs that others depend on."
              '("guides/deployment.md" "guides/security.md" "guides/tuning.md" "scaling.md"
                "limits.md" "tls.md"
                "addresses.md" "environment.md" "fleets.md" "etcd/discovery.md"
                "cluster/production.md"
                "observability.md" "monitoring.md" "tracing.md"
                "channelz.md" "tools/console.md" "tools/load.md" "tools/profile.md"
                "cluster/cluster.md" "cluster/workflows.md"))
   (make-chapter-list "Looking things up" "Details, and how it works inside."
              '("compression.md" "codecs.md" "http.md" "transports.md" "observers.md"
                "event-loop.md"
                "simulation.md" "etcd/etcd.md" "etcd/memory.md" "cluster/raft.md"
                "performance.md" "platforms.md" "architecture.md" "decisions.md" "glossary.md")))
  "The lists of chapters for three kinds of readers.")

(defparameter *subjects*
  (list
   (make-subject "messages" "Protocol Buffers" '("CLGRPC.PROTOBUF") '("protobuf.md"))
   (make-subject "services" "Services and methods" '("CLGRPC.METHOD" "CLGRPC.ENCODING")
                 '("calls.md" "codecs.md"))
   (make-subject "calls" "Calls" '("CLGRPC.RPC" "CLGRPC.CALLING" "CLGRPC.ATTEMPT" "CLGRPC.INPROC"
                                 "CLGRPC.TOPIC")
                 '("calls.md" "deadlines.md" "interceptors.md" "topics.md" "in-process.md"))
   (make-subject "errors" "Statuses and errors" '("CLGRPC.STATUS") '("errors.md"))
   (make-subject "servers" "Servers"
                 '("CLGRPC.SERVING" "CLGRPC.SERVER" "CLGRPC.PROGRAM" "CLGRPC.SERVICES"
                   "CLGRPC.GATEWAY")
                 '("servers.md" "web.md" "limits.md"))
   (make-subject "channels" "Channels, resolvers and balancers" '("CLGRPC.CLIENT" "CLGRPC.CONFIG")
                 '("fleets.md" "addresses.md"))
   (make-subject "security" "TLS and tokens" '("CLGRPC.OS" "CLGRPC.CREDENTIALS" "CLGRPC.TOKEN")
                 '("tls.md" "call-credentials.md"))
   (make-subject "http" "Plain HTTP and REST" '("CLGRPC.EXCHANGE" "CLGRPC.REST")
                 '("http.md" "web.md"))
   (make-subject "observing" "Metrics, traces and logs"
                 '("CLGRPC.METRICS" "CLGRPC.TRACE" "CLGRPC.LOGS" "CLGRPC.OTLP" "CLGRPC.CHANNELZ")
                 '("monitoring.md" "tracing.md" "observability.md" "channelz.md"))
   (make-subject "loop" "The event loop and futures" '("CLGRPC.LOOP") '("event-loop.md"))
   (make-subject "base" "Options, conditions, the log" '("CLGRPC.BASE" "CLGRPC.OPTION")
                 '("limits.md" "observability.md"))
   (make-subject "async" "clgrpc-async" '("CLGRPC.ASYNC") '("event-loop.md"))
   (make-subject "sim" "clgrpc-sim" '("CLGRPC.SIM") '("simulation.md"))
   (make-subject "etcd" "clgrpc-etcd" '("CLGRPC.ETCD") '("etcd/etcd.md"))
   (make-subject "discovery" "clgrpc-etcd/discovery" '("CLGRPC.DISCOVERY") '("etcd/discovery.md"))
   (make-subject "memory" "clgrpc-etcd/memory" '("CLGRPC.MEMORY") '("etcd/memory.md"))
   (make-subject "cluster" "clgrpc-cluster" '("CLGRPC.CLUSTER" "CLGRPC.AUTHORITY")
                 '("cluster/cluster.md"))
   (make-subject "workflow" "clgrpc-cluster/workflow" '("CLGRPC.WORKFLOW")
                 '("cluster/workflows.md"))
   (make-subject "raft" "clgrpc-cluster/raft" '("CLGRPC.RAFT") '("cluster/raft.md")))
  "The pages of the reference. A name of the package CLGRPC is on the page of its home package;
pages of the other packages, beginning with clgrpc-async, have all exports.")

(defparameter *packages*
  '("CLGRPC" "CLGRPC.ASYNC" "CLGRPC.SIM" "CLGRPC.ETCD" "CLGRPC.DISCOVERY" "CLGRPC.MEMORY"
    "CLGRPC.CLUSTER" "CLGRPC.AUTHORITY" "CLGRPC.WORKFLOW" "CLGRPC.RAFT")
  "The packages whose exports are public. A name that several packages export has one entry, under
the first of these packages.")

(defparameter *takers*
  '(("START-SERVER" . :server) ("MAKE-CHANNEL" . :channel) ("MAKE-TRACING" . :tracing)
    ("SERVER-CHANNEL" . :inproc))
  "Functions that take rows of the options table as keywords, and the subjects of these functions.")

(defun chapter-paths ()
  "The paths of all chapters below doc/, in the order of the manual."
  (mapcan (lambda (part) (copy-list (chapter-list-paths part))) *parts*))
