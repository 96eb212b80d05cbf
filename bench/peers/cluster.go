// Command cluster is the side of Go in the part cluster of the benchmarks: bench/ours/cluster.lisp says what
// it answers. Built by bench/parts/cluster.py, which also generates the packages below pb.
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

	"clgrpc/peers/pb/bench"
	"clgrpc/peers/pb/cluster"
	"clgrpc/peers/pb/raft"
	"clgrpc/peers/pb/workflow"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// A node answers from tables in memory.
type node struct {
	bench.UnimplementedNodeServer
	mutex     sync.Mutex
	members   map[string]*cluster.Member
	workflows map[string]*workflow.GetWorkflowStateReply
	revision  int64
	lastIndex uint64
}

func makeWorkflow() *workflow.GetWorkflowStateReply {
	state := &workflow.WorkflowState{Id: "order-1", Type: "order",
		Status: workflow.WorkflowState_RUNNING, Version: 7, Current: 2,
		StartedUnixMs: 1763900000000, Fence: 4, Session: "worker-1"}
	for number := uint32(1); number <= 3; number++ {
		step := &workflow.StepState{Number: number, Status: workflow.StepState_DONE, Attempts: 1}
		if number == 3 {
			step.Status = workflow.StepState_CLAIMED
		}
		state.Steps = append(state.Steps, step)
	}
	return &workflow.GetWorkflowStateReply{Revision: 17, State: state}
}

func makeNode() *node {
	return &node{members: map[string]*cluster.Member{},
		workflows: map[string]*workflow.GetWorkflowStateReply{"order-1": makeWorkflow()}}
}

func (n *node) Join(_ context.Context, request *cluster.JoinRequest) (
	*cluster.JoinResponse, error) {
	member := &cluster.Member{Name: request.Name, Generation: 2, Address: request.Address,
		Instance: request.Instance, LeaseSeconds: request.LeaseSeconds,
		State: cluster.MemberState_MEMBER_STATE_SERVING}
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.members[member.Name] = member
	n.revision++
	return &cluster.JoinResponse{Member: member, Revision: n.revision}, nil
}

func (n *node) Leave(_ context.Context, request *cluster.LeaveRequest) (
	*cluster.LeaveResponse, error) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	_, left := n.members[request.Name]
	delete(n.members, request.Name)
	return &cluster.LeaveResponse{Left: left}, nil
}

func (n *node) RequestVote(_ context.Context, request *raft.RequestVoteRequest) (
	*raft.RequestVoteResponse, error) {
	return &raft.RequestVoteResponse{Term: request.Term, Granted: true}, nil
}

func (n *node) AppendEntries(_ context.Context, request *raft.AppendEntriesRequest) (
	*raft.AppendEntriesResponse, error) {
	last := request.PrevLogIndex
	n.mutex.Lock()
	for _, entry := range request.Entries {
		last = entry.Index
	}
	n.lastIndex = last
	n.mutex.Unlock()
	return &raft.AppendEntriesResponse{Term: request.Term, Success: true, MatchIndex: last}, nil
}

func (n *node) GetWorkflowState(_ context.Context, request *workflow.GetWorkflowStateRequest) (
	*workflow.GetWorkflowStateReply, error) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if found := n.workflows[request.Id]; found != nil {
		return found, nil
	}
	return nil, status.Errorf(codes.NotFound, "no workflow %s", request.Id)
}

func appendRequest(octets int) *raft.AppendEntriesRequest {
	return &raft.AppendEntriesRequest{Term: 3, Group: "orders", Sender: "node-1", Receiver: "node-2",
		PrevLogIndex: 41, PrevLogTerm: 3, LeaderCommit: 40,
		Entries: []*raft.Entry{{Index: 42, Term: 3, Data: make([]byte, octets)}}}
}

// cases make of a client a function that makes one call.
var cases = map[string]func(bench.NodeClient) func() error{
	"join": func(c bench.NodeClient) func() error {
		request := &cluster.JoinRequest{Name: "node-3", Address: "10.0.0.3:7000",
			LeaseSeconds: 10, Instance: "3f2504e0-4f89"}
		return func() error { _, err := c.Join(background, request); return err }
	},
	"leave": func(c bench.NodeClient) func() error {
		request := &cluster.LeaveRequest{Name: "node-9", Generation: 1}
		return func() error { _, err := c.Leave(background, request); return err }
	},
	"vote": func(c bench.NodeClient) func() error {
		request := &raft.RequestVoteRequest{Term: 3, Group: "orders", Sender: "node-1", Receiver: "node-2",
			LastLogIndex: 41, LastLogTerm: 2}
		return func() error { _, err := c.RequestVote(background, request); return err }
	},
	"append-100": appendCase(100),
	"append-10k": appendCase(10240),
	"append-1m":  appendCase(1048576),
	"workflow": func(c bench.NodeClient) func() error {
		request := &workflow.GetWorkflowStateRequest{Id: "order-1"}
		return func() error { _, err := c.GetWorkflowState(background, request); return err }
	},
}

func appendCase(octets int) func(bench.NodeClient) func() error {
	return func(c bench.NodeClient) func() error {
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

var clients = map[string]bench.NodeClient{}

func client(address string) (bench.NodeClient, error) {
	if clients[address] == nil {
		conn, err := grpc.NewClient(address,
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, err
		}
		clients[address] = bench.NewNodeClient(conn)
	}
	return clients[address], nil
}

func serve() (answer, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer()
	bench.RegisterNodeServer(server, makeNode())
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
