package provision

import (
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/intent"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/pki"
)

var unexported = cmpopts.IgnoreUnexported(lifecycle.State{})

// secrets returns the versions of the Secrets with the state of clusters, by name.
func secrets(t *testing.T, c client.Reader) map[string]string {
	t.Helper()
	list := &corev1.SecretList{}
	eventually(t, "the Secrets are listed", func() (bool, string) {
		err := c.List(t.Context(), list, client.InNamespace(clusterv1alpha1.SecretNamespace))
		return err == nil, fmt.Sprint(err)
	})
	versions := map[string]string{}
	for _, s := range list.Items {
		if strings.Contains(s.Name, ".lifecycle") {
			versions[s.Name] = s.ResourceVersion
		}
	}
	return versions
}

func save(t *testing.T, s *Store, state *lifecycle.State) {
	t.Helper()
	if err := s.Save(t.Context(), state); err != nil {
		t.Fatal(err)
	}
}

func load(t *testing.T, s *Store, cluster string) *lifecycle.State {
	t.Helper()
	state, err := s.Load(t.Context(), cluster)
	if err != nil {
		t.Fatal(err)
	}
	return state
}

func TestState(t *testing.T) {
	s := newStore(t, "one")
	if state := load(t, s, "oak"); state != nil {
		t.Errorf("of an unknown cluster: state %v", state)
	}
	pair := func(text string) pki.KeyPair { return pki.KeyPair{Cert: []byte(text), Key: []byte("key of " + text)} }
	want := &lifecycle.State{
		Cluster: "oak", Authorities: pki.Authorities{"ca": {pair("new"), pair("old")}}, Digests: map[string]string{"kubelet": "sha256:1"},
		Keys:    pki.Bundle{"admin": pair("admin"), "h-1/kubelet": pair("one"), "h-2.local/kubelet": pair("two")},
		Renewed: pki.Bundle{"admin": pair("next"), "h-1/kubelet": pair("next one")},
		Specs:   intent.Specs{Applied: provision(1, 2)},
	}
	save(t, s, want)
	versions := secrets(t, s.Client)
	if d := cmp.Diff([]string{"oak.lifecycle", "oak.lifecycle.h-1", "oak.lifecycle.h-2.local"}, slices.Sorted(maps.Keys(versions))); d != "" {
		t.Errorf("Secrets (-want +got):\n%s", d)
	}
	save(t, s, want)
	if d := cmp.Diff(versions, secrets(t, s.Client)); d != "" {
		t.Errorf("what has not changed is written: %s", d)
	}
	other := &lifecycle.State{Cluster: "oak-2", Keys: pki.Bundle{"h-1/kubelet": pair("of another cluster")}}
	save(t, s, other)
	// Another client annotates the Secret.
	noted := &corev1.Secret{}
	if err := s.Client.Get(t.Context(), secretPieceStore{cluster: "oak"}.key("h-2.local"), noted); err != nil {
		t.Fatal(err)
	}
	noted.Annotations = map[string]string{"example.com/backup": "daily"}
	if err := s.Client.Update(t.Context(), noted); err != nil {
		t.Fatal(err)
	}

	want = load(t, s, "oak")
	want.Wanted = provision(1)
	want.Keys["h-2.local/kubelet"] = pair("another")
	delete(want.Keys, "h-1/kubelet")
	delete(want.Renewed, "h-1/kubelet")
	save(t, s, want)
	if d := cmp.Diff(want, load(t, s, "oak"), unexported); d != "" {
		t.Errorf("state (-want +got):\n%s", d)
	}
	if err := s.Client.Get(t.Context(), client.ObjectKeyFromObject(noted), noted); err != nil || noted.Annotations["example.com/backup"] != "daily" {
		t.Errorf("annotations %v, error %v: want what somebody noted", noted.Annotations, err)
	}
	for range 2 {
		if err := s.Remove(t.Context(), want); err != nil { // the second time there is nothing to remove
			t.Fatal(err)
		}
	}
	if state := load(t, s, "oak"); state != nil {
		t.Errorf("after Remove: state %v", state)
	}
	if d := cmp.Diff([]string{"oak-2.lifecycle", "oak-2.lifecycle.h-1"}, slices.Sorted(maps.Keys(secrets(t, s.Client)))); d != "" {
		t.Errorf("Secrets that are left (-want +got):\n%s", d)
	}
}

// TestStateOfManyHosts stores three thousand hosts with leaves and renewed leaves. A spec has at
// most a thousand hosts.
func TestStateOfManyHosts(t *testing.T) {
	const hosts, thousand, planes = 3000, 1000, 3
	s := newStore(t, "one")
	now, all := time.Now(), provision()
	want := &lifecycle.State{Cluster: "oak", Specs: intent.Specs{Wanted: all, Applied: all, WantedBy: "oak-1"}}
	for first := 1; first < hosts; first += thousand {
		spec := provision()
		for i := first; i < first+thousand; i++ {
			spec.Hosts = append(spec.Hosts, clusterv1alpha1.Host{
				Name: fmt.Sprintf("h-%d", i), Address: fmt.Sprintf("10.0.%d.%d", i>>8, i&255), Arch: "amd64", User: "root",
				SecretRef: &clusterv1alpha1.SecretReference{Namespace: clusterv1alpha1.SecretNamespace, Name: "ssh"},
				Labels:    map[string]string{"topology.kubernetes.io/zone": fmt.Sprintf("zone-%d", i%3)},
			})
		}
		control := fmt.Sprintf("h-[%d:%d]", first, first+planes-1)
		spec.RoleGroups = map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{
			clusterv1alpha1.RoleControlPlane: {control}, clusterv1alpha1.RoleEtcd: {control},
			clusterv1alpha1.RoleWorker: {fmt.Sprintf("h-[%d:%d]", first+planes, first+thousand-1)},
		}
		plan.Default("oak", spec)
		all.Hosts = append(all.Hosts, spec.Hosts...)
		for _, at := range []time.Time{now, now.Add(pki.LeafLifetime)} {
			if err := want.Mint(at, spec); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(want.Renewed) < 3*(hosts-hosts/thousand*planes) {
		t.Fatalf("%d successors", len(want.Renewed))
	}
	began := time.Now()
	save(t, s, want)
	saved := time.Since(began)
	got := load(t, s, "oak")
	if d := cmp.Diff(want, got, unexported); d != "" {
		t.Errorf("state (-want +got):\n%s", d)
	}
	largest := 0
	list := &corev1.SecretList{}
	if err := s.Client.List(t.Context(), list, client.InNamespace(clusterv1alpha1.SecretNamespace)); err != nil {
		t.Fatal(err)
	}
	for _, secret := range list.Items {
		switch secret.Name {
		case "oak.lifecycle":
			t.Logf("the state has %d bytes; saved after %s", secret.Size(), saved)
			if secret.Size() > maxSecret/4 {
				t.Errorf("the state has %d bytes, want a quarter of what a Secret takes at most", secret.Size())
			}
		default:
			largest = max(largest, secret.Size())
		}
	}
	t.Logf("the largest record has %d bytes", largest)
	if largest > 64<<10 {
		t.Errorf("a record has %d bytes", largest)
	}
	if err := s.Remove(t.Context(), got); err != nil {
		t.Fatal(err)
	}
	if left := secrets(t, s.Client); len(left) > 0 {
		t.Errorf("%d Secrets are left", len(left))
	}
}

// TestStateIsFenced: a server that lost the cluster overwrites nothing of its successor.
func TestStateIsFenced(t *testing.T) {
	pair := func(text string) pki.KeyPair { return pki.KeyPair{Cert: []byte(text)} }
	one := newStore(t, "one")
	two := &Store{Client: one.Client}
	for name, change := range map[string]func(s *lifecycle.State, text string){
		"1 Both new":  func(s *lifecycle.State, text string) { s.Keys = pki.Bundle{"h-1/kubelet": pair(text)} },
		"2 State":     func(s *lifecycle.State, text string) { s.WantedBy = text },
		"3 Record":    func(s *lifecycle.State, text string) { s.Renewed["h-1/kubelet"] = pair(text) },
		"4 New host":  func(s *lifecycle.State, text string) { s.Keys["h-"+text+"/kubelet"] = pair(text) },
		"5 Host gone": func(s *lifecycle.State, _ string) { delete(s.Keys, "h-1/kubelet"); delete(s.Renewed, "h-1/kubelet") },
	} {
		t.Run(name, func(t *testing.T) {
			if state := load(t, one, "oak"); state != nil {
				if err := one.Remove(t.Context(), state); err != nil {
					t.Fatal(err)
				}
			}
			first, second := &lifecycle.State{Cluster: "oak"}, &lifecycle.State{Cluster: "oak"}
			if !strings.HasPrefix(name, "1") {
				save(t, one, &lifecycle.State{Cluster: "oak", Keys: pki.Bundle{"h-1/kubelet": pair("0"), "h-2/kubelet": pair("0")}})
				first, second = load(t, one, "oak"), load(t, two, "oak")
			}
			change(second, "9")
			save(t, two, second)
			kept := secrets(t, one.Client)
			change(first, "8")
			first.Keys["h-2/kubelet"] = pair("of the first")
			if err := one.Save(t.Context(), first); !errors.Is(err, lifecycle.ErrStale) || !strings.Contains(err.Error(), "cluster oak: Secret orrery-cluster/oak.lifecycle") {
				t.Errorf("error %v, want one that says that the state was changed", err)
			}
			if err := one.Remove(t.Context(), first); !errors.Is(err, lifecycle.ErrStale) {
				t.Errorf("removed with error %v, want one that says that the state was changed", err)
			}
			if d := cmp.Diff(kept, secrets(t, one.Client)); d != "" {
				t.Errorf("something is written (-before +after):\n%s", d)
			}
		})
	}
}

func TestStateThatCannotBeKept(t *testing.T) {
	s := newStore(t, "one")
	state := &lifecycle.State{Cluster: "oak", Digests: map[string]string{}}
	for range 60_000 {
		state.Digests[rand.Text()] = rand.Text()
	}
	if err := s.Save(t.Context(), state); err == nil || !strings.Contains(err.Error(), "make spec.provision smaller") {
		t.Errorf("error %v, want one that says the way out", err)
	}
}

func TestDamagedState(t *testing.T) {
	s := newStore(t, "one")
	save(t, s, &lifecycle.State{Cluster: "oak", Keys: pki.Bundle{"h-1/kubelet": {Cert: []byte("one")}}})
	for _, host := range []string{"h-1", ""} {
		want := secretPieceStore{cluster: "oak"}.Name(host) + " is damaged"
		secret, key := &corev1.Secret{}, stateKey
		if host != "" {
			key = hostKey
		}
		if err := s.Client.Get(t.Context(), secretPieceStore{cluster: "oak"}.key(host), secret); err != nil {
			t.Fatal(err)
		}
		secret.Data = map[string][]byte{key: []byte("nonsense")}
		if err := s.Client.Update(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Load(t.Context(), "oak"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that names the Secret", err)
		}
	}
}
