package main

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
)

// store is the provider's storage: that of its example, but for tokens, service clients and the
// policy of exchanges.
//
//   - A client's own token and one from an exchange are good for five minutes, or for four seconds with
//     the scope "brief".
//   - They are for the audience "shop" besides what was asked for.
//   - A subject `guest` may not be exchanged, and the audience `forbidden` is no target.
//   - The tokens of another issuer, of the type JWT, are those signed with a key of -subjects for
//     the audience "sts".
type store struct {
	*storage.Storage
	foreign []any // the public keys of the other issuer

	lock   sync.Mutex
	tokens map[string]issued
}

type issued struct {
	subject, client, actor string
	audience, scopes       []string
	end                    time.Time
}

var secrets = map[string]string{"sid1": "verysecret", "m&e é": "s&=% +é"} // of service clients

func newStore(issuer, subjects string) (*store, error) {
	text, err := os.ReadFile(subjects)
	if err != nil {
		return nil, err
	}
	keys := []any{}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	storage.RegisterClients(storage.WebClient("web", "web's secret"), storage.WebClient("shop", "shop's secret"))
	return &store{Storage: storage.NewStorage(storage.NewUserStore(issuer)), foreign: keys, tokens: map[string]issued{}}, nil
}

func (s *store) issue(client, actor string, request op.TokenRequest) (string, time.Time) {
	life := 5 * time.Minute
	if slices.Contains(request.GetScopes(), "brief") {
		life = 4 * time.Second
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	id := fmt.Sprintf("token-%d", len(s.tokens))
	end := time.Now().Add(life)
	s.tokens[id] = issued{request.GetSubject(), client, actor, append([]string{"shop"}, request.GetAudience()...),
		request.GetScopes(), end}
	return id, end
}

func (s *store) CreateAccessToken(_ context.Context, request op.TokenRequest) (string, time.Time, error) {
	client, actor := request.GetSubject(), ""
	if exchange, ok := request.(op.TokenExchangeRequest); ok {
		client, actor = exchange.GetClientID(), exchange.GetExchangeActor()
		for _, resource := range exchange.GetResourses() {
			actor += " at " + resource
		}
	}
	id, end := s.issue(client, actor, request)
	return id, end, nil
}

func (s *store) SetIntrospectionFromToken(_ context.Context, said *oidc.IntrospectionResponse, id, _, client string) error {
	s.lock.Lock()
	token, ok := s.tokens[id]
	s.lock.Unlock()
	if !ok || time.Now().After(token.end) || !slices.Contains(token.audience, client) {
		return errors.New("not for you")
	}
	said.Subject, said.ClientID, said.Audience, said.Scope = token.subject, token.client, token.audience, token.scopes
	if token.actor != "" {
		said.Actor = &oidc.ActorClaims{Subject: token.actor}
	}
	return nil
}

// Clients by themselves

type serviceClient struct{ op.Client }

func (serviceClient) GrantTypes() []oidc.GrantType {
	return []oidc.GrantType{oidc.GrantTypeClientCredentials}
}

func (s *store) ClientCredentials(ctx context.Context, id, secret string) (op.Client, error) {
	if known, ok := secrets[id]; !ok || known != secret {
		return nil, errors.New("who is that")
	}
	client, err := s.GetClientByClientID(ctx, "web")
	return serviceClient{client}, err
}

func (s *store) ClientCredentialsTokenRequest(_ context.Context, id string, scopes []string) (op.TokenRequest, error) {
	return &oidc.JWTTokenRequest{Subject: id, Scopes: scopes}, nil
}

// Exchanges

func (s *store) ValidateTokenExchangeRequest(_ context.Context, request op.TokenExchangeRequest) error {
	if request.GetRequestedTokenType() == "" {
		request.SetRequestedTokenType(oidc.AccessTokenType)
	}
	if request.GetExchangeSubject() == "guest" {
		return oidc.ErrAccessDenied().WithDescription("guests stay guests")
	}
	if slices.Contains(request.GetAudience(), "forbidden") {
		return oidc.ErrInvalidTarget().WithDescription("not there")
	}
	return nil
}

func (s *store) verify(token string, kind oidc.TokenType) (string, string, map[string]any, error) {
	if kind != oidc.JWTTokenType {
		return "", "", nil, errors.New("no JWT")
	}
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.RS256, jose.ES256})
	if err != nil {
		return "", "", nil, err
	}
	var claims jwt.Claims
	err = errors.New("no key")
	for _, key := range s.foreign {
		if err = parsed.Claims(key, &claims); err == nil {
			break
		}
	}
	if err != nil {
		return "", "", nil, err
	}
	if err := claims.ValidateWithLeeway(jwt.Expected{Issuer: "elsewhere", AnyAudience: jwt.Audience{"sts"},
		Time: time.Now()}, 0); err != nil {
		return "", "", nil, err
	}
	return token, claims.Subject, nil, nil
}

func (s *store) VerifyExchangeSubjectToken(_ context.Context, token string, kind oidc.TokenType) (string, string, map[string]any, error) {
	return s.verify(token, kind)
}

func (s *store) VerifyExchangeActorToken(_ context.Context, token string, kind oidc.TokenType) (string, string, map[string]any, error) {
	return s.verify(token, kind)
}

// signedIn is what a user's tokens are made of that he has got some other way.
type signedIn struct{ subject string }

func (signedIn) GetAMR() []string       { return nil }
func (signedIn) GetAudience() []string  { return []string{"web"} }
func (signedIn) GetAuthTime() time.Time { return time.Now() }
func (signedIn) GetClientID() string    { return "web" }
func (signedIn) GetScopes() []string    { return []string{oidc.ScopeOpenID} }
func (s signedIn) GetSubject() string   { return s.subject }

// writeTokens writes an access token of id1 and of guest, and an ID token of id1.
func (s *store) writeTokens(ctx context.Context, provider *op.Provider, folder string) error {
	client, err := s.GetClientByClientID(ctx, "web")
	if err != nil {
		return err
	}
	write := func(name, token string, err error) error {
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(folder, name), []byte(strings.TrimSpace(token)+"\n"), 0o600)
	}
	for _, subject := range []string{"id1", "guest"} {
		token, _, _, err := op.CreateAccessToken(ctx, signedIn{subject}, client.AccessTokenType(), provider, client, "")
		if err := write("access-"+subject, token, err); err != nil {
			return err
		}
	}
	token, err := op.CreateIDToken(ctx, op.IssuerFromContext(ctx), signedIn{"id1"}, time.Hour, "", "", s, client)
	return write("id-id1", token, err)
}
