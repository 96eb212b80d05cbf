package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

// drive has two workers of gRPC's benchmarks (grpc.testing.WorkerService) measure each other, as
// gRPC's own driver does: set up, warm up, mark with a reset, wait, mark.
func drive(arguments []string) int {
	set := flag.NewFlagSet("drive", flag.ExitOnError)
	target := set.String("target", "", "call this server, not one of the worker's")
	streaming := set.Bool("streaming", false, "make round trips in streams, not unary calls")
	rate := set.Float64("rate", 0, "calls a second at random times; 0 for a closed loop")
	channels := set.Int("channels", 2, "channels")
	outstanding := set.Int("outstanding", 10, "calls at once on each, in a closed loop")
	size := set.Int("size", 100, "octets of the payload of requests and replies")
	seconds := set.Float64("seconds", 1, "how long to measure")
	secure := set.Bool("tls", false, "have the workers speak TLS with each other")
	quit := set.Bool("quit", false, "tell the worker to end at last")
	set.Parse(arguments)
	if set.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: peer drive … ADDR")
		return 2
	}
	connection, err := grpc.NewClient(set.Arg(0),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Println("FAIL", err)
		return 1
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(),
		time.Duration((30+*seconds)*float64(time.Second)))
	defer cancel()
	worker := testpb.NewWorkerServiceClient(connection)
	config := &testpb.ClientConfig{
		ClientType: testpb.ClientType_ASYNC_CLIENT, ClientChannels: int32(*channels),
		OutstandingRpcsPerChannel: int32(*outstanding),
		LoadParams: &testpb.LoadParams{
			Load: &testpb.LoadParams_ClosedLoop{ClosedLoop: &testpb.ClosedLoopParams{}}},
		PayloadConfig: &testpb.PayloadConfig{Payload: &testpb.PayloadConfig_SimpleParams{
			SimpleParams: &testpb.SimpleProtoParams{ReqSize: int32(*size), RespSize: int32(*size)}}},
		HistogramParams: &testpb.HistogramParams{Resolution: 0.01, MaxPossible: 60e9},
	}
	if *streaming {
		config.RpcType = testpb.RpcType_STREAMING
	}
	if *rate > 0 {
		config.LoadParams.Load = &testpb.LoadParams_Poisson{
			Poisson: &testpb.PoissonParams{OfferedLoad: *rate}}
	}
	var security *testpb.SecurityParams
	if *secure {
		security = &testpb.SecurityParams{UseTestCa: true}
		config.SecurityParams = security
	}
	if err := driveWorkers(ctx, worker, config, security, *target, *rate, *seconds); err != nil {
		fmt.Println("FAIL", err)
		return 1
	}
	if *quit {
		if _, err := worker.QuitWorker(ctx, &testpb.Void{}); err != nil {
			fmt.Println("FAIL", err)
			return 1
		}
	}
	return 0
}

func driveWorkers(ctx context.Context, worker testpb.WorkerServiceClient,
	config *testpb.ClientConfig, security *testpb.SecurityParams, target string,
	rate, seconds float64) error {
	cores, err := worker.CoreCount(ctx, &testpb.CoreRequest{})
	if err != nil || cores.Cores < 1 {
		return fmt.Errorf("CoreCount: %v, %v", cores, err)
	}
	server, err := worker.RunServer(ctx)
	if err != nil {
		return err
	}
	if target == "" {
		server.Send(&testpb.ServerArgs{Argtype: &testpb.ServerArgs_Setup{
			Setup: &testpb.ServerConfig{ServerType: testpb.ServerType_ASYNC_SERVER,
				SecurityParams: security}}})
		status, err := server.Recv()
		if err != nil {
			return err
		}
		target = fmt.Sprintf("127.0.0.1:%d", status.Port)
	}
	config.ServerTargets = []string{target}
	client, err := worker.RunClient(ctx)
	if err != nil {
		return err
	}
	client.Send(&testpb.ClientArgs{Argtype: &testpb.ClientArgs_Setup{Setup: config}})
	if _, err := client.Recv(); err != nil {
		return err
	}
	mark := func() (*testpb.ClientStats, error) {
		client.Send(&testpb.ClientArgs{Argtype: &testpb.ClientArgs_Mark{
			Mark: &testpb.Mark{Reset_: true}}})
		status, err := client.Recv()
		return status.GetStats(), err
	}
	time.Sleep(time.Duration(seconds / 4 * float64(time.Second)))
	if _, err := mark(); err != nil {
		return err
	}
	time.Sleep(time.Duration(seconds * float64(time.Second)))
	stats, err := mark()
	if err != nil {
		return err
	}
	client.CloseSend()
	server.CloseSend()
	if _, err := client.Recv(); err == nil {
		return errors.New("RunClient does not end")
	}
	if _, err := server.Recv(); err == nil {
		return errors.New("RunServer does not end")
	}
	return judgeStats(stats, rate, seconds)
}

// judgeStats checks that stats agree with themselves and with what was asked for.
func judgeStats(stats *testpb.ClientStats, rate, seconds float64) error {
	latencies := stats.Latencies
	sum, mean := 0.0, 0.0
	for i, count := range latencies.Bucket {
		sum += float64(count)
		mean += float64(count) * math.Pow(1.01, float64(i)+0.5)
	}
	mean /= sum
	exact := latencies.Sum / latencies.Count
	perSecond := latencies.Count / stats.TimeElapsed
	var ended int64
	for _, result := range stats.RequestResults {
		if result.StatusCode != 0 {
			return fmt.Errorf("%d calls ended with %d", result.Count, result.StatusCode)
		}
		ended += result.Count
	}
	switch {
	case latencies.Count < 1 || sum != latencies.Count || float64(ended) != latencies.Count:
		return fmt.Errorf("%v latencies, %v in buckets, %d calls", latencies.Count, sum, ended)
	case math.Abs(mean/exact-1) > 0.02:
		return fmt.Errorf("a mean of %v by buckets, %v by the sum", mean, exact)
	case math.Abs(stats.TimeElapsed/seconds-1) > 0.5:
		return fmt.Errorf("%v seconds have passed, not %v", stats.TimeElapsed, seconds)
	case rate > 0 && math.Abs(perSecond/rate-1) > 0.2:
		return fmt.Errorf("%v calls a second, not %v", perSecond, rate)
	case stats.TimeUser+stats.TimeSystem <= 0:
		return errors.New("no CPU was used")
	}
	fmt.Printf("ok drive %.0f a second, mean %.1f us\n", perSecond, exact/1000)
	return nil
}
