package addon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Ready waits until all workloads in g.ReadinessChecks are ready, one after the other, or ctx ends.
// If ctx ends, the error says which workload is not ready, with the reason from its pods and
// events. Reading these may take 15 seconds more. Other errors, such as missing rights, end the
// wait at once.
//
// A Deployment is ready when only pods of the applied version run, and enough of them are
// available. A StatefulSet is ready when all its pods are available. A DaemonSet must have an
// available pod on each node whose kubelet has contact to the API server. A dead host therefore
// does not block the others.
func Ready(ctx context.Context, cfg *rest.Config, g Group) error {
	c, err := connect(cfg)
	if err != nil {
		return err
	}
	for _, check := range g.ReadinessChecks {
		if check.Namespace == "" {
			check.Namespace = g.Namespace
		}
		if err := c.pass(ctx, check); err != nil {
			return fmt.Errorf("%s %s/%s: %w", check.Kind, check.Namespace, check.Name, err)
		}
	}
	return nil
}

// pass waits until the workload of one readiness check is ready. If ctx ends before, the error has
// the reason, as Ready describes.
func (c *cluster) pass(ctx context.Context, g ReadinessCheck) error {
	var last workload
	for {
		w, err := c.look(ctx, g)
		if err != nil {
			if ctx.Err() != nil && last.why != "" {
				break
			}
			return err
		}
		if w.why == "" {
			return nil
		}
		last = w
		if pause(ctx) != nil {
			break
		}
	}
	// Find the reason for the error with a new context, although ctx has ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	why := []error{errors.New(last.why)}
	if reasons := c.reasons(ctx, last); len(reasons) > 0 {
		why = append(why, errors.New(strings.Join(reasons, "; ")))
	}
	if len(why) == 1 {
		return why[0]
	}
	return fmt.Errorf("%w: %w", why[0], why[1])
}

// workload is the last observed state of a workload.
type workload struct {
	// object is the workload as read from the API server, and selector selects its pods.
	object   client.Object
	selector *metav1.LabelSelector
	// why is the reason why it is not ready, or empty if it is ready.
	why string
}

// look reads the workload of a readiness check and judges its state. A workload that does not exist
// is not ready, without an error. A check of another kind than Deployment, StatefulSet and
// DaemonSet is an error.
func (c *cluster) look(ctx context.Context, g ReadinessCheck) (workload, error) {
	switch g.Kind {
	case "Deployment":
		o := &appsv1.Deployment{}
		return c.see(ctx, g, o, func() (*metav1.LabelSelector, string, error) { return o.Spec.Selector, deploymentWhy(o), nil })
	case "StatefulSet":
		o := &appsv1.StatefulSet{}
		return c.see(ctx, g, o, func() (*metav1.LabelSelector, string, error) { return o.Spec.Selector, statefulSetWhy(o), nil })
	case "DaemonSet":
		o := &appsv1.DaemonSet{}
		return c.see(ctx, g, o, func() (*metav1.LabelSelector, string, error) {
			silent, err := c.silentNodes(ctx, o)
			return o.Spec.Selector, daemonSetWhy(o, silent, g.Nodes), err
		})
	default:
		return workload{}, fmt.Errorf("a readiness check is for a Deployment, a DaemonSet or a StatefulSet, and not for a %s", g.Kind)
	}
}

// see reads a workload into o. If the workload exists, see calls judge, which returns the selector
// of its pods and the reason why it is not ready. The reason is "" if it is ready.
func (c *cluster) see(ctx context.Context, g ReadinessCheck, o client.Object, judge func() (*metav1.LabelSelector, string, error)) (workload, error) {
	there, err := c.get(ctx, o, g.Namespace, g.Name)
	w := workload{object: o, why: "it is not there"}
	if err == nil && there {
		w.selector, w.why, err = judge()
	}
	return w, err
}

// notSeen is the sentence, for users, why a workload is not ready: its controller has not observed
// the present spec.
const notSeen = "its controller has not seen it yet"

// deploymentWhy returns why a Deployment is not ready, or "" if it is.
func deploymentWhy(o *appsv1.Deployment) string {
	replicas := ptr.Deref(o.Spec.Replicas, 1)
	available := slices.ContainsFunc(o.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
		return c.Type == appsv1.DeploymentAvailable && c.Status == corev1.ConditionTrue
	})
	switch {
	case o.Status.ObservedGeneration < o.Generation:
		return notSeen
	case o.Status.UpdatedReplicas < replicas:
		return fmt.Sprintf("%d of %d pods are made", o.Status.UpdatedReplicas, replicas)
	case o.Status.Replicas > o.Status.UpdatedReplicas:
		return fmt.Sprintf("%d pods of before are still there", o.Status.Replicas-o.Status.UpdatedReplicas)
	// The strategy allows that some pods are missing, but not all.
	case !available, replicas > 0 && o.Status.AvailableReplicas == 0:
		return fmt.Sprintf("%d of %d pods are available", o.Status.AvailableReplicas, replicas)
	}
	return ""
}

// statefulSetWhy returns why a StatefulSet is not ready, or "" if it is.
func statefulSetWhy(o *appsv1.StatefulSet) string {
	replicas := ptr.Deref(o.Spec.Replicas, 1)
	switch {
	case o.Status.ObservedGeneration < o.Generation:
		return notSeen
	case o.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType && o.Status.UpdatedReplicas < replicas:
		return fmt.Sprintf("%d of %d pods are made", o.Status.UpdatedReplicas, replicas)
	case o.Status.AvailableReplicas < replicas:
		return fmt.Sprintf("%d of %d pods are available", o.Status.AvailableReplicas, replicas)
	}
	return ""
}

// daemonSetWhy returns why a DaemonSet is not ready, or "" if it is. silent is the number of nodes
// whose pods do not count, since the kubelet has no contact. atLeast is the minimum number of nodes
// on which the DaemonSet wants pods.
func daemonSetWhy(o *appsv1.DaemonSet, silent, atLeast int) string {
	wanted := int(o.Status.DesiredNumberScheduled) - silent
	switch {
	case o.Status.ObservedGeneration < o.Generation:
		return notSeen
	case int(o.Status.DesiredNumberScheduled) < atLeast:
		return fmt.Sprintf("it is to run on %d nodes, and there must be %d: a kubelet has not registered", o.Status.DesiredNumberScheduled, atLeast)
	case o.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType && int(o.Status.UpdatedNumberScheduled) < wanted:
		return fmt.Sprintf("%d of %d pods are made", o.Status.UpdatedNumberScheduled, wanted)
	case int(o.Status.NumberAvailable) < wanted:
		return fmt.Sprintf("%d of %d pods are available", o.Status.NumberAvailable, wanted)
	}
	return ""
}

// silentNodes counts the nodes that have an unready pod of the DaemonSet and whose kubelet has lost
// contact to the API server. It lists nodes and pods only if pods of the DaemonSet are missing.
func (c *cluster) silentNodes(ctx context.Context, o *appsv1.DaemonSet) (int, error) {
	if s := o.Status; s.NumberAvailable >= s.DesiredNumberScheduled && s.UpdatedNumberScheduled >= s.DesiredNumberScheduled {
		return 0, nil
	}
	var nodes corev1.NodeList
	if err := c.list(ctx, &nodes); err != nil {
		return 0, fmt.Errorf("list nodes: %w", err)
	}
	silent := map[string]bool{}
	for _, n := range nodes.Items {
		for _, condition := range n.Status.Conditions {
			silent[n.Name] = silent[n.Name] || condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionUnknown
		}
	}
	pods, err := c.pods(ctx, o.Namespace, o.Spec.Selector)
	if err != nil {
		return 0, err
	}
	counted := map[string]bool{}
	for _, p := range pods {
		if silent[p.Spec.NodeName] && !podReady(&p) {
			counted[p.Spec.NodeName] = true
		}
	}
	return len(counted), nil
}

// pods lists the pods in a namespace that a selector matches.
func (c *cluster) pods(ctx context.Context, namespace string, selector *metav1.LabelSelector) ([]corev1.Pod, error) {
	match, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return nil, fmt.Errorf("parse selector: %w", err)
	}
	var pods corev1.PodList
	if err := c.list(ctx, &pods, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: match}); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	return pods.Items, nil
}

// podReady reports whether the condition Ready of a pod is True.
func podReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// maxReasons is the maximum number of pods whose reasons are in the error of Ready.
const maxReasons = 3

// reasons returns texts that say why pods of a workload are not ready. If the workload has no pods,
// it returns the last warning about the workload itself. It names at most maxReasons pods. It is
// nil if the pods cannot be read.
func (c *cluster) reasons(ctx context.Context, w workload) []string {
	if w.object == nil || w.object.GetUID() == "" {
		return nil
	}
	pods, err := c.pods(ctx, w.object.GetNamespace(), w.selector)
	if err != nil {
		return nil
	}
	var all []string
	for i := range pods {
		p := &pods[i]
		if podReady(p) || p.DeletionTimestamp != nil {
			continue
		}
		if len(all) == maxReasons {
			return append(all, "and more")
		}
		where := ""
		if p.Spec.NodeName != "" {
			where = " on " + p.Spec.NodeName
		}
		why := cmp.Or(podWhy(p), c.warning(ctx, p), "not ready, in phase "+string(p.Status.Phase))
		all = append(all, fmt.Sprintf("pod %s%s: %s", p.Name, where, why))
	}
	if len(pods) == 0 {
		if why := c.warning(ctx, w.object); why != "" {
			all = append(all, why)
		}
	}
	return all
}

// podWhy returns why a pod is not ready, from its status. It is "" if the status does not contain a
// reason.
func podWhy(p *corev1.Pod) string {
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return explain(condition.Reason, condition.Message)
		}
	}
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		waiting, ended := s.State.Waiting, cmp.Or(s.State.Terminated, s.LastTerminationState.Terminated)
		switch {
		case waiting != nil && waiting.Reason == "PodInitializing":
		case waiting != nil && waiting.Reason == "ContainerCreating":
			return ""
		case waiting != nil && waiting.Reason == "CrashLoopBackOff" && ended != nil, waiting == nil && ended != nil && ended.ExitCode != 0:
			return fmt.Sprintf("container %s ended with status %d: %s", s.Name, ended.ExitCode, explain(ended.Reason, ended.Message))
		case waiting != nil:
			return fmt.Sprintf("container %s (%s): %s", s.Name, s.Image, explain(waiting.Reason, waiting.Message))
		case s.State.Running != nil && !s.Ready && !slices.ContainsFunc(p.Status.InitContainerStatuses,
			func(init corev1.ContainerStatus) bool { return init.Name == s.Name }):
			return ""
		}
	}
	return ""
}

// eventTime returns the latest of the three times of an event.
func eventTime(e *corev1.Event) time.Time {
	latest := e.CreationTimestamp.Time
	for _, t := range []time.Time{e.LastTimestamp.Time, e.EventTime.Time} {
		if t.After(latest) {
			latest = t
		}
	}
	return latest
}

// explain joins a reason and a message, as "reason: message". Both may be "".
func explain(reason, message string) string {
	if reason == "" || message == "" {
		return reason + message
	}
	return reason + ": " + strings.TrimSpace(message)
}

// warning returns the reason and message of the last warning event about an object. It is "" if
// there is no such event, or if events cannot be read.
func (c *cluster) warning(ctx context.Context, o client.Object) string {
	var events corev1.EventList
	err := c.list(ctx, &events, client.InNamespace(o.GetNamespace()), client.MatchingFieldsSelector{
		Selector: fields.SelectorFromSet(fields.Set{"involvedObject.uid": string(o.GetUID()), "type": corev1.EventTypeWarning}),
	})
	if err != nil || len(events.Items) == 0 {
		return ""
	}
	last := slices.MaxFunc(events.Items, func(a, b corev1.Event) int { return eventTime(&a).Compare(eventTime(&b)) })
	return explain(last.Reason, last.Message)
}
