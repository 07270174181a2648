package plan_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// TestPaths: a host that only runs etcd connects to the other members, and to no API server or
// kubelet.
func TestPaths(t *testing.T) {
	spec := specOf(t, `
hosts:
- {name: cp, address: 10.0.0.1}
- {name: worker, address: 10.0.0.2}
- {name: e1, address: 10.0.0.3}
- {name: e2, address: 10.0.0.4}
- {name: e3, address: 10.0.0.5}
roleGroups: {control-plane: [cp], worker: [worker], etcd: [e1, e2, e3]}
kubernetes: {version: v1.36.3}
`)
	p, err := plan.Make(inputOf(spec))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]int{}
	for _, path := range p.Paths(spec) {
		got[path.From+" "+path.To] = append(got[path.From+" "+path.To], path.Port)
	}
	want := map[string][]int{
		"cp worker": {10250}, "worker cp": {6443},
		"cp e1": {2379}, "cp e2": {2379}, "cp e3": {2379},
		"e1 e2": {2380, 2379}, "e1 e3": {2380, 2379}, "e2 e1": {2380, 2379}, "e2 e3": {2380, 2379}, "e3 e1": {2380, 2379}, "e3 e2": {2380, 2379},
	}
	if diff := cmp.Diff(want, got, cmpopts.SortSlices(func(a, b int) bool { return a < b })); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
