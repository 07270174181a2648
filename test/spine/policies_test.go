package spine

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"orrery.dev/orrery/internal/testenv"
)

// overriding is an override policy that sets the value of every ConfigMap of the namespace.
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

// valuesIn are the values with which ConfigMaps were written to a member.
func (w *world) valuesIn(m *testenv.Member) map[string]int {
	values := map[string]int{}
	for _, r := range w.writes(m) {
		if value, found, _ := unstructured.NestedString(r.Body, "data", "key"); found && r.Resource == "configmaps" {
			values[value]++
		}
	}
	return values
}

// TestPolicyAndOverrideGoTogether deletes a policy and the override of what it placed in one go,
// in either order: no replica without the override ever reaches a member, neither then nor after
// a restart nor with the next edit of the template.
func TestPolicyAndOverrideGoTogether(t *testing.T) {
	for name, tc := range map[string]struct {
		first, second [2]string
		more          []string // of the policy's spec
	}{
		"ThePolicyFirst":   {[2]string{"PropagationPolicy", "p"}, [2]string{"OverridePolicy", "o"}, nil},
		"TheOverrideFirst": {[2]string{"OverridePolicy", "o"}, [2]string{"PropagationPolicy", "p"}, nil},
		"TheOverrideIsOneThatThePolicyNeeds": {
			[2]string{"OverridePolicy", "o"}, [2]string{"PropagationPolicy", "p"}, []string{"dependentOverrides: [o]"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			const many = 20
			w := start(t, "together-"+lower(name))
			w.hub.Apply(t, overriding(w.ns, "o", "overridden")+policy(w.ns, "p", configMaps, in("oak", "pine"), tc.more...))
			for i := range many {
				w.hub.Apply(t, configMap(w.ns, fmt.Sprint("c", i), "plain"))
			}
			for i := range many {
				w.applied("ConfigMap", fmt.Sprint("c", i))
			}
			w.hub.Remove(t, policyAPI, tc.first[0], w.ns, tc.first[1])
			w.hub.Remove(t, policyAPI, tc.second[0], w.ns, tc.second[1])
			for i := range many { // what goes is known, and that its override is missing
				w.binding("ConfigMap", fmt.Sprint("c", i), "Scheduled=True/PolicyGone")
				w.binding("ConfigMap", fmt.Sprint("c", i), "FullyApplied=False/OverrideMissing")
			}
			w.hub.Kill()
			w.restart()
			w.ready(w.oak)
			w.hub.Apply(t, configMap(w.ns, "c0", "edited"))
			w.eventually("the edit is known", func() error {
				b, err := w.hub.Find(t.Context(), "work.orrery.dev/v1alpha2", "ResourceBinding", w.ns, "c0-configmap")
				if err != nil {
					return err
				}
				if has := conditions(b); !strings.Contains(has, "FullyApplied=False/OverrideMissing") {
					return errors.New(has)
				}
				return nil
			})
			for _, m := range []*testenv.Member{w.oak, w.pine} {
				if values := w.valuesIn(m); len(values) != 1 || values["overridden"] != many {
					t.Errorf("%s was written %v, want %d overridden", m.Name, values, many)
				}
			}
			// A policy that claims them again means them as they are then.
			w.hub.Apply(t, policy(w.ns, "again", configMaps, in("oak", "pine")))
			w.applied("ConfigMap", "c0")
			if values := w.valuesIn(w.oak); values["edited"] != 1 {
				t.Errorf("oak was written %v", values)
			}
		})
	}
}

// TestSuspension: to a cluster that a policy suspends nothing is written, and then what is wanted, once.
func TestSuspension(t *testing.T) {
	w := start(t, "suspension")
	place := func(clusters, suspension string) {
		var more []string
		if suspension != "" {
			more = []string{"suspension: {" + suspension + "}"}
		}
		w.hub.Apply(t, policy(w.ns, "p", configMaps, "clusterAffinity: {clusterNames: ["+clusters+"]}", more...))
	}
	place("oak, pine", "")
	w.hub.Apply(t, configMap(w.ns, "c", "1"))
	w.applied("ConfigMap", "c")
	mark := w.oak.Mark()
	place("oak, pine", "dispatchingOnClusters: {clusterNames: [oak]}")
	w.eventually("the suspension in the binding", func() error {
		b, err := w.hub.Find(t.Context(), "work.orrery.dev/v1alpha2", "ResourceBinding", w.ns, "c-configmap")
		if err == nil {
			if _, there, _ := unstructured.NestedMap(b.Object, "spec", "suspension"); !there {
				err = errors.New("it has none")
			}
		}
		return err
	})
	w.hub.Apply(t, configMap(w.ns, "c", "2")+configMap(w.ns, "new", "2"))
	w.binding("ConfigMap", "c", "FullyApplied=False/Suspended")
	w.binding("ConfigMap", "new", "FullyApplied=False/Suspended")
	place("pine", "dispatchingOnClusters: {clusterNames: [oak]}")
	w.applied("ConfigMap", "new")
	w.applied("ConfigMap", "c")
	if b := w.placed(w.oak, "v1", "ConfigMap", "c"); b.Object["data"].(map[string]any)["key"] != "1" {
		t.Errorf("oak has %v", b.Object["data"])
	}
	place("oak, pine", "dispatching: true")
	w.hub.Apply(t, configMap(w.ns, "c", "3"))
	w.binding("ConfigMap", "c", "FullyApplied=False/Suspended")
	w.hub.Kill()
	w.restart()
	w.ready(w.oak)
	w.binding("ConfigMap", "c", "FullyApplied=False/Suspended")
	if got := w.writesSince(w.oak, mark); len(got) > 0 {
		t.Errorf("while it was suspended, oak was written %v", got)
	}
	place("oak, pine", "")
	w.applied("ConfigMap", "c")
	w.applied("ConfigMap", "new")
	if got := w.writesSince(w.oak, mark); len(got) != 2 {
		t.Errorf("oak was written %v, want each object once", got)
	}
	// A deletion on the hub is not held up.
	place("oak, pine", "dispatching: true")
	w.hub.Remove(t, "v1", "ConfigMap", w.ns, "c")
	w.gone(w.oak, "v1", "ConfigMap", "c")
	w.gone(w.pine, "v1", "ConfigMap", "c")
}

// TestDependenciesFollow: what a Deployment refers to comes and goes with it, and moves with it no
// earlier than it does.
func TestDependenciesFollow(t *testing.T) {
	w := start(t, "dependencies")
	place := func(clusters ...string) {
		w.hub.Apply(t, policy(w.ns, "web", web, in(clusters...), "propagateDeps: true"))
	}
	place("oak")
	d := strings.Replace(deployment(w.ns, "web", 2), "spec: {containers: [{name: web, image: \"example.org/web:1\"}]}",
		"spec: {serviceAccountName: runner, containers: [{name: web, image: \"example.org/web:1\", envFrom: [{configMapRef: {name: conf}}, {secretRef: {name: key}}]}]}", 1)
	w.hub.Apply(t, configMap(w.ns, "conf", "1")+configMap(w.ns, "other", "1")+secret(w.ns, "key", "s")+serviceAccount(w.ns, "runner")+d)
	follow := []kindName{{"v1", "ConfigMap"}, {"v1", "Secret"}, {"v1", "ServiceAccount"}}
	names := []string{"conf", "key", "runner"}
	for i, k := range follow {
		w.placed(w.oak, k.apiVersion, k.kind, names[i])
	}
	w.available(w.oak, "web", 2)
	place("pine")
	w.available(w.pine, "web", 2)
	w.gone(w.oak, "apps/v1", "Deployment", "web")
	for i, k := range follow {
		w.placed(w.pine, k.apiVersion, k.kind, names[i])
		w.gone(w.oak, k.apiVersion, k.kind, names[i])
	}
	last := 0
	for _, r := range w.writes(w.oak) { // the Deployment went before what it needs
		if strings.HasPrefix(r.Verb, "delete") && r.Resource == "deployments" {
			last = r.Order
		}
		if strings.HasPrefix(r.Verb, "delete") && r.Resource != "deployments" && r.Resource != "namespaces" && last == 0 {
			t.Errorf("it went before the Deployment: %s", r)
		}
	}
	w.hub.Remove(t, "apps/v1", "Deployment", w.ns, "web")
	for i, k := range follow {
		w.gone(w.pine, k.apiVersion, k.kind, names[i])
	}
	for _, m := range []*testenv.Member{w.oak, w.pine} {
		for _, r := range w.writes(m) {
			if r.Name == "other" {
				t.Errorf("%s: %s", m.Name, r)
			}
		}
	}
	if o, err := w.hub.Find(t.Context(), "v1", "ConfigMap", w.ns, "conf"); err != nil || o == nil {
		t.Errorf("the template is gone: %v", err)
	}
}
