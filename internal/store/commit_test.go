package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/testenv"
)

// TestLostCommits cuts connections at the COMMIT of all kinds of writes: before the server gets
// it, after it is done, or while it is sent. The caller retries failed calls, as the mirror
// does. Each change is then stored once and sent as one event, clusters and types have their
// stored identities, and checkpoints are the ones that were saved last. SOAK=1 cuts 200
// connections, else 40 are cut.
func TestLostCommits(t *testing.T) {
	onServers(t, func(t *testing.T, d *testenv.Database, at string) {
		commits, proxied := d.Commits(t, at)
		s := openStore(t, proxied)
		u := &unlucky{store: s, commits: commits, random: testenv.Rand(t), pods: map[string]Row{}, gadgets: map[string]bool{}}
		_, err := s.Version(t.Context())
		check(t, err)
		cuts := testenv.Count(t, "CUTS", 40, 200)
		for step := 0; commits.Done() < cuts && !t.Failed(); step++ {
			u.step(t, step)
		}
		consistent(t, s.db.read, len(u.pods)+len(u.gadgets))
		if s.Losses() != 0 {
			t.Errorf("%d losses: nothing was lost", s.Losses())
		}
		held(t, s)
	})
}

// unlucky writes through a proxy that cuts connections, and records what must be stored.
type unlucky struct {
	store   *Store
	commits *testenv.Commits
	random  *rand.Rand
	pods    map[string]Row  // by key
	gadgets map[string]bool // types with an object in cluster a
	version Version         // events after it are checked
}

// until retries f until it succeeds. Any error except ErrUnavailable fails the test.
func (u *unlucky) until(t *testing.T, f func(ctx context.Context) error) {
	t.Helper()
	for {
		err := f(patience(t))
		if err == nil {
			return
		}
		if !errors.Is(err, ErrUnavailable) {
			t.Fatalf("%v, want ErrUnavailable or success", err)
		}
	}
}

// step makes a random change, and checks the stored rows and the events.
func (u *unlucky) step(t *testing.T, step int) {
	t.Helper()
	var err error
	u.version, err = u.store.Version(t.Context())
	check(t, err)
	if u.random.IntN(4) > 0 {
		u.commits.Next(testenv.CommitCut(u.random.IntN(int(testenv.CommitCuts))), []int{0, 0, 1, 2, 5}[u.random.IntN(5)])
	}
	var want []string
	switch u.random.IntN(8) {
	default:
		want = u.write(t, step)
	case 0: // a cluster that the store does not know
		r := pod(fmt.Sprint("cluster-", step), "x", "1", map[string]string{"step": fmt.Sprint(step)}, nil)
		want = u.put(t, Change{Row: r})
	case 1: // a type that the store does not know
		gr := schema.GroupResource{Group: "example.org", Resource: fmt.Sprint("gadgets-", step)}
		u.until(t, func(ctx context.Context) error { return u.store.Write(ctx, []Change{{Row: gadget(gr.Resource)}}) })
		u.gadgets[gr.Resource] = true
		u.listed(t, gr, 1)
		if events, _, _, err := u.store.Since(gr, u.version); err != nil || len(events) != 1 {
			t.Errorf("%d events of a new type, %v, want one", len(events), err)
		}
	case 2: // a type is saved, with a checkpoint
		u.until(t, func(ctx context.Context) error {
			return u.store.SaveType(ctx, Type{Cluster: "a", Resource: pods, API: []byte("{}")})
		})
		epoch, err := u.store.Epoch(t.Context())
		check(t, err)
		u.until(t, func(ctx context.Context) error {
			return u.store.SaveCheckpoints(ctx, []Checkpoint{{Cluster: "a", Resource: pods, Epoch: epoch, State: fmt.Append(nil, step)}})
		})
		if state, err := u.store.Checkpoint(t.Context(), "a", pods); err != nil || string(state) != fmt.Sprint(step) {
			t.Errorf("checkpoint %q, %v, want that of step %d", state, err, step)
		}
	case 3:
		for resource := range u.gadgets {
			gr := schema.GroupResource{Group: "example.org", Resource: resource}
			u.until(t, func(ctx context.Context) error { return u.store.DropType(ctx, "a", gr) })
			delete(u.gadgets, resource)
			u.listed(t, gr, 0)
			break
		}
	case 4:
		for _, key := range slices.Sorted(maps.Keys(u.pods)) {
			cluster, _, _ := strings.Cut(key, "/")
			if cluster == "a" {
				continue
			}
			u.until(t, func(ctx context.Context) error { return u.store.DropCluster(ctx, cluster) })
			delete(u.pods, key)
			want = []string{"- " + key}
			break
		}
	}
	events, _, _, err := u.store.Since(pods, u.version)
	check(t, err)
	var got []string
	for _, e := range events {
		sign := "~ "
		switch {
		case e.Before == nil:
			sign = "+ "
		case e.After == nil:
			sign = "- "
		}
		got = append(got, sign+keys([]Row{*e.row()})[0])
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("step %d: events -want +got:\n%s", step, diff)
	}
	page, err := u.store.List(t.Context(), Query{Resource: "pods"})
	check(t, err)
	stored := map[string]string{}
	for i := range page.Rows {
		stored[keys(page.Rows[i : i+1])[0]] = content(&page.Rows[i])
	}
	model := map[string]string{}
	for key, r := range u.pods {
		model[key] = content(&r)
	}
	if diff := cmp.Diff(model, stored); diff != "" {
		t.Errorf("step %d: rows -want +got:\n%s", step, diff)
	}
}

func gadget(resource string) Row {
	r := pod("a", "x", "1", map[string]string{"of": resource}, nil)
	r.Group, r.Resource, r.Kind, r.UID = "example.org", resource, "Gadget", types.UID(resource)
	return r
}

func (u *unlucky) listed(t *testing.T, gr schema.GroupResource, want int) {
	t.Helper()
	page, err := u.store.List(t.Context(), Query{Group: gr.Group, Resource: gr.Resource, Clusters: []string{"a"}})
	if err != nil || len(page.Rows) != want {
		t.Errorf("%d rows of %s, %v, want %d", len(page.Rows), gr, err, want)
	}
}

// write writes changes of several different objects, and returns their expected events.
func (u *unlucky) write(t *testing.T, step int) []string {
	var changes []Change
	for _, n := range u.random.Perm(12)[:1+u.random.IntN(5)] {
		r := pod("a", "x", fmt.Sprintf("%02d", n), map[string]string{"app": "web"}, map[string]any{"step": step})
		r.UID, r.ResourceVersion = types.UID(fmt.Sprint("uid-", n, "-", u.random.IntN(2))), fmt.Sprint(step)
		was, there := u.pods[keys([]Row{r})[0]]
		if there && u.random.IntN(3) > 0 {
			r.UID = was.UID
		}
		changes = append(changes, Change{Row: r, Delete: there && r.UID == was.UID && u.random.IntN(3) == 0})
	}
	return u.put(t, changes...)
}

// put writes changes, and returns their expected events.
func (u *unlucky) put(t *testing.T, changes ...Change) (want []string) {
	t.Helper()
	u.until(t, func(ctx context.Context) error { return u.store.Write(ctx, changes) })
	for _, c := range changes {
		key := keys([]Row{c.Row})[0]
		was, there := u.pods[key]
		switch {
		case c.Delete:
			delete(u.pods, key)
			want = append(want, "- "+key)
			continue
		case there && was.UID == c.UID:
			want = append(want, "~ "+key)
		case there:
			want = append(want, "- "+key, "+ "+key)
		default:
			want = append(want, "+ "+key)
		}
		u.pods[key] = c.Row
	}
	return want
}

// TestNothingIsStoredOfAnUnknownType: a row without a type or a cluster is rejected, and is not
// stored under another type or cluster.
func TestNothingIsStoredOfAnUnknownType(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		good, none, nowhere := numbered(0, 1)[0], numbered(1, 1)[0], numbered(2, 1)[0]
		none.Resource, nowhere.Cluster = "", ""
		err := s.Write(t.Context(), []Change{{Row: none}, {Row: good}, {Row: nowhere}})
		if _, rejected := errors.AsType[*RejectedError](err); !rejected {
			t.Errorf("%v, want RejectedErrors", err)
		}
		consistent(t, s.db.read, 1)
	})
}
