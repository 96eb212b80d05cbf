package main

import (
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// transportSecurity is how all clients of this process connect.
var transportSecurity = insecure.NewCredentials()

// tlsFlags are the options by which servers and clients speak TLS; they are called as those of
// clgrpc are.
type tlsFlags struct {
	certificate, key, roots, name *string
	highest                       *string
}

func newTLSFlags(set *flag.FlagSet, roots, about string) tlsFlags {
	return tlsFlags{
		certificate: set.String("tls-cert", "", "PEM file of the certificates to show"),
		key:         set.String("tls-key", "", "PEM file of their key"),
		roots:       set.String(roots, "", about),
		name:        set.String("tls-name", "", "name that the server's certificate must be for"),
		highest:     set.String("tls-highest", "1.3", "highest version of TLS, 1.2 or 1.3")}
}

func (f tlsFlags) config() (*tls.Config, error) {
	config := &tls.Config{ServerName: *f.name, MinVersion: tls.VersionTLS12,
		ClientSessionCache: tls.NewLRUClientSessionCache(0)}
	if *f.highest == "1.2" {
		config.MaxVersion = tls.VersionTLS12
	}
	if *f.certificate != "" {
		pair, err := tls.LoadX509KeyPair(*f.certificate, *f.key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	if *f.roots != "" {
		text, err := os.ReadFile(*f.roots)
		if err != nil {
			return nil, err
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("there is no certificate in %s", *f.roots)
		}
		config.RootCAs, config.ClientCAs = pool, pool
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return config, nil
}

// serverOptions are what a server with these flags is made with.
func (f tlsFlags) serverOptions() ([]grpc.ServerOption, error) {
	if *f.certificate == "" {
		return nil, nil
	}
	config, err := f.config()
	if err != nil {
		return nil, err
	}
	return []grpc.ServerOption{grpc.Creds(credentials.NewTLS(config))}, nil
}

// useForClients has all clients connect as the flags say.
func (f tlsFlags) useForClients() error {
	if *f.roots == "" {
		return nil
	}
	config, err := f.config()
	if err == nil {
		transportSecurity = credentials.NewTLS(config)
	}
	return err
}
