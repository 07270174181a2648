package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/pki"
)

var sameState = cmp.Options{cmpopts.IgnoreUnexported(lifecycle.State{}), cmpopts.IgnoreFields(lifecycle.State{}, "Generation")}

// memory is a PieceStore that accepts a number of writes and can call a function before the next
// one.
type memory struct {
	mu     sync.Mutex
	pieces map[string]lifecycle.Piece // the name of the state is ""
	count  int
	left   int
	before func()
}

var errCutOff = errors.New("killed")

func (m *memory) Name(host string) string { return "piece " + host }

func (m *memory) State(context.Context) (lifecycle.Piece, bool, error) {
	p, ok := m.pieces[""]
	return p, ok, nil
}

func (m *memory) Hosts(context.Context) (map[string]lifecycle.Piece, error) {
	hosts := maps.Clone(m.pieces)
	delete(hosts, "")
	return hosts, nil
}

func (m *memory) WriteState(_ context.Context, content []byte, version string) (string, error) {
	return m.write("", content, version)
}

func (m *memory) WriteHost(_ context.Context, host string, content []byte, version string) (string, error) {
	return m.write(host, content, version)
}

func (m *memory) RemoveHost(_ context.Context, host, version string) error {
	_, err := m.write(host, nil, version)
	return err
}

func (m *memory) RemoveState(_ context.Context, version string) error {
	_, err := m.write("", nil, version)
	return err
}

func (m *memory) write(name string, content []byte, version string) (string, error) {
	if before := m.before; before != nil {
		m.before = nil
		before()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left--; m.left < 0 {
		return "", errCutOff
	}
	if m.pieces[name].Version != version {
		return "", lifecycle.ErrStale
	}
	if m.count++; content == nil {
		delete(m.pieces, name)
		return "", nil
	}
	m.pieces[name] = lifecycle.Piece{Content: content, Version: fmt.Sprint(m.count)}
	return m.pieces[name].Version, nil
}

func (m *memory) clone() *memory {
	return &memory{pieces: maps.Clone(m.pieces), count: m.count, left: 1000}
}

func (m *memory) load(t *testing.T) *lifecycle.State {
	t.Helper()
	s, err := lifecycle.LoadState(t.Context(), m, "oak")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (m *memory) save(t *testing.T, s *lifecycle.State) {
	t.Helper()
	if err := lifecycle.SaveState(t.Context(), m, s); err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// stored has a stored state: of one control plane, one worker, and renewed certificates of all
// leaves of hosts.
func stored(t *testing.T) *memory {
	t.Helper()
	m := &memory{left: 1000, pieces: map[string]lifecycle.Piece{"": {Content: readFile(t, "testdata/state.v1/state.json"), Version: "of the test"}}}
	for _, host := range []string{"h-1", "h-2"} {
		m.pieces[host] = lifecycle.Piece{Content: readFile(t, "testdata/state.v1/hosts/"+host+".json"), Version: "of the test"}
	}
	return m
}

// TestStateFormat: a state that was stored before is read whole, and written in the same form.
func TestStateFormat(t *testing.T) {
	m := stored(t)
	s := m.load(t)
	if len(s.Authorities) != 4 || len(s.Keys) == 0 || len(s.Renewed) == 0 || s.Applied == nil {
		t.Errorf("%d authorities, %d leaves, %d successors", len(s.Authorities), len(s.Keys), len(s.Renewed))
	}
	if m.save(t, s); m.count != 0 {
		t.Errorf("a state that did not change was written %d times", m.count)
	}
	want := maps.Clone(m.pieces)
	s.WantedBy = "oak-2"
	m.save(t, s)
	changed := strings.NewReplacer(`"generation":2`, `"generation":3`, `"wantedBy":"oak-1"`, `"wantedBy":"oak-2"`).Replace(string(want[""].Content))
	if d := cmp.Diff(changed, string(m.pieces[""].Content)); d != "" {
		t.Errorf("state (-want +got):\n%s", d)
	}
	for _, host := range []string{"h-1", "h-2"} {
		if d := cmp.Diff(want[host], m.pieces[host]); d != "" {
			t.Errorf("record of %s (-want +got):\n%s", host, d)
		}
	}
}

// TestStateWithoutVersion: a document that is no state is refused, and not taken for one without
// keys.
func TestStateWithoutVersion(t *testing.T) {
	m := &memory{pieces: map[string]lifecycle.Piece{"": {Content: []byte(`{"cluster":"oak"}`)}}}
	_, err := lifecycle.LoadState(t.Context(), m, "oak")
	says(t, err, "piece  is damaged", "which format", "restore it from a backup")
}

// TestStateOfLaterVersion: the state of a later version is refused and not changed.
func TestStateOfLaterVersion(t *testing.T) {
	for _, name := range []string{"", "h-1"} {
		m := stored(t)
		later := strings.Replace(string(m.pieces[name].Content), `"version":1`, `"version":7`, 1)
		m.pieces[name] = lifecycle.Piece{Content: []byte(later)}
		_, err := lifecycle.LoadState(t.Context(), m, "oak")
		says(t, err, "cluster oak", "piece "+name, "a later version of Orrery", "its format is 7", "use that version")
	}
}

// TestKilledSave interrupts a Save at each of its writes. No key that a host has is lost, and the
// next Save leaves no old piece.
func TestKilledSave(t *testing.T) {
	pair := func(text string) pki.KeyPair { return pki.KeyPair{Cert: []byte(text), Key: []byte("key of " + text)} }
	fresh := func(*testing.T) *memory { return &memory{left: 1000, pieces: map[string]lifecycle.Piece{}} }
	littered := func(t *testing.T) *memory {
		t.Helper()
		m := stored(t)
		for _, host := range []string{"h-3", "h-9"} {
			m.pieces[host] = lifecycle.Piece{Content: m.pieces["h-2"].Content, Version: "litter"}
		}
		return m
	}
	for name, tc := range map[string]struct {
		start  func(*testing.T) *memory
		change func(*lifecycle.State)
		sent   []string // the leaves that hosts have
	}{
		"New": {fresh, func(s *lifecycle.State) {
			s.Authorities = pki.Authorities{"ca": {pair("ca")}}
			s.Keys = pki.Bundle{"admin": pair("admin"), "h-1/kubelet": pair("1"), "h-2/kubelet": pair("2")}
		}, nil},
		"TakenUp": {stored, func(s *lifecycle.State) {
			s.Keys, s.Renewed = s.Keys.With(s.Renewed), pki.Bundle{}
		}, []string{"h-1/", "h-2/"}},
		"AnotherAuthority": {stored, func(s *lifecycle.State) {
			s.Authorities["ca"] = append(pki.Authority{pair("ca")}, s.Authorities["ca"]...)
			s.Renewed["h-1/kubelet"] = pair("of the new one")
		}, []string{"h-2/"}},
		"HostComesAndGoes": {stored, func(s *lifecycle.State) {
			s.Keys["h-3/kubelet"] = pair("3")
			of := func(name string, _ pki.KeyPair) bool { return strings.HasPrefix(name, "h-2/") }
			maps.DeleteFunc(s.Keys, of)
			maps.DeleteFunc(s.Renewed, of)
		}, []string{"h-1/"}},
		"Littered": {littered, func(s *lifecycle.State) { s.Keys["h-3/kubelet"] = pair("3") }, []string{"h-1/", "h-2/"}},
	} {
		t.Run(name, func(t *testing.T) {
			start := tc.start(t)
			for writes := 0; ; writes++ {
				m := start.clone()
				s := m.load(t)
				if s == nil {
					s = &lifecycle.State{Cluster: "oak"}
				}
				before := map[string]pki.KeyPair{}
				for leaf, is := range s.Planned() {
					if slices.ContainsFunc(tc.sent, func(host string) bool { return strings.HasPrefix(leaf, host) }) {
						before[leaf] = is
					}
				}
				authorities := maps.Clone(s.Authorities)
				tc.change(s)
				m.left = writes
				err := lifecycle.SaveState(t.Context(), m, s)
				m.left = 1000
				got := m.load(t)
				if err != nil && !errors.Is(err, errCutOff) {
					t.Fatal(err)
				}
				if got == nil && len(start.pieces) > 0 {
					t.Fatalf("killed after %d writes: the state is gone", writes)
				}
				for leaf, is := range before {
					if !is.Equal(got.Keys[leaf]) && !is.Equal(got.Renewed[leaf]) {
						t.Errorf("killed after %d writes: %s, which its host has, is lost", writes, leaf)
					}
				}
				for name, a := range authorities {
					if has := got.Authorities[name]; len(has) == 0 || !has[len(has)-1].Equal(a[len(a)-1]) {
						t.Errorf("killed after %d writes: authority %s is lost", writes, name)
					}
				}
				if got == nil {
					got = &lifecycle.State{Cluster: "oak"}
				}
				got.Authorities, got.Keys, got.Renewed = s.Authorities, maps.Clone(s.Keys), maps.Clone(s.Renewed)
				m.save(t, got)
				want := map[string]bool{"": true}
				for leaf := range s.Planned() {
					if host, _, ok := strings.Cut(leaf, "/"); ok {
						want[host] = true
					}
				}
				if d := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(m.pieces))); d != "" {
					t.Errorf("killed after %d writes, and saved again, there are (-want +got):\n%s", writes, d)
				}
				if d := cmp.Diff(got, m.load(t), sameState); d != "" {
					t.Errorf("killed after %d writes, and saved again (-want +got):\n%s", writes, d)
				}
				if err == nil {
					if writes < 2 {
						t.Errorf("%d writes", writes)
					}
					return
				}
			}
		})
	}
}

// TestLeftoversOfAnotherCluster: the state of a cluster was removed by hand. A new cluster with its
// name has hosts with the same names.
func TestLeftoversOfAnotherCluster(t *testing.T) {
	m := stored(t)
	delete(m.pieces, "")
	fresh := &lifecycle.State{Cluster: "oak", Keys: pki.Bundle{"h-1/kubelet": {Cert: []byte("its own")}}}
	m.left = 1
	if err := lifecycle.SaveState(t.Context(), m, fresh); !errors.Is(err, errCutOff) {
		t.Fatal(err)
	}
	if s := m.load(t); len(s.Keys)+len(s.Renewed) > 0 {
		t.Errorf("%d leaves of the other cluster are taken", len(s.Keys))
	}
	m.left = 1000
	m.save(t, fresh)
	if d := cmp.Diff(fresh, m.load(t), sameState); d != "" || len(m.pieces) != 2 {
		t.Errorf("%d pieces; state (-want +got):\n%s", len(m.pieces), d)
	}
}

// TestFencedSave: a process that was replaced, before or during its write, does not change what its
// successor wrote.
func TestFencedSave(t *testing.T) {
	for name, start := range map[string]func(*testing.T) *memory{
		"Stored": stored,
		"New":    func(*testing.T) *memory { return &memory{left: 1000, pieces: map[string]lifecycle.Piece{}} },
	} {
		for when, during := range map[string]bool{"Before": false, "During": true} {
			t.Run(name+when, func(t *testing.T) {
				m := start(t)
				load := func() *lifecycle.State {
					if s := m.load(t); s != nil {
						return s
					}
					return &lifecycle.State{Cluster: "oak", Keys: pki.Bundle{}, Renewed: pki.Bundle{}}
				}
				one, two := load(), load()
				one.Renewed["h-1/kubelet"] = pki.KeyPair{Cert: []byte("of the first")}
				two.Renewed["h-1/kubelet"] = pki.KeyPair{Cert: []byte("of the second")}
				var kept map[string]lifecycle.Piece
				overtake := func() {
					m.save(t, two)
					kept = maps.Clone(m.pieces)
				}
				if m.before = overtake; !during {
					m.before = nil
					overtake()
				}
				err := lifecycle.SaveState(t.Context(), m, one)
				if !errors.Is(err, lifecycle.ErrStale) {
					t.Errorf("error %v", err)
				}
				says(t, err, "keep the state of cluster oak", "piece ", "another process has changed it", "run it again")
				if d := cmp.Diff(kept, m.pieces); d != "" {
					t.Errorf("something is written (-want +got):\n%s", d)
				}
			})
		}
	}
}

// TestFilesAreFenced is TestFencedSave with files.
func TestFilesAreFenced(t *testing.T) {
	f := lifecycle.Files(t.TempDir())
	save := func(s *lifecycle.State) error { return f.Save(t.Context(), s) }
	load := func() *lifecycle.State {
		s, err := f.Load(t.Context(), "oak")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if err := save(&lifecycle.State{Cluster: "oak", Keys: pki.Bundle{"h-1/kubelet": {Cert: []byte("one")}}}); err != nil {
		t.Fatal(err)
	}
	one, two := load(), load()
	for range 2 { // a process can save many times in a row
		two.Renewed["h-1/kubelet"] = pki.KeyPair{Cert: []byte(fmt.Sprint(len(two.WantedBy)))}
		two.WantedBy += "x"
		if err := save(two); err != nil {
			t.Fatal(err)
		}
	}
	before := filesIn(t, string(f))
	one.WantedBy = "y"
	if err := save(one); !errors.Is(err, lifecycle.ErrStale) {
		t.Errorf("error %v", err)
	}
	if err := save(&lifecycle.State{Cluster: "oak"}); !errors.Is(err, lifecycle.ErrStale) {
		t.Errorf("of who knows of no state: error %v", err)
	}
	if d := cmp.Diff(before, filesIn(t, string(f))); d != "" {
		t.Errorf("something is written (-want +got):\n%s", d)
	}
	half := f.Path("oak", "hosts", ".h-1.json.orrery-new")
	if err := os.WriteFile(half, []byte("half of a key"), 0o600); err != nil {
		t.Fatal(err)
	}
	two.Renewed = nil
	if err := save(two); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(half); !os.IsNotExist(err) {
		t.Errorf("what a killed process has half written stays: %v", err)
	}
	// Now two has the newest state. A state loaded before the next write is stale after it.
	stale := load()
	two.WantedBy = "oak-9"
	if err := save(two); err != nil {
		t.Fatal(err)
	}
	before = filesIn(t, string(f))
	for name, s := range map[string]*lifecycle.State{"AnEarlierOne": stale, "NoneWasKnown": {Cluster: "oak"}} {
		if err := f.Remove(t.Context(), s); !errors.Is(err, lifecycle.ErrStale) || !strings.Contains(err.Error(), f.Path("oak", "state.json")) {
			t.Errorf("%s: removed with error %v", name, err)
		}
	}
	if d := cmp.Diff(before, filesIn(t, string(f))); d != "" {
		t.Errorf("something is removed (-want +got):\n%s", d)
	}
	if err := f.Remove(t.Context(), two); err != nil {
		t.Fatal(err)
	}
	stale.WantedBy = "z"
	if err := save(stale); !errors.Is(err, lifecycle.ErrStale) {
		t.Errorf("what was removed is saved again: error %v", err)
	}
	for path, content := range filesIn(t, string(f)) {
		if content != "" {
			t.Errorf("%s is left", path)
		}
	}
}

// slow is a PieceStore that removes a record only while it removes another one.
type slow struct {
	*memory

	removing chan struct{}
}

func (s slow) RemoveHost(ctx context.Context, host, version string) error {
	select {
	case s.removing <- struct{}{}:
	case <-s.removing:
	case <-time.After(patience):
		return errors.New("records are removed one after another")
	}
	return s.memory.RemoveHost(ctx, host, version)
}

// TestRecordsAreRemovedTogether: the records of a thousand hosts are removed in parallel.
func TestRecordsAreRemovedTogether(t *testing.T) {
	m := &memory{pieces: map[string]lifecycle.Piece{}, left: 5000}
	s := &lifecycle.State{Cluster: "oak", Keys: pki.Bundle{}}
	for i := range 1000 {
		s.Keys[fmt.Sprintf("h-%d/kubelet", i)] = pki.KeyPair{Cert: []byte("c")}
	}
	m.save(t, s)
	if err := lifecycle.RemoveState(t.Context(), slow{m, make(chan struct{})}, m.load(t)); err != nil {
		t.Fatal(err)
	}
	if len(m.pieces) != 0 {
		t.Errorf("%d pieces are left", len(m.pieces))
	}
}

// TestRecordsOfHosts: each host of the cluster has a record. A host whose record is lost gets new
// leaves.
func TestRecordsOfHosts(t *testing.T) {
	l := built(t, 3, 1)
	if id := l.state().ID; len(id) != 26 {
		t.Errorf("the ID is %q", id)
	}
	names := func() []string {
		entries, err := os.ReadDir(l.store.Path("oak", "hosts"))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	if d := cmp.Diff([]string{"h-1.json", "h-2.json", "h-3.json"}, names()); d != "" {
		t.Errorf("records (-want +got):\n%s", d)
	}
	if err := os.Remove(l.store.Path("oak", "hosts", "h-2.json")); err != nil {
		t.Fatal(err)
	}
	_, changes, err := l.engine.Plan(t.Context(), l.spec)
	if err != nil || len(changes.Items) == 0 {
		t.Fatalf("the plan has %v, error %v", changes, err)
	}
	for _, c := range changes.Items {
		if c.Host != "h-2" {
			t.Errorf("host %s: %s changes", c.Host, c.Step)
		}
	}
	l.must(lifecyclev1alpha1.ActionApply, l.spec)
	l.spec.Hosts = l.spec.Hosts[:2]
	l.spec.RoleGroups["worker"] = []string{"h-2"}
	l.must(lifecyclev1alpha1.ActionDeleteNode, l.spec, hosts("h-3"))
	if d := cmp.Diff([]string{"h-1.json", "h-2.json"}, names()); d != "" {
		t.Errorf("records without h-3 (-want +got):\n%s", d)
	}
}

// TestNewestSigns: the newest of two authorities signs new certificates, and both are trusted.
func TestNewestSigns(t *testing.T) {
	s := &lifecycle.State{Cluster: "oak"}
	spec := &clusterv1alpha1.Provision{Hosts: []clusterv1alpha1.Host{{Name: "h-1", Address: "10.0.0.1"}}}
	spec.RoleGroups = map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{clusterv1alpha1.RoleControlPlane: {"h-1"}}
	spec.Kubernetes.Version = version
	plan.Default("oak", spec)
	now := time.Now()
	if err := s.Mint(now, spec); err != nil {
		t.Fatal(err)
	}
	old := maps.Clone(s.Keys)
	ca, err := pki.NewAuthority("ca", now)
	if err != nil {
		t.Fatal(err)
	}
	before := s.Authorities[plan.AuthorityCluster][0]
	s.Authorities[plan.AuthorityCluster] = pki.Authority{ca, before}
	if err := s.Mint(now, spec); err != nil {
		t.Fatal(err)
	}
	if !maps.EqualFunc(old, s.Keys, pki.KeyPair.Equal) {
		t.Error("leaves that hosts have were replaced")
	}
	for _, l := range plan.Leaves("oak", spec) {
		next, ok := s.Renewed[l.Name]
		if ok != (l.Authority == plan.AuthorityCluster) || ok && !next.Fits(l, ca) {
			t.Errorf("leaf %s has a successor: %v", l.Name, ok)
		}
	}
	if got := string(s.Planned()[plan.AuthorityCluster].Cert); got != string(ca.Cert)+string(before.Cert) {
		t.Errorf("what is trusted is not both, the newest first: %s", got)
	}
}
