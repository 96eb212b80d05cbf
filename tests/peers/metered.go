package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats/opentelemetry"
	"google.golang.org/grpc/status"
)

// offByDefault are the instruments that grpc-go has and that are off unless asked for.
var offByDefault = []string{
	"grpc.subchannel.disconnections", "grpc.subchannel.open_connections",
	"grpc.subchannel.connection_attempts_succeeded", "grpc.subchannel.connection_attempts_failed",
	"grpc.lb.wrr.rr_fallback", "grpc.lb.wrr.endpoint_weight_not_yet_usable",
	"grpc.lb.wrr.endpoint_weight_stale", "grpc.lb.wrr.endpoint_weights",
}

// meter serves the metrics of this process at address for Prometheus, and returns the options with
// which servers and channels count in them.
func meter(address string, all bool) (opentelemetry.Options, string, error) {
	registry := prometheus.NewRegistry()
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	if err != nil {
		return opentelemetry.Options{}, "", err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return opentelemetry.Options{}, "", err
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	go http.Serve(listener, mux)
	metrics := opentelemetry.DefaultMetrics()
	options := opentelemetry.MetricsOptions{
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))}
	if all {
		metrics = metrics.Add(offByDefault...)
		options.OptionalLabels = []string{"grpc.disconnect_error"}
	}
	options.Metrics = metrics
	return opentelemetry.Options{MetricsOptions: options},
		fmt.Sprintf("http://%s/metrics", listener.Addr()), nil
}

// refuse fails a call whose metadata ask for that: with the code fail-code, all attempts or the
// first fail-attempts. A stream fails once all requests have come, so that their octets are certain.
func refuse(ctx context.Context) error {
	fields, _ := metadata.FromIncomingContext(ctx)
	number := func(name string, none int) int {
		if values := fields.Get(name); len(values) > 0 {
			if n, err := strconv.Atoi(values[0]); err == nil {
				return n
			}
		}
		return none
	}
	if code := number("fail-code", 0); code != 0 &&
		number("grpc-previous-rpc-attempts", 0) < number("fail-attempts", 100) {
		return status.Error(codes.Code(code), "as asked for")
	}
	return nil
}

func refuseUnary(ctx context.Context, in any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if err := refuse(ctx); err != nil {
		return nil, err
	}
	return next(ctx, in)
}

func refuseStream(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if err := refuse(stream.Context()); err != nil {
		for stream.RecvMsg(&testpb.Empty{}) == nil {
		}
		return err
	}
	return next(service, stream)
}

// attentive is the TestService whose streams of answers end when their call does.
type attentive struct{ testpb.TestServiceServer }

func (attentive) StreamingOutputCall(in *testpb.StreamingOutputCallRequest, stream grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	for _, p := range in.ResponseParameters {
		select {
		case <-time.After(time.Duration(p.IntervalUs) * time.Microsecond):
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
		if err := stream.Send(&testpb.StreamingOutputCallResponse{
			Payload: &testpb.Payload{Body: make([]byte, p.Size)}}); err != nil {
			return err
		}
	}
	return nil
}

// An order is a line that a runner writes: to make a channel, or a call on one.
type order struct {
	ID               json.RawMessage
	Op, Name, Target string
	ServiceConfig    json.RawMessage
	Channel, Method  string
	PayloadBytes     int32
	ResponseBytes    int32
	Messages         int
	IntervalMs       int64
	TimeoutMs        int64
	CancelAfterMs    int64
	WaitForReady     bool
	Metadata         map[string]string
}

// metered is both ends of calls, measured: it serves TestService, and makes the calls that come as
// orders on its standard input.
type metered struct {
	options  opentelemetry.Options
	mutex    sync.Mutex // of the rest
	channels map[string]*grpc.ClientConn
}

func (m *metered) open(o order) error {
	options := []grpc.DialOption{grpc.WithTransportCredentials(transportSecurity),
		opentelemetry.DialOption(m.options)}
	if len(o.ServiceConfig) > 0 {
		options = append(options, grpc.WithDefaultServiceConfig(string(o.ServiceConfig)))
	}
	conn, err := grpc.NewClient(o.Target, options...)
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.channels[o.Name] = conn
	return err
}

func (m *metered) channel(name string) *grpc.ClientConn {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.channels[name]
}

// drain receives until the stream ends.
func drain[M any](receive func() (*M, error)) error {
	for {
		if _, err := receive(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// feed sends as often as the order asks for.
func feed[M any](o order, send func(*M) error, message *M) error {
	for i := 0; i < max(1, o.Messages); i++ {
		if i > 0 {
			time.Sleep(time.Duration(o.IntervalMs) * time.Millisecond)
		}
		if err := send(message); err != nil {
			return err // io.EOF: whoever receives sees how the call has ended
		}
	}
	return nil
}

func (m *metered) call(o order) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if o.TimeoutMs > 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(o.TimeoutMs)*time.Millisecond)
		defer cancel()
	}
	if o.CancelAfterMs > 0 {
		time.AfterFunc(time.Duration(o.CancelAfterMs)*time.Millisecond, cancel)
	}
	for name, value := range o.Metadata {
		ctx = metadata.AppendToOutgoingContext(ctx, name, value)
	}
	conn := m.channel(o.Channel)
	client := testpb.NewTestServiceClient(conn)
	options := []grpc.CallOption{grpc.WaitForReady(o.WaitForReady)}
	payload := &testpb.Payload{Body: make([]byte, o.PayloadBytes)}
	parameters := func(count int, interval int64) (list []*testpb.ResponseParameters) {
		for range count {
			list = append(list, &testpb.ResponseParameters{Size: o.ResponseBytes,
				IntervalUs: int32(1000 * interval)})
		}
		return list
	}
	switch o.Method {
	case "unary":
		_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{ResponseSize: o.ResponseBytes,
			Payload: payload}, options...)
		return err
	case "unimplemented":
		_, err := client.UnimplementedCall(ctx, &testpb.Empty{}, options...)
		return err
	case "unknown":
		_, err := testpb.NewUnimplementedServiceClient(conn).UnimplementedCall(ctx, &testpb.Empty{},
			options...)
		return err
	case "generic":
		return conn.Invoke(ctx, "/grpc.testing.TestService/Nothing", &testpb.Empty{}, &testpb.Empty{},
			options...)
	case "server-stream":
		stream, err := client.StreamingOutputCall(ctx, &testpb.StreamingOutputCallRequest{
			Payload: payload, ResponseParameters: parameters(max(1, o.Messages), o.IntervalMs)},
			options...)
		if err != nil {
			return err
		}
		return drain(stream.Recv)
	case "client-stream":
		stream, err := client.StreamingInputCall(ctx, options...)
		if err != nil {
			return err
		}
		err = feed(o, stream.Send, &testpb.StreamingInputCallRequest{Payload: payload})
		if err != nil && err != io.EOF {
			return err
		}
		_, err = stream.CloseAndRecv()
		return err
	case "bidi":
		stream, err := client.FullDuplexCall(ctx, options...)
		if err != nil {
			return err
		}
		go func() {
			if feed(o, stream.Send, &testpb.StreamingOutputCallRequest{Payload: payload,
				ResponseParameters: parameters(1, 0)}) == nil {
				stream.CloseSend()
			}
		}()
		return drain(stream.Recv)
	}
	return fmt.Errorf("there is no method %q", o.Method)
}

func (m *metered) perform(o order) map[string]any {
	answer := map[string]any{"id": o.ID}
	switch o.Op {
	case "channel":
		if err := m.open(o); err != nil {
			answer["error"] = err.Error()
		}
	case "close":
		m.channel(o.Channel).Close()
	case "call":
		answer["code"] = status.Code(m.call(o))
	default:
		answer["error"] = "there is no op " + o.Op
	}
	return answer
}

func runMetered(arguments []string) int {
	set := flag.NewFlagSet("metered", flag.ExitOnError)
	listen := set.String("listen", "127.0.0.1:0", "address to listen on")
	metrics := set.String("metrics", "127.0.0.1:0", "address to tell Prometheus on")
	set.Parse(arguments)
	options, url, err := meter(*metrics, true)
	if err != nil {
		return complain(err)
	}
	server := grpc.NewServer(opentelemetry.ServerOption(options),
		grpc.UnaryInterceptor(refuseUnary), grpc.StreamInterceptor(refuseStream))
	testpb.RegisterTestServiceServer(server, attentive{interop.NewTestServer()})
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return complain(err)
	}
	fmt.Printf("listening on %s\nmetrics at %s\n", listener.Addr(), url)
	go server.Serve(listener)
	m := &metered{options: options, channels: map[string]*grpc.ClientConn{}}
	var output sync.Mutex
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			var o order
			if err := json.Unmarshal(line, &o); err != nil {
				return complain(err)
			}
			answer := func() {
				text, _ := json.Marshal(m.perform(o))
				output.Lock()
				defer output.Unlock()
				fmt.Printf("%s\n", text)
			}
			if o.Op == "call" {
				go answer()
			} else {
				answer()
			}
		}
		if errors.Is(err, io.EOF) {
			return 0
		} else if err != nil {
			return complain(err)
		}
	}
}
