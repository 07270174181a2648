package hub

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
)

const (
	// probeInterval is the time between two looks at an API server that does not answer.
	probeInterval = 100 * time.Millisecond
	// probeTimeout is how long it may take to answer one.
	probeTimeout = time.Second
	// sendAttempts is how often a request is sent that meets an outage each time.
	sendAttempts = 5
	// fillPause is the time between two attempts to watch a type whose watch cache the API server fills, and fillAttempts bounds them.
	// The API server begins that at the first request for a custom resource after its start, and is done within some milliseconds. It
	// asks clients to come back after a second (KEP 4568), for which every start of a hub would wait.
	fillPause    = 50 * time.Millisecond
	fillAttempts = 20
)

var errHubStopped = errors.New("the hub has stopped")

// outage holds requests back while the hub's API server does not answer, and lets them go
// as soon as it is ready. Clients that saw the errors instead would back off, informers up
// to half a minute, and go on waiting long after the API server is there again.
type outage struct {
	ctx    context.Context //nolint:containedctx // the hub's lifetime: who waits is let go when it ends
	config *rest.Config
	log    logr.Logger

	mu   sync.Mutex
	over chan struct{} // closed when the API server answers again; nil while it does
}

// wrap is a transport.WrapperFunc.
func (o *outage) wrap(rt http.RoundTripper) http.RoundTripper { return &patient{outage: o, next: rt} }

// patient sends requests when the API server answers.
type patient struct {
	outage *outage
	next   http.RoundTripper
}

// WrappedRoundTripper lets client-go find the transport.
func (p *patient) WrappedRoundTripper() http.RoundTripper { return p.next }

// RoundTrip implements http.RoundTripper.
func (p *patient) RoundTrip(req *http.Request) (*http.Response, error) {
	for attempt, fills := 1, 0; ; {
		if err := p.outage.wait(req.Context()); err != nil {
			if req.Body != nil {
				err = errors.Join(err, req.Body.Close())
			}
			return nil, err
		}
		resp, err := p.next.RoundTrip(req)
		switch {
		case err == nil && fills < fillAttempts && isFilling(req, resp):
			fills++
			if !p.outage.pause(req.Context(), fillPause) {
				return resp, nil
			}
		case p.outage.again(req, resp, err) && attempt < sendAttempts:
			attempt++
		default:
			return resp, err
		}
		next := req.Clone(req.Context())
		if req.Body != nil && req.Body != http.NoBody {
			if req.GetBody == nil {
				return resp, err
			}
			body, bodyErr := req.GetBody()
			if bodyErr != nil {
				return resp, errors.Join(err, bodyErr)
			}
			next.Body = body
		}
		if resp != nil {
			_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<16)) // so that the connection can be used again
			_ = resp.Body.Close()
		}
		req = next
	}
}

// wait returns when the API server is not known to be away.
func (o *outage) wait(ctx context.Context) error {
	o.mu.Lock()
	over := o.over
	o.mu.Unlock()
	if over == nil {
		return nil
	}
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait until the hub's API server answers: %w", ctx.Err())
	case <-o.ctx.Done():
		return errHubStopped
	}
}

// isFilling is true of an answer to a watch that the watch cache of the type is not filled yet. The answer can still be read.
func isFilling(req *http.Request, resp *http.Response) bool {
	if resp.StatusCode != http.StatusTooManyRequests || req.URL.Query().Get("watch") == "" {
		return false
	}
	said, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<12)) // what cannot be read is another answer
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(said), resp.Body), resp.Body}
	return bytes.Contains(said, []byte("storage is (re)initializing")) // k8s.io/apiserver/pkg/storage/cacher: ready.checkAndReadGeneration
}

// pause is true when the time has passed, and false when the request or the hub ended before.
func (o *outage) pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	case <-o.ctx.Done():
		return false
	}
}

// again is true for a request that met an outage and can be sent once more: it reads, or it has never left.
func (o *outage) again(req *http.Request, resp *http.Response, err error) bool {
	if req.Context().Err() != nil || o.ctx.Err() != nil {
		return false
	}
	reads := req.Method == http.MethodGet || req.Method == http.MethodHead
	switch {
	case err == nil && resp.StatusCode < http.StatusInternalServerError, isUntrusted(err):
		return false
	case o.ready(): //nolint:contextcheck // the outage outlives the request
		// A connection that broke, or an error of this one request.
		return err != nil && reads
	}
	o.begin() //nolint:contextcheck // the same
	return reads || err != nil && isUnsent(err)
}

// isUnsent is true for errors of connections that could not be made.
func isUnsent(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

func isUntrusted(err error) bool {
	_, ok := errors.AsType[*tls.CertificateVerificationError](err)
	return ok
}

// begin has the API server looked at until it answers.
func (o *outage) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over != nil {
		return
	}
	over := make(chan struct{})
	o.over = over
	began := time.Now()
	o.log.Info("The hub's API server does not answer; requests wait for it")
	go func() {
		tick := time.NewTicker(probeInterval)
		defer tick.Stop()
		for !o.ready() {
			select {
			case <-o.ctx.Done():
				return
			case <-tick.C:
			}
		}
		o.log.Info("The hub's API server answers again", "after", time.Since(began).Round(probeInterval).String())
		o.mu.Lock()
		defer o.mu.Unlock()
		o.over = nil
		close(over)
	}()
}

// ready asks the API server on a connection of its own: those that are open may hang. An answer that is neither yes nor no,
// such as that the credentials are refused, is one that requests must see.
func (o *outage) ready() bool {
	ctx, cancel := context.WithTimeout(o.ctx, probeTimeout)
	defer cancel()
	tlsConfig, err := rest.TLSConfigFor(o.config)
	if err != nil {
		return true
	}
	t := &http.Transport{TLSClientConfig: tlsConfig, Proxy: o.config.Proxy, DisableKeepAlives: true}
	defer t.CloseIdleConnections()
	rt, err := rest.HTTPWrappersForConfig(o.config, t)
	if err != nil {
		return true
	}
	base, _, err := rest.DefaultServerUrlFor(o.config)
	if err != nil {
		return true
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath("readyz").String(), nil)
	if err != nil {
		return true
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return isUntrusted(err)
	}
	_ = resp.Body.Close() // nothing of it is wanted
	return resp.StatusCode < http.StatusInternalServerError
}
