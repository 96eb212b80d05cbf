package main

import (
	"context"
	"io"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	greeterpb "google.golang.org/grpc/examples/helloworld/helloworld"
	routepb "google.golang.org/grpc/examples/route_guide/routeguide"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
)

// greeter greets; a name of the form "delay:MS" is greeted after MS milliseconds.
type greeter struct {
	greeterpb.UnimplementedGreeterServer
}

func (greeter) SayHello(ctx context.Context, in *greeterpb.HelloRequest) (*greeterpb.HelloReply, error) {
	if digits, found := strings.CutPrefix(in.Name, "delay:"); found {
		if ms, err := strconv.Atoi(digits); err == nil {
			select {
			case <-time.After(time.Duration(ms) * time.Millisecond):
			case <-ctx.Done():
				return nil, status.FromContextError(ctx.Err()).Err()
			}
		}
	}
	return &greeterpb.HelloReply{Message: "Hello, " + in.Name + "!"}, nil
}

// routeGuide answers as the RouteGuide of the gRPC tutorials does: RouteChat replies to a note with
// every note it has seen at that point, this one included.
type routeGuide struct {
	routepb.UnimplementedRouteGuideServer
	features []*routepb.Feature
	mutex    sync.Mutex
	notes    map[[2]int32][]*routepb.RouteNote
}

func newRouteGuide(features []*routepb.Feature) *routeGuide {
	return &routeGuide{features: features, notes: map[[2]int32][]*routepb.RouteNote{}}
}

func findFeature(features []*routepb.Feature, point *routepb.Point) *routepb.Feature {
	for _, feature := range features {
		if feature.Location.Latitude == point.GetLatitude() &&
			feature.Location.Longitude == point.GetLongitude() {
			return feature
		}
	}
	return nil
}

func featureOrNameless(features []*routepb.Feature, point *routepb.Point) *routepb.Feature {
	if feature := findFeature(features, point); feature != nil {
		return feature
	}
	return &routepb.Feature{Location: point}
}

func (s *routeGuide) GetFeature(_ context.Context, point *routepb.Point) (*routepb.Feature, error) {
	return featureOrNameless(s.features, point), nil
}

func inside(point *routepb.Point, area *routepb.Rectangle) bool {
	between := func(a, x, b int32) bool { return min(a, b) <= x && x <= max(a, b) }
	return between(area.GetLo().GetLatitude(), point.Latitude, area.GetHi().GetLatitude()) &&
		between(area.GetLo().GetLongitude(), point.Longitude, area.GetHi().GetLongitude())
}

func (s *routeGuide) ListFeatures(area *routepb.Rectangle, stream grpc.ServerStreamingServer[routepb.Feature]) error {
	for _, feature := range s.features {
		if inside(feature.Location, area) {
			if err := stream.Send(feature); err != nil {
				return err
			}
		}
	}
	return nil
}

// metres is the great-circle distance between two points given in units of 1e-7 degrees.
func metres(a, b *routepb.Point) float64 {
	const earthRadius = 6371000
	radians := func(e7 int32) float64 { return float64(e7) / 1e7 * math.Pi / 180 }
	haversine := func(angle float64) float64 { return math.Pow(math.Sin(angle/2), 2) }
	h := haversine(radians(b.Latitude)-radians(a.Latitude)) +
		math.Cos(radians(a.Latitude))*math.Cos(radians(b.Latitude))*
			haversine(radians(b.Longitude)-radians(a.Longitude))
	return 2 * earthRadius * math.Atan2(math.Sqrt(h), math.Sqrt(1-h))
}

func (s *routeGuide) RecordRoute(stream grpc.ClientStreamingServer[routepb.Point, routepb.RouteSummary]) error {
	begin := time.Now()
	summary := &routepb.RouteSummary{}
	var last *routepb.Point
	for {
		point, err := stream.Recv()
		if err == io.EOF {
			summary.ElapsedTime = int32(time.Since(begin).Seconds())
			return stream.SendAndClose(summary)
		}
		if err != nil {
			return err
		}
		summary.PointCount++
		if findFeature(s.features, point) != nil {
			summary.FeatureCount++
		}
		if last != nil {
			summary.Distance += int32(metres(last, point))
		}
		last = point
	}
}

func (s *routeGuide) RouteChat(stream grpc.BidiStreamingServer[routepb.RouteNote, routepb.RouteNote]) error {
	for {
		note, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		for _, seen := range s.record(note) {
			if err := stream.Send(seen); err != nil {
				return err
			}
		}
	}
}

// record keeps note and returns all notes seen at its point.
func (s *routeGuide) record(note *routepb.RouteNote) []*routepb.RouteNote {
	key := [2]int32{note.GetLocation().GetLatitude(), note.GetLocation().GetLongitude()}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.notes[key] = append(s.notes[key], note)
	return s.notes[key]
}

// benchRouteGuide does the least work that RouteGuide can mean, and keeps nothing.
type benchRouteGuide struct {
	routepb.UnimplementedRouteGuideServer
	features []*routepb.Feature
}

func (s *benchRouteGuide) GetFeature(_ context.Context, point *routepb.Point) (*routepb.Feature, error) {
	return featureOrNameless(s.features, point), nil
}

// burningRouteGuide computes as many microseconds as the latitude of the point says.
type burningRouteGuide struct {
	routepb.UnimplementedRouteGuideServer
	rounds int // of a microsecond
}

var burned uint64 // so that the compiler must compute it

func burn(rounds int) {
	word := uint64(88172645463325252)
	for range rounds {
		word ^= word << 13
		word ^= word >> 7
		word ^= word << 17
	}
	burned = word
}

// newBurningRouteGuide finds out how fast this processor is.
func newBurningRouteGuide() *burningRouteGuide {
	const rounds = 20000000
	begin := time.Now()
	burn(rounds)
	return &burningRouteGuide{rounds: int(rounds / time.Since(begin).Microseconds())}
}

func (s *burningRouteGuide) GetFeature(_ context.Context, point *routepb.Point) (*routepb.Feature, error) {
	burn(int(point.Latitude) * s.rounds)
	return &routepb.Feature{Location: point}, nil
}

func (s *benchRouteGuide) ListFeatures(area *routepb.Rectangle, stream grpc.ServerStreamingServer[routepb.Feature]) error {
	return (&routeGuide{features: s.features}).ListFeatures(area, stream)
}

func (s *benchRouteGuide) RecordRoute(stream grpc.ClientStreamingServer[routepb.Point, routepb.RouteSummary]) error {
	return (&routeGuide{features: s.features}).RecordRoute(stream)
}

func (s *benchRouteGuide) RouteChat(stream grpc.BidiStreamingServer[routepb.RouteNote, routepb.RouteNote]) error {
	for {
		note, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(note); err != nil {
			return err
		}
	}
}

// benchmarkService answers with as many zero octets as the request asks for.
type benchmarkService struct {
	testpb.UnimplementedBenchmarkServiceServer
}

func (benchmarkService) UnaryCall(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Payload: &testpb.Payload{Body: make([]byte, in.GetResponseSize())}}, nil
}

func (s benchmarkService) StreamingCall(stream grpc.BidiStreamingServer[testpb.SimpleRequest, testpb.SimpleResponse]) error {
	for {
		in, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		out, _ := s.UnaryCall(stream.Context(), in)
		if err := stream.Send(out); err != nil {
			return err
		}
	}
}
