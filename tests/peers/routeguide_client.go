package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"time"

	routepb "google.golang.org/grpc/examples/route_guide/routeguide"
	"google.golang.org/protobuf/proto"
)

// runRouteGuideClient makes the calls of the RouteGuide tutorial's client and, unlike that, checks
// every answer against the features file.
func runRouteGuideClient(arguments []string) int {
	set := flag.NewFlagSet("routeguide-client", flag.ExitOnError)
	file := set.String("features", "examples/features.json", "JSON file the server serves")
	limit := set.Duration("limit", 20*time.Second, "time limit of each call")
	tls := newTLSFlags(set, "tls-ca", "PEM file of what the server's certificate is verified with")
	set.Parse(arguments)
	if err := tls.useForClients(); err != nil {
		return complain(err)
	}
	if set.NArg() != 1 {
		usage()
		return 2
	}
	features, err := readFeatures(*file)
	if err != nil {
		return complain(err)
	}
	conn := dial(set.Arg(0))
	defer conn.Close()
	client := routepb.NewRouteGuideClient(conn)
	failures := 0
	for _, check := range []struct {
		name string
		run  func(context.Context, routepb.RouteGuideClient, []*routepb.Feature) (string, error)
	}{{"GetFeature", checkGetFeature}, {"ListFeatures", checkListFeatures},
		{"RecordRoute", checkRecordRoute}, {"RouteChat", checkRouteChat}} {
		if !report(check.name, *limit, func(ctx context.Context) (string, error) {
			return check.run(ctx, client, features)
		}) {
			failures++
		}
	}
	return min(failures, 1)
}

func checkGetFeature(ctx context.Context, client routepb.RouteGuideClient, features []*routepb.Feature) (string, error) {
	for _, wanted := range features {
		found, err := client.GetFeature(ctx, wanted.Location)
		if err != nil {
			return "", err
		}
		if !proto.Equal(found, wanted) {
			return "", fmt.Errorf("%v, not %v", found, wanted)
		}
	}
	nowhere := &routepb.Point{Latitude: 0, Longitude: 0}
	found, err := client.GetFeature(ctx, nowhere)
	if err != nil {
		return "", err
	}
	if found.GetName() != "" {
		return "", fmt.Errorf("a feature at 0, 0: %v", found)
	}
	return fmt.Sprintf("%d found, first %q", len(features), features[0].GetName()), nil
}

func listFeatures(ctx context.Context, client routepb.RouteGuideClient, area *routepb.Rectangle) ([]*routepb.Feature, error) {
	stream, err := client.ListFeatures(ctx, area)
	if err != nil {
		return nil, err
	}
	var found []*routepb.Feature
	for {
		feature, err := stream.Recv()
		if err == io.EOF {
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		found = append(found, feature)
	}
}

func checkListFeatures(ctx context.Context, client routepb.RouteGuideClient, features []*routepb.Feature) (string, error) {
	areas := []*routepb.Rectangle{
		{Lo: &routepb.Point{Latitude: 400000000, Longitude: -750000000},
			Hi: &routepb.Point{Latitude: 420000000, Longitude: -730000000}},
		{Lo: &routepb.Point{Latitude: 405000000, Longitude: -748000000},
			Hi: &routepb.Point{Latitude: 412000000, Longitude: -738000000}},
		// corners the other way round
		{Lo: &routepb.Point{Latitude: 412000000, Longitude: -738000000},
			Hi: &routepb.Point{Latitude: 405000000, Longitude: -748000000}},
		{Lo: &routepb.Point{Latitude: 1, Longitude: 1}, Hi: &routepb.Point{Latitude: 2, Longitude: 2}}}
	figures := ""
	for _, area := range areas {
		found, err := listFeatures(ctx, client, area)
		if err != nil {
			return "", err
		}
		var wanted []*routepb.Feature
		for _, feature := range features {
			if inside(feature.Location, area) {
				wanted = append(wanted, feature)
			}
		}
		if len(found) != len(wanted) {
			return "", fmt.Errorf("%d features in %v, not %d", len(found), area, len(wanted))
		}
		for i := range found {
			if !proto.Equal(found[i], wanted[i]) {
				return "", fmt.Errorf("%v, not %v", found[i], wanted[i])
			}
		}
		figures += fmt.Sprintf("%d ", len(found))
	}
	return figures + "listed", nil
}

func checkRecordRoute(ctx context.Context, client routepb.RouteGuideClient, features []*routepb.Feature) (string, error) {
	var points []*routepb.Point
	wanted := &routepb.RouteSummary{}
	distance := 0.0
	for i := 0; i < 50; i++ {
		points = append(points, features[rand.IntN(len(features))].Location,
			&routepb.Point{Latitude: rand.Int32N(1_800_000_000) - 900_000_000,
				Longitude: rand.Int32N(1_000_000_000) - 500_000_000})
	}
	for i, point := range points {
		wanted.PointCount++
		if findFeature(features, point) != nil {
			wanted.FeatureCount++
		}
		if i > 0 {
			distance += metres(points[i-1], point)
		}
	}
	stream, err := client.RecordRoute(ctx)
	if err != nil {
		return "", err
	}
	for _, point := range points {
		if err := stream.Send(point); err != nil {
			return "", err
		}
	}
	summary, err := stream.CloseAndRecv()
	if err != nil {
		return "", err
	}
	if summary.PointCount != wanted.PointCount || summary.FeatureCount != wanted.FeatureCount ||
		math.Abs(float64(summary.Distance)-distance) > float64(len(points)) {
		return "", fmt.Errorf("%v, not %v and %.0f metres", summary, wanted, distance)
	}
	return summary.String(), nil
}

// checkRouteChat allows both readings of the tutorial that are about: a note is answered with the
// notes seen before it at that point, or with these and itself.
func checkRouteChat(ctx context.Context, client routepb.RouteGuideClient, _ []*routepb.Feature) (string, error) {
	stream, err := client.RouteChat(ctx)
	if err != nil {
		return "", err
	}
	latitude := rand.Int32N(1 << 30) // a place of this run's own, since servers remember notes
	var sent []*routepb.RouteNote
	for i := int32(0); i < 6; i++ {
		sent = append(sent, &routepb.RouteNote{Message: fmt.Sprintf("note %d", i),
			Location: &routepb.Point{Latitude: latitude, Longitude: i % 3}})
	}
	failed := make(chan error, 1)
	go func() {
		for _, note := range sent {
			if err := stream.Send(note); err != nil {
				failed <- err
				return
			}
		}
		failed <- stream.CloseSend()
	}()
	count := 0
	for {
		note, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			return "", err
		}
		known := false
		for _, s := range sent {
			known = known || proto.Equal(note, s)
		}
		if !known {
			return "", fmt.Errorf("a note nobody sent: %v", note)
		}
		count++
	}
	if err := <-failed; err != nil {
		return "", err
	}
	if count != 3 && count != 9 {
		return "", fmt.Errorf("%d notes for 6, not 3 (earlier ones) or 9 (with itself)", count)
	}
	return fmt.Sprintf("%d notes for %d", count, len(sent)), nil
}
