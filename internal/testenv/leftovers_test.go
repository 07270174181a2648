package testenv

import (
	"strings"
	"testing"
)

// later is a test whose cleanups run when end is called.
type later struct {
	testing.TB
	cleanups []func()
	said     []string
}

func (l *later) Helper() {}

func (l *later) Cleanup(f func()) { l.cleanups = append(l.cleanups, f) }

func (l *later) Errorf(_ string, args ...any) { l.said = append(l.said, args[0].(string)) }

func (l *later) end() string {
	for len(l.cleanups) > 0 {
		last := len(l.cleanups) - 1
		f := l.cleanups[last]
		l.cleanups = l.cleanups[:last]
		f()
	}
	return strings.Join(l.said, "\n")
}

func TestLeftovers(t *testing.T) {
	cfg := Config(0)
	if err := InstallCRDs(cfg, "clusteraccesses.policy.orrery.dev"); err != nil {
		t.Fatal(err)
	}
	api, err := NewAPI(cfg)
	if err != nil {
		t.Fatal(err)
	}
	create := func(name, metadata string) {
		t.Helper()
		api.Apply(t, "apiVersion: policy.orrery.dev/v1alpha1\nkind: ClusterAccess\nmetadata: {name: "+name+metadata+"}\n"+
			"spec: {namespaceSelector: {matchLabels: {a: b}}, clusterAffinity: {clusterNames: [b]}}\n")
	}
	remove := func(name string) { api.Remove(t, "policy.orrery.dev/v1alpha1", "ClusterAccess", "", name) }
	earlier, deleted, left, leaving, owned := UniqueName("a"), UniqueName("b"), UniqueName("c"), UniqueName("d"), UniqueName("e")
	create(earlier, "")
	defer remove(earlier)

	l := &later{TB: t}
	Leftovers(l, cfg)
	create(deleted, "")
	l.Cleanup(func() { remove(deleted) })
	create(left, "")
	create(leaving, ", finalizers: [orrery.dev/test]")
	remove(leaving)
	ns := api.Object(t, "v1", "Namespace", "", "default")
	create(owned, ", ownerReferences: [{apiVersion: v1, kind: Namespace, name: default, uid: "+string(ns.GetUID())+"}]")
	defer remove(owned)
	want := "clusteraccesses.policy.orrery.dev " + left
	if said := l.end(); said != want {
		t.Errorf("said %q, want %q", said, want)
	}
	remove(left)
	api.MergePatch(t, "policy.orrery.dev/v1alpha1", "ClusterAccess", "", leaving, `{"metadata":{"finalizers":null}}`)
}
