package node

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// sweep is the kind of step that performs a plan.Sweep: when it is undone, it removes what
// components left on the host, called traces. apply changes nothing.
type sweep struct{ *plan.Sweep }

// observe implements kind. It reports no drift, since components create traces all the time.
func (w sweep) observe(context.Context, *session, *record) (string, error) { return "", nil }

// capture implements kind. It records the traces that exist before the cluster, which must stay
// when the step is undone. If the step has changed to cover more, it adds only the traces that the
// former sweep did not cover. Those that the former sweep covers belong to the cluster.
func (w sweep) capture(ctx context.Context, s *session, r *record) error {
	now, err := s.traces(ctx, *w.Sweep)
	if err != nil {
		return err
	}
	if r.Before.Sweep == nil {
		r.Before.Sweep, r.Before.Traces = w.Sweep, &now
		return nil
	}
	ours, err := s.traces(ctx, *r.Before.Sweep)
	if err != nil {
		return err
	}
	keep := merge(*r.Before.Traces, subtract(now, ours))
	all := merged(*r.Before.Sweep, *w.Sweep)
	r.Before.Sweep, r.Before.Traces = &all, &keep
	return nil
}

// apply implements kind. It changes nothing.
func (w sweep) apply(context.Context, *session, *record) error { return nil }

// revert implements kind. It removes all traces that the sweep covers and capture did not record,
// and the paths of the sweep.
func (w sweep) revert(ctx context.Context, s *session, r *record) error {
	if err := s.System.Clear(ctx, *r.Before.Sweep, *r.Before.Traces); err != nil {
		return err
	}
	for _, path := range r.Before.Sweep.Paths {
		if slices.Contains(r.Before.Traces.Paths, path) {
			continue
		}
		if err := s.System.UnmountBelow(s.path(path)); err != nil {
			return err
		}
		if err := os.RemoveAll(s.path(path)); err != nil {
			return err
		}
	}
	return nil
}

// traces returns the traces that a sweep would remove now, including those of its Paths that exist.
func (s *session) traces(ctx context.Context, w plan.Sweep) (plan.Traces, error) {
	found, err := s.System.Traces(ctx, w)
	if err != nil {
		return plan.Traces{}, err
	}
	for _, path := range w.Paths {
		_, err := os.Lstat(s.path(path))
		if err == nil {
			found.Paths = append(found.Paths, path)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return plan.Traces{}, err
		}
	}
	return found, nil
}

// listsOf returns pointers to all lists in t, always in the same order, so that the lists of two
// Traces can be combined.
func listsOf(t *plan.Traces) []*[]string {
	return []*[]string{&t.Mounts, &t.Links, &t.Namespaces, &t.Tables, &t.Chains, &t.Cgroups, &t.Paths}
}

// subtract returns the traces of t that are not in other.
func subtract(t, other plan.Traces) plan.Traces {
	var left plan.Traces
	into, theirs := listsOf(&left), listsOf(&other)
	for i, list := range listsOf(&t) {
		*into[i] = without(*list, *theirs[i])
	}
	return left
}

// merge returns the traces in a or b, each once.
func merge(a, b plan.Traces) plan.Traces {
	var all plan.Traces
	into, second := listsOf(&all), listsOf(&b)
	for i, first := range listsOf(&a) {
		*into[i] = union(*first, *second[i])
	}
	return all
}

// merged returns a sweep that covers what a or b covers. Containers and NetworkNamespaces can have
// only one value: that of b, or that of a if b has none.
func merged(a, b plan.Sweep) plan.Sweep {
	if b.Containers == "" {
		b.Containers = a.Containers
	}
	if b.NetworkNamespaces == "" {
		b.NetworkNamespaces = a.NetworkNamespaces
	}
	b.MountsUnder = union(a.MountsUnder, b.MountsUnder)
	b.Links = union(a.Links, b.Links)
	b.Tables = union(a.Tables, b.Tables)
	b.IPTablesPrefixes = union(a.IPTablesPrefixes, b.IPTablesPrefixes)
	b.Cgroups = union(a.Cgroups, b.Cgroups)
	b.Paths = union(a.Paths, b.Paths)
	return b
}

// union returns a with the entries of b that are not in a.
func union(a, b []string) []string { return append(slices.Clone(a), without(b, a)...) }
