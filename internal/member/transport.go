package member

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// Limits on the data of a member in memory. A member may be hostile, or broken.
const (
	// maxHeader is the maximum size of the header of a response, in bytes.
	maxHeader = 1 << 20
	// maxObject is the maximum size in bytes of an object, an event of a watch, an error and a
	// discovery document. etcd accepts 1.5 MB for an object.
	maxObject = 16 << 20
	// maxList is the maximum size of a list, in bytes. Lists of the large types of large clusters come
	// in pages or as events.
	maxList = 256 << 20
	// maxUnread is the maximum size in bytes of all responses of a member together that are being read
	// at the same time.
	maxUnread = 512 << 20
)

// Dial opens a connection to an address of a cluster, or to the proxy in front of it. It must end
// when ctx ends. For a cluster with an agent, Dial connects through the agent, and ignores network
// and address.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// dialDirectly is the default Dial: it connects to the address without a proxy or an agent. It
// waits up to 10 s for a connection.
func dialDirectly(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext(ctx, network, address)
}

// manner is how a transport uses connections: shared, fresh or plain.
type manner int

const (
	shared manner = iota // HTTP/2, kept open
	fresh                // one for each request
	plain                // one for each request, of HTTP/1.1, which upgrades need
)

// newTransport returns a transport for clients of a member. It authenticates and sends requests,
// without limits. token is sent instead of the token in config; its value may change later. as is
// how the transport uses connections. config is not changed.
func newTransport(config *rest.Config, dial Dial, as manner, token *bearerToken) (http.RoundTripper, error) {
	config = rest.CopyConfig(config)
	config.BearerToken = "" // the token may change; tokenTransport sends it
	if as == plain {
		config.NextProtos = []string{"http/1.1"}
	}
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("configure TLS: %w", err)
	}
	t := &http.Transport{
		TLSClientConfig: tlsConfig, DialContext: dial, Proxy: config.Proxy,
		TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 90 * time.Second, MaxResponseHeaderBytes: maxHeader,
		MaxIdleConnsPerHost: maxLimit, DisableCompression: config.DisableCompression,
	}
	// A GET on a lost keep-alive connection is sent again, and an exec may be a GET.
	t.DisableKeepAlives = as != shared
	if as != fresh {
		t = utilnet.SetTransportDefaults(t) // HTTP/2, where that is offered, and pings on it
	}
	rt, err := rest.HTTPWrappersForConfig(config, &tokenTransport{next: t, token: token})
	if err != nil {
		return nil, fmt.Errorf("configure authentication: %w", err)
	}
	return rt, nil
}

// Passage has the transports for requests of users to a cluster, with credentials that may
// impersonate users. The caller adds the impersonation headers. The number of requests and the size
// of responses are not limited, and redirects are returned to the caller. A passage serves while
// the cluster's address and credentials stay the same.
type Passage struct {
	// Base is the address of the API server.
	Base *url.URL
	// Requests may share HTTP/2 connections; Upgrades need one of HTTP/1.1 each.
	Requests, Upgrades http.RoundTripper
}

// NewPassage returns a passage to the API server that config describes, for users of that server.
// It does not dial. A nil dial connects directly. An error means that config is invalid.
func NewPassage(config *rest.Config, dial Dial) (*Passage, error) {
	return newPassage(config, dial, newBearerToken(config.BearerToken))
}

// newPassage returns a passage as NewPassage does, but with a token that can be replaced later
// instead of the token in config.
func newPassage(config *rest.Config, dial Dial, token *bearerToken) (*Passage, error) {
	base, err := parseURL("the address of the API server", config.Host)
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.DisableCompression = true // bytes pass unchanged
	config.UserAgent = ""            // the User-Agent header of the client is kept
	if dial == nil {
		dial = dialDirectly
	}
	p := &Passage{Base: base}
	if p.Requests, err = newTransport(config, dial, shared, token); err != nil {
		return nil, err
	}
	if p.Upgrades, err = newTransport(config, dial, plain, token); err != nil {
		return nil, err
	}
	return p, nil
}

// close closes the idle connections of the passage. Requests in flight go on.
func (p *Passage) close() {
	utilnet.CloseIdleConnectionsFor(p.Requests)
	utilnet.CloseIdleConnectionsFor(p.Upgrades)
}

// guarded is the transport of the hub's own clients of a member. It returns an error for a
// redirect, which would send the hub's requests and token to an address that the member chooses. It
// also limits the size of responses, which the hub keeps in memory.
type guarded struct {
	next   http.RoundTripper
	base   *url.URL
	unread *atomic.Int64
}

// RoundTrip implements http.RoundTripper. Reading the body of the response returns an error when a
// limit is exceeded: for an object, an event of a watch, a list, or all responses of the member
// that are being read. The size of upgraded connections and of watches in protobuf is not limited
// here.
func (g *guarded) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := g.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 == 3 && resp.StatusCode != http.StatusNotModified {
		return nil, errors.Join(fmt.Errorf("%s %s: the answer is a redirect (%s), which is not followed", req.Method, req.URL.Path, resp.Status), resp.Body.Close())
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return resp, nil
	}
	b := &boundedBody{ReadCloser: resp.Body, what: req.Method + " " + req.URL.Path, unread: g.unread, most: maxObject}
	if resp.StatusCode == http.StatusOK {
		switch media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); {
		case !isWatch(req) && isList(req, g.base):
			b.most = maxList
		case isWatch(req) && media == "application/json":
			b.events = true
		case isWatch(req) && media == "application/vnd.kubernetes.protobuf":
			return resp, nil // its decoder limits an event by the length before it
		}
	}
	resp.Body = b
	return resp, nil
}

// isWatch reports whether a request has the query parameter watch.
func isWatch(req *http.Request) bool {
	on, err := strconv.ParseBool(req.URL.Query().Get("watch"))
	return err == nil && on
}

// isList reports whether a request is a GET for a collection, such as /api/v1/namespaces/NAME/pods.
// base is the address of the cluster; its path is removed from that of the request first.
func isList(req *http.Request, base *url.URL) bool {
	parts := strings.Split(strings.Trim(strings.TrimPrefix(req.URL.Path, strings.TrimSuffix(base.Path, "/")), "/"), "/")
	version := 2 // segments up to it: api, v1
	if parts[0] == "apis" {
		version = 3
	}
	if req.Method != http.MethodGet || len(parts) <= version {
		return false
	}
	parts = parts[version:]
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	return len(parts) == 1
}

// boundedBody is a response body that returns an error when it becomes too large. It must be
// closed: until then its bytes count in unread, the number of bytes of all responses of the member
// that are being read.
type boundedBody struct {
	io.ReadCloser

	what   string
	most   int64 // limit for the whole body or, in a watch, for an event
	unread *atomic.Int64
	held   int64 // bytes that were read and count in unread

	events         bool // a sequence of JSON objects
	depth          int
	quoted, escape bool
}

// Read implements io.Reader. If the response exceeds a limit, Read returns an error instead of
// data: maxObject or maxList for this response, or maxUnread for all responses of the member.
func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	held := b.held + int64(n)
	if b.events {
		held = b.scan(p[:n])
	}
	together := b.unread.Add(held - b.held)
	b.held = held
	if held > b.most {
		return 0, fmt.Errorf("%s: the cluster's answer is larger than %d MB, and is refused", b.what, b.most>>20)
	}
	if together > maxUnread {
		return 0, fmt.Errorf("%s: the cluster's answers together are larger than %d MB, and are refused", b.what, int64(maxUnread)>>20)
	}
	return n, err
}

// Close implements io.Closer. The bytes of this response no longer count in the sum of all
// responses of the member.
func (b *boundedBody) Close() error {
	b.unread.Add(-b.held)
	b.held = 0
	return b.ReadCloser.Close()
}

// scan parses p, the next bytes of a sequence of JSON objects (the events of a watch). It returns
// the number of bytes since the end of the last complete object. Read compares that number with the
// limit for an event. It assumes valid JSON.
func (b *boundedBody) scan(p []byte) int64 {
	held := b.held
	for len(p) > 0 {
		if b.quoted && !b.escape {
			// Most of an object is in strings.
			i := bytes.IndexAny(p, `"\`)
			if i < 0 {
				return held + int64(len(p))
			}
			held, p = held+int64(i), p[i:]
		}
		c := p[0]
		held, p = held+1, p[1:]
		switch {
		case b.escape:
			b.escape = false
		case b.quoted:
			b.escape, b.quoted = c == '\\', c != '"'
		case c == '"':
			b.quoted = true
		case c == '{', c == '[':
			b.depth++
		case c == '}', c == ']':
			if b.depth--; b.depth <= 0 {
				b.depth, held = 0, 0
			}
		}
	}
	return held
}

// readDocument reads all of r, a response that is not a list of objects. It is an error if the
// response is larger than maxObject. It does not close r.
func readDocument(r io.Reader) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(r, maxObject+1))
	if err == nil && len(content) > maxObject {
		err = fmt.Errorf("it is larger than %d MB, and is refused", maxObject>>20)
	}
	return content, err
}
