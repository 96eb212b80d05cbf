package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

var caught atomic.Int64 // requests that followed a redirection

const good = `{"access_token":"good","token_type":"Bearer","expires_in":300}`

// texts are answers of 200 with a body.
var texts = map[string]string{
	"good":           good,
	"not-json":       "<html>sign in</html>",
	"empty":          "",
	"array":          "[" + good + "]",
	"string":         `"good"`,
	"null":           "null",
	"cut":            good[:20],
	"more":           good + good,
	"nul":            "\x00" + good,
	"mark":           "\ufeff" + good,
	"not-utf8":       "{\"access_token\":\"\xff\xfe\",\"token_type\":\"Bearer\"}",
	"deep":           strings.Repeat(`{"access_token":`, 10000),
	"no-token":       `{"token_type":"Bearer","expires_in":300}`,
	"number":         `{"access_token":5,"token_type":"Bearer"}`,
	"no-text":        `{"access_token":"","token_type":"Bearer"}`,
	"lines":          `{"access_token":"a\r\nx-admin: yes","token_type":"Bearer"}`,
	"not-ascii":      `{"access_token":"gööd","token_type":"Bearer"}`,
	"long":           `{"access_token":"` + strings.Repeat("a", 100000) + `","token_type":"Bearer"}`,
	"no-type":        `{"access_token":"good"}`,
	"mac":            `{"access_token":"good","token_type":"mac"}`,
	"dpop":           `{"access_token":"good","token_type":"DPoP"}`,
	"type-number":    `{"access_token":"good","token_type":7}`,
	"expired":        `{"access_token":"good","token_type":"Bearer","expires_in":0}`,
	"negative":       `{"access_token":"good","token_type":"Bearer","expires_in":-5}`,
	"endless-life":   `{"access_token":"good","token_type":"Bearer","expires_in":1e300}`,
	"life-text":      `{"access_token":"good","token_type":"Bearer","expires_in":"tomorrow"}`,
	"life-null":      `{"access_token":"good","token_type":"Bearer","expires_in":null}`,
	"error-with-200": `{"error":"invalid_grant","error_description":"no"}`,
}

func serveHostile(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	if text, found := texts[name]; found {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, text)
		return
	}
	switch name {
	case "trap": // where redirections lead
		caught.Add(1)
		fmt.Fprint(w, good)
	case "301", "302", "303", "307", "308":
		http.Redirect(w, r, "/hostile/trap", int(name[0]-'0')*100+int(name[1]-'0')*10+int(name[2]-'0'))
	case "204":
		w.WriteHeader(http.StatusNoContent)
	case "401-basic":
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		http.Error(w, "no", http.StatusUnauthorized)
	case "429":
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
	case "500":
		http.Error(w, "stack trace", http.StatusInternalServerError)
	case "503":
		w.WriteHeader(http.StatusServiceUnavailable)
	case "error-bomb": // what an answer says of an error goes to the log
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `{"error":"invalid_grant","error_description":"\u001b[2J%s"}`, strings.Repeat("x", 500000))
	case "gzip": // nobody has asked for that
		var zipped bytes.Buffer
		writer := gzip.NewWriter(&zipped)
		fmt.Fprint(writer, good)
		writer.Close()
		w.Header().Set("Content-Encoding", "gzip")
		w.Write(zipped.Bytes())
	case "hints": // good, after interim answers
		for range 5 {
			w.Header().Set("Link", "</x>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
		}
		fmt.Fprint(w, good)
	case "trailers": // good, in chunks with trailers
		w.Header().Set("Trailer", "X-Late")
		for _, octet := range []byte(good) {
			w.Write([]byte{octet})
			w.(http.Flusher).Flush()
		}
		w.Header().Set("X-Late", "yes")
	case "endless":
		for block := bytes.Repeat([]byte(" "), 65536); ; {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	case "slow": // an octet each quarter of a second
		w.Header().Set("Content-Length", fmt.Sprint(len(good)))
		for _, octet := range []byte(good) {
			if _, err := w.Write([]byte{octet}); err != nil {
				return
			}
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-time.After(250 * time.Millisecond):
			}
		}
	case "silent":
		<-r.Context().Done()
	default:
		serveRaw(name, w)
	}
}

// raw are answers that net/http would not write; * is repeated until the client has gone.
var raw = map[string][2]string{
	"reset":             {"", ""},
	"no-http":           {"SSH-2.0-OpenSSH_9.2\r\n", ""},
	"http2":             {"\x00\x00\x00\x04\x00\x00\x00\x00\x00", ""},
	"two-lengths":       {"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 60\r\n\r\n" + good, ""},
	"bad-length":        {"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n" + good, ""},
	"huge-length":       {"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n" + good, ""},
	"cut-body":          {"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n" + good, ""},
	"bad-chunk":         {"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n" + good, ""},
	"length-and-chunks": {"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", ""},
	"long-line":         {"HTTP/1.1 200 ", "x"},
	"endless-fields":    {"HTTP/1.1 200 OK\r\n", "x: y\r\n"},
	"endless-hints":     {"", "HTTP/1.1 103 Early Hints\r\n\r\n"},
	"endless-chunks":    {"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "1\r\n \r\n"},
	"endless-trailer":   {"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", "x: y\r\n"},
	"upgrade":           {"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n", ""},
	"two-answers":       {fmt.Sprintf("HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%sHTTP/1.1 500 No\r\n\r\n", len(good), good), ""},
}

func serveRaw(name string, w http.ResponseWriter) {
	parts, found := raw[name]
	connection, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer connection.Close()
	if !found {
		fmt.Fprintf(connection, "HTTP/1.1 404 no %s\r\n\r\n", name)
		return
	}
	if name == "reset" {
		if tcp, ok := connection.(*net.TCPConn); ok {
			tcp.SetLinger(0)
		}
		return
	}
	fmt.Fprint(connection, parts[0])
	for again := strings.Repeat(parts[1], 1000); again != ""; {
		if _, err := fmt.Fprint(connection, again); err != nil {
			return
		}
	}
}
