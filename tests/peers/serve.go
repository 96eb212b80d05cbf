package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	greeterpb "google.golang.org/grpc/examples/helloworld/helloworld"
	routepb "google.golang.org/grpc/examples/route_guide/routeguide"
	"google.golang.org/grpc/interop"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/orca"
	reflectionservice "google.golang.org/grpc/reflection"
	"google.golang.org/grpc/stats/opentelemetry"
)

// serverFlags are the options all servers share.
type serverFlags struct {
	set        *flag.FlagSet
	listen     *string
	features   *string
	maxReceive *int
	collect    *bool
	tls        tlsFlags
}

func newServerFlags(name string) serverFlags {
	set := flag.NewFlagSet(name, flag.ExitOnError)
	return serverFlags{set,
		set.String("listen", "127.0.0.1:0", "address to listen on, or unix:PATH; port 0 picks one"),
		set.String("features", "examples/features.json", "JSON file of the features of RouteGuide"),
		set.Int("max-receive-octets", 4<<20, "longest message accepted"),
		set.Bool("collect", false, "for each line on standard input collect all garbage and say what is left"),
		newTLSFlags(set, "client-ca", "PEM file of what client certificates are verified with")}
}

// newServer makes the server that the flags describe.
func (f serverFlags) newServer(options ...grpc.ServerOption) (*grpc.Server, error) {
	more, err := f.tls.serverOptions()
	if err != nil {
		return nil, err
	}
	options = append(append(options, grpc.MaxRecvMsgSize(*f.maxReceive)), more...)
	return grpc.NewServer(options...), nil
}

// serve listens, says where, and serves until a signal ends it.
func (f serverFlags) serve(server *grpc.Server) int {
	network, address := "tcp", *f.listen
	if path, found := strings.CutPrefix(address, "unix:"); found {
		network, address = "unix", path
	}
	listener, err := net.Listen(network, address)
	if err != nil {
		return complain(err)
	}
	if network == "unix" {
		fmt.Printf("listening on unix:%s\n", listener.Addr())
	} else {
		fmt.Printf("listening on %s\n", listener.Addr())
	}
	if *f.collect {
		go collectAtEachLine()
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-signals
		server.Stop()
	}()
	if err := server.Serve(listener); err != nil {
		return complain(err)
	}
	return 0
}

// collectAtEachLine is for measurements of memory.
func collectAtEachLine() {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		begin := time.Now()
		debug.FreeOSMemory() // after a collection
		took := time.Since(begin)
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		fmt.Printf("heap=%d milliseconds=%.1f\n", stats.HeapAlloc, 1e3*took.Seconds())
	}
}

func complain(err error) int {
	fmt.Fprintln(os.Stderr, "peer:", err)
	return 1
}

func readFeatures(file string) ([]*routepb.Feature, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var features []*routepb.Feature
	if err := json.Unmarshal(text, &features); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return features, nil
}

func serveRouteGuide(arguments []string) int {
	f := newServerFlags("routeguide-server")
	f.set.Parse(arguments)
	features, err := readFeatures(*f.features)
	if err != nil {
		return complain(err)
	}
	server, err := f.newServer()
	if err != nil {
		return complain(err)
	}
	routepb.RegisterRouteGuideServer(server, newRouteGuide(features))
	return f.serve(server)
}

func serveBench(arguments []string) int {
	f := newServerFlags("bench-server")
	records := f.set.Int("records", 0, "keep a table of so many small records")
	renewals := f.set.Int("renewals", 1, "replace so many of them a second")
	metrics := f.set.String("metrics", "", "where to tell Prometheus what OpenTelemetry has counted")
	burn := f.set.Bool("burn", false, "have handlers of GetFeature burn CPU")
	f.set.Parse(arguments)
	if *records > 0 {
		go live(*records, *renewals)
	}
	features, err := readFeatures(*f.features)
	if err != nil {
		return complain(err)
	}
	var options []grpc.ServerOption
	if *metrics != "" {
		counted, _, err := meter(*metrics, false)
		if err != nil {
			return complain(err)
		}
		options = append(options, opentelemetry.ServerOption(counted))
	}
	server, err := f.newServer(options...)
	if err != nil {
		return complain(err)
	}
	if *burn {
		routepb.RegisterRouteGuideServer(server, newBurningRouteGuide())
	} else {
		routepb.RegisterRouteGuideServer(server, &benchRouteGuide{features: features})
	}
	testpb.RegisterBenchmarkServiceServer(server, benchmarkService{})
	return f.serve(server)
}

func serveScenarios(arguments []string) int {
	f := newServerFlags("scenario-server")
	f.set.Parse(arguments)
	features, err := readFeatures(*f.features)
	if err != nil {
		return complain(err)
	}
	server, err := f.newServer(orca.CallMetricsServerOption(nil))
	if err != nil {
		return complain(err)
	}
	greeterpb.RegisterGreeterServer(server, greeter{})
	routepb.RegisterRouteGuideServer(server, newRouteGuide(features))
	testpb.RegisterTestServiceServer(server, interop.NewTestServer())
	reflectionservice.Register(server)
	return f.serve(server)
}
