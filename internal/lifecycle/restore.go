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
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// holds reports whether a host that was reached has something that the agent undoes: what it recorded, or, on a host where a
// run has begun, the agent itself and what it keeps. The directory that it keeps that in goes last.
func (r *run) holds(name string) bool {
	f := r.facts[name]
	return f.Recorded || (f.Agent != "" || slices.Contains(f.Traces, filepath.Dir(node.Dir))) && intent.Has(r.state.Known(), name)
}

// bringAgents brings the agent to the hosts that have a record of ours and lost the agent, or have one that cannot read the
// record or speaks an older protocol, and asks them again: only an agent that we understand knows how a host differs from its
// record. Hosts that are to be undone get it too if they have no record.
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
		if f.Init != plan.InitSystemd {
			// What keeps the cluster's components running there may be the agent itself, of an earlier version.
			return fmt.Errorf("host %s: its first process is not systemd, and only earlier versions of Orrery know such hosts: nothing is changed; "+
				"change or delete the cluster with the version that built it", name)
		}
		a, err := r.agent(f.Arch)
		if err != nil {
			return fmt.Errorf("host %s: %w", name, err)
		}
		if f.Agent != a.digest { // what our own says is final
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

// undoable refuses to undo hosts on which something was done and which have lost the record of it: what is left there cannot
// be told from what is the user's.
func (r *run) undoable(names []string) error {
	if r.op.Spec.Forgets() {
		return nil
	}
	agents := []string{filepath.Dir(node.Dir), filepath.Dir(filepath.Dir(node.AgentPath))} // which the agent removes
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
