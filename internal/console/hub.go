package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/answer"
	"orrery.dev/orrery/internal/proxy"
)

// longestBody is the maximum size of a request to the hub, 8 MiB. The hub itself accepts 3 MB for
// an object.
const longestBody = 8 << 20

// passedOn are the headers of the browser's request that are sent to the hub. passedBack are the
// headers of the hub's answer that are sent to the browser. All others are dropped. They could
// change the identity of the user, or affect more than the answer, as cookies, redirects and access
// for other origins do.
var (
	passedOn = []string{
		"Accept", "Accept-Encoding", "Accept-Language", "Content-Type", "If-Match", "If-Modified-Since", "If-None-Match",
		"Connection", "Upgrade", "Sec-Websocket-Extensions", "Sec-Websocket-Key", "Sec-Websocket-Protocol", "Sec-Websocket-Version",
	}
	passedBack = []string{
		"Allow", "Audit-Id", "Content-Encoding", "Content-Length", "Content-Type", "Date", "Etag", "Last-Modified", "Retry-After", "Vary", "Warning",
		"Connection", "Upgrade", "Sec-Websocket-Accept", "Sec-Websocket-Extensions", "Sec-Websocket-Protocol",
		fleetv1alpha1.ProxiedHeader,
	}
)

var (
	errRedirect    = errors.New("the answer is a redirect, which is not followed")
	errCredentials = errors.New("the credentials of the hub itself are not accepted there: its log, or the conditions of the Cluster, say why")
)

// passage has the transports for requests to the hub's API server, with the credentials of the hub
// itself.
type passage struct {
	base *url.URL
	// requests may share HTTP/2 connections. Upgrades need one HTTP/1.1 connection each.
	requests, upgrades http.RoundTripper
}

// newPassage returns the passage for a configuration with the right to impersonate users. An error
// means that the configuration is invalid.
func newPassage(hub *rest.Config) (*passage, error) {
	config := rest.CopyConfig(hub)
	config.DisableCompression = true // content passes unchanged
	config.UserAgent = "orrery-console"
	p := &passage{}
	var err error
	if p.base, _, err = rest.DefaultServerUrlFor(config); err != nil {
		return nil, fmt.Errorf("read the URL of the hub: %w", err)
	}
	if p.requests, err = rest.TransportFor(config); err != nil {
		return nil, fmt.Errorf("create a transport to the hub: %w", err)
	}
	config.NextProtos = []string{"http/1.1"}
	if p.upgrades, err = rest.TransportFor(config); err != nil {
		return nil, fmt.Errorf("create a transport to the hub: %w", err)
	}
	return p, nil
}

// serveHub forwards a request to the hub's API server, as the user of the session s. path is the
// escaped path there and begins with a slash. The request, also a stream, is canceled when the
// session ends or the user loses the right to it. Before it forwards anything, serveHub returns an
// error that the caller must answer. It answers all later failures itself.
func (c *Console) serveHub(w http.ResponseWriter, r *http.Request, s *Session, path string) error {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		return methodNotAllowed(r)
	}
	plain, err := url.PathUnescape(path)
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("path %q: %v", path, err))
	}
	if proxy.HasDots(plain) {
		return apierrors.NewBadRequest(fmt.Sprintf("path %q: segments . and .. are refused: they could lead out of the hub's API", path))
	}
	through, upgrade := c.passage.requests, r.Header.Get("Upgrade")
	if upgrade != "" {
		if !strings.EqualFold(upgrade, "websocket") {
			return apierrors.NewBadRequest(fmt.Sprintf("upgrade to %q: the console passes WebSockets on, and nothing else", upgrade))
		}
		through = c.passage.upgrades
	}
	leave, err := s.enter()
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })() //nolint:contextcheck // the session ends it, too
	cut := &cutWriter{ResponseWriter: w, over: ctx, patience: c.writeTime}
	defer func() {
		cut.done()
		// The metric also counts canceled requests.
		requests.WithLabelValues(r.Method, strconv.Itoa(cut.code)).Inc()
	}()
	r = r.WithContext(ctx)
	go c.watchRights(ctx, s, r, plain, cancel)
	if r.Body != nil && r.Body != http.NoBody && upgrade == "" {
		r.Body = newBoundedBody(w, r.Body, longestBody, c.bodyTime)
	}
	who := s.User()
	as := transport.ImpersonationConfig{UserName: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(), Extra: who.GetExtra()}
	(&httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL.Path, pr.Out.URL.RawPath = plain, path
			pr.Out.URL.RawQuery = pr.In.URL.RawQuery // unchanged
			pr.SetURL(c.passage.base)
			keep(pr.Out.Header, passedOn)
			if upgrade != "" {
				// API servers require the header Origin for WebSockets, with any value.
				pr.Out.Header["Origin"] = pr.In.Header["Origin"]
			}
			pr.Out.Trailer = nil
			proxy.DropTokens(pr.Out.Header) // only the session determines the user
			pr.Out.Header.Set(fleetv1alpha1.ConsoleHeader, "true")
			pr.SetXForwarded()
		},
		Transport:     proxy.Confine(transport.NewImpersonatingRoundTripper(as, through)),
		FlushInterval: -1, // flush at once, for watches and logs
		ModifyResponse: func(resp *http.Response) error {
			switch {
			case resp.StatusCode == http.StatusUnauthorized:
				return errCredentials
			case resp.StatusCode/100 == 3 && resp.StatusCode != http.StatusNotModified:
				return errRedirect
			}
			keep(resp.Header, passedBack)
			if resp.Header.Get("ETag") != "" {
				w.Header().Set("Cache-Control", "private, no-cache")
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			inert(w.Header())
			answer.Error(w, r, c.failed(ctx, err))
		},
	}).ServeHTTP(cut, r)
	return nil
}

// failed returns the answer to the browser for an error of the proxy to the hub. ctx is the context
// of the request. If its cause is the end of the session, the answer is Unauthorized, and if it is
// the loss of a right, Forbidden. No other answer is 401, because the page then shows the login.
func (c *Console) failed(ctx context.Context, err error) error {
	var large *http.MaxBytesError
	cause := context.Cause(ctx)
	switch {
	case errors.As(err, &large):
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the console takes at most %d bytes", large.Limit))
	// 401 would tell the page that its session is over.
	case errors.Is(err, errRedirect), errors.Is(err, errCredentials):
		return apierrors.NewGenericServerResponse(http.StatusBadGateway, "", schema.GroupResource{}, "", err.Error(), 0, true)
	case errors.Is(cause, errRights):
		return foreign(cause.Error())
	case cause != nil && !errors.Is(cause, context.Canceled):
		return apierrors.NewUnauthorized(cause.Error())
	}
	c.log.V(1).Info("The hub did not answer a request of the console", "cause", err.Error())
	return apierrors.NewServiceUnavailable("the hub's API server does not answer now: try again in a moment")
}

// keep deletes all headers of h except names, which are in canonical form.
func keep(h http.Header, names []string) {
	for name := range h {
		if !slices.Contains(names, name) {
			delete(h, name)
		}
	}
}

// boundedBody is the body of a request with a maximum size and a deadline for reading it.
type boundedBody struct {
	io.ReadCloser

	deadline *http.ResponseController
}

// newBoundedBody returns body limited to most bytes: reading more gives an *http.MaxBytesError. It
// also sets the read deadline of the connection to within from now. The end of the body removes
// that deadline.
func newBoundedBody(w http.ResponseWriter, body io.ReadCloser, most int64, within time.Duration) io.ReadCloser {
	b := &boundedBody{http.MaxBytesReader(w, body, most), http.NewResponseController(w)}
	// Every connection of the hub's listener supports a deadline.
	_ = b.deadline.SetReadDeadline(time.Now().Add(within))
	return b
}

// Read implements io.Reader. At the end of the body it removes the read deadline of the connection.
func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		_ = b.deadline.SetReadDeadline(time.Time{}) // the answer may take longer
	}
	return n, err
}
