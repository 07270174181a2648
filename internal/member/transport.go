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
	// maxHeader limits the header of a response.
	maxHeader = 1 << 20
	// maxObject limits an object, an event of a watch, an error and a discovery document. etcd
	// accepts 1.5 MB for an object.
	maxObject = 16 << 20
	// maxList limits a list. Lists of the large types of large clusters come in pages or as
	// events.
	maxList = 256 << 20
	// maxUnread limits the sum of all responses of a member that are being read.
	maxUnread = 512 << 20
)

// Dial opens a connection to an address of a cluster, or to the proxy in front of it.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// dialDirectly is the default Dial.
func dialDirectly(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext(ctx, network, address)
}

// manner is how a transport uses its connections.
type manner int

const (
	shared manner = iota // HTTP/2, kept open
	fresh                // one for each request
	plain                // one for each request, of HTTP/1.1, which upgrades need
)

// newTransport returns the transport for all clients of a member, which only authenticates and
// sends.
func newTransport(config *rest.Config, dial Dial, as manner, token *bearerToken) (http.RoundTripper, error) {
	config = rest.CopyConfig(config)
	config.BearerToken = "" // it may change
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
	rt, err := rest.HTTPWrappersForConfig(config, &bearing{next: t, token: token})
	if err != nil {
		return nil, fmt.Errorf("configure authentication: %w", err)
	}
	return rt, nil
}

// Passage has the transports for requests of users to a cluster: with credentials that may
// impersonate users, and without limits. It serves while the cluster's address and credentials
// stay the same. Responses are not limited, and redirects are not followed.
type Passage struct {
	// Base is the address of the API server.
	Base *url.URL
	// Requests may share HTTP/2 connections; Upgrades need one of HTTP/1.1 each.
	Requests, Upgrades http.RoundTripper
}

// NewPassage returns a passage to the API server that a configuration describes.
func NewPassage(config *rest.Config, dial Dial) (*Passage, error) {
	return newPassage(config, dial, newBearerToken(config.BearerToken))
}

func newPassage(config *rest.Config, dial Dial, token *bearerToken) (*Passage, error) {
	base, err := parseURL("the address of the API server", config.Host)
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.DisableCompression = true // bytes pass unchanged
	config.UserAgent = ""            // that of the client
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

// close closes idle connections.
func (p *Passage) close() {
	utilnet.CloseIdleConnectionsFor(p.Requests)
	utilnet.CloseIdleConnectionsFor(p.Upgrades)
}

// guarded is the transport of the hub's own clients. It rejects redirects, which would send the
// hub's requests and token to an address that the member chooses, and limits responses, which are
// kept in memory.
type guarded struct {
	next   http.RoundTripper
	base   *url.URL
	unread *atomic.Int64
}

// RoundTrip implements http.RoundTripper.
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
			return resp, nil // its decoder bounds an event by the length in front of it
		}
	}
	resp.Body = b
	return resp, nil
}

func isWatch(req *http.Request) bool {
	on, err := strconv.ParseBool(req.URL.Query().Get("watch"))
	return err == nil && on
}

// isList reports whether a request reads a collection, such as /api/v1/namespaces/NAME/pods.
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

// boundedBody is a response body that returns an error when it becomes too large.
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

// Read implements io.Reader.
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

// Close implements io.Closer.
func (b *boundedBody) Close() error {
	b.unread.Add(-b.held)
	b.held = 0
	return b.ReadCloser.Close()
}

// scan returns the number of bytes of the unfinished object after p.
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

// readDocument reads a response that is not a list of objects.
func readDocument(r io.Reader) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(r, maxObject+1))
	if err == nil && len(content) > maxObject {
		err = fmt.Errorf("it is larger than %d MB, and is refused", maxObject>>20)
	}
	return content, err
}
