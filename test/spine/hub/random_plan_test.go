package hub

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/spine"
)

// attackNamespaces are the hub's namespaces in the random attack. In each, one policy places
// workloads and one the other objects. The namespace existing is in every member before any
// hub. There the policy overwrites conflicting objects.
var attackNamespaces = []string{"attack-a", "attack-b", existing}

const existing = "attack-existing"

// step is one step of the attack. Only the seed chooses it, never the results of earlier steps,
// so that a seed replays the same steps.
type step struct {
	what string
	do   func(*attack) error
}

// weighted is a kind of step with its frequency.
type weighted struct {
	weight int
	make   func(*rand.Rand) step
}

// steps returns the n steps of a seed.
func steps(seed uint64, n int) []step {
	r := rand.New(rand.NewPCG(seed, 7))
	kinds := repertoire()
	sum := 0
	for _, k := range kinds {
		sum += k.weight
	}
	all := make([]step, 0, n)
	for range n {
		at := r.IntN(sum)
		i := slices.IndexFunc(kinds, func(k weighted) bool { at -= k.weight; return at < 0 })
		all = append(all, kinds[i].make(r))
	}
	if n > 2 {
		all[n/3] = step{"back the hub up", (*attack).backUp}
		all[n*2/3] = step{"restore the hub, look, and confirm", (*attack).restore}
	}
	return all
}

func repertoire() []weighted {
	ns := func(r *rand.Rand) string { return attackNamespaces[r.IntN(len(attackNamespaces))] }
	one := func(r *rand.Rand) *testenv.Member {
		return spine.Members.Named(spine.ClusterNames[r.IntN(len(spine.ClusterNames))])
	}
	return []weighted{
		{22, func(r *rand.Rand) step {
			ns, name, value := ns(r), fmt.Sprintf("c%d", r.IntN(4)), fmt.Sprint(r.IntN(1000))
			o := spine.ConfigMap(ns, name, value)
			switch r.IntN(4) {
			case 0:
				o = spine.Secret(ns, name, value)
			case 1:
				o = spine.ServiceAccount(ns, name)
			}
			return apply("put "+words(o), labelled(o))
		}},
		{14, func(r *rand.Rand) step {
			ns, name, n := ns(r), fmt.Sprintf("d%d", r.IntN(3)), 1+r.IntN(8)
			return apply(fmt.Sprintf("put Deployment %s/%s with %d replicas", ns, name, n), labelled(spine.Deployment(ns, name, n)))
		}},
		{6, func(r *rand.Rand) step {
			ns, name, edit := ns(r), fmt.Sprintf("d%d", r.IntN(3)), r.IntN(1000)
			return step{fmt.Sprintf("edit the pods of %s/%s: %d", ns, name, edit), func(a *attack) error {
				return a.patch(a.Hub.API, "apps/v1", "Deployment", ns, name, fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"edit":"%d"}}}}}`, edit))
			}}
		}},
		{9, func(r *rand.Rand) step {
			ns, kind, name := ns(r), []string{"ConfigMap", "Secret", "Deployment", "ServiceAccount"}[r.IntN(4)], r.IntN(4)
			n := fmt.Sprintf("c%d", name)
			version := "v1"
			if kind == "Deployment" {
				n, version = fmt.Sprintf("d%d", name), "apps/v1"
			}
			return step{"delete " + kind + " " + ns + "/" + n, func(a *attack) error { return a.delete(version, kind, ns, n) }}
		}},
		{10, func(r *rand.Rand) step {
			ns := ns(r)
			weights := map[string]int{}
			for _, i := range r.Perm(3)[:1+r.IntN(3)] {
				weights[spine.ClusterNames[i]] = 1 + r.IntN(4)
			}
			return apply(fmt.Sprintf("place workloads of %s in %v", ns, weights), spine.Policy(ns, "workloads", selected("apps/v1", "Deployment"), spine.Divided(weights)))
		}},
		{6, func(r *rand.Rand) step {
			ns := ns(r)
			var names []string
			for _, i := range r.Perm(3)[:1+r.IntN(3)] {
				names = append(names, spine.ClusterNames[i])
			}
			return apply(fmt.Sprintf("place the rest of %s in %v", ns, names), restPolicy(ns, names...))
		}},
		{4, func(r *rand.Rand) step {
			ns, cluster, value := ns(r), spine.ClusterNames[r.IntN(3)], fmt.Sprint(r.IntN(1000))
			return apply(fmt.Sprintf("override ConfigMaps of %s in %s: %s", ns, cluster, value), override(ns, cluster, value))
		}},
		{4, func(r *rand.Rand) step {
			m := one(r)
			return step{"unjoin " + m.Name, func(a *attack) error { a.membership(m, false); return nil }}
		}},
		{6, func(r *rand.Rand) step {
			m := one(r)
			return step{"join " + m.Name, func(a *attack) error { a.membership(m, true); return nil }}
		}},
		{7, func(r *rand.Rand) step {
			m, f := one(r), []testenv.Fault{testenv.Hang, testenv.Cut, testenv.Mute}[r.IntN(3)]
			return step{f.String() + " " + m.Name, func(a *attack) error { a.fail(m, f); return nil }}
		}},
		{2, func(r *rand.Rand) step {
			m := one(r)
			return step{"slow " + m.Name, func(*attack) error { m.Slow(200 * time.Millisecond); return nil }}
		}},
		{10, func(r *rand.Rand) step {
			m := one(r)
			return step{"heal " + m.Name, func(a *attack) error { a.heal(m); return nil }}
		}},
		{2, func(*rand.Rand) step {
			return step{"kill -9 the server", func(a *attack) error { a.Hub.Kill(); return a.Hub.Start() }}
		}},
		{1, func(r *rand.Rand) step {
			name := []string{"etcd", "kube-apiserver"}[r.IntN(2)]
			return step{"kill -9 the hub's " + name, func(a *attack) error { return a.kill(name) }}
		}},
		{2, func(r *rand.Rand) step {
			cut := r.IntN(2) == 0
			return step{fmt.Sprintf("damage the mirror (truncate: %t)", cut), func(a *attack) error { return a.damage(cut) }}
		}},
		{6, func(r *rand.Rand) step {
			// Sometimes the name is one that a template has or will have.
			m, ns, name, value := one(r), ns(r), fmt.Sprintf("c%d", r.IntN(16)), fmt.Sprintf("foreign %d", r.IntN(1000))
			if r.IntN(3) == 0 {
				return step{"foreign claim " + ns + "/" + name + " in " + m.Name, func(a *attack) error { return a.foreign(m, spine.Claim(ns, name)) }}
			}
			return step{"foreign ConfigMap " + ns + "/" + name + " in " + m.Name, func(a *attack) error { return a.foreign(m, spine.ConfigMap(ns, name, value)) }}
		}},
		{6, func(r *rand.Rand) step {
			m, ns, name := one(r), ns(r), fmt.Sprintf("c%d", r.IntN(4))
			return step{"drift of ConfigMap " + ns + "/" + name + " in " + m.Name, func(a *attack) error {
				return a.drift(m, "v1", "ConfigMap", ns, name, `{"data":{"key":"drifted"}}`)
			}}
		}},
		{4, func(r *rand.Rand) step {
			m, ns, name, n := one(r), ns(r), fmt.Sprintf("d%d", r.IntN(3)), r.IntN(9)
			return step{fmt.Sprintf("drift of Deployment %s/%s in %s to %d replicas", ns, name, m.Name, n), func(a *attack) error {
				return a.drift(m, "apps/v1", "Deployment", ns, name, fmt.Sprintf(`{"spec":{"replicas":%d}}`, n))
			}}
		}},
		{4, func(r *rand.Rand) step {
			m, ns, name := one(r), ns(r), fmt.Sprintf("c%d", r.IntN(4))
			return step{"delete the copy of ConfigMap " + ns + "/" + name + " in " + m.Name, func(a *attack) error {
				return a.drift(m, "v1", "ConfigMap", ns, name, "")
			}}
		}},
		{1, func(*rand.Rand) step {
			ns := attackNamespaces[1]
			return step{"delete namespace " + ns, func(a *attack) error { return a.delete("v1", "Namespace", "", ns) }}
		}},
		{8, func(*rand.Rand) step {
			return step{"make the namespaces", func(a *attack) error { return a.namespaces() }}
		}},
		{8, func(r *rand.Rand) step {
			d := time.Duration(100+r.IntN(700)) * time.Millisecond
			return step{"wait " + d.String(), func(*attack) error { time.Sleep(d); return nil }}
		}},
	}
}

func apply(what, manifest string) step {
	return step{what, func(a *attack) error { return a.apply(manifest) }}
}

// words returns a short manifest as one line.
func words(manifest string) string {
	return strings.Join(strings.Fields(strings.NewReplacer("---", "", "apiVersion: v1\n", "", "metadata: ", "").Replace(manifest)), " ")
}

// labelled returns the manifest with the label that the attack's policies select.
func labelled(manifest string) string {
	return strings.Replace(manifest, "metadata: {", "metadata: {labels: {attack: \"yes\"}, ", 1)
}

func selected(apiVersion, kind string) string {
	return fmt.Sprintf("{apiVersion: %s, kind: %s, labelSelector: {matchLabels: {attack: \"yes\"}}}", apiVersion, kind)
}

func restPolicy(ns string, clusters ...string) string {
	resolution := "conflictResolution: Abort"
	if ns == existing {
		resolution = "conflictResolution: Overwrite"
	}
	return spine.Policy(ns, "rest", selected("v1", "ConfigMap")+", "+selected("v1", "Secret")+", "+selected("v1", "ServiceAccount"), spine.In(clusters...), resolution)
}

// override returns an override policy that sets data.where of ConfigMaps in one cluster.
func override(ns, cluster, value string) string {
	return fmt.Sprintf(`---
apiVersion: policy.orrery.dev/v1alpha1
kind: OverridePolicy
metadata: {name: where, namespace: %s}
spec:
  resourceSelectors: [{apiVersion: v1, kind: ConfigMap}]
  overrideRules: [{targetCluster: {clusterNames: [%s]}, overriders: {plaintext: [{path: /data/where, operator: add, value: %q}]}}]
`, ns, cluster, value)
}
