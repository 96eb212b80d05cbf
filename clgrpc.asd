;;;; All systems of clgrpc, and where they run. Each folder of src/ is a system that names what it
;;;; stands on, so the arrows of the design can be read here (tests/architecture.lisp checks them in
;;;; the sources).

#-(and sbcl linux (or x86-64 arm64))
(error "clgrpc runs on SBCL on Linux, on x86-64 or arm64. This is ~A on ~A, on ~A."
       (lisp-implementation-type) (software-type) (machine-type))
#+sbcl (sb-ext:assert-version->= 2 2 9)

(defclass layer-tests (system)
  ()
  (:documentation "The tests of a layer: clgrpc/tests/LAYER, whose suites are :clgrpc.LAYER and
:clgrpc.LAYER.PART."))

(defmethod component-depends-on ((operation test-op) (system layer-tests))
  (list* '(load-op "clgrpc/tests/support") (call-next-method)))

(defmethod perform ((operation test-op) (system layer-tests))
  (symbol-call '#:clgrpc.tests.support '#:test-layer
               (subseq (component-name system) (length "clgrpc/tests/"))))

(defsystem "clgrpc"
  :version "0.1.0"
  :author "The clgrpc developers"
  :license "MIT"
  :description "gRPC for Common Lisp: HTTP/2, protobuf, client and server, native and fast."
  :depends-on ("clgrpc/client" "clgrpc/balance" "clgrpc/inproc" "clgrpc/server"
               "clgrpc/services" "clgrpc/logs" "clgrpc/metrics" "clgrpc/channelz"
               "clgrpc/trace" "clgrpc/otlp" "clgrpc/console" "clgrpc/program")
  :pathname "src/"
  :serial t
  :components ((:file "package"))
  :in-order-to ((test-op (test-op "clgrpc/tests"))))

(defsystem "clgrpc/kernel"
  :description "An assembler for inner loops in machine code, and what the processor has."
  :pathname "src/kernel/"
  :serial t
  :components ((:file "package")
               (:file "instruction")
               (:file "kernel")
               (:file "processor")))

(defsystem "clgrpc/base"
  :description "Octets, policy, options, conditions, clock, timers, queues, log, JSON."
  :depends-on ("clgrpc/kernel" "sb-concurrency")
  :pathname "src/base/"
  :serial t
  :components ((:file "package")
               (:file "version")
               (:file "policy")
               (:file "interrupt")
               (:file "clock")
               (:file "number")
               (:file "heap")
               (:file "raw")
               (:file "copy-kernel")
               (:file "octets")
               (:file "store")
               (:file "collector")
               (:file "condition")
               (:file "likely")
               (:file "option")
               (:file "seed")
               (:file "utf8-kernel")
               (:file "utf8")
               (:file "base64")
               (:file "timer")
               (:file "ranking")
               (:file "account")
               (:file "replay")
               (:file "queue")
               (:file "fifo")
               (:file "visible")
               (:file "chronicle")
               (:file "log")
               (:file "trace")
               (:file "decimal")
               (:file "json")
               (:file "journal")))

(defsystem "clgrpc/os"
  :description "The only code that touches the kernel: sockets, epoll, eventfd, signals."
  :depends-on ("clgrpc/base")
  :pathname "src/os/"
  :serial t
  :components ((:file "package")
               (:file "syscall")
               (:file "address")
               (:file "file")
               (:file "socket")
               (:file "epoll")
               (:file "poll")
               (:file "futex")
               (:file "stack")
               (:file "processor")
               (:file "process")
               (:file "signal")
               (:file "library")
               (:file "zlib")
               (:file "openssl")
               (:file "certificate")
               (:file "tls")))

(defsystem "clgrpc/loop"
  :description "The event loop, usable on its own."
  :depends-on ("clgrpc/os")
  :pathname "src/loop/"
  :serial t
  :components ((:file "package")
               (:file "world")
               (:file "guard")
               (:file "image")
               (:file "condition")
               (:file "share")
               (:file "reserve")
               (:file "poller")
               (:file "transport")
               (:file "spinning")
               (:file "structure")
               (:file "credentials")
               (:file "tls")
               (:file "bell")
               (:file "baton")
               (:file "watchdog")
               (:file "task")
               (:file "connection")
               (:file "turn")
               (:file "driving")
               (:file "loop")
               (:file "gathering")
               (:file "scheme")
               (:file "target")
               (:file "unix")
               (:file "machine")
               (:file "listener")
               (:file "resolver")
               (:file "datagram")
               (:file "connector")
               (:file "back-off")
               (:file "future")))

(defsystem "clgrpc/dns"
  :description "DNS messages, and a client of a DNS server on the event loop."
  :depends-on ("clgrpc/loop")
  :pathname "src/dns/"
  :serial t
  :components ((:file "package")
               (:file "name")
               (:file "message")
               (:file "answer")
               (:file "query")
               (:file "host")
               (:file "system")))

(defsystem "clgrpc/async"
  :description "cl-async's verbs on the event loop, for its users."
  :depends-on ("clgrpc/loop")
  :pathname "src/async/"
  :serial t
  :components ((:file "package")
               (:file "condition")
               (:file "structure")
               (:file "handle")
               (:file "event")
               (:file "watch")
               (:file "dns")
               (:file "socket")
               (:file "stream")
               (:file "server")
               (:file "program")))

(defsystem "clgrpc/examples/async"
  :description "What users of the event loop alone write."
  :depends-on ("clgrpc/async")
  :pathname "examples/async/"
  :serial t
  :components ((:file "delayed-answer")
               (:file "echo-server")
               (:file "chat-server")
               (:file "proxy")))

(defsystem "clgrpc/hpack"
  :description "RFC 7541: header compression for HTTP/2."
  :depends-on ("clgrpc/base")
  :pathname "src/hpack/"
  :serial t
  :components ((:file "package")
               (:file "error")
               (:file "leaf")
               (:file "huffman")
               (:file "field")
               (:file "list")
               (:file "static")
               (:file "table")
               (:file "cache")
               (:file "decoder")
               (:file "encoder")))

(defsystem "clgrpc/tests/dns"
  :class layer-tests
  :depends-on ("clgrpc/dns" "clgrpc/tests/loop" "clgrpc/tests/support" "sb-bsd-sockets" "fiveam")
  :pathname "tests/dns/"
  :serial t
  :components ((:file "package")
               (:file "server")
               (:file "name")
               (:file "message")
               (:file "answer")
               (:file "query")
               (:file "host")
               (:file "system")))

(defsystem "clgrpc/http1"
  :description "RFC 9112: messages of HTTP/1.1 as octets, without I/O."
  :depends-on ("clgrpc/hpack" "alexandria")
  :pathname "src/http1/"
  :serial t
  :components ((:file "package")
               (:file "error")
               (:file "syntax")
               (:file "message")
               (:file "head")
               (:file "framing")
               (:file "chunk")
               (:file "parser")
               (:file "writer")))

(defsystem "clgrpc/tests/http1"
  :class layer-tests
  :depends-on ("clgrpc/http1" "fiveam")
  :pathname "tests/http1/"
  :serial t
  :components ((:file "package")
               (:file "support")
               (:file "head")
               (:file "framing")
               (:file "chunk")
               (:file "parser")
               (:file "writer")
               (:file "smuggling")))

(defsystem "clgrpc/tests/hpack"
  :class layer-tests
  :depends-on ("clgrpc/hpack" "fiveam")
  :pathname "tests/hpack/"
  :serial t
  :components ((:file "package")
               (:file "support")
               (:file "vector")
               (:file "leaf")
               (:file "huffman")
               (:file "field")
               (:file "list")
               (:file "static")
               (:file "table")
               (:file "cache")
               (:file "decoder")
               (:file "encoder")))

(defsystem "clgrpc/http2"
  :description "RFC 9113: an HTTP/2 connection as a state machine without I/O."
  :depends-on ("clgrpc/hpack")
  :pathname "src/http2/"
  :serial t
  :components ((:file "package")
               (:file "error")
               (:file "state")
               (:file "frame")
               (:file "structure")
               (:file "header")
               (:file "earning")
               (:file "output")
               (:file "stream")
               (:file "failure")
               (:file "patience")
               (:file "reset")
               (:file "flow")
               (:file "writer")
               (:file "queue")
               (:file "settings")
               (:file "reader")
               (:file "connection")
               (:file "inspect")))

(defsystem "clgrpc/metrics"
  :description "What servers, channels and the process do, counted, and read by Prometheus."
  :depends-on ("clgrpc/rpc")
  :pathname "src/metrics/"
  :serial t
  :components ((:file "package")
               (:file "bucket")
               (:file "instrument")
               (:file "shard")
               (:file "registry")
               (:file "count")
               (:file "family")
               (:file "custom")
               (:file "collect")
               (:file "accept")
               (:file "text")))

(defsystem "clgrpc/protobuf"
  :description "Protocol Buffers: .proto source to native code."
  :depends-on ("clgrpc/base" "clgrpc/kernel" "sb-introspect")
  :pathname "src/protobuf/"
  :serial t
  :components ((:file "package")
               (:file "condition")
               (:file "descriptor")
               (:file "lexer")
               (:file "path")
               (:file "wire")
               (:file "float")
               (:file "literal")
               (:file "parser")
               (:file "grammar")
               (:file "name")
               (:file "message")
               (:file "range")
               (:file "varint-kernel")
               (:file "scalar")
               (:file "record")
               (:file "pool")
               (:file "option")
               (:file "feature")
               (:file "linker")
               (:file "check")
               (:file "image")
               (:file "sequence")
               (:file "index")
               (:file "map")
               (:file "plan")
               (:file "place")
               (:file "extension")
               (:file "reflection")
               (:file "requirement")
               (:file "copier")
               (:file "operation")
               (:file "structure")
               (:file "field")
               (:file "encoder")
               (:file "decoder")
               (:file "accessor")
               (:file "extension-accessor")
               (:file "import")
               (:file "source")
               (:file "textual")
               (:file "well-known-text")
               (:file "json-writer")
               (:file "json-reader")
               (:file "text-writer")
               (:file "text-reader")
               (:file "define")
               (:file "set")
               (:file "dynamic")
               (:file "component")
               (:module "../../proto/google/protobuf/"
                :components ((:static-file "any.proto")
                             (:static-file "api.proto")
                             (:static-file "compiler/plugin.proto")
                             (:static-file "cpp_features.proto")
                             (:static-file "descriptor.proto")
                             (:static-file "duration.proto")
                             (:static-file "empty.proto")
                             (:static-file "field_mask.proto")
                             (:static-file "go_features.proto")
                             (:static-file "java_features.proto")
                             (:static-file "source_context.proto")
                             (:static-file "struct.proto")
                             (:static-file "timestamp.proto")
                             (:static-file "type.proto")
                             (:static-file "wrappers.proto")))
               (:file "built-in")
               (:file "well-known")
               (:file "form")
               (:file "plugin")))

(defsystem "clgrpc/status"
  :description "Statuses, the errors they become, metadata and time-outs."
  :depends-on ("clgrpc/protobuf")
  :pathname "src/status/"
  :serial t
  :components ((:static-file "../../proto/google/rpc/status.proto")
               (:static-file "../../proto/google/rpc/error_details.proto")
               (:file "proto")
               (:file "package")
               (:file "status")
               (:file "details")
               (:file "timeout")
               (:file "metadata")))

(defsystem "clgrpc/service"
  :description "Methods, services and the class of channels."
  :depends-on ("clgrpc/status" "clgrpc/loop")
  :pathname "src/service/"
  :serial t
  :components ((:static-file "../../proto/grpc/health/v1/health.proto")
               (:static-file "../../proto/xds/data/orca/v3/orca_load_report.proto")
               (:static-file "../../proto/xds/service/orca/v3/orca.proto")
               (:file "package")
               (:file "method")
               (:file "proto")))

(defsystem "clgrpc/rpc"
  :description "What a call is on any transport: the contract of transports, observers."
  :depends-on ("clgrpc/service")
  :pathname "src/rpc/"
  :serial t
  :components ((:file "package")
               (:file "interceptor")
               (:file "transport")
               (:file "part")
               (:file "observer")
               (:file "call")
               (:file "value")
               (:file "verb")
               (:file "verdict")
               (:file "trouble")
               (:file "reaction")
               (:file "room")
               (:file "account")
               (:file "tracing")))

(defsystem "clgrpc/calling"
  :description "What channels of all transports share: stubs, futures, client loops."
  :depends-on ("clgrpc/rpc" "clgrpc/config")
  :pathname "src/calling/"
  :serial t
  :components ((:file "package")
               (:file "channel")
               (:file "stub")
               (:file "future")
               (:file "dropped")
               (:file "runtime")
               (:file "attempt")
               (:file "retry")))

(defsystem "clgrpc/serving"
  :description "What servers of all transports share: routes, entrances, how handlers are called."
  :depends-on ("clgrpc/rpc")
  :pathname "src/serving/"
  :serial t
  :components ((:file "package")
               (:file "route")
               (:file "answer")
               (:file "server")))

(defsystem "clgrpc/wire"
  :description "What both ends of a call share over HTTP/2: links, framing, streams of messages."
  :depends-on ("clgrpc/rpc" "clgrpc/http2")
  :pathname "src/wire/"
  :serial t
  :components ((:file "package")
               (:file "status")
               (:file "metadata")
               (:file "framing")
               (:file "compression")
               (:file "stage")
               (:file "dialect")
               (:file "part")
               (:file "encoding")
               (:file "link")
               (:file "tap")
               (:file "life")
               (:file "call")
               (:file "attempt")
               (:file "held")
               (:file "inlet")
               (:file "callback")
               (:file "replay")
               (:file "outlet")
               (:file "deadline")
               (:file "account")
               (:file "transport")
               (:file "traffic")))

(defsystem "clgrpc/config"
  :description "Service configs, read and checked."
  :depends-on ("clgrpc/status")
  :pathname "src/config/"
  :serial t
  :components ((:file "package")
               (:file "condition")
               (:file "field")
               (:file "policy")
               (:file "method")
               (:file "service-config")))

(defsystem "clgrpc/client"
  :description "Channels over the network, subchannels, stubs."
  :depends-on ("clgrpc/wire" "clgrpc/calling" "clgrpc/config" "clgrpc/dns" "alexandria")
  :pathname "src/client/"
  :serial t
  :components ((:file "package")
               (:file "resolver")
               (:file "choice")
               (:file "naming")
               (:file "balancer")
               (:file "breaker")
               (:file "structure")
               (:file "stream-queue")
               (:file "compression")
               (:file "ending")
               (:file "interceptor")
               (:file "head")
               (:file "service-config")
               (:file "request")
               (:file "attempt")
               (:file "veto")
               (:file "trunk")
               (:file "subchannel")
               (:file "guard")
               (:file "core")
               (:file "switch")
               (:file "pick-first")
               (:file "dropped")
               (:file "policy")
               (:file "hedging")
               (:file "retry")
               (:file "response")
               (:file "call")
               (:file "transport")
               (:file "side-call")
               (:file "channel")
               (:file "description")
               (:file "stub")))

(defsystem "clgrpc/trace"
  :description "Distributed tracing: contexts, samplers, spans of calls."
  :depends-on ("clgrpc/client")
  :pathname "src/trace/"
  :serial t
  :components ((:file "package")
               (:file "id")
               (:file "context")
               (:file "state")
               (:file "sampler")
               (:file "span")
               (:file "queue")
               (:file "tracing")
               (:file "record")
               (:file "current")
               (:file "header")
               (:file "observe")))

(defsystem "clgrpc/balance"
  :description "Balancing policies."
  :depends-on ("clgrpc/client")
  :pathname "src/balance/"
  :serial t
  :components ((:file "package")
               (:file "timer")
               (:file "vigil")
               (:file "health")
               (:file "orca")
               (:file "fleet")
               (:file "round-robin")
               (:file "least-request")
               (:file "stride")
               (:file "weighted-round-robin")
               (:file "xxh64")
               (:file "ring-hash")
               (:file "wrapper")
               (:file "outlier-detection")
               (:file "random-subsetting")
               (:file "branch")
               (:file "weighted-target")
               (:file "priority")))

(defsystem "clgrpc/server"
  :description "Servers, listeners, dispatch, drain."
  :depends-on ("clgrpc/wire" "clgrpc/http1" "clgrpc/serving" "alexandria")
  :pathname "src/server/"
  :serial t
  :components ((:file "package")
               (:file "route")
               (:file "structure")
               (:file "request")
               (:file "site")
               (:file "hub")
               (:file "refusal")
               (:file "peer")
               (:file "valve")
               (:file "limit")
               (:file "call")
               (:file "room")
               (:file "compression")
               (:file "reply")
               (:file "answer")
               (:file "plain")
               (:file "response")
               (:file "execution")
               (:file "delivery")
               (:file "transport")
               (:file "drain")
               (:file "dispatch")
               (:file "http1")
               (:file "opening")
               (:file "server")
               (:file "survey")))

(defsystem "clgrpc/inproc"
  :description "Calls within the image: from a channel to a server without octets between."
  :depends-on ("clgrpc/calling" "clgrpc/serving" "alexandria")
  :pathname "src/inproc/"
  :serial t
  :components ((:file "package")
               (:file "tally")
               (:file "structure")
               (:file "context")
               (:file "route")
               (:file "line")
               (:file "message")
               (:file "runtime")
               (:file "ending")
               (:file "begin")
               (:file "waiting")
               (:file "queue")
               (:file "callback")
               (:file "stream")
               (:file "park")
               (:file "operation")
               (:file "channel")
               (:file "stub")
               (:file "relay")
               (:file "retry")
               (:file "reactive")
               (:file "configured")
               (:file "opening")
               (:file "direct")))

(defsystem "clgrpc/services"
  :description "The services of gRPC itself: health, reflection; and health and metrics over HTTP."
  :depends-on ("clgrpc/server" "clgrpc/metrics")
  :pathname "src/services/"
  :serial t
  :components ((:static-file "../../proto/grpc/reflection/v1/reflection.proto")
               (:static-file "../../proto/grpc/reflection/v1alpha/reflection.proto")
               (:file "proto")
               (:file "package")
               (:file "health")
               (:file "metrics")
               (:file "reflection")))

(defsystem "clgrpc/logs"
  :description "Logs of calls."
  :depends-on ("clgrpc/rpc")
  :pathname "src/logs/"
  :serial t
  :components ((:static-file "../../proto/grpc/binlog/v1/binarylog.proto")
               (:file "proto")
               (:file "package")
               (:file "access")
               (:file "filter")
               (:file "entry")
               (:file "entry-file")
               (:file "binary")))

(defsystem "clgrpc/channelz"
  :description "What the channels, servers and connections of a process are and do, as a service."
  :depends-on ("clgrpc/client" "clgrpc/server")
  :pathname "src/channelz/"
  :serial t
  :components ((:static-file "../../proto/grpc/channelz/v1/channelz.proto")
               (:file "proto")
               (:file "package")
               (:file "asking")
               (:file "socket")
               (:file "service")))

(defsystem "clgrpc/etcd"
  :description "A client of etcd."
  :depends-on ("clgrpc/client" "clgrpc/balance" "clgrpc/metrics" "alexandria")
  :pathname "src/etcd/"
  :serial t
  :components ((:static-file "../../proto/etcd/kv.proto")
               (:static-file "../../proto/etcd/auth.proto")
               (:static-file "../../proto/etcd/rpc.proto")
               (:file "proto")
               (:file "package")
               (:file "condition")
               (:file "key")
               (:file "entry")
               (:file "endpoint")
               (:file "meter")
               (:file "client")
               (:file "call")
               (:file "lease")
               (:file "store")
               (:file "transaction")
               (:file "watch")
               (:file "mirror")
               (:file "place")
               (:file "lock")
               (:file "election")
               (:file "member")
               (:file "synchronize")
               (:file "user")
               (:file "maintenance")))

(defsystem "clgrpc/discovery"
  :description "Servers that register themselves in etcd, and channels that find them there."
  :depends-on ("clgrpc/etcd" "clgrpc/server" "clgrpc/metrics" "clgrpc/command")
  :pathname "src/discovery/"
  :serial t
  :components ((:file "package")
               (:file "endpoint")
               (:file "key")
               (:file "place")
               (:file "roster")
               (:file "meter")
               (:file "registration")
               (:file "listing")
               (:file "host")
               (:file "finder")
               (:file "resolver")
               (:file "program")))

(defsystem "clgrpc/memory"
  :description "An engine in memory that serves etcd's services, for demonstrations and tests."
  :depends-on ("clgrpc/etcd" "clgrpc/inproc")
  :pathname "src/memory/"
  :serial t
  :components ((:file "package")
               (:file "tree")
               (:file "store")
               (:file "lease")
               (:file "range")
               (:file "transaction")
               (:file "engine")
               (:file "watch")
               (:file "service")))

(defsystem "clgrpc/raft"
  :description "Raft's messages between the members of a group."
  :depends-on ("clgrpc/client" "clgrpc/balance" "clgrpc/server" "clgrpc/metrics" "alexandria")
  :pathname "src/raft/"
  :serial t
  :components ((:static-file "../../proto/cluster/raft.proto")
               (:file "proto")
               (:file "package")
               (:file "crc32c")
               (:file "state")
               (:file "receipt")
               (:file "service")
               (:file "meter")
               (:file "batch")
               (:file "peer")
               (:file "question")
               (:file "pipeline")
               (:file "snapshot")))

(defsystem "clgrpc/workflow"
  :description "Durable workflows on etcd: the service, its clients and workers."
  :depends-on ("clgrpc/etcd" "clgrpc/server" "clgrpc/inproc" "clgrpc/services" "clgrpc/metrics"
               "clgrpc/trace" "clgrpc/balance" "alexandria" "sb-md5")
  :pathname "src/workflow/"
  :serial t
  :components ((:static-file "../../proto/cluster/workflow.proto")
               (:file "proto")
               (:file "package")
               (:file "condition")
               (:file "limit")
               (:file "key")
               (:file "definition")
               (:file "draft")
               (:file "decision")
               (:file "index")
               (:file "node")
               (:file "instrument")
               (:file "change")
               (:file "claim")
               (:file "session")
               (:file "clock")
               (:file "watching")
               (:file "method")
               (:file "client")
               (:file "task")
               (:file "worker")))

(defsystem "clgrpc/cluster"
  :description "Nodes that know of each other through a store with leases."
  :depends-on ("clgrpc/etcd" "clgrpc/memory" "clgrpc/discovery" "clgrpc/raft" "clgrpc/workflow"
               "clgrpc/server" "clgrpc/services" "clgrpc/metrics" "alexandria")
  :pathname "src/cluster/"
  :serial t
  :components ((:static-file "../../proto/cluster/membership.proto")
               (:file "proto")
               (:file "package")
               (:file "condition")
               (:file "member")
               (:file "decision")
               (:file "view")
               (:file "store")
               (:file "membership")
               (:file "hub")
               (:file "identity")
               (:file "service")
               (:file "follow")
               (:file "meter")
               (:file "node")
               (:file "names")))

(defsystem "clgrpc/otlp"
  :description "Metrics and spans told to an OpenTelemetry collector."
  :depends-on ("clgrpc/client" "clgrpc/metrics" "clgrpc/trace")
  :pathname "src/otlp/"
  :serial t
  :components ((:static-file "../../proto/opentelemetry/proto/common/v1/common.proto")
               (:static-file "../../proto/opentelemetry/proto/resource/v1/resource.proto")
               (:static-file "../../proto/opentelemetry/proto/metrics/v1/metrics.proto")
               (:static-file
                "../../proto/opentelemetry/proto/collector/metrics/v1/metrics_service.proto")
               (:static-file "../../proto/opentelemetry/proto/trace/v1/trace.proto")
               (:static-file
                "../../proto/opentelemetry/proto/collector/trace/v1/trace_service.proto")
               (:file "proto")
               (:file "package")
               (:file "environment")
               (:file "attribute")
               (:file "metric")
               (:file "span")
               (:file "failure")
               (:file "pipeline")
               (:file "exporter")))

(defsystem "clgrpc/console"
  :description "A page for the browser that shows what the process does now."
  :depends-on ("clgrpc/server" "clgrpc/metrics" "clgrpc/logs")
  :pathname "src/console/"
  :serial t
  :components ((:file "package")
               (:file "album")
               (:file "tail")
               (:file "console")
               (:file "frame")
               (:file "access")
               (:file "viewer")
               (:static-file "page/console.html")
               (:static-file "page/console.css")
               (:static-file "page/console.js")
               (:file "page")))

(defsystem "clgrpc/command"
  :description "Command lines: arguments, their parsers, complaints and help texts."
  :depends-on ("clgrpc/loop")
  :pathname "src/command/"
  :serial t
  :components ((:file "package")
               (:file "usage")
               (:file "parser")
               (:file "argument")
               (:file "group")
               (:file "line")
               (:file "help")))

(defsystem "clgrpc/program"
  :description "A server as a program, from its command line to the signal that ends it."
  :depends-on ("clgrpc/command" "clgrpc/server" "clgrpc/services" "clgrpc/metrics" "clgrpc/console"
               "clgrpc/trace" "clgrpc/otlp" "clgrpc/logs" "clgrpc/channelz")
  :pathname "src/program/"
  :serial t
  :components ((:file "package")
               (:file "ending")
               (:file "credentials")
               (:file "telemetry")
               (:file "serve")
               (:file "run")))

(defsystem "clgrpc/sim"
  :description "Servers and clients as they are on a virtual network and clock, from a seed."
  :depends-on ("clgrpc")
  :pathname "src/sim/"
  :serial t
  :components ((:file "package")
               (:file "chance")
               (:file "agenda")
               (:file "trace")
               (:file "structure")
               (:file "network")
               (:file "schedule")
               (:file "fault")
               (:file "datagram")
               (:file "simulation")
               (:file "peer")
               (:file "seed")))

(defsystem "clgrpc/examples"
  :description "A greeter, a RouteGuide and its client, as users write them."
  :depends-on ("clgrpc")
  :pathname "examples/"
  :serial t
  :components ((:file "protos")
               (:file "package")
               (:file "greeter")
               (:file "geometry")
               (:file "route-guide")
               (:file "route-guide-client")))

(defsystem "clgrpc/examples/raft-toy"
  :description "A toy that shows the calls of clgrpc/raft."
  :depends-on ("clgrpc/raft" "clgrpc")
  :pathname "examples/raft-toy/"
  :serial t
  :components ((:file "package")
               (:file "toy")
               (:file "leader")))

(defsystem "clgrpc/load"
  :description "The engine of `clgrpc load`: calls at a rate, and what is known of them."
  :depends-on ("clgrpc")
  :pathname "tools/load/"
  :serial t
  :components ((:file "package")
               (:file "histogram")
               (:file "run")
               (:file "second")
               (:file "round")
               (:file "schedule")
               (:file "template")
               (:file "payload")
               (:file "plan")
               (:file "tally")
               (:file "structure")
               (:file "flight")
               (:file "line")
               (:file "lane")
               (:file "engine")))

(defsystem "clgrpc/profile"
  :description "Where the time of a process goes: clgrpc profile."
  :depends-on ("clgrpc" "clgrpc/page" "sb-sprof")
  :pathname "tools/profile/"
  :serial t
  :components ((:file "package")
               (:file "area")
               (:file "symbol")
               (:file "sample")
               (:file "stack")
               (:file "event")
               (:file "agent")
               (:file "process")
               (:file "perf")
               (:file "run")
               (:file "text")
               (:file "compare")
               (:file "flame")
               (:file "html")))

(defsystem "clgrpc/page"
  :description "Reports as web pages, with charts as SVG."
  :depends-on ("clgrpc/base")
  :pathname "tools/page/"
  :serial t
  :components ((:file "package")
               (:file "figure")
               (:file "markup")
               (:file "scale")
               (:file "chart")
               (:static-file "page.css")
               (:file "page")))

(defsystem "clgrpc/report"
  :description "What is said of runs of `clgrpc load`: reports, comparisons, conditions."
  :depends-on ("clgrpc/load" "clgrpc/page")
  :pathname "tools/report/"
  :serial t
  :components ((:file "package")
               (:file "figure")
               (:file "condition")
               (:file "ghz")
               (:file "comparison")
               (:file "run-json")
               (:file "run-reader")
               (:file "text")
               (:file "html")
               (:file "report")))

(defsystem "clgrpc/tools"
  :description "The command clgrpc."
  :depends-on ("clgrpc/examples" "clgrpc/load" "clgrpc/report" "clgrpc/profile" "clgrpc/discovery"
               "clgrpc/cluster")
  :pathname "tools/"
  :serial t
  :components ((:file "protos")
               (:file "testee-protos")
               (:file "package")
               (:file "standard-output")
               (:file "command")
               (:file "tls")
               (:file "payload")
               (:file "bench")
               (:file "orca")
               (:file "interop")
               (:file "interop-case")
               (:file "interop-client")
               (:file "serve")
               (:file "bench-client")
               (:file "client")
               (:file "testee-connect")
               (:file "testee-policy")
               (:file "testee-metrics")
               (:file "testee")
               (:file "gen")
               (:file "catalogue")
               (:file "declaration")
               (:file "fleet")
               (:file "call")
               (:file "channelz")
               (:file "http")
               (:file "exposition")
               (:file "top")
               (:file "binlog")
               (:file "worker/figures")
               (:file "worker/client")
               (:file "worker/worker")
               (:file "worker/driver")
               (:file "storm-client")
               (:file "profile")
               (:file "rehearsal")
               (:file "compare")
               (:file "load-plan")
               (:file "load")
               (:file "cluster-node")
               (:file "cluster")
               (:file "main")))

;;; Tests: a system per layer, each added to those that clgrpc/tests depends on

(defsystem "clgrpc/tests"
  :description "All tests and their runner."
  :depends-on ("clgrpc/tests/support" "clgrpc/tests/base" "clgrpc/tests/os" "clgrpc/tests/loop"
               "clgrpc/tests/async" "clgrpc/tests/dns"
               "clgrpc/tests/hpack" "clgrpc/tests/http1" "clgrpc/tests/http2"
               "clgrpc/tests/dialogue"
               "clgrpc/tests/protobuf" "clgrpc/tests/fuzz" "clgrpc/tests/rpc"
               "clgrpc/tests/world" "clgrpc/tests/wire" "clgrpc/tests/status"
               "clgrpc/tests/service" "clgrpc/tests/calling" "clgrpc/tests/serving"
               "clgrpc/tests/examples"
               "clgrpc/tests/profile" "clgrpc/tests/tools" "clgrpc/tests/load" "clgrpc/tests/page"
               "clgrpc/tests/report" "clgrpc/tests/interop" "clgrpc/tests/server"
               "clgrpc/tests/config" "clgrpc/tests/client" "clgrpc/tests/balance" "clgrpc/tests/trace"
               "clgrpc/tests/transports" "clgrpc/tests/inproc"
               "clgrpc/tests/services" "clgrpc/tests/logs" "clgrpc/tests/metrics"
               "clgrpc/tests/channelz" "clgrpc/tests/console"
               "clgrpc/tests/sim" "clgrpc/tests/policy"
               "clgrpc/tests/abuse" "clgrpc/tests/promise" "clgrpc/tests/otlp"
               "clgrpc/tests/etcd" "clgrpc/tests/discovery" "clgrpc/tests/memory"
               "clgrpc/tests/raft"
               "clgrpc/tests/workflow"
               "clgrpc/tests/cluster"
               "clgrpc/tests/command" "clgrpc/tests/program"
               "clgrpc/tests/faults"
               "sb-posix" "sb-introspect")
  :pathname "tests/"
  :serial t
  :components ((:file "package")
               (:file "runner")
               (:file "runner-test")
               (:file "architecture")
               (:file "arrow")
               (:file "slot")
               (:file "documentation")
               (:file "chapter")
               (:file "chapters"))
  :perform (test-op (operation system)
             (symbol-call '#:clgrpc.tests '#:test-system)))

(defsystem "clgrpc/tests/sim"
  :class layer-tests
  :depends-on ("clgrpc/sim" "clgrpc/tests/server" "clgrpc/tests/dns" "clgrpc/tests/support"
               "fiveam")
  :pathname "tests/sim/"
  :serial t
  :components ((:file "package")
               (:file "mix")
               (:file "driver")
               (:file "chance")
               (:file "agenda")
               (:file "network")
               (:file "names")
               (:file "schedule")
               (:file "simulation")
               (:file "seed")
               (:file "condition")
               (:file "policy")
               (:file "found")))

(defsystem "clgrpc/tests/policy"
  :class layer-tests
  :description "The public policy scenarios, on the simulator."
  :depends-on ("clgrpc/sim" "clgrpc/tests/sim" "clgrpc/tests/dns" "clgrpc/tests/dialogue"
               "clgrpc/tests/support" "fiveam")
  :pathname "tests/policy/"
  :serial t
  :components ((:file "package")
               (:file "backend")
               (:file "attempt")
               (:file "scenario")
               (:file "retry")
               (:file "hedging")
               (:file "deadline")
               (:file "connectivity")
               (:file "pick-first")
               (:file "config")
               (:file "name")
               (:file "balance")
               (:file "health")
               (:file "scaling")
               (:file "suite")))

(defsystem "clgrpc/tests/support"
  :description "Programs as peers, for the tests of several layers."
  :depends-on ("fiveam")
  :pathname "tests/support/"
  :serial t
  :components ((:file "package")
               (:file "descriptor")
               (:file "interrupt")
               (:file "program")
               (:file "suite")))

(defsystem "clgrpc/tests/base"
  :class layer-tests
  :depends-on ("clgrpc/base" "clgrpc/tests/support" "fiveam")
  :pathname "tests/base/"
  :serial t
  :components ((:file "package")
               (:file "policy")
               (:file "interrupt")
               (:file "option")
               (:file "utf8")
               (:file "base64")
               (:file "decimal")
               (:file "json")
               (:file "clock")
               (:file "number")
               (:file "timer")
               (:file "ranking")
               (:file "account")
               (:file "replay")
               (:file "queue")
               (:file "fifo")
               (:file "visible")
               (:file "log")
               (:file "trace")
               (:file "journal")
               (:file "octets")
               (:file "heap")
               (:file "raw")
               (:file "store")
               (:file "collector")))

(defsystem "clgrpc/tests/os"
  :class layer-tests
  :depends-on ("clgrpc/os" "clgrpc/tests/support" "fiveam")
  :pathname "tests/os/"
  :serial t
  :components ((:file "package")
               (:file "syscall")
               (:file "address")
               (:file "socket")
               (:file "epoll")
               (:file "poll")
               (:file "file")
               (:file "processor")
               (:file "process")
               (:file "signal")
               (:file "library")
               (:file "zlib")
               (:file "openssl")
               (:file "certificate")
               (:file "tls")))

(defsystem "clgrpc/tests/loop"
  :class layer-tests
  :depends-on ("clgrpc/loop" "clgrpc/tests/support" "sb-bsd-sockets" "sb-posix" "fiveam")
  :pathname "tests/loop/"
  :serial t
  :components ((:file "package")
               (:file "support")
               (:file "interleaving")
               (:file "baton")
               (:file "guard")
               (:file "driving")
               (:file "gathering")
               (:file "loop")
               (:file "connection")
               (:file "closing")
               (:file "memory")
               (:file "credentials")
               (:file "tls")
               (:file "area")
               (:file "resumption")
               (:file "scheme")
               (:file "target")
               (:file "unix")
               (:file "listener")
               (:file "connector")
               (:file "back-off")
               (:file "share")
               (:file "reserve")
               (:file "future")
               (:file "poller")
               (:file "spinning")
               (:file "bell")
               (:file "task")
               (:file "turn")))

(defsystem "clgrpc/tests/async"
  :class layer-tests
  :depends-on ("clgrpc/async" "clgrpc/examples/async" "clgrpc/tests/loop")
  :pathname "tests/async/"
  :serial t
  :components ((:file "package")
               (:file "condition")
               (:file "program")
               (:file "event")
               (:file "watch")
               (:file "dns")
               (:file "socket")
               (:file "stream")
               (:file "server")
               (:file "examples")
               (:file "poller")))

(defsystem "clgrpc/tests/protobuf"
  :class layer-tests
  :depends-on ("clgrpc/protobuf" "fiveam")
  :pathname "tests/protobuf/"
  :serial t
  :components ((:file "package")
               (:static-file "all.proto")
               (:static-file "legacy.proto")
               (:static-file "extension.proto")
               (:file "support")
               (:file "vector")
               (:file "lexer")
               (:file "parser")
               (:file "linker")
               (:file "condition")
               (:file "descriptor")
               (:file "pool")
               (:file "built-in")
               (:file "feature")
               (:file "record")
               (:file "literal")
               (:file "float")
               (:file "option")
               (:file "check")
               (:file "image")
               (:file "name")
               (:file "wire")
               (:static-file "field.proto")
               (:file "field")
               (:file "scalar")
               (:file "sequence")
               (:file "encoder")
               (:file "decoder")
               (:file "range")
               (:file "extension")
               (:file "index")
               (:file "map")
               (:file "structure")
               (:file "place")
               (:file "requirement")
               (:file "copier")
               (:file "operation")
               (:file "reflection")
               (:file "import")
               (:file "path")
               (:static-file "textual.proto")
               (:file "well-known-text")
               (:file "json-writer")
               (:file "json-reader")
               (:file "text-writer")
               (:file "text-reader")
               (:file "textual")
               (:file "dynamic")
               (:file "define")
               (:file "source")
               (:file "set")
               (:file "linear")
               (:file "component")
               (:file "well-known")
               (:file "form")
               (:file "plugin")))

(defsystem "clgrpc/tests/fuzz"
  :class layer-tests
  :depends-on ("clgrpc/tests/protobuf" "clgrpc/tests/loop" "clgrpc/tests/dns"
               "clgrpc/tests/dialogue" "clgrpc/tests/server" "clgrpc/sim"
               "clgrpc/tests/support" "fiveam")
  :pathname "tests/fuzz/"
  :serial t
  :components ((:file "package")
               (:file "chance")
               (:file "octets")
               (:file "wire")
               (:file "text")
               (:file "target")
               (:file "frame")
               (:file "dns")
               (:file "hpack")
               (:file "http1")
               (:file "http2")
               (:file "grpc")
               (:file "tls")
               (:file "cost")
               (:file "driver")
               (:file "suite")))

(defsystem "clgrpc/tests/rpc"
  :class layer-tests
  :depends-on ("clgrpc/calling" "clgrpc/serving" "fiveam")
  :pathname "tests/rpc/"
  :serial t
  :components ((:file "proto")
               (:file "package")
               (:file "call")
               (:file "part")
               (:file "value")
               (:file "reaction")
               (:file "interceptor")
               (:file "transport")
               (:file "observer")
               (:file "verb")
               (:file "verdict")
               (:file "trouble")))

(defsystem "clgrpc/tests/status"
  :class layer-tests
  :depends-on ("clgrpc/tests/rpc")
  :pathname "tests/status/"
  :serial t
  :components ((:file "status")
               (:file "timeout")
               (:file "metadata")))

(defsystem "clgrpc/tests/command"
  :class layer-tests
  :depends-on ("clgrpc/command" "fiveam")
  :pathname "tests/command/"
  :serial t
  :components ((:file "package")
               (:file "parser")
               (:file "line")))

(defsystem "clgrpc/tests/program"
  :class layer-tests
  :depends-on ("clgrpc/examples" "clgrpc/tests/support" "fiveam")
  :pathname "tests/program/"
  :serial t
  :components ((:file "package")
               (:static-file "greeter.lisp")
               (:static-file "late.lisp")
               (:file "run")
               (:file "example")))

(defsystem "clgrpc/tests/config"
  :class layer-tests
  :depends-on ("clgrpc/config" "fiveam")
  :pathname "tests/config/"
  :serial t
  :components ((:file "package")
               (:file "field")
               (:file "policy")
               (:file "method")
               (:file "service-config")))

(defsystem "clgrpc/tests/service"
  :class layer-tests
  :depends-on ("clgrpc/tests/rpc")
  :pathname "tests/service/"
  :serial t
  :components ((:file "method")))

(defsystem "clgrpc/tests/calling"
  :class layer-tests
  :depends-on ("clgrpc/tests/rpc")
  :pathname "tests/calling/"
  :serial t
  :components ((:file "channel")
               (:file "interceptor")
               (:file "stub")
               (:file "future")
               (:file "dropped")
               (:file "runtime")
               (:file "retry")))

(defsystem "clgrpc/tests/serving"
  :class layer-tests
  :depends-on ("clgrpc/tests/rpc")
  :pathname "tests/serving/"
  :serial t
  :components ((:file "route")
               (:file "answer")
               (:file "server")))

(defsystem "clgrpc/tests/wire"
  :class layer-tests
  :depends-on ("clgrpc/wire" "clgrpc/tests/world" "fiveam")
  :pathname "tests/wire/"
  :serial t
  :components ((:file "proto")
               (:file "package")
               (:file "script")
               (:file "call")
               (:file "link")
               (:file "life")
               (:file "inlet")
               (:file "held")
               (:file "callback")
               (:file "deadline")
               (:file "outlet")
               (:file "tap")
               (:file "account")
               (:file "encoding")
               (:file "dialect")
               (:file "status")
               (:file "metadata")
               (:file "framing")
               (:file "compression")
               (:file "stage")))

(defsystem "clgrpc/tests/server"
  :class layer-tests
  :depends-on ("clgrpc" "clgrpc/tests/support" "clgrpc/tests/world" "sb-bsd-sockets" "fiveam")
  :pathname "tests/server/"
  :serial t
  :components ((:static-file "bench.proto")
               (:file "proto")
               (:file "package")
               (:file "support")
               (:file "service")
               (:file "peer")
               (:file "call")
               (:file "reply")
               (:file "dispatch")
               (:file "dialect")
               (:file "plain")
               (:file "opening")
               (:file "http1")
               (:static-file "http-client.py")
               (:file "http-client")
               (:file "response")
               (:file "site")
               (:file "request")
               (:file "script")
               (:file "hub")
               (:file "refusal")
               (:file "limit")
               (:file "account")
               (:file "kept")
               (:file "room")
               (:file "drain")
               (:file "entrance")
               (:file "compression")
               (:file "route")
               (:file "server")
               (:file "volume")))

(defsystem "clgrpc/tests/inproc"
  :class layer-tests
  :depends-on ("clgrpc/tests/server")
  :pathname "tests/inproc/"
  :serial t
  :components ((:file "package")
               (:file "tally")
               (:file "structure")
               (:file "context")
               (:file "route")
               (:file "line")
               (:file "message")
               (:file "runtime")
               (:file "ending")
               (:file "begin")
               (:file "waiting")
               (:file "queue")
               (:file "callback")
               (:file "stream")
               (:file "park")
               (:file "operation")
               (:file "channel")
               (:file "stub")
               (:file "retry")
               (:file "direct")))

(defsystem "clgrpc/tests/services"
  :class layer-tests
  :depends-on ("clgrpc/tests/server")
  :pathname "tests/services/"
  :serial t
  :components ((:file "package")
               (:file "health")
               (:file "metrics")
               (:file "reflection")))

(defsystem "clgrpc/tests/console"
  :class layer-tests
  :depends-on ("clgrpc/console" "clgrpc/tests/server")
  :pathname "tests/console/"
  :serial t
  :components ((:file "package")
               (:file "album")
               (:file "tail")
               (:file "console")
               (:file "frame")
               (:file "access")
               (:file "viewer")
               (:file "page")
               (:static-file "browser.mjs")
               (:file "browser")))

(defsystem "clgrpc/tests/logs"
  :class layer-tests
  :depends-on ("clgrpc/tests/client")
  :pathname "tests/logs/"
  :serial t
  :components ((:file "package")
               (:file "access")
               (:file "filter")
               (:file "entry-file")
               (:file "binary")))

(defsystem "clgrpc/tests/channelz"
  :class layer-tests
  :depends-on ("clgrpc" "clgrpc/tests/server")
  :pathname "tests/channelz/"
  :serial t
  :components ((:file "package")
               (:file "service")))

(defsystem "clgrpc/tests/etcd"
  :class layer-tests
  :depends-on ("clgrpc/etcd" "clgrpc/memory" "clgrpc/inproc" "clgrpc/tests/support"
               "sb-bsd-sockets" "alexandria")
  :pathname "tests/etcd/"
  :serial t
  :components ((:file "package")
               (:file "server")
               (:file "stand-in")
               (:file "condition")
               (:file "key")
               (:file "endpoint")
               (:file "meter")
               (:file "store")
               (:file "transaction")
               (:file "lease")
               (:file "watch")
               (:file "mirror")
               (:file "lock")
               (:file "election")
               (:file "member")
               (:file "synchronize")
               (:file "user")
               (:file "maintenance")))

(defsystem "clgrpc/tests/discovery"
  :class layer-tests
  :depends-on ("clgrpc/discovery" "clgrpc/memory" "clgrpc/metrics" "clgrpc/tests/etcd"
               "clgrpc/examples" "alexandria")
  :pathname "tests/discovery/"
  :serial t
  :components ((:file "package")
               (:file "endpoint")
               (:file "key")
               (:file "place")
               (:file "roster")
               (:file "registration")
               (:file "listing")
               (:file "resolver")
               (:file "host")
               (:file "finder")
               (:file "meter")
               (:file "naming")
               (:file "fleet")))

(defsystem "clgrpc/tests/memory"
  :class layer-tests
  :depends-on ("clgrpc/memory" "clgrpc/server" "clgrpc/tests/etcd" "clgrpc/tests/support"
               "alexandria")
  :pathname "tests/memory/"
  :serial t
  :components ((:file "package")
               (:file "tree")
               (:file "store")
               (:file "lease")
               (:file "range")
               (:file "transaction")
               (:file "engine")
               (:file "watch")
               (:file "service")
               (:file "likeness")))

(defsystem "clgrpc/tests/raft"
  :class layer-tests
  :depends-on ("clgrpc/raft" "clgrpc" "clgrpc/sim" "clgrpc/examples/raft-toy" "fiveam")
  :pathname "tests/raft/"
  :serial t
  :components ((:file "package")
               (:file "member")
               (:file "crc32c")
               (:file "state")
               (:file "receipt")
               (:file "service")
               (:file "meter")
               (:file "peer")
               (:file "question")
               (:file "batch")
               (:file "pipeline")
               (:file "snapshot")
               (:file "attack")
               (:file "toy")))

(defsystem "clgrpc/tests/workflow"
  :class layer-tests
  :depends-on ("clgrpc/workflow" "clgrpc/memory" "clgrpc/tests/etcd" "clgrpc/tests/support")
  :pathname "tests/workflow/"
  :serial t
  :components ((:file "package")
               (:file "definition")
               (:file "decision")
               (:file "change")
               (:file "claim")
               (:file "model")
               (:file "service")
               (:file "interleaving")
               (:file "worker")))

(defsystem "clgrpc/tests/cluster"
  :class layer-tests
  :depends-on ("clgrpc" "clgrpc/cluster" "clgrpc/tests/etcd" "clgrpc/tests/support")
  :pathname "tests/cluster/"
  :serial t
  :components ((:file "package")
               (:file "support")
               (:file "member")
               (:file "decision")
               (:file "view")
               (:file "membership")
               (:file "identity")
               (:file "service")
               (:file "follow")
               (:file "node")
               (:file "store")
               (:file "names")))

(defsystem "clgrpc/tests/faults"
  :class layer-tests
  :depends-on ("clgrpc" "clgrpc/workflow" "clgrpc/cluster" "clgrpc/memory" "clgrpc/tests/etcd"
               "clgrpc/tests/support" "sb-posix")
  :pathname "tests/faults/"
  :serial t
  :components ((:file "package")
               (:file "place")
               (:file "fault")
               (:file "load")
               (:file "run")
               (:file "workflow")))

(defsystem "clgrpc/tests/otlp"
  :class layer-tests
  :depends-on ("clgrpc/otlp" "clgrpc/tests/server" "clgrpc/tests/support"
               "clgrpc/examples")
  :pathname "tests/otlp/"
  :serial t
  :components ((:file "package")
               (:file "environment")
               (:file "attribute")
               (:file "failure")
               (:file "metric")
               (:file "span")
               (:file "collector")
               (:file "exporter")
               (:file "service")))

(defsystem "clgrpc/tests/abuse"
  :class layer-tests
  :depends-on ("clgrpc/tests/server" "clgrpc/tests/dialogue" "clgrpc/tests/hpack"
               "clgrpc/tests/support" "clgrpc/tools")
  :pathname "tests/abuse/"
  :serial t
  :components ((:file "package")
               (:file "watch")
               (:file "attacker")
               (:file "victim")
               (:file "server")
               (:file "load")
               (:file "limit")
               (:file "peer")
               (:file "memory")
               (:file "heap")
               (:file "thread")
               (:file "starvation")
               (:file "burst")
               (:file "client")))

(defsystem "clgrpc/tests/client"
  :class layer-tests
  :depends-on ("clgrpc/tests/server" "clgrpc/tests/dns" "clgrpc/tests/support")
  :pathname "tests/client/"
  :serial t
  :components ((:file "package")
               (:file "support")
               (:file "stub")
               (:file "call")
               (:file "response")
               (:file "head")
               (:file "ending")
               (:file "compression")
               (:file "runtime")
               (:file "channel")
               (:file "target")
               (:file "resolver")
               (:file "choice")
               (:file "naming")
               (:file "core")
               (:file "service-config")
               (:file "pick-first")
               (:file "switch")
               (:file "breaker")
               (:file "guard")
               (:file "stream-queue")
               (:file "idle")
               (:file "scaling")
               (:file "subchannel")
               (:file "attempt")
               (:file "observer")
               (:file "retry")
               (:file "hedging")
               (:file "policies")
               (:file "description")
               (:file "future")
               (:file "flow")
               (:file "interceptor")
               (:file "details")
               (:file "account")
               (:file "life")
               (:file "leak")
               (:file "tls")
               (:file "trunk")
               (:file "trace")
               (:file "stress")))

(defsystem "clgrpc/tests/metrics"
  :class layer-tests
  :depends-on ("clgrpc/metrics" "clgrpc/tests/client")
  :pathname "tests/metrics/"
  :serial t
  :components ((:file "package")
               (:file "bucket")
               (:file "custom")
               (:file "count")
               (:file "attempt")
               (:file "accept")
               (:file "text")))

(defsystem "clgrpc/tests/balance"
  :class layer-tests
  :depends-on ("clgrpc/tests/client")
  :pathname "tests/balance/"
  :serial t
  :components ((:file "package")
               (:file "support")
               (:file "timer")
               (:file "vigil")
               (:file "health")
               (:file "orca")
               (:file "fleet")
               (:file "round-robin")
               (:file "least-request")
               (:file "stride")
               (:file "weighted-round-robin")
               (:file "xxh64")
               (:file "ring-hash")
               (:file "wrapper")
               (:file "outlier-detection")
               (:file "random-subsetting")
               (:file "branch")
               (:file "weighted-target")
               (:file "priority")
               (:file "own")))

(defsystem "clgrpc/tests/trace"
  :class layer-tests
  :depends-on ("clgrpc/tests/client")
  :pathname "tests/trace/"
  :serial t
  :components ((:file "package")
               (:file "id")
               (:file "context")
               (:file "state")
               (:file "sampler")
               (:file "span")
               (:file "queue")
               (:file "observe")
               (:file "current")))

(defsystem "clgrpc/tests/transports"
  :class layer-tests
  :depends-on ("clgrpc/tests/server" "clgrpc/tests/support")
  :pathname "tests/transports/"
  :serial t
  :components ((:file "package")
               (:file "support")
               (:file "meaning")
               (:file "course")
               (:file "retry")
               (:file "hedging")
               (:file "interceptor")
               (:file "interruption")))

(defsystem "clgrpc/tests/promise"
  :class layer-tests
  :depends-on ("clgrpc/async" "clgrpc/tests/server" "clgrpc/tests/dialogue" "clgrpc/examples"
               "clgrpc/tests/support" "fiveam")
  :pathname "tests/promise/"
  :serial t
  :components ((:file "package")
               (:file "measure")
               (:file "wait")
               (:file "overstay")
               (:file "redefinition")
               (:file "driving")
               (:file "timer")
               (:static-file "saving.lisp")
               (:file "image")
               (:file "crowd")
               (:file "soak")))

(defsystem "clgrpc/tests/interop"
  :class layer-tests
  :depends-on ("clgrpc/tools" "clgrpc/tests/support" "fiveam")
  :pathname "tests/interop/"
  :serial t
  :components ((:file "package")
               (:file "server")
               (:file "client")
               (:file "tls")))

(defsystem "clgrpc/tests/world"
  :description "Connections within memory, for tests of what is above HTTP/2."
  :depends-on ("clgrpc/loop" "clgrpc/tests/dialogue" "fiveam")
  :pathname "tests/world/"
  :serial t
  :components ((:file "package")
               (:file "world")
               (:file "script")))

(defsystem "clgrpc/tests/dialogue"
  :class layer-tests
  :depends-on ("clgrpc/http2" "fiveam")
  :pathname "tests/dialogue/"
  :serial t
  :components ((:file "package")
               (:file "frame")
               (:file "script")
               (:file "state")
               (:file "message")
               (:file "flow")
               (:file "connection")))

(defsystem "clgrpc/tests/examples"
  :class layer-tests
  :depends-on ("clgrpc/examples" "clgrpc/tools" "clgrpc/tests/support" "fiveam")
  :pathname "tests/examples/"
  :serial t
  :components ((:file "package")
               (:file "service")
               (:file "greeter")
               (:file "geometry")
               (:file "route-guide")
               (:file "monitoring")
               (:file "production")
               (:file "readme")))

(defsystem "clgrpc/tests/load"
  :class layer-tests
  :depends-on ("clgrpc/load" "clgrpc/examples" "clgrpc/tests/abuse" "clgrpc/tests/support"
               "fiveam")
  :pathname "tests/load/"
  :serial t
  :components ((:file "package")
               (:file "histogram")
               (:file "schedule")
               (:file "template")
               (:file "payload")
               (:file "second")
               (:file "engine")
               (:file "round")
               (:file "known")
               (:file "truth")
               (:file "misbehaviour")))

(defsystem "clgrpc/tests/profile"
  :class layer-tests
  :depends-on ("clgrpc/profile" "clgrpc/tests/page" "clgrpc/tests/support" "fiveam")
  :pathname "tests/profile/"
  :serial t
  :components ((:file "package")
               (:file "area")
               (:file "symbol")
               (:file "sample")
               (:file "stack")
               (:file "event")
               (:file "run")
               (:file "compare")
               (:file "html")))
(defsystem "clgrpc/tests/page"
  :class layer-tests
  :depends-on ("clgrpc/page" "clgrpc/tests/support" "fiveam")
  :pathname "tests/page/"
  :serial t
  :components ((:file "package")
               (:file "figure")
               (:file "markup")
               (:file "scale")
               (:file "chart")
               (:file "page")))

(defsystem "clgrpc/tests/report"
  :class layer-tests
  :depends-on ("clgrpc/report" "clgrpc/tests/page" "clgrpc/tests/support" "fiveam")
  :pathname "tests/report/"
  :serial t
  :components ((:file "package")
               (:file "sample")
               (:file "figure")
               (:file "condition")
               (:file "ghz")
               (:file "run-json")
               (:file "run-reader")
               (:file "comparison")
               (:file "text")
               (:file "html")
               (:file "report")))

(defsystem "clgrpc/tests/tools"
  :class layer-tests
  :depends-on ("clgrpc/tools" "clgrpc/tests/report" "clgrpc/tests/examples" "clgrpc/tests/etcd"
               "clgrpc/tests/support" "fiveam")
  :pathname "tests/tools/"
  :serial t
  :components ((:file "package")
               (:file "command")
               (:file "bench")
               (:file "bench-client")
               (:file "interop")
               (:file "client")
               (:file "testee")
               (:file "gen")
               (:file "channelz")
               (:file "http")
               (:file "exposition")
               (:file "serve")
               (:file "call")
               (:file "compare")
               (:file "binlog")
               (:file "declaration")
               (:file "tls")
               (:file "storm-client")
               (:file "worker")
               (:file "driver")
               (:file "load")
               (:file "cluster")))

(defsystem "clgrpc/tests/http2"
  :class layer-tests
  :depends-on ("clgrpc/tests/hpack" "clgrpc/tests/dialogue")
  :pathname "tests/http2/"
  :serial t
  :components ((:file "package")
               (:file "support")
               (:file "error")
               (:file "state")
               (:file "frame")
               (:file "structure")
               (:file "header")
               (:file "stream")
               (:file "patience")
               (:file "earning")
               (:file "output")
               (:file "reset")
               (:file "flow")
               (:file "writer")
               (:file "queue")
               (:file "settings")
               (:file "connection")
               (:file "inspect")
               (:file "session")
               (:file "fuzz")
               (:file "reader")
               (:file "allocation")))
