package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sort"
	"strings"
	"sync"

	"github.com/zitadel/oidc/v3/pkg/client/tokenexchange"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
	"golang.org/x/oauth2/google/externalaccount"
)

// recorded has the first request that came to each name, made by Go's clients: those after it must
// have the same parameters and the same authorization.
var recorded = struct {
	sync.Mutex
	forms map[string]string
}{forms: map[string]string{}}

// serveStrict refuses what RFC 6749 (section 3.2, appendix B) and RFC 8693 (section 2.1) forbid, and what differs from the
// first request by the same name.
func serveStrict(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	form, err := strictForm(r)
	if err == nil {
		recorded.Lock()
		first, found := recorded.forms[r.PathValue("name")]
		if !found {
			recorded.forms[r.PathValue("name")] = form
		}
		recorded.Unlock()
		if found && first != form {
			err = fmt.Errorf("%s, not %s", form, first)
		}
	}
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		json.NewEncoder(w).Encode(map[string]string{"error": "invalid_request", "error_description": err.Error()})
		return
	}
	json.NewEncoder(w).Encode(map[string]any{"access_token": "strict", "token_type": "Bearer", "expires_in": 300,
		"issued_token_type": oidc.AccessTokenType})
}

// strictForm returns the parameters and the authorization of a request in one form.
func strictForm(r *http.Request) (string, error) {
	switch {
	case r.Method != http.MethodPost:
		return "", errors.New("no POST")
	case r.URL.RawQuery != "":
		return "", errors.New("a query")
	case r.Header.Get("Content-Type") != "application/x-www-form-urlencoded":
		return "", errors.New("content type " + r.Header.Get("Content-Type"))
	case r.ContentLength < 0:
		return "", errors.New("no length")
	case len(r.Header.Values("Authorization")) > 1:
		return "", errors.New("two authorizations")
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return "", err
	}
	for _, octet := range body {
		if octet <= ' ' || octet > '~' {
			return "", fmt.Errorf("octet %d is not encoded", octet)
		}
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return "", err
	}
	lines := []string{}
	for name, values := range form {
		if len(values) != 1 {
			return "", errors.New(name + " more than once")
		}
		if values[0] == "" {
			continue // as if it were not there
		}
		lines = append(lines, name+"="+values[0])
	}
	for _, token := range []string{"subject", "actor"} {
		if form.Has(token+"_token") != form.Has(token+"_token_type") {
			return "", errors.New(token + "_token and its type go together")
		}
	}
	if resource := form.Get("resource"); resource != "" {
		if target, err := url.Parse(resource); err != nil || !target.IsAbs() || target.Fragment != "" {
			return "", errors.New("resource is no absolute URI")
		}
	}
	sort.Strings(lines)
	if id, secret, found := r.BasicAuth(); found {
		// both are form-encoded first, where a blank has two forms
		id, err1 := url.QueryUnescape(id)
		secret, err2 := url.QueryUnescape(secret)
		if err := errors.Join(err1, err2); err != nil {
			return "", err
		}
		lines = append(lines, fmt.Sprintf("Basic %q %q", id, secret))
	} else {
		lines = append(lines, r.Header.Get("Authorization"))
	}
	return strings.Join(lines, "\n"), nil
}

type subject string

func (s subject) SubjectToken(context.Context, externalaccount.SupplierOptions) (string, error) {
	return string(s), nil
}

// recordRequests makes Go's clients send the requests that ours are compared with.
func recordRequests(base string) error {
	ctx := context.Background()
	for name, style := range map[string]oauth2.AuthStyle{"client": oauth2.AuthStyleInHeader,
		"client-in-body": oauth2.AuthStyleInParams} {
		config := clientcredentials.Config{ClientID: "m:e é", ClientSecret: "s&=% +é", TokenURL: base + "/strict/" + name,
			Scopes: []string{"read", "write"}, AuthStyle: style}
		if _, err := config.Token(ctx); err != nil {
			return err
		}
	}
	exchanger, err := tokenexchange.NewTokenExchangerClientCredentials(ctx, base, "m:e é", "s&=% +é",
		tokenexchange.WithStaticTokenEndpoint(base, base+"/strict/exchange"))
	if err != nil {
		return err
	}
	if _, err := tokenexchange.ExchangeToken(ctx, exchanger, "a.b-c_d~e+f/g=", oidc.JWTTokenType, "actor é", oidc.AccessTokenType,
		[]string{"https://shop.example/a?b=c&d"}, []string{"shop ä"}, []string{"read", "write"}, oidc.AccessTokenType); err != nil {
		return err
	}
	source, err := externalaccount.NewTokenSource(ctx, externalaccount.Config{Audience: "//iam.example/pools/1",
		SubjectTokenType: string(oidc.JWTTokenType), TokenURL: base + "/strict/external", Scopes: []string{"read"},
		SubjectTokenSupplier: subject("subject")})
	if err != nil {
		return err
	}
	_, err = source.Token()
	return err
}
