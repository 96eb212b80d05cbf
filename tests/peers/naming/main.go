// Command naming finds servers in etcd, and registers them there, with etcd's own package for it,
// so that what clgrpc says and understands is judged by somebody else's.
//
//	naming list ETCD NAME            print what is registered as NAME, a line of JSON for each
//	naming add ETCD NAME ADDR META   register ADDR with Metadata META, JSON, and say "added"
//	naming call ETCD NAME SECONDS    say hello by turns to the servers of etcd:///NAME, each 10 ms,
//	                                 for SECONDS or until SIGTERM; print who answers when that
//	                                 changes, and at the end "failed N"
//
// Every wait has a time limit; errors go to the standard error, with exit code 1.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/naming/endpoints"
	"go.etcd.io/etcd/client/v3/naming/resolver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	greeterpb "google.golang.org/grpc/examples/helloworld/helloworld"
)

const patience = 20 * time.Second

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: naming list|add|call ETCD NAME …")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(command, address, name string, arguments []string) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, DialTimeout: patience})
	if err != nil {
		return err
	}
	defer client.Close()
	manager, err := endpoints.NewManager(client, name)
	if err != nil {
		return err
	}
	context, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	switch command {
	case "list":
		return list(context, manager)
	case "add":
		return add(context, manager, name, arguments[0], arguments[1])
	case "call":
		return call(client, name, arguments[0])
	}
	return fmt.Errorf("no command %s", command)
}

func list(context context.Context, manager endpoints.Manager) error {
	found, err := manager.List(context)
	if err != nil {
		return err
	}
	keys := make([]string, 0, len(found))
	for key := range found {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	for _, key := range keys {
		line, err := json.Marshal([]any{key, found[key].Addr, found[key].Metadata})
		if err != nil {
			return err
		}
		fmt.Println(string(line))
	}
	return nil
}

func add(context context.Context, manager endpoints.Manager, name, address, meta string) error {
	var metadata any
	if err := json.Unmarshal([]byte(meta), &metadata); err != nil {
		return err
	}
	err := manager.AddEndpoint(context, name+"/"+address,
		endpoints.Endpoint{Addr: address, Metadata: metadata})
	if err == nil {
		fmt.Println("added")
	}
	return err
}

// call says who has answered the last ten calls, each time that this has changed.
func call(client *clientv3.Client, name, seconds string) error {
	limit, err := strconv.ParseFloat(seconds, 64)
	if err != nil {
		return err
	}
	builder, err := resolver.NewBuilder(client)
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("etcd:///"+name, grpc.WithResolvers(builder),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`))
	if err != nil {
		return err
	}
	defer conn.Close()
	greeter := greeterpb.NewGreeterClient(conn)
	last, failed := "", 0
	var answers []string
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	end := time.Now().Add(time.Duration(limit * float64(time.Second)))
	for time.Now().Before(end) && len(terminated) == 0 {
		context, cancel := context.WithTimeout(context.Background(), patience)
		reply, err := greeter.SayHello(context, &greeterpb.HelloRequest{}, grpc.WaitForReady(true))
		cancel()
		if err != nil {
			failed++
			fmt.Fprintln(os.Stderr, err)
			continue
		}
		answers = append(answers, reply.GetMessage())
		answers = answers[max(0, len(answers)-10):]
		if who := distinct(answers); who != last && len(answers) == 10 {
			fmt.Println(who)
			last = who
		}
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println("failed", failed)
	return nil
}

func distinct(texts []string) string {
	seen := map[string]bool{}
	var list []string
	for _, text := range texts {
		if !seen[text] {
			seen[text] = true
			list = append(list, text)
		}
	}
	sort.Strings(list)
	return strings.Join(list, " ")
}
