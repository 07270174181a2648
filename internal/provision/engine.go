package provision

import (
	"cmp"
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

	"sigs.k8s.io/controller-runtime/pkg/client"

	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/catalog"
	"orrery.dev/orrery/internal/lifecycle/host"
)

const (
	// maxFetched bounds a manifest or an archive of a chart.
	maxFetched = 64 << 20
	// fetchTimeout bounds how long one may take.
	fetchTimeout = 2 * time.Minute
)

// engines makes the engines of clusters.
type engines struct {
	credentials credentials
	catalog     *catalog.Catalog
	dir         string // of what is kept about hosts
	cache       string
	holder      string
}

func newEngines(reader client.Reader, o Options, known *catalog.Catalog, holder string) *engines {
	dir := filepath.Join(o.DataDir, "lifecycle")
	return &engines{
		credentials: credentials{reader: reader}, catalog: known, holder: "hub " + holder,
		dir: filepath.Join(dir, "clusters"), cache: cmp.Or(o.Cache, filepath.Join(dir, "files")),
	}
}

func (e *engines) engine(j Job) (Runner, error) {
	return &lifecycle.Engine{
		Cluster: j.Cluster,
		Store:   j.Store,
		// Hosts of two networks may have the same address.
		Dialer:       &host.SSH{KnownHosts: filepath.Join(e.dir, j.Cluster, "known_hosts"), HostKeys: host.TrustOnFirstUse},
		Target:       e.credentials.target,
		ExternalEtcd: e.credentials.externalEtcd,
		Catalog:      e.catalog,
		Source:       func(base string) *catalog.Source { return &catalog.Source{Base: base, Dir: e.cache} },
		Agent:        agent,
		Fetch:        fetch,
		Progress:     j.Progress,
		Holder:       e.holder,
		Built:        j.Built,
	}, nil
}

// agent is the executable that becomes the agent of hosts: this one, or that of another architecture beside it.
func agent(arch string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the running executable, which is the agent of hosts: %w", err)
	}
	if runtime.GOOS == "linux" && runtime.GOARCH == arch {
		return self, nil
	}
	beside := filepath.Join(filepath.Dir(self), "orrery-linux-"+arch)
	if _, err := os.Stat(beside); err != nil {
		return "", fmt.Errorf("its architecture is %s, and the hub has no orrery for it at %s: put the release's file there", arch, beside)
	}
	return beside, nil
}

// fetch reads a manifest or an archive of a chart from a URL.
func fetch(ctx context.Context, location string) (content []byte, err error) {
	u, err := url.Parse(location)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, errors.New("a hub reads manifests and charts from http:// and https:// URLs only")
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
