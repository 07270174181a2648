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

// evil is in every value that must not reach a client.
const evil = "evil"

// headers are those that a client applies to more than the answer.
var headers = []string{
	"Set-Cookie: __Host-orrery-session=evil; Secure; Path=/", "WWW-Authenticate: Basic realm=evil", "Proxy-Authenticate: Basic realm=evil",
	"Clear-Site-Data: \"evil\"", "Strict-Transport-Security: max-age=evil", "Alt-Svc: h3=\"evil\"", "Service-Worker-Allowed: /evil",
}

// Server is the server behind a proxy.
type Server struct {
	// release ends the stream that runs.
	release chan struct{}
}

// NewServer returns a Server.
func NewServer() *Server { return &Server{release: make(chan struct{})} }

// ServeHTTP implements http.Handler. The end of the path chooses the answer: .../upgrade,
// .../stream, or any status code.
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

// upgrade switches to a protocol that returns what it gets.
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

// Proxy is a proxy in front of a Server.
type Proxy struct {
	// Dial connects to it, with TLS if it needs that.
	Dial func() net.Conn
	// Path is the path that leads to the server. Headers are lines of each request.
	Path    string
	Headers []string
	// Hides401 is true if the proxy replaces answers with 401. NoUpgrades is true if it forwards no
	// upgrades.
	Hides401, NoUpgrades bool
}

// Check asks the server through the proxy, and fails if anything beside the content arrives. It
// reads the bytes of the connection, as clients drop some of them.
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
