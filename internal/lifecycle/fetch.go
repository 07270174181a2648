package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

const (
	// maxFetched bounds a manifest or an archive of a chart.
	maxFetched = 64 << 20
	// fetchTimeout bounds how long one may take.
	fetchTimeout = 2 * time.Minute
)

// IsURL reports whether a location is one that Fetch reads.
func IsURL(location string) bool {
	u, err := url.Parse(location)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https")
}

// Fetch reads a manifest or an archive of a chart, of at most 64 MiB, from an http:// or https:// URL.
func Fetch(ctx context.Context, location string) (content []byte, err error) {
	u, err := url.Parse(location)
	if err != nil || !IsURL(location) {
		return nil, errors.New("manifests and charts are read from http:// and https:// URLs only")
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, location, nil)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", u.Redacted(), err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err // names method and URL
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("get %s: %s", u.Redacted(), resp.Status)
	}
	content, err = io.ReadAll(io.LimitReader(resp.Body, maxFetched+1))
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", u.Redacted(), err)
	}
	if len(content) > maxFetched {
		return nil, fmt.Errorf("get %s: it is larger than %d MiB", u.Redacted(), maxFetched>>20)
	}
	return content, nil
}

// AgentFile is the executable that becomes the agent of hosts of an architecture: the running one, or orrery-linux-ARCH
// beside it.
func AgentFile(arch string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the running executable, which is the agent of hosts: %w", err)
	}
	if runtime.GOOS == "linux" && runtime.GOARCH == arch {
		return self, nil
	}
	beside := filepath.Join(filepath.Dir(self), "orrery-linux-"+arch)
	if _, err := os.Stat(beside); err != nil {
		return "", fmt.Errorf("its architecture is %s, and there is no orrery for it at %s: put the release's file there", arch, beside)
	}
	return beside, nil
}
