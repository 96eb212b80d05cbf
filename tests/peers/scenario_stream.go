package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	routepb "google.golang.org/grpc/examples/route_guide/routeguide"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

const many = 10000

// sizeOf makes the size of a message tell its place in the stream.
func sizeOf(i int) int32 { return int32(i % 97) }

func rate(count int, begin time.Time) string {
	return fmt.Sprintf("%d messages, %.0f/s", count, float64(count)/time.Since(begin).Seconds())
}

// expectSizes receives count payloads whose sizes follow sizeOf and then the end of the stream.
func expectSizes(count int, receive func() (*testpb.StreamingOutputCallResponse, error)) error {
	for i := 0; ; i++ {
		in, err := receive()
		if err == io.EOF && i == count {
			return nil
		}
		if err != nil {
			return fmt.Errorf("after %d messages: %w", i, err)
		}
		if i == count {
			return fmt.Errorf("more than %d messages", count)
		}
		if got := int32(len(in.GetPayload().GetBody())); got != sizeOf(i) {
			return fmt.Errorf("message %d has %d octets, not %d", i, got, sizeOf(i))
		}
	}
}

func streamDown(ctx context.Context, t target) (string, error) {
	c := connect(t)
	defer c.Close()
	begin := time.Now()
	request := &testpb.StreamingOutputCallRequest{}
	for i := 0; i < many; i++ {
		request.ResponseParameters = append(request.ResponseParameters,
			&testpb.ResponseParameters{Size: sizeOf(i)})
	}
	stream, err := c.test.StreamingOutputCall(ctx, request)
	if err != nil {
		return "", err
	}
	err = expectSizes(many, stream.Recv)
	return rate(many, begin), err
}

func streamUp(ctx context.Context, t target) (string, error) {
	c := connect(t)
	defer c.Close()
	begin := time.Now()
	stream, err := c.test.StreamingInputCall(ctx)
	if err != nil {
		return "", err
	}
	sum := int32(0)
	for i := 0; i < many; i++ {
		sum += sizeOf(i)
		if err := stream.Send(&testpb.StreamingInputCallRequest{Payload: payload(int(sizeOf(i)))}); err != nil {
			return "", fmt.Errorf("sending message %d: %w", i, err)
		}
	}
	reply, err := stream.CloseAndRecv()
	if err != nil {
		return "", err
	}
	if reply.GetAggregatedPayloadSize() != sum {
		return "", fmt.Errorf("%d octets arrived, not %d", reply.GetAggregatedPayloadSize(), sum)
	}
	return rate(many, begin), nil
}

func payload(size int) *testpb.Payload {
	return &testpb.Payload{Body: make([]byte, size)}
}

type duplex = grpc.BidiStreamingClient[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]

// sendEcho sends a request of size octets that asks for as many back, after a pause.
func sendEcho(stream duplex, size int32, pause time.Duration) error {
	return stream.Send(&testpb.StreamingOutputCallRequest{
		Payload: payload(int(size)),
		ResponseParameters: []*testpb.ResponseParameters{
			{Size: size, IntervalUs: int32(pause.Microseconds())}}})
}

func streamBoth(ctx context.Context, t target) (string, error) {
	c := connect(t)
	defer c.Close()
	begin := time.Now()
	stream, err := c.test.FullDuplexCall(ctx)
	if err != nil {
		return "", err
	}
	sent := make(chan error, 1)
	go func() {
		for i := 0; i < many; i++ {
			if err := sendEcho(stream, sizeOf(i), 0); err != nil {
				sent <- fmt.Errorf("sending message %d: %w", i, err)
				return
			}
		}
		sent <- stream.CloseSend()
	}()
	if err := expectSizes(many, stream.Recv); err != nil {
		return "", err
	}
	return rate(2*many, begin), <-sent
}

func streamPingPong(ctx context.Context, t target) (string, error) {
	c := connect(t)
	defer c.Close()
	begin := time.Now()
	stream, err := c.test.FullDuplexCall(ctx)
	if err != nil {
		return "", err
	}
	for i := 0; i < many; i++ {
		if err := sendEcho(stream, sizeOf(i), 0); err != nil {
			return "", fmt.Errorf("sending message %d: %w", i, err)
		}
		if in, err := stream.Recv(); err != nil {
			return "", fmt.Errorf("message %d: %w", i, err)
		} else if int32(len(in.GetPayload().GetBody())) != sizeOf(i) {
			return "", fmt.Errorf("message %d has %d octets", i, len(in.GetPayload().GetBody()))
		}
	}
	if err := stream.CloseSend(); err != nil {
		return "", err
	}
	if _, err := stream.Recv(); err != io.EOF {
		return "", fmt.Errorf("at the end: %v", status.Convert(err))
	}
	return rate(2*many, begin), nil
}

func route10000(ctx context.Context, t target) (string, error) {
	c := connect(t)
	defer c.Close()
	begin := time.Now()
	stream, err := routepb.NewRouteGuideClient(c.ClientConn).RecordRoute(ctx)
	if err != nil {
		return "", err
	}
	for i := int32(0); i < many; i++ {
		if err := stream.Send(&routepb.Point{Latitude: i * 1000, Longitude: -i * 1000}); err != nil {
			return "", fmt.Errorf("sending point %d: %w", i, err)
		}
	}
	summary, err := stream.CloseAndRecv()
	if err != nil {
		return "", err
	}
	if summary.PointCount != many {
		return "", fmt.Errorf("%d points arrived, not %d", summary.PointCount, many)
	}
	return rate(many, begin), nil
}

func message0(ctx context.Context, t target) (string, error) {
	c := connect(t)
	defer c.Close()
	for i := 0; i < 100; i++ {
		if _, err := c.test.EmptyCall(ctx, &testpb.Empty{}); err != nil {
			return "", err
		}
	}
	stream, err := c.test.FullDuplexCall(ctx)
	if err != nil {
		return "", err
	}
	for i := 0; i < 100; i++ { // requests of no octets ask for no reply
		if err := stream.Send(&testpb.StreamingOutputCallRequest{}); err != nil {
			return "", err
		}
	}
	if err := stream.CloseSend(); err != nil {
		return "", err
	}
	if _, err := stream.Recv(); err != io.EOF {
		return "", fmt.Errorf("at the end of the stream: %v", err)
	}
	return "100 calls, 100 in a stream", nil
}

func message1M(ctx context.Context, t target) (string, error)  { return bigMessages(ctx, t, 1<<20, 8) }
func message16M(ctx context.Context, t target) (string, error) { return bigMessages(ctx, t, 16<<20, 2) }

// bigMessages sends and receives messages with a body of size octets, in unary calls and in a stream.
func bigMessages(ctx context.Context, t target, size int32, count int) (string, error) {
	c := connect(t)
	defer c.Close()
	for i := 0; i < count; i++ {
		reply, err := c.test.UnaryCall(ctx, &testpb.SimpleRequest{
			ResponseSize: size, Payload: payload(int(size))})
		if err != nil {
			return "", fmt.Errorf("unary call: %w", err)
		}
		if got := int32(len(reply.GetPayload().GetBody())); got != size {
			return "", fmt.Errorf("the reply has %d octets, not %d", got, size)
		}
	}
	stream, err := c.test.FullDuplexCall(ctx)
	if err != nil {
		return "", err
	}
	for i := 0; i < count; i++ {
		if err := sendEcho(stream, size, 0); err != nil {
			return "", fmt.Errorf("stream: %w", err)
		}
		if in, err := stream.Recv(); err != nil {
			return "", fmt.Errorf("stream: %w", err)
		} else if int32(len(in.GetPayload().GetBody())) != size {
			return "", fmt.Errorf("message %d of the stream has %d octets", i, len(in.GetPayload().GetBody()))
		}
	}
	if err := stream.CloseSend(); err != nil {
		return "", err
	}
	_, err = stream.Recv()
	if err != io.EOF {
		return "", fmt.Errorf("at the end of the stream: %v", err)
	}
	return fmt.Sprintf("%d times %d octets each way", 2*count, size), nil
}
