package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	greeterpb "google.golang.org/grpc/examples/helloworld/helloworld"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

// atOnce runs f count times, each in a goroutine of its own, and returns the first error.
func atOnce(count int, f func(i int) error) error {
	failures := make(chan error, count)
	for i := 0; i < count; i++ {
		go func() { failures <- f(i) }()
	}
	var first error
	for i := 0; i < count; i++ {
		if err := <-failures; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// openStream opens a stream and waits for its first answer: then its handler surely runs.
func openStream(ctx context.Context, c clients) (duplex, error) {
	stream, err := c.test.FullDuplexCall(ctx)
	if err != nil {
		return nil, err
	}
	if err := sendEcho(stream, 10, 0); err != nil {
		return nil, err
	}
	_, err = stream.Recv()
	return stream, err
}

// calls100 has 100 streams open at the same time, each proved to be, and 100 delayed unary calls.
func calls100(ctx context.Context, t target) (string, error) {
	c := connect(t)
	defer c.Close()
	address, err := c.hello(ctx)
	if err != nil {
		return "", err
	}
	streams := make([]duplex, 100)
	if err := atOnce(100, func(i int) (err error) {
		streams[i], err = openStream(ctx, c)
		return err
	}); err != nil {
		return "", fmt.Errorf("opening 100 streams: %w", err)
	}
	for _, stream := range streams {
		if err := stream.CloseSend(); err != nil {
			return "", err
		}
		if err := expectSizes(0, stream.Recv); err != nil {
			return "", err
		}
	}
	begin := time.Now()
	if err := atOnce(100, func(int) error { return delayed(ctx, c, 200*time.Millisecond) }); err != nil {
		return "", err
	}
	took := time.Since(begin)
	if took > 10*time.Second { // one after another they would take 20
		return "", fmt.Errorf("100 calls delayed by 200 ms took %v together", took)
	}
	if later, err := c.hello(ctx); err != nil || later != address {
		return "", fmt.Errorf("the connection changed from %s to %s (%v)", address, later, err)
	}
	return fmt.Sprintf("100 streams, 100 delayed calls in %d ms", took.Milliseconds()), nil
}

func delayed(ctx context.Context, c clients, delay time.Duration) error {
	_, err := c.greeter.SayHello(ctx, &greeterpb.HelloRequest{
		Name: fmt.Sprintf("delay:%d", delay.Milliseconds())})
	return err
}

func connections100(ctx context.Context, t target) (string, error) {
	var mutex sync.Mutex
	addresses := map[string]bool{}
	connections := make([]clients, 100)
	streams := make([]duplex, 100)
	for i := range connections {
		connections[i] = connect(t)
		defer connections[i].Close()
	}
	if err := atOnce(100, func(i int) (err error) {
		streams[i], err = openStream(ctx, connections[i])
		return err
	}); err != nil {
		return "", fmt.Errorf("a stream on each of 100 connections: %w", err)
	}
	if err := atOnce(100, func(i int) error {
		address, err := connections[i].hello(ctx)
		mutex.Lock()
		defer mutex.Unlock()
		addresses[address] = true
		return err
	}); err != nil {
		return "", err
	}
	if len(addresses) != 100 {
		return "", fmt.Errorf("%d connections, not 100", len(addresses))
	}
	return "100 connections, a stream and a call on each", atOnce(100, func(i int) error {
		if err := streams[i].CloseSend(); err != nil {
			return err
		}
		return expectSizes(0, streams[i].Recv)
	})
}

// sleeper has handlers sleep for a second; 50 calls one after another, on the same connection and on
// another, must all be answered before the first of them wakes.
func sleeper(ctx context.Context, t target) (string, error) {
	same, other := connect(t), connect(t)
	defer same.Close()
	defer other.Close()
	if _, err := other.hello(ctx); err != nil {
		return "", err
	}
	const sleepers = 10
	var awake atomic.Int32
	slept := make(chan error, 1)
	streams := make([]duplex, sleepers)
	for i := range streams {
		var err error
		if streams[i], err = openStream(ctx, same); err != nil {
			return "", err
		}
	}
	begin := time.Now()
	for _, stream := range streams {
		if err := sendEcho(stream, 1, time.Second); err != nil {
			return "", err
		}
	}
	go func() {
		slept <- atOnce(sleepers, func(i int) error {
			_, err := streams[i].Recv()
			awake.Add(1)
			return err
		})
	}()
	for i := 0; i < 50; i++ {
		for _, c := range []clients{same, other} {
			if _, err := c.hello(ctx); err != nil {
				return "", err
			}
		}
	}
	answered, early := time.Since(begin), awake.Load()
	if err := <-slept; err != nil {
		return "", err
	}
	if early > 0 {
		return "", fmt.Errorf("%d of %d sleepers woke before 100 other calls were answered", early, sleepers)
	}
	if whole := time.Since(begin); whole < 900*time.Millisecond {
		return "", fmt.Errorf("the sleepers took only %v", whole)
	}
	return fmt.Sprintf("100 calls answered in %d ms, %d sleepers after %d ms", answered.Milliseconds(),
		sleepers, time.Since(begin).Milliseconds()), nil
}

// clientCancels cancels unary calls, calls that stream down, and calls that stream both ways, 30 each.
func clientCancels(ctx context.Context, t target) (string, error) {
	c := connect(t)
	defer c.Close()
	address, err := c.hello(ctx)
	if err != nil {
		return "", err
	}
	cancellable := func(name string, call func(ctx context.Context, cancel func()) error) error {
		return atOnce(30, func(int) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			return expectCode(name, call(ctx, cancel), codes.Canceled)
		})
	}
	if err := cancellable("unary call", func(ctx context.Context, cancel func()) error {
		time.AfterFunc(50*time.Millisecond, cancel)
		return delayed(ctx, c, time.Hour)
	}); err != nil {
		return "", err
	}
	if err := cancellable("server stream", func(ctx context.Context, cancel func()) error {
		stream, err := c.test.StreamingOutputCall(ctx, &testpb.StreamingOutputCallRequest{
			ResponseParameters: []*testpb.ResponseParameters{
				{Size: 10}, {Size: 10, IntervalUs: 600_000_000}}})
		if err != nil {
			return err
		}
		if _, err := stream.Recv(); err != nil {
			return err
		}
		cancel()
		_, err = stream.Recv()
		return err
	}); err != nil {
		return "", err
	}
	if err := cancellable("bidirectional stream", func(ctx context.Context, cancel func()) error {
		stream, err := openStream(ctx, c)
		if err != nil {
			return err
		}
		cancel()
		_, err = stream.Recv()
		return err
	}); err != nil {
		return "", err
	}
	later, err := c.hello(ctx)
	if err != nil {
		return "", fmt.Errorf("after the cancellations: %w", err)
	}
	if later != address {
		return "", fmt.Errorf("the connection changed from %s to %s", address, later)
	}
	return "90 calls cancelled, the connection serves on", nil
}

func deadline(ctx context.Context, t target) (string, error) {
	c := connect(t)
	defer c.Close()
	address, err := c.hello(ctx)
	if err != nil {
		return "", err
	}
	begin := time.Now()
	if err := atOnce(30, func(i int) error {
		ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		if i%2 == 0 {
			return expectCode("unary call", delayed(ctx, c, time.Hour), codes.DeadlineExceeded)
		}
		stream, err := c.test.FullDuplexCall(ctx)
		if err == nil {
			_, err = stream.Recv()
		}
		return expectCode("stream", err, codes.DeadlineExceeded)
	}); err != nil {
		return "", err
	}
	took := time.Since(begin)
	if took > 10*time.Second {
		return "", fmt.Errorf("calls with a time-out of 300 ms ended after %v", took)
	}
	if later, err := c.hello(ctx); err != nil || later != address {
		return "", fmt.Errorf("the connection changed from %s to %s (%v)", address, later, err)
	}
	return fmt.Sprintf("30 deadlines of 300 ms passed in %d ms", took.Milliseconds()), nil
}

// A flight counts the requests that have left this process.
type flight struct {
	departed chan struct{}
}

func (flight) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (flight) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (flight) HandleConn(context.Context, stats.ConnStats)                       {}
func (f flight) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.OutPayload); ok {
		f.departed <- struct{}{}
	}
}

// serverKilled has 10 calls of each kind in flight, kills the server, and wants UNAVAILABLE for all.
func serverKilled(ctx context.Context, t target) (string, error) {
	if t.killPid <= 0 {
		return "", fmt.Errorf("the process id of the server is needed: -kill PID")
	}
	f := flight{make(chan struct{}, 1000)}
	conn, err := grpc.NewClient(dialled(t.address), grpc.WithStatsHandler(f),
		grpc.WithTransportCredentials(transportSecurity))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	c := clients{conn, testpb.NewTestServiceClient(conn), greeterpb.NewGreeterClient(conn)}
	const each = 10
	kinds := []func() error{
		func() error { return delayed(ctx, c, time.Hour) },
		func() error {
			stream, err := c.test.StreamingOutputCall(ctx, &testpb.StreamingOutputCallRequest{
				ResponseParameters: []*testpb.ResponseParameters{{IntervalUs: 600_000_000}}})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
		func() error {
			stream, err := c.test.StreamingInputCall(ctx)
			if err == nil {
				err = stream.Send(&testpb.StreamingInputCallRequest{})
			}
			if err == nil {
				err = stream.RecvMsg(&testpb.StreamingInputCallResponse{})
			}
			return err
		},
		func() error {
			stream, err := c.test.FullDuplexCall(ctx)
			if err == nil {
				err = stream.Send(&testpb.StreamingOutputCallRequest{})
			}
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
	}
	ended := make(chan error, 1)
	go func() {
		ended <- atOnce(each*len(kinds), func(i int) error {
			return expectCode(fmt.Sprintf("call of kind %d", i%len(kinds)), kinds[i%len(kinds)](), codes.Unavailable)
		})
	}()
	for i := 0; i < each*len(kinds); i++ {
		select {
		case <-f.departed:
		case err := <-ended:
			return "", fmt.Errorf("calls ended before the server was killed: %v", err)
		}
	}
	begin := time.Now()
	if err := syscall.Kill(t.killPid, syscall.SIGKILL); err != nil {
		return "", fmt.Errorf("killing process %d: %w", t.killPid, err)
	}
	if err := <-ended; err != nil {
		return "", err
	}
	return fmt.Sprintf("%d calls ended with UNAVAILABLE after %d ms", each*len(kinds),
		time.Since(begin).Milliseconds()), nil
}

func statuses(ctx context.Context, t target) (string, error) {
	c := connect(t)
	defer c.Close()
	count := 0
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		for _, message := range []string{"", "plain", "100% off, \t\r\n and λ → 🙂"} {
			_, err := c.test.UnaryCall(ctx, &testpb.SimpleRequest{
				ResponseStatus: &testpb.EchoStatus{Code: int32(code), Message: message}})
			if s := status.Convert(err); s.Code() != code || s.Message() != message {
				return "", fmt.Errorf("%v %q, not %v %q", s.Code(), s.Message(), code, message)
			}
			count++
		}
	}
	return fmt.Sprintf("%d statuses", count), nil
}
