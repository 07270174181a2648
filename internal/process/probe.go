package process

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

const (
	// Times of readiness probes: between two attempts, for one attempt, and the default of
	// Probe.Timeout.
	probeInterval       = 50 * time.Millisecond
	probeAttemptTimeout = 3 * time.Second
	defaultProbeTimeout = time.Minute
)

// await repeats the readiness probe of p until it succeeds or ctx ends. nil means that the process
// is ready. If ctx ends, await returns the cause. When the timeout of the probe has passed, await
// calls slow once, with the error of the last attempt, and continues. p.Ready must not be nil.
func (p Process) await(ctx context.Context, th *thread, slow func(error)) error {
	timeout := p.Ready.Timeout.Duration
	if timeout == 0 {
		timeout = defaultProbeTimeout
	}
	deadline := time.Now().Add(timeout)
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		err := p.probe(ctx, th)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			return nil
		case !deadline.IsZero() && time.Now().After(deadline):
			slow(err)
			deadline = time.Time{}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// probe makes one attempt of the readiness probe of p, which takes at most probeAttemptTimeout. nil
// means that the process is ready. An exec probe is started on th. p.Ready must not be nil.
func (p Process) probe(ctx context.Context, th *thread) error {
	ctx, cancel := context.WithTimeout(ctx, probeAttemptTimeout)
	defer cancel()
	switch r := p.Ready; {
	case r.HTTP != nil:
		_, err := r.HTTP.Get(ctx)
		return err
	case r.TCP != nil:
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", r.TCP.Address)
		if err != nil {
			return fmt.Errorf("probe: %w", err)
		}
		return conn.Close()
	case r.File != nil:
		_, err := os.Stat(r.File.Path)
		return err
	default:
		return p.probeExec(ctx, th)
	}
}

// Get sends one request for p.URL, without a proxy. It returns the start of the answer, at most 512
// bytes. Any status but 2xx is an error, so a redirect is one, too. Get reads the certificate files
// at each call.
func (p *HTTPProbe) Get(ctx context.Context) (string, error) {
	config, err := p.tlsConfig()
	if err != nil {
		return "", err
	}
	// Each attempt has a new connection. A kept connection would miss rotated certificates, and could
	// belong to an earlier process of a respawned server. There is no proxy, because the process is on
	// this machine.
	c := http.Client{
		Transport:     &http.Transport{TLSClientConfig: config, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL, http.NoBody)
	if err != nil {
		return "", fmt.Errorf("probe %s: %w", p.URL, err)
	}
	resp, err := c.Do(req)
	if err != nil {
		return "", fmt.Errorf("probe: %w", err)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 512))
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return "", fmt.Errorf("read answer of %s: %w", p.URL, err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return "", fmt.Errorf("probe %s: %s: %s", p.URL, resp.Status, body)
	}
	return string(body), nil
}

// tlsConfig returns the TLS configuration with the certificates in the files of p, which it reads.
func (p *HTTPProbe) tlsConfig() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if p.CAFile != "" {
		ca, err := os.ReadFile(p.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read caFile: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(ca) {
			return nil, fmt.Errorf("read caFile %s: no PEM certificate in it", p.CAFile)
		}
	}
	if p.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(p.CertFile, p.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("load certFile and keyFile: %w", err)
		}
		config.Certificates = []tls.Certificate{cert}
	}
	return config, nil
}

// probeExec runs the command of the readiness probe once, started on th. Any exit status but 0 is
// an error. If ctx ends first, the command and its process group are killed, and the cause is
// returned.
func (p Process) probeExec(ctx context.Context, th *thread) error {
	c, err := th.start(p.command(p.Ready.Exec.Command, nil), KillModeGroup)
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), c.stop(time.Now()))
	}
}
