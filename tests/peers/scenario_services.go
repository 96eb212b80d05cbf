package main

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// reflection asks for the services and for the files of each, and has Go's protobuf link them.
func reflection(ctx context.Context, t target) (string, error) {
	conn := dial(t.address)
	defer conn.Close()
	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		return "", err
	}
	ask := func(request *reflectionpb.ServerReflectionRequest) (*reflectionpb.ServerReflectionResponse, error) {
		if err := stream.Send(request); err != nil {
			return nil, err
		}
		return stream.Recv()
	}
	listed, err := ask(&reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
	if err != nil {
		return "", fmt.Errorf("ListServices: %w", err)
	}
	var set descriptorpb.FileDescriptorSet
	seen := map[string]bool{}
	services := listed.GetListServicesResponse().GetService()
	for _, service := range services {
		answer, err := ask(&reflectionpb.ServerReflectionRequest{
			MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{
				FileContainingSymbol: service.Name}})
		if err != nil {
			return "", fmt.Errorf("the file of %s: %w", service.Name, err)
		}
		for _, octets := range answer.GetFileDescriptorResponse().GetFileDescriptorProto() {
			file := new(descriptorpb.FileDescriptorProto)
			if err := proto.Unmarshal(octets, file); err != nil {
				return "", fmt.Errorf("a file of %s: %w", service.Name, err)
			}
			if !seen[file.GetName()] {
				seen[file.GetName()] = true
				set.File = append(set.File, file)
			}
		}
	}
	files, err := protodesc.NewFiles(&set)
	if err != nil {
		return "", fmt.Errorf("linking: %w", err)
	}
	for _, service := range services {
		if _, err := files.FindDescriptorByName(protoreflect.FullName(service.Name)); err != nil {
			return "", fmt.Errorf("%s: %w", service.Name, err)
		}
	}
	if len(services) < 3 {
		return "", fmt.Errorf("only %d services", len(services))
	}
	return fmt.Sprintf("%d services in %d files", len(services), files.NumFiles()), nil
}

// health asks with grpc-go's health client, as its load balancers and grpc-health-probe do.
func health(ctx context.Context, t target) (string, error) {
	conn := dial(t.address)
	defer conn.Close()
	c := healthpb.NewHealthClient(conn)
	for _, name := range []string{"", "helloworld.Greeter"} {
		reply, err := c.Check(ctx, &healthpb.HealthCheckRequest{Service: name})
		if err != nil {
			return "", fmt.Errorf("Check %q: %w", name, err)
		}
		if reply.Status != healthpb.HealthCheckResponse_SERVING {
			return "", fmt.Errorf("Check %q: %v", name, reply.Status)
		}
	}
	_, err := c.Check(ctx, &healthpb.HealthCheckRequest{Service: "no.Such"})
	if err := expectCode("Check of an unknown service", err, codes.NotFound); err != nil {
		return "", err
	}
	list, err := c.List(ctx, &healthpb.HealthListRequest{})
	if err != nil {
		return "", fmt.Errorf("List: %w", err)
	}
	first := func(name string, want healthpb.HealthCheckResponse_ServingStatus) (grpc.ClientStream, error) {
		watch, err := c.Watch(ctx, &healthpb.HealthCheckRequest{Service: name})
		if err != nil {
			return nil, fmt.Errorf("Watch %q: %w", name, err)
		}
		reply, err := watch.Recv()
		if err != nil {
			return nil, fmt.Errorf("Watch %q: %w", name, err)
		}
		if reply.Status != want {
			return nil, fmt.Errorf("Watch %q: %v, not %v", name, reply.Status, want)
		}
		return watch, nil
	}
	if _, err := first("helloworld.Greeter", healthpb.HealthCheckResponse_SERVING); err != nil {
		return "", err
	}
	if _, err := first("no.Such", healthpb.HealthCheckResponse_SERVICE_UNKNOWN); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d services listed", len(list.Statuses)), nil
}
