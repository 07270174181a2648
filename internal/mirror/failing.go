package mirror

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Failing returns why a type of a cluster cannot be listed, and since when every list of it has
// failed, but no earlier than the cluster last became reachable. If the problem is that of a watch
// and no list has failed yet, since is now. Failing returns zero and nil if the type is listed, is
// not mirrored, or has no problem. Callers compare since with a patience before they report a
// failure, because a starting API server refuses some lists.
func (m *Mirror) Failing(cluster string, gr schema.GroupResource) (since time.Time, problem error) {
	t, unlock := m.table(cluster, gr)
	defer unlock()
	if t == nil || t.synced || t.problem == nil {
		return time.Time{}, nil
	}
	since = t.failing
	// Without a failed list, the problem comes from a watch, and the type is about to be listed.
	if since.IsZero() {
		since = time.Now()
	}
	if answers := t.cluster.since; answers.After(since) {
		since = answers
	}
	return since, t.problem
}

// Silence returns why a type of a cluster is not watched, and whether the type was listed. why is
// "" if the type is watched, was watched until less than reconnectGrace ago, is being listed for
// the first time, or is not mirrored. listed is false for a type that is not mirrored.
func (m *Mirror) Silence(cluster string, gr schema.GroupResource) (why string, listed bool) {
	t, unlock := m.table(cluster, gr)
	defer unlock()
	switch {
	case t == nil:
		return "", false
	case t.synced:
		_, why = t.lag(time.Now())
		return why, true
	case t.problem != nil:
		return t.problem.Error(), false
	default:
		return "", false
	}
}

// attempted records the result of an attempt to read the table's type: problem is its error, nil a
// success. ran is how long the attempt has run. While the type was never listed, t.failing keeps
// the time of the first failure in a row. The caller holds the cluster's lock.
func (t *table) attempted(problem error, ran time.Duration) {
	t.problem = problem
	switch {
	case problem == nil || t.synced:
		t.failing = time.Time{}
	case t.failing.IsZero():
		t.failing = time.Now().Add(-ran)
	}
}
