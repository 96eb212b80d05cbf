// Command cluster is the side of Go in the part cluster of the benchmarks: bench/cluster.lisp says what
// it answers. Built by bench/cluster.py, which also generates the package pb.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"runtime"
	"sort"
	"sync"
	"syscall"
	"time"

	"clgrpc/peers/pb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// A node answers from tables in memory.
type node struct {
	pb.UnimplementedNodeServer
	mutex     sync.Mutex
	members   map[string]*pb.Member
	workflows map[string]*pb.GetWorkflowStateResponse
	revision  uint64
	lastIndex uint64
}

func makeMember(number int) *pb.Member {
	return &pb.Member{Name: fmt.Sprintf("node-%d", number),
		Address: fmt.Sprintf("10.0.0.%d:7000", number), Generation: 1}
}

func makeNode() *node {
	n := &node{members: map[string]*pb.Member{}, workflows: map[string]*pb.GetWorkflowStateResponse{
		"default/order-1": {Id: "order-1", Status: "RUNNING", Step: 3, Revision: 17,
			State: make([]byte, 64)}}}
	for i := 1; i <= 3; i++ {
		m := makeMember(i)
		n.members[m.Name] = m
	}
	return n
}

func (n *node) Join(_ context.Context, request *pb.JoinRequest) (*pb.JoinResponse, error) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.members[request.Member.Name] = request.Member
	n.revision++
	response := &pb.JoinResponse{Revision: n.revision,
		Members: make([]*pb.Member, 0, len(n.members))}
	for _, m := range n.members {
		response.Members = append(response.Members, m)
	}
	return response, nil
}

func (n *node) Leave(_ context.Context, request *pb.LeaveRequest) (*pb.LeaveResponse, error) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	delete(n.members, request.Name)
	n.revision++
	return &pb.LeaveResponse{Revision: n.revision}, nil
}

func (n *node) RequestVote(_ context.Context, request *pb.RequestVoteRequest) (
	*pb.RequestVoteResponse, error) {
	return &pb.RequestVoteResponse{Term: request.Term, Granted: true}, nil
}

func (n *node) AppendEntries(_ context.Context, request *pb.AppendEntriesRequest) (
	*pb.AppendEntriesResponse, error) {
	last := request.PrevLogIndex
	n.mutex.Lock()
	for _, entry := range request.Entries {
		last = entry.Index
	}
	n.lastIndex = last
	n.mutex.Unlock()
	return &pb.AppendEntriesResponse{Term: request.Term, Success: true, MatchIndex: last}, nil
}

func (n *node) GetWorkflowState(_ context.Context, request *pb.GetWorkflowStateRequest) (
	*pb.GetWorkflowStateResponse, error) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if found := n.workflows[request.Namespace+"/"+request.Id]; found != nil {
		return found, nil
	}
	return nil, status.Errorf(codes.NotFound, "no workflow %s", request.Id)
}

func appendRequest(octets int) *pb.AppendEntriesRequest {
	return &pb.AppendEntriesRequest{Term: 3, Leader: "node-1", PrevLogIndex: 41, PrevLogTerm: 3,
		LeaderCommit: 40,
		Entries:      []*pb.Entry{{Index: 42, Term: 3, Data: make([]byte, octets)}}}
}

// cases make of a client a function that makes one call.
var cases = map[string]func(pb.NodeClient) func() error{
	"join": func(c pb.NodeClient) func() error {
		request := &pb.JoinRequest{Cluster: "bench", Member: makeMember(3)}
		return func() error { _, err := c.Join(background, request); return err }
	},
	"leave": func(c pb.NodeClient) func() error {
		request := &pb.LeaveRequest{Cluster: "bench", Name: "node-9"}
		return func() error { _, err := c.Leave(background, request); return err }
	},
	"vote": func(c pb.NodeClient) func() error {
		request := &pb.RequestVoteRequest{Term: 3, Candidate: "node-1", LastLogIndex: 41,
			LastLogTerm: 2}
		return func() error { _, err := c.RequestVote(background, request); return err }
	},
	"append-100": appendCase(100),
	"append-10k": appendCase(10240),
	"append-1m":  appendCase(1048576),
	"workflow": func(c pb.NodeClient) func() error {
		request := &pb.GetWorkflowStateRequest{Namespace: "default", Id: "order-1"}
		return func() error { _, err := c.GetWorkflowState(background, request); return err }
	},
}

func appendCase(octets int) func(pb.NodeClient) func() error {
	return func(c pb.NodeClient) func() error {
		request := appendRequest(octets)
		return func() error { _, err := c.AppendEntries(background, request); return err }
	}
}

var background = context.Background()

// A request is a line of standard input.
type request struct {
	Do           string `json:"do"`
	Address      string `json:"address"`
	Case         string `json:"case"`
	Callers      int    `json:"callers"`
	Calls        int    `json:"calls"`
	Milliseconds int    `json:"milliseconds"`
}

type answer map[string]any

var clients = map[string]pb.NodeClient{}

func client(address string) (pb.NodeClient, error) {
	if clients[address] == nil {
		conn, err := grpc.NewClient(address,
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, err
		}
		clients[address] = pb.NewNodeClient(conn)
	}
	return clients[address], nil
}

func serve() (answer, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer()
	pb.RegisterNodeServer(server, makeNode())
	go server.Serve(listener)
	return answer{"address": listener.Addr().String()}, nil
}

func counters() (answer, error) {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return answer{"octets": stats.TotalAlloc, "cpu_ns": usage.Utime.Nano() + usage.Stime.Nano()}, nil
}

func (r request) objects() (answer, error) {
	c, err := client(r.Address)
	if err != nil {
		return nil, err
	}
	once := cases[r.Case](c)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range r.Calls {
		if err := once(); err != nil {
			return nil, err
		}
	}
	runtime.ReadMemStats(&after)
	return answer{"objects": float64(after.Mallocs-before.Mallocs) / float64(r.Calls)}, nil
}

func (r request) measure() (answer, error) {
	c, err := client(r.Address)
	if err != nil {
		return nil, err
	}
	latencies, errs := make([][]time.Duration, r.Callers), make([]error, r.Callers)
	begin := time.Now()
	end := begin.Add(time.Duration(r.Milliseconds) * time.Millisecond)
	var group sync.WaitGroup
	for i := range r.Callers {
		group.Go(func() {
			once := cases[r.Case](c)
			for last := time.Now(); last.Before(end) && errs[i] == nil; {
				errs[i] = once()
				now := time.Now()
				latencies[i] = append(latencies[i], now.Sub(last))
				last = now
			}
		})
	}
	group.Wait()
	ns := time.Since(begin).Nanoseconds()
	var all []time.Duration
	for i, some := range latencies {
		if errs[i] != nil {
			return nil, errs[i]
		}
		all = append(all, some...)
	}
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	quantile := func(percent int) float64 {
		return float64(all[len(all)*percent/100].Nanoseconds()) / 1e3
	}
	return answer{"operations": len(all), "ns": float64(ns) / float64(len(all)),
		"p50": quantile(50), "p99": quantile(99)}, nil
}

func (r request) answer() (answer, error) {
	switch r.Do {
	case "serve":
		return serve()
	case "counters":
		return counters()
	case "objects":
		return r.objects()
	case "measure":
		return r.measure()
	}
	return nil, fmt.Errorf("what is %q?", r.Do)
}

func main() {
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var r request
		err := json.Unmarshal(lines.Bytes(), &r)
		var a answer
		if err == nil {
			a, err = r.answer()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		json.NewEncoder(os.Stdout).Encode(a)
	}
}
