package provision

import (
	"cmp"
	"path/filepath"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/catalog"
	"orrery.dev/orrery/internal/lifecycle/host"
)

// engines makes the engines of clusters.
type engines struct {
	reader  client.Reader
	catalog *catalog.Catalog
	cache   string
	holder  string
	clock   clock.PassiveClock
}

func newEngines(reader client.Reader, o Options, known *catalog.Catalog, holder string) *engines {
	return &engines{
		reader: reader, catalog: known, holder: "hub " + holder, clock: o.Clock,
		cache: cmp.Or(o.Cache, filepath.Join(o.DataDir, "lifecycle", "files")),
	}
}

func (e *engines) engine(j Job) (Runner, error) {
	credentials := credentials{reader: e.reader, cluster: j.Cluster}
	return &lifecycle.Engine{
		Cluster:      j.Cluster,
		Store:        j.Store,
		Dialer:       &host.SSH{HostKeys: host.Pinned},
		Target:       credentials.target,
		ExternalEtcd: credentials.externalEtcd,
		Catalog:      e.catalog,
		Source:       func(base string) *catalog.Source { return &catalog.Source{Base: base, Dir: e.cache} },
		Agent:        lifecycle.AgentFile,
		Fetch:        lifecycle.Fetch,
		Progress:     j.Progress,
		Clock:        e.clock.Now,
		Holder:       e.holder,
		Built:        j.Built,
	}, nil
}
