package balancer

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

// pool has the backends, which are the API servers, and their open connections. Its methods may be
// called from several goroutines.
type pool struct {
	log logr.Logger

	mu       sync.Mutex // guards the fields below, and fields of backends
	backends []*backend
	next     int // index of the backend with which candidates began last
}

// backend is one API server of the cluster. A new backend counts as unhealthy until its first
// health check.
type backend struct {
	address string

	// Guarded by the pool's mu.
	healthy     bool
	failures    int // failed checks since it was healthy
	gone        bool
	connections map[*connection]bool
}

// set replaces the backends by those with the given addresses. It closes the connections of removed
// backends. A backend that stays keeps its state and connections.
func (p *pool) set(ctx context.Context, addresses []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var now []*backend
	for _, address := range addresses {
		i := slices.IndexFunc(p.backends, func(b *backend) bool { return b.address == address })
		if i >= 0 {
			now = append(now, p.backends[i])
			continue
		}
		if ctx.Err() == nil {
			p.log.Info("Backend added", "backend", address)
		}
		now = append(now, &backend{address: address, connections: map[*connection]bool{}})
	}
	for _, b := range p.backends {
		if !slices.Contains(now, b) {
			p.log.Info("Backend removed", "backend", b.address, "connections", len(b.connections))
			b.gone = true
			b.closeAll()
		}
	}
	p.backends = now
}

// candidates returns the backends in the order in which a new connection tries them. Healthy
// backends are first, and each call begins with another one. The unhealthy ones follow, because a
// health check may be wrong.
func (p *pool) candidates() []*backend {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.backends) == 0 {
		return nil
	}
	p.next = (p.next + 1) % len(p.backends)
	var healthy, others []*backend
	for _, b := range slices.Concat(p.backends[p.next:], p.backends[:p.next]) {
		if b.healthy {
			healthy = append(healthy, b)
		} else {
			others = append(others, b)
		}
	}
	return append(healthy, others...)
}

// adopt adds an open connection to its backend, so that the connection is closed with the backend.
// It returns false if the backend was removed. The caller then closes the connection to the
// backend.
func (p *pool) adopt(b *backend, c *connection) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b.gone {
		return false
	}
	b.connections[c] = true
	return true
}

// release removes a connection that has ended from its backend.
func (p *pool) release(b *backend, c *connection) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(b.connections, c)
}

// closeAll closes all connections of the backend. The caller holds the pool's mu. The goroutines
// that forward remove the connections from the backend.
func (b *backend) closeAll() {
	for c := range b.connections {
		c.close()
	}
}

// watch checks the health of the backends and reads the backends file at path, once per interval,
// until ctx ends. If the file cannot be read, it logs the error once and keeps the backends.
func (p *pool) watch(ctx context.Context, path string) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	broken := "" // last error of the file, to log it once
	for {
		p.check(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		switch addresses, err := read(path); {
		case err == nil:
			broken = ""
			p.set(ctx, addresses)
		case err.Error() != broken:
			broken = err.Error()
			p.log.Error(err, "Backends stay as they were")
		}
	}
}
