;;;; The library, and where it runs. Each layer is a system that names what it stands on, so the
;;;; arrows of the design can be read here (tests/architecture.lisp checks them in the sources).
;;;; Packages of their own stand on the library: clgrpc-async, -sim, -etcd, -cluster, -tools.

#-(and sbcl linux (or x86-64 arm64))
(error "clgrpc runs on SBCL on Linux, on x86-64 or arm64. This is ~A on ~A, on ~A."
       (lisp-implementation-type) (software-type) (machine-type))
#+sbcl (sb-ext:assert-version->= 2 2 9)

(defsystem "clgrpc"
  :version "0.1.0" :author "The clgrpc developers" :license "MIT"
  :description "gRPC for Common Lisp: HTTP/2, protobuf, client and server, native and fast."
  :depends-on ("clgrpc/client" "clgrpc/balance" "clgrpc/inproc" "clgrpc/server" "clgrpc/grpc-web"
               "clgrpc/grpc-json" "clgrpc/connect" "clgrpc/rest" "clgrpc/gateway" "clgrpc/services"
               "clgrpc/logs" "clgrpc/metrics" "clgrpc/channelz" "clgrpc/trace" "clgrpc/token"
               "clgrpc/topic" "clgrpc/otlp" "clgrpc/program")
  :pathname "src/" :components ((:file "package"))
  :in-order-to ((test-op (test-op
      "clgrpc-tests/base" "clgrpc-tests/os" "clgrpc-tests/loop" "clgrpc-tests/dns"
      "clgrpc-tests/hpack" "clgrpc-tests/http1" "clgrpc-tests/exchange" "clgrpc-tests/http2"
      "clgrpc-tests/dialogue" "clgrpc-tests/protobuf" "clgrpc-tests/status" "clgrpc-tests/method"
      "clgrpc-tests/rpc" "clgrpc-tests/encoding" "clgrpc-tests/credentials" "clgrpc-tests/attempt"
      "clgrpc-tests/calling" "clgrpc-tests/serving" "clgrpc-tests/wire" "clgrpc-tests/config"
      "clgrpc-tests/server" "clgrpc-tests/client" "clgrpc-tests/balance" "clgrpc-tests/inproc"
      "clgrpc-tests/transports" "clgrpc-tests/trace" "clgrpc-tests/services" "clgrpc-tests/logs"
      "clgrpc-tests/metrics" "clgrpc-tests/channelz" "clgrpc-tests/otlp" "clgrpc-tests/command"
      "clgrpc-tests/program"))))

(defsystem "clgrpc/kernel"
  :description "An assembler for inner loops in machine code, and what the processor has."
  :pathname "src/base/kernel/" :serial t
  :components ((:file "package") (:file "instruction") (:file "kernel")
               (:file "processor-feature")))

(defsystem "clgrpc/base"
  :description "Octets, policy, conditions, clock, timers, queues, log, JSON."
  :depends-on ("clgrpc/kernel" "sb-concurrency") :pathname "src/base/" :serial t
  :components ((:file "package") (:file "version") (:file "policy") (:file "interrupt")
               (:file "clock") (:file "number") (:file "memory/heap") (:file "memory/raw")
               (:file "copy-kernel") (:file "octets") (:file "memory/octet-store")
               (:file "memory/collector") (:file "condition") (:file "suggestion")
               (:file "keyword-function") (:file "arity") (:file "hash-seed") (:file "text/split")
               (:file "text/utf8-kernel") (:file "text/utf8") (:file "text/base64")
               (:file "text/percent-encoding") (:file "text/url") (:file "timer") (:file "ring")
               (:file "memory/account") (:file "replay") (:file "whole-file") (:file "fifo")
               (:file "log/printable") (:file "log/channel-trace") (:file "log/log")
               (:file "log/tracer") (:file "text/decimal") (:file "text/json")
               (:file "log/event-line") (:file "log/journal")))

(defsystem "clgrpc/option"
  :description "The options of servers, channels and tracing."
  :depends-on ("clgrpc/base") :pathname "src/base/option/" :serial t
  :components ((:file "package") (:file "option")))

(defsystem "clgrpc/os"
  :description "The only code that touches the kernel: sockets, epoll, eventfd, signals."
  :depends-on ("clgrpc/base") :pathname "src/os/" :serial t
  :components ((:file "package") (:file "syscall") (:file "address") (:file "file") (:file "socket")
               (:file "epoll") (:file "poll") (:file "futex") (:file "stack") (:file "processor")
               (:file "process") (:file "signal") (:file "library") (:file "zlib") (:file "zstd")
               (:file "openssl") (:file "certificate") (:file "signature") (:file "cipher-suite")
               (:file "revocation-list") (:file "key-log") (:file "tls-session")))

(defsystem "clgrpc/loop"
  :description "The event loop, usable on its own."
  :depends-on ("clgrpc/os" "clgrpc/option") :pathname "src/loop/" :serial t
  :components ((:file "package") (:file "world") (:file "threads/guard") (:file "saved-image")
               (:file "loop-condition") (:file "threads/inbox") (:file "threads/thread-quota")
               (:file "threads/reserve") (:file "io/poller") (:file "io/byte-channel")
               (:file "threads/spinning") (:file "loop-structure") (:file "io/spiffe-bundle")
               (:file "io/tls-credentials") (:file "io/handshake") (:file "io/security")
               (:file "io/tls-channel") (:file "threads/watchdog-wake-up") (:file "threads/baton")
               (:file "threads/watchdog") (:file "threads/task") (:file "io/connection-buffer")
               (:file "io/connection-closing") (:file "io/connection-io") (:file "threads/turn")
               (:file "threads/driving") (:file "loop") (:file "threads/coalescing")
               (:file "names/scheme") (:file "names/target") (:file "names/unix") (:file "machine")
               (:file "io/listener") (:file "names/host-lookup") (:file "io/datagram")
               (:file "io/connector") (:file "back-off") (:file "threads/background")
               (:file "future")))

(defsystem "clgrpc/dns"
  :description "DNS messages, and a client of a DNS server on the event loop."
  :depends-on ("clgrpc/loop") :pathname "src/loop/dns/" :serial t
  :components ((:file "package") (:file "name") (:file "dns-message") (:file "dns-answer")
               (:file "dns-query") (:file "host") (:file "system")))

(defsystem "clgrpc/hpack"
  :description "RFC 7541: header compression for HTTP/2."
  :depends-on ("clgrpc/base") :pathname "src/http/hpack/" :serial t
  :components ((:file "package") (:file "hpack-error") (:file "leaf") (:file "huffman")
               (:file "header-field") (:file "list") (:file "static") (:file "table")
               (:file "cache") (:file "block-decoder") (:file "block-encoder")))

(defsystem "clgrpc/http1"
  :description "RFC 9112: messages of HTTP/1.1 as octets, without I/O."
  :depends-on ("clgrpc/hpack" "alexandria") :pathname "src/http/http1/" :serial t
  :components ((:file "package") (:file "http1-error") (:file "syntax") (:file "message-head")
               (:file "head-line") (:file "body-framing") (:file "chunk") (:file "http1-parser")
               (:file "head-writer") (:file "preference")))

(defsystem "clgrpc/http2"
  :description "RFC 9113: an HTTP/2 connection as a state machine without I/O."
  :depends-on ("clgrpc/hpack" "clgrpc/option") :pathname "src/http/http2/" :serial t
  :components ((:file "package") (:file "error-code") (:file "stream-state") (:file "frame")
               (:file "connection-structure") (:file "header") (:file "rate-credit")
               (:file "output") (:file "stream-table") (:file "stream-end") (:file "rate-limit")
               (:file "reset") (:file "flow") (:file "writer") (:file "data-queue")
               (:file "settings") (:file "reader") (:file "connection") (:file "inspect")))

(defsystem "clgrpc/exchange"
  :description "Requests of HTTP beside gRPC and their answers, over HTTP/1.1 and HTTP/2."
  :depends-on ("clgrpc/http1" "clgrpc/http2" "clgrpc/loop" "alexandria")
  :pathname "src/http/exchange/" :serial t
  :components ((:file "package") (:file "http-version") (:file "content") (:file "router")
               (:file "exchange") (:file "answer-date") (:file "chunked") (:file "over-http2")
               (:file "over-http1")))

(defsystem "clgrpc/metrics"
  :description "What servers, channels and the process do, counted, and read by Prometheus."
  :depends-on ("clgrpc/rpc" "clgrpc/http1" "alexandria") :pathname "src/observe/metrics/" :serial t
  :components ((:file "package") (:file "bucket") (:file "instrument-table") (:file "shard")
               (:file "registry") (:file "count") (:file "family") (:file "user-instrument")
               (:file "collect") (:file "instrument-rows") (:file "accept") (:file "metrics-text")))

(defsystem "clgrpc/protobuf"
  :description "Protocol Buffers: .proto source to native code."
  :depends-on ("clgrpc/option" "clgrpc/kernel" "sb-introspect" "alexandria")
  :pathname "src/protobuf/" :serial t
  :components ((:file "package") (:file "protobuf-condition") (:file "source/descriptor")
               (:file "source/lexer") (:file "source/path") (:file "codec/wire")
               (:file "codec/float") (:file "source/literal") (:file "source/parser")
               (:file "source/grammar") (:file "lisp-name") (:file "codec/message")
               (:file "codec/octet-range") (:file "codec/varint-kernel") (:file "codec/scalar")
               (:file "codec/record") (:file "source/pool") (:file "source/option-resolution")
               (:file "source/feature") (:file "source/linker") (:file "source/check")
               (:file "source/descriptor-writer") (:file "codec/sequence") (:file "codec/key-index")
               (:file "codec/map") (:file "codec/message-plan") (:file "codec/slot-access")
               (:file "codec/extension") (:file "types/message-reflection")
               (:file "codec/requirement") (:file "codec/copier") (:file "codec/message-operation")
               (:file "codec/generic-coder") (:file "codec/message-structure") (:file "codec/field")
               (:file "codec/encoder") (:file "codec/decoder") (:file "codec/accessor")
               (:file "codec/extension-accessor") (:file "source/import") (:file "source/source")
               (:file "formats/textual") (:file "formats/well-known-text")
               (:file "formats/json-writer") (:file "formats/json-reader")
               (:file "formats/field-text") (:file "formats/text-writer")
               (:file "formats/text-reader") (:file "source/define") (:file "source/descriptor-set")
               (:file "types/dynamic") (:file "types/raw-message") (:file "source/component")
               (:module "../../proto/google/api/" :components ((:static-file "annotations.proto")
                (:static-file "http.proto") (:static-file "httpbody.proto")))
               (:module "../../proto/google/protobuf/" :components ((:static-file "any.proto")
                (:static-file "api.proto") (:static-file "compiler/plugin.proto")
                (:static-file "cpp_features.proto") (:static-file "descriptor.proto")
                (:static-file "duration.proto") (:static-file "empty.proto")
                (:static-file "field_mask.proto") (:static-file "go_features.proto")
                (:static-file "java_features.proto") (:static-file "source_context.proto")
                (:static-file "struct.proto") (:static-file "timestamp.proto")
                (:static-file "type.proto") (:static-file "wrappers.proto")))
               (:file "source/built-in") (:file "types/well-known") (:file "source/form")
               (:file "source/plugin")))

(defsystem "clgrpc/status"
  :description "Statuses, the errors they become, metadata and time-outs."
  :depends-on ("clgrpc/protobuf") :pathname "src/rpc/status/" :serial t
  :components ((:static-file "../../../proto/google/rpc/status.proto")
               (:static-file "../../../proto/google/rpc/error_details.proto") (:file "status-proto")
               (:file "package") (:file "status") (:file "details") (:file "timeout")
               (:file "metadata")))

(defsystem "clgrpc/encoding"
  :description "Compressions, and codecs beside Protocol Buffers, which users register."
  :depends-on ("clgrpc/os" "clgrpc/protobuf") :pathname "src/rpc/encoding/" :serial t
  :components ((:file "package") (:file "encoding-registry") (:file "message-codec")))

(defsystem "clgrpc/method"
  :description "Methods, services and the class of channels."
  :depends-on ("clgrpc/status" "clgrpc/encoding" "clgrpc/loop")
  :pathname "src/rpc/method/" :serial t
  :components ((:static-file "../../../proto/grpc/health/v1/health.proto")
               (:static-file "../../../proto/xds/data/orca/v3/orca_load_report.proto")
               (:static-file "../../../proto/xds/service/orca/v3/orca.proto") (:file "package")
               (:file "method") (:file "coded-method") (:file "health-proto") (:file "generic")))

(defsystem "clgrpc/rpc"
  :description "What a call is on any transport: the contract of transports, observers."
  :depends-on ("clgrpc/method" "alexandria") :pathname "src/rpc/" :serial t
  :components ((:file "package") (:file "interceptor") (:file "transport") (:file "part")
               (:file "observer") (:file "call") (:file "call-value") (:file "own-options")
               (:file "verdict") (:file "messaging") (:file "handler-error") (:file "due-callback")
               (:file "room") (:file "call-report") (:file "call-tracer")))

(defsystem "clgrpc/credentials"
  :description "Call credentials: metadata that identify the caller."
  :depends-on ("clgrpc/method") :pathname "src/rpc/credentials/" :serial t
  :components ((:file "package") (:file "call-credentials")))

(defsystem "clgrpc/attempt"
  :description "The attempts of a call: retries and hedging, and interceptors of attempts."
  :depends-on ("clgrpc/rpc" "clgrpc/config") :pathname "src/rpc/attempt/" :serial t
  :components ((:file "package") (:file "retry") (:file "attempt-view")))

(defsystem "clgrpc/calling"
  :description "What channels of all transports share: stubs, futures, client loops."
  :depends-on ("clgrpc/rpc" "clgrpc/credentials") :pathname "src/rpc/calling/" :serial t
  :components ((:file "package") (:file "channel") (:file "interception") (:file "stub")
               (:file "call-async") (:file "dropped") (:file "client-loop")))

(defsystem "clgrpc/topic"
  :description "Topics: what one sends, many streams of answers have."
  :depends-on ("clgrpc/rpc" "alexandria") :pathname "src/rpc/topic/" :serial t
  :components ((:file "package") (:file "topic") (:file "stream-follower")))

(defsystem "clgrpc/serving"
  :description "What servers of all transports share: routes, acceptors, how handlers are called."
  :depends-on ("clgrpc/rpc") :pathname "src/rpc/serving/" :serial t
  :components ((:file "package") (:file "route") (:file "handler-answer") (:file "server-class")))

(defsystem "clgrpc/wire"
  :description "What both ends of a call share over HTTP/2: links, framing, streams of messages."
  :depends-on ("clgrpc/rpc" "clgrpc/http2") :pathname "src/wire/" :serial t
  :components ((:file "package") (:file "framing") (:file "compression") (:file "stage")
               (:file "wire-part") (:file "encoding") (:file "metadata-field") (:file "link")
               (:file "frame-tracer") (:file "link-keepalive") (:file "wire-call")
               (:file "link-memory") (:file "inbound") (:file "callback") (:file "outbound")
               (:file "deadline") (:file "stage-report") (:file "wire-operations")
               (:file "traffic")))

(defsystem "clgrpc/config"
  :description "Service configs, read and checked."
  :depends-on ("clgrpc/status") :pathname "src/client/config/" :serial t
  :components ((:file "package") (:file "config-condition") (:file "config-field")
               (:file "balancing-policy") (:file "retry-policy") (:file "method-config")
               (:file "service-config")))

(defsystem "clgrpc/proxy"
  :description "Connections by proxies: HTTP's CONNECT and SOCKS5."
  :depends-on ("clgrpc/loop") :pathname "src/client/proxy/" :serial t
  :components ((:file "package") (:file "proxy-choice") (:file "proxy-dialogue") (:file "tunnel")))

(defsystem "clgrpc/client"
  :description "Channels over the network, subchannels, stubs."
  :depends-on ("clgrpc/wire" "clgrpc/calling" "clgrpc/attempt" "clgrpc/dns" "clgrpc/proxy"
               "alexandria")
  :pathname "src/client/" :serial t
  :components ((:file "package") (:file "naming/resolver") (:file "naming/choice")
               (:file "naming/naming") (:file "picking/balancer") (:file "picking/breaker")
               (:file "wait-clock") (:file "channel-structure") (:file "picking/stream-queue")
               (:file "attempts/status-mapping") (:file "attempts/request-compression")
               (:file "attempts/ending") (:file "attempts/request-head") (:file "attempts/request")
               (:file "attempts/caller-identity") (:file "naming/current-config")
               (:file "picking/veto") (:file "connection-set") (:file "client-keepalive")
               (:file "connect-round") (:file "subchannel") (:file "picking/guarded-picker")
               (:file "core") (:file "attempts/attempt") (:file "picking/switch")
               (:file "picking/pick-first") (:file "dropped-channel") (:file "attempts/response")
               (:file "client-call") (:file "client-operations") (:file "internal-call")
               (:file "network-channel") (:file "description") (:file "client-stub")))

(defsystem "clgrpc/token"
  :description "Call credentials of tokens: from files, signed by ourselves, from a server."
  :depends-on ("clgrpc/client" "clgrpc/http1" "alexandria") :pathname "src/client/token/" :serial t
  :components ((:file "package") (:file "bearer-token") (:file "token-credentials")
               (:file "web-token") (:file "token-file") (:file "http-request")
               (:file "token-exchange")))

(defsystem "clgrpc/trace"
  :description "Distributed tracing: contexts, samplers, spans of calls."
  :depends-on ("clgrpc/client" "alexandria") :pathname "src/observe/trace/" :serial t
  :components ((:file "package") (:file "id") (:file "trace-context") (:file "trace-state")
               (:file "baggage") (:file "sampler") (:file "span") (:file "span-queue")
               (:file "tracing") (:file "call-record") (:file "current") (:file "trace-header")
               (:file "observe")))

(defsystem "clgrpc/balance"
  :description "Balancing policies."
  :depends-on ("clgrpc/client" "alexandria") :pathname "src/client/balance/" :serial t
  :components ((:file "package") (:file "policy-timer") (:file "backend-stream")
               (:file "health-watch") (:file "load-report") (:file "leaf-policy")
               (:file "round-robin") (:file "least-request") (:file "stride")
               (:file "weighted-round-robin") (:file "xxh64") (:file "ring-hash") (:file "wrapper")
               (:file "outlier-detection") (:file "random-subsetting") (:file "branch")
               (:file "weighted-target") (:file "priority")))

(defsystem "clgrpc/server"
  :description "Servers, listeners, dispatch, drain."
  :depends-on ("clgrpc/wire" "clgrpc/exchange" "clgrpc/serving" "alexandria")
  :pathname "src/server/" :serial t
  :components ((:file "package") (:file "server-route") (:file "server-structure")
               (:file "http2-request") (:file "server-loop") (:file "limits/refusal")
               (:file "limits/ranking") (:file "limits/decompression-budget")
               (:file "limits/admission") (:file "limits/memory-pressure")
               (:file "limits/load-limit") (:file "protocol") (:file "server-call")
               (:file "reply-room") (:file "answer-compression") (:file "status-message")
               (:file "reply") (:file "answer") (:file "execution") (:file "claimed")
               (:file "delivery") (:file "server-operations") (:file "drain") (:file "open-call")
               (:file "plain") (:file "dispatch") (:file "opening") (:file "server")
               (:file "connection-report")))

(defsystem "clgrpc/web"
  :description "What gRPC-Web, Connect and REST share: codecs, CORS, calls over plain HTTP."
  :depends-on ("clgrpc/server") :pathname "src/web/" :serial t
  :components ((:file "package") (:file "codec") (:file "head") (:file "claim") (:file "cors")
               (:file "content-type") (:file "answer-head") (:file "receiving") (:file "sending")
               (:file "operation") (:file "error") (:file "bare-answer")))

(defsystem "clgrpc/grpc-web"
  :description "gRPC-Web at a server."
  :depends-on ("clgrpc/web") :pathname "src/web/grpc-web/" :serial t
  :components ((:file "package") (:file "message-envelope") (:file "grpc-web-claim")))

(defsystem "clgrpc/grpc-json"
  :description "gRPC with messages in JSON at a server."
  :depends-on ("clgrpc/web") :pathname "src/web/grpc-json/" :serial t
  :components ((:file "package") (:file "json-claim")))

(defsystem "clgrpc/connect"
  :description "The Connect protocol at a server."
  :depends-on ("clgrpc/web") :pathname "src/web/connect/" :serial t
  :components ((:file "package") (:file "unary") (:file "connect-stream") (:file "connect-claim")))

(defsystem "clgrpc/gateway"
  :description "A service that forwards its calls to a channel."
  :depends-on ("clgrpc/server" "clgrpc/calling") :pathname "src/gateway/" :serial t
  :components ((:file "package") (:file "gateway-service")))

(defsystem "clgrpc/rest"
  :description "REST by google.api.http: rules, routes, requests and answers, and OpenAPI."
  :depends-on ("clgrpc/web" "alexandria") :pathname "src/web/rest/" :serial t
  :components ((:file "package") (:file "rest-error") (:file "percent") (:file "path-template")
               (:file "yaml") (:file "config") (:file "rule") (:file "route-tree") (:file "query")
               (:file "body") (:file "rest-answer") (:file "openapi") (:file "rest-calls")
               (:file "rest-claim") (:file "document")))

(defsystem "clgrpc/inproc"
  :description "Calls within the image: from a channel to a server without octets between."
  :depends-on ("clgrpc/calling" "clgrpc/attempt" "clgrpc/serving" "alexandria")
  :pathname "src/inproc/" :serial t
  :components ((:file "package") (:file "call-tally") (:file "inproc-structure") (:file "context")
               (:file "inproc-route") (:file "call-pair") (:file "message-copy") (:file "runtime")
               (:file "call-pair-ending") (:file "begin") (:file "waiting") (:file "message-queue")
               (:file "inproc-callback") (:file "stream-message") (:file "park")
               (:file "inproc-operations") (:file "inproc-channel") (:file "inproc-stub")
               (:file "relay") (:file "configured") (:file "channel-opening") (:file "direct")))

(defsystem "clgrpc/services"
  :description "The services of gRPC itself: health, reflection; and health and metrics over HTTP."
  :depends-on ("clgrpc/server" "clgrpc/metrics") :pathname "src/services/" :serial t
  :components ((:static-file "../../proto/grpc/reflection/v1/reflection.proto")
               (:static-file "../../proto/grpc/reflection/v1alpha/reflection.proto")
               (:file "reflection-proto") (:file "package") (:file "health") (:file "metrics-page")
               (:file "reflection")))

(defsystem "clgrpc/logs"
  :description "Logs of calls."
  :depends-on ("clgrpc/rpc") :pathname "src/observe/logs/" :serial t
  :components ((:static-file "../../../proto/grpc/binlog/v1/binarylog.proto") (:file "binlog-proto")
               (:file "package") (:file "access-log") (:file "filter") (:file "log-entry")
               (:file "entry-file") (:file "binary")))

(defsystem "clgrpc/channelz"
  :description "What the channels, servers and connections of a process are and do, as a service."
  :depends-on ("clgrpc/client" "clgrpc/server" "alexandria")
  :pathname "src/observe/channelz/" :serial t
  :components ((:static-file "../../../proto/grpc/channelz/v1/channelz.proto")
               (:file "channelz-proto") (:file "package") (:file "asking") (:file "socket-report")
               (:file "channelz-service")))

(defsystem "clgrpc/otlp"
  :description "Metrics and spans told to an OpenTelemetry collector."
  :depends-on ("clgrpc/client" "clgrpc/metrics" "clgrpc/trace" "alexandria")
  :pathname "src/observe/otlp/" :serial t
  :components ((:static-file "../../../proto/opentelemetry/proto/common/v1/common.proto")
               (:static-file "../../../proto/opentelemetry/proto/resource/v1/resource.proto")
               (:static-file "../../../proto/opentelemetry/proto/metrics/v1/metrics.proto")
               (:static-file "../../../proto/opentelemetry/proto/collector/metrics/v1/metrics_service.proto")
               (:static-file "../../../proto/opentelemetry/proto/trace/v1/trace.proto")
               (:static-file "../../../proto/opentelemetry/proto/collector/trace/v1/trace_service.proto")
               (:file "otlp-proto") (:file "package") (:file "environment") (:file "attribute")
               (:file "metric") (:file "span-export") (:file "failure") (:file "export-pipeline")
               (:file "exporter")))

(defsystem "clgrpc/command"
  :description "Command lines: arguments, their parsers, complaints and help texts."
  :depends-on ("clgrpc/loop") :pathname "src/program/command/" :serial t
  :components ((:file "package") (:file "usage") (:file "value-parser") (:file "argument")
               (:file "group") (:file "line") (:file "help")))

(defsystem "clgrpc/program"
  :description "A server as a program, from its command line to the signal that ends it."
  :depends-on ("clgrpc/command" "clgrpc/server" "clgrpc/services" "clgrpc/metrics" "clgrpc/trace"
               "clgrpc/otlp" "clgrpc/logs" "clgrpc/channelz")
  :pathname "src/program/" :serial t
  :components ((:file "package") (:file "shutdown-signal") (:file "perf-map") (:file "credentials")
               (:file "telemetry") (:file "service-manager") (:file "server-program")
               (:file "run-server")))

(defsystem "clgrpc/examples"
  :description "A greeter, a RouteGuide and its client, a chat with its page, as users write them."
  :depends-on ("clgrpc") :pathname "examples/" :serial t
  :components ((:file "protos") (:file "package") (:file "greeter") (:file "geometry")
               (:file "route-guide") (:file "route-guide-client") (:static-file "chat/chat.html")
               (:static-file "chat/chat.css") (:static-file "chat/chat.js") (:file "chat")))
