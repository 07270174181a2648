// Package proxytest has a server that tries to reach the client of a proxy with more than the
// content of its answers, and the check that a proxy stops that.
package proxytest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"orrery.dev/orrery/internal/testenv"
)

// evil is a text in every header value that must not reach a client. Check looks for it.
const evil = "evil"

// headers are the headers, as NAME: VALUE, with which a Server tries to affect more than its
// answer. Proxies must remove them. Each value contains evil.
var headers = []string{
	"Set-Cookie: __Host-orrery-session=evil; Secure; Path=/", "WWW-Authenticate: Basic realm=evil", "Proxy-Authenticate: Basic realm=evil",
	"Clear-Site-Data: \"evil\"", "Strict-Transport-Security: max-age=evil", "Alt-Svc: h3=\"evil\"", "Service-Worker-Allowed: /evil",
}

// Server is a hostile HTTP server for tests of a proxy in front of it. Each of its answers has
// headers, trailers and early hints that must not reach a client. Check is the test.
type Server struct {
	// release ends the wait in the middle of the answer to .../stream.
	release chan struct{}
}

// NewServer returns a Server, which the test serves behind its proxy.
func NewServer() *Server { return &Server{release: make(chan struct{})} }

// ServeHTTP implements http.Handler. The last segment of the path chooses the answer. upgrade
// switches to a protocol that echoes; stream sends its second line after Check has received the
// first; a number is the status code. Every other segment gets 200.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, last, _ := strings.Cut(r.URL.Path[strings.LastIndex(r.URL.Path, "/"):], "/")
	if last == "upgrade" {
		upgrade(w, r)
		return
	}
	set := func() {
		for _, h := range headers {
			name, value, _ := strings.Cut(h, ": ")
			w.Header().Set(name, value)
		}
	}
	set()
	w.Header().Set("Link", "</evil>; rel=preload")
	w.WriteHeader(http.StatusEarlyHints)
	w.Header().Del("Link")
	set()
	w.Header().Set("Trailer", "Set-Cookie, X-Announced")
	w.Header().Set("Content-Type", "application/json")
	code := http.StatusOK
	_, _ = fmt.Sscanf(last, "%d", &code)
	w.WriteHeader(code)
	if last == "stream" {
		_, _ = io.WriteString(w, "first\n")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-s.release:
		case <-r.Context().Done():
			return
		}
	}
	_, _ = io.WriteString(w, "the end\n")
	w.Header().Set("Set-Cookie", "a=evil")
	w.Header().Set("X-Announced", evil)
	w.Header().Set(http.TrailerPrefix+"X-Unannounced", evil)
}

// upgrade sends early hints and the answer 101 with hostile headers. Then it sends back all bytes
// that it receives. It panics if the connection cannot be hijacked.
func upgrade(w http.ResponseWriter, r *http.Request) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close() //nolint:errcheck // the test is over
	text := strings.Join(headers, "\r\n")
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 103 Early Hints\r\nLink: </evil>; rel=preload\r\n%s\r\n\r\n", text)
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n%s\r\n\r\n", r.Header.Get("Upgrade"), text)
	_, _ = io.Copy(conn, buffered)
}

// Proxy describes to Check how a client reaches a Server through the proxy that is tested, and what
// that proxy does with some answers.
type Proxy struct {
	// Dial opens a connection to the proxy, with TLS if the proxy expects it. It must not return nil.
	Dial func() net.Conn
	// Path is the path at the proxy that leads to the Server. Headers are header lines, NAME: VALUE,
	// that Check adds to each request.
	Path    string
	Headers []string
	// Hides401 is true if the proxy answers 502 when the server answers 401. NoUpgrades is true if the
	// proxy forwards no upgrades; Check then does not try them.
	Hides401, NoUpgrades bool
}

// Check sends requests to s through the proxy p, in subtests. A subtest fails if hostile headers,
// trailers or early hints arrive, or if the content does not. Check reads the bytes of the
// connection, because HTTP clients hide some of them. Only one Check may use s at a time.
func Check(t *testing.T, s *Server, p Proxy) {
	t.Helper()
	ask := func(t *testing.T, path string, more ...string) (net.Conn, *bufio.Reader) {
		t.Helper()
		c := p.Dial()
		t.Cleanup(func() { _ = c.Close() })
		if err := c.SetDeadline(time.Now().Add(testenv.Patience)); err != nil {
			t.Fatal(err)
		}
		lines := append([]string{"GET " + p.Path + path + " HTTP/1.1", "Host: hub", "TE: trailers"}, append(p.Headers, more...)...)
		if _, err := io.WriteString(c, strings.Join(lines, "\r\n")+"\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		return c, bufio.NewReader(c)
	}
	judge := func(t *testing.T, text, want string) {
		t.Helper()
		if lower := strings.ToLower(text); strings.Contains(lower, evil) || strings.Contains(lower, "early hints") || strings.Contains(lower, "trailer:") {
			t.Errorf("more than the content passes:\n%s", text)
		}
		if !strings.Contains(text, want) {
			t.Errorf("want %q in:\n%s", want, text)
		}
	}
	for _, code := range []string{"200", "401", "404"} {
		t.Run(code, func(t *testing.T) {
			_, r := ask(t, "/"+code, "Connection: close")
			text, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			want := "the end\n"
			if code == "401" && p.Hides401 {
				want = "HTTP/1.1 502"
			}
			judge(t, string(text), want)
		})
	}
	t.Run("Stream", func(t *testing.T) {
		_, r := ask(t, "/stream", "Connection: close")
		var begin strings.Builder
		for !strings.HasSuffix(begin.String(), "first\n") {
			line, err := r.ReadString('\n')
			if begin.WriteString(line); err != nil {
				t.Fatalf("%v, after:\n%s", err, begin.String())
			}
		}
		s.release <- struct{}{} // the beginning arrived before the end was sent
		rest, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		judge(t, begin.String()+string(rest), "the end\n")
	})
	if p.NoUpgrades {
		return
	}
	t.Run("Upgrade", func(t *testing.T) {
		c, r := ask(t, "/upgrade", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: x3JJHMbDL1EzLkh9GBhXDw==")
		var begin strings.Builder
		for !strings.HasSuffix(begin.String(), "\r\n\r\n") {
			line, err := r.ReadString('\n')
			if begin.WriteString(line); err != nil {
				t.Fatalf("%v, after:\n%s", err, begin.String())
			}
		}
		judge(t, begin.String(), "HTTP/1.1 101 ")
		for _, said := range []string{"ping\n", "\x00\x80 pong\n"} {
			if _, err := io.WriteString(c, said); err != nil {
				t.Fatal(err)
			}
			if heard, err := r.ReadString('\n'); err != nil || heard != said {
				t.Fatalf("%q, %v; want %q", heard, err, said)
			}
		}
	})
}
