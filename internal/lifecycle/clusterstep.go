package lifecycle

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/kubectl/pkg/drain"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/addon"
	"orrery.dev/orrery/internal/lifecycle/intent"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// cordonAnnotation is an annotation on a Node that Orrery has cordoned. Its value is the name of
// the Operation. Orrery never removes a cordon without this annotation, because an administrator
// has set that cordon.
const cordonAnnotation = "lifecycle.orrery.dev/cordoned-by"

// do performs a step in the cluster as a whole, such as a drain, and records the step. A step that
// observe reports as done is recorded as unchanged and not performed. An error of observe fails the
// step.
func (r *run) do(ctx context.Context, s plan.ClusterStep) error {
	return r.rec.do(s.ID, func() (bool, error) {
		done, err := r.observe(ctx, s)
		if done || err != nil {
			return false, err
		}
		return r.perform(ctx, s)
	})
}

// observe reports whether a step of the cluster is already done, so that do need not perform it.
// Objects and KubeconfigWrite cannot be observed: the result is false for them. A step about a Node
// that does not exist counts as done. A Cordon is done if anybody has cordoned the Node. An
// Uncordon is done if the Node has no cordonAnnotation.
func (r *run) observe(ctx context.Context, s plan.ClusterStep) (bool, error) {
	switch {
	case s.EtcdMemberAdd != nil, s.EtcdMemberPromote != nil, s.EtcdMemberRemove != nil:
		return r.observeMember(ctx, s)
	case s.Objects != nil, s.KubeconfigWrite != nil:
		return false, nil
	}
	cs, err := r.clientset(ctx)
	if err != nil {
		return false, err
	}
	n, err := getNode(ctx, cs, s.Target())
	if err != nil {
		return false, err
	}
	if n == nil {
		return true, nil // a step on a missing Node is done
	}
	switch {
	case s.Cordon != nil:
		return n.Spec.Unschedulable, nil
	case s.Uncordon != nil:
		return n.Annotations[cordonAnnotation] == "", nil
	case s.Drain != nil:
		pods, errs := r.drainer(ctx, cs).GetPodsForDeletion(s.Drain.Node)
		return len(errs) == 0 && len(pods.Pods()) == 0, nil // the Drain itself reports such errors
	case s.NodeObject != nil && !s.NodeObject.Delete:
		return len(nodePatch(n, s.NodeObject.Node)) == 0, nil
	}
	return false, nil
}

// perform performs a step of the cluster, even if it is already done. It reports whether the step
// changed anything. Most kinds of steps report a change without a comparison. A step of an unknown
// kind is an error.
func (r *run) perform(ctx context.Context, s plan.ClusterStep) (bool, error) {
	switch {
	case s.EtcdMemberAdd != nil, s.EtcdMemberPromote != nil, s.EtcdMemberRemove != nil:
		return true, r.changeMember(ctx, s)
	case s.Objects != nil:
		return r.applyObjects(ctx, s.Objects.Group)
	case s.KubeconfigWrite != nil:
		return r.writeKubeconfig(ctx)
	}
	cs, err := r.clientset(ctx)
	if err != nil {
		return false, err
	}
	switch {
	case s.Cordon != nil:
		return true, setCordon(ctx, cs, s.Cordon.Node, r.op.Name)
	case s.Uncordon != nil:
		return true, setCordon(ctx, cs, s.Uncordon.Node, "")
	case s.Drain != nil:
		return true, r.drain(ctx, cs, s.Drain.Node)
	case s.NodeObject != nil && s.NodeObject.Delete:
		if err := cs.CoreV1().Nodes().Delete(ctx, s.NodeObject.Name, metav1.DeleteOptions{}); ignoreNotFound(err) != nil {
			return false, fmt.Errorf("delete node %s: %w", s.NodeObject.Name, err)
		}
		return true, nil
	case s.NodeObject != nil:
		return settleNode(ctx, cs, s.NodeObject.Name, s.NodeObject.Node)
	}
	return false, fmt.Errorf("step %s of the cluster is of no known kind", s.ID)
}

// applyObjects applies the group of objects with this name from r.groups, and reports whether any
// object changed. If so, it sets r.applied for the group. An unknown group is an error.
func (r *run) applyObjects(ctx context.Context, group string) (bool, error) {
	cfg, err := r.api(ctx)
	if err != nil {
		return false, err
	}
	for _, g := range r.groups {
		if g.Name == group {
			n, err := addon.Apply(ctx, cfg, g)
			if n > 0 {
				r.applied[group] = true
			}
			return n > 0, err
		}
	}
	return false, fmt.Errorf("there is no group %s of objects", group)
}

// writeKubeconfig passes the administrator's kubeconfig to r.Env.Built. A command line saves it as
// a file there, and a hub joins the cluster. The result is always false, which records no change,
// because the previous kubeconfig is unknown.
func (r *run) writeKubeconfig(ctx context.Context) (bool, error) {
	kubeconfig, err := r.kubeconfig()
	if err != nil {
		return false, err
	}
	return false, r.Env.Built(ctx, kubeconfig, r.spec.Join, r.api)
}

// drained cordons and drains the node of a host before the host is changed. If the drain fails,
// drained uncordons the node and returns the error. A run that was paused, canceled or interrupted
// leaves the node cordoned: the run that resumes drains again.
func (r *run) drained(ctx context.Context, name string) error {
	if err := r.do(ctx, plan.CordonNode(name)); err != nil {
		return err
	}
	err := r.do(ctx, plan.DrainNode(name))
	if err == nil || ctx.Err() != nil || r.rec.checkpoint() != nil {
		return err // the run that resumes drains the node again
	}
	if e := r.do(ctx, plan.UncordonNode(name)); e != nil {
		return fmt.Errorf("%w; the node stays cordoned: %w", err, e)
	}
	return err
}

// observeCluster sets r.cluster to the state of the cluster that the plan depends on: Nodes with
// wrong labels or taints, cordons of earlier runs, and joining etcd members. It reads Nodes only if
// the cluster is built and a control plane was reached. If no API server answers, nothing is known
// of Nodes, and the run finds that work later. r.plan must be set. The only error is that of ctx.
func (r *run) observeCluster(ctx context.Context) error {
	_, renewed := r.state.Renewed[plan.LeafAdmin]
	r.cluster = plan.ClusterFacts{Built: r.state.Applied != nil, Kubeconfig: renewed}
	for _, name := range r.roles[clusterv1alpha1.RoleEtcd] {
		if r.joins(name) && r.conns[name] != nil && !r.hasMember(name) {
			r.cluster.Joining = append(r.cluster.Joining, name)
		}
	}
	if r.state.Applied == nil || !slices.ContainsFunc(r.roles[clusterv1alpha1.RoleControlPlane], func(name string) bool { return r.conns[name] != nil }) {
		return nil
	}
	qctx, cancel := context.WithTimeout(ctx, 2*etcdTimeout)
	defer cancel()
	nodes, err := r.nodes(qctx)
	if err != nil {
		logr.FromContextOrDiscard(ctx).V(1).Info("the cluster cannot be looked at; what it lacks is found later", "error", err.Error())
		return ctx.Err()
	}
	r.cluster.Cordoned = r.cordonedByUs(nodes)
	for _, h := range r.nodeHosts() {
		i := slices.IndexFunc(nodes, func(n corev1.Node) bool { return n.Name == h.Name })
		if i >= 0 && r.conns[h.Name] != nil && len(nodePatch(&nodes[i], h.Node)) > 0 {
			r.cluster.Unsettled = append(r.cluster.Unsettled, h.Name)
		}
	}
	return nil
}

// nodes lists the Nodes of the cluster from the cache of an API server, so a recent change may be
// missing.
func (r *run) nodes(ctx context.Context) ([]corev1.Node, error) {
	cs, err := r.clientset(ctx)
	if err != nil {
		return nil, err
	}
	nodes, err := cs.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	return nodes.Items, nil
}

// cordonedByUs returns the names of those nodes that a run has cordoned (cordonAnnotation). Hosts
// that are not in the spec or were not reached are left out.
func (r *run) cordonedByUs(nodes []corev1.Node) []string {
	var names []string
	for _, n := range nodes {
		if n.Annotations[cordonAnnotation] != "" && r.conns[n.Name] != nil && intent.Has(r.spec.Hosts, n.Name) {
			names = append(names, n.Name)
		}
	}
	return names
}

// uncordonLeft ends the cordons of this run and of earlier ones that are still set at the end of a
// rollout. It deletes the Node instead of uncordoning it if the host is no longer to be a node.
func (r *run) uncordonLeft(ctx context.Context) error {
	nodes, err := r.nodes(ctx)
	if err != nil {
		return err
	}
	for _, name := range r.cordonedByUs(nodes) {
		if err := r.do(ctx, r.plan.AfterCordon(name)); err != nil {
			return err
		}
	}
	return nil
}

// getNode returns a Node by name, or nil without an error if the Node does not exist.
func getNode(ctx context.Context, cs kubernetes.Interface, name string) (*corev1.Node, error) {
	n, err := cs.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	return n, nil
}

// setCordon cordons a Node and sets cordonAnnotation to operation, the name of the Operation, in
// one write. If operation is "", it uncordons the Node and removes the annotation. It leaves a Node
// that is already cordoned, and does not uncordon a Node without the annotation. It does nothing if
// the Node does not exist.
func setCordon(ctx context.Context, cs kubernetes.Interface, name, operation string) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		n, err := getNode(ctx, cs, name)
		if n == nil || err != nil {
			return err
		}
		marked := n.Annotations[cordonAnnotation] != ""
		if operation == "" && !marked || operation != "" && n.Spec.Unschedulable {
			return nil
		}
		var mark, unschedulable any // null in a merge patch removes the field
		if operation != "" {
			mark, unschedulable = operation, true
		}
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"resourceVersion": n.ResourceVersion, "annotations": map[string]any{cordonAnnotation: mark}},
			"spec":     map[string]any{"unschedulable": unschedulable},
		})
		if err != nil {
			return fmt.Errorf("node %s: marshal patch: %w", name, err)
		}
		_, err = cs.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: addon.FieldManager})
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return ignoreNotFound(err)
		}
		if err != nil {
			return fmt.Errorf("node %s: set whether it takes pods: %w", name, err)
		}
		return nil
	})
}

// drainer returns the settings of a drain, as kubectl drain has them. The timeout is that of the
// Operation, or defaultDrainTimeout if the Operation sets none.
func (r *run) drainer(ctx context.Context, cs kubernetes.Interface) *drain.Helper {
	timeout := defaultDrainTimeout
	if d := r.op.Spec.Order().DrainTimeout; d != nil {
		timeout = d.Duration
	}
	log := &lines{log: logr.FromContextOrDiscard(ctx)}
	return &drain.Helper{
		Ctx: ctx, Client: cs, Timeout: timeout, GracePeriodSeconds: -1,
		IgnoreAllDaemonSets: true, DeleteEmptyDirData: true, Force: true,
		Out: log, ErrOut: log,
	}
}

// drain evicts the pods of a node, within their disruption budgets, and waits until they are gone.
// Pods of DaemonSets stay. Pods without a controller, and pods with an emptyDir, are evicted too.
// It returns an error if the timeout of the Operation passes. It does not cordon the node.
func (r *run) drain(ctx context.Context, cs kubernetes.Interface, name string) error {
	if err := drain.RunNodeDrain(r.drainer(ctx, cs), name); err != nil {
		return fmt.Errorf("drain node %s: %w; a disruption budget may forbid it: give its workload more replicas, or wait, and resume", name, err)
	}
	return nil
}

// lines is the io.Writer to which a drain prints: it logs each write as one message at verbosity 1.
type lines struct{ log logr.Logger }

// Write implements io.Writer. It logs p as one message at verbosity 1, and never fails.
func (l *lines) Write(p []byte) (int, error) {
	l.log.V(1).Info(strings.TrimSpace(string(p)))
	return len(p), nil
}
