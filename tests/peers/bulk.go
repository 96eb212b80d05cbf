package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

// A bulkResult is one line of the output of bulk-client.
type bulkResult struct {
	Scenario        string  `json:"scenario"`
	Octets          int     `json:"octets"`
	Messages        int     `json:"messages"`
	MegabytesSecond float64 `json:"mb_per_second"` // payload both ways together
	Bystander       string  `json:"bystander,omitempty"`
	BystanderCalls  int     `json:"bystander_calls,omitempty"`
	BystanderP50    float64 `json:"bystander_p50_us,omitempty"`
	BystanderP99    float64 `json:"bystander_p99_us,omitempty"`
	BystanderMax    float64 `json:"bystander_max_us,omitempty"`
}

// bulkScenarios run until the context is told to stop and say how many messages of size octets,
// counted in both directions, have gone through.
var bulkScenarios = map[string]func(done func() bool, c testpb.BenchmarkServiceClient, size int) (int, error){
	"unary-up":   func(d func() bool, c testpb.BenchmarkServiceClient, n int) (int, error) { return bulkUnary(d, c, n, 0) },
	"unary-down": func(d func() bool, c testpb.BenchmarkServiceClient, n int) (int, error) { return bulkUnary(d, c, 0, n) },
	"unary-both": func(d func() bool, c testpb.BenchmarkServiceClient, n int) (int, error) { return bulkUnary(d, c, n, n) },
	"stream-up": func(d func() bool, c testpb.BenchmarkServiceClient, n int) (int, error) {
		return bulkStream(d, c, n, 0)
	},
	"stream-down": func(d func() bool, c testpb.BenchmarkServiceClient, n int) (int, error) {
		return bulkStream(d, c, 0, n)
	},
	"stream-both": func(d func() bool, c testpb.BenchmarkServiceClient, n int) (int, error) {
		return bulkStream(d, c, n, n)
	},
}

func bulkRequest(up, down int) *testpb.SimpleRequest {
	return &testpb.SimpleRequest{ResponseSize: int32(down), Payload: payload(up)}
}

func countNonzero(up, down int) int {
	if up > 0 && down > 0 {
		return 2
	}
	return 1
}

// bulkUnary makes one call after the other.
func bulkUnary(done func() bool, c testpb.BenchmarkServiceClient, up, down int) (int, error) {
	request, count := bulkRequest(up, down), 0
	for !done() {
		reply, err := c.UnaryCall(context.Background(), request)
		if err != nil {
			return count, err
		}
		if got := len(reply.GetPayload().GetBody()); got != down {
			return count, fmt.Errorf("the reply has %d octets, not %d", got, down)
		}
		count += countNonzero(up, down)
	}
	return count, nil
}

// bulkStream keeps four messages under way on one stream.
func bulkStream(done func() bool, c testpb.BenchmarkServiceClient, up, down int) (int, error) {
	stream, err := c.StreamingCall(context.Background())
	if err != nil {
		return 0, err
	}
	tokens := make(chan bool, 4)
	go func() {
		request := bulkRequest(up, down)
		for !done() {
			tokens <- true
			if stream.Send(request) != nil {
				return
			}
		}
		stream.CloseSend()
	}()
	count := 0
	for {
		reply, err := stream.Recv()
		if err == io.EOF {
			return count, nil
		}
		if err != nil {
			return count, err
		}
		if got := len(reply.GetPayload().GetBody()); got != down {
			return count, fmt.Errorf("the reply has %d octets, not %d", got, down)
		}
		count += countNonzero(up, down)
		<-tokens
	}
}

// bystand makes small calls, a millisecond apart, and returns their latencies.
func bystand(done func() bool, c testpb.BenchmarkServiceClient) ([]float64, error) {
	var latencies []float64
	request := bulkRequest(10, 10)
	for !done() {
		begin := time.Now()
		if _, err := c.UnaryCall(context.Background(), request); err != nil {
			return nil, err
		}
		latencies = append(latencies, float64(time.Since(begin).Nanoseconds())/1e3)
		time.Sleep(time.Millisecond)
	}
	sort.Float64s(latencies)
	return latencies, nil
}

func runBulk(address, name string, size int, limit time.Duration, where string) (bulkResult, error) {
	result := bulkResult{Scenario: name, Octets: size, Bystander: where}
	conn := dial(address)
	defer conn.Close()
	c := testpb.NewBenchmarkServiceClient(conn)
	if _, err := c.UnaryCall(context.Background(), bulkRequest(0, 0), grpc.WaitForReady(true)); err != nil {
		return result, err
	}
	other := c
	if where == "other" {
		second := dial(address)
		defer second.Close()
		other = testpb.NewBenchmarkServiceClient(second)
	}
	begin := time.Now()
	done := func() bool { return time.Since(begin) > limit }
	type stood struct {
		latencies []float64
		err       error
	}
	ready := make(chan stood, 1)
	if where != "" {
		go func() {
			latencies, err := bystand(done, other)
			ready <- stood{latencies, err}
		}()
	}
	count := 0
	if name == "none" {
		time.Sleep(limit)
	} else {
		var err error
		if count, err = bulkScenarios[name](done, c, size); err != nil {
			return result, err
		}
	}
	took := time.Since(begin)
	if where != "" {
		s := <-ready
		if s.err != nil {
			return result, s.err
		}
		n := len(s.latencies)
		result.BystanderCalls = n
		result.BystanderP50, result.BystanderP99 = s.latencies[n/2], s.latencies[n*99/100]
		result.BystanderMax = s.latencies[n-1]
	}
	result.Messages = count
	result.MegabytesSecond = float64(count) * float64(size) / 1e6 / took.Seconds()
	return result, nil
}

func runBulkClient(arguments []string) int {
	set := flag.NewFlagSet("bulk-client", flag.ExitOnError)
	sizes := set.String("octets", "1048576,16777216", "sizes of the messages")
	limit := set.Duration("time", 2*time.Second, "how long each scenario runs")
	bystander := set.String("bystander", "", "small calls beside, on the `same` connection or an `other`")
	set.Parse(arguments)
	if set.NArg() < 2 {
		usage()
		return 2
	}
	for _, text := range strings.Split(*sizes, ",") {
		size, err := strconv.Atoi(text)
		if err != nil {
			return complain(err)
		}
		for _, name := range set.Args()[:set.NArg()-1] {
			if bulkScenarios[name] == nil && name != "none" {
				return complain(fmt.Errorf("no scenario %q", name))
			}
			result, err := runBulk(set.Arg(set.NArg()-1), name, size, *limit, *bystander)
			if err != nil {
				return complain(fmt.Errorf("%s: %w", name, err))
			}
			json.NewEncoder(os.Stdout).Encode(result)
		}
	}
	return 0
}
