package placement

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/spine"
)

// overriding returns an override policy that sets the value of every ConfigMap of the
// namespace.
func overriding(ns, name, value string) string {
	return fmt.Sprintf(`---
apiVersion: policy.orrery.dev/v1alpha1
kind: OverridePolicy
metadata: {name: %s, namespace: %s}
spec:
  resourceSelectors: [{apiVersion: v1, kind: ConfigMap}]
  overrideRules: [{overriders: {plaintext: [{path: /data/key, operator: replace, value: %q}]}}]
`, name, ns, value)
}

const (
	policyAPI  = "policy.orrery.dev/v1alpha1"
	configMaps = "{apiVersion: v1, kind: ConfigMap}"
)

// valueOf returns the value in the write of a ConfigMap.
func valueOf(r testenv.Write) (value string, found bool) {
	value, found, _ = unstructured.NestedString(r.Body, "data", "key")
	return value, found && r.Resource == "configmaps"
}

// versionOf returns the written object with the value of a ConfigMap.
func versionOf(r testenv.Write) string {
	value, _ := valueOf(r)
	return r.Object() + " " + value
}

// valuesIn counts the writes of ConfigMaps to a member by value. A write that is repeated
// because its answer was lost counts once.
func valuesIn(w *spine.World, m *testenv.Member) map[string]int {
	values := map[string]int{}
	for _, r := range spine.Once(w.Writes(m), versionOf) {
		if value, found := valueOf(r); found {
			values[value]++
		}
	}
	return values
}

// pauseHub stops the orrery process of the hub until resume is called, or the test ends. The hub's
// API server and etcd continue.
func pauseHub(w *spine.World) (resume func()) {
	w.Helper()
	read := func(path string) string {
		text, err := os.ReadFile(path)
		w.Must(err)
		return string(text)
	}
	files, err := filepath.Glob(filepath.Join(w.Hub.Dir, "*", "kube-apiserver.pid"))
	if err != nil || len(files) != 1 {
		w.Fatalf("pidfiles of the hub's API server: %v %v", files, err)
	}
	child, _, _ := strings.Cut(read(files[0]), "\n")
	// Orrery is the parent of the API server.
	_, parent, _ := strings.Cut(read("/proc/"+child+"/status"), "\nPPid:")
	parent, _, _ = strings.Cut(strings.TrimSpace(parent), "\n")
	pid, err := strconv.Atoi(parent)
	w.Must(err)
	if command := read("/proc/" + parent + "/cmdline"); !strings.Contains(command, w.Hub.Dir) {
		w.Fatalf("the parent of the hub's API server is %q", command)
	}
	w.Must(syscall.Kill(pid, syscall.SIGSTOP))
	resume = sync.OnceFunc(func() {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			w.Error(err)
		}
	})
	w.Cleanup(resume)
	return resume
}

// TestPolicyAndOverrideGoTogether deletes a policy and the override of its templates together,
// in either order: no replica without the override ever reaches a member. This holds then,
// after a restart, and with the next edit of the template.
func TestPolicyAndOverrideGoTogether(t *testing.T) {
	for _, tc := range testenv.Sample(t, 3, []struct {
		name          string
		first, second [2]string
		more          []string // more fields of the policy's spec
		paused        bool     // the hub sees neither deletion before both are done
	}{
		{"ThePolicyFirst", [2]string{"PropagationPolicy", "p"}, [2]string{"OverridePolicy", "o"}, nil, false},
		// Two deletions belong together only if the second one comes within two seconds after the hub
		// has seen the first one. This test may be slower, so the hub is paused.
		{"TheOverrideFirst", [2]string{"OverridePolicy", "o"}, [2]string{"PropagationPolicy", "p"}, nil, true},
		{
			"TheOverrideIsOneThatThePolicyNeeds",
			[2]string{"OverridePolicy", "o"},
			[2]string{"PropagationPolicy", "p"},
			[]string{"dependentOverrides: [o]"},
			false,
		},
	}) {
		t.Run(tc.name, func(t *testing.T) {
			const many = 20
			w := spine.Start(t, "together-"+spine.Lower(tc.name))
			w.Hub.Apply(t, overriding(w.Namespace, "o", "overridden")+spine.Policy(w.Namespace, "p", configMaps, spine.In("oak", "pine"), tc.more...))
			// The hub may see the policy and a template before the override. It has seen the override when
			// a copy has its value.
			w.Hub.Apply(t, spine.ConfigMap(w.Namespace, "seen", "plain"))
			for _, m := range []*testenv.Member{w.Oak, w.Pine} {
				w.Data(m, "seen", "overridden")
				w.Marks[m.Name] = m.Mark()
			}
			for i := range many {
				w.Hub.Apply(t, spine.ConfigMap(w.Namespace, fmt.Sprint("c", i), "plain"))
			}
			for i := range many {
				w.Applied("ConfigMap", fmt.Sprint("c", i))
			}
			resume := func() {}
			if tc.paused {
				resume = pauseHub(w)
			}
			w.Hub.Remove(t, policyAPI, tc.first[0], w.Namespace, tc.first[1])
			w.Hub.Remove(t, policyAPI, tc.second[0], w.Namespace, tc.second[1])
			resume()
			// The hub has seen the deletion, and that the override is missing.
			for i := range many {
				w.Binding("ConfigMap", fmt.Sprint("c", i), "Scheduled=True/PolicyGone")
				w.Binding("ConfigMap", fmt.Sprint("c", i), "FullyApplied=False/OverrideMissing")
			}
			w.Hub.Kill()
			w.Restart()
			w.Ready(w.Oak)
			w.Hub.Apply(t, spine.ConfigMap(w.Namespace, "c0", "edited"))
			w.Eventually("the edit is known", func() error {
				b, err := w.Hub.Find(t.Context(), "work.orrery.dev/v1alpha2", "ResourceBinding", w.Namespace, "c0-configmap")
				if err != nil {
					return err
				}
				if has := spine.Conditions(b); !strings.Contains(has, "FullyApplied=False/OverrideMissing") {
					return errors.New(has)
				}
				return nil
			})
			for _, m := range []*testenv.Member{w.Oak, w.Pine} {
				if values := valuesIn(w, m); len(values) != 1 || values["overridden"] != many {
					t.Errorf("%s was written %v, want %d overridden", m.Name, values, many)
				}
			}
			// A policy that claims the templates again applies their current version.
			w.Hub.Apply(t, spine.Policy(w.Namespace, "again", configMaps, spine.In("oak", "pine")))
			w.Applied("ConfigMap", "c0")
			if values := valuesIn(w, w.Oak); values["edited"] != 1 {
				t.Errorf("oak was written %v", values)
			}
		})
	}
}

// TestSuspension: a cluster that a policy suspends gets no write. Afterwards each object is
// written once, in its current version.
func TestSuspension(t *testing.T) {
	w := spine.Start(t, "suspension")
	place := func(clusters, suspension string) {
		var more []string
		if suspension != "" {
			more = []string{"suspension: {" + suspension + "}"}
		}
		w.Hub.Apply(t, spine.Policy(w.Namespace, "p", configMaps, "clusterAffinity: {clusterNames: ["+clusters+"]}", more...))
	}
	place("oak, pine", "")
	w.Hub.Apply(t, spine.ConfigMap(w.Namespace, "c", "1"))
	w.Applied("ConfigMap", "c")
	mark := w.Oak.Mark()
	place("oak, pine", "dispatchingOnClusters: {clusterNames: [oak]}")
	w.Eventually("the suspension in the binding", func() error {
		b, err := w.Hub.Find(t.Context(), "work.orrery.dev/v1alpha2", "ResourceBinding", w.Namespace, "c-configmap")
		if err == nil {
			if _, there, _ := unstructured.NestedMap(b.Object, "spec", "suspension"); !there {
				err = errors.New("it has none")
			}
		}
		return err
	})
	w.Hub.Apply(t, spine.ConfigMap(w.Namespace, "c", "2")+spine.ConfigMap(w.Namespace, "new", "2"))
	w.Binding("ConfigMap", "c", "FullyApplied=False/Suspended")
	w.Binding("ConfigMap", "new", "FullyApplied=False/Suspended")
	place("pine", "dispatchingOnClusters: {clusterNames: [oak]}")
	w.Applied("ConfigMap", "new")
	w.Applied("ConfigMap", "c")
	if b := w.Placed(w.Oak, "v1", "ConfigMap", "c"); b.Object["data"].(map[string]any)["key"] != "1" {
		t.Errorf("oak has %v", b.Object["data"])
	}
	place("oak, pine", "dispatching: true")
	w.Hub.Apply(t, spine.ConfigMap(w.Namespace, "c", "3"))
	w.Binding("ConfigMap", "c", "FullyApplied=False/Suspended")
	w.Hub.Kill()
	w.Restart()
	w.Ready(w.Oak)
	w.Binding("ConfigMap", "c", "FullyApplied=False/Suspended")
	if got := w.WritesSince(w.Oak, mark); len(got) > 0 {
		t.Errorf("while it was suspended, oak was written %v", got)
	}
	place("oak, pine", "")
	w.Applied("ConfigMap", "c")
	w.Applied("ConfigMap", "new")
	if got := spine.Once(w.WritesSince(w.Oak, mark), versionOf); len(got) != 2 {
		t.Errorf("oak was written %v, want each object once", got)
	}
	// Suspension does not delay a deletion on the hub.
	place("oak, pine", "dispatching: true")
	w.Hub.Remove(t, "v1", "ConfigMap", w.Namespace, "c")
	w.Gone(w.Oak, "v1", "ConfigMap", "c")
	w.Gone(w.Pine, "v1", "ConfigMap", "c")
}

// TestDependenciesFollow: the dependencies of a Deployment are placed, deleted and moved with
// it. They do not move before the Deployment.
func TestDependenciesFollow(t *testing.T) {
	t.Parallel()
	w := spine.Start(t, "dependencies")
	place := func(clusters ...string) {
		w.Hub.Apply(t, spine.Policy(w.Namespace, "web", web, spine.In(clusters...), "propagateDeps: true"))
	}
	place("oak")
	d := strings.Replace(spine.Deployment(w.Namespace, "web", 2), "spec: {containers: [{name: web, image: \"example.org/web:1\"}]}",
		"spec: {serviceAccountName: runner, containers: [{name: web, image: \"example.org/web:1\", envFrom: [{configMapRef: {name: conf}}, {secretRef: {name: key}}]}]}", 1)
	w.Hub.Apply(t, spine.ConfigMap(w.Namespace, "conf", "1")+spine.ConfigMap(w.Namespace, "other", "1")+spine.Secret(w.Namespace, "key", "s")+spine.ServiceAccount(w.Namespace, "runner")+d)
	follow := []spine.Kind{
		{APIVersion: "v1", Kind: "ConfigMap"},
		{APIVersion: "v1", Kind: "Secret"},
		{APIVersion: "v1", Kind: "ServiceAccount"},
	}
	names := []string{"conf", "key", "runner"}
	for i, k := range follow {
		w.Placed(w.Oak, k.APIVersion, k.Kind, names[i])
	}
	w.Available(w.Oak, "web", 2)
	place("pine")
	w.Available(w.Pine, "web", 2)
	w.Gone(w.Oak, "apps/v1", "Deployment", "web")
	for i, k := range follow {
		w.Placed(w.Pine, k.APIVersion, k.Kind, names[i])
		w.Gone(w.Oak, k.APIVersion, k.Kind, names[i])
	}
	last := 0
	for _, r := range w.Writes(w.Oak) { // the Deployment left before its dependencies
		if strings.HasPrefix(r.Verb, "delete") && r.Resource == "deployments" {
			last = r.Order
		}
		if strings.HasPrefix(r.Verb, "delete") && r.Resource != "deployments" && r.Resource != "namespaces" && last == 0 {
			t.Errorf("it went before the Deployment: %s", r)
		}
	}
	w.Hub.Remove(t, "apps/v1", "Deployment", w.Namespace, "web")
	for i, k := range follow {
		w.Gone(w.Pine, k.APIVersion, k.Kind, names[i])
	}
	for _, m := range []*testenv.Member{w.Oak, w.Pine} {
		for _, r := range w.Writes(m) {
			if r.Name == "other" {
				t.Errorf("%s: %s", m.Name, r)
			}
		}
	}
	if o := w.Lookup(w.Hub.API, "v1", "ConfigMap", w.Namespace, "conf"); o == nil {
		t.Error("the template is gone")
	}
}
