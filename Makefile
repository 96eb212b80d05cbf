# `make help` lists the targets. Each installs what it needs (scripts/install) and does its job.

export SBCL ?= sbcl
# Room for the tests with messages of 16 MB; the saved core keeps it.
HEAP_MB ?= 2048
LISP = $(SBCL) --noinform --dynamic-space-size $(HEAP_MB) \
       --non-interactive --no-sysinit --no-userinit
SOURCES := $(filter-out clgrpc-tests.asd,$(wildcard *.asd)) scripts/load.lisp scripts/lisp/build.lisp \
           $(shell find src async sim etcd cluster tools proto examples -name '*.lisp' -o -name '*.proto' \
             -o -name '*.json' -o -name 'console.*' -o -name 'page.css' -o -path 'examples/chat/*' -type f)
TESTS := clgrpc-tests.asd $(shell find tests \( -name '*.lisp' -o -name '*.proto' -o -name '*.txt' -o -path '*/vectors/*' \) -type f)

BENCH_PARTS := unary streams client matrix single callers mixed openloop bulk allocation protobuf compiler tls connections \
               answers idle live echo http web inproc cluster services scale capacity \
               loops scaling observed tool start

.DEFAULT_GOAL := bin/clgrpc
.PHONY: FORCE install install-test test endurance demo demo-cluster conformance manual simulate soak storm faults bench report truth profile clean help $(BENCH_PARTS:%=bench-%)

# The command, and the command with test peers
bin/clgrpc bin/clgrpc-testee &: $(SOURCES) bin/lisp | install
	@CLGRPC_OUTPUT=bin/clgrpc.new CLGRPC_TESTEE=bin/testee.new \
	  $(LISP) --load scripts/lisp/build.lisp >bin/build.log 2>&1 </dev/null \
	  || { cat bin/build.log >&2; exit 1; }
	@mv bin/testee.new bin/clgrpc-testee
	@mv bin/clgrpc.new bin/clgrpc
	@ln -sf clgrpc bin/protoc-gen-clgrpc

# Which Lisp it is; the file changes when that does.
bin/lisp: FORCE | install
	@mkdir -p bin
	@$(SBCL) --version >bin/lisp.new
	@cmp -s bin/lisp.new bin/lisp && rm bin/lisp.new || mv bin/lisp.new bin/lisp

FORCE:

install:
	@scripts/install

install-test:
	@scripts/install --test

bin/tests.core: bin/clgrpc scripts/lisp/test.lisp $(TESTS) | install-test
	@CLGRPC_OUTPUT=bin/tests.new $(LISP) --load scripts/lisp/test.lisp >bin/tests.log 2>&1 </dev/null \
	  || { cat bin/tests.log >&2; exit 1; }
	@mv bin/tests.new $@

test: bin/tests.core
	@CLGRPC_SUITES="$(SUITES)" CLGRPC_SLOWEST="$(SLOWEST)" CLGRPC_REPEATS="$(REPEATS)" \
	  CLGRPC_PROGRAM=$${CLGRPC_PROGRAM:-$(CURDIR)/bin/clgrpc} \
	  $(SBCL) --core bin/tests.core --noinform --dynamic-space-size $(HEAP_MB) </dev/null

endurance: export CLGRPC_ENDURANCE = 1
endurance: SUITES = promise.memory abuse abuse.heap transports mutants \
  simulation.seeds sim.seeds workflow.seeds raft-example.seeds
endurance: test

demo: bin/clgrpc
	@bin/clgrpc demo

demo-cluster: bin/clgrpc
	@scripts/install --cluster
	@scripts/demo-cluster

conformance: bin/clgrpc
	@scripts/install --conformance
	@tests/conformance/run $(SUITES)

manual: | install
	@scripts/manual

simulate: | install
	@scripts/simulate $(if $(SEEDS),--seeds $(SEEDS)) $(if $(FIRST),--first $(FIRST)) \
	  $(if $(POLICY),--policy)

soak: | install
	@scripts/soak $(SOAK)

storm: bin/clgrpc
	@scripts/storm $(STORM)

faults: bin/clgrpc
	@scripts/faults $(FAULTS)

bench: bin/clgrpc
	@scripts/install --bench
	@python3 bench/run $(BENCH) $(PARTS)

$(BENCH_PARTS:%=bench-%): bench-%: bin/clgrpc
	@scripts/install --bench
	@python3 bench/run $(BENCH) $*

report: bin/clgrpc
	@scripts/install --bench
	@python3 bench/experiment.py $(REPORT)

truth: bin/clgrpc
	@scripts/install --bench
	@python3 bench/truth.py $(DELAYS)

profile: bin/clgrpc
	@scripts/install --profile
	@bin/clgrpc-testee profile $(PROFILE) -- serve bench

clean:
	@rm -rf bin

help:
	@echo 'make              build bin/clgrpc, and bin/clgrpc-testee, which has test peers as well'
	@echo 'make demo         run a RouteGuide server and client, and show what they say'
	@echo 'make demo-cluster run a cluster of three nodes on etcd, kill one, and show what is seen'
	@echo 'make test         run all tests; SUITES="hpack http2" runs some'
	@echo '                  SLOWEST=20 names the twenty tests that took longest;'
	@echo '                  REPEATS=2 runs tests that fail again, alone, if no more than two do'
	@echo 'make endurance    run the tests that take long at their full length: the soak, the abuse,'
	@echo '                  threads that are interrupted in calls, and seeds'
	@echo 'make conformance  fetch and run h2spec, the interop programs of grpc-go, grpcurl, ConnectRPC (need Go)'
	@echo '                  and the protobuf conformance runner, compare with protoc, and run the policy'
	@echo '                  scenarios of ../shared/policy if they are there;'
	@echo '                  SUITES="h2spec-tls protobuf protoc" runs some'
	@echo 'make manual       write the manual as a site, bin/manual/index.html'
	@echo 'make simulate     run servers and clients in the simulator, SEEDS=1000 seeds from FIRST=1 on;'
	@echo '                  POLICY=1 has the calls retried and hedged'
	@echo 'make soak         do everything at once for an hour, or SOAK=600 seconds, and see that'
	@echo '                  memory, threads and descriptors stay what they were'
	@echo 'make storm        have five backends of grpc-go (needs Go) restarted, killed, stopped and slowed'
	@echo '                  under 2,000 calls a second; STORM="--seconds 30 kill late" runs some'
	@echo 'make faults       use etcd, members and 10,000 workflows for ten minutes while etcd, its leader, nodes and'
	@echo '                  workers are killed and stopped, connections cut and slow, clocks jump;'
	@echo '                  FAULTS="--minutes 60"; needs etcd, Go'
	@echo 'make bench        measure beside grpc-go (needs Go), tonic, nghttpd, grpchan: about 40 minutes;'
	@echo '                  BENCH="--short" takes 3, BENCH="--help" lists more'
	@echo 'make bench-PART   one part: unary, streams, client, matrix, openloop, bulk, allocation, protobuf, tls,'
	@echo '                  single, mixed, connections, live, echo, http, web, inproc, cluster, services,'
	@echo '                  scale, capacity, loops, observed, tool or start'
	@echo 'make report       5,000 calls a second to our server, grpc-go and tonic from ghz and clgrpc load, and'
	@echo '                  what these cost beside h2load: bench/results/report.*; REPORT="--short" is quick'
	@echo 'make truth        what clgrpc load, ghz and k6 say of a server of known delays, beside theory (needs Go);'
	@echo '                  DELAYS="constant exponential stall" measures some: bench/results/truth.json'
	@echo 'make profile      show where the time of a call goes on the server'
	@echo 'make clean        remove bin/'
	@echo 'SBCL=/opt/sbcl/bin/sbcl, for any of them, chooses the Lisp'
