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

// Bounds of what a member may have us keep in memory. It may be hostile, or broken.
const (
	// maxHeader bounds the header of an answer.
	maxHeader = 1 << 20
	// maxObject bounds an object, an event of a watch, an error and a discovery document. etcd takes 1.5 MB for an object.
	maxObject = 16 << 20
	// maxList bounds a list. Lists of the large types of large clusters come in pages or as events.
	maxList = 256 << 20
	// maxUnread bounds all answers of a member together that are being read.
	maxUnread = 512 << 20
)

// Dial opens a connection to an address of a cluster, or to the proxy in front of it.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// dialDirectly is how clusters are dialled that nothing else is said about.
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

// newTransport makes the transport of every client of a member: it authenticates and does nothing else but send.
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
	// A GET that finds a connection lost which was kept open is sent again, and an exec may be one.
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

// Passage is how the requests of users get to a cluster: with credentials that may impersonate them and without any limit. It
// serves for as long as the cluster's address and credentials stay the same. What comes back is for the users, and neither
// bounded nor, if it is a redirect, followed.
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
	config.DisableCompression = true // bytes pass as they are
	config.UserAgent = ""            // the client's own
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

// close ends the connections that nothing goes over any more.
func (p *Passage) close() {
	utilnet.CloseIdleConnectionsFor(p.Requests)
	utilnet.CloseIdleConnectionsFor(p.Upgrades)
}

// guarded is the transport of our own clients. A redirect would take the hub's requests, and a token, to wherever the member
// says, and what it answers is kept in memory.
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

// isList is true for the read of a collection, such as /api/v1/namespaces/NAME/pods.
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

// boundedBody is an answer that ends with an error where it becomes too large.
type boundedBody struct {
	io.ReadCloser

	what   string
	most   int64 // of all of it or, in a watch, of an event
	unread *atomic.Int64
	held   int64 // what was read and counts in unread

	events         bool // it is a sequence of JSON objects
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

// scan returns how much is held of an object that has not ended, after p.
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

// readDocument reads an answer that is no list of a cluster's objects.
func readDocument(r io.Reader) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(r, maxObject+1))
	if err == nil && len(content) > maxObject {
		err = fmt.Errorf("it is larger than %d MB, and is refused", maxObject>>20)
	}
	return content, err
}
