// Package listener is where the hub is reached from outside by what is no client of its API: agents of clusters that dial in, and browsers. It
// knows routes, certificates and bounds, and nothing of what it serves.
//
// It always serves TLS: HTTP/1.1, of which WebSockets are made, and HTTP/2, for browsers open no more than six connections of the former, and have more
// streams. A balancer in front may end TLS and make it anew.
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
)

// Bounds. What is hijacked, such as a WebSocket, is for its handler to bound.
const (
	headerTimeout  = 10 * time.Second // TLS and the header
	idleTimeout    = time.Minute
	streams        = 100 // of a connection of HTTP/2
	headerBytes    = 16 << 10
	maxConnections = 1024 // that are nobody's yet
	maxClaimed     = 4096 // that are somebody's
	maxClaimedBy   = 128  // of one of them
	stopTimeout    = 3 * time.Second
)

// Serving is with what the hub serves unless Options say otherwise.
type Serving struct {
	// Address, host:port.
	Address string
	// CertFile and KeyFile may be one file. They are replaced before the certificate ends.
	CertFile, KeyFile string
	// CAFile has the authority of that certificate.
	CAFile string
}

// Listener serves routes.
type Listener struct {
	url         string
	address     string
	caFile      string
	certificate *certificate
	mux         *http.ServeMux
	log         logr.Logger
	pending     chan struct{}
	claims      claims
	headers     time.Duration // how long TLS and the header of a request may take
}

// New returns a listener that does not listen yet. It fails if there is no usable certificate.
func New(o Options, s Serving, log logr.Logger) (*Listener, error) {
	url, err := o.url(s.Address)
	if err != nil {
		return nil, err
	}
	l := &Listener{
		url: url, address: s.Address, caFile: s.CAFile, mux: http.NewServeMux(), log: log, headers: headerTimeout,
		pending: make(chan struct{}, maxConnections), claims: claims{by: map[string]int{}},
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
		_, _ = io.WriteString(w, "ok\n") // it may have gone
	})
	l.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, fmt.Sprintf("the public listener of an Orrery hub serves nothing at %.200q; the hub's API is elsewhere", r.URL.Path), http.StatusNotFound)
	})
	return l, nil
}

// Handle serves what a pattern of http.ServeMux matches. It is called before Run.
func (l *Listener) Handle(pattern string, handler http.Handler) {
	l.mux.Handle(pattern, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		crowded := func() bool { return len(l.pending) > maxConnections/2 && !claimed(r.Context()) } //nolint:contextcheck // it is the request's
		s := &status{ResponseWriter: w, code: http.StatusOK, last: crowded}
		defer func() { requests.WithLabelValues(pattern, strconv.Itoa(s.code)).Inc() }()
		handler.ServeHTTP(s, r)
	}))
}

// URL by which others reach the listener; empty if that is not known.
func (l *Listener) URL() string { return l.url }

// Authorities are those of the certificate that others see, in PEM; none if the system's know it.
func (l *Listener) Authorities() ([]byte, error) {
	if l.caFile == "" {
		return nil, nil
	}
	return readAuthorities(l.caFile)
}

// Run serves until ctx ends.
func (l *Listener) Run(ctx context.Context) error {
	tcp, err := (&net.ListenConfig{}).Listen(ctx, "tcp", l.address)
	if err != nil {
		return fmt.Errorf("--public-address: listen on %s: %w", l.address, err)
	}
	return l.Serve(ctx, tcp)
}

// Serve serves what comes to a listener of TCP, until ctx ends.
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
			_ = server.Close() // those that take too long are cut off
		}
	})
	err := server.ServeTLS(&bounded{Listener: tcp, pending: l.pending, claims: &l.claims}, "", "")
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve on %s: %w", l.address, err)
}

// status remembers the status code, and hides nothing that the writer can do.
type status struct {
	http.ResponseWriter

	code  int
	last  func() bool // whether the connection is to be closed after the answer, for others need its place
	begun bool
}

// WriteHeader implements http.ResponseWriter.
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

// Write implements io.Writer.
func (s *status) Write(p []byte) (int, error) {
	if !s.begun {
		s.WriteHeader(http.StatusOK)
	}
	return s.ResponseWriter.Write(p) //nolint:wrapcheck // it is as if it were that
}

// Unwrap is for http.ResponseController.
func (s *status) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// Hijack implements http.Hijacker.
func (s *status) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(s.ResponseWriter).Hijack()
	if err == nil {
		s.code = http.StatusSwitchingProtocols
	}
	return conn, buffered, err //nolint:wrapcheck // it is as if it were that
}

// quiet logs what goes wrong with single connections where somebody looks for it: strangers cause it.
type quiet struct{ log logr.Logger }

// Write implements io.Writer.
func (q quiet) Write(p []byte) (int, error) {
	q.log.V(1).Info(strings.TrimSpace(string(p)))
	return len(p), nil
}
