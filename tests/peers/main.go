// Command peer is the other end in the tests and benchmarks of clgrpc: servers and clients built on
// grpc-go, so that what clgrpc says on the wire is judged by somebody else's gRPC.
//
// Every server prints "listening on HOST:PORT" when it is ready and ends on SIGTERM or SIGINT.
// Every client prints one line per check, "ok NAME figures" or "FAIL NAME why", and exits with 1
// after a failure; no wait is without a time limit.
package main

import (
	"fmt"
	"os"
)

type command struct {
	name, arguments, about string
	run                    func(arguments []string) int
}

func commands() []command {
	return []command{
		{"routeguide-server", "[-listen ADDR] [-features FILE]",
			"serve routeguide.RouteGuide", serveRouteGuide},
		{"routeguide-client", "[-features FILE] ADDR",
			"call the four methods of RouteGuide and check the answers", runRouteGuideClient},
		{"bench-server", "[-listen ADDR] [-features FILE] [-metrics ADDR] [-burn]",
			"serve RouteGuide and grpc.testing.BenchmarkService for measurements", serveBench},
		{"load", "[-method NAME] [-clients N] [-in-flight N] [-duration DURATION] … ADDR",
			"load a RouteGuide server and print figures for each line of standard input", runLoad},
		{"scenario-server", "[-listen ADDR] [-features FILE] [-max-receive-octets N]",
			"serve helloworld.Greeter, RouteGuide and grpc.testing.TestService", serveScenarios},
		{"scenario-client", "[-limit DURATION] [-max-receive-octets N] [-kill PID] SCENARIO… ADDR",
			"play scenarios against a server (`all`: every one; `list`: print their names)",
			runScenarioClient},
		{"bulk-client", "[-octets N,…] [-time DURATION] [-bystander same|other] SCENARIO… ADDR",
			"measure large messages: {unary,stream}-{up,down,both}; a line of JSON for each",
			runBulkClient},
		{"paced-client", "[-rate N] [-time DURATION] [-burn] ADDR",
			"make small calls at fixed times; a line of JSON with the latencies", runPaced},
		{"connections", "[-kind grpc|plain] [-delay DURATION] [-sources ADDR,…] ADDR",
			"hold thousands of connections whose requests are answered late; a line of JSON each",
			runConnections},
		{"idle", "[-tls-ca FILE] ADDR",
			"hold connections that have made one call; the lines of standard input say how many", runIdle},
		{"backend", "[-listen ADDR] [-late SHARE] [-delay DURATION]",
			"serve grpc.testing.BenchmarkService as one of a fleet, a share of the answers late", serveBackend},
		{"traced-relay", "[-listen ADDR] [-otlp ADDR] [-propagator NAME] ADDR",
			"serve helloworld.Greeter by calls to the one at ADDR, traced by OpenTelemetry",
			serveTraced},
		{"metered", "[-listen ADDR] [-metrics ADDR]",
			"serve TestService and make the calls that lines of JSON ask for, measured by OpenTelemetry",
			runMetered},
		{"delayed-server", "[-listen ADDR] [-delay DURATION]",
			"answer each line of plain TCP after a while", serveDelayed},
		{"binary-log", "FILE", "print a binary log (gRFC A16), a line of JSON for each entry",
			printBinaryLog},
		{"binary-log-client", "ADDR",
			"make calls of all kinds to grpc.testing.TestService and print their binary log; " +
				"GRPC_BINARY_LOG_FILTER tells of which", runBinaryLogClient},
		{"drive", "[-streaming] [-rate N] [-target ADDR] [-tls] [-quit] … ADDR",
			"have a worker of gRPC's benchmarks be client and server, and check its figures", drive},
		{"inproc", "", "measure calls within a process, one measurement per line of standard input",
			runInproc},
	}
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: peer COMMAND …")
	for _, c := range commands() {
		fmt.Fprintf(os.Stderr, "  %s %s\n      %s\n", c.name, c.arguments, c.about)
	}
}

func main() {
	if len(os.Args) > 1 {
		for _, c := range commands() {
			if c.name == os.Args[1] {
				os.Exit(c.run(os.Args[2:]))
			}
		}
	}
	usage()
	os.Exit(2)
}
