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

// longestBody is how large what a browser sends to the hub may be; the hub takes 3 MB for an object.
const longestBody = 8 << 20

// passedOn are the headers of a browser that the hub gets, and passedBack those of an answer that the browser gets. Every other could say
// who somebody is, or make of an answer more than data: a cookie, a redirect, leave for other origins.
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

// tokenProtocol begins a subprotocol in which API servers take a bearer token.
const tokenProtocol = "base64url.bearer.authorization.k8s.io." //nolint:gosec // it is a name

var (
	errRedirect    = errors.New("the answer is a redirect, which is not followed")
	errCredentials = errors.New("the credentials of the hub itself are not accepted there: its log, or the conditions of the Cluster, say why")
)

// passage is how requests get to the hub's API server.
type passage struct {
	base *url.URL
	// requests may share HTTP/2 connections; upgrades need one of HTTP/1.1 each.
	requests, upgrades http.RoundTripper
}

func newPassage(hub *rest.Config) (*passage, error) {
	config := rest.CopyConfig(hub)
	config.DisableCompression = true // bytes pass as they are
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

// serveHub passes a request on to a path, which is escaped, of the hub's API server, as the user of a session. What it opens ends with the session.
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
		requests.WithLabelValues(r.Method, strconv.Itoa(cut.code)).Inc() // of what was broken off, too
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
			pr.Out.URL.RawQuery = pr.In.URL.RawQuery // as the page wrote it
			pr.SetURL(c.passage.base)
			keep(pr.Out.Header, passedOn)
			if upgrade != "" {
				pr.Out.Header["Origin"] = pr.In.Header["Origin"] // API servers want one for a watch, whichever
			}
			pr.Out.Trailer = nil
			withoutTokens(pr.Out.Header)
			pr.Out.Header.Set(fleetv1alpha1.ConsoleHeader, "true")
			pr.SetXForwarded()
		},
		Transport:     transport.NewImpersonatingRoundTripper(as, through),
		FlushInterval: -1, // watches and logs
		ModifyResponse: func(resp *http.Response) error {
			switch {
			case resp.StatusCode == http.StatusUnauthorized:
				return errCredentials
			case resp.StatusCode/100 == 3 && resp.StatusCode != http.StatusNotModified:
				return errRedirect
			}
			keep(resp.Header, passedBack)
			inert(w.Header()) // informational answers have taken it away
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

// failed is what a browser is told of a request that the hub did not answer.
func (c *Console) failed(ctx context.Context, err error) error {
	var large *http.MaxBytesError
	cause := context.Cause(ctx)
	switch {
	case errors.As(err, &large):
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the console takes at most %d bytes", large.Limit))
	case errors.Is(err, errRedirect), errors.Is(err, errCredentials): // 401 would say that the session is over
		return apierrors.NewGenericServerResponse(http.StatusBadGateway, "", schema.GroupResource{}, "", err.Error(), 0, true)
	case errors.Is(cause, errRights):
		return foreign(cause.Error())
	case cause != nil && !errors.Is(cause, context.Canceled):
		return apierrors.NewUnauthorized(cause.Error())
	}
	c.log.V(1).Info("The hub did not answer a request of the console", "cause", err.Error())
	return apierrors.NewServiceUnavailable("the hub's API server does not answer now: try again in a moment")
}

// keep drops all headers but some.
func keep(h http.Header, names []string) {
	for name := range h {
		if !slices.Contains(names, name) {
			delete(h, name)
		}
	}
}

// withoutTokens takes bearer tokens out of the subprotocols of a WebSocket.
func withoutTokens(h http.Header) {
	var kept []string
	for _, values := range h["Sec-Websocket-Protocol"] {
		for protocol := range strings.SplitSeq(values, ",") {
			if protocol = strings.TrimSpace(protocol); protocol != "" && !strings.HasPrefix(strings.ToLower(protocol), tokenProtocol) {
				kept = append(kept, protocol)
			}
		}
	}
	delete(h, "Sec-Websocket-Protocol")
	if len(kept) > 0 {
		h.Set("Sec-WebSocket-Protocol", strings.Join(kept, ", "))
	}
}

// boundedBody is what a browser sends: so much, and in so much time.
type boundedBody struct {
	io.ReadCloser

	deadline *http.ResponseController
}

func newBoundedBody(w http.ResponseWriter, body io.ReadCloser, most int64, within time.Duration) io.ReadCloser {
	b := &boundedBody{http.MaxBytesReader(w, body, most), http.NewResponseController(w)}
	_ = b.deadline.SetReadDeadline(time.Now().Add(within)) // every connection of the listener can
	return b
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		_ = b.deadline.SetReadDeadline(time.Time{}) // the answer may take longer
	}
	return n, err
}
