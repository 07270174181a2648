package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"

	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/catalog"
	"orrery.dev/orrery/internal/lifecycle/host"
)

// stateFlags is the flag --state-dir: the directory on this machine with the keys and records of
// the clusters that were built from here.
type stateFlags struct{ dir string }

func (f *stateFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.dir, "state-dir", string(lifecycle.DefaultFiles()), "where the keys and records of clusters that are built from here are kept")
}

// files returns the store of state in the directory of --state-dir. It reads nothing.
func (f *stateFlags) files() lifecycle.Files { return lifecycle.Files(f.dir) }

// again returns " --state-dir DIR" for a command line that is printed for the user. It is "" for
// the default directory.
func (f *stateFlags) again() string {
	if f.dir == string(lifecycle.DefaultFiles()) {
		return ""
	}
	return " --state-dir " + shellWord(f.dir)
}

// built returns the recorded state of a cluster that was built from this machine. State.Applied is
// nil if the cluster is not completely built. If --state-dir has no such cluster, the error names
// those that it has.
func (f *stateFlags) built(ctx context.Context, name string) (*lifecycle.State, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	state, err := f.files().Load(ctx, name)
	if err != nil || state != nil {
		return state, err
	}
	known := f.known()
	if len(known) == 0 {
		return nil, fmt.Errorf("cluster %s was not built from here: %s knows of none; look elsewhere with --state-dir", name, f.dir)
	}
	return nil, fmt.Errorf("cluster %s was not built from here: %s knows of %s", name, f.dir, strings.Join(known, ", "))
}

// known returns the names of the clusters in --state-dir, sorted; none if the directory cannot be
// read.
func (f *stateFlags) known() []string {
	paths, _ := filepath.Glob(f.files().Path("*", "state.json")) // the pattern is valid
	names := make([]string, 0, len(paths))
	for _, path := range paths {
		names = append(names, filepath.Base(filepath.Dir(path)))
	}
	return names
}

// checkName returns a usageError if name is not valid for a cluster. Every name must be checked
// before its use, because it becomes a part of a path.
func checkName(name string) error {
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return usageError{fmt.Errorf("%q is no name of a cluster: %s", name, strings.Join(problems, "; "))}
	}
	return nil
}

// The values of --host-key-checking.
const (
	acceptNew = "accept-new"
	strict    = "strict"
)

// engineFlags are the flags of commands that work on the hosts of a cluster. They say where state,
// catalogues of versions, release files, the agents' programs and the SSH keys of the hosts come
// from.
type engineFlags struct {
	stateFlags

	catalogs        []string
	source          string
	cache           string
	agents          []string
	knownHosts      string
	hostKeyChecking string
}

func (f *engineFlags) add(cmd *cobra.Command) {
	f.stateFlags.add(cmd)
	cmd.Flags().StringArrayVar(&f.catalogs, "catalog", nil, "file of further versions, merged over the built-in catalogue; can be given more than once")
	cmd.Flags().StringVar(&f.source, "source", "", "base URL of a mirror of the release files, instead of that in the file")
	cmd.Flags().StringVar(&f.cache, "cache", defaultCache(), "where downloaded release files are kept (default: $ORRERY_CACHE)")
	cmd.Flags().StringArrayVar(&f.agents, "agent", nil, "agent for hosts of an architecture; can be given more than once (default: orrery-agent-linux-ARCH beside this executable)")
	cmd.Flags().StringVar(&f.knownHosts, "known-hosts", "", "file of the hosts' SSH keys (default: known_hosts of the cluster in --state-dir)")
	cmd.Flags().StringVar(&f.hostKeyChecking, "host-key-checking", acceptNew, "what to do about a host whose SSH key is not known: accept-new records it, strict refuses the host")
}

// defaultCache returns the default of --cache, $ORRERY_CACHE. If that is not set, it is a directory
// below the user's cache directory, or else below that for temporary files. It creates nothing.
func defaultCache() string {
	if dir := os.Getenv("ORRERY_CACHE"); dir != "" {
		return dir
	}
	base, err := os.UserCacheDir()
	if err != nil {
		base = filepath.Join(os.TempDir(), fmt.Sprintf("cache-%d", os.Getuid()))
	}
	return filepath.Join(base, "orrery", "files")
}

// engine returns the engine that works on the hosts of a cluster, with the state, catalogues and
// agents of the flags. p displays its progress. engine connects to no host. It also stops client-go
// from logging in this process. Invalid flags and files are an error.
func (f *engineFlags) engine(cluster string, p *runProgress) (*lifecycle.Engine, error) {
	policy := host.TrustOnFirstUse
	switch f.hostKeyChecking {
	case acceptNew:
	case strict:
		policy = host.Strict
	default:
		return nil, usageError{fmt.Errorf("--host-key-checking %q: want %s or %s", f.hostKeyChecking, acceptNew, strict)}
	}
	known, err := catalog.Load(f.catalogs...)
	if err != nil {
		return nil, err
	}
	agents, err := findAgents(f.agents)
	if err != nil {
		return nil, err
	}
	// Errors contain all that client-go and kubectl's drain report. Their warnings would disturb
	// the progress.
	klog.SetLogger(logr.Discard())
	env := environment{Files: f.files(), cluster: cluster, source: f.source, cache: f.cache, agents: agents, progress: p}
	return &lifecycle.Engine{
		Cluster: cluster, Env: env, Catalog: known, Local: true, Holder: holder(),
		Dialer: &host.SSH{KnownHosts: cmp.Or(f.knownHosts, env.Path(cluster, "known_hosts")), HostKeys: policy},
	}, nil
}

// holder returns the text that names this process in the leases by which it reserves hosts:
// USER@HOST (process PID).
func holder() string {
	who := "orrery"
	if u, err := user.Current(); err == nil {
		who = u.Username
	}
	where, err := os.Hostname()
	if err != nil {
		where = "unknown"
	}
	return fmt.Sprintf("%s@%s (process %d)", who, where, os.Getpid())
}

// hostNames lists names of hosts for a message: all, or the first eight and the number of the
// others.
func hostNames(names []string) string {
	const most = 8
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(slices.Clone(names)[:most], ", "), len(names)-most)
}
