package lifecycle_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
)

// labelsOf returns the labels of a Node.
func (l *lab) labelsOf(name string) map[string]string {
	l.t.Helper()
	n, err := l.cs.CoreV1().Nodes().Get(l.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	return n.Labels
}

// TestLabelsLeave: labels that leave the file leave the Node, and the plan has a step for that.
// Labels of others stay.
func TestLabelsLeave(t *testing.T) {
	l := newLab(t, 3, 1)
	l.spec.Hosts[1].Labels = map[string]string{"disk": "ssd", "tier": "gold", "zone": "a"}
	l.must(lifecyclev1alpha1.ActionCreate, l.spec)
	if _, err := l.cs.CoreV1().Nodes().Patch(t.Context(), "h-2", types.MergePatchType, []byte(`{"metadata":{"labels":{"mine":"yes"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if changes := l.planFor(lifecyclev1alpha1.ActionApply, l.spec); !changes.Nothing() {
		t.Errorf("a plan without a change has %v", stepIDs(changes))
	}

	changed := l.spec.DeepCopy()
	changed.Hosts[1].Labels = map[string]string{"disk": "nvme", "zone": "a"}
	if d := cmp.Diff([]string{"node/h-2"}, stepIDs(l.planFor(lifecyclev1alpha1.ActionApply, changed))); d != "" {
		t.Errorf("steps (-want +got):\n%s", d)
	}
	l.must(lifecyclev1alpha1.ActionApply, changed)
	want := map[string]string{"disk": "nvme", "zone": "a", "mine": "yes", "node-role.kubernetes.io/worker": ""}
	if d := cmp.Diff(want, l.labelsOf("h-2")); d != "" {
		t.Errorf("labels (-want +got):\n%s", d)
	}
	if changes := l.planFor(lifecyclev1alpha1.ActionApply, changed); !changes.Nothing() {
		t.Errorf("the plan after it has %v", stepIDs(changes))
	}

	none := changed.DeepCopy()
	none.Hosts[1].Labels = nil
	l.must(lifecyclev1alpha1.ActionApply, none)
	if d := cmp.Diff(map[string]string{"mine": "yes", "node-role.kubernetes.io/worker": ""}, l.labelsOf("h-2")); d != "" {
		t.Errorf("labels (-want +got):\n%s", d)
	}
}

// TestLabelsOfARoleLeave: a control plane that is a worker no more loses the label of that role.
func TestLabelsOfARoleLeave(t *testing.T) {
	l := newLab(t, 2, 1)
	l.spec.RoleGroups[clusterv1alpha1.RoleWorker] = clusterv1alpha1.HostNames{"h-1", "h-2"}
	l.must(lifecyclev1alpha1.ActionCreate, l.spec)
	rest := l.spec.DeepCopy()
	rest.RoleGroups[clusterv1alpha1.RoleWorker] = clusterv1alpha1.HostNames{"h-2"}
	l.must(lifecyclev1alpha1.ActionApply, rest)
	if d := cmp.Diff(map[string]string{"node-role.kubernetes.io/control-plane": ""}, l.labelsOf("h-1")); d != "" {
		t.Errorf("labels (-want +got):\n%s", d)
	}
}
