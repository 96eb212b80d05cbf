package main

import (
	"context"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip" // the server and the client then have it
	"google.golang.org/grpc/stats"

	testpb "google.golang.org/grpc/interop/grpc_testing"
)

// unheard is an encoding that nobody else has: it leaves everything as it is.
type unheard struct{}

func (unheard) Name() string                                 { return "unheard" }
func (unheard) Compress(w io.Writer) (io.WriteCloser, error) { return closing{w}, nil }
func (unheard) Decompress(r io.Reader) (io.Reader, error)    { return r, nil }

type closing struct{ io.Writer }

func (closing) Close() error { return nil }

func init() { encoding.RegisterCompressor(unheard{}) }

// weigher notes of the last message received how long it was on the wire and in itself.
type weigher struct {
	mutex        sync.Mutex
	wire, itself int
}

func (w *weigher) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (w *weigher) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (w *weigher) HandleConn(context.Context, stats.ConnStats)                       {}
func (w *weigher) HandleRPC(_ context.Context, s stats.RPCStats) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if payload, ok := s.(*stats.InPayload); ok {
		w.wire, w.itself = payload.CompressedLength, payload.Length
	}
}

// check says whether the last message received was compressed as it should be.
func (w *weigher) check(what string, compressed bool) error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if compressed != (w.wire < w.itself) {
		return fmt.Errorf("%s: %d octets came as %d", what, w.itself, w.wire)
	}
	return nil
}

func boolValue(value bool) *testpb.BoolValue { return &testpb.BoolValue{Value: value} }

// compression has requests and answers of all kinds of call compressed, asks the server what it
// saw, and uses an encoding that the server does not have.
func compression(ctx context.Context, t target) (string, error) {
	w := &weigher{}
	conn, err := grpc.NewClient(dialled(t.address), grpc.WithStatsHandler(w),
		grpc.WithTransportCredentials(transportSecurity))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	test := testpb.NewTestServiceClient(conn)
	body := func(size int) *testpb.Payload { return &testpb.Payload{Body: make([]byte, size)} }
	sizes := []int{1, 1000, 20000, 1000000}
	for _, size := range sizes {
		for _, back := range []bool{true, false} {
			reply, err := test.UnaryCall(ctx, &testpb.SimpleRequest{
				Payload: body(size), ResponseSize: int32(size), ExpectCompressed: boolValue(true),
				ResponseCompressed: boolValue(back)}, grpc.UseCompressor(gzip.Name))
			if err != nil {
				return "", fmt.Errorf("compressed UnaryCall: %w", err)
			}
			if len(reply.GetPayload().GetBody()) != size {
				return "", fmt.Errorf("UnaryCall: %d octets", len(reply.GetPayload().GetBody()))
			}
			// an answer of one octet is not worth it
			if err := w.check("UnaryCall", back && size > 1); err != nil {
				return "", err
			}
		}
	}
	_, err = test.UnaryCall(ctx, &testpb.SimpleRequest{ExpectCompressed: boolValue(true)})
	if err := expectCode("a lie about compression", err, codes.InvalidArgument); err != nil {
		return "", err
	}
	_, err = test.UnaryCall(ctx, &testpb.SimpleRequest{Payload: body(1000)},
		grpc.UseCompressor("unheard"))
	if err := expectCode("an unknown encoding", err, codes.Unimplemented); err != nil {
		return "", err
	}
	_, err = test.UnaryCall(ctx, &testpb.SimpleRequest{Payload: body(t.maxReceive + 1)},
		grpc.UseCompressor(gzip.Name))
	if err := expectCode("a message too long once decompressed", err, codes.ResourceExhausted); err != nil {
		return "", err
	}
	up, err := test.StreamingInputCall(ctx, grpc.UseCompressor(gzip.Name))
	if err != nil {
		return "", err
	}
	total := 0
	for _, size := range sizes {
		total += size
		if err := up.Send(&testpb.StreamingInputCallRequest{Payload: body(size),
			ExpectCompressed: boolValue(true)}); err != nil {
			return "", fmt.Errorf("compressed StreamingInputCall: %w", err)
		}
	}
	sum, err := up.CloseAndRecv()
	if err != nil || int(sum.GetAggregatedPayloadSize()) != total {
		return "", fmt.Errorf("compressed StreamingInputCall: %v %w", sum, err)
	}
	request := &testpb.StreamingOutputCallRequest{}
	for _, size := range sizes {
		request.ResponseParameters = append(request.ResponseParameters, &testpb.ResponseParameters{
			Size: int32(size), Compressed: boolValue(size != 1000)})
	}
	down, err := test.StreamingOutputCall(ctx, request)
	if err != nil {
		return "", err
	}
	for _, size := range sizes {
		in, err := down.Recv()
		if err != nil || len(in.GetPayload().GetBody()) != size {
			return "", fmt.Errorf("StreamingOutputCall of %d octets: %w", size, err)
		}
		if size > 1 {
			if err := w.check("StreamingOutputCall", size != 1000); err != nil {
				return "", err
			}
		}
	}
	if _, err := down.Recv(); err != io.EOF {
		return "", fmt.Errorf("StreamingOutputCall did not end: %v", err)
	}
	return fmt.Sprintf("%d sizes, compressed and not", len(sizes)), nil
}
