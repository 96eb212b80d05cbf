package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/binarylog"
	binlogpb "google.golang.org/grpc/binarylog/grpc_binarylog_v1"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// entries is where grpc-go's binary log goes, if GRPC_BINARY_LOG_FILTER asks for one.
type entries struct {
	mutex sync.Mutex
	all   []*binlogpb.GrpcLogEntry
}

func (e *entries) Write(entry *binlogpb.GrpcLogEntry) error {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.all = append(e.all, proto.Clone(entry).(*binlogpb.GrpcLogEntry))
	return nil
}

func (e *entries) Close() error { return nil }

var logged = &entries{}

func init() { binarylog.SetSink(logged) }

func printEntry(entry *binlogpb.GrpcLogEntry) {
	text, err := protojson.Marshal(entry)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(string(text))
}

// hasUnknown tells of a field in m, or a message in it, that the published definitions lack.
func hasUnknown(m protoreflect.Message) bool {
	found := len(m.GetUnknown()) > 0
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if field.Message() != nil && !field.IsMap() {
			if field.IsList() {
				for i := 0; i < value.List().Len(); i++ {
					found = found || hasUnknown(value.List().Get(i).Message())
				}
			} else {
				found = found || hasUnknown(value.Message())
			}
		}
		return !found
	})
	return found
}

// printBinaryLog prints the entries of a file as grpc-go writes them, a line of JSON for each.
func printBinaryLog(arguments []string) int {
	if len(arguments) != 1 {
		fmt.Fprintln(os.Stderr, "usage: peer binary-log FILE")
		return 2
	}
	file, err := os.ReadFile(arguments[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for len(file) > 0 {
		if len(file) < 4 || len(file)-4 < int(binary.BigEndian.Uint32(file)) {
			fmt.Fprintln(os.Stderr, "the last entry is cut off")
			return 1
		}
		size := int(binary.BigEndian.Uint32(file))
		entry := &binlogpb.GrpcLogEntry{}
		if err := proto.Unmarshal(file[4:4+size], entry); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if hasUnknown(entry.ProtoReflect()) {
			fmt.Fprintln(os.Stderr, "an entry has a field that there is not")
			return 1
		}
		printEntry(entry)
		file = file[4+size:]
	}
	return 0
}

// runBinaryLogClient makes calls of all kinds, one after the other, and prints grpc-go's binary log
// of them.
func runBinaryLogClient(arguments []string) int {
	if len(arguments) != 1 {
		fmt.Fprintln(os.Stderr, "usage: peer binary-log-client ADDR")
		return 2
	}
	connection, err := grpc.NewClient(arguments[0],
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	client := pb.NewTestServiceClient(connection)
	for _, call := range []func(context.Context, pb.TestServiceClient){
		logUnary, logStatus, logServerStream, logClientStream, logBidi, logCancellation,
		logDeadline, logUnimplemented} {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		call(ctx, client)
		cancel()
		time.Sleep(50 * time.Millisecond) // the other end's entries are those of one call, too
	}
	connection.Close()
	logged.mutex.Lock()
	defer logged.mutex.Unlock()
	for _, entry := range logged.all {
		printEntry(entry)
	}
	return 0
}

func zeros(size int) *pb.Payload { return &pb.Payload{Body: make([]byte, size)} }

func logUnary(ctx context.Context, client pb.TestServiceClient) {
	ctx = metadata.AppendToOutgoingContext(ctx, "x-one", "first", "x-one", "second",
		"x-octets-bin", "\x00\xff", "x-grpc-test-echo-initial", "back",
		"x-grpc-test-echo-trailing-bin", "\x01\x02")
	client.UnaryCall(ctx, &pb.SimpleRequest{ResponseSize: 30, Payload: zeros(50)})
}

func logStatus(ctx context.Context, client pb.TestServiceClient) {
	client.UnaryCall(ctx, &pb.SimpleRequest{
		ResponseStatus: &pb.EchoStatus{Code: 9, Message: "näh"}})
}

func logServerStream(ctx context.Context, client pb.TestServiceClient) {
	stream, err := client.StreamingOutputCall(ctx, &pb.StreamingOutputCallRequest{
		ResponseParameters: []*pb.ResponseParameters{{Size: 1}, {Size: 20000}, {Size: 3}}})
	for err == nil {
		_, err = stream.Recv()
	}
}

func logClientStream(ctx context.Context, client pb.TestServiceClient) {
	if stream, err := client.StreamingInputCall(ctx); err == nil {
		for size := 1; size < 4; size++ {
			stream.Send(&pb.StreamingInputCallRequest{Payload: zeros(size)})
		}
		stream.CloseAndRecv()
	}
}

func logBidi(ctx context.Context, client pb.TestServiceClient) {
	stream, err := client.FullDuplexCall(ctx)
	for size := int32(1); size < 4 && err == nil; size++ {
		stream.Send(&pb.StreamingOutputCallRequest{
			ResponseParameters: []*pb.ResponseParameters{{Size: size}}})
		_, err = stream.Recv()
	}
	if err == nil {
		stream.CloseSend()
		for err != io.EOF && err == nil {
			_, err = stream.Recv()
		}
	}
}

func logCancellation(ctx context.Context, client pb.TestServiceClient) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if stream, err := client.FullDuplexCall(ctx); err == nil {
		stream.Send(&pb.StreamingOutputCallRequest{
			ResponseParameters: []*pb.ResponseParameters{{Size: 5}}})
		stream.Recv()
		cancel()
		stream.Recv()
	}
}

func logDeadline(ctx context.Context, client pb.TestServiceClient) {
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if stream, err := client.FullDuplexCall(ctx); err == nil {
		stream.Recv()
	}
}

func logUnimplemented(ctx context.Context, client pb.TestServiceClient) {
	client.UnimplementedCall(ctx, &pb.Empty{})
}
