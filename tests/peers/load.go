package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/bits"
	"os"
	"sync"
	"syscall"
	"time"

	routepb "google.golang.org/grpc/examples/route_guide/routeguide"
)

// A caller makes calls one after the other; one returns how many messages its call has carried.
type caller struct {
	ctx         context.Context
	client      routepb.RouteGuideClient
	points      []*routepb.Point
	messages    int
	outstanding int
}

// loadMethods are the calls that `load` can make. A message is what a stream repeats: a feature
// listed, a point recorded, a note together with its echo.
var loadMethods = map[string]func(*caller) (int, error){
	"get-feature": (*caller).getFeature, "list-features": (*caller).listFeatures,
	"record-route": (*caller).recordRoute, "route-chat": (*caller).routeChat}

func (c *caller) getFeature() (int, error) {
	_, err := c.client.GetFeature(c.ctx, c.points[0])
	return 1, err
}

var everywhere = &routepb.Rectangle{
	Lo: &routepb.Point{Latitude: -900000000, Longitude: -1800000000},
	Hi: &routepb.Point{Latitude: 900000000, Longitude: 1800000000}}

func (c *caller) listFeatures() (int, error) {
	stream, err := c.client.ListFeatures(c.ctx, everywhere)
	if err != nil {
		return 0, err
	}
	for count := 0; ; count++ {
		if _, err := stream.Recv(); err == io.EOF {
			return count, expectCount("features", count, len(c.points))
		} else if err != nil {
			return count, err
		}
	}
}

func (c *caller) recordRoute() (int, error) {
	stream, err := c.client.RecordRoute(c.ctx)
	if err != nil {
		return 0, err
	}
	for i := 0; i < c.messages; i++ {
		if err := stream.Send(c.points[i%len(c.points)]); err != nil {
			return i, err
		}
	}
	summary, err := stream.CloseAndRecv()
	if err != nil {
		return c.messages, err
	}
	return c.messages, expectCount("points", int(summary.PointCount), c.messages)
}

// routeChat keeps as many notes on their way as may be outstanding.
func (c *caller) routeChat() (int, error) {
	stream, err := c.client.RouteChat(c.ctx)
	if err != nil {
		return 0, err
	}
	note := &routepb.RouteNote{Location: c.points[0], Message: "a note"}
	sent := 0
	for heard := 0; ; heard++ {
		for ; sent < c.messages && sent < heard+c.outstanding; sent++ {
			if err := stream.Send(note); err != nil {
				return heard, err
			}
		}
		if heard == sent {
			if err := stream.CloseSend(); err != nil {
				return heard, err
			}
		}
		if _, err := stream.Recv(); err == io.EOF {
			return heard, expectCount("notes", heard, c.messages)
		} else if err != nil {
			return heard, err
		}
	}
}

func expectCount(what string, count, wanted int) error {
	if count != wanted {
		return fmt.Errorf("%d %s, not %d", count, what, wanted)
	}
	return nil
}

// A tally is what one caller has done: a count of latencies per bucket, 128 buckets for each doubling.
type tally struct {
	calls, messages int
	total           time.Duration
	buckets         [40 * 128]int
	err             error
}

func (t *tally) add(messages int, latency time.Duration) {
	t.calls++
	t.messages += messages
	t.total += latency
	bucket, shift := int(latency), bits.Len64(uint64(latency))-8
	if shift > 0 {
		bucket = shift*128 + int(latency>>shift)
	}
	t.buckets[min(bucket, len(t.buckets)-1)]++
}

func (t *tally) merge(other *tally) {
	t.calls += other.calls
	t.messages += other.messages
	t.total += other.total
	for i, count := range other.buckets {
		t.buckets[i] += count
	}
	if other.err != nil {
		t.err = other.err
	}
}

// quantile returns, in microseconds, the middle of the bucket below which share of the calls lie.
func (t *tally) quantile(share float64) float64 {
	left := int(share * float64(t.calls))
	for i, count := range t.buckets {
		if left -= count; left < 0 {
			shift := max(0, i/128-1)
			return (float64(i-128*shift) + 0.5) * float64(int(1)<<shift) / 1000
		}
	}
	return 0
}

// runFor has every caller call again and again until the time is up, and adds up what they did.
func runFor(duration time.Duration, callers []*caller, call func(*caller) (int, error)) *tally {
	end := time.Now().Add(duration)
	tallies := make([]tally, len(callers))
	var group sync.WaitGroup
	for i, c := range callers {
		group.Go(func() {
			t := &tallies[i]
			for begin := time.Now(); begin.Before(end); {
				messages, err := call(c)
				if err != nil {
					t.err = err
					return
				}
				now := time.Now()
				t.add(messages, now.Sub(begin))
				begin = now
			}
		})
	}
	group.Wait()
	sum := &tallies[0]
	for i := 1; i < len(tallies); i++ {
		sum.merge(&tallies[i])
	}
	return sum
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	seconds := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return seconds(usage.Utime) + seconds(usage.Stime)
}

// reportLoad makes one measurement and prints its line of JSON.
func reportLoad(duration time.Duration, callers []*caller, call func(*caller) (int, error)) error {
	begin, cpu := time.Now(), cpuSeconds()
	t := runFor(duration, callers, call)
	seconds := time.Since(begin).Seconds()
	cpu = cpuSeconds() - cpu
	if t.err != nil {
		return t.err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"calls": t.calls, "messages": t.messages, "seconds": seconds, "cpu_seconds": cpu,
		"mean_latency_us": float64(t.total.Nanoseconds()) / 1000 / float64(t.calls),
		"p50_us":          t.quantile(0.5), "p99_us": t.quantile(0.99)})
}

// runLoad is the load of benchmarks. It connects, warms up, prints "ready" and then, for each line on
// its standard input, loads the server for the time given and prints what came of it.
func runLoad(arguments []string) int {
	set := flag.NewFlagSet("load", flag.ExitOnError)
	method := set.String("method", "get-feature", "get-feature, list-features, record-route or route-chat")
	clients := set.Int("clients", 1, "connections")
	inFlight := set.Int("in-flight", 1, "calls at once on each connection")
	messages := set.Int("messages", 100, "points of a RecordRoute, notes of a RouteChat")
	outstanding := set.Int("outstanding", 1, "notes sent before their echoes")
	duration := set.Duration("duration", time.Second, "how long a measurement takes")
	file := set.String("features", "examples/features.json", "JSON file the server serves")
	set.Parse(arguments)
	call, known := loadMethods[*method]
	if set.NArg() != 1 || !known {
		usage()
		return 2
	}
	features, err := readFeatures(*file)
	if err != nil {
		return complain(err)
	}
	var points []*routepb.Point
	for _, feature := range features {
		points = append(points, feature.Location)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var callers []*caller
	for range *clients {
		conn := dial(set.Arg(0))
		defer conn.Close()
		for range *inFlight {
			callers = append(callers,
				&caller{ctx, routepb.NewRouteGuideClient(conn), points, *messages, *outstanding})
		}
	}
	if t := runFor(*duration/5, callers, call); t.err != nil {
		return complain(t.err)
	}
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if err := reportLoad(*duration, callers, call); err != nil {
			return complain(err)
		}
	}
	return 0
}
