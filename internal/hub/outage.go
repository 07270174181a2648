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
	// probeInterval is the time between two checks of the hub's API server while it does not answer.
	probeInterval = 100 * time.Millisecond
	// probeTimeout limits one check of the hub's API server.
	probeTimeout = time.Second
	// sendAttempts is how often a request is sent in all, if it fails each time because the API server
	// does not answer.
	sendAttempts = 5
	// fillPause is the time between two attempts to watch a type whose watch cache the API
	// server is filling, and fillAttempts limits their number. The API server begins to fill the
	// cache at the first request for a custom resource after its start, and needs some
	// milliseconds. It asks clients to retry after a second (KEP 4568), which would delay every
	// start of a hub.
	fillPause    = 50 * time.Millisecond
	fillAttempts = 20
)

// errHubStopped is the error of requests that wait for the API server when the hub stops.
var errHubStopped = errors.New("the hub has stopped")

// outage delays requests while the hub's API server does not answer, and releases them when it is
// ready. If clients got errors instead, they would back off, informers up to half a minute, and
// continue to wait long after the API server is back. Several goroutines may use it.
type outage struct {
	ctx    context.Context //nolint:containedctx // the hub's lifetime
	config *rest.Config
	log    logr.Logger

	mu   sync.Mutex
	over chan struct{} // closed when the API server answers again; nil if it answers now
}

// wrap returns a transport that waits during an outage of the API server and repeats requests. It
// is a transport.WrapperFunc.
func (o *outage) wrap(rt http.RoundTripper) http.RoundTripper { return &patient{outage: o, next: rt} }

// patient is the transport for requests to the hub's API server. It sends a request when the API
// server answers. It sends a request that fails because of an outage again, up to sendAttempts
// times in all. It does that only if the request just reads or was never sent, and if its body can
// be read again. It also repeats a watch while the API server fills the watch cache of the type.
type patient struct {
	outage *outage
	next   http.RoundTripper
}

// WrappedRoundTripper lets client-go find the transport.
func (p *patient) WrappedRoundTripper() http.RoundTripper { return p.next }

// RoundTrip implements http.RoundTripper. It waits while the API server does not answer, and sends
// the request again after an outage if that is safe; see patient.
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
			// The rest of the body is read so that the connection can be reused.
			_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<16))
			_ = resp.Body.Close()
		}
		req = next
	}
}

// wait returns at once if no outage is known. Otherwise it blocks until the API server answers. It
// returns an error if ctx ends or the hub stops first.
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

// isFilling reports whether resp is the answer to a watch whose watch cache the API server has not
// filled yet (status 429). It reads the start of the body and puts it back, so that the caller can
// still read the whole body.
func isFilling(req *http.Request, resp *http.Response) bool {
	if resp.StatusCode != http.StatusTooManyRequests || req.URL.Query().Get("watch") == "" {
		return false
	}
	// After a read error, said is incomplete, and does not have the text.
	said, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<12))
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(said), resp.Body), resp.Body}
	// The text is that of ready.checkAndReadGeneration in k8s.io/apiserver/pkg/storage/cacher.
	return bytes.Contains(said, []byte("storage is (re)initializing"))
}

// pause waits for d. It returns false if ctx or the hub ended before.
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

// again reports whether a request failed because of an outage and may be sent again: it only reads,
// or it was never sent. resp and err are its result. After a failure, again checks the API server.
// If the API server does not answer, it begins an outage, also if the result is false.
func (o *outage) again(req *http.Request, resp *http.Response, err error) bool {
	if req.Context().Err() != nil || o.ctx.Err() != nil {
		return false
	}
	reads := req.Method == http.MethodGet || req.Method == http.MethodHead
	switch {
	case err == nil && resp.StatusCode < http.StatusInternalServerError, isUntrusted(err):
		return false
	case o.ready(): //nolint:contextcheck // the outage outlives the request
		// The connection broke, or only this request failed.
		return err != nil && reads
	}
	o.begin() //nolint:contextcheck // the outage outlives the request
	return reads || err != nil && isUnsent(err)
}

// isUnsent reports whether err means that no connection could be opened, so that the request was
// not sent.
func isUnsent(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// isUntrusted reports whether err means that the certificate of the server was not accepted.
func isUntrusted(err error) bool {
	_, ok := errors.AsType[*tls.CertificateVerificationError](err)
	return ok
}

// begin begins an outage: wait then blocks until the API server answers. A goroutine checks the API
// server until it answers or the hub stops. During an outage, begin does nothing.
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

// ready requests /readyz of the API server on a new connection, since open connections may hang,
// for at most probeTimeout. It returns false if there is no answer, or a status of 500 or more. It
// returns true for other answers, for example that the credentials are refused, and if the
// certificate is not trusted. A request must get these errors instead of waiting.
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
	_ = resp.Body.Close() // only the status matters
	return resp.StatusCode < http.StatusInternalServerError
}
