package node

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
	"path/filepath"
	"strings"
	"time"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

const (
	// askTimeout is that of one question of a probe.
	askTimeout = 3 * time.Second
	// answerSize is how much of an answer is read.
	answerSize = 64 << 10
	// answerTail is how much of one that says no is in the error.
	answerTail = 512
)

// Probe implements System.
func (l *Linux) Probe(ctx context.Context, p plan.Probe) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	switch {
	case p.URL != "":
		return l.get(ctx, p)
	case p.TCP != "":
		network, address := "tcp", p.TCP
		if path, ok := strings.CutPrefix(p.TCP, "unix:"); ok {
			network, address = "unix", filepath.Join("/", l.Root, path)
		}
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return err
		}
		return conn.Close()
	case len(p.Exec) > 0:
		_, err := l.Run(ctx, p.Exec, "")
		return err
	default:
		return errors.New("probe asks nothing: it has no url, tcp or exec")
	}
}

func (l *Linux) get(ctx context.Context, p plan.Probe) error {
	config, err := l.tlsConfig(p)
	if err != nil {
		return err
	}
	// No connection is kept, since the server may be restarted, and no proxy is asked, since it is near.
	client := http.Client{
		Transport:     &http.Transport{TLSClientConfig: config, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL, http.NoBody)
	if err != nil {
		return fmt.Errorf("probe %s: %w", p.URL, err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, answerSize))
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return fmt.Errorf("read answer of %s: %w", p.URL, err)
	}
	answer := string(body)
	switch {
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return fmt.Errorf("%s answers %s: %s", p.URL, resp.Status, answer[:min(len(answer), answerTail)])
	case !strings.Contains(answer, p.Contains):
		return fmt.Errorf("%s answers without %q: %s", p.URL, p.Contains, answer[:min(len(answer), answerTail)])
	}
	return nil
}

func (l *Linux) tlsConfig(p plan.Probe) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if p.CAFile != "" {
		ca, err := os.ReadFile(filepath.Join("/", l.Root, p.CAFile))
		if err != nil {
			return nil, fmt.Errorf("read caFile: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(ca) {
			return nil, fmt.Errorf("read caFile %s: no PEM certificate in it", p.CAFile)
		}
	}
	if p.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(filepath.Join("/", l.Root, p.CertFile), filepath.Join("/", l.Root, p.KeyFile))
		if err != nil {
			return nil, fmt.Errorf("load certFile and keyFile: %w", err)
		}
		config.Certificates = []tls.Certificate{cert}
	}
	return config, nil
}
