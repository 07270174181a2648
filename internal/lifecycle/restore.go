package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"orrery.dev/orrery/internal/lifecycle/intent"
	"orrery.dev/orrery/internal/lifecycle/node"
)

// holds reports whether a reached host has something of the cluster that the agent must undo. That
// is the host's record of applied steps or, on a host that the state knows, the agent or its
// directory. The agent removes that directory last. It is false for a host that was not reached.
func (r *run) holds(name string) bool {
	f := r.facts[name]
	return f.Recorded || (f.Agent != "" || slices.Contains(f.Traces, filepath.Dir(node.Dir))) && intent.Has(r.state.Known(), name)
}

// bringAgents installs this version's agent on reached hosts of the cluster. It does so where the
// agent is missing, cannot read the host's record of applied steps, or has another protocol. Then
// it reads the facts of these hosts into r.facts again. Only an agent of this version reports
// reliably how a host differs from its record. Hosts without a record are skipped, except hosts in
// undone that have something to undo, see holds. undone names the hosts that the run undoes.
func (r *run) bringAgents(ctx context.Context, undone ...string) error {
	var missing []string
	for _, name := range sortedKeys(r.facts) {
		f := r.facts[name]
		ours := f.Applied.ClusterID == r.state.ID || f.Applied.ClusterID == "" && intent.Has(r.state.Known(), name)
		lacking := f.Agent == "" || f.AgentError != "" || f.Applied.Protocol != node.Protocol
		needed := f.Recorded || slices.Contains(undone, name) && r.holds(name)
		if !ours || !lacking || !needed {
			continue
		}
		a, err := r.agent(f.Arch)
		if err != nil {
			return fmt.Errorf("host %s: %w", name, err)
		}
		if f.Agent != a.digest { // the facts already come from this version's agent
			missing = append(missing, name)
		}
	}
	var mu sync.Mutex
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(maxDials)
	for _, name := range missing {
		group.Go(func() error {
			c := r.conns[name]
			c.notef("the agent is missing, older than this orrery, or cannot read the record of the host: it is brought")
			return r.retry(gctx, c, func(ctx context.Context) error {
				if err := r.bringAgent(ctx, c); err != nil {
					return err
				}
				f, err := c.facts(ctx)
				if err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				r.facts[name] = f
				return nil
			})
		})
	}
	return group.Wait()
}

// undoable returns an error for the named hosts that were changed and have lost their record of
// applied steps. Without the record, Orrery's files cannot be distinguished from the user's. The
// error lists the paths that were found. It is nil for hosts that were not reached. It is also nil
// if the Operation forgets hosts (--forget-unreachable).
func (r *run) undoable(names []string) error {
	if r.op.Spec.Forgets() {
		return nil
	}
	// The agent removes its own directories, so they do not count.
	agents := []string{filepath.Dir(node.Dir), filepath.Dir(filepath.Dir(node.AgentPath))}
	var errs []error
	for _, name := range names {
		f, reached := r.facts[name]
		if !reached || f.Recorded || !intent.Has(r.state.Known(), name) {
			continue
		}
		left := slices.DeleteFunc(slices.Concat(f.Leftovers, f.Traces), func(path string) bool { return slices.Contains(agents, path) })
		if len(left) > 0 {
			errs = append(errs, fmt.Errorf("host %s: the record of what was done on it, in %s, is gone, and this is left: %s; "+
				"remove it by hand, or reinstall the host, and resume; or let it be, with --forget-unreachable: then nothing there is undone",
				name, node.Dir, strings.Join(left, ", ")))
		}
	}
	return errors.Join(errs...)
}
