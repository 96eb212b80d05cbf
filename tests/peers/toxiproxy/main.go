// Command toxiproxy is Shopify's proxy for connections that are cut, delayed or slow. Its API, HTTP
// and JSON, is on a free port of the loopback, which it prints.
package main

import (
	"fmt"
	"net"
	"os"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// the server takes an address, no listener
	address := listener.Addr().String()
	listener.Close()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()),
		zerolog.Nop())
	fmt.Println("listening on", address)
	if err := server.Listen(address); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
