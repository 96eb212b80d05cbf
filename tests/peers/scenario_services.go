package main

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

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
