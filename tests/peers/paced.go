package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"sort"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	routepb "google.golang.org/grpc/examples/route_guide/routeguide"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

// runPaced makes small calls at fixed times, whatever the answers do, and prints a line of JSON: the
// quantiles of their latencies, each from when it was due. With -burn they are calls that take 0.2 to
// 3 ms of the server's CPU (see burningRouteGuide), by chance.
func runPaced(arguments []string) int {
	set := flag.NewFlagSet("paced-client", flag.ExitOnError)
	rate := set.Int("rate", 1000, "calls a second")
	duration := set.Duration("time", 5*time.Second, "how long")
	burn := set.Bool("burn", false, "make calls of GetFeature whose handlers burn CPU")
	set.Parse(arguments)
	connection, err := grpc.NewClient(set.Arg(0),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return complain(err)
	}
	defer connection.Close()
	client, request := testpb.NewBenchmarkServiceClient(connection), bulkRequest(10, 10)
	guide := routepb.NewRouteGuideClient(connection)
	call := func() error {
		if *burn {
			_, err := guide.GetFeature(context.Background(),
				&routepb.Point{Latitude: 200 + rand.Int31n(2801), Longitude: 1})
			return err
		}
		_, err := client.UnaryCall(context.Background(), request)
		return err
	}
	if err := call(); err != nil {
		return complain(err)
	}
	count := int(duration.Seconds() * float64(*rate))
	latencies, failures := make([]float64, count), make([]error, count)
	var calls sync.WaitGroup
	begin := time.Now()
	for i := range count {
		due := begin.Add(time.Duration(float64(i) / float64(*rate) * 1e9))
		time.Sleep(time.Until(due))
		calls.Add(1)
		go func() {
			defer calls.Done()
			failures[i] = call()
			latencies[i] = float64(time.Since(due).Nanoseconds()) / 1e6
		}()
	}
	calls.Wait()
	for _, err := range failures {
		if err != nil {
			return complain(err)
		}
	}
	sort.Float64s(latencies)
	at := func(share float64) float64 { return latencies[int(share*float64(count-1))] }
	line, err := json.Marshal(map[string]float64{"calls": float64(count), "p50_ms": at(0.5),
		"p99_ms": at(0.99), "p999_ms": at(0.999), "longest_ms": at(1)})
	if err != nil {
		return complain(err)
	}
	fmt.Fprintln(os.Stdout, string(line))
	return 0
}
