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

// holds reports whether a reached host has something that the agent must undo. That is its record
// or, on a known host, the agent or its directory. The agent removes that directory last.
func (r *run) holds(name string) bool {
	f := r.facts[name]
	return f.Recorded || (f.Agent != "" || slices.Contains(f.Traces, filepath.Dir(node.Dir))) && intent.Has(r.state.Known(), name)
}

// bringAgents installs the agent where it is missing, cannot read the record, or has another
// protocol, and then reads the facts again. Only an agent of this version reports reliably how a
// host differs from its record. undone names hosts that will be undone: they get the agent even
// without a record.
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
		if f.Agent != a.digest { // our own agent has given its answer already
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

// undoable returns an error for hosts that were changed and have lost their record. Without a
// record our files cannot be distinguished from the user's.
func (r *run) undoable(names []string) error {
	if r.op.Spec.Forgets() {
		return nil
	}
	// The agent removes these directories.
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
