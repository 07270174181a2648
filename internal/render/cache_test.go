package render

import (
	"fmt"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

func compiled(policies ...*policyv1alpha1.OverridePolicy) []*Override {
	var all []*Override
	for _, p := range policies {
		all = append(all, Compile(p))
	}
	return all
}

// TestCache: clusters with equal manifests share one object, and each input that a manifest
// depends on makes another one. The digests are those of Render.
func TestCache(t *testing.T) {
	template := object(t, `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: ns}, spec: {replicas: 4}}`)
	west := overridePolicy(t, "ns", "west", `{overrideRules: [
		{targetCluster: {labelSelector: {matchLabels: {side: west}}}, overriders: {labelsOverrider: [{operator: add, value: {side: west}}]}},
		{targetCluster: {clusterNames: [c9]}, overriders: {labelsOverrider: [{operator: add, value: {nine: "9"}}]}}]}`)
	edited := west.DeepCopy()
	edited.Generation++
	edited.Spec.OverrideRules[0].Overriders.LabelsOverrider[0].Value["side"] = "far-west"
	cluster := func(name, side string) *clusterv1alpha1.Cluster {
		c := aCluster()
		c.Name, c.Labels = name, map[string]string{"side": side}
		return c
	}
	target := func(n int32) workv1alpha2.TargetCluster { return workv1alpha2.TargetCluster{Replicas: &n} }
	cache := NewCache()
	manifests := map[*unstructured.Unstructured][]string{}
	for name, in := range map[string]Input{
		"1 east":          {Cluster: cluster("c1", "east"), Binding: "b", Overrides: compiled(west)},
		"1 east too":      {Cluster: cluster("c2", "east"), Binding: "b", Overrides: compiled(west)},
		"1 east, whole":   {Cluster: cluster("c2", "east"), Binding: "b", Overrides: compiled(west), Target: target(2)},
		"2 west":          {Cluster: cluster("c3", "west"), Binding: "b", Overrides: compiled(west)},
		"2 west too":      {Cluster: cluster("c4", "west"), Binding: "b", Overrides: compiled(west)},
		"3 west and nine": {Cluster: cluster("c9", "west"), Binding: "b", Overrides: compiled(west)},
		"4 edited":        {Cluster: cluster("c3", "west"), Binding: "b", Overrides: compiled(edited)},
		"5 divided":       {Cluster: cluster("c1", "east"), Binding: "b", Overrides: compiled(west), Divided: true, Target: target(2)},
		"6 divided":       {Cluster: cluster("c1", "east"), Binding: "b", Overrides: compiled(west), Divided: true, Target: target(1)},
		"7 other binding": {Cluster: cluster("c1", "east"), Binding: "b2", Overrides: compiled(west)},
	} {
		in.Template = template
		manifest, digest, err := cache.Render(in, "v1")
		if err != nil {
			t.Fatal(err)
		}
		if _, want, _ := Render(in); digest != want {
			t.Errorf("%s: digest %s, and without the cache %s", name, digest, want)
		}
		manifests[manifest] = append(manifests[manifest], name)
	}
	for _, names := range manifests {
		for _, name := range names {
			if name[0] != names[0][0] {
				t.Errorf("share a manifest: %v", names)
			}
		}
	}
	if len(manifests) != 7 {
		t.Errorf("%d manifests, want 7: %v", len(manifests), manifests)
	}

	in := Input{Template: template, Cluster: cluster("c1", "east"), Binding: "b"}
	other := in
	other.Template = object(t, `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: ns}, spec: {replicas: 5}}`)
	_, one, _ := cache.Render(in, "v1")
	if _, two, _ := cache.Render(other, "v2"); one == two {
		t.Error("another version of the template has the same manifest")
	}

	job := Input{
		Template: object(t, `{apiVersion: batch/v1, kind: Job, metadata: {name: j, namespace: ns}, spec: {parallelism: 3, completions: 10}}`),
		Cluster:  cluster("c1", "east"), Divided: true, Shares: []workv1alpha2.TargetCluster{{Name: "c1", Replicas: new(int32(1))}, {Name: "c2", Replicas: new(int32(1))}},
	}
	job.Target = job.Shares[0]
	_, half, _ := cache.Render(job, "v1")
	job.Shares = append(job.Shares, workv1alpha2.TargetCluster{Name: "c3", Replicas: new(int32(1))})
	third, digest, err := cache.Render(job, "v1")
	if n, _, _ := unstructured.NestedInt64(third.Object, "spec", "completions"); err != nil || digest == half || n != 4 {
		t.Errorf("with another cluster beside it a Job has %d completions, and digest %s after %s: %v", n, digest, half, err)
	}

	refused := Input{Template: template, Cluster: aCluster(), Overrides: compiled(overridePolicy(t, "ns", "p",
		`{overrideRules: [{overriders: {plaintext: [{path: /none, operator: remove}]}}]}`))}
	for range 2 {
		if _, _, err := cache.Render(refused, "v1"); err == nil {
			t.Error("not refused")
		}
	}
}

// TestCacheIsRenderedOnce: concurrent calls for one input get one manifest.
func TestCacheIsRenderedOnce(t *testing.T) {
	cache := NewCache()
	template := object(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: ns}}`)
	var all [16]*unstructured.Unstructured
	var asking sync.WaitGroup
	for i := range all {
		asking.Go(func() { all[i], _, _ = cache.Render(Input{Template: template, Cluster: aCluster()}, "v1") })
	}
	asking.Wait()
	for i, o := range all {
		if o == nil || o != all[0] {
			t.Errorf("manifest %d is another", i)
		}
	}
}

// TestCacheIsBounded: the least recently used entries are removed, including errors.
func TestCacheIsBounded(t *testing.T) {
	cache := NewCache()
	cache.most = 64 << 10
	for i := range 1000 {
		template := object(t, fmt.Sprintf(`{apiVersion: v1, kind: ConfigMap, metadata: {name: x%d, namespace: ns}}`, i))
		if i%2 == 0 {
			template.SetName("") // cannot be rendered
		}
		_, _, _ = cache.Render(Input{Template: template, Cluster: aCluster()}, fmt.Sprint(i))
	}
	if n := len(cache.entries); n != cache.recent.Len() || n > cache.most/entryBytes || n < 10 || cache.bytes > cache.most {
		t.Errorf("%d entries, %d in order, %d bytes of %d", n, cache.recent.Len(), cache.bytes, cache.most)
	}
	cache.check(t)
	in := Input{Template: object(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: x999, namespace: ns}}`), Cluster: aCluster()}
	kept, _, _ := cache.Render(in, "999")
	if again, _, _ := cache.Render(in, "999"); kept != again {
		t.Error("the last one is not kept")
	}
}

// check fails the test if bytes is not the sum of the sizes of all entries, or above most. No call
// may be running.
func (c *Cache) check(t *testing.T) {
	t.Helper()
	sum := 0
	for _, e := range c.entries {
		r, _ := e.Value.(*rendered)
		sum += r.size
	}
	if c.bytes != sum || c.bytes > c.most || c.recent.Len() != len(c.entries) {
		t.Errorf("%d bytes of %d, and the entries have %d; %d entries, %d in order", c.bytes, c.most, sum, len(c.entries), c.recent.Len())
	}
}

// TestCacheIsBoundedForConcurrentCalls: entries that are removed while they are rendered do not
// count, so that the cache keeps its bound.
func TestCacheIsBoundedForConcurrentCalls(t *testing.T) {
	cache := NewCache()
	cache.most = 4 * entryBytes // fewer entries than calls that run at once
	template := object(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: ns}}`)
	var calls sync.WaitGroup
	for worker := range 16 {
		calls.Go(func() {
			for i := range 500 {
				_, _, _ = cache.Render(Input{Template: template, Cluster: aCluster()}, fmt.Sprint(worker, i))
			}
		})
	}
	calls.Wait()
	cache.check(t)
}
