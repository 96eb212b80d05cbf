package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	greeterpb "google.golang.org/grpc/examples/helloworld/helloworld"
	"google.golang.org/protobuf/proto"
)

// The delayed-answer test: thousands of connections from one thread and one epoll descriptor, each
// with a request on its way that the server answers some seconds later. A dialect is what differs
// between plain TCP and gRPC: both know their octets beforehand, so that a connection is a few words
// here and what is measured is the server.
type dialect interface {
	// request returns what a connection sends to ask for the nth time, from 0.
	request(n int) []byte
	// read works through what one read of the connection brought, and returns the octets to send
	// back at once and whether the answer is whole now.
	read(c *crowdMember, octets []byte) (reply []byte, answered bool, err error)
}

// plainDialect asks with one line and is answered with one.
type plainDialect struct{}

func (plainDialect) request(int) []byte { return []byte("hello\n") }

func (plainDialect) read(_ *crowdMember, octets []byte) ([]byte, bool, error) {
	return nil, bytes.HasSuffix(octets, []byte("\n")), nil
}

// greeterDialect calls helloworld.Greeter as grpc-go does, header fields and their compression
// included, but with everything that a client says first in one segment.
type greeterDialect struct {
	encoder  *hpack.Encoder
	block    bytes.Buffer
	address  string
	message  []byte
	reply    int // octets of the answer, its length prefix included
	requests [][]byte
}

func newGreeterDialect(address string, delay time.Duration) (*greeterDialect, error) {
	name := fmt.Sprintf("delay:%d", delay.Milliseconds())
	message, err := proto.Marshal(&greeterpb.HelloRequest{Name: name})
	if err != nil {
		return nil, err
	}
	d := &greeterDialect{address: address,
		message: append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...),
		reply:   5 + proto.Size(&greeterpb.HelloReply{Message: "Hello, " + name + "!"})}
	d.encoder = hpack.NewEncoder(&d.block)
	return d, nil
}

// request: the encoder's table is the same for all connections that have asked as often.
func (d *greeterDialect) request(n int) []byte {
	for len(d.requests) <= n {
		var out bytes.Buffer
		framer := http2.NewFramer(&out, nil)
		if len(d.requests) == 0 {
			out.WriteString(http2.ClientPreface)
			framer.WriteSettings()
		}
		d.block.Reset()
		for _, field := range [][2]string{{":method", "POST"}, {":scheme", "http"},
			{":path", "/helloworld.Greeter/SayHello"}, {":authority", d.address},
			{"content-type", "application/grpc"}, {"user-agent", "grpc-go/1.85.0"},
			{"te", "trailers"}} {
			d.encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
		}
		id := uint32(1 + 2*len(d.requests))
		framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id,
			BlockFragment: d.block.Bytes(), EndHeaders: true})
		framer.WriteData(id, true, d.message)
		d.requests = append(d.requests, out.Bytes())
	}
	return d.requests[n]
}

var settingsAck = []byte{0, 0, 0, byte(http2.FrameSettings), byte(http2.FlagSettingsAck), 0, 0, 0, 0}

func (d *greeterDialect) read(c *crowdMember, octets []byte) (reply []byte, answered bool, err error) {
	if len(c.rest) > 0 {
		octets = append(c.rest, octets...)
	}
	for len(octets) >= 9 {
		length := int(octets[0])<<16 | int(octets[1])<<8 | int(octets[2])
		if len(octets) < 9+length {
			break
		}
		kind, flags, payload := http2.FrameType(octets[3]), http2.Flags(octets[4]), octets[9:9+length]
		switch kind {
		case http2.FrameSettings:
			if !flags.Has(http2.FlagSettingsAck) {
				reply = append(reply, settingsAck...)
			}
		case http2.FramePing:
			if !flags.Has(http2.FlagPingAck) {
				reply = append(reply, 0, 0, 8, byte(http2.FramePing), byte(http2.FlagPingAck), 0, 0, 0, 0)
				reply = append(reply, payload...)
			}
		case http2.FrameData:
			c.content += length
		case http2.FrameHeaders:
			if flags.Has(http2.FlagHeadersEndStream) {
				if c.content != d.reply {
					return nil, false, fmt.Errorf("an answer of %d octets, not %d: %q", c.content, d.reply, payload)
				}
				c.content, answered = 0, true
			}
		case http2.FrameRSTStream, http2.FrameGoAway:
			return nil, false, fmt.Errorf("%v %x", kind, payload)
		}
		octets = octets[9+length:]
	}
	c.rest = slices.Clone(octets)
	if len(octets) == 0 {
		c.rest = nil
	}
	return reply, answered, nil
}

// A crowdMember is one connection.
type crowdMember struct {
	descriptor int
	connected  bool
	waiting    bool // for an answer
	asked      int  // how often
	sent       time.Time
	content    int
	rest       []byte
}

// A crowd is all connections of this process.
type crowd struct {
	dialect dialect
	server  syscall.SockaddrInet4
	sources [][4]byte
	delay   time.Duration
	epoll   int
	members []*crowdMember
	byFD    map[int]*crowdMember
	area    []byte
	waiting int
	// of the asking under way
	opening    int
	slowest    time.Duration // connection to be opened
	lateness   []time.Duration
	begin      time.Time // of the first request, or connection
	first      time.Time // answer
	last       time.Time
	lost       int
	complaints map[string]int
}

const bindAddressNoPort = 24 // IP_BIND_ADDRESS_NO_PORT: the port is chosen for the pair of addresses

// open begins to connect one more.
func (c *crowd) open() error {
	descriptor, err := syscall.Socket(syscall.AF_INET,
		syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	syscall.SetsockoptInt(descriptor, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
	syscall.SetsockoptInt(descriptor, syscall.IPPROTO_IP, bindAddressNoPort, 1)
	if len(c.sources) > 0 {
		from := &syscall.SockaddrInet4{Addr: c.sources[len(c.members)%len(c.sources)]}
		if err := syscall.Bind(descriptor, from); err != nil {
			return err
		}
	}
	member := &crowdMember{descriptor: descriptor, sent: time.Now()}
	if err := syscall.Connect(descriptor, &c.server); err != nil && err != syscall.EINPROGRESS {
		return err
	}
	const edge = 1 << 31 // EPOLLET, which syscall has as a negative number
	event := syscall.EpollEvent{Fd: int32(descriptor),
		Events: syscall.EPOLLIN | syscall.EPOLLOUT | syscall.EPOLLRDHUP | edge}
	if err := syscall.EpollCtl(c.epoll, syscall.EPOLL_CTL_ADD, descriptor, &event); err != nil {
		return err
	}
	c.members = append(c.members, member)
	c.byFD[descriptor] = member
	c.opening++
	return nil
}

// ask sends the next request of a member.
func (c *crowd) ask(m *crowdMember) {
	octets := c.dialect.request(m.asked)
	m.asked++
	m.waiting, m.sent = true, time.Now()
	c.waiting++
	c.write(m, octets)
}

// write: the octets are few, and what does not fit the socket's buffer at once never will.
func (c *crowd) write(m *crowdMember, octets []byte) {
	if n, err := syscall.Write(m.descriptor, octets); err != nil || n < len(octets) {
		c.lose(m, fmt.Errorf("write: %d octets, %w", n, err))
	}
}

// lose gives a connection up.
func (c *crowd) lose(m *crowdMember, reason error) {
	if m.descriptor < 0 {
		return
	}
	syscall.Close(m.descriptor)
	delete(c.byFD, m.descriptor)
	if !m.connected {
		c.opening--
	}
	if m.waiting {
		c.waiting--
	}
	m.descriptor, m.waiting = -1, false
	c.lost++
	c.complaints[reason.Error()]++
}

// note works through what epoll says of one connection.
func (c *crowd) note(m *crowdMember, events uint32) {
	if !m.connected {
		if code, err := syscall.GetsockoptInt(m.descriptor, syscall.SOL_SOCKET, syscall.SO_ERROR); err != nil || code != 0 {
			c.lose(m, fmt.Errorf("connect: %w", syscall.Errno(code)))
			return
		}
		if events&syscall.EPOLLOUT == 0 {
			return
		}
		m.connected = true
		c.opening--
		c.slowest = max(c.slowest, time.Since(m.sent))
		c.ask(m)
	}
	for m.descriptor >= 0 {
		n, err := syscall.Read(m.descriptor, c.area)
		if errors.Is(err, syscall.EAGAIN) {
			return
		} else if err != nil {
			c.lose(m, fmt.Errorf("read: %w", err))
			return
		} else if n == 0 {
			c.lose(m, errors.New("closed by the server"))
			return
		}
		reply, answered, err := c.dialect.read(m, c.area[:n])
		if err != nil {
			c.lose(m, err)
			return
		}
		if len(reply) > 0 {
			c.write(m, reply)
		}
		if answered && m.waiting {
			m.waiting = false
			c.waiting--
			c.last = time.Now()
			if len(c.lateness) == 0 {
				c.first = c.last
			}
			c.lateness = append(c.lateness, c.last.Sub(m.sent)-c.delay)
		}
		if n < len(c.area) {
			return
		}
	}
}

// turn waits for events, milliseconds at most, and works through them.
func (c *crowd) turn(events []syscall.EpollEvent, milliseconds int) {
	n, _ := syscall.EpollWait(c.epoll, events, milliseconds)
	for _, event := range events[:max(0, n)] {
		if member := c.byFD[int(event.Fd)]; member != nil {
			c.note(member, event.Events)
		}
	}
}

// round has all connections ask, new ones until there are count of them as soon as they are
// connected, says "asked" once they have, and waits for the answers.
func (c *crowd) round(count int, again bool) (map[string]any, error) {
	c.lateness, c.slowest, c.lost, c.complaints = c.lateness[:0], 0, 0, map[string]int{}
	events := make([]syscall.EpollEvent, 1024)
	begin := time.Now()
	c.begin = begin
	if again {
		for i, member := range c.members {
			if member.descriptor >= 0 {
				c.ask(member)
			}
			if i%64 == 63 {
				c.turn(events, 0)
			}
		}
	}
	for len(c.members) < count {
		if err := c.open(); err != nil {
			return nil, fmt.Errorf("connection %d: %w", len(c.members), err)
		}
		if len(c.members)%64 == 0 {
			c.turn(events, 0)
		}
	}
	end := begin.Add(c.delay + time.Minute)
	for c.opening > 0 && time.Now().Before(end) {
		c.turn(events, 100)
	}
	asked := time.Since(begin)
	fmt.Println("asked")
	for c.waiting > 0 && time.Now().Before(end) {
		c.turn(events, 100)
	}
	return c.figures(asked), nil
}

func (c *crowd) figures(asked time.Duration) map[string]any {
	held := 0
	for _, member := range c.members {
		if member.descriptor >= 0 {
			held++
		}
	}
	figures := map[string]any{"held": held, "lost": c.lost + c.waiting + c.opening,
		"answers": len(c.lateness), "asked_seconds": asked.Seconds(),
		"slowest_connect_ms": milliseconds(c.slowest), "complaints": c.complaints}
	if len(c.lateness) > 0 {
		slices.Sort(c.lateness)
		at := func(share float64) float64 {
			return milliseconds(c.lateness[min(len(c.lateness)-1, int(share*float64(len(c.lateness))))])
		}
		figures["late_p50_ms"], figures["late_p99_ms"] = at(0.5), at(0.99)
		figures["late_max_ms"] = at(1)
		figures["answering_seconds"] = c.last.Sub(c.first).Seconds()
		figures["last_answer_seconds"] = c.last.Sub(c.begin).Seconds()
	}
	return figures
}

func milliseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

// runConnections is the load of the delayed-answer test. For each line of standard input, `open N`
// (connect until there are N, each of which asks at once) or `ask` (all ask again), it prints "asked"
// when all have asked and a line of JSON when all have been answered. Connections stay until the end.
func runConnections(arguments []string) int {
	set := flag.NewFlagSet("connections", flag.ExitOnError)
	kind := set.String("kind", "grpc", "grpc or plain")
	delay := set.Duration("delay", 5*time.Second, "what the server waits before it answers")
	sources := set.String("sources", "", "addresses to connect from, with commas between")
	set.Parse(arguments)
	if set.NArg() != 1 || (*kind != "grpc" && *kind != "plain") {
		usage()
		return 2
	}
	address, err := netip.ParseAddrPort(set.Arg(0))
	if err != nil {
		return complain(err)
	}
	c := &crowd{delay: *delay, byFD: map[int]*crowdMember{}, area: make([]byte, 65536),
		server: syscall.SockaddrInet4{Port: int(address.Port()), Addr: address.Addr().As4()}}
	for _, source := range strings.FieldsFunc(*sources, func(r rune) bool { return r == ',' }) {
		from, err := netip.ParseAddr(source)
		if err != nil {
			return complain(err)
		}
		c.sources = append(c.sources, from.As4())
	}
	if *kind == "plain" {
		c.dialect = plainDialect{}
	} else if c.dialect, err = newGreeterDialect(set.Arg(0), *delay); err != nil {
		return complain(err)
	}
	if c.epoll, err = syscall.EpollCreate1(syscall.EPOLL_CLOEXEC); err != nil {
		return complain(err)
	}
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var figures map[string]any
		count := 0
		if _, scanned := fmt.Sscanf(lines.Text(), "open %d", &count); scanned == nil {
			figures, err = c.round(count, false)
		} else {
			figures, err = c.round(0, true)
		}
		if err != nil {
			return complain(err)
		}
		json.NewEncoder(os.Stdout).Encode(figures)
	}
	return 0
}

// An idleCrowd is connections that have made one call each and then stay, over TLS or not. Goroutines
// open them and end; what comes later stays in the kernel's buffer.
type idleCrowd struct {
	address  string
	security *tls.Config // nil: none
	dialect  *greeterDialect
	members  []*idleMember
}

// An idleMember is one connection, with what its calls have left of a read.
type idleMember struct {
	connection net.Conn
	state      crowdMember
}

const idlePatience = 20 * time.Second // for one call

// open connects once more and makes the first call.
func (c *idleCrowd) open() (*idleMember, error) {
	connection, err := net.Dial("tcp", c.address)
	if err != nil {
		return nil, err
	}
	if c.security != nil {
		connection = tls.Client(connection, c.security)
	}
	m := &idleMember{connection: connection}
	return m, c.call(m)
}

// call makes the next call of a connection and returns when it is answered. Its request has been made
// before, since several goroutines read the list of requests.
func (c *idleCrowd) call(m *idleMember) error {
	m.connection.SetDeadline(time.Now().Add(idlePatience))
	if _, err := m.connection.Write(c.dialect.requests[m.state.asked]); err != nil {
		return err
	}
	m.state.asked++
	for area := make([]byte, 4096); ; {
		n, err := m.connection.Read(area)
		if err != nil {
			return err
		}
		reply, answered, err := c.dialect.read(&m.state, area[:n])
		if err != nil {
			return err
		}
		if len(reply) > 0 {
			if _, err := m.connection.Write(reply); err != nil {
				return err
			}
		}
		if answered {
			return nil
		}
	}
}

// someAtOnce calls act with the numbers from 0 below count, by several goroutines, and returns the
// first error when all have ended. A goroutine ends with its first error.
func someAtOnce(count int, act func(int) error) error {
	const atOnce = 16
	results := make(chan error, atOnce)
	for first := range atOnce {
		go func() {
			var err error
			for i := first; i < count && err == nil; i += atOnce {
				err = act(i)
			}
			results <- err
		}()
	}
	var first error
	for range atOnce {
		if err := <-results; first == nil {
			first = err
		}
	}
	return first
}

// openUntil opens connections until there are count.
func (c *idleCrowd) openUntil(count int) error {
	opened := make([]*idleMember, max(0, count-len(c.members)))
	err := someAtOnce(len(opened), func(i int) (err error) {
		opened[i], err = c.open()
		return err
	})
	if err == nil {
		c.members = append(c.members, opened...)
	}
	return err
}

// runIdle holds idle connections. For each line of standard input, `open N` (open connections until
// there are N) or `ask` (all make their second call), it prints a line of JSON once all calls have been
// answered. It fails if a connection does.
func runIdle(arguments []string) int {
	set := flag.NewFlagSet("idle", flag.ExitOnError)
	flags := newTLSFlags(set, "tls-ca", "PEM file of what the server's certificate is verified with; without it there is no TLS")
	set.Parse(arguments)
	if set.NArg() != 1 {
		usage()
		return 2
	}
	dialect, err := newGreeterDialect(set.Arg(0), 0)
	if err != nil {
		return complain(err)
	}
	dialect.request(1)
	crowd := &idleCrowd{address: set.Arg(0), dialect: dialect}
	if *flags.roots != "" {
		if crowd.security, err = flags.config(); err != nil {
			return complain(err)
		}
		// each handshake is a whole one
		crowd.security.ServerName, crowd.security.ClientSessionCache = "localhost", nil
		crowd.security.NextProtos = []string{"h2"}
	}
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		count := 0
		begin := time.Now()
		if _, scanned := fmt.Sscanf(lines.Text(), "open %d", &count); scanned == nil {
			err = crowd.openUntil(count)
		} else {
			err = someAtOnce(len(crowd.members), func(i int) error { return crowd.call(crowd.members[i]) })
		}
		if err != nil {
			return complain(err)
		}
		json.NewEncoder(os.Stdout).Encode(map[string]any{"held": len(crowd.members),
			"seconds": time.Since(begin).Seconds()})
	}
	return 0
}

// serveDelayed is the plain TCP server of the delayed-answer test as Go has it: a goroutine for each
// connection, which sleeps.
func serveDelayed(arguments []string) int {
	set := flag.NewFlagSet("delayed-server", flag.ExitOnError)
	listen := set.String("listen", "127.0.0.1:0", "address to listen on; port 0 picks one")
	delay := set.Duration("delay", 5*time.Second, "how long to wait before an answer")
	set.Parse(arguments)
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return complain(err)
	}
	go collectAtEachLine()
	fmt.Printf("listening on %s\n", listener.Addr())
	for {
		connection, err := listener.Accept()
		if err != nil {
			return complain(err)
		}
		go func() {
			defer connection.Close()
			for area := make([]byte, 512); ; {
				if _, err := connection.Read(area); err != nil {
					return
				}
				time.Sleep(*delay)
				if _, err := connection.Write([]byte("later\n")); err != nil {
					return
				}
			}
		}()
	}
}
