package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"
)

const (
	// maxFetched bounds a manifest or an archive of a chart.
	maxFetched = 64 << 20
	// fetchTimeout bounds how long one may take.
	fetchTimeout = 2 * time.Minute
)

// fetch reads a manifest or an archive of a chart: a URL, or a file of this machine.
func fetch(ctx context.Context, location string) ([]byte, error) {
	u, err := url.Parse(location)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") {
		return os.ReadFile(location)
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, location, nil)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", u.Redacted(), err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w; name a file of this machine instead, if it has no access to the network", err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("get %s: %s", u.Redacted(), resp.Status)
	}
	content, err := io.ReadAll(io.LimitReader(resp.Body, maxFetched+1))
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", u.Redacted(), err)
	}
	if len(content) > maxFetched {
		return nil, fmt.Errorf("get %s: it is larger than %d MiB", u.Redacted(), maxFetched>>20)
	}
	return content, nil
}
