package content

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"orrery.dev/orrery/internal/neutral"
)

const (
	// maxFetched is the maximum size, in bytes, of a manifest or chart archive that Fetch downloads.
	maxFetched = 64 << 20
	// fetchTimeout bounds one download by Fetch.
	fetchTimeout = 2 * time.Minute
)

// Fetch downloads a manifest or chart archive from an http:// or https:// URL and returns its
// content. It may have at most 64 MiB and take at most two minutes. A status other than 200 is an
// error. Errors do not show a token in the URL.
func Fetch(ctx context.Context, location string) (content []byte, err error) {
	if u, err := url.Parse(location); err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("manifests and charts are read from http:// and https:// URLs only")
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, location, nil)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", neutral.ShownLocation(location), err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err // without the URL, which may have a token
		}
		return nil, fmt.Errorf("get %s: %w", neutral.ShownLocation(location), err)
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("get %s: %s", neutral.ShownLocation(location), resp.Status)
	}
	content, err = io.ReadAll(io.LimitReader(resp.Body, maxFetched+1))
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", neutral.ShownLocation(location), err)
	}
	if len(content) > maxFetched {
		return nil, fmt.Errorf("get %s: it is larger than %d MiB", neutral.ShownLocation(location), maxFetched>>20)
	}
	return content, nil
}

// AgentFile returns the path of the agent executable for an architecture such as amd64: the file
// orrery-agent-linux-ARCH beside the running executable. A missing file is an error.
func AgentFile(arch string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the running executable, beside which the agent of hosts is: %w", err)
	}
	path := filepath.Join(filepath.Dir(self), "orrery-agent-linux-"+arch)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("the agent of hosts with %s is not at %s, beside %s: put the release's file there",
			arch, path, filepath.Base(self))
	}
	return path, nil
}
