package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	greeterpb "google.golang.org/grpc/examples/helloworld/helloworld"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

// A target is the server a scenario is played against.
type target struct {
	address    string
	maxReceive int // the server's limit on a message
	killPid    int // the server's process, for the one scenario that ends it
}

// A scenario returns figures for its line of the report, or what went wrong. Its context ends with
// the time limit.
type scenario struct {
	name, about string
	run         func(ctx context.Context, t target) (figures string, err error)
}

func scenarios() []scenario {
	return []scenario{
		{"stream-down", "10,000 messages from the server", streamDown},
		{"stream-up", "10,000 messages to the server", streamUp},
		{"stream-both", "10,000 messages each way at once", streamBoth},
		{"stream-ping-pong", "10,000 messages each way, one at a time", streamPingPong},
		{"route-10000", "RecordRoute with 10,000 points", route10000},
		{"message-0", "messages of no octets", message0},
		{"message-1m", "messages of 1 MB each way", message1M},
		{"message-16m", "messages of 16 MB each way", message16M},
		{"calls-100", "100 calls at once on one connection", calls100},
		{"connections-100", "100 connections at once", connections100},
		{"sleeper", "handlers that sleep a second while others answer", sleeper},
		{"client-cancels", "calls of all kinds cancelled by the client", clientCancels},
		{"deadline", "deadlines that pass", deadline},
		{"server-deadline", "a deadline only the server watches", serverDeadline},
		{"status", "statuses and messages beyond ASCII", statuses},
		{"not-grpc", "a request that is not gRPC", notGrpc},
		{"unknown", "a service and a method that do not exist", unknown},
		{"message-too-long", "a message longer than the server takes", messageTooLong},
		{"message-truncated", "octets that are not the message", messageTruncated},
		{"prefix-4g", "a length prefix that claims 4 GB", prefix4G},
		{"garbage", "octets that are not HTTP/2", garbage},
		{"compression", "compressed messages each way", compression},
		{"health", "Check, List and Watch of grpc.health.v1.Health", health},
		{"reflection", "ServerReflectionInfo of grpc.reflection.v1", reflection},
		{"server-killed", "the server dies in mid-call (needs -kill)", serverKilled},
	}
}

func runScenarioClient(arguments []string) int {
	set := flag.NewFlagSet("scenario-client", flag.ExitOnError)
	limit := set.Duration("limit", 60*time.Second, "time limit of each scenario")
	maxReceive := set.Int("max-receive-octets", 4<<20, "the server's limit on a message")
	kill := set.Int("kill", 0, "process id of the server, for the scenario server-killed")
	tls := newTLSFlags(set, "tls-ca", "PEM file of what the server's certificate is verified with")
	set.Parse(arguments)
	if err := tls.useForClients(); err != nil {
		return complain(err)
	}
	if set.NArg() == 1 && set.Arg(0) == "list" {
		for _, s := range scenarios() {
			fmt.Printf("%-18s %s\n", s.name, s.about)
		}
		return 0
	}
	if set.NArg() < 2 {
		usage()
		return 2
	}
	t := target{set.Arg(set.NArg() - 1), *maxReceive, *kill}
	chosen, err := choose(set.Args()[:set.NArg()-1], t)
	if err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		return 2
	}
	code := 0
	for _, s := range chosen {
		if !report(s.name, *limit, func(ctx context.Context) (string, error) { return s.run(ctx, t) }) {
			code = 1
		}
	}
	return code
}

// choose finds the scenarios by their names. `all` leaves out what the target cannot play.
func choose(names []string, t target) ([]scenario, error) {
	var chosen []scenario
	for _, name := range names {
		found := false
		for _, s := range scenarios() {
			playable := (s.name != "server-killed" || t.killPid > 0) &&
				(s.name != "message-16m" || t.maxReceive > 17<<20)
			if s.name == name || name == "all" && playable {
				chosen = append(chosen, s)
				found = true
			}
		}
		if !found {
			return nil, fmt.Errorf("no scenario %q; `peer scenario-client list` names them", name)
		}
	}
	return chosen, nil
}

// report runs one check under a time limit and prints its line.
func report(name string, limit time.Duration, run func(context.Context) (string, error)) bool {
	type outcome struct {
		figures string
		err     error
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	begin := time.Now()
	done := make(chan outcome, 1)
	go func() {
		figures, err := run(ctx)
		done <- outcome{figures, err}
	}()
	var o outcome
	select {
	case o = <-done:
	case <-time.After(limit + 2*time.Second): // the context has had its chance
		o.err = fmt.Errorf("still not over after %v", limit)
	}
	if o.err != nil {
		fmt.Printf("FAIL %s %s\n", name, strings.ReplaceAll(o.err.Error(), "\n", " "))
		return false
	}
	fmt.Printf("ok %s %s (%d ms)\n", name, o.figures, time.Since(begin).Milliseconds())
	return true
}

// dialled is the target for the address that a server has printed.
func dialled(address string) string {
	if strings.HasPrefix(address, "unix") {
		return address
	}
	return "passthrough:///" + address
}

func dial(address string) *grpc.ClientConn {
	conn, err := grpc.NewClient(dialled(address),
		grpc.WithTransportCredentials(transportSecurity),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20)))
	if err != nil {
		panic(err) // only for an address that cannot be parsed
	}
	return conn
}

// Clients of one connection.
type clients struct {
	*grpc.ClientConn
	test    testpb.TestServiceClient
	greeter greeterpb.GreeterClient
}

func connect(t target) clients {
	conn := dial(t.address)
	return clients{conn, testpb.NewTestServiceClient(conn), greeterpb.NewGreeterClient(conn)}
}

// hello makes a call that any healthy server answers at once, and says from which local address it
// went, which tells connections apart.
func (c clients) hello(ctx context.Context) (string, error) {
	var p peer.Peer
	reply, err := c.greeter.SayHello(ctx, &greeterpb.HelloRequest{Name: "peer"}, grpc.Peer(&p))
	if err != nil {
		return "", fmt.Errorf("SayHello: %w", err)
	}
	if reply.GetMessage() != "Hello, peer!" {
		return "", fmt.Errorf("SayHello: greeted with %q", reply.GetMessage())
	}
	return p.LocalAddr.String(), nil
}

// expectCode turns an error with the wanted code into nil and anything else into an error.
func expectCode(what string, err error, wanted codes.Code) error {
	if status.Code(err) != wanted {
		return fmt.Errorf("%s: %v, not %v (%v)", what, status.Code(err), wanted, err)
	}
	return nil
}
