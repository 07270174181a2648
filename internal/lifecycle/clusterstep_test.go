package lifecycle

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/pki"
	"orrery.dev/orrery/internal/testenv"
)

// nowhere is a connection to a host that is not used.
type nowhere struct{ host.Conn }

// stepRun returns a run for a cluster with one control plane, and a client of its API server.
func stepRun(t *testing.T, nodes ...*corev1.Node) (*run, kubernetes.Interface) {
	t.Helper()
	cfg := testenv.Config(0)
	cs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	clean := func() {
		now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
		cs.CoreV1().Pods("default").DeleteCollection(context.Background(), now, metav1.ListOptions{})
		cs.PolicyV1().PodDisruptionBudgets("default").DeleteCollection(context.Background(), now, metav1.ListOptions{})
		cs.CoreV1().Nodes().DeleteCollection(context.Background(), now, metav1.ListOptions{})
	}
	clean()
	t.Cleanup(clean)
	e := &Engine{
		Cluster: "oak", Env: quiet{Files: Files(t.TempDir())},
		Connect: func(host.Conn, int32, pki.Bundle) *rest.Config { return cfg },
	}
	op := &lifecyclev1alpha1.Operation{Spec: lifecyclev1alpha1.OperationSpec{
		Cluster: "oak", Action: lifecyclev1alpha1.ActionApply,
		Apply: &lifecyclev1alpha1.ApplyAction{Rollout: lifecyclev1alpha1.Rollout{DrainTimeout: &metav1.Duration{Duration: 5 * time.Second}}},
	}}
	if err := e.Env.Create(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	r := &run{
		Engine: e, rec: newRecorder(e, op), op: op, conns: map[string]*connection{}, facts: map[string]plan.Facts{}, away: map[string]away{}, failed: map[string]error{},
		roles: map[clusterv1alpha1.Role][]string{clusterv1alpha1.RoleControlPlane: {"h-1"}}, spec: &clusterv1alpha1.Provision{}, state: &State{Cluster: "oak"},
		changing: map[string]bool{}, applied: map[string]bool{},
	}
	r.conns["h-1"] = &connection{name: "h-1", conn: nowhere{}}
	r.spec.Hosts = append(r.spec.Hosts, clusterv1alpha1.Host{Name: "h-1"})
	for _, n := range nodes {
		if _, err := cs.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		r.conns[n.Name] = &connection{name: n.Name, conn: nowhere{}}
		r.spec.Hosts = append(r.spec.Hosts, clusterv1alpha1.Host{Name: n.Name})
	}
	return r, cs
}

func aNode(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }

// patchNode changes a node as an administrator would.
func patchNode(t *testing.T, cs kubernetes.Interface, name, patch string) {
	t.Helper()
	if _, err := cs.CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// aPod creates a pod on a node. If guarded, a disruption budget forbids its eviction.
func aPod(t *testing.T, cs kubernetes.Interface, node string, guarded bool) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "on-" + node, Labels: map[string]string{"on": node}},
		Spec: corev1.PodSpec{
			NodeName: node, AutomountServiceAccountToken: new(false), TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{{Name: "c", Image: "c"}},
		},
	}
	if _, err := cs.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if !guarded {
		return
	}
	ready := `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`
	if _, err := cs.CoreV1().Pods("default").Patch(t.Context(), pod.Name, types.MergePatchType, []byte(ready), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "on-" + node},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"on": node}},
		},
	}
	budget, err := cs.PolicyV1().PodDisruptionBudgets("default").Create(t.Context(), budget, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// There is no controller to set the status.
	budget.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation, CurrentHealthy: 1, DesiredHealthy: 1, ExpectedPods: 1}
	if _, err := cs.PolicyV1().PodDisruptionBudgets("default").UpdateStatus(t.Context(), budget, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// cordonOf reports whether a node is unschedulable, and whether it has cordonAnnotation.
func cordonOf(t *testing.T, cs kubernetes.Interface, name string) (unschedulable, ours bool) {
	t.Helper()
	n, err := cs.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n.Spec.Unschedulable, n.Annotations[cordonAnnotation] != ""
}

// stateOf returns the last state of a step of the cluster.
func (r *run) stateOf(id string) lifecyclev1alpha1.StepState {
	for _, s := range r.op.Status.Steps {
		if s.Host == clusterHost && s.ID == id {
			return s.State
		}
	}
	return ""
}

// TestCordonStep: a node is cordoned once, with our annotation. An administrator's cordon is
// neither taken over nor removed.
func TestCordonStep(t *testing.T) {
	type node struct{ Unschedulable, Ours bool }
	const cordon, uncordon = `{"spec":{"unschedulable":true}}`, `{"spec":{"unschedulable":null}}`
	changed, unchanged := lifecyclev1alpha1.StepChanged, lifecyclev1alpha1.StepUnchanged
	for name, c := range map[string]struct {
		admin     string // before the cordon
		after     string // between cordon and uncordon
		cordoned  node
		in        lifecyclev1alpha1.StepState
		uncordons node
		out       lifecyclev1alpha1.StepState
	}{
		"Ours":                      {cordoned: node{true, true}, in: changed, uncordons: node{}, out: changed},
		"Administrators":            {admin: cordon, cordoned: node{true, false}, in: unchanged, uncordons: node{true, false}, out: unchanged},
		"OursOfAnEarlierRun":        {admin: `{"metadata":{"annotations":{"` + cordonAnnotation + `":"oak-1"}},"spec":{"unschedulable":true}}`, cordoned: node{true, true}, in: unchanged, uncordons: node{}, out: changed},
		"TakenBackByAnotherMeans":   {after: uncordon, cordoned: node{true, true}, in: changed, uncordons: node{}, out: changed},
		"MarkOfWhatIsNotCordonedBy": {admin: `{"metadata":{"annotations":{"` + cordonAnnotation + `":"oak-1"}}}`, cordoned: node{true, true}, in: changed, uncordons: node{}, out: changed},
	} {
		t.Run(name, func(t *testing.T) {
			r, cs := stepRun(t, aNode("h-2"))
			if c.admin != "" {
				patchNode(t, cs, "h-2", c.admin)
			}
			for _, again := range []bool{false, true} {
				if err := r.do(t.Context(), plan.CordonNode("h-2")); err != nil {
					t.Fatal(err)
				}
				want := c.in
				if again {
					want = unchanged
				}
				if got := r.stateOf("cordon/h-2"); got != want {
					t.Errorf("cordon (again %v): %s, want %s", again, got, want)
				}
				u, o := cordonOf(t, cs, "h-2")
				if d := cmp.Diff(c.cordoned, node{u, o}); d != "" {
					t.Errorf("cordoned: %s", d)
				}
			}
			if c.after != "" {
				patchNode(t, cs, "h-2", c.after)
			}
			for _, again := range []bool{false, true} {
				if err := r.do(t.Context(), plan.UncordonNode("h-2")); err != nil {
					t.Fatal(err)
				}
				want := c.out
				if again {
					want = unchanged
				}
				if got := r.stateOf("uncordon/h-2"); got != want {
					t.Errorf("uncordon (again %v): %s, want %s", again, got, want)
				}
				u, o := cordonOf(t, cs, "h-2")
				if d := cmp.Diff(c.uncordons, node{u, o}); d != "" {
					t.Errorf("uncordoned: %s", d)
				}
			}
		})
	}
	t.Run("NoNode", func(t *testing.T) {
		r, _ := stepRun(t)
		for _, s := range []plan.ClusterStep{plan.CordonNode("gone"), plan.DrainNode("gone"), plan.UncordonNode("gone")} {
			if err := r.do(t.Context(), s); err != nil || r.stateOf(s.ID) != unchanged {
				t.Errorf("%s: %v, %s", s.ID, err, r.stateOf(s.ID))
			}
		}
	})
}

// TestDrainStep: pods are evicted once, and the drain of an empty node changes nothing.
func TestDrainStep(t *testing.T) {
	r, cs := stepRun(t, aNode("h-2"))
	r.op.Spec.Apply.DrainTimeout = &metav1.Duration{Duration: testenv.Patience}
	aPod(t, cs, "h-2", false)
	for _, want := range []lifecyclev1alpha1.StepState{lifecyclev1alpha1.StepChanged, lifecyclev1alpha1.StepUnchanged} {
		if err := r.drained(t.Context(), "h-2"); err != nil {
			t.Fatal(err)
		}
		if got := r.stateOf("drain/h-2"); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if pods, err := cs.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}); err != nil || len(pods.Items) > 0 {
		t.Errorf("%d pods are left: %v", len(pods.Items), err)
	}
	if unschedulable, ours := cordonOf(t, cs, "h-2"); !unschedulable || !ours {
		t.Errorf("cordoned %v, by us %v", unschedulable, ours)
	}
}

// TestDrainFails: if a budget forbids the drain, the node is uncordoned, unless an administrator
// cordoned it.
func TestDrainFails(t *testing.T) {
	for name, admin := range map[string]bool{"Ours": false, "Administrators": true} {
		t.Run(name, func(t *testing.T) {
			r, cs := stepRun(t, aNode("h-2"))
			aPod(t, cs, "h-2", true)
			if admin {
				patchNode(t, cs, "h-2", `{"spec":{"unschedulable":true}}`)
			}
			err := r.drained(t.Context(), "h-2")
			if err == nil || !strings.Contains(err.Error(), "disruption budget") {
				t.Errorf("got %v", err)
			}
			if unschedulable, ours := cordonOf(t, cs, "h-2"); unschedulable != admin || ours {
				t.Errorf("cordoned %v, by us %v", unschedulable, ours)
			}
		})
	}
}
