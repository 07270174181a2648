package balancer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	checkTimeout = 2 * time.Second
	// failureThreshold is how many health checks in a row must fail before a backend counts as
	// unhealthy. One refused connection is enough.
	failureThreshold = 2
)

// check makes one health check of each backend, in parallel. If a backend is healthy afterwards,
// check closes the connections of the backends that are unhealthy. Backends that have not failed a
// check yet keep theirs.
func (p *pool) check(ctx context.Context) {
	p.mu.Lock()
	all := slices.Clone(p.backends)
	p.mu.Unlock()
	var group sync.WaitGroup
	for _, b := range all {
		group.Go(func() {
			err := probe(ctx, b.address)
			if ctx.Err() == nil {
				p.note(b, err)
			}
		})
	}
	group.Wait()

	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.ContainsFunc(p.backends, func(b *backend) bool { return b.healthy }) {
		return
	}
	for _, b := range p.backends {
		if !b.healthy && b.failures > 0 {
			b.closeAll()
		}
	}
}

// note records the result of a health check of a backend: err is nil for success.
func (p *pool) note(b *backend, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		if !b.healthy {
			p.log.Info("Backend is healthy", "backend", b.address)
		}
		b.healthy, b.failures = true, 0
		return
	}
	b.failures++
	if b.healthy && (b.failures >= failureThreshold || errors.Is(err, syscall.ECONNREFUSED)) {
		p.log.Info("Backend is unhealthy", "backend", b.address, "reason", err.Error(), "connections", len(b.connections))
		b.healthy = false
	}
}

// probe makes one health check: it requests /readyz from the API server at address, without
// credentials. It returns nil for every status below 500. A server that refuses unauthenticated
// requests is also alive.
func probe(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	client := http.Client{
		Transport: &http.Transport{
			// The request and the response are not secret, and clients verify the server
			// themselves.
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
			DisableKeepAlives: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/readyz", http.NoBody)
	if err != nil {
		return fmt.Errorf("check backend: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("check backend: %w", err)
	}
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<16))
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return fmt.Errorf("check backend: %w", err)
	}
	if resp.StatusCode >= http.StatusInternalServerError {
		return fmt.Errorf("check backend: %s", resp.Status)
	}
	return nil
}
