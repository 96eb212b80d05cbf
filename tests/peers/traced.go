package main

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	greeterpb "google.golang.org/grpc/examples/helloworld/helloworld"
	experimental "google.golang.org/grpc/experimental/opentelemetry"
	"google.golang.org/grpc/stats/opentelemetry"
)

// relay greets as another greeter does, by calls of its own.
type relay struct {
	greeterpb.UnimplementedGreeterServer
	next greeterpb.GreeterClient
}

func (r relay) SayHello(ctx context.Context, in *greeterpb.HelloRequest) (*greeterpb.HelloReply, error) {
	return r.next.SayHello(ctx, in)
}

// propagators are the forms of trace contexts that the plugin reads and writes.
func propagators(name string) (propagation.TextMapPropagator, error) {
	switch name {
	case "tracecontext":
		return propagation.TraceContext{}, nil
	case "grpc-trace-bin":
		return opentelemetry.GRPCTraceBinPropagator{}, nil
	}
	return nil, fmt.Errorf("there is no propagator %q", name)
}

// serveTraced serves helloworld.Greeter by calls to another one, with grpc-go's OpenTelemetry plugin
// at both ends, and tells a collector of the spans.
func serveTraced(arguments []string) int {
	flags := newServerFlags("traced-relay")
	collector := flags.set.String("otlp", "127.0.0.1:4317", "the collector")
	form := flags.set.String("propagator", "tracecontext", "tracecontext or grpc-trace-bin")
	flags.set.Parse(arguments)
	propagator, err := propagators(*form)
	if err != nil {
		return complain(err)
	}
	exporter, err := otlptracegrpc.New(context.Background(), otlptracegrpc.WithInsecure(),
		otlptracegrpc.WithEndpoint(*collector))
	if err != nil {
		return complain(err)
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter, sdktrace.WithBatchTimeout(100*time.Millisecond)),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", "relay"))))
	defer provider.Shutdown(context.Background())
	options := opentelemetry.Options{TraceOptions: experimental.TraceOptions{
		TracerProvider: provider, TextMapPropagator: propagator}}
	connection, err := grpc.NewClient(flags.set.Arg(0),
		grpc.WithTransportCredentials(insecure.NewCredentials()), opentelemetry.DialOption(options))
	if err != nil {
		return complain(err)
	}
	defer connection.Close()
	server, err := flags.newServer(opentelemetry.ServerOption(options))
	if err != nil {
		return complain(err)
	}
	greeterpb.RegisterGreeterServer(server, relay{next: greeterpb.NewGreeterClient(connection)})
	return flags.serve(server)
}
