package spine

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"

	"orrery.dev/orrery/internal/testenv"
)

// Guard checks every write to one Deployment in any member against the release rule: replicas
// that a write takes away must be available elsewhere. It checks before the write is passed on
// and counts the writes that it passed on, so that two concurrent writes cannot count on the
// same replicas.
type Guard struct {
	w    *World
	name string

	mu     sync.Mutex
	wanted int64 // in all clusters; if negative, nothing is checked
	spec   map[string]int64
	steps  []string // CLUSTER:REPLICAS, "-" for a deletion
	broken []string
	held   map[string]chan struct{} // steps that wait until the channel is closed
}

// Guarded starts to guard a Deployment that shall have wanted replicas in all clusters. The
// test fails at its end for each write that broke the release rule.
func (w *World) Guarded(name string, wanted int64) *Guard {
	w.Helper()
	g := &Guard{w: w, name: name, wanted: wanted, spec: map[string]int64{}}
	for _, m := range Members.List {
		if d := w.Lookup(m.API, "apps/v1", "Deployment", w.Namespace, name); d != nil {
			g.spec[m.Name] = Replicas(d)
		}
		m.OnWriteIn(w.Namespace, func(r testenv.Write) {
			if held := g.look(m, r); held != nil {
				<-held
			}
		})
	}
	w.Cleanup(func() {
		for _, m := range Members.List {
			m.OnWriteIn(w.Namespace, nil)
		}
		for _, b := range g.seen().broken {
			w.Error(b)
		}
	})
	return g
}

// seen returns the steps so far, and the violations.
func (g *Guard) seen() Guard {
	g.mu.Lock()
	defer g.mu.Unlock()
	return Guard{steps: append([]string(nil), g.steps...), broken: append([]string(nil), g.broken...)}
}

// Sequence returns the steps in one member.
func (g *Guard) Sequence(m *testenv.Member) (steps []string) {
	for _, s := range g.seen().steps {
		if n, ok := strings.CutPrefix(s, m.Name+":"); ok {
			steps = append(steps, n)
		}
	}
	return steps
}

// Hold delays the next write that is this step until the returned function is called or the test
// ends.
func (g *Guard) Hold(step string) (letGo func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	held := make(chan struct{})
	g.held = map[string]chan struct{}{step: held}
	letGo = sync.OnceFunc(func() { close(held) })
	g.w.Cleanup(letGo)
	return letGo
}

// look records a write and checks it. It returns the channel that the write must wait for, or
// nil.
func (g *Guard) look(m *testenv.Member, r testenv.Write) (held <-chan struct{}) {
	if r.Resource != "deployments" || r.Namespace != g.w.Namespace || r.Name != g.name || r.DryRun || r.Subresource != "" {
		return nil
	}
	n, ok := r.Replicas()
	step := fmt.Sprintf("%s:%d", m.Name, n)
	if r.Verb == "delete" {
		n, ok, step = 0, true, m.Name+":-"
	}
	if !ok {
		return nil // the write does not set replicas
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	held = g.held[step]
	g.steps = append(g.steps, step)
	before := g.spec[m.Name]
	g.spec[m.Name] = n
	if n >= before || g.wanted < 0 {
		return held
	}
	var now, after int64
	for _, other := range Members.List {
		available := g.available(other)
		if other == m {
			now += min(available, before)
			after += min(available, n)
			continue
		}
		now += min(available, g.spec[other.Name])
		after += min(available, g.spec[other.Name])
	}
	if after < min(g.wanted, now) {
		g.broken = append(g.broken, fmt.Sprintf("%s in %s leaves %d available replicas of %d, and %d are wanted; writes so far: %v",
			r.Verb, step, after, now, g.wanted, g.steps))
	}
	return held
}

// available returns the available replicas in a member. It bypasses the recorder and repeats
// until the member answers.
func (g *Guard) available(m *testenv.Member) (n int64) {
	_ = wait.PollUntilContextTimeout(context.Background(), 100*time.Millisecond, Patience, true, func(ctx context.Context) (bool, error) {
		d, err := m.Find(ctx, "apps/v1", "Deployment", g.w.Namespace, g.name)
		if err == nil {
			n = AvailableReplicas(d)
		}
		return err == nil || apierrors.IsNotFound(err), nil
	})
	return n
}

// Closed makes the nodes of a member unschedulable until open is called or the test ends.
func (w *World) Closed(m *testenv.Member) (open func()) {
	w.Helper()
	set := func(unschedulable bool) {
		var nodes []unstructured.Unstructured
		w.Eventually("list the nodes of "+m.Name, func() (err error) {
			nodes, err = m.ListKind(context.Background(), "v1", "Node", "")
			return err
		})
		for _, n := range nodes {
			m.MergePatch(w, "v1", "Node", "", n.GetName(), fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, unschedulable))
		}
	}
	set(true)
	var once sync.Once
	open = func() { once.Do(func() { set(false) }) }
	w.Cleanup(open)
	return open
}

// Broken deletes the test's pods in a member and prevents that others become ready there, until
// the returned function is called or the test ends.
func (w *World) Broken(m *testenv.Member, deployment string) (repair func()) {
	w.Helper()
	repair = w.Closed(m)
	var pods []unstructured.Unstructured
	w.Eventually("list the pods of "+m.Name, func() (err error) {
		pods, err = m.ListKind(w.Context(), "v1", "Pod", w.Namespace)
		return err
	})
	for _, p := range pods {
		m.Remove(w, "v1", "Pod", w.Namespace, p.GetName())
	}
	w.Available(m, deployment, 0)
	return repair
}
