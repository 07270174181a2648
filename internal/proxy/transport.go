package proxy

import (
	"fmt"
	"net/http"
	"net/url"
	"sync"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// transports keeps the connections to each cluster. client-go's own cache does not hold
// those that go through a proxy or a dialer.
type transports struct {
	mu sync.Mutex
	of map[string]*pair
}

// pair is how a cluster is reached.
type pair struct {
	base *url.URL
	// requests may share HTTP/2 connections; upgrades need one of HTTP/1.1 each.
	requests, upgrades http.RoundTripper
}

// get reads the member's configuration under the lock that forget takes, so that a
// configuration from before a change is never kept after it.
func (t *transports) get(cluster string, m Member) (*pair, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p, ok := t.of[cluster]; ok {
		return p, nil
	}
	p, err := newPair(m.Impersonator())
	if err != nil {
		return nil, err
	}
	t.of[cluster] = p
	return p, nil
}

func (t *transports) forget(cluster string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p, ok := t.of[cluster]; ok {
		delete(t.of, cluster)
		utilnet.CloseIdleConnectionsFor(p.requests)
		utilnet.CloseIdleConnectionsFor(p.upgrades)
	}
}

func newPair(config *rest.Config) (*pair, error) {
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("parse address: %w", err)
	}
	config = rest.CopyConfig(config)
	config.DisableCompression = true // bytes pass as they are
	config.UserAgent = ""            // the client's own
	requests, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("make transport: %w", err)
	}
	config.NextProtos = []string{"http/1.1"}
	upgrades, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("make transport for upgrades: %w", err)
	}
	return &pair{base: base, requests: requests, upgrades: upgrades}, nil
}
