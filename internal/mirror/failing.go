package mirror

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Failing returns why a type of a cluster is not listed, as Problem does, and since when no list
// of the type has succeeded while the cluster answered. A starting API server refuses some lists
// for a moment.
func (m *Mirror) Failing(cluster string, gr schema.GroupResource) (since time.Time, problem error) {
	t, unlock := m.table(cluster, gr)
	defer unlock()
	if t == nil || t.synced || t.problem == nil {
		return time.Time{}, nil
	}
	since = t.failing
	// The problem comes from an earlier watch, and the type is about to be listed.
	if since.IsZero() {
		since = time.Now()
	}
	if answers := t.cluster.since; answers.After(since) {
		since = answers
	}
	return since, t.problem
}

// Silence returns why a type of a cluster is not watched, and whether it was listed. why is empty
// if the type is watched or is being listed.
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

// attempted records the result of an attempt to read the type, which ran for the given time. The
// caller holds the cluster's lock.
func (t *table) attempted(problem error, ran time.Duration) {
	t.problem = problem
	switch {
	case problem == nil || t.synced:
		t.failing = time.Time{}
	case t.failing.IsZero():
		t.failing = time.Now().Add(-ran)
	}
}
