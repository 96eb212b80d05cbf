package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	greeterpb "google.golang.org/grpc/examples/helloworld/helloworld"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

// rawCodec sends octets as they are in place of messages, and takes any answer.
type rawCodec struct{}

func (rawCodec) Name() string                  { return "proto" }
func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(data)
	return nil
}

// rawHTTP speaks HTTP/2 without TLS and without gRPC's manners.
func rawHTTP() *http2.Transport {
	return &http2.Transport{AllowHTTP: true, DialTLSContext: func(ctx context.Context, network, address string,
		_ *tls.Config) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
}

// post sends body as a request to path; the extra headers come in pairs. It returns the response
// after the whole body has been read, so that its trailers are there.
func post(ctx context.Context, t target, path string, body []byte, headers ...string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, "POST", "http://"+t.address+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	transport := rawHTTP()
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response, err
}

func frame(message []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

// expectGrpcStatus looks for the status in the trailers, or in the headers of a trailers-only response.
func expectGrpcStatus(response *http.Response, wanted codes.Code) error {
	got := response.Trailer.Get("Grpc-Status")
	if got == "" {
		got = response.Header.Get("Grpc-Status")
	}
	if got != fmt.Sprint(uint32(wanted)) {
		return fmt.Errorf("HTTP %d, grpc-status %q, not %d (%v)", response.StatusCode, got, wanted, wanted)
	}
	return nil
}

func serverDeadline(ctx context.Context, t target) (string, error) {
	message, err := proto.Marshal(&greeterpb.HelloRequest{Name: "delay:3600000"})
	if err != nil {
		return "", err
	}
	response, err := post(ctx, t, greeterpb.Greeter_SayHello_FullMethodName, frame(message),
		"content-type", "application/grpc", "te", "trailers", "grpc-timeout", "200m")
	if reset := (http2.StreamError{}); errors.As(err, &reset) && reset.Code == http2.ErrCodeCancel {
		return "the server reset the stream", nil // now and then grpc-go's own does
	}
	if err != nil {
		return "", err
	}
	return "the server ended the call itself", expectGrpcStatus(response, codes.DeadlineExceeded)
}

func notGrpc(ctx context.Context, t target) (string, error) {
	response, err := post(ctx, t, "/index.html", []byte("hello"), "content-type", "text/plain")
	if err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusUnsupportedMediaType {
		return "", fmt.Errorf("HTTP status %d, not 415", response.StatusCode)
	}
	return "HTTP status 415", stillServes(ctx, t)
}

func unknown(ctx context.Context, t target) (string, error) {
	c := connect(t)
	defer c.Close()
	for _, path := range []string{"/helloworld.Greeter/SayNothing", "/no.Service/Method", "/x", "/helloworld.Greeter/"} {
		err := c.Invoke(ctx, path, &testpb.Empty{}, &testpb.Empty{})
		if err := expectCode(path, err, codes.Unimplemented); err != nil {
			return "", err
		}
	}
	_, err := c.hello(ctx)
	return "4 paths", err
}

// stillServes makes a call on a new connection.
func stillServes(ctx context.Context, t target) error {
	c := connect(t)
	defer c.Close()
	_, err := c.hello(ctx)
	return err
}

func messageTooLong(ctx context.Context, t target) (string, error) {
	c := connect(t)
	defer c.Close()
	address, err := c.hello(ctx)
	if err != nil {
		return "", err
	}
	_, err = c.test.UnaryCall(ctx, &testpb.SimpleRequest{Payload: payload(t.maxReceive + 1)})
	if err := expectCode("unary call", err, codes.ResourceExhausted); err != nil {
		return "", err
	}
	later, err := c.hello(ctx)
	if err != nil || later != address {
		return "", fmt.Errorf("the connection changed from %s to %s (%v)", address, later, err)
	}
	return fmt.Sprintf("%d octets refused, the connection serves on", t.maxReceive+1), nil
}

func messageTruncated(ctx context.Context, t target) (string, error) {
	c := connect(t)
	defer c.Close()
	// a string of 5 octets of which 3 come; a varint without end; a field number 0; a wrong wire type
	for _, octets := range [][]byte{{10, 5, 'a', 'b', 'c'}, {8, 255, 255}, {2, 0}, {15}} {
		var reply []byte
		err := c.Invoke(ctx, greeterpb.Greeter_SayHello_FullMethodName, &octets, &reply,
			grpc.ForceCodec(rawCodec{}))
		if err := expectCode(fmt.Sprintf("%v", octets), err, codes.Internal); err != nil {
			return "", err
		}
	}
	_, err := c.hello(ctx)
	return "4 messages refused, the connection serves on", err
}

func prefix4G(ctx context.Context, t target) (string, error) {
	response, err := post(ctx, t, greeterpb.Greeter_SayHello_FullMethodName,
		[]byte{0, 255, 255, 255, 255, 10, 1, 'a'}, "content-type", "application/grpc", "te", "trailers")
	if err != nil {
		return "", err
	}
	if err := expectGrpcStatus(response, codes.ResourceExhausted); err != nil {
		return "", err
	}
	return "RESOURCE_EXHAUSTED", stillServes(ctx, t)
}

// garbage sends what no client should, and wants every connection closed and the server alive.
func garbage(ctx context.Context, t target) (string, error) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	octets := func(count int) []byte {
		text := make([]byte, count)
		for i := range text {
			text[i] = byte(random.Uint32())
		}
		return text
	}
	settings := []byte{0, 0, 0, 4, 0, 0, 0, 0, 0}
	begin := slices.Concat([]byte(http2.ClientPreface), settings)
	openings := [][]byte{
		[]byte(http2.ClientPreface[:10]),                                    // half a preface
		[]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),                 // another protocol
		slices.Concat(begin, []byte{255, 255, 255, 0, 0, 0, 0, 0, 1}),       // a frame of 16 MB
		slices.Concat(begin, []byte{0, 0, 4, 9, 4, 0, 0, 0, 1, 1, 2, 3, 4}), // CONTINUATION of nothing
		slices.Concat(begin, settings[:5]),                                  // half a frame header
	}
	for i := 0; i < 40; i++ {
		openings = append(openings, octets(1+random.IntN(3000)),
			slices.Concat(begin, octets(1+random.IntN(3000))))
	}
	for i, opening := range openings {
		if err := throw(ctx, t, opening); err != nil {
			return "", fmt.Errorf("seed %d, connection %d: %w", seed, i, err)
		}
	}
	return fmt.Sprintf("%d connections, seed %d", len(openings), seed), stillServes(ctx, t)
}

// throw sends octets on a connection of their own, half-closes it and waits until the server closes.
func throw(ctx context.Context, t target, octets []byte) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", t.address)
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	conn.SetDeadline(deadline)
	conn.Write(octets) // fails if the server has seen enough
	conn.(*net.TCPConn).CloseWrite()
	_, err = io.Copy(io.Discard, conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the server does not close: %v", err)
	}
	return nil
}
