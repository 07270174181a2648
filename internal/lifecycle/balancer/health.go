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
	// failureThreshold is how many checks in a row fail before a backend counts as unhealthy. Where nothing listens,
	// one does.
	failureThreshold = 2
)

// check checks all backends once, at the same time, and closes the connections of the unhealthy ones if there is a
// healthy one that they could go to.
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

// note takes the result of a check.
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

// probe asks an API server whether it is ready. It needs no credentials: one that does not tell strangers refuses them,
// and so it is alive.
func probe(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	client := http.Client{
		Transport: &http.Transport{
			// The question and the answer are of no use to anybody, whoever is there; clients verify for themselves.
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
