// Command protobuf encodes and decodes the messages of bench/ours/protobuf.lisp with Go's
// google.golang.org/protobuf. Its argument is the directory with the octets of each row; each
// line of standard input, ROW OPERATION MILLISECONDS, is answered as protobuf.lisp says. Built by
// bench/parts/protobuf.py, which also generates the package pb.
package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"clgrpc/peers/pb"
	"google.golang.org/protobuf/proto"
)

func text(s string) uint32 {
	if len(s) == 0 {
		return 0
	}
	return 1
}

func truth(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

func readPlace(m *pb.Place) uint32 {
	return uint32(m.GetLatitude()) + uint32(m.GetLongitude())
}

func readFeature(m *pb.Feature) uint32 {
	return text(m.GetName()) + readPlace(m.GetLocation())
}

func readItem(m *pb.Item) uint32 {
	sum := uint32(m.GetId()) + text(m.GetName()) + readPlace(m.GetPlace()) + truth(m.GetSold())
	for _, size := range m.GetSizes() {
		sum += size
	}
	return sum
}

func readItems(items []*pb.Item) uint32 {
	sum := uint32(0)
	for _, item := range items {
		sum += readItem(item)
	}
	return sum
}

func readTexts(texts []string) uint32 {
	sum := uint32(0)
	for _, s := range texts {
		sum += text(s)
	}
	return sum
}

func readMixed(m *pb.Mixed) uint32 {
	sum := uint32(m.GetId()) + uint32(m.GetSerial()) + m.GetFlags() + uint32(m.GetMask()) +
		uint32(m.GetDelta()) + uint32(m.GetOffset()) + m.GetCheck() + uint32(m.GetHash()) +
		uint32(m.GetShift()) + uint32(m.GetMoment()) + uint32(m.GetRatio()) +
		uint32(m.GetScore()) + truth(m.GetActive()) + text(m.GetTitle()) +
		uint32(len(m.GetToken())) + uint32(m.GetKind()) + readPlace(m.GetPlace()) +
		text(m.GetNote())
	switch m.GetChoice().(type) {
	case *pb.Mixed_Number:
		sum += uint32(m.GetNumber())
	case *pb.Mixed_Word:
		sum += text(m.GetWord())
	}
	for _, count := range m.GetCounts() {
		sum += uint32(count)
	}
	return sum + readTexts(m.GetTags()) + readItems(m.GetItems())
}

func readMaps(m *pb.Maps) uint32 {
	sum := uint32(0)
	for key, count := range m.GetCounts() {
		sum += text(key) + uint32(count)
	}
	for key, name := range m.GetNames() {
		sum += uint32(key) + text(name)
	}
	for key, place := range m.GetPlaces() {
		sum += text(key) + readPlace(place)
	}
	return sum
}

func readInts(m *pb.Ints) uint32 {
	sum := uint32(0)
	for _, value := range m.GetSmall() {
		sum += uint32(value)
	}
	for _, value := range m.GetLarge() {
		sum += uint32(value)
	}
	for _, value := range m.GetDeltas() {
		sum += uint32(value)
	}
	return sum
}

func readDoubles(m *pb.Doubles) uint32 {
	sum := 0.0
	for _, value := range m.GetValues() {
		sum += value
	}
	return uint32(int64(sum))
}

// row has what depends on the type of a row's message.
type row struct {
	fresh func() proto.Message
	read  func(proto.Message) uint32
}

var rows = map[string]row{
	"feature": {func() proto.Message { return new(pb.Feature) },
		func(m proto.Message) uint32 { return readFeature(m.(*pb.Feature)) }},
	"mixed": {func() proto.Message { return new(pb.Mixed) },
		func(m proto.Message) uint32 { return readMixed(m.(*pb.Mixed)) }},
	"list": {func() proto.Message { return new(pb.List) },
		func(m proto.Message) uint32 { return readItems(m.(*pb.List).GetItems()) }},
	"blob": {func() proto.Message { return new(pb.Blob) },
		func(m proto.Message) uint32 {
			data := m.(*pb.Blob).GetData()
			return uint32(len(data)) + uint32(data[1])
		}},
	"maps": {func() proto.Message { return new(pb.Maps) },
		func(m proto.Message) uint32 { return readMaps(m.(*pb.Maps)) }},
	"ints": {func() proto.Message { return new(pb.Ints) },
		func(m proto.Message) uint32 { return readInts(m.(*pb.Ints)) }},
	"doubles": {func() proto.Message { return new(pb.Doubles) },
		func(m proto.Message) uint32 { return readDoubles(m.(*pb.Doubles)) }},
	"ascii": {func() proto.Message { return new(pb.Texts) },
		func(m proto.Message) uint32 { return readTexts(m.(*pb.Texts).GetTexts()) }},
	"unicode": {func() proto.Message { return new(pb.Texts) },
		func(m proto.Message) uint32 { return readTexts(m.(*pb.Texts).GetTexts()) }},
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "protobuf:", err)
		os.Exit(1)
	}
}

func cpuNS() int64 {
	var usage syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return usage.Utime.Nano() + usage.Stime.Nano()
}

func allocated() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.TotalAlloc
}

// measure returns the nanoseconds of CPU and the octets allocated per call of operation.
func measure(operation func(), milliseconds int64) (float64, float64) {
	batch, calls := 1, 0
	before, start := allocated(), cpuNS()
	for {
		for i := 0; i < batch; i++ {
			operation()
		}
		calls += batch
		spent := cpuNS() - start
		if spent >= 1000000*milliseconds {
			return float64(spent) / float64(calls), float64(allocated()-before) / float64(calls)
		}
		if spent < 200000*milliseconds {
			batch *= 2
		}
	}
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var name, operation string
		var milliseconds int64
		_, err := fmt.Sscan(lines.Text(), &name, &operation, &milliseconds)
		must(err)
		octets, err := os.ReadFile(filepath.Join(os.Args[1], name))
		must(err)
		row := rows[name]
		message := row.fresh()
		must(proto.Unmarshal(octets, message))
		sum := row.read(message)
		work := func() {
			fresh := row.fresh()
			must(proto.Unmarshal(octets, fresh))
			sum = row.read(fresh)
		}
		if operation == "encode" {
			work = func() {
				_, err := proto.Marshal(message)
				must(err)
			}
		}
		ns, allocated := measure(work, milliseconds)
		fmt.Printf("{\"ns\":%.1f,\"octets\":%.1f,\"size\":%d,\"sum\":%d}\n",
			ns, allocated, len(octets), sum)
	}
}
