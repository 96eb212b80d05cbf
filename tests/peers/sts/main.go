// Command sts is the other end of call credentials that are asked for over HTTP: a security token
// service (RFC 8693) and authorization server (RFC 6749), which is Zitadel's OpenID Provider, and a
// Greeter of grpc-go that knows the callers by that server's introspection (RFC 7662). So whether a
// token is good is judged by somebody else's code.
//
// It prints a line for each listener, "https on HOST:PORT", "greeter on HOST:PORT" and, in the end,
// "listening on HOST:PORT", and ends on SIGTERM or SIGINT. Under the same addresses are
//
//	/oauth/token     the service
//	/strict/NAME     an endpoint for one form of request, which is refused if it differs from what
//	                 Go's own clients send (strict.go)
//	/hostile/NAME    answers that nobody should send (hostile.go)
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/zitadel/oidc/v3/pkg/client/rs"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
	"golang.org/x/text/language"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	greeterpb "google.golang.org/grpc/examples/helloworld/helloworld"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

var requests atomic.Int64 // to /oauth/token

// greeter answers with what the service says of the caller's token. Asked by the name "requests" it
// answers with how many the service has had, and by "caught" with how many have followed a redirection.
type greeter struct {
	greeterpb.UnimplementedGreeterServer
	provider *op.Provider
	issuer   string
	service  rs.ResourceServer
}

func (g greeter) SayHello(ctx context.Context, in *greeterpb.HelloRequest) (*greeterpb.HelloReply, error) {
	switch in.Name {
	case "requests":
		return &greeterpb.HelloReply{Message: fmt.Sprint(requests.Load())}, nil
	case "caught":
		return &greeterpb.HelloReply{Message: fmt.Sprint(caught.Load())}, nil
	}
	incoming, _ := metadata.FromIncomingContext(ctx)
	values := incoming.Get("authorization")
	if len(values) != 1 {
		return nil, status.Errorf(codes.Unauthenticated, "%d times authorization", len(values))
	}
	token, found := strings.CutPrefix(values[0], "Bearer ")
	if !found {
		return nil, status.Error(codes.Unauthenticated, "no bearer's token")
	}
	said, err := rs.Introspect[*oidc.IntrospectionResponse](ctx, g.service, token)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if said.Active {
		actor := ""
		if said.Actor != nil {
			actor = said.Actor.Subject
		}
		return &greeterpb.HelloReply{Message: fmt.Sprintf("%s by %s for %s; scope %s; actor %s", said.Subject,
			said.ClientID, strings.Join(said.Audience, " "), strings.Join(said.Scope, " "), actor)}, nil
	}
	ctx = op.ContextWithIssuer(ctx, g.issuer)
	claims, err := op.VerifyIDTokenHint[*oidc.IDTokenClaims](ctx, token, g.provider.IDTokenHintVerifier(ctx))
	if err != nil {
		return nil, status.Error(codes.Unauthenticated, "the token is not active")
	}
	return &greeterpb.HelloReply{Message: "id token of " + claims.Subject}, nil
}

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address to listen on, for HTTP")
	certificate := flag.String("cert", "", "PEM file of the certificate, for HTTPS")
	key := flag.String("key", "", "PEM file of its key")
	subjects := flag.String("subjects", "", "PEM file of the public keys of another issuer")
	folder := flag.String("folder", "", "where tokens to exchange are written, a file for each")
	flag.Parse()
	if err := run(*listen, *certificate, *key, *subjects, *folder); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(address, certificate, key, subjects, folder string) error {
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	issuer := "http://" + listener.Addr().String() + "/"
	store, err := newStore(issuer, subjects)
	if err != nil {
		return err
	}
	provider, err := op.NewProvider(&op.Config{
		CryptoKey: sha256.Sum256([]byte(issuer)), CryptoKeyId: "1", AuthMethodPost: true,
		SupportedUILocales: []language.Tag{language.English},
	}, store, op.StaticIssuer(issuer), op.WithAllowInsecure())
	if err != nil {
		return err
	}
	if err := store.writeTokens(op.ContextWithIssuer(context.Background(), issuer), provider, folder); err != nil {
		return err
	}

	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/oauth/token" {
			requests.Add(1)
		}
		provider.ServeHTTP(w, r)
	})
	mux.HandleFunc("/strict/{name}", serveStrict)
	mux.HandleFunc("/hostile/{name}", serveHostile)
	server := &http.Server{Handler: mux, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	failed := make(chan error, 3)
	go func() { failed <- server.Serve(listener) }()

	secure, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() { failed <- server.ServeTLS(secure, certificate, key) }()
	fmt.Println("https on", secure.Addr())

	if err := recordRequests("http://" + listener.Addr().String()); err != nil {
		return err
	}
	service, err := rs.NewResourceServerClientCredentials(context.Background(), issuer, "shop", "shop's secret")
	if err != nil {
		return err
	}
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	calls := grpc.NewServer()
	greeterpb.RegisterGreeterServer(calls, greeter{provider: provider, issuer: issuer, service: service})
	go func() { failed <- calls.Serve(plain) }()
	fmt.Println("greeter on", plain.Addr())
	fmt.Println("listening on", listener.Addr())

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	select {
	case err := <-failed:
		return err
	case <-signals:
		return nil
	case <-time.After(time.Hour):
		return errors.New("an hour is enough")
	}
}
