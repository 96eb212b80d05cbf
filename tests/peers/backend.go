package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
)

// backend answers small calls, a share of them late, and counts the attempts that came.
type backend struct {
	testpb.UnimplementedBenchmarkServiceServer
	late          float64
	delay         time.Duration
	first, repeat atomic.Int64
}

func (b *backend) UnaryCall(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	fields, _ := metadata.FromIncomingContext(ctx)
	if len(fields.Get("grpc-previous-rpc-attempts")) == 0 {
		b.first.Add(1)
	} else {
		b.repeat.Add(1)
	}
	if b.late > 0 && rand.Float64() < b.late {
		select {
		case <-time.After(b.delay):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return benchmarkService{}.UnaryCall(ctx, in)
}

// serveBackend is one of a fleet for scripts/storm: it goes away in order on SIGTERM, and for each
// line of standard input says how many calls and how many further attempts have come.
func serveBackend(arguments []string) int {
	set := flag.NewFlagSet("backend", flag.ExitOnError)
	listen := set.String("listen", "127.0.0.1:0", "address to listen on")
	late := set.Float64("late", 0, "the share of answers that are delayed")
	delay := set.Duration("delay", time.Second, "by how much")
	set.Parse(arguments)
	b := &backend{late: *late, delay: *delay}
	server := grpc.NewServer(grpc.KeepaliveEnforcementPolicy(
		keepalive.EnforcementPolicy{MinTime: 50 * time.Millisecond, PermitWithoutStream: true}))
	testpb.RegisterBenchmarkServiceServer(server, b)
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return complain(err)
	}
	fmt.Printf("listening on %s\n", listener.Addr())
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			fmt.Printf("first=%d repeat=%d\n", b.first.Load(), b.repeat.Load())
		}
	}()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-signals
		time.AfterFunc(time.Second, server.Stop)
		server.GracefulStop()
	}()
	if err := server.Serve(listener); err != nil {
		return complain(err)
	}
	return 0
}
