// Package listener is the hub's public listener, for clients other than those of its API: agents of
// clusters, and browsers. It handles routes, certificates and limits, and knows nothing about the
// content.
//
// It always serves TLS: HTTP/1.1, which WebSockets need, and HTTP/2, because browsers open at most
// six HTTP/1.1 connections and need more streams. A load balancer in front may end TLS and start a
// new TLS connection.
package listener

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"orrery.dev/orrery/internal/slots"
)

// Limits. Handlers limit hijacked connections, such as WebSockets, themselves.
const (
	headerTimeout  = 10 * time.Second // for TLS and the header
	idleTimeout    = time.Minute
	streams        = 100 // per HTTP/2 connection
	headerBytes    = 16 << 10
	maxConnections = 1024 // connections without an owner; see Claim
	maxClaimed     = 4096 // claimed connections of all owners
	maxClaimedBy   = 128  // claimed connections of one owner
	stopTimeout    = 3 * time.Second
)

// Serving is the address and the certificate of the hub. New uses them where the Options of the
// listener name no others. All fields are required, except that CAFile may be "": clients then
// trust the certificate with the authorities of their system.
type Serving struct {
	// Address, host:port.
	Address string
	// CertFile and KeyFile may be the same file. They are replaced before the certificate expires.
	CertFile, KeyFile string
	// CAFile has the authority of the certificate, in PEM.
	CAFile string
}

// Listener serves the routes that Handle has registered, over TLS. It also answers at /healthz, and
// with status 404 at paths without a route.
type Listener struct {
	url         string
	address     string
	caFile      string
	certificate *certificate
	mux         *http.ServeMux
	log         logr.Logger
	slots       *slots.Pool
	claims      claims
	headers     time.Duration // limit for TLS and the header of a request
}

// New returns a listener that does not listen yet. Handle adds routes, and then Run or Serve serves
// them. s has the address, and the certificate if o names none. It is an error if o is invalid, or
// if the files of the certificate or its authorities are not usable.
func New(o Options, s Serving, log logr.Logger) (*Listener, error) {
	url, err := o.url(s.Address)
	if err != nil {
		return nil, err
	}
	l := &Listener{
		url: url, address: s.Address, caFile: s.CAFile, mux: http.NewServeMux(), log: log, headers: headerTimeout,
		slots:  slots.New(slots.Options{Limit: maxConnections, Closed: rejected.Inc, Log: log}),
		claims: claims{by: map[string]int{}},
	}
	if o.CertFile != "" {
		s.CertFile, s.KeyFile, l.caFile = o.CertFile, o.KeyFile, ""
	}
	if o.CAFile != "" {
		l.caFile = o.CAFile
	}
	if _, err := l.Authorities(); err != nil {
		return nil, err
	}
	if l.certificate, err = newCertificate(s.CertFile, s.KeyFile, log); err != nil {
		if o.CertFile != "" {
			err = fmt.Errorf("--public-tls-cert-file, --public-tls-key-file: %w", err)
		}
		return nil, err
	}
	l.mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "ok\n") // the client may be gone
	})
	l.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, fmt.Sprintf("the public listener of an Orrery hub serves nothing at %.200q; the hub's API is elsewhere", r.URL.Path), http.StatusNotFound)
	})
	return l, nil
}

// Handle registers a handler for a pattern of http.ServeMux, and counts its requests in the
// metrics. It must be called before Run. It panics if the pattern conflicts with an earlier one.
func (l *Listener) Handle(pattern string, handler http.Handler) {
	l.mux.Handle(pattern, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		busy := func() bool { return l.slots.Len() > maxConnections/2 && !claimed(r.Context()) } //nolint:contextcheck // it is the request's
		s := &status{ResponseWriter: w, code: http.StatusOK, last: busy}
		defer func() { requests.WithLabelValues(pattern, strconv.Itoa(s.code)).Inc() }()
		handler.ServeHTTP(s, r)
	}))
}

// URL returns the URL by which clients reach the listener, without a slash at its end. It is "" if
// no URL was given and the listener has an unspecified address, such as 0.0.0.0.
func (l *Listener) URL() string { return l.url }

// Authorities returns the authorities of the listener's certificate in PEM, which agents are to
// trust. nil means those of the system. It reads their file at each call.
func (l *Listener) Authorities() ([]byte, error) {
	if l.caFile == "" {
		return nil, nil
	}
	return readAuthorities(l.caFile)
}

// Run listens at the address of the Serving given to New, and serves there until ctx ends, with
// Serve.
func (l *Listener) Run(ctx context.Context) error {
	tcp, err := (&net.ListenConfig{}).Listen(ctx, "tcp", l.address)
	if err != nil {
		return fmt.Errorf("--public-address: listen on %s: %w", l.address, err)
	}
	return l.Serve(ctx, tcp)
}

// Serve serves connections that tcp accepts until ctx ends, and closes tcp. After the end of ctx it
// waits up to stopTimeout for requests, closes the other connections, and returns nil. Hijacked
// connections stay open. Any other end is an error.
func (l *Listener) Serve(ctx context.Context, tcp net.Listener) error {
	server := &http.Server{
		Handler: l.mux, ReadHeaderTimeout: l.headers, IdleTimeout: idleTimeout, MaxHeaderBytes: headerBytes,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: l.certificate.get},
		Protocols: new(http.Protocols), ConnState: l.track, ConnContext: withConn,
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: streams},
		ErrorLog: stdlog.New(quiet{l.log}, "", 0),
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(true)
	looking, looked := context.WithCancel(ctx)
	defer looked()
	go l.certificate.run(looking)
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if server.Shutdown(late) != nil {
			_ = server.Close() // connections that take too long are cut off
		}
	})
	err := server.ServeTLS(&bounded{Listener: tcp, slots: l.slots, claims: &l.claims}, "", "")
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve on %s: %w", l.address, err)
}

// status is the response writer of a request. It records the status code for the metrics. It
// supports everything that the wrapped writer supports.
type status struct {
	http.ResponseWriter

	code  int
	last  func() bool // reports whether to close the connection after the answer
	begun bool        // the header was written
}

// WriteHeader implements http.ResponseWriter. If more than half of the slots are in use and this
// connection is unclaimed, it also makes the server close this connection after the answer.
func (s *status) WriteHeader(code int) {
	s.code = code
	if !s.begun && code >= http.StatusOK {
		s.begun = true
		if s.last() {
			s.Header().Set("Connection", "close")
		}
	}
	s.ResponseWriter.WriteHeader(code)
}

// Write implements io.Writer. The first call writes the header with status 200 if no header was
// written.
func (s *status) Write(p []byte) (int, error) {
	if !s.begun {
		s.WriteHeader(http.StatusOK)
	}
	return s.ResponseWriter.Write(p) //nolint:wrapcheck // callers expect these errors
}

// Unwrap returns the wrapped writer, for http.ResponseController.
func (s *status) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// Hijack implements http.Hijacker. The metrics then count the request with status 101.
func (s *status) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(s.ResponseWriter).Hijack()
	if err == nil {
		s.code = http.StatusSwitchingProtocols
	}
	return conn, buffered, err //nolint:wrapcheck // callers expect these errors
}

// quiet is the error log of the HTTP server. It logs at a low level, because any client can cause
// errors of its connection.
type quiet struct{ log logr.Logger }

// Write implements io.Writer. It logs p as one message.
func (q quiet) Write(p []byte) (int, error) {
	q.log.V(1).Info(strings.TrimSpace(string(p)))
	return len(p), nil
}
