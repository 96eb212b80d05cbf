package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/fullstorydev/grpchan/inprocgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// The service Exchange of proto/bench/inproc.proto. Its messages come with protobuf-go, so there is
// no generated code; what follows is what would be in it.

type message = wrapperspb.BytesValue

const exchangeName = "/clgrpc.bench.inproc.Exchange/"

type exchangeServer interface {
	ask(context.Context, *message) (*message, error)
	watch(*message, grpc.ServerStreamingServer[message]) error
	collect(grpc.ClientStreamingServer[message, message]) error
	chat(grpc.BidiStreamingServer[message, message]) error
}

var watchDesc = grpc.StreamDesc{StreamName: "Watch", ServerStreams: true,
	Handler: func(server any, stream grpc.ServerStream) error {
		request := new(message)
		if err := stream.RecvMsg(request); err != nil {
			return err
		}
		return server.(exchangeServer).watch(request,
			&grpc.GenericServerStream[message, message]{ServerStream: stream})
	}}

var collectDesc = grpc.StreamDesc{StreamName: "Collect", ClientStreams: true,
	Handler: func(server any, stream grpc.ServerStream) error {
		return server.(exchangeServer).collect(
			&grpc.GenericServerStream[message, message]{ServerStream: stream})
	}}

var chatDesc = grpc.StreamDesc{StreamName: "Chat", ServerStreams: true, ClientStreams: true,
	Handler: func(server any, stream grpc.ServerStream) error {
		return server.(exchangeServer).chat(
			&grpc.GenericServerStream[message, message]{ServerStream: stream})
	}}

func askHandler(server any, ctx context.Context, decode func(any) error,
	_ grpc.UnaryServerInterceptor) (any, error) {
	request := new(message)
	if err := decode(request); err != nil {
		return nil, err
	}
	return server.(exchangeServer).ask(ctx, request)
}

var exchangeDesc = grpc.ServiceDesc{
	ServiceName: "clgrpc.bench.inproc.Exchange", HandlerType: (*exchangeServer)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Ask", Handler: askHandler}},
	Streams: []grpc.StreamDesc{watchDesc, collectDesc, chatDesc}}

// exchange returns what it got; streamed is how many messages a stream has.
const streamed = 100

type exchange struct{}

func (exchange) ask(_ context.Context, request *message) (*message, error) { return request, nil }

func (exchange) watch(request *message, stream grpc.ServerStreamingServer[message]) error {
	for range streamed {
		if err := stream.Send(request); err != nil {
			return err
		}
	}
	return nil
}

func (exchange) collect(stream grpc.ClientStreamingServer[message, message]) error {
	var last *message
	for {
		next, err := stream.Recv()
		if err == io.EOF {
			return stream.SendAndClose(last)
		}
		if err != nil {
			return err
		}
		last = next
	}
}

func (exchange) chat(stream grpc.BidiStreamingServer[message, message]) error {
	for {
		next, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(next); err != nil {
			return err
		}
	}
}

// A transport makes a connection to an exchange in this process.
var transports = map[string]func() (grpc.ClientConnInterface, error){
	"grpchan": func() (grpc.ClientConnInterface, error) {
		channel := &inprocgrpc.Channel{}
		channel.RegisterService(&exchangeDesc, exchange{})
		return channel, nil
	},
	"bufconn": func() (grpc.ClientConnInterface, error) {
		listener := bufconn.Listen(1 << 20)
		return connectTo(listener, "passthrough:bufconn",
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				return listener.DialContext(ctx)
			}))
	},
	"tcp": func() (grpc.ClientConnInterface, error) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		return connectTo(listener, listener.Addr().String())
	},
}

// connectTo serves on listener until the process ends, and returns a connection to target.
func connectTo(listener net.Listener, target string,
	options ...grpc.DialOption) (grpc.ClientConnInterface, error) {
	server := grpc.NewServer()
	server.RegisterService(&exchangeDesc, exchange{})
	go server.Serve(listener)
	return grpc.NewClient(target,
		append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
}

// An exchanger makes one operation of a case after the other. With latencies it takes the time of
// each, which is work as well.
type exchanger struct {
	conn      grpc.ClientConnInterface
	request   *message
	latencies bool
	tally     tally
}

var background = context.Background()

// A preparation makes of an exchanger its operation, and what is to be done after the last.
type preparation func(*exchanger) (once, done func() error, err error)

var exchangeCases = map[string]preparation{
	"unary":              operation((*exchanger).ask),
	"server-stream":      operation((*exchanger).watch),
	"client-stream":      operation((*exchanger).collect),
	"client-stream-sent": operation((*exchanger).collect),
	"echo":               (*exchanger).echo,
}

func operation(once func(*exchanger) error) preparation {
	return func(x *exchanger) (func() error, func() error, error) {
		return func() error { return once(x) }, func() error { return nil }, nil
	}
}

func (x *exchanger) check(reply *message, err error) error {
	if err == nil && len(reply.GetValue()) != len(x.request.GetValue()) {
		return fmt.Errorf("%d octets came back", len(reply.GetValue()))
	}
	return err
}

func (x *exchanger) ask() error {
	reply := new(message)
	return x.check(reply,
		x.conn.Invoke(background, exchangeName+"Ask", x.request, reply, grpc.StaticMethod()))
}

func (x *exchanger) stream(desc *grpc.StreamDesc) (
	*grpc.GenericClientStream[message, message], error) {
	stream, err := x.conn.NewStream(background, desc, exchangeName+desc.StreamName,
		grpc.StaticMethod())
	return &grpc.GenericClientStream[message, message]{ClientStream: stream}, err
}

func (x *exchanger) watch() error {
	stream, err := x.stream(&watchDesc)
	if err != nil {
		return err
	}
	if err := stream.ClientStream.SendMsg(x.request); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for count := 0; ; count++ {
		if reply, err := stream.Recv(); err == io.EOF {
			return expectCount("messages", count, streamed)
		} else if err = x.check(reply, err); err != nil {
			return err
		}
	}
}

func (x *exchanger) collect() error {
	stream, err := x.stream(&collectDesc)
	if err != nil {
		return err
	}
	for range streamed {
		if err := stream.Send(x.request); err != nil {
			return err
		}
	}
	return x.check(stream.CloseAndRecv())
}

func (x *exchanger) echo() (once, done func() error, err error) {
	stream, err := x.stream(&chatDesc)
	if err != nil {
		return nil, nil, err
	}
	once = func() error {
		if err := stream.Send(x.request); err != nil {
			return err
		}
		return x.check(stream.Recv())
	}
	done = func() error {
		if err := stream.CloseSend(); err != nil {
			return err
		}
		if _, err := stream.Recv(); err != io.EOF {
			return fmt.Errorf("the stream went on: %v", err)
		}
		return nil
	}
	return once, done, nil
}

// run makes operations until end.
func (x *exchanger) run(end time.Time, prepare preparation) error {
	once, done, err := prepare(x)
	if err != nil {
		return err
	}
	for begin := time.Now(); begin.Before(end); {
		count := 16
		if x.latencies {
			count = 1
		}
		for range count {
			if err := once(); err != nil {
				return err
			}
		}
		now := time.Now()
		x.tally.add(count, now.Sub(begin))
		begin = now
	}
	return done()
}

// An exchangeRequest is a line of the input of `inproc`.
type exchangeRequest struct {
	Transport    string `json:"transport"`
	Case         string `json:"case"`
	Octets       int    `json:"octets"`
	Callers      int    `json:"callers"`
	Latencies    bool   `json:"latencies"`
	Milliseconds int    `json:"milliseconds"`
}

func allocatedOctets() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.TotalAlloc
}

// measure answers one request.
func (r exchangeRequest) measure(conn grpc.ClientConnInterface) (map[string]any, error) {
	prepare, known := exchangeCases[r.Case]
	if !known {
		return nil, fmt.Errorf("no case %q", r.Case)
	}
	exchangers := make([]*exchanger, r.Callers)
	for i := range exchangers {
		exchangers[i] = &exchanger{conn: conn, latencies: r.Latencies,
			request: wrapperspb.Bytes(make([]byte, r.Octets))}
	}
	allocated, cpu, begin := allocatedOctets(), cpuSeconds(), time.Now()
	end := begin.Add(time.Duration(r.Milliseconds) * time.Millisecond)
	var group sync.WaitGroup
	for _, x := range exchangers {
		group.Go(func() { x.tally.err = x.run(end, prepare) })
	}
	group.Wait()
	seconds := time.Since(begin).Seconds()
	cpu = cpuSeconds() - cpu
	allocated = allocatedOctets() - allocated
	sum := &exchangers[0].tally
	for _, x := range exchangers[1:] {
		sum.merge(&x.tally)
	}
	count := float64(sum.messages)
	figures := map[string]any{"operations": sum.messages, "ns": seconds * 1e9 / count,
		"cpu_ns": cpu * 1e9 / count, "octets": float64(allocated) / count}
	if r.Latencies {
		for name, share := range map[string]float64{"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999} {
			figures[name] = sum.quantile(share)
		}
	}
	return figures, sum.err
}

// runInproc is the side of Go in the measurements of in-process channels. For each line of its
// standard input, JSON as in exchangeRequest, it calls itself over a transport and prints what came
// of it: per operation wall time, CPU of the process and octets allocated; latencies in µs.
func runInproc([]string) int {
	conns := map[string]grpc.ClientConnInterface{}
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var request exchangeRequest
		if err := json.Unmarshal(lines.Bytes(), &request); err != nil {
			return complain(err)
		}
		connect, known := transports[request.Transport]
		if !known {
			return complain(fmt.Errorf("no transport %q", request.Transport))
		}
		if conns[request.Transport] == nil {
			conn, err := connect()
			if err != nil {
				return complain(err)
			}
			conns[request.Transport] = conn
		}
		figures, err := request.measure(conns[request.Transport])
		if err != nil {
			return complain(err)
		}
		json.NewEncoder(os.Stdout).Encode(figures)
	}
	return 0
}
